#include "runtime/run/huggingface/exchange.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/comm_set.h"
#include "models/huggingface/config_json.h"
#include "models/huggingface/tensors.h"
#include "runtime/base/error.h"
#include "runtime/data/safetensors/safetensors_folder.h"
#include "runtime/data/safetensors/safetensors_writer.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/huggingface/exchange_config.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using Problems = std::vector<std::string>;

constexpr int64_t kBlock = int64_t{1} << 18;  // elements read at once

// A folder's tensors, checked against the model before anything is read.
class WeightReader {
 public:
  WeightReader(const ModelSpec& spec, const std::string& folder) : folder_(folder) {
    match_ = MatchTensors(spec, {folder_.names().begin(), folder_.names().end()}, folder);
    Problems problems;
    for (const HuggingFaceTensor& tensor : match_.tensors) {
      Check(tensor.name, tensor.shape, &problems);
      by_param_[tensor.param].push_back(&tensor);
      if (match_.tied_head && tensor.param == match_.tied_to)
        Check(*match_.tied_head, tensor.shape, &problems);
    }
    MR_REQUIRE(ErrorCode::kData, problems.empty(),
               "the tensors of {} do not fit its config.json:\n  {}", folder,
               fmt::join(problems, "\n  "));
  }

  std::vector<float> Read(const ParamPlacement& param) const {
    std::vector<float> values(static_cast<size_t>(param.spec.numel())), block;
    for (const HuggingFaceTensor* tensor : by_param_.at(param.spec.name)) {
      for (int64_t begin = 0; begin < tensor->numel(); begin += kBlock) {
        block.resize(static_cast<size_t>(std::min(kBlock, tensor->numel() - begin)));
        folder_.ReadFloats(tensor->name, begin, static_cast<int64_t>(block.size()), block.data());
        const auto odd =
            std::find_if(block.begin(), block.end(), [](float v) { return !std::isfinite(v); });
        MR_REQUIRE(ErrorCode::kData, odd == block.end(),
                   "{}: {} holds {} at element {}; weights must be finite numbers", folder_.path(),
                   tensor->name, *odd, begin + (odd - block.begin()));
        CopyToParam(*tensor, begin, block, values);
      }
    }
    if (match_.tied_head && param.spec.name == match_.tied_to) RequireSameHead(values);
    return values;
  }

 private:
  void Check(const std::string& name, const std::vector<int64_t>& shape, Problems* problems) const {
    const TensorSpec& stored = folder_.Tensor(name).spec;
    if (stored.shape != shape)
      problems->push_back(fmt::format("{} has the shape [{}]; [{}] is needed", name,
                                      fmt::join(stored.shape, ", "), fmt::join(shape, ", ")));
    if (stored.dtype != "F32" && stored.dtype != "BF16" && stored.dtype != "F16")
      problems->push_back(
          fmt::format("{} has the dtype {}; F32, BF16 and F16 can be read", name, stored.dtype));
  }

  void RequireSameHead(const std::vector<float>& table) const {
    std::vector<float> block;
    for (int64_t begin = 0; begin < static_cast<int64_t>(table.size()); begin += kBlock) {
      block.resize(
          static_cast<size_t>(std::min(kBlock, static_cast<int64_t>(table.size()) - begin)));
      folder_.ReadFloats(*match_.tied_head, begin, static_cast<int64_t>(block.size()),
                         block.data());
      const auto differs = std::mismatch(block.begin(), block.end(), table.begin() + begin);
      MR_REQUIRE(ErrorCode::kData, differs.first == block.end(),
                 "{}: config.json ties the head to the embedding, but {} holds {} at element {}, "
                 "where the embedding holds {}; the head would be lost",
                 folder_.path(), *match_.tied_head, *differs.first,
                 begin + (differs.first - block.begin()), *differs.second);
    }
  }

  SafetensorsFolder folder_;
  TensorMatch match_;
  std::map<std::string, std::vector<const HuggingFaceTensor*>> by_param_;
};

// Which tensors go into which file: in order, a new file when the next one would exceed the limit.
std::vector<std::vector<HuggingFaceTensor>> CutIntoFiles(std::vector<HuggingFaceTensor> tensors,
                                                         int64_t limit) {
  std::vector<std::vector<HuggingFaceTensor>> cut(1);
  int64_t bytes = 0;
  for (HuggingFaceTensor& tensor : tensors) {
    // The other columns of the tensor before it are in the same file.
    const int64_t more =
        tensor.first_column > 0 ? 0 : tensor.numel() * static_cast<int64_t>(sizeof(float));
    if (!cut.back().empty() && bytes + more > limit) {
      cut.emplace_back();
      bytes = 0;
    }
    bytes += more;
    cut.back().push_back(std::move(tensor));
  }
  return cut;
}

// The folder under a temporary name, gone again unless Publish is reached.
class NewFolder {
 public:
  NewFolder(FileSystem& files, std::string path)
      : files_(files),
        path_(std::move(path)),
        temporary_(fmt::format("{}.tmp-{}", path_, getpid())) {
    RemoveTree(files_, temporary_);
    try {
      MakeFolder(files_, temporary_);
    } catch (const Error&) {
      Discard();  // it may have been made
      throw;
    }
  }
  ~NewFolder() {
    if (!published_) Discard();
  }
  const std::string& temporary() const { return temporary_; }
  void Publish() {
    SyncFolder(files_, temporary_);
    Rename(files_, temporary_, path_);  // onto an empty folder or none
    published_ = true;
  }

 private:
  void Discard() noexcept {
    try {
      RemoveTree(files_, temporary_);
    } catch (const Error&) {  // the error that brought us here says more
    }
  }

  FileSystem& files_;
  std::string path_, temporary_;
  bool published_ = false;
};

class Exporter {
 public:
  Exporter(const ModelSpec& spec, const std::string& folder, const ExportOptions& options,
           FileSystem& files)
      : files_(files), folder_(files, folder) {
    const auto cut = CutIntoFiles(HuggingFaceTensors(spec), options.shard_bytes);
    std::map<std::string, std::string> file_of_tensor;
    int64_t total = 0;
    for (size_t i = 0; i < cut.size(); ++i) {
      const std::string name =
          cut.size() == 1 ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, cut.size());
      std::vector<TensorSpec> specs;
      for (const HuggingFaceTensor& tensor : cut[i]) {
        if (tensor.first_column > 0) {
          places_[tensor.param].push_back({i, static_cast<int64_t>(specs.size()) - 1, tensor});
          continue;
        }
        places_[tensor.param].push_back({i, static_cast<int64_t>(specs.size()), tensor});
        specs.push_back({tensor.name, SafetensorsName(DType::kF32), tensor.shape});
        file_of_tensor[tensor.name] = name;
        total += tensor.numel() * static_cast<int64_t>(sizeof(float));
      }
      writers_.push_back(std::make_unique<SafetensorsWriter>(
          fs::path(folder_.temporary()) / name, specs,
          std::map<std::string, std::string>{{"format", "pt"}}, files));
    }
    if (cut.size() > 1) WriteSafetensorsIndex(folder_.temporary(), file_of_tensor, total, files);
  }

  void Write(const std::string& param, std::span<const float> values) {
    for (const Place& place : places_.at(param)) {
      std::vector<float> stored = TakeFromParam(place.tensor, values);
      if (place.tensor.stored_columns > 0 && !Joined(place.tensor, &stored)) continue;
      writers_[place.file]->WriteFloats(place.index, stored.data(),
                                        static_cast<int64_t>(stored.size()));
    }
  }

  void Finish(const std::string& config, const std::string& tokenizer_json) {
    for (const auto& writer : writers_) writer->Finish();
    if (!tokenizer_json.empty())
      WriteFileAtomically(files_, fs::path(folder_.temporary()) / "tokenizer.json", tokenizer_json);
    WriteFileAtomically(files_, fs::path(folder_.temporary()) / "config.json", config);
    WriteFileAtomically(files_, fs::path(folder_.temporary()) / "generation_config.json",
                        HuggingFaceGenerationText());
    folder_.Publish();
  }

 private:
  struct Place {
    size_t file;
    int64_t index;  // of the tensor in the file
    HuggingFaceTensor tensor;
  };
  // Whether `stored` is whole, with the columns that have waited for these.
  bool Joined(const HuggingFaceTensor& tensor, std::vector<float>* stored) {
    for (size_t i = 0; i < stored->size() && tensor.first_column > 0; ++i)
      if (static_cast<int64_t>(i) % tensor.stored_columns < tensor.first_column)
        (*stored)[i] = waiting_.at(i);
    const bool whole = tensor.first_column + tensor.columns == tensor.stored_columns;
    if (!whole) waiting_ = *stored;
    return whole;
  }

  FileSystem& files_;
  NewFolder folder_;
  std::vector<float> waiting_;
  std::map<std::string, std::vector<Place>> places_;  // by parameter
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
};

}  // namespace

void LoadHuggingFaceWeights(Engine& engine, const ModelSpec& spec, const ModelConfig& model,
                            const std::string& folder) {
  RequireModelOf(folder, model);
  const WeightReader reader(spec, folder);
  WriteLogicalTensors(engine, kMasterSlot.name,
                      [&](const ParamPlacement& param) { return reader.Read(param); });
  const auto nothing = [](const ParamPlacement& param) {
    return std::vector<float>(static_cast<size_t>(param.spec.numel()));
  };
  for (const std::string_view slot : SlotNames(engine.layout()))
    if (slot != kMasterSlot.name) WriteLogicalTensors(engine, slot, nothing);
  engine.WriteScalars(StepScalars{});
}

void ExportHuggingFace(Engine& engine, const ModelSpec& spec, const ModelConfig& model,
                       const std::string& folder, const ExportOptions& options, FileSystem& files) {
  std::string path = folder;
  while (path.size() > 1 && path.back() == '/')
    path.pop_back();  // the temporary folder lies beside it, not in it
  // Before the tensors are named: it says by its key what a family's folder cannot hold.
  const std::string config = HuggingFaceConfigText(Resolved(model));
  std::unique_ptr<Exporter> exporter;
  if (engine.comms().world().rank() == 0) {
    MR_REQUIRE(ErrorCode::kConfig,
               !fs::exists(path) || (fs::is_directory(path) && fs::is_empty(path)),
               "{} exists already; an export needs a new or empty folder", path);
    exporter = std::make_unique<Exporter>(spec, path, options, files);
  }
  ForEachLogicalTensor(engine, kMasterSlot.name,
                       [&](const ParamPlacement& param, std::span<const float> values) {
                         if (exporter) exporter->Write(param.spec.name, values);
                       });
  if (exporter) exporter->Finish(config, options.tokenizer_json);
  engine.comms().world().Barrier();
}

}  // namespace millrace

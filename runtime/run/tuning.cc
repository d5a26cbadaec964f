#include "runtime/run/tuning.h"

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/data/file_system.h"

namespace millrace {
namespace {

std::vector<MatmulOp<Shape>> ProductsOf(const StepPlan& plan) {
  std::vector<MatmulOp<Shape>> products;
  for (const Body& body : plan.bodies)
    for (const PlanOp& op : body.ops)
      if (const auto* matmul = std::get_if<MatmulOp<View>>(&op.op))
        products.push_back(ConvertOp<MatmulOp, View, Shape>(*matmul, [](const View& view) {
          return Shape{view.layout, static_cast<bool>(view)};
        }));
  return products;
}

std::vector<MatmulKey> KeysOf(const MatmulOp<Shape>& op) {
  std::vector<MatmulKey> keys;
  for (const std::optional<MatmulKey>& key : {KeyOf(op), FusedKeyOf(op)})
    if (key) keys.push_back(*key);
  return keys;
}

std::optional<TuningTable> ReadTable(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;  // writing refuses it
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return TuningTable::FromText(text, path);
}

void WriteTable(const std::string& path, const TuningTable& table) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  MR_REQUIRE(ErrorCode::kIo, !error, "cannot create {}: {}", folder.string(), error.message());
  WriteFileAtomically(FileSystem::Posix(), path, table.ToText());
}

// Rank 0's part.
class Chooser {
 public:
  Chooser(const Tuner& tuner, const TuningRequest& request)
      : tuner_(tuner),
        request_(request),
        path_(request.config->execution.TuningFile(request.config->run.dir)) {
    if (request_.train != nullptr) products_ = ProductsOf(*request_.train);
  }

  TuningTable Choose() {
    ReadWhatIsKept();
    const bool measures = request_.train != nullptr && !bound_;
    TuningTable table = saved_;
    table.device = tuner_.device;
    table.library_version = tuner_.library_version;
    if (file_) table.matmuls.insert(file_->matmuls.begin(), file_->matmuls.end());
    const std::vector<MatmulOp<Shape>> missing = Missing(table);
    if (measures && !missing.empty()) {
      const TuningTable measured = tuner_.measure(missing);
      table.matmuls.insert(measured.matmuls.begin(), measured.matmuls.end());
    } else if (bound_ && !missing.empty()) {
      Say(fmt::format(
          "{} products of this plan are not among the algorithms of {}: they take the library's "
          "first suggestions, since a run that goes on measures nothing (execution.tune_again=true "
          "measures, and gives other bits)",
          missing.size(), request_.saved->checkpoint));
    }
    if (!table.matmuls.empty() && (!file_ || table.matmuls != file_->matmuls)) {
      if (bound_ && !file_)
        Say(fmt::format("{} is missing: it is written from {}", path_, request_.saved->checkpoint));
      WriteTable(path_, table);
    }
    return table;
  }

  // Of a table in force: what a checkpoint keeps.
  TuningTable Kept(const TuningTable& table) const {
    TuningTable kept = table;
    std::set<MatmulKey> wanted;
    for (const auto& [key, tuned] : saved_.matmuls) wanted.insert(key);
    for (const MatmulOp<Shape>& op : products_)
      for (const MatmulKey& key : KeysOf(op)) wanted.insert(key);
    std::erase_if(kept.matmuls, [&](const auto& entry) { return !wanted.contains(entry.first); });
    return kept;
  }

 private:
  void Say(const std::string& text) const {
    if (request_.say) request_.say(text);
  }
  bool IsOurs(const TuningTable& table) const {
    return table.device == tuner_.device && table.library_version == tuner_.library_version;
  }
  void PutAside() {
    MR_REQUIRE(ErrorCode::kIo, FileSystem::Posix().Rename(path_, path_ + ".old") == 0,
               "cannot rename {}", path_);
    file_.reset();
  }

  // Leaves in file_ and saved_ what may be used, and in bound_ whether it is all that may be.
  void ReadWhatIsKept() {
    file_ = ReadTable(path_);
    if (request_.config->execution.tune_again && request_.train != nullptr) {
      if (file_) PutAside();
      return;
    }
    const std::optional<SavedTuning>& saved = request_.saved;
    bound_ = request_.goes_on && saved && saved->recorded;
    if (request_.goes_on && saved && !saved->recorded)
      Say(
          fmt::format("{} does not say which algorithms it was trained with (an older version "
                      "saved it): those of {} are used, or measured",
                      saved->checkpoint, path_));
    if (saved && !saved->table.empty())
      saved_ = TuningTable::FromText(saved->table, saved->checkpoint);
    if (!saved_.matmuls.empty() && !IsOurs(saved_)) {
      MR_REQUIRE(ErrorCode::kConfig, !bound_,
                 "{} was trained with algorithms measured on {} with {}, and here are {} with {}: "
                 "they cannot be used, and others give other bits. Go on where they can be, or "
                 "measure anew with execution.tune_again=true",
                 saved->checkpoint, saved_.device, saved_.library_version, tuner_.device,
                 tuner_.library_version);
      saved_ = {};
    }
    if (file_ && !IsOurs(*file_)) {
      Say(fmt::format(
          "{} was measured on {} with {}; here are {} with {}: it is kept as {}.old{}", path_,
          file_->device, file_->library_version, tuner_.device, tuner_.library_version, path_,
          bound_ ? "" : ", and algorithms are measured anew (other bits are possible)"));
      PutAside();
    }
    if (file_) RequireNoContradiction();
  }

  // The file against the checkpoint.
  void RequireNoContradiction() const {
    const std::string advice =
        "resuming would give other bits. Remove the file to go on with the checkpoint's "
        "algorithms, or measure anew with execution.tune_again=true";
    for (const auto& [key, tuned] : saved_.matmuls) {
      const auto other = file_->matmuls.find(key);
      MR_REQUIRE(ErrorCode::kConfig,
                 other == file_->matmuls.end() || other->second.algorithm == tuned.algorithm,
                 "{} has another algorithm for {} than {} was trained with: {}", path_,
                 ToString(key), request_.saved->checkpoint, advice);
    }
    if (!bound_ || !saved_.matmuls.empty()) return;
    for (const MatmulOp<Shape>& op : products_)
      for (const MatmulKey& key : KeysOf(op))
        MR_REQUIRE(
            ErrorCode::kConfig, !file_->matmuls.contains(key),
            "{} has an algorithm for {}, and {} was trained with the library's own choice: {}",
            path_, ToString(key), request_.saved->checkpoint, advice);
  }

  std::vector<MatmulOp<Shape>> Missing(const TuningTable& table) const {
    std::vector<MatmulOp<Shape>> missing;
    for (const MatmulOp<Shape>& op : products_)
      for (const MatmulKey& key : KeysOf(op))
        if (!table.matmuls.contains(key)) {
          missing.push_back(op);
          break;
        }
    return missing;
  }

  const Tuner& tuner_;
  const TuningRequest& request_;
  const std::string path_;
  std::vector<MatmulOp<Shape>> products_;
  std::optional<TuningTable> file_;
  TuningTable saved_;
  bool bound_ = false;  // to the checkpoint's algorithms
};

}  // namespace

ChosenTuning ChooseTuning(const Tuner& tuner, const TuningRequest& request, Communicator& world) {
  std::string text, kept;
  if (world.rank() == 0) {
    Chooser chooser(tuner, request);
    const TuningTable table = chooser.Choose();
    text = table.ToText();
    kept = chooser.Kept(table).ToText();
  }
  text = world.HostBroadcast(text, 0);
  kept = world.HostBroadcast(kept, 0);
  const TuningTable table = TuningTable::FromText(text, "rank 0's tuning");
  if (!table.matmuls.empty()) tuner.install(table);
  // Also the device and the library of each rank: algorithms of one are none of another's.
  const std::string mine =
      fmt::format("{} ({}, {})", table.Hash(), tuner.device, tuner.library_version);
  const std::vector<std::string> all = world.HostAllGather(mine);
  for (size_t r = 0; r < all.size(); ++r)
    MR_REQUIRE(
        ErrorCode::kConfig, all[r] == all[0],
        "rank {} has the algorithms {} in force, and rank 0 {}: the ranks have different GPUs "
        "or libraries (execution.tune=false takes each library's first suggestions)",
        r, all[r], all[0]);
  return {table.Hash(), kept};
}

}  // namespace millrace

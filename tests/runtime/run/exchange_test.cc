// Hugging Face folders in and out of a session: bits, ranks, files, and what is refused. The
// reference folders are tests/golden/*/hf, written by transformers.
#include "runtime/run/huggingface/exchange.h"

#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>

#include "models/huggingface/config_json.h"
#include "runtime/base/error.h"
#include "runtime/data/safetensors/safetensors_folder.h"
#include "runtime/data/safetensors/safetensors_writer.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/logical_tensors.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/checkpoint/run_saver.h"
#include "runtime/run/training/training.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/faulty_file_system.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/runtime/run/golden_data.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using test::Golden;
using Json = nlohmann::json;

const PlanSelection kGenerate{"generate"};
const std::vector<std::string> kModels = {
    "gpt2_tiny",      "llama_tiny",      "llama_tied_tiny",       "qwen3_tiny",
    "qwen3_moe_tiny", "nemotron_h_tiny", "nemotron_h_mamba_tiny", "nemotron_h_moe_tiny"};

std::string HfFolder(const std::string& model) { return "tests/golden/" + model + "/hf"; }

// The configuration of a folder, its model keys from there, then `sets`.
LoadedConfig ConfigOf(const std::string& folder, std::vector<std::string> sets = {},
                      int world = 1) {
  sets.insert(sets.begin(), {"data.kind=synthetic", "model.init_from=" + folder});
  return LoadRunConfig({}, sets, ConfigContext{.world = world});
}

void Export(Session& session, const std::string& folder, const ExportOptions& options = {},
            FileSystem& files = FileSystem::Posix()) {
  ExportHuggingFace(session.engine(), session.run().spec, session.config().model, folder, options,
                    files);
}

// The bits of every tensor, as float32, with its shape.
std::map<std::string, std::pair<std::vector<int64_t>, std::string>> TensorsIn(
    const std::string& folder) {
  const SafetensorsFolder file(folder);
  std::map<std::string, std::pair<std::vector<int64_t>, std::string>> tensors;
  for (const std::string& name : file.names()) {
    const TensorInfo& tensor = file.Tensor(name);
    std::vector<float> values(static_cast<size_t>(tensor.numel));
    file.ReadFloats(name, 0, tensor.numel, values.data());
    tensors[name] = {tensor.spec.shape, AsBytes(values)};
  }
  return tensors;
}

struct StoredTensor {
  TensorSpec spec;
  std::vector<float> values;
};

// A copy of a folder whose tensors `edit` has changed.
void WriteEdited(const std::string& from, const std::string& to,
                 const std::function<void(std::map<std::string, StoredTensor>&)>& edit) {
  const SafetensorsFolder file(from);
  std::map<std::string, StoredTensor> tensors;
  for (const std::string& name : file.names()) {
    StoredTensor& tensor = tensors[name];
    tensor.spec = file.Tensor(name).spec;
    tensor.values.resize(static_cast<size_t>(file.Tensor(name).numel));
    file.ReadFloats(name, 0, file.Tensor(name).numel, tensor.values.data());
  }
  edit(tensors);
  fs::create_directories(to);
  fs::copy_file(from + "/config.json", to + "/config.json");
  std::vector<TensorSpec> specs;
  for (auto& [name, tensor] : tensors) {
    tensor.spec.name = name;
    specs.push_back(tensor.spec);
  }
  SafetensorsWriter writer(to + "/model.safetensors", specs, {{"format", "pt"}});
  int64_t index = 0;
  for (const auto& [name, tensor] : tensors)
    writer.WriteFloats(index++, tensor.values.data(), static_cast<int64_t>(tensor.values.size()));
  writer.Finish();
}

// What a session of that folder holds, by Hugging Face name.
test::Tensors Imported(const std::string& folder) {
  test::Tensors tensors;
  test::RunSessions(ConfigOf(folder), 1, kGenerate,
                    [&](Session& session) { tensors = test::HuggingFaceState(session, "master"); });
  return tensors;
}

TEST_CASE("a folder by transformers goes in and comes out bit for bit, at any world size",
          "[huggingface]") {
  const std::string model = GENERATE(from_range(kModels));
  const int world = GENERATE(1, 2, 3);
  CAPTURE(model, world);
  const TempDir dir;
  std::vector<int> empty_moments(
      static_cast<size_t>(world));  // ranks are threads, which bits of a word are not for
  test::RunSessions(ConfigOf(HfFolder(model), {}, world), world, kGenerate, [&](Session& session) {
    bool zero = true;
    for (const char* const kind : {"adam_m", "adam_v"})
      ForEachLogicalTensor(session.engine(), kind,
                           [&](const ParamPlacement&, std::span<const float> values) {
                             for (const float v : values) zero &= v == 0;
                           });
    empty_moments[static_cast<size_t>(session.rank())] = zero ? 1 : 0;
    Export(session, dir / "out");
  });
  CHECK(empty_moments == std::vector<int>(static_cast<size_t>(world), 1));
  CHECK(TensorsIn(dir / "out") == TensorsIn(HfFolder(model)));
  const auto read = [](const std::string& folder) {
    const std::string path = folder + "/config.json";
    return ModelFromHuggingFace(ReadBytes(path), path);
  };
  CHECK(read(dir / "out") == read(HfFolder(model)));
  CHECK(fs::exists(dir / "out/generation_config.json"));
  CHECK(std::distance(fs::directory_iterator(dir.path()), {}) ==
        1);  // no temporary folder beside it
}

// A session of each mesh begins with the folder's weights, or with those of the run's seed.
TEST_CASE("a split model goes in and comes out as the same files that a whole one gives",
          "[huggingface]") {
  const std::string model = GENERATE("gpt2_split", "llama_split", "llama_shared", "qwen3_moe_tiny");
  const TempDir dir;
  const auto export_of = [&](const std::string& name, int world, std::vector<std::string> sets,
                             bool fresh) {
    sets.push_back("model.seq_len=12");
    test::RunSessions(ConfigOf(HfFolder(model), sets, world), world, kGenerate,
                      [&](Session& session) {
                        if (fresh) session.engine().InitWeights(7);
                        Export(session, dir / name);
                      });
    std::map<std::string, std::string> files;
    for (const auto& file : fs::directory_iterator(dir / name))
      files[file.path().filename()] = ReadBytes(file.path());
    return files;
  };
  const auto whole = export_of("whole", 1, {}, false), fresh = export_of("fresh", 1, {}, true);
  CHECK(whole.size() == 3);
  CHECK(whole != fresh);
  CHECK(TensorsIn(dir / "whole") == TensorsIn(HfFolder(model)));
  using Meshes = std::vector<std::pair<int, std::vector<std::string>>>;
  const Meshes of_experts = {{5, {"parallel.expert=5"}},
                             {10, {"parallel.expert=5", "parallel.shard=2"}}};
  const Meshes of_others = {{2, {"parallel.tensor=2"}},
                            {3, {"parallel.tensor=3"}},
                            {2, {"parallel.context=2"}},
                            {4, {"parallel.tensor=2", "parallel.shard=2"}},
                            {4, {"parallel.context=2", "parallel.replicate=2"}},
                            {4, {"parallel.tensor=2", "parallel.context=2"}}};
  const Meshes& meshes = model == "qwen3_moe_tiny" ? of_experts : of_others;
  for (size_t m = 0; m < meshes.size(); ++m) {
    const auto& [world, sets] = meshes[m];
    CAPTURE(model, sets);
    CHECK(export_of(fmt::format("split{}", m), world, sets, false) == whole);
    CHECK(export_of(fmt::format("fresh{}", m), world, sets, true) == fresh);
  }
}

TEST_CASE("a large export is cut into files with an index, which read back as the same weights",
          "[huggingface]") {
  const std::string model = GENERATE(from_range(kModels));
  const TempDir dir;
  test::RunSessions(ConfigOf(HfFolder(model)), 1, kGenerate, [&](Session& session) {
    Export(session, dir / "out", {.shard_bytes = 20000});
  });
  CHECK_FALSE(fs::exists(dir / "out/model.safetensors"));
  const Json index = Json::parse(ReadBytes(dir / "out/model.safetensors.index.json"));
  std::map<std::string, int64_t> bytes;  // by file
  int64_t total = 0;
  const auto want = TensorsIn(HfFolder(model));
  for (const auto& [name, tensor] : want) {
    bytes[index["weight_map"].at(name)] += static_cast<int64_t>(tensor.second.size());
    total += static_cast<int64_t>(tensor.second.size());
  }
  CHECK(bytes.size() > 2);
  for (const auto& [file, size] : bytes) CHECK(size <= 20000);
  CHECK(bytes.begin()->first == fmt::format("model-00001-of-{:05}.safetensors", bytes.size()));
  CHECK(index["metadata"]["total_size"] == total);
  CHECK(TensorsIn(dir / "out") == want);
  CHECK(Imported(dir / "out") == Imported(HfFolder(model)));
}

TEST_CASE("padded rows of the vocabulary and all gaps are zero after an import", "[huggingface]") {
  const std::string model = GENERATE(from_range(kModels));
  int64_t gaps = 0, wrong = 0;
  test::RunSessions(ConfigOf(HfFolder(model)), 1, kGenerate, [&](Session& session) {
    const ShardLayout& layout = session.engine().layout();
    for (size_t f = 0; f < layout.flats.size(); ++f) {
      const std::vector<float> values =
          session.engine().ReadShard("master", FlatId{static_cast<int32_t>(f)});
      for (const Range& gap : layout.flats[f].gaps)
        for (int64_t i = gap.begin; i < gap.end; ++i, ++gaps)
          wrong += values[static_cast<size_t>(i)] != 0;
    }
  });
  CHECK(gaps > 0);
  CHECK(wrong == 0);
}

TEST_CASE(
    "an import is a run's step 0: training resumes from it, at any world size, with nothing to "
    "warn of",
    "[huggingface]") {
  const std::string model = GENERATE(from_range(kModels));
  const TempDir dir;
  const auto config = [&](int world) {
    return ConfigOf(HfFolder(model), {"run.dir=" + dir.path()}, world);
  };
  test::RunSessions(config(2), 2, kGenerate, [&](Session& session) {
    SaveRun(session.engine(), dir.path(), {}, IdentityOf(session), 2);
  });
  const int world = GENERATE(1, 2);
  test::Tensors resumed;
  test::RunSessions(config(world), world, kGenerate, [&](Session& session) {
    session.engine().InitWeights(1);  // other weights
    RunIdentity identity = IdentityOf(session);
    identity.data_fingerprint = "of the data that the import did not open";
    identity.global_batch = 12;
    const auto run = ResumeRun(session.engine(), dir.path(), ResumePolicy::kMust, identity);
    const test::Tensors tensors = test::HuggingFaceState(session, "master");
    if (session.rank() != 0) return;
    MR_CHECK(run && run->progress.step == 0 && run->warnings.empty(), "resumed with warnings");
    MR_CHECK(run->changes.size() == (world == 2 ? 0 : 1), "only another world is a change: {}",
             fmt::join(run->changes, "; "));
    resumed = tensors;
  });
  CHECK(resumed == Imported(HfFolder(model)));
}

TEST_CASE("to go on with bytes where a tokenizer's ids were saved is a change", "[huggingface]") {
  const std::string model = *std::begin(kModels);
  const TempDir dir;
  const std::string hash(32, 'a');
  const LoadedConfig config = ConfigOf(HfFolder(model), {"run.dir=" + dir.path()}, 1);
  test::RunSessions(config, 1, kGenerate, [&](Session& session) {
    RunIdentity identity = IdentityOf(session);
    identity.tokenizer = hash;
    SaveRun(session.engine(), dir.path(), {}, identity, 2);
    const auto same = ResumeRun(session.engine(), dir.path(), ResumePolicy::kMust, identity);
    MR_CHECK(same && same->changes.empty(), "changes with the same tokenizer");
    identity.tokenizer = "";
    const auto run = ResumeRun(session.engine(), dir.path(), ResumePolicy::kMust, identity);
    MR_CHECK(run && run->changes.size() == 1, "no change, or several");
    const std::string& change = run->changes.front();
    MR_CHECK(change.find(hash) != std::string::npos && change.find("is bytes") != std::string::npos,
             "{}", change);
  });
}

TEST_CASE("bf16 weights are read exactly", "[huggingface]") {
  const std::string model = GENERATE(from_range(kModels));
  const TempDir dir;
  WriteEdited(HfFolder(model), dir / "bf16", [](auto& tensors) {
    for (auto& [name, tensor] : tensors) tensor.spec.dtype = "BF16";
  });
  test::Tensors want = Imported(HfFolder(model));
  for (auto& [name, values] : want)
    for (double& v : values) v = ToFloat(ToBFloat16(static_cast<float>(v)));
  CHECK(Imported(dir / "bf16") == want);
}

TEST_CASE("a tied model's repeated head must be the embedding", "[huggingface]") {
  const std::string model = GENERATE("gpt2_tiny", "llama_tied_tiny");
  const std::string embedding =
      model == "gpt2_tiny" ? "transformer.wte.weight" : "model.embed_tokens.weight";
  const TempDir dir;
  WriteEdited(HfFolder(model), dir / "same",
              [&](auto& tensors) { tensors["lm_head.weight"] = tensors[embedding]; });
  CHECK(Imported(dir / "same") == Imported(HfFolder(model)));
  WriteEdited(HfFolder(model), dir / "other", [&](auto& tensors) {
    StoredTensor& head = tensors["lm_head.weight"] = tensors[embedding];
    head.values[7] += 1;
  });
  RequireError(ErrorCode::kData, {"lm_head.weight", "element 7", "ties"},
               [&] { Imported(dir / "other"); });
}

TEST_CASE("checked execution looks at what is computed between an import and the first step",
          "[huggingface]") {
  const TempDir dir;
  // Weights are finite, the products of queries and keys are not.
  WriteEdited(HfFolder("gpt2_tiny"), dir / "large", [](auto& tensors) {
    for (auto& [name, tensor] : tensors)
      if (name.ends_with("attn.c_attn.weight"))
        for (float& value : tensor.values) value *= 1e30f;
  });
  const LoadedConfig config = ConfigOf(dir / "large", {"execution.checked=true"});
  const auto failure = [&](const PlanSelection& plans,
                           const std::function<void(Session&)>& compute) {
    std::string said;
    test::RunSessions(config, 1, plans, [&](Session& session) {
      try {
        compute(session);
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kNonFinite);
        said = error.what();
      }
    });
    return said;
  };
  const std::string evaluated = failure({"eval"}, [](Session& session) {
    const Config& c = session.config();
    session.engine().EvalLossSum(
        std::vector<int32_t>(static_cast<size_t>(c.train.micro_batch * (c.model.seq_len + 1))));
  });
  const std::string generated = failure(kGenerate, [](Session& session) {
    session.Generate(std::vector<int32_t>{1}, 1, {.temperature = 0});
  });
  for (const std::string& said : {evaluated, generated})
    CHECK_THAT(said, Catch::Matchers::Contains("from finite operands, ") &&
                         Catch::Matchers::Contains("h.0/"));
}

TEST_CASE("a weight that is not a finite number is refused by name and element", "[huggingface]") {
  const TempDir dir;
  for (const float odd : {NAN, INFINITY, -INFINITY}) {
    const std::string folder = dir / fmt::format("odd_{}", odd);
    WriteEdited(HfFolder("gpt2_tiny"), folder, [&](std::map<std::string, StoredTensor>& tensors) {
      tensors.at("transformer.h.1.mlp.c_fc.weight").values[5] = odd;
    });
    RequireError(ErrorCode::kData,
                 {"transformer.h.1.mlp.c_fc.weight", fmt::format("holds {} at element 5", odd)},
                 [&] { Imported(folder); });
  }
}

TEST_CASE("tensors that do not fit are refused before any is read", "[huggingface]") {
  const TempDir dir;
  const std::string norm = "model.layers.1.input_layernorm.weight",
                    embedding = "model.embed_tokens.weight";
  WriteEdited(HfFolder("llama_tiny"), dir / "shape", [&](auto& tensors) {
    tensors[norm].spec.shape = {47};
    tensors[norm].values.pop_back();
    std::swap(tensors[embedding].spec.shape[0], tensors[embedding].spec.shape[1]);
  });
  RequireError(ErrorCode::kData,
               {norm + " has the shape [47]; [48] is needed",
                embedding + " has the shape [48, 103]; [103, 48]"},
               [&] { Imported(dir / "shape"); });
  WriteEdited(HfFolder("llama_tiny"), dir / "dtype",
              [&](auto& tensors) { tensors[norm].spec.dtype = "F64"; });
  RequireError(ErrorCode::kData, {norm + " has the dtype F64", "F32, BF16 and F16"},
               [&] { Imported(dir / "dtype"); });
  WriteEdited(HfFolder("llama_tiny"), dir / "names", [&](auto& tensors) {
    tensors["model.layers.1.norm.weight"] = tensors[norm];
    tensors.erase(norm);
  });
  RequireError(ErrorCode::kData, {"missing: " + norm, "model.layers.1.norm.weight"},
               [&] { Imported(dir / "names"); });
}

TEST_CASE("keys that are not given come from config.json, with it as their origin",
          "[huggingface]") {
  const LoadedConfig loaded =
      ConfigOf(HfFolder("llama_tiny"), {"model.seq_len=17", "model.layers=2"});
  const ModelConfig& m = loaded.config.model;
  CHECK(m.family == ModelConfig::Family::kLlama);
  CHECK(m.d_model == 48);
  CHECK(m.KvHeads() == 2);
  CHECK(m.HeadDim() == 8);
  CHECK(m.Ffn() == 50);
  CHECK(m.Vocab() == 103);
  CHECK(m.seq_len == 17);
  REQUIRE(m.rope_scaling.has_value());
  CHECK(m.rope_scaling->original_max_position_embeddings == 128);
  CHECK(loaded.origin.at("model.d_model") == HfFolder("llama_tiny") + "/config.json");
  CHECK(loaded.origin.at("model.layers") == "--set");
  CHECK(ConfigOf(HfFolder("llama_tiny")).config.model.seq_len == 1024);
}

TEST_CASE(
    "a given key that disagrees with config.json is an error with both values; all of them at once",
    "[huggingface]") {
  RequireError(ErrorCode::kConfig,
               {"model.layers = 3, but config.json says 2",
                "model.tied = true, but config.json says false", "2 problems"},
               [] {
                 ConfigOf(HfFolder("llama_tiny"), {"model.layers=3", "model.tied=true"});
               });
  RequireError(ErrorCode::kConfig, {"model.family = \"gpt2\", but config.json says \"llama\""},
               [] { ConfigOf(HfFolder("llama_tiny"), {"model.family=gpt2"}); });
  RequireError(ErrorCode::kConfig,
               {"model.rope_scaling is null, but config.json says llama3 (factor 8"},
               [] { ConfigOf(HfFolder("llama_tiny"), {"model.rope_scaling=null"}); });
  RequireError(ErrorCode::kConfig, {"model.seq_len = 1025", "1024 positions", "at most"},
               [] { ConfigOf(HfFolder("llama_tiny"), {"model.seq_len=1025"}); });
  RequireError(ErrorCode::kConfig, {"model.seq_len = 16", "17 positions"},
               [] { ConfigOf(HfFolder("gpt2_tiny"), {"model.seq_len=16"}); });
  CHECK(ConfigOf(HfFolder("llama_tiny"), {"model.kv_heads=null"}).config.model.KvHeads() ==
        2);  // null: whatever is the default
}

TEST_CASE("the filled configuration is checked as a whole", "[huggingface]") {
  RequireError(ErrorCode::kConfig, {"sharding.blocks_per_unit", "model.layers"},
               [] { ConfigOf(HfFolder("llama_tiny"), {"sharding.blocks_per_unit=3"}); });
  RequireError(ErrorCode::kConfig, {"model.vocab", "bytes"}, [] {
    ConfigOf(HfFolder("llama_tiny"), {"data.kind=text", "data.path=/usr/share/common-licenses"});
  });
}

TEST_CASE("bytes are not fed to a model that comes with a tokenizer", "[huggingface]") {
  const TempDir dir;
  fs::copy(HfFolder("gpt2_tiny"), dir / "hf");
  fs::permissions(dir / "hf", fs::perms::owner_all);
  CHECK_NOTHROW(ConfigOf(dir / "hf"));
  WriteBytes(dir / "hf/tokenizer.json", "{}");
  CHECK_NOTHROW(ConfigOf(dir / "hf"));  // synthetic tokens have no meaning to get wrong
  RequireError(ErrorCode::kConfig, {"data.kind = text", "tokenizer"}, [&] {
    ConfigOf(dir / "hf", {"data.kind=text", "data.path=/usr/share/common-licenses"});
  });
}

TEST_CASE("a session whose model is not the folder's is refused", "[huggingface]") {
  LoadedConfig config = ConfigOf(HfFolder("gpt2_tiny"));
  config.config.model.norm_eps =
      1e-4;  // past the checks of the configuration, as an embedder could
  RequireError(ErrorCode::kConfig, {"model.norm_eps = 0.0001, but config.json says 1e-05"},
               [&] { test::RunSessions(config, 1, kGenerate, [](Session&) {}); });
}

TEST_CASE("a folder that is none, or has no config.json, is named", "[huggingface]") {
  const TempDir dir;
  RequireError(ErrorCode::kData, {dir / "nothing", "not a folder"},
               [&] { ConfigOf(dir / "nothing"); });
  RequireError(ErrorCode::kData, {dir.path() + "/config.json"}, [&] { ConfigOf(dir.path()); });
}

TEST_CASE("what a family's folder cannot hold is refused by its key, on every rank",
          "[huggingface]") {
  const std::string key = GENERATE("model.attention.window=4", "model.attention.qk_norm=true");
  const TempDir dir;
  const std::vector<std::string> sets = {
      "data.kind=synthetic", "model.family=llama", "model.layers=1", "model.d_model=16",
      "model.heads=2",       "model.seq_len=8",    "model.ffn=8",    key};
  std::array<std::string, 2> said;
  test::RunSessions(LoadRunConfig({}, sets, ConfigContext{.world = 2}), 2, kGenerate,
                    [&](Session& session) {
                      try {
                        Export(session, dir / "out");
                      } catch (const Error& error) {
                        MR_CHECK(error.code() == ErrorCode::kConfig, "{}", error.what());
                        said.at(static_cast<size_t>(session.rank())) = error.what();
                      }
                    });
  const std::string value = key.substr(key.find('=') + 1);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::Matchers::Contains(key.substr(0, key.find('=')) + " = " + value +
                                               " cannot be written"));
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("an export goes into a new or empty folder only", "[huggingface]") {
  const TempDir dir;
  fs::create_directory(dir / "empty");
  fs::create_directory(dir / "full");
  WriteBytes(dir / "full/mine", "precious");
  const auto export_to = [&](const std::string& folder) {
    test::RunSessions(ConfigOf(HfFolder("gpt2_tiny")), 1, kGenerate,
                      [&](Session& session) { Export(session, folder); });
  };
  RequireError(ErrorCode::kConfig, {dir / "full", "exists already"},
               [&] { export_to(dir / "full"); });
  CHECK(ReadBytes(dir / "full/mine") == "precious");
  export_to(dir / "empty/");
  CHECK(TensorsIn(dir / "empty") == TensorsIn(HfFolder("gpt2_tiny")));
  export_to(dir / "new/below");
  CHECK(TensorsIn(dir / "new/below") == TensorsIn(HfFolder("gpt2_tiny")));
}

TEST_CASE(
    "an export that fails at any call leaves nothing behind, or the whole folder when only its "
    "durability is in doubt",
    "[huggingface]") {
  const auto want = TensorsIn(HfFolder("gpt2_tiny"));
  int64_t calls = 1;
  for (int64_t at = 0; at <= calls; ++at) {  // the first time, nothing fails
    const TempDir dir;
    FaultyFileSystem files;
    files.fault = FaultyFileSystem::Fault::kFail;
    files.error = ENOSPC;
    files.at = at;
    std::string failure;
    test::RunSessions(ConfigOf(HfFolder("gpt2_tiny")), 1, kGenerate, [&](Session& session) {
      try {
        Export(session, dir / "out", {}, files);
      } catch (const Error& error) {
        failure = error.what();
      }
    });
    if (at == 0) calls = static_cast<int64_t>(files.calls().size());
    CAPTURE(at, calls, files.calls().back().name, files.calls().back().path, failure);
    if (failure.empty() || at == calls) {
      CHECK(TensorsIn(dir / "out") == want);
      CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 1);
    } else {
      CHECK(fs::is_empty(dir.path()));
    }
    CHECK(failure.empty() == (at == 0));
  }
  CHECK(calls > 10);
}

}  // namespace
}  // namespace millrace

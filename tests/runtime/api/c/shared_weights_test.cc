// Weights in a memory for other processes: whole on every mesh, of one version, and nobody's to
// change.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "runtime/api/c/millrace_dlpack.h"
#include "runtime/data/safetensors/safetensors_folder.h"
#include "tests/runtime/api/c/rank_threads.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {
namespace {

using Catch::Matchers::Contains;
using Values = std::map<std::string, std::vector<float>>;

struct Exported {
  Outcome outcome;
  mr_shared_weights shared = Sized<mr_shared_weights>();
  nlohmann::json manifest;
  Values values;
};

// What a process finds that gets the descriptor, which is closed by then.
Exported ExportOf(mr_run* run) {
  Exported exported;
  exported.shared.fd = -1;
  exported.outcome = Take(mr_weights_export(run, &exported.shared));
  if (exported.outcome.code != MR_OK) return exported;
  exported.manifest = nlohmann::json::parse(exported.shared.manifest);
  const auto bytes = static_cast<size_t>(exported.shared.bytes);
  void* const data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, exported.shared.fd, 0);
  close(exported.shared.fd);
  if (data == MAP_FAILED) return exported;
  for (const auto& [name, told] : exported.manifest["tensors"].items()) {
    size_t count = 1;
    for (const int64_t size : told["shape"].get<std::vector<int64_t>>())
      count *= static_cast<size_t>(size);
    const size_t at = told["offset"].get<size_t>();
    if (at % 256 != 0 || at + count * sizeof(float) > bytes) continue;
    std::vector<float>& values = exported.values[name];
    values.resize(count);
    std::memcpy(values.data(), static_cast<std::byte*>(data) + at, count * sizeof(float));
  }
  munmap(data, bytes);
  return exported;
}

// The same where they lie.
Values BorrowedOf(mr_run* run) {
  Values borrowed;
  int64_t count = 0;
  mr_status_free(mr_weights_count(run, &count));
  for (int64_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    DLManagedTensorVersioned* tensor = nullptr;
    mr_status_free(mr_weights_name(run, i, &name));
    mr_status_free(mr_weights_borrow(run, name, &tensor, nullptr));
    if (tensor == nullptr) continue;
    const DLTensor& inner = tensor->dl_tensor;
    const auto* const data = static_cast<const float*>(inner.data);
    const int64_t columns = inner.ndim == 2 ? inner.shape[1] : 1;
    for (int64_t row = 0; row < inner.shape[0]; ++row)
      for (int64_t c = 0; c < columns; ++c)
        borrowed[name].push_back(
            data[row * inner.strides[0] + (inner.ndim == 2 ? c * inner.strides[1] : 0)]);
    tensor->deleter(tensor);
  }
  return borrowed;
}

TEST_CASE("exported weights are the borrowed ones, of each family", "[api][c]") {
  for (const std::string family : {"llama", "gpt2"}) {
    const Linked run(R"({"model": {"family": ")" + family +
                     R"(", "layers": 2, "d_model": 20, "heads": 2, "ffn": 28, "seq_len": 8,
                         "vocab": 37}, "train": {"micro_batch": 3, "accumulate": 2}})");
    CAPTURE(family, run.created().message);
    REQUIRE(ExportOf(run).outcome.code == MR_INVALID_ARGUMENT);  // no weights yet
    REQUIRE_CODE(mr_init(run), MR_OK);
    const Values before = BorrowedOf(run);
    const Exported first = ExportOf(run);
    REQUIRE(first.outcome.code == MR_OK);
    CHECK(first.values.size() > 10);
    CHECK(first.values == before);
    CHECK(first.shared.on_gpu == 0);
    CHECK(first.shared.version == run.Info().weight_version);
    CHECK(first.manifest["version"] == first.shared.version);
    CHECK(first.manifest["bytes"] == first.shared.bytes);
    CHECK(run.Info().lent == 0);
    REQUIRE(run.Step(0).first.code == MR_OK);
    const Exported second = ExportOf(run);
    CHECK(second.shared.version == first.shared.version + 1);
    CHECK(second.values == BorrowedOf(run));
    CHECK(second.values != before);
  }
}

// A stored matrix that is columns of two parameters, experts, transposed ones, parts of fused ones.
TEST_CASE("exported weights are those of the folder that mr_export writes", "[api][c]") {
  const TempDir folder;
  const Linked run(R"({"model": {"family": "qwen3_moe", "layers": 2, "d_model": 22, "heads": 4,
      "kv_heads": 2, "head_dim": 6, "seq_len": 7, "vocab": 37, "mtp": {"depth": 2},
      "moe": {"experts": 3, "ffn": 9}}, "train": {"micro_batch": 3, "accumulate": 1}})");
  INFO(run.created().message);
  REQUIRE_CODE(mr_init(run), MR_OK);
  REQUIRE_CODE(mr_export(run, (folder / "hf").c_str()), MR_OK);
  const SafetensorsFolder stored(folder / "hf");
  const Exported exported = ExportOf(run);
  REQUIRE(exported.outcome.code == MR_OK);
  std::vector<std::string> names;
  for (const auto& [name, values] : exported.values) {
    CAPTURE(name);
    names.push_back(name);
    std::vector<float> expected(values.size());
    stored.ReadFloats(name, 0, std::ssize(values), expected.data());
    CHECK(values == expected);
    CHECK(exported.manifest["tensors"][name]["shape"] == stored.Tensor(name).spec.shape);
  }
  CHECK(std::set(names.begin(), names.end()) ==
        std::set<std::string>(stored.names().begin(), stored.names().end()));
  CHECK(std::any_of(names.begin(), names.end(),
                    [](const std::string& name) { return name.ends_with("eh_proj.weight"); }));
}

TEST_CASE("nobody can change what was exported, and it outlives its run", "[api][c]") {
  mr_shared_weights shared = Sized<mr_shared_weights>();
  {
    const Linked run(TinyConfig());
    REQUIRE_CODE(mr_init(run), MR_OK);
    REQUIRE_CODE(mr_weights_export(run, &shared), MR_OK);
    CHECK((fcntl(shared.fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
  const float value = 1;
  CHECK(pwrite(shared.fd, &value, sizeof value, 0) == -1);
  CHECK(ftruncate(shared.fd, 0) == -1);
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared.fd, 0) == MAP_FAILED);
  float first = 0;
  CHECK(pread(shared.fd, &first, sizeof first, 0) == sizeof first);
  CHECK(first != 0);
  close(shared.fd);
}

TEST_CASE("what cannot be exported is refused, and no descriptor is left", "[api][c]") {
  const auto next_descriptor = [] {
    const int fd = open("/dev/null", O_RDONLY);
    close(fd);
    return fd;
  };
  const Linked run(TinyConfig());
  REQUIRE_CODE(mr_init(run), MR_OK);
  const int free = next_descriptor();
  mr_shared_weights shared = Sized<mr_shared_weights>();
  shared.size = 16;
  const Outcome small = Take(mr_weights_export(run, &shared));
  CHECK(small.code == MR_INVALID_ARGUMENT);
  CHECK_THAT(small.message, Contains("out.size"));
  REQUIRE_CODE(mr_release(run, MR_PART_ALL, nullptr), MR_OK);
  const Exported released = ExportOf(run);
  CHECK(released.outcome.code == MR_RELEASED);
  CHECK(released.shared.fd == -1);
  REQUIRE_CODE(mr_acquire(run, nullptr), MR_OK);
  REQUIRE_CODE(mr_release(run, MR_PART_ERA, nullptr), MR_OK);
  CHECK(ExportOf(run).outcome.code == MR_OK);  // weights have their memory
  REQUIRE_CODE(mr_acquire(run, nullptr), MR_OK);
  CHECK(next_descriptor() == free);
}

TEST_CASE("every rank that asks has the whole weights, the others take part", "[api][c][ranks]") {
  const Linked alone(TinyConfig());
  REQUIRE_CODE(mr_init(alone), MR_OK);
  const Values whole = ExportOf(alone).values;
  for (const std::string axes : {R"("parallel": {"shard": 3})", R"("parallel": {"tensor": 2})"}) {
    const int world = axes.find("shard") != std::string::npos ? 3 : 2;
    std::vector<Exported> exported(3);
    std::vector<Outcome> refused(3), quiet(3);
    OnRanks(world, TinyConfig(axes), [&](const Linked& run, int rank) {
      refused[rank] = run.created();
      mr_status_free(mr_init(run));
      exported[rank] = ExportOf(run);
      mr_shared_weights shared = Sized<mr_shared_weights>();
      if (rank == 1) shared.size = 3;
      refused[rank] = Take(mr_weights_export(run, &shared));
      shared.size = sizeof shared;
      quiet[rank] = Take(mr_weights_export(run, rank == 1 ? &shared : nullptr));
      if (rank == 1) close(shared.fd);
    });
    for (int rank = 0; rank < world; ++rank) {
      CAPTURE(axes, rank, exported[rank].outcome.message);
      CHECK(exported[rank].values == whole);
      CHECK(refused[rank].code == MR_INVALID_ARGUMENT);
      CHECK_THAT(refused[rank].message, Contains("out.size is 3"));
      CHECK(quiet[rank].code == MR_OK);
    }
  }
}

// Rows and columns of matrices that tensor ranks split, experts that ranks have some of, matrices
// that are stored turned or side by side; shards that end anywhere.
TEST_CASE("exported weights are the same from every mesh", "[api][c][ranks]") {
  const std::string gpt2 = R"("family": "gpt2", "d_model": 24, "heads": 4, "ffn": 36)",
                    moe = R"("family": "qwen3_moe", "d_model": 24, "heads": 4, "kv_heads": 2,
      "head_dim": 6, "mtp": {"depth": 2}, "moe": {"experts": 4, "ffn": 10})";
  const auto config = [](const std::string& model, const std::string& parallel) {
    return R"({"model": {)" + model + R"(, "layers": 2, "seq_len": 8, "vocab": 37},
               "train": {"micro_batch": 2, "accumulate": 1}, "parallel": {)" +
           parallel + "}}";
  };
  struct Case {
    std::string model, parallel;
    int world;
  };
  const Case c = GENERATE_COPY(
      Case{gpt2, R"("tensor": 2)", 2}, Case{gpt2, R"("tensor": 2, "shard": 3)", 6},
      Case{moe, R"("shard": 3)", 3}, Case{moe, R"("expert": 2)", 2},
      Case{moe, R"("expert": 2, "tensor": 2)", 4}, Case{moe, R"("replicate": 2, "shard": 2)", 4});
  CAPTURE(c.model, c.parallel);
  const Linked alone(config(c.model, ""));
  REQUIRE_CODE(mr_init(alone), MR_OK);
  const Values whole = ExportOf(alone).values;
  REQUIRE(whole.size() > 20);
  std::vector<Exported> exported(static_cast<size_t>(c.world));
  std::vector<Outcome> initialised(exported.size());
  OnRanks(c.world, config(c.model, c.parallel), [&](const Linked& run, int rank) {
    const auto r = static_cast<size_t>(rank);
    initialised[r] = run.created().code != MR_OK ? run.created() : Take(mr_init(run));
    if (initialised[r].code == MR_OK) exported[r] = ExportOf(run);
  });
  for (size_t r = 0; r < exported.size(); ++r) {
    CAPTURE(r, initialised[r].message, exported[r].outcome.message);
    CHECK(exported[r].values == whole);
  }
}

}  // namespace
}  // namespace millrace::test

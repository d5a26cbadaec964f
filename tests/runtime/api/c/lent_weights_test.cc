// Weights that a run lends: where they lie, what they keep away, how long they live.
#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "runtime/api/c/millrace_dlpack.h"
#include "tests/runtime/api/c/linked.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {
namespace {

struct Borrowed {
  DLManagedTensorVersioned* tensor = nullptr;
  uint64_t version = 0;

  Borrowed(mr_run* run, const char* name) {
    REQUIRE_CODE(mr_weights_borrow(run, name, &tensor, &version), MR_OK);
  }
  float at(int64_t row, int64_t column) const {
    const DLTensor& t = tensor->dl_tensor;
    return static_cast<const float*>(t.data)[row * t.strides[0] + column * t.strides[1]];
  }
};

TEST_CASE("lent weights keep steps away, and show each update", "[api][c]") {
  const Linked run(TinyConfig());
  REQUIRE_CODE(mr_init(run), MR_OK);
  const char* const name = "model.layers.1.self_attn.k_proj.weight";
  const Borrowed before(run, name);
  const DLTensor& tensor = before.tensor->dl_tensor;
  REQUIRE(before.tensor->version.major == 1);
  REQUIRE(before.tensor->flags == DLPACK_FLAG_BITMASK_READ_ONLY);
  REQUIRE(tensor.device.device_type == kDLCPU);
  REQUIRE((tensor.dtype.code == kDLFloat && tensor.dtype.bits == 32 && tensor.dtype.lanes == 1));
  REQUIRE((tensor.ndim == 2 && tensor.shape[0] == 20 && tensor.shape[1] == 20));
  const float value = before.at(7, 3);
  const Borrowed second(run, "lm_head.weight");
  REQUIRE(run.Info().lent == 2);
  REQUIRE_CODE(mr_init(run), MR_BORROWED);
  REQUIRE_CODE(mr_import(run, "folder"), MR_BORROWED);
  REQUIRE(run.Step(0).first.code == MR_BORROWED);
  second.tensor->deleter(second.tensor);
  REQUIRE(run.Step(0).first.code == MR_BORROWED);
  std::thread([&] { before.tensor->deleter(before.tensor); }).join();
  REQUIRE(run.Info().lent == 0);
  const auto [stepped, result] = run.Step(0);
  REQUIRE(stepped.code == MR_OK);
  REQUIRE(result.weight_version == before.version + 1);
  const Borrowed after(run, name);
  REQUIRE(after.version == result.weight_version);
  REQUIRE(after.at(7, 3) != value);
  after.tensor->deleter(after.tensor);
  DLManagedTensorVersioned* none = before.tensor;
  REQUIRE_CODE(mr_weights_borrow(run, "wte.weight", &none, nullptr), MR_INVALID_ARGUMENT);
  REQUIRE(none == nullptr);
}

TEST_CASE("a lent tensor outlives its run", "[api][c]") {
  DLManagedTensorVersioned* tensor = nullptr;
  {
    const Linked run(TinyConfig());
    REQUIRE_CODE(mr_init(run), MR_OK);
    REQUIRE_CODE(mr_weights_borrow(run, "model.norm.weight", &tensor, nullptr), MR_OK);
  }
  REQUIRE(static_cast<const float*>(tensor->dl_tensor.data)[19] == 1);  // a norm's initial value
  tensor->deleter(tensor);
}

TEST_CASE("what is lent is what an export holds, under its names", "[api][c]") {
  const std::string family = GENERATE("llama", "gpt2");
  std::string config = TinyConfig();
  config.replace(config.find("llama"), 5, family);
  const TempDir folder;
  const Linked run(config);
  REQUIRE_CODE(mr_init(run), MR_OK);
  REQUIRE(run.Step(0).first.code == MR_OK);
  REQUIRE_CODE(mr_export(run, (folder / "hf").c_str()), MR_OK);
  REQUIRE_CODE(mr_export(run, (folder / "hf").c_str()), MR_CONFIG);  // it exists
  const std::string file = ReadBytes(folder / "hf/model.safetensors");
  int64_t count = 0;
  REQUIRE_CODE(mr_weights_count(run, &count), MR_OK);
  REQUIRE(count > 10);
  for (int64_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    REQUIRE_CODE(mr_weights_name(run, i, &name), MR_OK);
    CAPTURE(name);
    const Borrowed lent(run, name);
    const DLTensor& t = lent.tensor->dl_tensor;
    std::string bytes;  // row-major, as the file has them
    for (int64_t r = 0; r < t.shape[0]; ++r)
      for (int64_t c = 0; c < (t.ndim == 2 ? t.shape[1] : 1); ++c) {
        const float* const at = static_cast<const float*>(t.data) + r * t.strides[0] +
                                (t.ndim == 2 ? c * t.strides[1] : 0);
        bytes.append(reinterpret_cast<const char*>(at), sizeof *at);
      }
    // The place of each tensor is that behind "data_offsets" of its name.
    const size_t header = file.find("\"" + std::string(name) + "\"");
    REQUIRE(header != file.npos);
    const size_t offsets = file.find("data_offsets", header);
    const size_t begin = std::stoull(file.substr(file.find('[', offsets) + 1));
    uint64_t header_bytes = 0;
    std::copy_n(file.data(), 8, reinterpret_cast<char*>(&header_bytes));
    REQUIRE(file.compare(8 + header_bytes + begin, bytes.size(), bytes) == 0);
    lent.tensor->deleter(lent.tensor);
  }
  const char* name = nullptr;
  REQUIRE_CODE(mr_weights_name(run, count, &name), MR_INVALID_ARGUMENT);
  REQUIRE_CODE(mr_weights_name(run, -1, &name), MR_INVALID_ARGUMENT);

  const double straight = run.Step(0).second.loss;
  REQUIRE_CODE(mr_import(run, (folder / "hf").c_str()), MR_OK);
  REQUIRE(run.Info().step == 0);
  REQUIRE(run.Step(0).second.loss == straight);
  REQUIRE_CODE(mr_import(run, (folder / "none").c_str()), MR_DATA);
}

}  // namespace
}  // namespace millrace::test

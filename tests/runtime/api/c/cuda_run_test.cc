// Runs behind millrace.h on a GPU, in a program that has the backend linked in: beside one on the
// CPU, with weights lent where they lie.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "runtime/api/c/millrace_dlpack.h"
#include "runtime/base/cuda/driver_function.h"
#include "runtime/base/cuda/virtual_memory.h"
#include "runtime/data/safetensors/safetensors_folder.h"
#include "tests/runtime/api/c/answers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace::test {
namespace {

constexpr int64_t kLength = 64, kSequences = 4, kTargets = kSequences * kLength;

std::string ConfigOn(const std::string& backend) {
  return R"({"model": {"family": "llama", "layers": 2, "d_model": 128, "heads": 2, "ffn": 256,
             "seq_len": 64, "vocab": 61},
             "optimizer": {"lr": 0.002}, "train": {"steps": 50, "micro_batch": 2, "accumulate": 2},
             "inference": {"slots": 4, "prefill": [32], "decode": [1, 4]},
             "execution": {"backend": ")" +
         backend + "\"}}";
}

// Other ones for each step; a row counts by a stride of its own.
class Rows {
 public:
  explicit Rows(int64_t step) {
    for (int64_t row = 0; row < kSequences; ++row)
      for (int64_t i = 0; i <= kLength; ++i)
        tokens_.push_back(static_cast<int32_t>((i * (row + 1) + 5 * step) % 61));
    batch_.tokens = tokens_.data();
    batch_.sequences = kSequences;
  }
  const mr_batch* batch() const { return &batch_; }

 private:
  std::vector<int32_t> tokens_;
  mr_batch batch_ = Sized<mr_batch>();
};

double LossOf(mr_run* run, int64_t step) {
  mr_step_result result = Sized<mr_step_result>();
  REQUIRE_CODE(mr_step(run, Rows(step).batch(), &result), MR_OK);
  return result.loss;
}

TEST_CASE("a GPU and the CPU train and score alike, side by side", "[api][c][gpu]") {
  const std::string on_gpu = ConfigOn("cuda"), on_cpu = ConfigOn("cpu");
  const Linked gpu(WithInference(on_gpu)), cpu(WithInference(on_cpu));
  INFO(gpu.created().message << cpu.created().message);
  REQUIRE_CODE(mr_init(gpu), MR_OK);
  REQUIRE_CODE(mr_init(cpu), MR_OK);
  for (int64_t step = 0; step < 8; ++step)
    REQUIRE(LossOf(gpu, step) == Approx(LossOf(cpu, step)).epsilon(1e-4));
  const auto scored = [](mr_run* run, std::vector<int32_t>* likeliest) {
    std::vector<double> logprobs(kTargets);
    likeliest->resize(kTargets);
    REQUIRE_CODE(
        mr_score_likeliest(run, Rows(9).batch(), logprobs.data(), likeliest->data(), kTargets),
        MR_OK);
    return logprobs;
  };
  std::vector<int32_t> gpus, cpus;
  const std::vector<double> there = scored(gpu, &gpus), here = scored(cpu, &cpus);
  int64_t other = 0;
  for (size_t i = 0; i < there.size(); ++i) {
    REQUIRE(std::abs(there[i] - here[i]) < 1e-2);
    other += gpus[i] != cpus[i];
  }
  REQUIRE(other <= kTargets / 50);  // near ties
}

TEST_CASE("options.device is the GPU's number, and only that of one", "[api][c][gpu]") {
  const std::string config = ConfigOn("cuda"), on_cpu = ConfigOn("cpu");
  mr_run_options options = OptionsOf(config);
  options.device = 99;
  const Linked none(options);
  REQUIRE(none.created().code == MR_DEVICE);
  options.config = on_cpu.c_str();
  options.device = 1;
  REQUIRE(Linked(options).created().code == MR_INVALID_ARGUMENT);
}

TEST_CASE("a call leaves the thread the context that it had", "[api][c][gpu]") {
  const std::string config = ConfigOn("cuda");
  std::thread([&] {
    const Linked run(OptionsOf(config));
    REQUIRE_CODE(mr_init(run), MR_OK);
    LossOf(run, 0);
    int (*current)(void**) = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    REQUIRE(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", reinterpret_cast<void**>(&current),
                                             12000, cudaEnableDefault, &found) == cudaSuccess);
    void* context = &context;
    REQUIRE(current(&context) == 0);
    REQUIRE(context == nullptr);
  }).join();
}

// The reader's stream is held up; the tensor goes back before it has read, and a step follows.
TEST_CASE("a step waits for reads of what was lent that are still to come", "[api][c][gpu]") {
  const std::string config = ConfigOn("cuda");
  const Linked run(OptionsOf(config));
  REQUIRE_CODE(mr_init(run), MR_OK);
  LossOf(run, 0);
  cudaStream_t reader = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking) == cudaSuccess);
  const auto lent = [&] {
    DLManagedTensorVersioned* tensor = nullptr;
    REQUIRE_CODE(mr_weights_borrow(run, "model.layers.1.mlp.up_proj.weight", &tensor, nullptr),
                 MR_OK);
    REQUIRE((tensor->dl_tensor.device.device_type == kDLCUDA &&
             tensor->dl_tensor.device.device_id == 0));
    return tensor;
  };
  constexpr size_t kBytes = 256 * 128 * sizeof(float);
  std::vector<float> before(kBytes / sizeof(float)), late(before.size()), after(before.size());
  DLManagedTensorVersioned* const tensor = lent();
  REQUIRE(cudaMemcpy(before.data(), tensor->dl_tensor.data, kBytes, cudaMemcpyDeviceToHost) ==
          cudaSuccess);
  void* read = nullptr;
  REQUIRE(cudaMalloc(&read, kBytes) == cudaSuccess);
  const auto hold_up = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
  REQUIRE(cudaLaunchHostFunc(reader, hold_up, nullptr) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(read, tensor->dl_tensor.data, kBytes, cudaMemcpyDeviceToDevice, reader) ==
          cudaSuccess);
  tensor->deleter(tensor);
  LossOf(run, 1);
  REQUIRE(cudaStreamSynchronize(reader) == cudaSuccess);
  REQUIRE(cudaMemcpy(late.data(), read, kBytes, cudaMemcpyDeviceToHost) == cudaSuccess);
  REQUIRE(late == before);
  DLManagedTensorVersioned* const again = lent();
  REQUIRE(cudaMemcpy(after.data(), again->dl_tensor.data, kBytes, cudaMemcpyDeviceToHost) ==
          cudaSuccess);
  again->deleter(again);
  REQUIRE(after != before);
  REQUIRE(cudaFree(read) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(reader) == cudaSuccess);
}

// Lending waits for the whole GPU, whose streams another run captures in its first steps.
TEST_CASE("weights are lent while another run on the card captures its steps", "[api][c][gpu]") {
  const std::string config = ConfigOn("cuda");
  const auto losses = [&] {
    const Linked run(OptionsOf(config));
    REQUIRE_CODE(mr_init(run), MR_OK);
    std::vector<double> all;
    for (int64_t step = 0; step < 5; ++step) all.push_back(LossOf(run, step));
    return all;
  };
  const std::vector<double> alone = losses();
  const Linked lender(OptionsOf(config));
  REQUIRE_CODE(mr_init(lender), MR_OK);
  std::atomic<bool> stop = false;
  int64_t lent = 0;
  Outcome failed;
  std::thread borrower([&] {
    while (!stop && failed.code == MR_OK) {
      DLManagedTensorVersioned* tensor = nullptr;
      failed = Take(mr_weights_borrow(lender, "lm_head.weight", &tensor, nullptr));
      if (tensor != nullptr) tensor->deleter(tensor);
      ++lent;
    }
  });
  const std::vector<double> beside = losses();
  stop = true;
  borrower.join();
  INFO(failed.message);
  CHECK(failed.code == MR_OK);
  CHECK(lent > 10);
  CHECK(beside == alone);
}

// A byte of each float would tell: those of the memory behind the descriptor, taken as another
// process takes it.
std::vector<float> FloatsBehind(const mr_shared_weights& shared) {
  CUmemGenericAllocationHandle memory = 0;
  auto* const import =
      DriverFunction<CUresult(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType)>(
          "cuMemImportFromShareableHandle", 10020);
  REQUIRE(import(&memory, reinterpret_cast<void*>(static_cast<intptr_t>(shared.fd)),
                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
  close(shared.fd);
  const VirtualMemory& driver = TheVirtualMemory();
  const auto bytes = static_cast<size_t>(shared.bytes);
  CUdeviceptr at = 0;
  REQUIRE(driver.reserve(&at, bytes, 0, 0, 0) == CUDA_SUCCESS);
  MapMemory(MemoryOnGpu(0), at, bytes, memory, "exported weights");
  std::vector<float> floats(bytes / sizeof(float));
  REQUIRE(cudaMemcpy(floats.data(), reinterpret_cast<void*>(at), bytes, cudaMemcpyDeviceToHost) ==
          cudaSuccess);
  driver.unmap(at, bytes);
  driver.unreserve(at, bytes);
  driver.release(memory);
  return floats;
}

TEST_CASE("exported weights lie on the GPU, with the bits of the lent ones", "[api][c][gpu]") {
  const std::string config = ConfigOn("cuda");
  mr_shared_weights shared = Sized<mr_shared_weights>();
  std::vector<float> lent(61 * 128);
  size_t at = 0;
  {
    const Linked run(OptionsOf(config));
    REQUIRE_CODE(mr_init(run), MR_OK);
    LossOf(run, 0);
    REQUIRE_CODE(mr_weights_export(run, &shared), MR_OK);
    CHECK(shared.on_gpu == 1);
    CHECK(shared.version == run.Info().weight_version);
    const auto manifest = nlohmann::json::parse(shared.manifest);
    CHECK(manifest["gpu"].get<std::string>().starts_with("GPU-"));
    at = manifest["tensors"]["lm_head.weight"]["offset"].get<size_t>() / sizeof(float);
    DLManagedTensorVersioned* tensor = nullptr;
    REQUIRE_CODE(mr_weights_borrow(run, "lm_head.weight", &tensor, nullptr), MR_OK);
    REQUIRE(cudaMemcpy(lent.data(), tensor->dl_tensor.data, lent.size() * sizeof(float),
                       cudaMemcpyDeviceToHost) == cudaSuccess);
    tensor->deleter(tensor);
  }
  const std::vector<float> floats = FloatsBehind(shared);
  REQUIRE(at + lent.size() <= floats.size());
  CHECK(std::equal(lent.begin(), lent.end(), floats.begin() + static_cast<std::ptrdiff_t>(at)));
}

// Those of GPT-2 are stored turned; the other has parts of fused ones, experts, and a stored matrix
// that is columns of two parameters.
TEST_CASE("exported weights are those of the folder that mr_export writes", "[api][c][gpu]") {
  for (const std::string model : {R"("family": "gpt2", "ffn": 256, "d_model": 64)",
                                  R"("family": "qwen3_moe", "d_model": 64, "kv_heads": 1,
                                     "mtp": {"depth": 2}, "moe": {"experts": 3, "ffn": 72})"}) {
    CAPTURE(model);
    const TempDir folder;
    const Linked run(R"({"model": {)" + model +
                     R"(, "layers": 2, "heads": 2, "seq_len": 16, "vocab": 61},
                         "train": {"micro_batch": 2, "accumulate": 1},
                         "execution": {"backend": "cuda"}})");
    INFO(run.created().message);
    REQUIRE_CODE(mr_init(run), MR_OK);
    REQUIRE_CODE(mr_export(run, (folder / "hf").c_str()), MR_OK);
    mr_shared_weights shared = Sized<mr_shared_weights>();
    REQUIRE_CODE(mr_weights_export(run, &shared), MR_OK);
    const auto tensors = nlohmann::json::parse(shared.manifest)["tensors"];
    const std::vector<float> floats = FloatsBehind(shared);
    const SafetensorsFolder stored(folder / "hf");
    CHECK(tensors.size() == stored.names().size());
    for (const std::string& name : stored.names()) {
      CAPTURE(name);
      std::vector<float> expected(static_cast<size_t>(stored.Tensor(name).numel));
      stored.ReadFloats(name, 0, std::ssize(expected), expected.data());
      const size_t at = tensors.at(name)["offset"].get<size_t>() / sizeof(float);
      REQUIRE(at + expected.size() <= floats.size());
      CHECK(std::equal(expected.begin(), expected.end(),
                       floats.begin() + static_cast<std::ptrdiff_t>(at)));
    }
  }
}

}  // namespace
}  // namespace millrace::test

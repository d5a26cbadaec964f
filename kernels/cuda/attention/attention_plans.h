// cuDNN's causal attention as compiled plans, one per shape, kept per device:
// CudaDevice::Attached<AttentionPlans>(). A plan is built at its first use, which takes tens of
// milliseconds to seconds and must not fall into a capture; later uses enqueue.
//
// Streams  One cuDNN handle: calls of one device go to one stream at a time, from one thread.
// Needs    libnvrtc where the loader finds it: cuDNN compiles these kernels when it builds a plan.
// Errors   Error(kDevice) with cuDNN's words when it refuses a problem, Error(kInternal) when a
//          plan asks for more scratch than it is given.
// The frontend's headers are large: attention_plans.cc alone includes them.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>

namespace millrace {
class CudaDevice;
}

namespace millrace::cuda {

enum AttentionOperand { kQ, kK, kV, kOut, kDOut, kDQ, kDK, kDV, kAttentionOperands };

// Everything that a plan is compiled for. All operands bf16, or f16, [B,T,heads,D] with last stride
// 1, lse dense f32 [B,H,T].
struct AttentionProblem {
  bool f16 = false;
  bool grad = false;
  bool lse = true;             // forward: whether it is written
  bool deterministic = false;  // grad only
  bool causal = true;          // else every query sees every key
  float scale = 1;
  int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, depth = 0;
  // Elements from batch row to batch row, row to row, head to head.
  std::array<std::array<int64_t, 3>, kAttentionOperands> strides{};
  auto operator<=>(const AttentionProblem&) const = default;
};

// "cuDNN attention_grad of B 64 T 1024 H 12/12 D 64".
std::string ToString(const AttentionProblem& problem);

struct AttentionData {
  std::array<std::byte*, kAttentionOperands> operands{};  // multiples of 16
  float* lse = nullptr;
};

class AttentionPlans {
 public:
  explicit AttentionPlans(CudaDevice& device);
  ~AttentionPlans();

  // Scratch of the problem's plan.
  int64_t Bytes(const AttentionProblem& problem);

  void Enqueue(const AttentionProblem& problem, const AttentionData& data, std::byte* scratch,
               int64_t scratch_bytes, cudaStream_t stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace::cuda

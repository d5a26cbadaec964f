#include "kernels/cuda/attention/attention_plans.h"

// The frontend has one kernel of its own, for another architecture, that it compiles at run time.
// It is never asked for; its calls end here instead of in a library that every user would need.
#include <nvrtc.h>
#define nvrtcCreateProgram UnusedNvrtcCreateProgram
#define nvrtcCompileProgram UnusedNvrtcCompileProgram
#define nvrtcDestroyProgram UnusedNvrtcDestroyProgram
#define nvrtcGetCUBIN UnusedNvrtcGetCUBIN
#define nvrtcGetCUBINSize UnusedNvrtcGetCUBINSize
#define nvrtcGetProgramLog UnusedNvrtcGetProgramLog
#define nvrtcGetProgramLogSize UnusedNvrtcGetProgramLogSize
#define nvrtcGetPTX UnusedNvrtcGetPTX
#define nvrtcGetPTXSize UnusedNvrtcGetPTXSize
#define nvrtcGetErrorString UnusedNvrtcGetErrorString
#define nvrtcVersion UnusedNvrtcVersion
namespace {
constexpr nvrtcResult kNoNvrtc = NVRTC_ERROR_INTERNAL_ERROR;
[[maybe_unused]] nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int,
                                                const char* const*, const char* const*) {
  return kNoNvrtc;
}
[[maybe_unused]] nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
  return kNoNvrtc;
}
[[maybe_unused]] nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return kNoNvrtc; }
[[maybe_unused]] nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return kNoNvrtc; }
[[maybe_unused]] nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) { return kNoNvrtc; }
[[maybe_unused]] nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return kNoNvrtc; }
[[maybe_unused]] nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) { return kNoNvrtc; }
[[maybe_unused]] nvrtcResult nvrtcGetPTX(nvrtcProgram, char*) { return kNoNvrtc; }
[[maybe_unused]] nvrtcResult nvrtcGetPTXSize(nvrtcProgram, size_t*) { return kNoNvrtc; }
[[maybe_unused]] nvrtcResult nvrtcVersion(int*, int*) { return kNoNvrtc; }
[[maybe_unused]] const char* nvrtcGetErrorString(nvrtcResult) { return "not linked"; }
}  // namespace
// Without its serialisation, which nothing here uses.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <map>
#include <unordered_map>
#include <utility>

#include "runtime/base/error.h"

namespace millrace::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Tensor_attributes>;

constexpr int64_t kLseId = kAttentionOperands + 1;
int64_t IdOf(int operand) { return operand + 1; }

void CheckCudnn(cudnnStatus_t status, const char* call) {
  MR_REQUIRE(ErrorCode::kDevice, status == CUDNN_STATUS_SUCCESS, "cuDNN: {} from {}",
             cudnnGetErrorString(status), call);
}

struct Plan {
  fe::graph::Graph graph;
  int64_t bytes = 0;
};

// Describes operands of one problem to the graph, [B,H,T,D] as cuDNN orders them.
class Builder {
 public:
  explicit Builder(const AttentionProblem& problem) : p_(problem) {
    plan_.graph.set_io_data_type(OfOperands())
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::unique_ptr<Plan> Build(cudnnHandle_t handle) && {
    p_.grad ? Backward() : Forward();
    fe::graph::Graph& graph = plan_.graph;
    Check(graph.validate(), "validate");
    Check(graph.build_operation_graph(handle), "build_operation_graph");
    Check(graph.create_execution_plans({fe::HeurMode_t::A}), "create_execution_plans");
    Check(graph.check_support(), "check_support");
    Check(graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE), "build_plans");
    Check(graph.get_workspace_size(plan_.bytes), "get_workspace_size");
    return std::make_unique<Plan>(std::move(plan_));
  }

 private:
  void Check(fe::error_t error, const char* step) const {
    MR_REQUIRE(ErrorCode::kDevice, error.is_good(), "{}: {} failed: {}", ToString(p_), step,
               error.get_message());
  }

  fe::DataType_t OfOperands() const {
    return p_.f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16;
  }
  int64_t HeadsOf(int operand) const {
    const bool kv = operand == kK || operand == kV || operand == kDK || operand == kDV;
    return kv ? p_.kv_heads : p_.heads;
  }
  void Describe(Tensor_attributes& tensor, int operand) const {
    const auto& [batch, row, head] = p_.strides[static_cast<size_t>(operand)];
    tensor.set_uid(IdOf(operand))
        .set_dim({p_.batch, HeadsOf(operand), p_.length, p_.depth})
        .set_stride({batch, head, row, 1})
        .set_data_type(OfOperands());
  }
  TensorPtr Input(int operand) {
    Tensor_attributes tensor;
    Describe(tensor, operand);
    return plan_.graph.tensor(tensor);
  }
  void Output(const TensorPtr& tensor, int operand) const {
    tensor->set_output(true);
    Describe(*tensor, operand);
  }
  void DescribeLse(Tensor_attributes& tensor) const {
    tensor.set_uid(kLseId)
        .set_dim({p_.batch, p_.heads, p_.length, 1})
        .set_stride({p_.heads * p_.length, p_.length, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }

  template <class Attributes>
  void SetMask(Attributes& attributes) const {
    if (!p_.causal) return;
    attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);
  }

  void Forward() {
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention")
                          .set_generate_stats(p_.lse)
                          .set_attn_scale(p_.scale);
    SetMask(attributes);
    const TensorPtr q = Input(kQ), k = Input(kK), v = Input(kV);
    const auto [out, lse] = plan_.graph.sdpa(q, k, v, std::move(attributes));
    Output(out, kOut);
    if (!p_.lse) return;
    lse->set_output(true);
    DescribeLse(*lse);
  }

  void Backward() {
    auto attributes = fe::graph::SDPA_backward_attributes()
                          .set_name("attention_grad")
                          .set_attn_scale(p_.scale)
                          .set_deterministic_algorithm(p_.deterministic);
    SetMask(attributes);
    Tensor_attributes lse;
    DescribeLse(lse);
    const TensorPtr q = Input(kQ), k = Input(kK), v = Input(kV), out = Input(kOut),
                    d_out = Input(kDOut);
    const auto [d_q, d_k, d_v] = plan_.graph.sdpa_backward(
        q, k, v, out, d_out, plan_.graph.tensor(lse), std::move(attributes));
    Output(d_q, kDQ);
    Output(d_k, kDK);
    Output(d_v, kDV);
  }

  const AttentionProblem& p_;
  Plan plan_;
};

}  // namespace

std::string ToString(const AttentionProblem& p) {
  return fmt::format("cuDNN {}{}{} of {}B {} T {} H {}/{} D {}",
                     p.grad ? "attention_grad" : "attention",
                     p.deterministic ? ", deterministic," : "", p.causal ? "" : ", unmasked,",
                     p.f16 ? "f16, " : "", p.batch, p.length, p.heads, p.kv_heads, p.depth);
}

struct AttentionPlans::State {
  cudnnHandle_t handle = nullptr;
  std::map<AttentionProblem, std::unique_ptr<Plan>> plans;

  Plan& PlanOf(const AttentionProblem& problem) {
    std::unique_ptr<Plan>& plan = plans[problem];
    if (!plan) plan = Builder(problem).Build(handle);
    return *plan;
  }
};

AttentionPlans::AttentionPlans(CudaDevice&) : state_(std::make_unique<State>()) {
  // Before 9.16 a gradient whose T is no multiple of 128 copies its lengths
  // from the host at every call.
  constexpr size_t kOldest = 91600;
  MR_REQUIRE(ErrorCode::kDevice, cudnnGetVersion() >= kOldest,
             "cuDNN {} was found; attention needs 9.16 or newer, 9.19 is what it is tested with",
             cudnnGetVersion());
  CheckCudnn(cudnnCreate(&state_->handle), "cudnnCreate");
}

AttentionPlans::~AttentionPlans() {
  state_->plans.clear();
  cudnnDestroy(state_->handle);
}

int64_t AttentionPlans::Bytes(const AttentionProblem& problem) {
  return state_->PlanOf(problem).bytes;
}

void AttentionPlans::Enqueue(const AttentionProblem& problem, const AttentionData& data,
                             std::byte* scratch, int64_t scratch_bytes, cudaStream_t stream) {
  const Plan& plan = state_->PlanOf(problem);
  MR_CHECK_LE(plan.bytes, scratch_bytes,
              "{}: scratch that the plan needs, and scratch that it is given", ToString(problem));
  std::unordered_map<int64_t, void*> pointers;
  for (int i = 0; i < kAttentionOperands; ++i)
    if (data.operands[static_cast<size_t>(i)] != nullptr)
      pointers[IdOf(i)] = data.operands[static_cast<size_t>(i)];
  if (data.lse != nullptr) pointers[kLseId] = data.lse;
  CheckCudnn(cudnnSetStream(state_->handle, stream), "cudnnSetStream");
  fe::error_t error = plan.graph.execute(state_->handle, pointers, scratch);
  MR_REQUIRE(ErrorCode::kDevice, error.is_good(), "{}: {}", ToString(problem), error.get_message());
}

}  // namespace millrace::cuda

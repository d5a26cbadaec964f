#include "kernels/cuda/matmul/matmul_plans.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/matmul/matmul_check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kE4M3:
      return CUDA_R_8F_E4M3;
    case DType::kE5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_16BF;
  }
}

int32_t ModeOf(KeyScales scales) {
  switch (scales) {
    case KeyScales::kVectors:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case KeyScales::kBlocks:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

bool InFloat8(const MatmulKey& key) { return IsFloat8(key.operands); }
// Where an address decides which algorithms there are, before there is one.
const std::byte* const kSomeAddress = reinterpret_cast<const std::byte*>(uintptr_t{16});

template <class T>
void Set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  MR_CUBLAS(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value));
}

// What the suggestions may need and assume.
class Preference {
 public:
  explicit Preference(const MatmulKey& key) {
    MR_CUBLAS(cublasLtMatmulPreferenceCreate(&preference_));
    const uint64_t workspace = static_cast<uint64_t>(kMatmulWorkspaceBytes);
    Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    // Partial sums of slices of K stay f32 until they are complete.
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (key.result == DType::kF32) schemes |= CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    // The library's A is our b, see MatmulProblem.
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key.b.alignment));
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.a.alignment));
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.out.alignment));
    Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key.out.alignment));
  }
  ~Preference() { cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  template <class T>
  void Set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    MR_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value));
  }
  cublasLtMatmulPreference_t preference_ = nullptr;
};

void CheckAligned(const void* address, int64_t alignment, const char* name, const MatmulKey& key) {
  MR_CHECK_EQ(reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(alignment), 0u,
              "matmul {}: {} at {} is not aligned to {} bytes", ToString(key), name, address,
              alignment);
}

}  // namespace

std::string HexOf(const cublasLtMatmulAlgo_t& algo) {
  std::string hex;
  for (const uint64_t word : algo.data) hex += fmt::format("{:016x}", word);
  return hex;
}

std::string Describe(const cublasLtMatmulAlgo_t& algo) {
  const auto get = [&algo](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) -> int64_t {
    size_t written = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof value, &written);
    return status == CUBLAS_STATUS_SUCCESS ? static_cast<int64_t>(value)
                                           : -1;  // -1: has no such property
  };
  return fmt::format(
      "id {}, tile {}, stages {}, cluster {}, split-K {}, reduction {}, swizzle {}, option {}, "
      "inner {}",
      get(CUBLASLT_ALGO_CONFIG_ID, int32_t{}), get(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t{}),
      get(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t{}),
      get(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t{}),
      get(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t{}),
      get(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t{}),
      get(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t{}),
      get(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, uint32_t{}),
      get(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, uint16_t{}));
}

MatmulProblem::Matrix MatmulProblem::MakeMatrix(DType dtype, int64_t rows, int64_t cols,
                                                const MatrixKey& key, int64_t count,
                                                int64_t apart) {
  if (!key.transposed) std::swap(rows, cols);  // a row of ours is a column of the library
  cublasLtMatrixLayout_t layout = nullptr;
  MR_CUBLAS(cublasLtMatrixLayoutCreate(&layout, TypeOf(dtype), static_cast<uint64_t>(rows),
                                       static_cast<uint64_t>(cols), key.ld));
  Matrix matrix(layout);
  if (count == 1) return matrix;
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
    MR_CUBLAS(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(count));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, apart);
  return matrix;
}

MatmulProblem::MatmulProblem(const MatmulKey& key)
    : key_(key),
      first_(MakeMatrix(DTypeOfB(key), key.k, key.n, key.b, key.batch.count, key.batch.b)),
      second_(MakeMatrix(key.operands, key.m, key.k, key.a, key.batch.count, key.batch.a)),
      result_(MakeMatrix(key.result, key.m, key.n, key.out, key.batch.count, key.batch.out)) {
  cublasLtMatmulDesc_t desc = nullptr;
  // f32 operands stay f32: this compute type does not allow TF32.
  MR_CUBLAS(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  desc_.reset(desc);
  Set(desc, CUBLASLT_MATMUL_DESC_TRANSA, key.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  Set(desc, CUBLASLT_MATMUL_DESC_TRANSB, key.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (InFloat8(key)) {
    Set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, ModeOf(key.b.scales));
    Set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, ModeOf(key.a.scales));
    Set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0});
    SetScales(kSomeAddress, kSomeAddress);
  }
  if (!key.bias && !key.gelu_grad) return;
  Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
      key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DGELU);
  if (key.bias)
    Set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(key.result));
  else
    Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.out.ld);
  SetExtra(kSomeAddress);
}

void MatmulProblem::SetScales(const std::byte* a, const std::byte* b) {
  const void *const of_a = a, *const of_b = b;
  Set(desc_.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b);
  Set(desc_.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a);
}

void MatmulProblem::SetExtra(const std::byte* extra) {
  const void* const address = extra;
  Set(desc_.get(),
      key_.bias ? CUBLASLT_MATMUL_DESC_BIAS_POINTER : CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
      address);
}

std::vector<MatmulAlgorithm> MatmulProblem::Suggestions(cublasLtHandle_t handle, int count) const {
  const Preference preference(key_);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(count));
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, desc_.get(), first_.get(), second_.get(), result_.get(), result_.get(),
      preference.get(), count, results.data(), &found);
  std::vector<MatmulAlgorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back({result.algo, result.workspaceSize});
  }
  MR_REQUIRE(ErrorCode::kDevice, !algorithms.empty(), "cuBLASLt has no algorithm for {}: {}",
             ToString(key_), cublasLtGetStatusString(status));
  return algorithms;
}

MatmulAlgorithm MatmulProblem::FromHex(cublasLtHandle_t handle, const std::string& hex) const {
  MatmulAlgorithm algorithm;
  constexpr size_t kWords = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t);
  const bool all_digits = hex.find_first_not_of("0123456789abcdef") == std::string::npos;
  MR_REQUIRE(ErrorCode::kInvalidArgument, hex.size() == kWords * 16 && all_digits,
             "tuning table: the algorithm of {} is '{}'; {} hex digits are allowed", ToString(key_),
             hex, kWords * 16);
  for (size_t i = 0; i < kWords; ++i)
    algorithm.algo.data[i] = std::stoull(hex.substr(i * 16, 16), nullptr, 16);
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle, desc_.get(), first_.get(), second_.get(), result_.get(),
                              result_.get(), &algorithm.algo, &result);
  MR_REQUIRE(ErrorCode::kInvalidArgument, status == CUBLAS_STATUS_SUCCESS,
             "tuning table: {} refuses the algorithm of {} ({}): {}", MatmulPlans::LibraryVersion(),
             ToString(key_), Describe(algorithm.algo), cublasLtGetStatusString(status));
  MR_REQUIRE(ErrorCode::kInvalidArgument,
             result.workspaceSize <= static_cast<size_t>(kMatmulWorkspaceBytes),
             "tuning table: the algorithm of {} needs {} bytes of workspace; {} are allowed",
             ToString(key_), result.workspaceSize, kMatmulWorkspaceBytes);
  algorithm.workspace_bytes = result.workspaceSize;
  return algorithm;
}

void MatmulProblem::Run(cublasLtHandle_t handle, const MatmulAlgorithm& algorithm,
                        const Product<TensorView>& operands, const std::byte* extra, Update update,
                        const TensorView& workspace, cudaStream_t stream) {
  if (InFloat8(key_)) {
    CheckAligned(operands.a_scales.data, 16, "scales of a", key_);
    CheckAligned(operands.b_scales.data, 16, "scales of b", key_);
    SetScales(operands.a_scales.data, operands.b_scales.data);
  }
  if (key_.bias || key_.gelu_grad) {
    CheckAligned(extra, 16, key_.bias ? "bias" : "pre", key_);
    SetExtra(extra);
  }
  const float beta = update == Update::kAccumulate ? 1.0f : 0.0f;
  Run(handle, algorithm, operands, Blend{1, beta, operands.out.data}, workspace, stream);
}

void MatmulProblem::Run(cublasLtHandle_t handle, const MatmulAlgorithm& algorithm,
                        const Product<TensorView>& operands, const Blend& blend,
                        const TensorView& workspace, cudaStream_t stream) const {
  CheckAligned(operands.a.data, key_.a.alignment, "a", key_);
  CheckAligned(operands.b.data, key_.b.alignment, "b", key_);
  CheckAligned(operands.out.data, key_.out.alignment, "out", key_);
  CheckAligned(blend.c, key_.out.alignment, "c", key_);
  MR_CHECK_LE(static_cast<int64_t>(algorithm.workspace_bytes), workspace ? workspace.bytes() : 0,
              "matmul {}: scratch is smaller than the algorithm's workspace", ToString(key_));
  MR_CUBLAS(cublasLtMatmul(handle, desc_.get(), &blend.alpha, operands.b.data, first_.get(),
                           operands.a.data, second_.get(), &blend.beta, blend.c, result_.get(),
                           operands.out.data, result_.get(), &algorithm.algo, workspace.data,
                           workspace ? static_cast<size_t>(workspace.bytes()) : 0, stream));
}

MatmulPlans::MatmulPlans(CudaDevice& device) : device_name_(device.name()) {
  MR_CUBLAS(cublasLtCreate(&handle_));
}

MatmulPlans::~MatmulPlans() { cublasLtDestroy(handle_); }

std::string MatmulPlans::LibraryVersion() {
  return fmt::format("cuBLASLt {}", cublasLtGetVersion());
}

void MatmulPlans::Install(const TuningTable& table) {
  MR_REQUIRE(ErrorCode::kInvalidArgument,
             table.device == device_name_ && table.library_version == LibraryVersion(),
             "tuning table of {} with {}; this is {} with {}", table.device, table.library_version,
             device_name_, LibraryVersion());
  Plans plans;
  for (const auto& [key, tuned] : table.matmuls) {
    if (key.gelu_grad && tuned.algorithm.empty()) continue;  // measured: the two in turn are faster
    MatmulProblem problem(key);
    const MatmulAlgorithm algorithm = problem.FromHex(handle_, tuned.algorithm);
    plans.emplace(key, Plan{std::move(problem), algorithm});
  }
  plans_ = std::move(plans);
}

bool MatmulPlans::RunWithGeluGrad(const MatmulOp<TensorView>& op, cudaStream_t stream) {
  const std::optional<MatmulKey> key =
      FusedKeyOf(ConvertOp<MatmulOp, TensorView, Shape>(op, [](const TensorView& view) {
        return Shape{view.layout, static_cast<bool>(view)};
      }));
  const auto found = key ? plans_.find(*key) : plans_.end();
  if (found == plans_.end()) return false;
  found->second.problem.Run(handle_, found->second.algorithm, Product<TensorView>::Of(op, op.out),
                            op.pre.data, op.update, op.scratch, stream);
  return true;
}

MatmulPlans::Plan& MatmulPlans::PlanOf(const MatmulKey& key) {
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  MatmulProblem problem(key);
  const MatmulAlgorithm algorithm = problem.Suggestions(handle_, kMatmulSuggestions).front();
  return plans_.emplace(key, Plan{std::move(problem), algorithm}).first->second;
}

void MatmulPlans::Run(const Product<TensorView>& operands, const TensorView& bias, Update update,
                      const TensorView& workspace, cudaStream_t stream) {
  Plan& plan = PlanOf(operands.key(static_cast<bool>(bias)));
  plan.problem.Run(handle_, plan.algorithm, operands, bias.data, update, workspace, stream);
}

void MatmulPlans::Run(const BatchedMatmulOp<TensorView>& op, cudaStream_t stream) {
  BatchedMatmulOp<TensorView> call = op;
  const int64_t most = InBatchOf(op.out.dim(0));
  for (int64_t left = op.out.dim(0); left > 0; left -= most) {
    for (TensorView* view : {&call.a, &call.b, &call.c, &call.out})
      view->layout.dims[0] = std::min(left, most);
    Plan& plan = PlanOf(BatchedKeyOf(call));
    const MatmulProblem::Blend blend{static_cast<float>(op.alpha), static_cast<float>(op.beta),
                                     call.c ? call.c.data : call.out.data};
    plan.problem.Run(handle_, plan.algorithm,
                     {MatrixOf(call.a), MatrixOf(call.b), MatrixOf(call.out)}, blend, op.scratch,
                     stream);
    for (TensorView* view : {&call.a, &call.b, &call.c, &call.out})
      if (*view && left > most) view->data += most * view->stride(0) * Bytes(view->dtype());
  }
}

}  // namespace millrace

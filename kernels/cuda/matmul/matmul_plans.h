// Products through cuBLASLt: descriptors and an algorithm per MatmulKey, made
// once per device and kept.
//
// Algorithm  From an installed tuning table; for a product the table does not have, or without a
//            table, the first of the library's own suggestions. Overwriting and accumulating are
//            one algorithm, so a product added to a destination has the bits of one that was stored
//            and added later.
// FP8        Sums of more than one step of the tensor cores, whose own have few bits, are f32: the
//            library's fast accumulation is off.
// Order      The same bits every time: slices of K are summed in f32 in the workspace, in a fixed
//            order. An algorithm that sums them in the destination is never taken: it would round
//            partial sums to the destination's dtype, and add them to what an accumulating product
//            finds there.
// Capture    Plans are made on first use, on the host; Run may then be captured. Graphs that were
//            captured before an Install go on with the algorithms they have.
// Threads    As the device: one.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/ops/access.h"
#include "kernels/ops/matmul_key.h"
#include "kernels/ops/tuning.h"
#include "runtime/base/cuda/cuda_device.h"

namespace millrace {

// How many algorithms the library is asked for; the first one is the default.
inline constexpr int kMatmulSuggestions = 24;

// An algorithm that runs a product within the workspace limit.
struct MatmulAlgorithm {
  cublasLtMatmulAlgo_t algo{};
  size_t workspace_bytes = 0;
};

// The bytes of `algo` as hex digits, and what they say: id, tile, stages, split-K, ...
std::string HexOf(const cublasLtMatmulAlgo_t& algo);
std::string Describe(const cublasLtMatmulAlgo_t& algo);

// cuBLASLt's descriptors of one product.
class MatmulProblem {
 public:
  explicit MatmulProblem(const MatmulKey& key);

  const MatmulKey& key() const { return key_; }
  // Up to `count` suggestions of the library, best first by its own estimate; never empty,
  // Error(kDevice) names the product otherwise.
  std::vector<MatmulAlgorithm> Suggestions(cublasLtHandle_t handle, int count) const;
  // The algorithm with these hex digits, or Error(kInvalidArgument), which names the product: the
  // library refuses it, so the digits come from another version or device.
  MatmulAlgorithm FromHex(cublasLtHandle_t handle, const std::string& hex) const;
  // Enqueues out (=|+=) a b (+ bias | * GELU'(pre)), of a batch all products, whose first matrices
  // the operands are. `extra`: the bias or pre that the key asks
  // for. Addresses are aligned as the key says (extra and scales of FP8: 16 bytes), MR_CHECKed.
  void Run(cublasLtHandle_t handle, const MatmulAlgorithm& algorithm,
           const Product<TensorView>& operands, const std::byte* extra, Update update,
           const TensorView& workspace, cudaStream_t stream);
  // Likewise out = alpha a b + beta c, c as out.
  struct Blend {
    float alpha = 1, beta = 0;
    const std::byte* c = nullptr;
  };
  void Run(cublasLtHandle_t handle, const MatmulAlgorithm& algorithm,
           const Product<TensorView>& operands, const Blend& blend, const TensorView& workspace,
           cudaStream_t stream) const;

 private:
  template <class T, cublasStatus_t (*destroy)(T*)>
  struct Destroy {
    void operator()(T* object) const noexcept { destroy(object); }
  };
  using Matrix =
      std::unique_ptr<cublasLtMatrixLayoutOpaque_t,
                      Destroy<cublasLtMatrixLayoutOpaque_t, cublasLtMatrixLayoutDestroy>>;
  // One of `count` matrices that lie `apart` elements from each other.
  static Matrix MakeMatrix(DType dtype, int64_t rows, int64_t cols, const MatrixKey& key,
                           int64_t count, int64_t apart);
  void SetExtra(const std::byte* extra);
  void SetScales(const std::byte* a, const std::byte* b);

  MatmulKey key_;
  std::unique_ptr<cublasLtMatmulDescOpaque_t,
                  Destroy<cublasLtMatmulDescOpaque_t, cublasLtMatmulDescDestroy>>
      desc_;
  // As cuBLASLt sees them, by columns: out^T = b^T a^T.
  Matrix first_, second_, result_;
};

class MatmulPlans {
 public:
  explicit MatmulPlans(CudaDevice& device);
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  // Later calls use the table's algorithms, and only those: an earlier table is forgotten. Every
  // entry is tried against the library now. Error(kInvalidArgument): made on another device or by
  // another library version, or an algorithm is refused; the plans are then as before. Tune again.
  void Install(const TuningTable& table);

  // True and enqueued, when the table says that the library is faster at this product times GELU's
  // derivative at `pre` (FusedKeyOf) than at the product alone with a kernel behind it.
  bool RunWithGeluGrad(const MatmulOp<TensorView>& op, cudaStream_t stream);

  // As MatmulProblem::Run, with the product's own algorithm.
  void Run(const Product<TensorView>& operands, const TensorView& bias, Update update,
           const TensorView& workspace, cudaStream_t stream);
  // All of the op's products, by as few calls as may be. Its operands are not empty, and out is not
  // transposed.
  void Run(const BatchedMatmulOp<TensorView>& op, cudaStream_t stream);

  cublasLtHandle_t handle() const { return handle_; }
  // "cuBLASLt 130100".
  static std::string LibraryVersion();

 private:
  struct Plan {
    MatmulProblem problem;
    MatmulAlgorithm algorithm;
  };
  struct KeyHash {
    size_t operator()(const MatmulKey& key) const { return HashOf(key); }
  };
  using Plans = std::unordered_map<MatmulKey, Plan, KeyHash>;

  // Made now, with the library's first suggestion, where there is none yet.
  Plan& PlanOf(const MatmulKey& key);

  cublasLtHandle_t handle_ = nullptr;
  std::string device_name_;
  Plans plans_;
};

}  // namespace millrace

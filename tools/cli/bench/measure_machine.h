// What `doctor --measure` times and how it says so; measure_machine.cc is the verb.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops/attention_ops.h"
#include "kernels/ops/kernel_table.h"
#include "kernels/ops/model_ops.h"
#include "runtime/base/quantile.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/run/session.h"
#include "tools/cli/bench/rates.h"
#include "tools/cli/bench/stopwatch.h"

namespace millrace {

// Of what is timed in short batches: median, and in words the least and the most.
struct Samples {
  std::vector<double> values;
  double median() const { return Quantile(values, 0.5); }
  std::string Text(double unit) const;  // "4031 (3998 to 4044)", in units
};

inline constexpr int kRounds = 5;

template <class F>
Samples Repeated(F&& once) {
  Samples samples;
  for (int round = 0; round < kRounds; ++round) samples.values.push_back(once());
  return samples;
}

// The session's arena, cut from its begin.
class Cut {
 public:
  Cut(std::byte* begin, int64_t bytes) : next_(begin), left_(bytes) {}
  // Error(kDoesNotFit) where nothing is left.
  TensorView Take(DType dtype, std::initializer_list<int64_t> dims);
  int64_t left() const { return left_; }

 private:
  std::byte* next_;
  int64_t left_;
};

// Forward, both gradients and heads of models from GPT-2 124M to Llama 8B.
inline constexpr std::array<ProductShape, 14> kDeviceProducts = {{{8192, 8192, 8192},
                                                                  {8192, 28672, 4096},
                                                                  {8192, 4096, 14336},
                                                                  {8192, 6144, 4096},
                                                                  {4096, 28672, 8192},
                                                                  {16384, 16384, 2048},
                                                                  {16384, 2048, 8192},
                                                                  {2048, 16384, 16384},
                                                                  {65536, 3072, 768},
                                                                  {65536, 768, 3072},
                                                                  {768, 3072, 65536},
                                                                  {8192, 50304, 768},
                                                                  {4096, 2304, 768},
                                                                  {1024, 1536, 384}}};

// Products of some shapes, whose operands overlap each other and no result: what is read stays what
// it was.
class Products {
 public:
  Products(std::span<const ProductShape> shapes, DType dtype, Backend backend, Cut& cut);
  void Run(const KernelTable& kernels, Stream& stream) const;
  const MatmulOp<TensorView>& op(size_t i) const { return ops_[i]; }
  double flops() const { return flops_; }

 private:
  std::vector<MatmulOp<TensorView>> ops_;
  double flops_ = 0;
};

struct Attend {
  int64_t batch, length, heads, kv_heads, head_dim;
};
// Causal, with the gradient that need not be deterministic.
struct AttentionCalls {
  AttentionOp<TensorView> forward;
  AttentionGradOp<TensorView> backward;
  AttentionCalls(const Attend& of, DType dtype, Backend backend, Cut& cut);
  // 2 products over the lower triangle; the gradient's are 5.
  double forward_flops() const { return forward_flops_; }

 private:
  double forward_flops_ = 0;
};

// A collective: the largest of the ranks' values. Ranks go in step, so that what one device does
// slowly all wait for.
double Slowest(Session& session, double seconds);

// A collective: gathers and reduce-scatters between all ranks by size, the slowest rank's time.
// Their start and rate (FitLink of bytes sent) go into `machine`, as the link's or, over peers'
// memory, the peers'. In words what was found.
std::string MeasureCollectives(Session& session, const Environment& environment, Cut arena,
                               Stopwatch& watch, Machine& machine);

// A collective, of a device: what its power cap allows, the slowest rank's. Products of all of
// kDeviceProducts in turn, hot; then the same with copies between them, and with attention: what
// these add to the time is what they take of the cap.
std::string MeasurePower(Session& session, const Environment& environment, Cut arena,
                         Stopwatch& watch, Machine& machine);

}  // namespace millrace

// Lower: semantic ops -> kernel ops. Pure: runs on any machine for any backend. Fuses across ops,
// decides what happens in place, and cuts the head loss into chunks. No scratch, no parameter
// addresses, no streams: those are the planner's.
#pragma once

#include <string>
#include <vector>

#include "kernels/ops/cost.h"
#include "kernels/ops/fp8_ops.h"
#include "runtime/base/id_vector.h"
#include "runtime/base/policies.h"
#include "runtime/plan/graph/semantic_graph.h"
#include "runtime/plan/plan_op.h"

namespace millrace {

struct LowerOptions {
  Backend backend = Backend::kCpu;
  bool fuse_residual_norm = true;  // kAdd + kNorm -> NormOp with residual, over unit borders
  bool fuse_bias_gelu = true;  // kLinear + kActivation(gelu), and their gradients -> GEMM epilogues
  int64_t loss_chunk_rows = 0;  // rows of logits that exist at once; 0: LossChunkRows
  bool deterministic = true;    // forbids kernels that sum in an order of their own
  WeightGather gather = WeightGather::kCompute;  // kLinear: of linears in FP8
  // Linears, logits and attention of the forward, and what draws from them, are ops `in_order`:
  // rows with caches have the bits of those of whole sequences (inference.exact on GPUs).
  bool in_order = false;
  // Gradients of weights run beside those of activations (PlanOptions::overlap_weight_gradients):
  // a norm's gradient is not written over what they still read.
  bool weights_beside = false;
  bool operator==(const LowerOptions&) const = default;
};

enum class ProgramRole {
  kActivation,
  kParam,        // in FP8, where it is gathered so: its payload
  kParamScales,  // of that payload
  kParamGrad,
  kInput,  // a source of inputs
  kConstant,
  kLoss,
  kLogits,
  kHostState,  // by its name a state of the run
  kCache,      // by its name a state of the era
  kOutput,     // by its name
  kScalars,
  kTally,    // summed over the microbatches of a step, then over all ranks, for the host
  kOverflow  // likewise, one f32 of the forward: above 0 the step is not applied
};

using SourceId = Id<struct SourceTag>;  // into Program::sources

// Before sharding, a parameter and its gradient are buffers of their own, named by `param`; the
// planner maps them into buckets. `source` names an input's, `loss` a loss's.
struct ProgramBuffer {
  std::string name;
  ProgramRole role = ProgramRole::kActivation;
  Layout layout;
  ParamId param = {};
  SourceId source = {};
  LossId loss = {};
  TallyKind tally = TallyKind::kRouter;                  // of kTally
  ScaleRounding scale_rounding = ScaleRounding::kExact;  // of kParamScales
};

struct ProgramOp {
  KernelOp op;
  std::string label;
  UnitId unit;
  bool recomputed = false;  // see Node
  // Of what is done to rows between two exchanges, the exchanges included: the strip. The planner
  // issues it with the exchanges (strips.h). -1: any other op.
  int strip = -1;
};

// One microbatch. Views name Program::buffers. A gradient's first contribution in program order
// (forward, then backward) overwrites, later ones accumulate; the planner turns the first into
// accumulate for later microbatches. Gradient views have dtype f32 until the planner decides. A
// parameter that no op reads has no buffer, one that the loss does not depend on no gradient
// buffer. Inputs of one source are views of one kInput buffer; its strides over microbatches and
// parity are the planner's.
struct Program {
  // All of the model's, whether this program reads and forms them or not.
  std::vector<InputSource> sources;
  std::vector<LossSpec> losses;
  std::vector<ProgramBuffer> buffers;
  std::vector<ProgramOp> prologue, forward, backward;
  std::vector<std::string> choices;  // what was fused or chosen and why, one line each, for `plan`

  const ProgramBuffer& buffer(BufferId id) const { return buffers[static_cast<size_t>(id.value)]; }
  IdRange<BufferId> buffer_ids() const { return IdsOf<BufferId>(buffers.size()); }
  const InputSource& source(SourceId id) const { return sources[static_cast<size_t>(id.value)]; }
};

// Rows of logits that exist at once, of `rows` in all. kCpu: 512, what stays in cache. kCuda: equal
// chunks whose logits take at most 1 GiB: each chunk adds its product to the whole f32 weight
// gradient, and that traffic must stay small beside the product itself.
int64_t LossChunkRows(Backend backend, int64_t rows, int64_t padded_vocab, DType logits);

Program Lower(const SemanticGraph& graph, const LowerOptions& options);
std::string ToString(const Program& program);

}  // namespace millrace

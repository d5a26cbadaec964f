// What a model consists of: its shape, and ordered FSDP units, each with named parameters. Built by
// models/, an immutable value.
//
// Invariants (checked by ValidateModelSpec): names of units, parameters, inputs and losses are
// unique, dims positive, padded_rows >= dims[0]; splits are of different dims and axes, and a split
// of the rows leaves no padded rows; inputs of one source have one dtype; a loss names i32 targets
// among the inputs, and f32 weights and log-probabilities where it has any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/loss_ops.h"
#include "runtime/base/dtype.h"
#include "runtime/base/mesh.h"
#include "runtime/plan/layout/model_shape.h"
#include "runtime/plan/layout/update_rule.h"

namespace millrace {

// param_init.h has the formulas.
enum class InitKind {
  kNormal,
  kOnes,
  kZeros,
  kLogIndex,  // log(1 + i): decay rates of a scan's heads
  kStepBias   // softplus of it is log-uniform: step sizes of a scan's heads
};

// Which row of the precision policy a parameter follows.
enum class ParamKind {
  kMatrix,
  kNorm,
  kF32  // f32 whatever the policy: what goes into exponents
};

// A dim of a parameter that is cut over the ranks of `axes` instead of being whole on each: of
// every part the rank at place i of n has the i-th of n equal pieces, and the pieces end to end.
struct Split {
  AxisSet axes;  // of context, expert, tensor
  int dim = 0;
  // Blocks that lie fused along `dim`, in order (q|k|v, gate|up, z|x|B|C|dt): together the dim.
  // Empty: one.
  std::vector<int64_t> parts;
  bool operator==(const Split&) const = default;
};

struct ParamSpec {
  std::string name;           // unique in the model: "h.0.attn.qkv.weight"
  std::vector<int64_t> dims;  // logical shape: [n], [out, in], or [experts, out, in]
  int64_t padded_rows = 0;    // rows stored (>= dims[0]); rows beyond dims[0] are zero for ever
  InitKind init = InitKind::kNormal;
  double init_std = 0.02;
  bool decay = false;  // weight decay applies
  ParamKind kind = ParamKind::kMatrix;
  std::vector<Split> splits = {};  // over axes of one rank: no split
  // A matrix between hidden states, or one for each expert: what Muon is for. Its rows are those of
  // several matrices where these lie fused (q|k|v, gate|up); empty: of one.
  bool hidden = false;
  std::vector<int64_t> fused = {};
  UpdateRule update = UpdateRule::kAdamW;
  LoadBalance balance = {};  // of UpdateRule::kBalance
  bool trainable = true;     // false: stays as it began; has no gradient and no state but itself

  int64_t row_numel() const {
    int64_t numel = 1;
    for (size_t d = 1; d < dims.size(); ++d) numel *= dims[d];
    return numel;
  }
  int64_t numel() const { return dims[0] * row_numel(); }
  int64_t stored_numel() const { return padded_rows * row_numel(); }
  bool operator==(const ParamSpec&) const = default;
};

// What a unit is to the planner. Blocks take turns in the slots of the bucket pool and may be
// computed again; the others do not.
enum class UnitRole {
  kEmbedding,
  kBlock,
  kHead,
  kShared  // small parameters of several units: gathered once, and kept for the step
};

struct UnitSpec {
  std::string name;  // "embed", "h.0", "head"; a label: nothing depends on its text
  std::vector<ParamSpec> params;
  // kBlock: a transformer block, or several merged into one unit.
  UnitRole role = UnitRole::kBlock;
  bool operator==(const UnitSpec&) const = default;
};

// What the host gives for each microbatch, [B,T] of `dtype`. Inputs of one source are views of one
// buffer, which the host fills: [B, T + n], n the largest shift among them. This one begins `shift`
// columns in. Of its last columns the host gives none of the last `filled`: they are -1, or 0.0,
// which do not count as a target and as a weight.
struct InputSpec {
  std::string name;  // "tokens", "targets", "loss_weights"
  DType dtype = DType::kI32;
  std::string source;
  int64_t shift = 0;
  int64_t filled = 0;  // at most `shift`
  bool operator==(const InputSpec&) const = default;
};

// A buffer that the host fills: [B, T + extra - filled] for each microbatch, and behind that what
// does not count.
struct InputSource {
  std::string name;
  DType dtype = DType::kI32;
  int64_t extra = 0;
  int64_t filled = 0;
  bool weighs = false;  // weights of a loss's targets
  bool operator==(const InputSource&) const = default;
};

// Names of f32 inputs that make a loss a policy gradient (CrossEntropyOp).
struct PolicyInputs {
  PolicyLoss loss;
  std::string old_logprobs = "old_logprobs", advantages = "advantages";
  std::string reference_logprobs = {};  // "": none, and loss.kl is 0
  bool operator==(const PolicyInputs&) const = default;
};

// A term of the loss: `weight` times its sum over the step's targets, divided by the count of valid
// tokens, which is the same for all terms. Each has a cell of its own in a step's statistics.
struct LossSpec {
  std::string name;
  double weight = 1;
  std::string targets = "targets";  // an input; a target < 0 does not count
  bool held_out = true;             // part of the loss that evaluation gives
  // An f32 input: what each target's loss is multiplied by. "": 1. The host gives weights whose sum
  // over the step is the count of valid tokens, so that the loss is their mean (Engine::Enqueue).
  std::string weights = {};
  // In training; evaluation has the cross entropy of the same weights.
  std::optional<PolicyInputs> policy = {};
  bool operator==(const LossSpec&) const = default;
};

// A language model's: "tokens", and "targets", which are the tokens, one on; "loss". Not written as
// ModelSpec's own values: each source that includes this would compile the vectors' construction.
std::vector<InputSpec> LanguageModelInputs();
std::vector<LossSpec> LanguageModelLosses();

struct ModelSpec : ModelShape {
  int64_t padded_vocab = 0;
  std::vector<UnitSpec> units;
  std::vector<InputSpec> inputs = LanguageModelInputs();
  std::vector<LossSpec> losses = LanguageModelLosses();
  bool operator==(const ModelSpec&) const = default;
};

// In the order of their first inputs.
std::vector<InputSource> SourcesOf(const std::vector<InputSpec>& inputs,
                                   const std::vector<LossSpec>& losses);

// Of the part of a parameter that each rank holds: the dims, those that are split by the ranks of
// their axes. Error(kConfig): a part that they do not divide.
std::vector<int64_t> LocalDims(const ParamSpec& param, const Mesh& mesh);

// Error(kInternal) naming the unit, parameter, input or loss that breaks an invariant above.
void ValidateModelSpec(const ModelSpec& spec);
void ValidateParam(const ParamSpec& param);
std::string ToString(const ModelSpec& spec);

}  // namespace millrace

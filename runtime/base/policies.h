// The choices of a run that several layers know: one enum per policy, with its names.
// Configuration, plan, kernels and reports share these types, so that a choice passes from a key to
// an op without being translated.
//
// Names    NamesOf lists them in the order of the enumerators; Name(value) gives one. They are what
//          JSON, plans and reports say: a contract.
// Values   The numbers of GraphMode, ScheduleKind and ActivationKind are in a plan's text, hence in
//          its hash: new enumerators come at the end.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace millrace {
namespace internal {

template <size_t n>
using NameList = std::array<std::string_view, n>;

}  // namespace internal

// When the gathered weights of a flat parameter are given up: after the step, after its backward,
// or after its forward, to be gathered again for its backward. kAuto: the planner keeps as many
// blocks as fit; what it decides for a flat parameter is never kAuto.
enum class Reshard { kNever, kAfterBackward, kAfterForward, kAuto };
constexpr auto NamesOf(Reshard) {
  return internal::NameList<4>{"never", "after_backward", "after_forward", "auto"};
}

// Where the f32 master shard becomes the compute dtype. kInGather: per gather, by the collective
// itself (Communicator::RoundsInGathers).
enum class Downcast { kAfterGather, kPerGather, kInGather, kAfterUpdate };
constexpr auto NamesOf(Downcast) {
  return internal::NameList<4>{"after_gather", "per_gather", "in_gather", "after_update"};
}

// After which microbatches gradients are reduced.
enum class GradSync { kEvery, kLast };
constexpr auto NamesOf(GradSync) { return internal::NameList<2>{"every", "last"}; }

// How the gradients of parameters come into their bucket: copied in every microbatch, copied in the
// last, or formed there.
enum class GradConcat { kEvery, kLast, kDirect };
constexpr auto NamesOf(GradConcat) { return internal::NameList<3>{"every", "last", "direct"}; }

// How lifetimes become addresses: runtime/plan/pool/allocator.h.
enum class AllocatorKind { kPacked, kColoured, kMaxPool, kFixed, kPersistent, kDynamic };
constexpr auto NamesOf(AllocatorKind) {
  return internal::NameList<6>{"packed", "coloured", "max_pool", "fixed", "persistent", "dynamic"};
}

// What every block unit's backward computes again: nothing, norms and activations, everything of a
// block from its input, or what a search finds (runtime/plan/schedule/recompute.h).
enum class Recompute { kNone, kNorms, kBlock, kAuto };
constexpr auto NamesOf(Recompute) {
  return internal::NameList<4>{"none", "norms", "block", "auto"};
}

// What the products of linears in block units multiply (kernels/ops/fp8_ops.h): operands in the
// compute dtype; in FP8 with a scale per tensor; in FP8 with a scale per block along the sum.
enum class LinearEncoding { kCompute, kFp8Tensor, kFp8Block };
constexpr auto NamesOf(LinearEncoding) {
  return internal::NameList<3>{"compute", "fp8_tensor", "fp8_block"};
}

// What gathers of these linears' weights carry: weights in the compute dtype, which each product
// quantizes; or, where linears are in FP8, payloads that each rank has made of its shard.
enum class WeightGather { kCompute, kLinear };
constexpr auto NamesOf(WeightGather) { return internal::NameList<2>{"compute", "linear"}; }

enum class ModelFamily { kGpt2, kLlama, kQwen3, kQwen3Moe, kNemotronH };
constexpr auto NamesOf(ModelFamily) {
  return internal::NameList<5>{"gpt2", "llama", "qwen3", "qwen3_moe", "nemotron_h"};
}

// gelu is the tanh approximation (Hugging Face: gelu_new); swiglu, gated by silu, has two columns
// of input for each of output; relu2 is relu(x)^2.
enum class ActivationKind { kGelu, kSwiglu, kRelu2 };
constexpr auto NamesOf(ActivationKind) { return internal::NameList<3>{"gelu", "swiglu", "relu2"}; }
constexpr bool IsGated(ActivationKind kind) { return kind == ActivationKind::kSwiglu; }

// How a router's logits become scores: over all experts, or of each expert by itself.
enum class RouterKind { kSoftmax, kSigmoid };
constexpr auto NamesOf(RouterKind) { return internal::NameList<2>{"softmax", "sigmoid"}; }

// Who chooses a token's experts: the router; or, in benchmarks, a pattern that gives each expert as
// many tokens as any other.
enum class GateKind { kRouter, kBalanced };
constexpr auto NamesOf(GateKind) { return internal::NameList<2>{"router", "balanced"}; }

// The auxiliary loss that evens the experts' loads: none; Switch's, of each layer; the same of each
// sequence; Hugging Face's, of the means over all layers.
enum class AuxLossKind { kNone, kSwitch, kSequence, kPooled };
constexpr auto NamesOf(AuxLossKind) {
  return internal::NameList<4>{"none", "switch", "sequence", "pooled"};
}

// Of the learning rate; wsd: warm-up, stable, decay.
enum class ScheduleKind { kConstant, kCosine, kWsd };
constexpr auto NamesOf(ScheduleKind) { return internal::NameList<3>{"constant", "cosine", "wsd"}; }

// What an orthogonal matrix of Muon's is multiplied by, beside the learning rate:
// sqrt(max(1, rows / columns)) (Keller Jordan), or 0.2 * sqrt(max(rows, columns)), which has the
// size of AdamW's updates (arXiv 2502.16982).
enum class MuonAdjust { kOriginal, kMatchRmsAdamW };
constexpr auto NamesOf(MuonAdjust) { return internal::NameList<2>{"original", "match_rms_adamw"}; }

// How much of a step is replayed as one graph.
enum class GraphMode { kStep, kMicrobatch, kOff };
constexpr auto NamesOf(GraphMode) { return internal::NameList<3>{"step", "microbatch", "off"}; }

// When the blocks of the next kernel of a graph may take their places: when the kernel before is
// complete and its writes are visible, when its blocks have ended (or it says so), or when they
// have begun. kernels/cuda/launch.h.
enum class EarlyLaunch { kOff, kEnd, kBegin };
constexpr auto NamesOf(EarlyLaunch) { return internal::NameList<3>{"off", "end", "begin"}; }

enum class DataKind { kText, kTokens, kSynthetic };
constexpr auto NamesOf(DataKind) { return internal::NameList<3>{"text", "tokens", "synthetic"}; }

// Whether a run goes on from its newest checkpoint: where there is one, or else fails, or never.
enum class ResumePolicy { kAuto, kMust, kNever };
constexpr auto NamesOf(ResumePolicy) { return internal::NameList<3>{"auto", "must", "never"}; }

// Of every enum with NamesOf, those of runtime/config/enum_names.h included.
template <typename E>
requires requires { NamesOf(E{}); }
constexpr std::string_view Name(E value) { return NamesOf(value).at(static_cast<size_t>(value)); }

}  // namespace millrace

// FP8 operands of linears while a graph is lowered: payload and scales of a value, in the form that
// a product needs, made by a quantize op where the form is first asked for and shared by whoever
// asks later. What a forward made is there for its backward; but weights, which are gathered again,
// are quantized again, and so is what is computed again.
//
//              scales                                          activations, weights   gradients
// kFp8Tensor   one of all that the rank has                    e4m3                   e5m2
// kFp8Block    powers of two: of 128 elements along the sum;   e4m3                   e4m3
//              of a weight, of 128 x 128
//
// Weights that are gathered in FP8 (LowerOptions::gather) come as payload and scales that fit the
// forward's sum: no op quantizes them. On the CPU the other sum reads the same ones; on CUDA an op
// turns them.
//
// On CUDA what is summed lies in lines (kernels/ops/cuda_float8.h), so that each sum has a payload
// of its own: of an activation or a gradient, the one for the other sum comes from the same op.
//
// A scale of all that the rank has needs the largest magnitude before the first payload. What
// writes the value, or reads all of it before, forms that on its way (Magnitudes), so that
// quantizing reads the value once; where nothing does, the quantize op looks for it.
//
// An activation that is quantized in blocks and read in no other way is formed while it is
// quantized, and stored nowhere. Not by a scale of all: it would be formed twice, for the magnitude
// and for payloads, which takes longer than to write and read it (tools/bench/README.md, "FP8 on
// one H100").
//
// The formats are those of NVIDIA's recipes (Float8CurrentScaling, Float8BlockScaling): gradients
// need e5m2's range only where a whole tensor shares a scale.
#pragma once

#include <compare>
#include <map>
#include <optional>

#include "runtime/base/id_vector.h"
#include "runtime/base/policies.h"
#include "runtime/plan/graph/semantic_graph.h"
#include "runtime/plan/lower/lower.h"

namespace millrace {

class Lowering;

// One operand of a product: a value, or its transpose.
struct Factor {
  enum class Kind { kActivation, kGradient, kWeight };
  ValueId value;
  Kind kind = Kind::kActivation;
  bool transposed = false;
  bool both_ways = false;  // another product sums the value along its other dim
};

struct QuantizedView {
  View payload, scales;
};

// An activation that is formed while it is quantized, of the value x: nothing else reads it.
struct ActivationSource {
  ValueId x;
  ActivationKind kind;
};

class QuantizedViews {
 public:
  // Along which of its dims products sum it.
  enum class Along { kColumns, kRows, kEither };
  struct Form {
    ValueId value;
    DType dtype;
    Along along;
    auto operator<=>(const Form&) const = default;
  };

  QuantizedView& operator[](const Form& form) { return made_[form]; }
  QuantizedView& Gathered(ValueId weight) { return gathered_[weight]; }
  std::map<ValueId, ActivationSource>& activations() { return activations_; }
  void ForgetWeights(const SemanticGraph& graph) {
    std::erase_if(made_, [&](const auto& made) {
      return graph.value(made.first.value).role == ValueRole::kParam;
    });
  }

 private:
  std::map<Form, QuantizedView> made_;
  std::map<ValueId, QuantizedView> gathered_;
  std::map<ValueId, ActivationSource> activations_;
};

// The largest magnitudes of the values of a graph that are quantized by one scale: elements of one
// buffer, which is zeroed at the beginning of the forward.
class Magnitudes {
 public:
  explicit Magnitudes(const SemanticGraph& graph);

  // Whether all nodes that read the value quantize it in blocks.
  bool OnlyInBlocks(ValueId value) const { return in_blocks_[value] && !read_otherwise_[value]; }
  // For an op that has all of the value to leave it in; absent where nobody wants it, or has it.
  View Form(Lowering& l, ValueId value);
  // As formed so far; absent: not yet.
  View Of(ValueId value) const;
  // Before all else in the program; none where no op forms one.
  std::optional<ProgramOp> Zero(const SemanticGraph& graph) const;

 private:
  struct Place {
    int64_t at = -1;  // in the buffer; none: nobody wants it
    bool formed = false;
  };
  IdVector<ValueId, Place> places_;
  IdVector<ValueId, char> in_blocks_, read_otherwise_;
  int64_t count_ = 0;
  View all_;
};

// Whether `out`, the activation of x, can be left to who quantizes it.
bool CanLeaveActivation(Lowering& l, ValueId x, ActivationKind kind, ValueId out);
// Leaves it: it has no storage, but x has, as long as it is read.
void LeaveActivation(Lowering& l, ValueId x, ActivationKind kind, ValueId out);

// Sets a, b and, where they are FP8, what goes with them of a product of `node`.
void SetFactors(Lowering& l, const Node& node, LinearEncoding encoding, const Factor& a,
                const Factor& b, MatmulOp<View>* product);

}  // namespace millrace

// What a kind of node is: its name and what each pass over a graph does with it. A definition and
// the function that models call to emit such nodes share a file of runtime/plan/nodes, or of the
// model that brings its own. Nodes point to their definition; two are of one kind when they point
// to the same. No pass lists the kinds.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

class Differentiator;
class Fuser;
class Lowering;
struct Node;
struct SemanticGraph;
struct Step;

// What it means to compute a node's outputs again in the backward instead of keeping them.
enum class RecomputeClass {
  kCheap,  // a pass over its operands: each kind is recomputed, or not, on its own
  kDear,   // a product, or what pays only together with all else of its block
  // Its outputs are other ranks' values, or follow from these with room for more rows than come:
  // formed again, not kept. Those with `received` are kept where bytes are free (schedule/
  // kept_exchanges.h).
  kExchange,
  kNever,  // always kept
};

// Model FLOPs per token; a multiply-add is 2. They differ by which pairs of positions attention
// counts: those a kernel that skips the upper triangle has to compute, or the whole square.
struct FlopsPerToken {
  double causal = 0, full = 0;
  bool operator==(const FlopsPerToken&) const = default;
};

struct NodeDef {
  std::string_view name;  // in texts and messages; "norm"
  RecomputeClass recompute = RecomputeClass::kNever;

  // Emits the gradient nodes of a forward node (gradients.h): mostly of kinds of their own, each
  // with a definition that lowers them (gathers and scatters are each other's). What several nodes
  // contribute is summed there, and what leads to nothing that is trained left out. Null: none, and
  // none may be asked for, as of a gradient node.
  void (*gradient)(Differentiator& d, const Node& node) = nullptr;
  // Emits the kernel ops of a node and of what it has absorbed (lower/lowering.h). All have it.
  void (*lower)(Lowering& lowering, const Step& step) = nullptr;
  // Absorbs another node, where one op computes both (lower/fusion.h). Null: never.
  void (*fuse)(Fuser& fuser, int position) = nullptr;
  // Of an exchange whose outputs are live to the last row: bytes that a rank receives for them.
  // Null: they are never kept, for want of such rows or because no byte comes from another rank.
  int64_t (*received)(const SemanticGraph& graph, const Node& node) = nullptr;
  // Of the forward; model_flops.h. Null: 0.
  FlopsPerToken (*flops)(const SemanticGraph& graph, const Node& node) = nullptr;
};

}  // namespace millrace

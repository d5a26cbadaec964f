#include "runtime/plan/graph/semantic_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/plan/graph/graph_edit.h"

namespace millrace {

ValueId ParamGradOf(SemanticGraph& graph, ValueId param) {
  const ParamId of = graph.value(param).param;
  for (const ValueId id : graph.value_ids())
    if (graph.value(id).role == ValueRole::kParamGrad && graph.value(id).param == of) return id;
  return AddParamGrad(graph, param);
}

ValueId AddParamGrad(SemanticGraph& graph, ValueId param) {
  const Value& of = graph.value(param);
  return AddValue(graph, Value{.name = fmt::format("d({})", of.name),
                               .role = ValueRole::kParamGrad,
                               .dtype = DType::kF32,
                               .dims = of.dims,
                               .param = of.param,
                               .trained = of.trained});
}

namespace {

std::string Described(const SemanticGraph& graph, ValueId id) {
  const Value& value = graph.value(id);
  return fmt::format("{}:{}[{}]", value.name, Name(value.dtype), fmt::join(value.dims, ","));
}

// "h.0/attn.qkv = linear(h.0/ln_1, ...)" the other way round, as it flows:
// operands -> results += gradients.
std::string Line(const SemanticGraph& graph, const std::vector<std::string>& units,
                 const Node& node) {
  const auto unit = static_cast<size_t>(node.unit.value);
  std::string text =
      fmt::format("  {:<8} {:<28} {}(", node.unit && unit < units.size() ? units[unit] : "-",
                  node.label, node.kind->name);
  const char* separator = "";
  for (const ValueId input : node.inputs) {
    text += fmt::format("{}{}", separator, input ? graph.value(input).name : "-");
    separator = ", ";
  }
  text += ")";
  separator = " -> ";
  for (const ValueId output : node.outputs)
    if (output) {
      text += separator + Described(graph, output);
      separator = ", ";
    }
  separator = "  grad ";
  for (const ValueId grad : node.grads)
    if (grad) {
      text += separator + graph.value(grad).name;
      separator = ", ";
    }
  return text + "\n";
}

}  // namespace

std::vector<RowStrip> StripsOf(const SemanticGraph& graph, const Value& value) {
  const AxisSet axes = value.placement.Cut(0);
  const bool exchanged = graph.mesh.Size(Axis::kTensor) > 1;
  const int64_t strips = exchanged ? graph.shape.strips : 1, rows = value.dims[0] / strips,
                apart = rows * graph.mesh.Size(axes);
  std::vector<RowStrip> all;
  for (int64_t s = 0; s < strips; ++s)
    all.push_back(
        {s * rows, rows, axes.empty() ? RankInt(s * apart) : RankInt(s * apart, rows, axes)});
  return all;
}

std::string ToString(const SemanticGraph& graph) {
  std::string text =
      fmt::format("batch {}, seq {}, vocab {}\n", graph.shape.batch, graph.shape.seq, graph.vocab);
  const auto section = [&](const char* title, const std::vector<Node>& nodes) {
    if (nodes.empty()) return;
    text += fmt::format("{}\n", title);
    for (const Node& node : nodes) text += Line(graph, graph.unit_names, node);
  };
  section("prologue", graph.prologue);
  section("forward", graph.forward);
  section("backward", graph.backward);
  return text;
}

}  // namespace millrace

// Which buffer holds each value while a graph is lowered, step by step in program order. A result
// takes over the buffer of a value that nobody reads any more where its op allows that; a
// parameter's gradient knows whether it has had its first contribution.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/id_vector.h"
#include "runtime/plan/graph/semantic_graph.h"
#include "runtime/plan/lower/fusion.h"
#include "runtime/plan/lower/lower.h"

namespace millrace {

class ValueStorage {
 public:
  ValueStorage(const SemanticGraph& graph, const FusedGraph& fused);

  // Views in the value's own dense layout, an input's in its source; an absent value gives an
  // absent view.
  View Read(ValueId id);
  View Write(ValueId id);
  // Writes `id` into the buffer of `old`, see CanReplace.
  View WriteOver(ValueId id, ValueId old);
  // Same bytes, an activation, and no step after this one reads it?
  bool CanReplace(ValueId old, ValueId id) const;
  // Who reads `instead` reads `id`.
  void KeepAsLongAs(ValueId id, ValueId instead) {
    last_read_[id] = std::max(last_read_[id], last_read_[instead]);
  }
  bool ReadLater(ValueId id) const { return last_read_[id] > step_; }
  // A parameter's gradient: overwritten by its first contribution in program order,
  // accumulated by later ones.
  View Grad(ValueId id, Update& update);

  // A parameter as it is gathered in FP8, in place of Read: its payload, and scales so laid out.
  View Payload(ValueId param, DType dtype);
  View PayloadScales(ValueId param, const Layout& layout, ScaleRounding rounding);

  View Scalars();
  // A place of its own for what a step tallies; the op that writes it has an Update.
  View Tally(std::string name, TallyKind kind, Layout layout) {
    const BufferId id = AddBuffer(std::move(name), ProgramRole::kTally, layout);
    buffers_[static_cast<size_t>(id.value)].tally = kind;
    return Whole(id);
  }
  View Overflow(std::string name) {
    return Whole(AddBuffer(std::move(name), ProgramRole::kOverflow, DenseLayout(DType::kF32, {1})));
  }
  // A buffer that is no value of the graph: contents within one step.
  View Temporary(std::string name, Layout layout) {
    return Whole(AddBuffer(std::move(name), ProgramRole::kActivation, layout));
  }

  void NextStep() { ++step_; }
  const std::vector<ProgramBuffer>& buffers() const { return buffers_; }
  std::vector<ProgramBuffer> TakeBuffers() && { return std::move(buffers_); }

 private:
  const Value& value(ValueId id) const { return graph_.value(id); }
  BufferId AddBuffer(std::string name, ProgramRole role, Layout layout, ParamId param = {});
  View Whole(BufferId id) const {
    return View{.buffer = id, .layout = buffers_[static_cast<size_t>(id.value)].layout};
  }
  View ViewOf(BufferId buffer, ValueId id) const;
  View Input(const InputSpec& input);

  const SemanticGraph& graph_;
  std::vector<ProgramBuffer> buffers_;
  IdVector<ValueId, BufferId> storage_;
  IdVector<ValueId, int> last_read_;     // the last step that reads it; -1 never
  IdVector<ValueId, char> contributed_;  // a parameter gradient after its first contribution
  const std::vector<InputSource> sources_;
  IdVector<SourceId, BufferId> source_buffers_;  // once read
  BufferId scalars_;
  int step_ = 0;
};

}  // namespace millrace

// What the eager walk and the recorded step know of the ops of a schedule in their order of issue.
// Internal to the executor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/exec/executor.h"

namespace millrace {

// Numbers the ops that some edge waits for. Key: (entry, op).
using EventMap = std::map<std::pair<int32_t, int32_t>, size_t>;

inline EventMap NumberEvents(const std::vector<Entry>& schedule) {
  EventMap events;
  for (const Entry& entry : schedule)
    for (const Edge& edge : entry.edges)
      events.try_emplace({edge.from_entry, edge.from_op}, events.size());
  return events;
}

// Of the ops of one body, in order.
class OpMarker {
 public:
  explicit OpMarker(int64_t first_index) : index_(first_index) {}

  OpMark Next(const PlanOp& op) {
    OpMark mark{index_++, op.unit.value, IsCollective(op.op), false};
    if (op.stream != StreamId::kCompute) return mark;
    mark.boundary = first_ || unit_ != op.unit;
    first_ = false;
    unit_ = op.unit;
    return mark;
  }

 private:
  int64_t index_;
  bool first_ = true;
  UnitId unit_;
};

// What a collective's order is known by, on its communicator; the step comes with the run.
struct IssuedCollective {
  OrderLog::Kind kind = OrderLog::Kind::kAllGather;
  AxisSet axes;
  int64_t bytes = 0;
};

inline std::optional<IssuedCollective> CollectiveOf(const BoundOp& op) {
  if (const auto* gather = std::get_if<AllGatherOp<TensorView>>(&op))
    return IssuedCollective{OrderLog::Kind::kAllGather, gather->axes, gather->full.bytes()};
  if (const auto* reduce = std::get_if<ReduceScatterOp<TensorView>>(&op))
    return IssuedCollective{OrderLog::Kind::kReduceScatter, reduce->axes, reduce->full.bytes()};
  if (const auto* reduce = std::get_if<AllReduceOp<TensorView>>(&op))
    return IssuedCollective{OrderLog::Kind::kAllReduce, reduce->axes, reduce->buffer.bytes()};
  if (const auto* exchange = std::get_if<AllToAllOp<TensorView>>(&op))
    return IssuedCollective{OrderLog::Kind::kAllToAll, exchange->axes, exchange->sent.bytes()};
  return std::nullopt;
}

}  // namespace millrace

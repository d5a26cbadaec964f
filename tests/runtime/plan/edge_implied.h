// Which edges a plan could do without: a mutation that drops one of these is none.
#pragma once

#include <vector>

#include "runtime/plan/check/happens_before.h"
#include "runtime/plan/step_plan.h"

namespace millrace {

// Is edge `edge_index` of schedule[entry_index] implied by stream order and the other edges?
inline bool EdgeImplied(const StepPlan& plan, const std::vector<Entry>& schedule, int entry_index,
                        int edge_index) {
  HappensBefore order;
  std::vector<int32_t> first_of_entry, waits;
  int32_t next = 0;
  const Edge& removed =
      schedule[static_cast<size_t>(entry_index)].edges[static_cast<size_t>(edge_index)];
  for (const Entry& entry : schedule) {
    first_of_entry.push_back(next);
    const Body& body = plan.bodies[static_cast<size_t>(entry.body)];
    auto edge = entry.edges.begin();
    for (size_t o = 0; o < body.ops.size(); ++o, ++next) {
      waits.clear();
      for (; edge != entry.edges.end() && edge->to_op == static_cast<int32_t>(o); ++edge)
        if (&*edge != &removed)
          waits.push_back(first_of_entry[static_cast<size_t>(edge->from_entry)] + edge->from_op);
      order.Append(body.ops[o].stream, waits);
    }
  }
  return order(first_of_entry[static_cast<size_t>(removed.from_entry)] + removed.from_op,
               first_of_entry[static_cast<size_t>(entry_index)] + removed.to_op);
}

}  // namespace millrace

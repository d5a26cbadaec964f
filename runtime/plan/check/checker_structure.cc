#include "runtime/plan/check/checker_structure.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "runtime/plan/check/access_table.h"
#include "runtime/plan/schedule/constants.h"
#include "runtime/plan/schedule/stream_clock.h"

namespace millrace {
namespace {

// null: there is none.
const PlanOp* OpAt(const std::vector<PlanOp>& ops, int32_t index) {
  const auto i = static_cast<size_t>(index);
  return i < ops.size() ? &ops[i] : nullptr;
}

class Structure {
 public:
  Structure(const StepPlan& plan, const Mesh& mesh, int accumulate, Violations* found)
      : plan_(plan), mesh_(mesh), accumulate_(accumulate), found_(found) {}

  void Run() {
    Bodies();
    Schedule(plan_.schedule, "schedule");
    Schedule(plan_.prologue, "prologue");
    Microbatches();
    Addresses();
    if (found_->empty()) Overlaps();
    Buckets();
    Communicators();
    Constants();
  }

 private:
  void Report(ViolationKind kind, std::string message) {
    found_->push_back({kind, std::move(message)});
  }

  void Bodies() {
    int64_t begin = 0;
    for (const Body& body : plan_.bodies) {
      if (body.begin != begin)
        Report(ViolationKind::kStructure,
               fmt::format("body {} begins at position {}, the one before ends at {}", body.name,
                           body.begin, begin));
      begin = body.end();
      for (size_t o = 0; o < body.ops.size(); ++o)
        if (!IsStream(body.ops[o].stream))
          Report(ViolationKind::kStructure,
                 fmt::format("op {} of body {} is on stream {}, of {}", o, body.name,
                             static_cast<int>(body.ops[o].stream), kMostStreams));
    }
  }

  void Constants() {
    const StepWrites writes(plan_);
    for (const Body& body : plan_.bodies)
      for (const PlanOp& op : body.ops) {
        const auto* row = std::get_if<RowLinearOp<View>>(&op.op);
        const auto* product = std::get_if<MatmulOp<View>>(&op.op);
        if ((row != nullptr && row->constant && !writes.AreConstant(*row)) ||
            (product != nullptr && product->constant && !writes.AreConstant(*product)))
          Report(ViolationKind::kStructure,
                 fmt::format("{} reads early what an op of the step writes", op.label));
        const auto* attention = std::get_if<CachedAttentionOp<View>>(&op.op);
        if (attention != nullptr && !writes.FindsItsCache(*attention))
          Report(ViolationKind::kStructure,
                 fmt::format("{} reads early what another op of the step writes", op.label));
      }
  }

  void Schedule(const std::vector<Entry>& schedule, const char* which) {
    for (size_t e = 0; e < schedule.size(); ++e) {
      const Entry& entry = schedule[e];
      const auto bad = [&](const std::string& what) {
        Report(ViolationKind::kStructure, fmt::format("{} entry {}: {}", which, e, what));
      };
      if (entry.body < 0 || static_cast<size_t>(entry.body) >= plan_.bodies.size()) {
        bad(fmt::format("body {} of {}", entry.body, plan_.bodies.size()));
        return;
      }
      if (entry.microbatch < 0 || entry.microbatch >= accumulate_)
        bad(fmt::format("microbatch {} of {}", entry.microbatch, accumulate_));
      const std::vector<PlanOp>& ops = plan_.body(entry).ops;
      int32_t last = 0;
      for (const Edge& edge : entry.edges) {
        const auto text = [&] {
          return fmt::format("edge {} <- {}.{}", edge.to_op, edge.from_entry, edge.from_op);
        };
        if (edge.to_op < last) bad(text() + " is out of order");
        last = std::max(last, edge.to_op);
        const auto from_entry = static_cast<size_t>(edge.from_entry);  // below 0: too many
        const PlanOp* const to = OpAt(ops, edge.to_op);
        const PlanOp* const from =
            from_entry > e ? nullptr : OpAt(plan_.body(schedule[from_entry]).ops, edge.from_op);
        if (to == nullptr || from == nullptr) {
          bad(text() + " names an op that does not exist");
          continue;
        }
        if (from_entry == e && edge.from_op >= edge.to_op) bad(text() + " waits for a later op");
        if (from->stream == to->stream) bad(text() + " joins two ops of one stream");
      }
    }
  }

  // A step takes each of its microbatches as often as the others.
  void Microbatches() {
    if (!plan_.updates() || !found_->empty()) return;
    std::vector<bool> looks(plan_.bodies.size());  // at what differs between microbatches
    for (size_t b = 0; b < plan_.bodies.size(); ++b)
      for (const PlanOp& op : plan_.bodies[b].ops)
        ForEachUse(op.op, [&](const View& view, Access, std::string_view) {
          if (view.microbatch_stride != 0) looks[b] = true;
        });
    std::vector<int> entries(static_cast<size_t>(accumulate_));
    for (const Entry& entry : plan_.schedule)
      entries[static_cast<size_t>(entry.microbatch)] += looks[static_cast<size_t>(entry.body)];
    for (size_t m = 1; m < entries.size(); ++m)
      if (entries[m] != entries[0])
        Report(ViolationKind::kMicrobatch,
               fmt::format("the schedule takes microbatch {} in {} entries, microbatch 0 in {}", m,
                           entries[m], entries[0]));
  }

  void Addresses() {
    for (const PlanBuffer& buffer : plan_.buffers) {
      const bool persistent = IsState(buffer.scope);
      if (buffer.offsets.empty() && buffer.live.empty()) continue;  // planned, but no op needs it
      if (buffer.offsets.size() != 1 && buffer.offsets.size() != buffer.live.size())
        Report(ViolationKind::kStructure,
               fmt::format("{} has {} addresses for {} live ranges", buffer.name,
                           buffer.offsets.size(), buffer.live.size()));
      for (const int64_t offset : buffer.offsets) {
        const int64_t low = persistent ? 0 : plan_.persistent_bytes,
                      high = persistent ? plan_.persistent_bytes : plan_.arena_bytes;
        if (offset < low || offset + buffer.bytes > high)
          Report(ViolationKind::kBounds,
                 fmt::format("{} at [{}, {}) leaves its part of the arena, [{}, {})", buffer.name,
                             offset, offset + buffer.bytes, low, high));
        if (offset % kArenaAlignment != 0)
          Report(ViolationKind::kBounds, fmt::format("{} at {} is not aligned to {}", buffer.name,
                                                     offset, kArenaAlignment));
      }
      for (size_t i = 0; i < buffer.live.size(); ++i)
        if (buffer.live[i].begin >= buffer.live[i].end ||
            (i > 0 && buffer.live[i].begin < buffer.live[i - 1].end))
          Report(ViolationKind::kStructure,
                 fmt::format("live ranges of {} are empty or out of order", buffer.name));
      if (persistent && (buffer.live.size() != 1 || buffer.live[0].begin > 0 ||
                         buffer.live[0].end < plan_.timeline_end()))
        Report(ViolationKind::kLifetime,
               fmt::format("{} is a state, but not live always", buffer.name));
    }
  }

  // Sweeps the timeline with the live bytes in address order: neighbours may not touch.
  void Overlaps() {
    struct Change {
      int64_t position;
      bool ends;
      int64_t offset;
      const PlanBuffer* buffer;
    };
    std::vector<Change> changes;
    for (const PlanBuffer& buffer : plan_.buffers) {
      if (buffer.bytes == 0) continue;
      for (size_t i = 0; i < buffer.live.size(); ++i) {
        const int64_t offset = buffer.offsets.size() == 1 ? buffer.offsets[0] : buffer.offsets[i];
        changes.push_back({buffer.live[i].begin, false, offset, &buffer});
        changes.push_back({buffer.live[i].end, true, offset, &buffer});
      }
    }
    std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return a.position != b.position ? a.position < b.position : a.ends > b.ends;
    });
    std::map<int64_t, const PlanBuffer*> live;
    for (const Change& change : changes) {
      if (change.ends) {
        const auto it = live.find(change.offset);
        if (it != live.end() && it->second == change.buffer) live.erase(it);
        continue;
      }
      const auto next = live.lower_bound(change.offset);
      const auto clash = [&](const std::pair<const int64_t, const PlanBuffer*>& other) {
        Report(ViolationKind::kOverlap,
               fmt::format("{} at [{}, {}) and {} at [{}, {}) are both live at position {}",
                           change.buffer->name, change.offset, change.offset + change.buffer->bytes,
                           other.second->name, other.first, other.first + other.second->bytes,
                           change.position));
      };
      if (next != live.end() && next->first < change.offset + change.buffer->bytes) clash(*next);
      if (next != live.begin() &&
          std::prev(next)->first + std::prev(next)->second->bytes > change.offset)
        clash(*std::prev(next));
      live.emplace(change.offset, change.buffer);
      if (!found_->empty()) return;
    }
  }

  void Buckets() {
    std::map<int32_t, const PlanBuffer*> first;
    for (const PlanBuffer& buffer : plan_.buffers) {
      if (buffer.group < 0 || buffer.offsets.empty()) continue;
      const auto [it, fresh] = first.try_emplace(buffer.group, &buffer);
      if (buffer.offsets.size() != 1 || buffer.offsets != it->second->offsets)
        Report(ViolationKind::kSticky,
               fmt::format("{} at {} and {} at {} are stays of one bucket", it->second->name,
                           it->second->offsets.front(), buffer.name, buffer.offsets.back()));
    }
  }

  void Communicators() {
    for (size_t b = 0; b < plan_.bodies.size(); ++b) {
      for (size_t o = 0; o < plan_.bodies[b].ops.size(); ++o) {
        const PlanOp& op = plan_.bodies[b].ops[o];
        std::visit(
            [&](const auto& typed) {
              if constexpr (requires {
                              typed.axes;
                              typed.full;
                            }) {
                const int64_t ranks = mesh_.Size(typed.axes);
                const int64_t full = typed.full.layout.numel(), shard = typed.shard.layout.numel();
                if (typed.shard ? full != ranks * shard : full % ranks != 0)
                  Report(ViolationKind::kCollective,
                         fmt::format("{}: full {} against shard {} over {} ranks",
                                     DescribeAt(plan_, static_cast<int>(b), static_cast<int>(o)),
                                     full, shard, ranks));
              }
            },
            op.op);
      }
    }
  }

  const StepPlan& plan_;
  const Mesh mesh_;
  const int accumulate_;
  Violations* found_;
};

}  // namespace

void FindStructuralViolations(const StepPlan& plan, const Mesh& mesh, int accumulate,
                              Violations* found) {
  Structure(plan, mesh, accumulate, found).Run();
}

}  // namespace millrace

#include "runtime/plan/lower/strips.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

// Bytes of a buffer that an op may touch, on any rank.
struct Use {
  BufferId buffer;
  int64_t begin = 0, end = 0;
  bool writes = false;
};

std::vector<Use> UsesOf(const ProgramOp& op) {
  std::vector<Use> uses;
  ForEachUse(op.op, [&](const View& view, Access access, std::string_view) {
    const int64_t begin = view.offset * Bytes(view.layout.dtype);
    const bool same_everywhere = view.rank_stride == 0;
    uses.push_back({view.buffer, same_everywhere ? begin : 0,
                    same_everywhere ? begin + view.layout.span_bytes() : INT64_MAX,
                    Writes(access)});
  });
  return uses;
}

bool Conflict(const std::vector<Use>& a, const std::vector<Use>& b) {
  for (const Use& x : a)
    for (const Use& y : b)
      if (x.buffer == y.buffer && x.begin < y.end && y.begin < x.end && (x.writes || y.writes))
        return true;
  return false;
}

// A product of weight gradients waits in the compute stream for nothing that follows it.
bool ReadsParameters(const std::vector<Use>& uses, const std::vector<ProgramBuffer>& buffers) {
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    return buffers[static_cast<size_t>(use.buffer.value)].role == ProgramRole::kParam;
  });
}

}  // namespace

bool BetweenExchanges(const SemanticGraph& graph, const Value& value) {
  return graph.mesh.Size(Axis::kTensor) > 1 && value.placement.Cut(0).Has(Axis::kTensor);
}

void OrderByStrip(std::vector<ProgramOp>& ops, const std::vector<ProgramBuffer>& buffers) {
  std::vector<std::vector<Use>> uses;
  uses.reserve(ops.size());
  for (const ProgramOp& op : ops) uses.push_back(UsesOf(op));
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].strip < 0) continue;
    size_t to = i;
    const auto passes = [&](size_t other) {
      if (Conflict(uses[i], uses[other])) return false;
      if (ops[other].strip >= 0) return ops[other].strip > ops[i].strip;
      return !IsCollective(ops[other].op) && !ReadsParameters(uses[other], buffers);
    };
    while (to > 0 && passes(to - 1)) --to;
    const auto rotate = [&](auto& all) {
      const auto begin = all.begin();
      std::rotate(begin + static_cast<std::ptrdiff_t>(to), begin + static_cast<std::ptrdiff_t>(i),
                  begin + static_cast<std::ptrdiff_t>(i) + 1);
    };
    rotate(ops);
    rotate(uses);
  }
}

}  // namespace millrace

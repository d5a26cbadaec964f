#include "runtime/plan/check/checker_repetition.h"

#include <algorithm>

namespace millrace {
namespace {

// Is schedule[e] schedule[e - period] one microbatch later, in a repetition that begins at `begin`?
bool IsNext(const std::vector<Entry>& schedule, size_t e, size_t begin, size_t period) {
  const Entry &was = schedule[e - period], &is = schedule[e];
  if (is.body != was.body || is.microbatch != was.microbatch + 1) return false;
  if (e < begin + 2 * period) return true;
  const auto first = static_cast<int32_t>(begin), by = static_cast<int32_t>(period);
  const auto period_before = static_cast<int32_t>(e - (e - begin) % period - period);
  return std::equal(was.edges.begin(), was.edges.end(), is.edges.begin(), is.edges.end(),
                    [&](Edge edge, const Edge& now) {
                      if (edge.from_entry >= first) edge.from_entry += by;
                      return edge == now &&
                             (now.from_entry < first || now.from_entry >= period_before);
                    });
}

bool WaitsForLastPeriodOnly(const std::vector<Entry>& schedule, const ProvenRepetition& repeated) {
  const auto begin = static_cast<int32_t>(repeated.begin),
             last = static_cast<int32_t>(repeated.end - repeated.period);
  return std::all_of(schedule.begin() + static_cast<std::ptrdiff_t>(repeated.end), schedule.end(),
                     [&](const Entry& entry) {
                       return std::all_of(entry.edges.begin(), entry.edges.end(), [&](Edge edge) {
                         return edge.from_entry < begin || edge.from_entry >= last;
                       });
                     });
}

}  // namespace

ProvenRepetition FindRepetition(const std::vector<Entry>& schedule) {
  ProvenRepetition longest;
  for (size_t period = 1; period <= 2; ++period) {
    for (size_t begin = 0; begin + period < schedule.size();) {
      size_t e = begin + period;
      while (e < schedule.size() && IsNext(schedule, e, begin, period)) ++e;
      const size_t periods = (e - begin) / period;
      const ProvenRepetition found{begin, begin + periods * period, period};
      if (periods > 1 && found.end - found.begin > longest.end - longest.begin &&
          WaitsForLastPeriodOnly(schedule, found))
        longest = found;
      // What broke this one off may begin the next.
      begin = std::max(begin + 1, e >= 2 * period ? e - 2 * period + 1 : size_t{0});
    }
  }
  return longest;
}

}  // namespace millrace

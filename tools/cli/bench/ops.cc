#include "tools/cli/bench/ops.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/exec/observe/op_timer.h"
#include "runtime/run/prediction.h"

namespace millrace {
namespace {

double PerSecond(double amount, double ms) { return ms > 0 ? amount / (ms * 1e-3) : 0; }

}  // namespace

std::vector<OpRow> TimeOps(Session& session, const Machine& machine, int steps,
                           const std::function<void(int)>& run_step) {
  Engine& engine = session.engine();
  OpTimer timer(session.device(), [&](StreamId id) -> Stream& { return engine.stream(id); });
  std::map<std::string, std::vector<OpTimer::Sum>> seen;
  {
    const ObserverScope scope(engine, timer);
    for (int step = 0; step < steps; ++step) {
      run_step(step);
      for (const auto& [kind, sum] : timer.Collect()) seen[kind].push_back(sum);
    }
  }
  std::vector<OpRow> rows;
  for (const KindFigures& figures : PredictRun(session, machine).kinds) {
    std::vector<OpTimer::Sum>& sums = seen[figures.kind];
    std::sort(sums.begin(), sums.end(), [](const OpTimer::Sum& a, const OpTimer::Sum& b) {
      return a.milliseconds < b.milliseconds;
    });
    OpRow row{figures.kind,
              0,
              0,
              figures.sum.seconds * 1e3,
              figures.sum.flops,
              static_cast<double>(figures.sum.read_bytes + figures.sum.write_bytes),
              static_cast<double>(figures.sum.wire_bytes)};
    if (!sums.empty()) {
      row.count = sums[sums.size() / 2].count;
      row.ms = sums[sums.size() / 2].milliseconds;
    }
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const OpRow& a, const OpRow& b) { return a.ms > b.ms; });
  return rows;
}

nlohmann::ordered_json OpsJson(const std::vector<OpRow>& rows) {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (const OpRow& row : rows)
    ops.push_back({{"op", row.kind},
                   {"count", row.count},
                   {"ms", row.ms},
                   {"floor_ms", row.floor_ms},
                   {"flops", row.flops},
                   {"memory_bytes", row.bytes},
                   {"wire_bytes", row.wire_bytes}});
  return ops;
}

std::string OpsText(const std::vector<OpRow>& rows) {
  double sum = 0;
  for (const OpRow& row : rows) sum += row.ms;
  std::string text = fmt::format("{:<18}{:>7}{:>11}{:>8}{:>12}{:>10}{:>12}{:>10}\n", "op", "count",
                                 "ms", "share", "GFLOP/s", "GB/s", "floor ms", "of floor");
  for (const OpRow& row : rows)
    text += fmt::format("{:<18}{:>7}{:>11.3f}{:>7.1f}%{:>12.1f}{:>10.1f}{:>12.3f}{:>9.0f}%\n",
                        row.kind, row.count, row.ms, sum > 0 ? 100 * row.ms / sum : 0,
                        PerSecond(row.flops, row.ms) / 1e9, PerSecond(row.bytes, row.ms) / 1e9,
                        row.floor_ms, row.ms > 0 ? 100 * row.floor_ms / row.ms : 0);
  return text;
}

}  // namespace millrace

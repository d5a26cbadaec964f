#include "tools/cli/bench/floor.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/exec/bound_op.h"
#include "runtime/plan/cost/cost_model.h"
#include "tools/cli/bench/stopwatch.h"

namespace millrace {
namespace {

constexpr int64_t kLargestCopy = int64_t{512} << 20;  // bytes read
constexpr int kCollectiveCalls = 10;                  // every rank makes as many

bool TimedAlone(const KernelOp& op) {
  return std::holds_alternative<MatmulOp<View>>(op) ||
         std::holds_alternative<AttentionOp<View>>(op) ||
         std::holds_alternative<AttentionGradOp<View>>(op) || IsCollective(op);
}

// Ops with one name take as long.
std::string NameOf(const KernelOp& op) {
  std::string name(OpName(op));
  ForEachUse(op, [&](const View& view, Access access, std::string_view operand) {
    if (access != Access::kScratch) name += fmt::format(" {} {}", operand, ToString(view.layout));
  });
  if (const auto* matmul = std::get_if<MatmulOp<View>>(&op))
    name += fmt::format(" epilogue {} update {} rounding {}", static_cast<int>(matmul->epilogue),
                        static_cast<int>(matmul->update), static_cast<int>(matmul->rounding));
  return name;
}

}  // namespace

double CopyRate(Stopwatch& watch, const Environment& environment, std::byte* arena, int64_t bytes,
                Stream& stream) {
  const int64_t half = std::min(bytes / 2, kLargestCopy) / 256 * 256;
  ConcatOp<TensorView> copy;
  copy.x = {arena, DenseLayout(DType::kF32, {half / 4})};
  copy.out = {arena + half, DenseLayout(DType::kF32, {half / 4})};
  const double us = watch.Best(stream, 0, true, [&] { environment.kernels->concat(copy, stream); });
  return 2.0 * static_cast<double>(half) / us * 1e6;
}

Machine AtCopyRate(const Machine& machine, double copy_bytes_per_second) {
  Machine here = machine;
  here.memory = copy_bytes_per_second;
  here.vector = std::numeric_limits<double>::infinity();
  here.kernel_start = 0;
  here.kernels.clear();
  return here;
}

Floor MeasureFloor(Session& session, const Environment& environment, const Machine& machine) {
  Engine& engine = session.engine();
  const StepPlan& plan = session.run().plans.Of("train");
  const Binding binding = engine.BindingOf(plan);
  Device& device = session.device();
  Stopwatch watch(device);
  Stream& compute = engine.stream(StreamId::kCompute);
  FillWithNoise(device, binding.arena, engine.arena_bytes(), compute);

  Floor floor;
  floor.copy_bytes_per_second =
      CopyRate(watch, environment, binding.arena, engine.arena_bytes(), compute);
  const Machine here = AtCopyRate(machine, floor.copy_bytes_per_second);

  CostModel model(session.run().layout.mesh, here);

  std::map<std::string, AloneRow> alone;
  struct Products {
    double flops = 0, best_rate = 0;
  };
  std::map<DType, Products> products;
  KernelCounters unused;
  for (const Entry& entry : plan.schedule) {
    const Body& body = plan.bodies[static_cast<size_t>(entry.body)];
    for (size_t i = 0; i < body.ops.size(); ++i) {
      const PlanOp& op = body.ops[i];
      const OpEstimate estimate = model.Of(op.op);
      double seconds = estimate.seconds;
      if (TimedAlone(op.op)) {
        AloneRow& row = alone[NameOf(op.op)];
        if (row.count++ == 0) {
          const BoundOp bound =
              BindOp(binding, op.op, body.begin + static_cast<int64_t>(i), entry.microbatch);
          Stream& stream = engine.stream(op.stream);
          const int calls = IsCollective(op.op) ? kCollectiveCalls : 0;
          if (calls > 0) engine.comms().world().Barrier();
          row.op = NameOf(op.op);
          row.us = watch.Best(stream, calls, calls == 0, [&] {
            RunOp(bound, *environment.kernels, engine.comms(), unused, op.stream, stream);
          });
          row.flops_per_second = estimate.flops / row.us * 1e6;
          row.bytes_per_second =
              static_cast<double>(calls > 0 ? estimate.wire_bytes
                                            : estimate.read_bytes + estimate.write_bytes) /
              row.us * 1e6;
        }
        seconds = row.us * 1e-6;
      }
      if (const auto* product = std::get_if<MatmulOp<View>>(&op.op)) {
        Products& of = products[product->a.layout.dtype];
        of.flops += estimate.flops;
        of.best_rate = std::max(of.best_rate, estimate.flops / seconds);
      } else if (!IsCollective(op.op)) {
        floor.device_ms += seconds * 1e3;
      }
      floor.kind_ms[std::string(OpName(op.op))] += seconds * 1e3;
      floor.stream_ms[static_cast<size_t>(op.stream)] += seconds * 1e3;
    }
  }
  for (const auto& [dtype, of] : products) floor.device_ms += of.flops / of.best_rate * 1e3;
  floor.ms =
      std::max(floor.device_ms, *std::max_element(floor.stream_ms.begin(), floor.stream_ms.end()));
  for (auto& [name, row] : alone) floor.alone.push_back(std::move(row));
  std::stable_sort(
      floor.alone.begin(), floor.alone.end(), [](const AloneRow& a, const AloneRow& b) {
        return a.us * static_cast<double>(a.count) > b.us * static_cast<double>(b.count);
      });
  return floor;
}

nlohmann::ordered_json FloorJson(const Floor& floor) {
  nlohmann::ordered_json alone = nlohmann::ordered_json::array();
  for (const AloneRow& row : floor.alone)
    alone.push_back({{"op", row.op},
                     {"count", row.count},
                     {"us", row.us},
                     {"flops_per_s", row.flops_per_second},
                     {"bytes_per_s", row.bytes_per_second}});
  return {{"ms", floor.ms},
          {"stream_ms",
           {{"compute", floor.stream_ms[0]},
            {"gather", floor.stream_ms[1]},
            {"reduce", floor.stream_ms[2]}}},
          {"device_ms", floor.device_ms},
          {"copy_bytes_per_s", floor.copy_bytes_per_second},
          {"kind_ms", floor.kind_ms},
          {"alone", alone}};
}

std::string FloorText(const Floor& floor, double step_ms, const std::vector<OpRow>& rows) {
  std::string text = fmt::format(
      "floor {:.2f} ms (streams: compute {:.2f}, gather {:.2f}, reduce {:.2f}; all work on a busy "
      "device {:.2f}); the step takes {:.2f} times that; a copy moves {:.0f} GB/s\n",
      floor.ms, floor.stream_ms[0], floor.stream_ms[1], floor.stream_ms[2], floor.device_ms,
      step_ms / floor.ms, floor.copy_bytes_per_second / 1e9);
  std::vector<std::pair<double, std::string>> gaps;
  for (const OpRow& row : rows) gaps.emplace_back(row.ms - row.floor_ms, row.kind);
  std::sort(gaps.rbegin(), gaps.rend());
  text += "above it:";
  for (size_t i = 0; i < std::min<size_t>(gaps.size(), 6); ++i)
    text += fmt::format("{} {} {:+.2f} ms", i == 0 ? "" : ",", gaps[i].second, gaps[i].first);
  text += "\n\nalone on the device\n";
  for (const AloneRow& row : floor.alone)
    text += fmt::format("{:>5} x {:>9.1f} us {:>9.1f} GFLOP/s {:>8.1f} GB/s  {}\n", row.count,
                        row.us, row.flops_per_second / 1e9, row.bytes_per_second / 1e9, row.op);
  return text;
}

}  // namespace millrace

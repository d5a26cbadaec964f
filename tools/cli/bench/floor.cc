#include "tools/cli/bench/floor.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/exec/bound_op.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/cost/cost_model.h"
#include "tools/cli/bench/stopwatch.h"

namespace millrace {
namespace {

constexpr int64_t kLargestCopy = int64_t{512} << 20;  // bytes read
constexpr int kCollectiveCalls = 10;                  // every rank makes as many

bool TimedAlone(const KernelOp& op) {
  return std::holds_alternative<MatmulOp<View>>(op) ||
         std::holds_alternative<BatchedMatmulOp<View>>(op) ||
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

// Adds up a plan's ops, each at the time that nothing on this machine beats: measured alone where
// that means much, else estimated at the rate of a copy.
class FloorSum {
 public:
  FloorSum(Session& session, const Environment& environment, const Machine& machine)
      : engine_(session.engine()),
        kernels_(*environment.kernels),
        plan_(session.run().plans.Of("train")),
        binding_(engine_.BindingOf(plan_)),
        watch_(session.device()),
        model_(session.run().layout.mesh, machine) {}

  void Add(const Entry& entry) {
    const Body& body = plan_.body(entry);
    for (size_t i = 0; i < body.ops.size(); ++i)
      Add(body.ops[i], body.begin + static_cast<int64_t>(i), entry.microbatch);
  }
  // Of all that was added.
  Floor Take() {
    for (const auto& [dtype, of] : products_) sum_.device_ms += of.flops / of.best_rate * 1e3;
    sum_.ms =
        std::max(sum_.device_ms, *std::max_element(sum_.stream_ms.begin(), sum_.stream_ms.end()));
    for (auto& [name, row] : alone_) sum_.alone.push_back(std::move(row));
    std::stable_sort(
        sum_.alone.begin(), sum_.alone.end(), [](const AloneRow& a, const AloneRow& b) {
          return a.us * static_cast<double>(a.count) > b.us * static_cast<double>(b.count);
        });
    return std::move(sum_);
  }

 private:
  struct Products {
    double flops = 0, best_rate = 0;
  };

  void Add(const PlanOp& op, int64_t position, int32_t microbatch) {
    const OpEstimate estimate = model_.Of(op.op);
    double seconds = estimate.seconds;
    if (TimedAlone(op.op)) {
      AloneRow& row = alone_[NameOf(op.op)];
      if (row.count++ == 0) Time(op, position, microbatch, estimate, row);
      seconds = row.us * 1e-6;
    }
    if (const auto* product = std::get_if<MatmulOp<View>>(&op.op)) {
      Products& of = products_[product->a.layout.dtype];
      of.flops += estimate.flops;
      of.best_rate = std::max(of.best_rate, estimate.flops / seconds);
    } else if (!IsCollective(op.op)) {
      sum_.device_ms += seconds * 1e3;
    }
    sum_.kind_ms[std::string(OpName(op.op))] += seconds * 1e3;
    sum_.stream_ms[static_cast<size_t>(op.stream)] += seconds * 1e3;
  }

  void Time(const PlanOp& op, int64_t position, int32_t microbatch, const OpEstimate& estimate,
            AloneRow& row) {
    const BoundOp bound = BindOp(binding_, op.op, position, microbatch);
    Stream& stream = engine_.stream(op.stream);
    const int calls = IsCollective(op.op) ? kCollectiveCalls : 0;
    if (calls > 0) engine_.comms().world().Barrier();
    KernelCounters unused;
    row.op = NameOf(op.op);
    row.us = watch_.Best(stream, calls, calls == 0, [&] {
      RunOp(bound, kernels_, engine_.comms(), unused, op.stream, stream);
    });
    row.flops_per_second = estimate.flops / row.us * 1e6;
    row.bytes_per_second =
        static_cast<double>(calls > 0 ? estimate.wire_bytes
                                      : estimate.read_bytes + estimate.write_bytes) /
        row.us * 1e6;
  }

  Engine& engine_;
  const KernelTable& kernels_;
  const StepPlan& plan_;
  const Binding binding_;
  Stopwatch watch_;
  CostModel model_;
  Floor sum_;
  std::map<std::string, AloneRow> alone_;
  std::map<DType, Products> products_;
};

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
  std::byte* const arena = engine.BindingOf(plan).arena;
  Stream& compute = engine.stream(StreamId::kCompute);
  FillWithNoise(session.device(), arena, engine.arena_bytes(), compute);

  Stopwatch watch(session.device());
  const double copy_rate = CopyRate(watch, environment, arena, engine.arena_bytes(), compute);
  const Machine here = AtCopyRate(machine, copy_rate);  // the sum looks at it
  FloorSum sum(session, environment, here);
  for (const Entry& entry : plan.schedule) sum.Add(entry);
  Floor floor = sum.Take();
  floor.copy_bytes_per_second = copy_rate;
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

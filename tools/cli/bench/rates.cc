#include "tools/cli/bench/rates.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/ops/cost.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/exec/bound_op.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/cost/cost_model.h"
#include "tools/cli/bench/stopwatch.h"

namespace millrace {
namespace {

// Shapes at which cuBLASLt is at its best on Hopper.
constexpr std::array<ProductShape, 3> kDeviceShapes = {
    {{8192, 8192, 8192}, {8192, 28672, 4096}, {8192, 4096, 14336}}};
constexpr std::array<ProductShape, 1> kHostShapes = {{{512, 512, 512}}};
// Until the clocks are those of steady work, and then the time that counts.
constexpr double kDeviceHeatMs = 300, kDeviceMs = 1000;
// A host's clocks do not fall within such a time, but other processes share its cores: the best of
// several short batches.
constexpr double kHostHeatMs = 20, kHostMs = 20;
constexpr int kHostBatches = 5;

struct ProductBytes {
  int64_t a, b, out, scratch;
  int64_t sum() const { return a + b + out + scratch; }
};

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, 256); }

MatmulOp<Shape> ShapeOf(const ProductShape& p, DType dtype) {
  MatmulOp<Shape> op;
  op.a = {DenseLayout(dtype, {p.m, p.k}), true};
  op.b = {DenseLayout(dtype, {p.k, p.n}), true};
  op.out = {DenseLayout(dtype, {p.m, p.n}), true};
  return op;
}

ProductBytes BytesOf(const ProductShape& p, DType dtype, Backend backend) {
  const int64_t size = Bytes(dtype);
  return {Aligned(p.m * p.k * size), Aligned(p.k * p.n * size), Aligned(p.m * p.n * size),
          Aligned(WorkspaceBytes(ShapeOf(p, dtype), backend))};
}

// `p`, or halves of it that fit into `arena` bytes: a small model's arena has no room for the
// largest products.
ProductShape Fitting(ProductShape p, DType dtype, Backend backend, int64_t arena) {
  while (BytesOf(p, dtype, backend).sum() > arena) {
    MR_CHECK_GT(p.m, 16, "an arena of {} bytes has no room for a product to measure", arena);
    p = {p.m / 2, p.n / 2, p.k / 2};
  }
  return p;
}

}  // namespace

SustainedRate MeasureProduct(Session& session, const Environment& environment, Stopwatch& watch,
                             const ProductShape& wanted, DType dtype) {
  Engine& engine = session.engine();
  const Backend backend = environment.traits.backend;
  const ProductShape p = Fitting(wanted, dtype, backend, engine.arena_bytes());
  const ProductBytes bytes = BytesOf(p, dtype, backend);
  std::byte* const arena = engine.BindingOf(session.run().plans.Of("train")).arena;
  MatmulOp<TensorView> op;
  op.a = {arena, DenseLayout(dtype, {p.m, p.k})};
  op.b = {arena + bytes.a, DenseLayout(dtype, {p.k, p.n})};
  op.out = {arena + bytes.a + bytes.b, DenseLayout(dtype, {p.m, p.n})};
  if (bytes.scratch > 0)
    op.scratch = {arena + bytes.a + bytes.b + bytes.out, DenseLayout(DType::kU8, {bytes.scratch})};
  Stream& stream = engine.stream(StreamId::kCompute);
  FillWithNoise(session.device(), arena, bytes.a + bytes.b, stream);

  const bool on_device = session.device().captures();
  const double flops_each = Flops(ShapeOf(p, dtype));
  const auto run = [&](int64_t calls) {
    return watch.Time(stream, [&] {
      for (int64_t i = 0; i < calls; ++i) environment.kernels->matmul(op, stream);
    });
  };
  run(1);  // loads the kernel
  const double once_ms = std::max(run(1), 1e-3);
  const auto calls_in = [&](double ms) {
    return std::max<int64_t>(1, static_cast<int64_t>(ms / once_ms));
  };
  run(calls_in(on_device ? kDeviceHeatMs : kHostHeatMs));
  const int64_t calls = calls_in(on_device ? kDeviceMs : kHostMs);
  double ms = run(calls);
  for (int batch = 1; !on_device && batch < kHostBatches; ++batch) ms = std::min(ms, run(calls));
  const double flops = flops_each * static_cast<double>(calls);
  return {dtype, p.m, p.n, p.k, ms * 1e-3, flops / ms * 1e3};
}

RateFloor MeasureRateFloor(Session& session, const Environment& environment, const Machine& machine,
                           const Floor& floor) {
  const StepPlan& plan = session.run().plans.Of("train");
  const Machine here = AtCopyRate(machine, floor.copy_bytes_per_second);
  CostModel model(session.run().layout.mesh, here);

  RateFloor rates;
  rates.link_bytes_per_second = machine.link;
  std::map<DType, double> flops;
  double wire_bytes = 0;
  for (const Entry& entry : plan.schedule)
    for (const PlanOp& op : plan.body(entry).ops) {
      const OpEstimate estimate = model.Of(op.op);
      if (const auto* product = std::get_if<MatmulOp<View>>(&op.op))
        flops[product->a.layout.dtype] += estimate.flops;
      else if (IsCollective(op.op))
        wire_bytes += static_cast<double>(estimate.wire_bytes);
      else if (!std::holds_alternative<AttentionOp<View>>(op.op) &&
               !std::holds_alternative<AttentionGradOp<View>>(op.op))
        rates.memory_ms += estimate.seconds * 1e3;
    }
  for (const char* kind : {"attention", "attention_grad"})
    if (const auto found = floor.kind_ms.find(kind); found != floor.kind_ms.end())
      rates.attention_ms += found->second;
  rates.wire_ms = wire_bytes / machine.link * 1e3;

  Stopwatch watch(session.device());
  for (const auto& [dtype, sum] : flops) {
    double best = 0;
    const auto measure = [&](const ProductShape& shape) {
      rates.products.push_back(MeasureProduct(session, environment, watch, shape, dtype));
      best = std::max(best, rates.products.back().flops_per_second);
    };
    if (session.device().captures())
      for (const ProductShape& shape : kDeviceShapes) measure(shape);
    else
      for (const ProductShape& shape : kHostShapes) measure(shape);
    rates.products_ms += sum / best * 1e3;
  }
  rates.ms = std::max(rates.products_ms + rates.attention_ms + rates.memory_ms, rates.wire_ms);
  return rates;
}

nlohmann::ordered_json RateFloorJson(const RateFloor& floor) {
  nlohmann::ordered_json products = nlohmann::ordered_json::array();
  for (const SustainedRate& row : floor.products)
    products.push_back({{"dtype", Name(row.dtype)},
                        {"m", row.m},
                        {"n", row.n},
                        {"k", row.k},
                        {"seconds", row.seconds},
                        {"flops_per_s", row.flops_per_second}});
  return {{"ms", floor.ms},
          {"products_ms", floor.products_ms},
          {"attention_ms", floor.attention_ms},
          {"memory_ms", floor.memory_ms},
          {"wire_ms", floor.wire_ms},
          {"link_bytes_per_s", floor.link_bytes_per_second},
          {"products", products}};
}

std::string RateFloorText(const RateFloor& floor, double step_ms) {
  std::string text = fmt::format(
      "floor by rates {:.2f} ms (products {:.2f}, attention {:.2f}, memory {:.2f}; wire {:.2f} at "
      "{:.0f} GB/s); the step takes {:.2f} times that\n",
      floor.ms, floor.products_ms, floor.attention_ms, floor.memory_ms, floor.wire_ms,
      floor.link_bytes_per_second / 1e9, step_ms / floor.ms);
  for (const SustainedRate& row : floor.products)
    text +=
        fmt::format("  products {} x {} x {} {}, {:.2f} s back to back: {:.1f} GFLOP/s\n", row.m,
                    row.n, row.k, Name(row.dtype), row.seconds, row.flops_per_second / 1e9);
  return text;
}

}  // namespace millrace

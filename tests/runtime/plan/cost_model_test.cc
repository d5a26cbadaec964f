#include "runtime/plan/cost/cost_model.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/base/error.h"
#include "tests/runtime/plan/tiny_plan.h"

namespace millrace {
namespace {

using test::Dense;
using test::SlowMachine;

constexpr Mesh kAlone{1, 1};

OpEstimate Estimate(const KernelOp& op, const Mesh& mesh, const Machine& machine) {
  return CostModel(mesh, machine).Of(op);
}

MatmulOp<View> Matmul(int64_t m, int64_t n, int64_t k, DType a, DType b) {
  MatmulOp<View> op;
  op.a = Dense(0, a, {m, k});
  op.b = Dense(0, b, {k, n});
  op.out = Dense(0, DType::kBF16, {m, n});
  return op;
}

TEST_CASE("a matmul takes the longer of its arithmetic and its traffic", "[plan][cost]") {
  Machine machine = SlowMachine();
  machine.gemm_bf16 = 7;
  machine.gemm_f32 = 3;
  machine.memory = 11;
  // 2*5*6*8 FLOPs; bf16: 2 bytes each of 5*8 + 8*6 read and 5*6 written.
  const OpEstimate e = Estimate(Matmul(5, 6, 8, DType::kBF16, DType::kBF16), kAlone, machine);
  REQUIRE(e.flops == 480);
  REQUIRE(e.read_bytes == 176);
  REQUIRE(e.write_bytes == 60);
  REQUIRE(e.wire_bytes == 0);
  REQUIRE(e.seconds == Approx(480.0 / 7));
  REQUIRE(e.bound == Bound::kArithmetic);

  // One f32 operand: the f32 rate.
  REQUIRE(Estimate(Matmul(5, 6, 8, DType::kBF16, DType::kF32), kAlone, machine).seconds ==
          Approx(480.0 / 3));

  machine.memory = 2;
  const OpEstimate slow = Estimate(Matmul(5, 6, 8, DType::kBF16, DType::kBF16), kAlone, machine);
  REQUIRE(slow.seconds == Approx(236.0 / 2));
  REQUIRE(slow.bound == Bound::kMemory);
}

TEST_CASE("a product of FP8 has a rate of its own, and one scale of all a reading of its own",
          "[plan][cost]") {
  Machine machine = SlowMachine();
  machine.gemm_bf16 = 7;
  machine.gemm_f32 = 3;
  MatmulOp<View> product = Matmul(5, 6, 8, DType::kE4M3, DType::kE5M2);
  REQUIRE(Estimate(product, kAlone, machine).seconds == Approx(480.0 / 3));
  machine.gemm_fp8 = 13;
  machine.memory = 11;
  REQUIRE(Estimate(product, kAlone, machine).seconds == Approx(480.0 / 13));
  QuantizeOp<View> quantize;
  quantize.x = Dense(0, DType::kBF16, {256, 128});
  quantize.out = Dense(1, DType::kE4M3, {256, 128});
  quantize.scales = Dense(2, DType::kF32, {1, 1});
  REQUIRE(Estimate(quantize, kAlone, machine).read_bytes == 2 * 2 * 256 * 128);
  quantize.magnitude = Dense(3, DType::kF32, {1});
  REQUIRE(Estimate(quantize, kAlone, machine).read_bytes == 2 * 256 * 128 + 4);
  quantize.magnitude = {};
  quantize.scales = Dense(2, DType::kF32, {256, 1});
  REQUIRE(Estimate(quantize, kAlone, machine).read_bytes == 2 * 256 * 128);
}

TEST_CASE("an accumulating matmul also reads its result", "[plan][cost]") {
  MatmulOp<View> op = Matmul(5, 6, 8, DType::kBF16, DType::kBF16);
  op.update = Update::kAccumulate;
  REQUIRE(Estimate(op, kAlone, SlowMachine()).read_bytes == 176 + 60);
}

TEST_CASE("a batch of products takes as long as they do, but for tiles that it fills",
          "[plan][cost]") {
  Machine machine = SlowMachine();
  machine.gemm_bf16 = 7;
  machine.memory = 1e6;
  BatchedMatmulOp<View> op;
  op.a = Dense(0, DType::kBF16, {4, 5, 8});
  op.b = Dense(1, DType::kBF16, {4, 8, 6});
  op.out = Dense(2, DType::kBF16, {4, 5, 6});
  const OpEstimate e = Estimate(op, kAlone, machine);
  CHECK(e.flops == 4 * 480);
  CHECK(e.read_bytes == 4 * 176);
  CHECK(e.write_bytes == 4 * 60);
  CHECK(e.seconds == Approx(4 * 480.0 / 7));
  CHECK(e.bound == Bound::kArithmetic);
  op.c = Dense(3, DType::kBF16, {4, 5, 6});
  CHECK(Estimate(op, kAlone, machine).read_bytes == 4 * (176 + 60));
  // Three units: one product is a tile on one of them, four are two waves.
  machine.gemm_units = 3;
  machine.gemm_tiles = {{8, 8, 1}};
  const double tile = 2.0 * 8 * 8 * 8 / 7;
  CHECK(Estimate(Matmul(5, 6, 8, DType::kBF16, DType::kBF16), kAlone, machine).seconds ==
        Approx(3 * tile));
  CHECK(Estimate(op, kAlone, machine).seconds == Approx(6 * tile));
}

TEST_CASE("normalising matrices reads them for their norms, and again", "[plan][cost]") {
  MuonNormaliseOp<View> op;
  op.x = Dense(0, DType::kBF16, {2, 3, 50});
  op.out = Dense(1, DType::kBF16, {2, 3, 50});
  const OpEstimate e = Estimate(op, kAlone, SlowMachine());
  CHECK(e.read_bytes == 2 * 2 * 300);
  CHECK(e.write_bytes == 2 * 300);
}

// 24 slots, 5 experts of [6, 8]: five products of 5 rows at most.
TEST_CASE("experts' products take the GEMM rate's time over the kernel's efficiency",
          "[plan][cost]") {
  Machine machine = SlowMachine();
  machine.gemm_bf16 = 7;
  machine.vector = 1e-3;  // they are no vector work
  machine.memory = 1e6;
  machine.kernels["grouped_matmul"] = {0.5, 0};
  machine.kernels["grouped_weight_grad"] = {0.25, 0};
  GroupedMatmulOp<View> product;
  product.a = Dense(0, DType::kBF16, {24, 6});
  product.b = Dense(0, DType::kBF16, {5, 6, 8});
  product.out = Dense(0, DType::kBF16, {24, 8});
  product.offsets = Dense(0, DType::kI32, {6});
  const OpEstimate e = Estimate(product, kAlone, machine);
  CHECK(e.flops == 2 * 24 * 6 * 8);
  CHECK(e.seconds == Approx(2.0 * 5 * 5 * 6 * 8 / 7 / 0.5));
  CHECK(e.bound == Bound::kArithmetic);
  CHECK(e.read_bytes == 2 * 24 * 6 + 2 * 5 * 6 * 8 + 4 * 6);
  CHECK(e.write_bytes == 2 * 24 * 8);

  GroupedWeightGradOp<View> grad;
  grad.d_out = Dense(0, DType::kBF16, {24, 8});
  grad.a = Dense(0, DType::kBF16, {24, 6});
  grad.out = Dense(0, DType::kF32, {5, 8, 6});
  grad.offsets = product.offsets;
  CHECK(Estimate(grad, kAlone, machine).seconds == Approx(2.0 * 5 * 5 * 6 * 8 / 7 / 0.25));
  // Under the power cap they are products, too.
  machine.capped_gemm = 3;
  CHECK(Estimate(grad, kAlone, machine).heat == Approx(2.0 * 24 * 6 * 8 / 3));
}

AttentionOp<View> Attention(int64_t batch, int64_t length, int64_t heads, int64_t depth) {
  AttentionOp<View> op;
  op.q = op.k = op.v = op.out = Dense(0, DType::kBF16, {batch, length, heads, depth});
  op.lse = Dense(0, DType::kF32, {batch, heads, length});
  return op;
}

TEST_CASE("attention counts the lower triangle and takes the rate of its head dim and length",
          "[plan][cost]") {
  Machine machine = SlowMachine();
  machine.gemm_bf16 = 1e6;
  machine.memory = 1e12;
  machine.attention = {{64, 4, 10, 100}, {64, 8, 20, 200}, {128, 4, 30, 300}, {128, 8, 40, 400}};
  const auto seconds = [&](int64_t length, int64_t depth) {
    return Estimate(Attention(2, length, 3, depth), kAlone, machine).seconds;
  };
  // 2 GEMMs of 2 * D FLOPs for each of T*(T+1)/2 pairs, over 2 * 3 rows and heads.
  const auto flops = [](int64_t length, int64_t depth) {
    return 2.0 * 2 * static_cast<double>(depth * 6 * length * (length + 1) / 2);
  };
  REQUIRE(Estimate(Attention(2, 5, 3, 64), kAlone, machine).flops == 4 * 64 * 6 * 15);
  // Between two lengths: in proportion to the logarithm.
  REQUIRE(seconds(5, 64) == Approx(flops(5, 64) / (10 + 10 * std::log(5 / 4.0) / std::log(2.0))));
  REQUIRE(seconds(6, 128) == Approx(flops(6, 128) / (30 + 10 * std::log2(1.5))));
  REQUIRE(seconds(8, 64) == Approx(flops(8, 64) / 20));
  REQUIRE(seconds(9, 32) == Approx(flops(9, 32) / 20));
  REQUIRE(seconds(4, 96) == Approx(flops(4, 96) / 30));
  REQUIRE(seconds(100, 128) == Approx(flops(100, 128) / 40));
  // Shorter or wider than any that was measured: the nearest.
  REQUIRE(seconds(2, 64) == Approx(flops(2, 64) / 10));
  REQUIRE(seconds(2, 128) == Approx(flops(2, 128) / 30));
  REQUIRE(seconds(9, 256) == Approx(flops(9, 256) / 40));

  AttentionGradOp<View> grad;
  grad.q = grad.k = grad.v = grad.out = grad.d_out = grad.d_q = grad.d_k = grad.d_v =
      Dense(0, DType::kBF16, {2, 8, 3, 128});
  grad.lse = Dense(0, DType::kF32, {2, 3, 8});
  REQUIRE(Estimate(grad, kAlone, machine).seconds == Approx(2.5 * flops(8, 128) / 400));
}

TEST_CASE("ops touch what they touch, not what their access allows", "[plan][cost]") {
  ZeroRangesOp<View> zero;
  zero.flat = Dense(0, DType::kBF16, {1000});
  zero.ranges =
      std::make_shared<const std::vector<Range>>(std::vector<Range>{{10, 13}, {990, 1000}});
  const OpEstimate zeroed = Estimate(zero, kAlone, SlowMachine());
  REQUIRE(zeroed.read_bytes == 0);
  REQUIRE(zeroed.write_bytes == 13 * 2);

  FiniteScanOp<View> scan;
  scan.x = Dense(0, DType::kBF16, {1000});
  scan.bad_count = Dense(0, DType::kF64, {1});
  scan.scalars = Dense(0, DType::kU8, {120});
  const OpEstimate scanned = Estimate(scan, kAlone, SlowMachine());
  REQUIRE(scanned.read_bytes == 2000 + 120);
  REQUIRE(scanned.write_bytes == 8);
}

// Of 1,000 rows of a table 20 are looked up.
TEST_CASE("a gradient that is added to a table touches its tokens' rows", "[plan][cost]") {
  EmbedGradOp<View> op;
  op.tokens = Dense(0, DType::kI32, {20});
  op.d_out = Dense(1, DType::kBF16, {20, 8});
  op.d_table = Dense(2, DType::kF32, {1000, 8});
  const OpEstimate whole = Estimate(op, kAlone, SlowMachine());
  REQUIRE(whole.write_bytes == 4 * 1000 * 8);
  op.table_update = Update::kAccumulate;
  const OpEstimate added = Estimate(op, kAlone, SlowMachine());
  REQUIRE(added.write_bytes == 4 * 20 * 8);
  REQUIRE(added.read_bytes == whole.read_bytes + 4 * 20 * 8);
  op.d_table = Dense(2, DType::kF32, {7, 8});  // fewer than there are tokens
  REQUIRE(Estimate(op, kAlone, SlowMachine()).write_bytes == 4 * 7 * 8);
}

TEST_CASE("a product that is staged in f32 is read again by a kernel of its own", "[plan][cost]") {
  Machine machine = SlowMachine();
  machine.gemm_bf16 = 1e12;
  machine.memory = 10;
  machine.kernel_start = 3;
  machine.op_gap = 2;
  MatmulOp<View> op = Matmul(5, 6, 8, DType::kBF16, DType::kBF16);
  const double plain = Estimate(op, kAlone, machine).seconds;
  op.staged_bytes = 4 * 5 * 6;
  REQUIRE(Estimate(op, kAlone, machine).seconds == Approx(plain + (120 + 60) / 10.0 + 3 + 2));
  op.update = Update::kAccumulate;  // and what is there is read
  REQUIRE(Estimate(op, kAlone, machine).seconds ==
          Approx(plain + 60 / 10.0 + (120 + 2 * 60) / 10.0 + 3 + 2));
}

TEST_CASE("sequences split over ranks attend at the rate of their chunks", "[plan][cost]") {
  Machine machine = SlowMachine();
  machine.gemm_bf16 = 1e6;
  machine.memory = 1e12;
  machine.attention = {{64, 4, 10, 100}, {64, 8, 20, 200}};
  AttentionOp<View> op = Attention(2, 8, 3, 64);
  const OpEstimate whole = Estimate(op, kAlone, machine);
  REQUIRE(whole.seconds == Approx(whole.flops / 20));
  op.rows = ZigzagRows(2, 8, Axis::kContext);
  op.k = op.v = Dense(0, DType::kBF16, {4, 8, 3, 64});
  const OpEstimate split = Estimate(op, kAlone, machine);  // chunks of 4 rows
  REQUIRE(split.seconds == Approx(split.flops / 10));
}

TEST_CASE("under the power cap kernels count by what they are", "[plan][cost]") {
  Machine machine = SlowMachine();
  machine.memory = 100;
  machine.vector = machine.gemm_bf16 = 1e12;
  machine.capped_gemm = 8;
  machine.capped_attention = 5;
  machine.capped_memory = 50;
  machine.kernel_start = 7;  // nothing is drawn then
  MatmulOp<View> product = Matmul(5, 6, 8, DType::kBF16, DType::kBF16);
  CHECK(Estimate(product, kAlone, machine).heat == Approx(480.0 / 8));  // its bytes are in the rate
  product.staged_bytes = 120;
  CHECK(Estimate(product, kAlone, machine).heat == Approx(480.0 / 8 + (120 + 60) / 50.0));
  machine.kernels["cast"] = {0.5, 0};
  CastOp<View> cast;
  cast.x = Dense(0, DType::kF32, {10});
  cast.out = Dense(0, DType::kBF16, {10});
  CHECK(Estimate(cast, kAlone, machine).heat == Approx(60 / 50.0 / 0.5));  // as long as it runs
  // Rates of attention 20 and 40: twice as long a time is twice as much.
  machine.memory = 1e12;
  machine.attention = {{64, 4, 20, 20}, {64, 4096, 40, 40}, {128, 4, 80, 80}};
  const OpEstimate shorter = Estimate(Attention(2, 4, 3, 64), kAlone, machine);
  CHECK(shorter.heat == Approx(shorter.flops / 20 * 40 / 5));
  const OpEstimate wide = Estimate(Attention(2, 4, 3, 128), kAlone, machine);
  CHECK(wide.heat == Approx(wide.flops / 5));
  machine.capped_wide_attention = 6;
  CHECK(Estimate(Attention(2, 4, 3, 128), kAlone, machine).heat == Approx(wide.flops / 6));
}

TEST_CASE("collectives send what the communicator counts, and wait for its latency",
          "[plan][cost]") {
  const int shard = GENERATE(1, 3, 4);
  const int replicate = GENERATE(1, 2, 5);
  CAPTURE(shard, replicate);
  const Mesh mesh{replicate, shard};
  Machine machine = SlowMachine();
  machine.memory = machine.vector = 1e12;
  machine.link = 8;
  machine.collective_latency = 1000;

  AllGatherOp<View> gather;  // in place: no shard operand
  gather.full = Dense(0, DType::kBF16, {7 * shard});
  const OpEstimate gathered = Estimate(gather, mesh, machine);
  REQUIRE(gathered.wire_bytes == (shard - 1) * 7 * 2);

  ReduceScatterOp<View> scatter;
  scatter.full = Dense(0, DType::kF32, {7 * shard});
  scatter.shard = Dense(0, DType::kF32, {7});
  REQUIRE(Estimate(scatter, mesh, machine).wire_bytes == (shard - 1) * 7 * 4);

  AllReduceOp<View> sum;  // between replicas; 11 elements in `replicate` parts, the last one short
  sum.buffer = Dense(0, DType::kF32, {11});
  const int64_t part = replicate == 1 ? 11 : replicate == 2 ? 6 : 3;
  const OpEstimate summed = Estimate(sum, mesh, machine);
  REQUIRE(summed.wire_bytes == 2 * (replicate - 1) * part * 4);

  AllToAllOp<View> exchange;
  exchange.axes = Axis::kShard;
  exchange.sent = exchange.received = Dense(0, DType::kBF16, {7 * shard});
  REQUIRE(Estimate(exchange, mesh, machine).wire_bytes == (shard - 1) * 7 * 2);

  AllGatherOp<View> stats;
  stats.axes = AxisSet::All();
  stats.full = Dense(0, DType::kF64, {3 * shard * replicate});
  REQUIRE(Estimate(stats, mesh, machine).wire_bytes == (shard * replicate - 1) * 3 * 8);

  if (shard == 1) {
    REQUIRE(gathered.seconds < 1e-9);
    REQUIRE(gathered.bound == Bound::kMemory);
  } else {
    REQUIRE(gathered.seconds == Approx(static_cast<double>((shard - 1) * 14) / 8 + 1000));
    REQUIRE(gathered.bound == Bound::kLatency);
  }
  machine.collective_latency = 1e-3;
  REQUIRE(Estimate(sum, mesh, machine).bound == (replicate == 1 ? Bound::kMemory : Bound::kWire));
}

// Of 60 slots 20 are live on average: products and passes over rows are of these.
TEST_CASE("of slots that may be there those that are expected count", "[plan][cost]") {
  const Mesh mesh;
  const Machine machine = SlowMachine();
  const auto views = [](auto& op, int64_t expected) {
    op.offsets = Dense(3, DType::kI32, {5});
    op.expected = expected;
  };
  const auto product = [&](int64_t expected) {
    GroupedMatmulOp<View> op;
    op.a = Dense(0, DType::kF32, {60, 8});
    op.b = Dense(1, DType::kF32, {4, 8, 6});
    op.out = Dense(2, DType::kF32, {60, 6});
    views(op, expected);
    return Estimate(op, mesh, machine);
  };
  CHECK(product(0).flops == 2.0 * 60 * 8 * 6);
  CHECK(product(20).flops == 2.0 * 20 * 8 * 6);
  CHECK(product(20).read_bytes == 4 * (20 * 8 + 4 * 8 * 6 + 5));
  CHECK(product(20).write_bytes == 4 * 20 * 6);

  DispatchOp<View> unpack;
  unpack.x = Dense(0, DType::kF32, {60, 8});
  unpack.pairs = Dense(1, DType::kI32, {60});
  unpack.out = Dense(2, DType::kF32, {60, 8});
  views(unpack, 20);
  CHECK(Estimate(unpack, mesh, machine).read_bytes == 4 * (20 * 8 + 20 + 5));
  CHECK(Estimate(unpack, mesh, machine).write_bytes == 4 * 20 * 8);
  unpack.offsets = {};  // rows of zeros are written, too
  CHECK(Estimate(unpack, mesh, machine).write_bytes == 4 * 60 * 8);

  CombineOp<View> combine;
  combine.y = Dense(0, DType::kF32, {60, 8});
  combine.slots = Dense(1, DType::kI32, {10, 2});
  combine.out = Dense(2, DType::kF32, {10, 8});
  CHECK(Estimate(combine, mesh, machine).read_bytes == 4 * (20 * 8 + 20));
}

TEST_CASE("counters follow the schedule: bodies count as often as they run", "[plan][cost]") {
  StepPlan plan;
  CastOp<View> cast;
  cast.x = Dense(0, DType::kF32, {10});
  cast.out = Dense(0, DType::kBF16, {10});
  ConcatOp<View> concat;
  concat.x = concat.out = Dense(0, DType::kF32, {3});
  AccumulateOp<View> accumulate;
  accumulate.x = Dense(0, DType::kBF16, {5});
  accumulate.out = Dense(0, DType::kF32, {5});
  AllGatherOp<View> gather;
  gather.full = Dense(0, DType::kF32, {8});
  AllGatherOp<View> stats;
  stats.axes = AxisSet::All();
  stats.full = Dense(0, DType::kF64, {8});
  AllReduceOp<View> replicas;
  replicas.buffer = Dense(0, DType::kF32, {6});
  plan.bodies = {
      {"forward", {{cast, StreamId::kGather, "c", {}}, {gather, StreamId::kGather, "g", {}}}, 0},
      {"update",
       {{concat, StreamId::kCompute, "k", {}},
        {accumulate, StreamId::kReduce, "a", {}},
        test::Sends(StreamId::kReduce, 9, "r"),
        {replicas, StreamId::kReduce, "ar", {}},
        {stats, StreamId::kReduce, "s", {}}},
       2}};
  plan.schedule = {{0, 0, {}}, {0, 1, {}}, {0, 2, {}}, {1, 2, {}}};
  const Mesh mesh{2, 2};
  const PlanCounters counters = CountersOf(plan, plan.schedule, mesh);
  REQUIRE(counters.ops == 3 * 2 + 5);
  REQUIRE(counters.all_gathers == 4);
  REQUIRE(counters.reduce_scatters == 1);
  REQUIRE(counters.all_reduces == 1);
  REQUIRE(counters.gathered_bytes ==
          3 * 16 + 3 * 16);  // half of 32 bytes, three times; 3 of 4 rows of 16 bytes
  REQUIRE(counters.reduced_bytes == 9);
  REQUIRE(counters.all_reduced_bytes == 2 * 3 * 4);
  REQUIRE(counters.cast_bytes == 3 * 40);
  REQUIRE(counters.concatenated_bytes == 12);
  REQUIRE(counters.copied_bytes == 10);

  const WirePurposes wire = WireByPurpose(plan, plan.schedule, mesh);
  REQUIRE(wire.parameters == 48);
  REQUIRE(wire.gradients == 9);
  REQUIRE(wire.gradient_replicas == 24);
  REQUIRE(wire.statistics == 48);
  REQUIRE(CountersOf(plan, {}, mesh) == PlanCounters{});
}

TEST_CASE("a kernel's own rate and start; an activation behind a product is traffic of its own",
          "[plan][cost]") {
  Machine machine = SlowMachine();
  machine.vector = machine.gemm_bf16 = 1e12;
  machine.memory = 10;
  machine.kernel_start = 3;
  machine.kernels["cast"] = {0.5, 7};
  CastOp<View> cast;
  cast.x = Dense(0, DType::kF32, {10});
  cast.out = Dense(0, DType::kBF16, {10});
  CHECK(Estimate(cast, kAlone, machine).seconds == Approx(60 / (10 * 0.5) + 3 + 7));
  CHECK(Estimate(cast, kAlone, machine).bound == Bound::kMemory);
  ConcatOp<View> concat;
  concat.x = concat.out = Dense(0, DType::kF32, {3});
  CHECK(Estimate(concat, kAlone, machine).seconds == Approx(24 / 10.0 + 3));
  CHECK(Estimate(concat, kAlone, machine).bound == Bound::kLatency);
  MatmulOp<View> product = Matmul(5, 6, 8, DType::kBF16, DType::kBF16);
  const double plain = Estimate(product, kAlone, machine).seconds;
  product.pre = Dense(0, DType::kBF16, {5, 6});
  product.epilogue = Epilogue::kBiasGelu;  // writes `pre` as well, then reads and writes the result
  CHECK(Estimate(product, kAlone, machine).seconds == Approx(plain + (60 + 2 * 60) / 10.0));
  product.epilogue = Epilogue::kGeluGrad;
  CHECK(Estimate(product, kAlone, machine).seconds == Approx(plain + (60 + 3 * 60) / 10.0));
}

TEST_CASE("machines are found by name; ranks beyond the cores share them", "[plan][cost]") {
  REQUIRE(FindMachine("h200").memory > FindMachine("h100").memory);
  REQUIRE_THROWS_MATCHES(FindMachine("h300"), Error,
                         Catch::Predicate<Error>([](const Error& error) {
                           return error.code() == ErrorCode::kConfig &&
                                  std::string(error.what()) ==
                                      "--machine: \"h300\" is not known; known are h100, h200, cpu";
                         }));
  for (const Machine& machine : Machines()) {
    CAPTURE(machine.name);
    REQUIRE(machine.gemm_bf16 <= machine.peak_bf16);
    REQUIRE(machine.gemm_f32 <= machine.peak_f32);
    REQUIRE_FALSE(machine.source.empty());
    const Machine share = ShareOf(machine, 6);
    const double factor = machine.name == "cpu" ? 3 : 1;
    REQUIRE(share.gemm_f32 * factor == Approx(machine.gemm_f32));
    REQUIRE(share.memory * factor == Approx(machine.memory));
    REQUIRE(share.attention.back().backward * factor == Approx(machine.attention.back().backward));
    REQUIRE(ShareOf(machine, 2).gemm_f32 == machine.gemm_f32);
  }
}

// Hosts of 8 ranks: 100 B/s within one, 10 B/s from each rank to others.
Machine Hosts() {
  Machine machine = SlowMachine();
  machine.link = 100;
  machine.ranks_per_host = 8;
  machine.host_link = 10;
  return machine;
}

TEST_CASE("a collective between hosts takes their rate", "[plan][cost]") {
  Machine machine = Hosts();
  machine.memory = machine.vector = 1e12;
  machine.collective_latency = 1;
  AllGatherOp<View> gather;
  gather.axes = Axis::kShard;
  gather.full = Dense(0, DType::kF32, {1024});
  gather.shard = Dense(0, DType::kF32, {64});
  // 15 peers' shards of 64 * 4 bytes over 8 cards of 10 B/s.
  CHECK(Estimate(gather, {1, 16}, machine).seconds == Approx(15 * 256 / 80.0 + 1));
  CHECK(Estimate(gather, {1, 16}, machine).bound == Bound::kWire);
  AllReduceOp<View> reduce;
  reduce.axes = Axis::kReplicate;
  reduce.buffer = Dense(0, DType::kF32, {100});
  // Two replicas: half the buffer out and half back, over one card.
  CHECK(Estimate(reduce, {2, 8}, machine).seconds == Approx(2 * 50 * 4 / 10.0 + 1));
}

TEST_CASE("link speeds may be stated, and what cannot be is refused", "[plan][cost]") {
  const Machine h200 = WithLinks(FindMachine("h200"), {});
  CHECK(h200.ranks_per_host == 8);
  CHECK(h200.host_link == 50e9);
  const Machine stated = WithLinks(h200, {4, 200e9, 25e9});
  CHECK(stated.ranks_per_host == 4);
  CHECK(stated.link == 200e9);
  CHECK(stated.host_link == 25e9);
  CHECK_THROWS_WITH(WithLinks(FindMachine("cpu"), {2, 0, 0}), Catch::Contains("--host-link GB/s"));
  CHECK(WithLinks(FindMachine("cpu"), {2, 0, 1e9}).host_link == 1e9);
  for (const StatedLinks wrong : {StatedLinks{-1, 0, 0}, {0, -1e9, 0}, {0, 0, -1e9}})
    CHECK_THROWS_AS(WithLinks(h200, wrong), Error);
}

}  // namespace
}  // namespace millrace

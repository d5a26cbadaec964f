#include "runtime/plan/report/plan_report.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "runtime/picture/text.h"
#include "runtime/plan/cost/communicators.h"
#include "runtime/plan/report/plan_json.h"
#include "runtime/plan/report/plan_text.h"
#include "tests/runtime/plan/tiny_plan.h"

namespace millrace {
namespace {

using nlohmann::json;
using test::PlanFor;
using test::SmallBatch;
using test::SmallModel;
using test::TinyPlan;

constexpr int64_t kLayers = 3;
constexpr int64_t kFlats = kLayers + 2;  // embed, blocks, head (the final norm)

// Padded elements of the small model's flat parameters: parameters begin at multiples of 64, the
// end is padded to world * 64.
int64_t Padded(std::vector<int64_t> numels, int64_t world) {
  int64_t end = 0;
  for (int64_t numel : numels) end = (end + 63) / 64 * 64 + numel;
  return (end + world * 64 - 1) / (world * 64) * (world * 64);
}
int64_t PaddedModel(int64_t world) {
  const int64_t embed = Padded({128 * 32, 16 * 32}, world);  // vocabulary 100 padded to 128
  const int64_t block =
      Padded({32, 32, 96 * 32, 96, 32 * 32, 32, 32, 32, 128 * 32, 128, 32 * 128, 32}, world);
  return embed + kLayers * block + Padded({32, 32}, world);
}

// All figures below for a model that is gathered once and reduced once in a step, all in f32.
TinyPlan NeverResharded(Mesh mesh, int accumulate) {
  PlanOptions options = SmallBatch(accumulate);
  options.reshard = Reshard::kNever;
  return PlanFor(SmallModel(kLayers), mesh, {}, options);
}

TEST_CASE("wire bytes of a model that is gathered and reduced once per step", "[plan][report]") {
  const int world = GENERATE(1, 2, 3, 4);
  const int accumulate = GENERATE(1, 2, 5);
  CAPTURE(world, accumulate);
  const PlanReport r = NeverResharded({1, world}, accumulate).Report(FindMachine("h100"));
  const int64_t sent = 4 * PaddedModel(world) / world * (world - 1);
  // A row of f64 from every other rank.
  const int64_t statistics = (world - 1) * 8 * (2 * kFlats + 1);
  REQUIRE(r.wire.parameters == sent);
  REQUIRE(r.wire.gradients == sent);
  REQUIRE(r.wire.gradient_replicas == 0);
  REQUIRE(r.wire.statistics == statistics);
  REQUIRE(r.step.gathered_bytes == sent + statistics);
  REQUIRE(r.step.reduced_bytes == sent);
  REQUIRE(r.step.wire_bytes() == 2 * sent + statistics);
  REQUIRE(r.step.all_gathers == (world > 1 ? kFlats + 1 : 0));
  REQUIRE(r.step.reduce_scatters == (world > 1 ? kFlats : 0));
  REQUIRE(r.step.all_reduces == 0);
  REQUIRE(r.step.concatenated_bytes == 0);
  REQUIRE(r.step.cast_bytes == 0);
}

TEST_CASE("state and checkpoint: 12 bytes per padded parameter, cut by the shard axis",
          "[plan][report]") {
  const int shard = GENERATE(1, 2, 3);
  const int replicate = GENERATE(1, 2);
  const TinyPlan tiny = NeverResharded({replicate, shard}, 1);
  const PlanReport r = tiny.Report(FindMachine("h200"));
  const auto of = [&](BufferClass cls) { return r.memory.by_class[static_cast<size_t>(cls)]; };
  REQUIRE(of(BufferClass::kParameters) == 4 * PaddedModel(shard) / shard);
  REQUIRE(of(BufferClass::kOptimizer) == 8 * PaddedModel(shard) / shard);
  REQUIRE(r.memory.checkpoint == 12 * PaddedModel(shard));
  REQUIRE(r.memory.checkpoint_per_rank == 12 * PaddedModel(shard) / shard);
  REQUIRE(r.world == shard * replicate);
  REQUIRE(r.tokens_per_step == r.world * 3 * 16);
}

TEST_CASE("classes at the peak add up to the most bytes that live at once", "[plan][report]") {
  const TinyPlan tiny = PlanFor(SmallModel(kLayers), {1, 2}, {}, SmallBatch(3));
  const PlanReport r = tiny.Report(FindMachine("h100"));
  int64_t most = 0;
  for (int64_t at = 0; at < tiny.plan.timeline_end(); ++at) {
    int64_t now = 0;
    for (const PlanBuffer& b : tiny.plan.buffers)
      for (const Interval& i : b.live)
        if (i.begin <= at && at < i.end) now += (b.bytes + 255) / 256 * 256;
    most = std::max(most, now);
  }
  int64_t sum = 0;
  for (size_t c = 0; c < r.memory.at_peak.size(); ++c) {
    sum += r.memory.at_peak[c];
    REQUIRE(r.memory.at_peak[c] <= r.memory.by_class[c]);
  }
  REQUIRE(sum == most);
  REQUIRE(r.memory.lower_bound == most);
  REQUIRE(r.memory.arena >= most);
  REQUIRE(r.memory.run_arena == r.memory.arena);
  ReportInput input = tiny.Input(FindMachine("h100"));
  input.other_plans_arena = r.memory.arena + 512;
  REQUIRE(MakePlanReport(input).memory.run_arena == r.memory.arena + 512);
}

TEST_CASE("tokens per second and MFU follow from the simulated step", "[plan][report]") {
  const PlanReport r = NeverResharded({1, 4}, 2).Report(FindMachine("h100"));
  REQUIRE(r.tokens_per_step == 4 * 2 * 3 * 16);
  REQUIRE(r.time.tokens_per_second == Approx(384 / r.time.step));
  const double n = kLayers * (96 + 32 + 128 + 128) * 32 + 100 * 32;
  REQUIRE(r.flops_per_token_causal == 6 * n + 6 * kLayers * 32 * 16);
  REQUIRE(r.time.peak_flops == 66.9e12);  // compute in fp32
  REQUIRE(r.time.mfu_causal == Approx(r.flops_per_token_causal * 96 / r.time.step / 66.9e12));
  REQUIRE(r.time.mfu_full / r.time.mfu_causal ==
          Approx((6 * n + 12 * kLayers * 512) / (6 * n + 6 * kLayers * 512)));
}

TEST_CASE("a run's summary gets the figures that it will measure", "[plan][report]") {
  const PlanReport r = NeverResharded({1, 4}, 2).Report(FindMachine("cpu"));
  const std::map<std::string, double> predicted = PredictedFigures(r);
  REQUIRE(predicted.at("gathers_per_step") == kFlats + 1);
  REQUIRE(predicted.at("reduces_per_step") == kFlats);
  REQUIRE(predicted.at("bytes_reduced_per_step") == static_cast<double>(3 * PaddedModel(4)));
  REQUIRE(predicted.at("bytes_gathered_per_step") ==
          static_cast<double>(3 * PaddedModel(4) + 3 * 8 * (2 * kFlats + 1)));
  REQUIRE(predicted.at("arena_bytes") == static_cast<double>(r.memory.run_arena));
  REQUIRE(predicted.at("median_step_ms") == r.time.step * 1e3);
  REQUIRE(predicted.at("mfu") == r.time.mfu_causal);
}

TEST_CASE("sums by kind are the sums of the ops, each as often as it runs", "[plan][report]") {
  const PlanReport r =
      PlanFor(SmallModel(kLayers), {1, 2}, {}, SmallBatch(4)).Report(FindMachine("h100"));
  int64_t count = 0;
  double roofline = 0;
  for (const KindFigures& kind : r.kinds) {
    CAPTURE(kind.kind);
    int64_t runs = 0, wire = 0;
    double flops = 0;
    for (const OpFigures& op : r.ops) {
      if (op.kind != kind.kind) continue;
      runs += op.runs;
      wire += op.runs * op.each.wire_bytes;
      flops += static_cast<double>(op.runs) * op.each.flops;
    }
    REQUIRE(kind.count == runs);
    REQUIRE(kind.sum.wire_bytes == wire);
    REQUIRE(kind.sum.flops == Approx(flops));
    count += runs;
    roofline += kind.sum.seconds;
  }
  REQUIRE(count == r.step.ops);
  REQUIRE(r.time.roofline == Approx(roofline));
  REQUIRE(std::is_sorted(r.kinds.begin(), r.kinds.end(), [](const auto& a, const auto& b) {
    return a.sum.seconds > b.sum.seconds;
  }));
  // Four microbatches: a body of the middle variant runs twice.
  const auto middle = std::find_if(r.ops.begin(), r.ops.end(),
                                   [](const OpFigures& op) { return op.body == "forward.middle"; });
  REQUIRE(middle != r.ops.end());
  REQUIRE(middle->runs == 2);
}

TEST_CASE("a plan for GPUs says how much of a device it takes, and when that is too much",
          "[plan][report]") {
  PlanOptions options = SmallBatch(1);
  Machine machine = FindMachine("h200");
  CHECK(PlanFor(SmallModel(1), {1, 2}, {}, options).Report(machine).memory.device ==
        0);  // a plan for the CPU
  options.backend = Backend::kCuda;
  const TinyPlan plan = PlanFor(SmallModel(1), {1, 2}, {}, options);
  const PlanReport r = plan.Report(machine);
  const Mesh two(1, 2);
  const int64_t arena = r.memory.run_arena,
                nccl = BesideArena(MostCommunicators(two), two, machine, arena);
  CHECK(r.memory.device == r.memory.run_arena + nccl);
  CHECK(PlanReportJson(r)["memory"]["device_bytes"] == r.memory.device);
  CHECK_THAT(PlanReportText(r), !Catch::Contains("does not fit"));
  machine.device_bytes = r.memory.device - 1;
  CHECK_THAT(PlanReportText(plan.Report(machine)), Catch::Contains("does not fit"));
}

std::string Keys(const json& value, const std::string& prefix) {
  std::string keys;
  for (const auto& [key, child] : value.items()) {
    keys += prefix + key + "\n";
    if (child.is_object()) keys += Keys(child, prefix + key + ".");
  }
  return keys;
}

TEST_CASE("the keys of plan --json are a contract", "[plan][report]") {
  const PlanReport r =
      PlanFor(SmallModel(1), {1, 2}, {}, SmallBatch(1)).Report(FindMachine("h100"));
  const json report = PlanReportJson(r);
  const std::string classes[] = {"parameters", "gradients", "optimizer", "activations",
                                 "workspaces", "slots",     "runtime"};
  for (const std::string& cls : classes) {
    CAPTURE(cls);
    REQUIRE(report["memory"]["bytes_per_rank"].contains(cls));
    REQUIRE(report["memory"]["bytes_at_peak"].contains(cls));
  }
  std::string keys;
  for (const auto& [key, child] : report.items())
    if (key != "machine" && key != "options") keys += Keys(json{{key, child}}, "");
  REQUIRE(
      keys ==
      "batch\nbatch.accumulate\nbatch.micro_batch\nbatch.seq_len\nbatch.tokens_per_step\n"
      "checkpoint\ncheckpoint.bytes\ncheckpoint.bytes_per_rank\n"
      "choices\n"
      "flops\nflops.formula\nflops.per_rank_and_step\nflops.per_rank_and_step.causal\nflops.per_"
      "rank_and_"
      "step.full\n"
      "flops.per_rank_and_step.ops\nflops.per_token\nflops.per_token.causal\nflops.per_token.full\n"
      "memory\nmemory.arena_bytes\nmemory.bytes_at_peak\nmemory.bytes_at_peak.activations\nmemory."
      "bytes_at_"
      "peak.gradients\n"
      "memory.bytes_at_peak.optimizer\nmemory.bytes_at_peak.parameters\nmemory.bytes_at_peak."
      "runtime\n"
      "memory.bytes_at_peak.slots\nmemory.bytes_at_peak.workspaces\nmemory.bytes_per_rank\n"
      "memory.bytes_per_rank.activations\nmemory.bytes_per_rank.gradients\nmemory.bytes_per_rank."
      "optimizer\n"
      "memory.bytes_per_rank.parameters\nmemory.bytes_per_rank.runtime\nmemory.bytes_per_rank."
      "slots\n"
      "memory.bytes_per_rank.workspaces\nmemory.device_bytes\nmemory.device_has_bytes\nmemory."
      "gradient_pool_"
      "bytes\nmemory.lower_bound_"
      "bytes\n"
      "memory.parameter_pool_bytes\nmemory.persistent_bytes\nmemory.run_arena_bytes\n"
      "mesh\nmesh.replicate\nmesh.shard\nmesh.world\n"
      "model\nmodel.blocks\nmodel.d_model\nmodel.family\nmodel.ffn\nmodel.head_dim\nmodel."
      "heads\nmodel.kv_"
      "heads\nmodel."
      "layers\n"
      "model.matmul_parameters\nmodel.padded_vocab\nmodel.parameters\nmodel.seq_len\nmodel.vocab\n"
      "plan\nplan.execution\nplan.hash\nplan.kind\n"
      "prologue\nprologue.all_gathers\nprologue.all_reduced_bytes\nprologue.all_reduces\nprologue."
      "all_to_alls\nprologue."
      "cast_"
      "bytes\n"
      "prologue.concatenated_bytes\nprologue.copied_bytes\nprologue.exchanged_bytes\n"
      "prologue.gathered_bytes\nprologue."
      "ops\nprologue."
      "reduce_scatters\n"
      "prologue.reduced_bytes\n"
      "recompute\nrecompute.activations\nrecompute.auto\nrecompute.block_units\nrecompute."
      "everything\n"
      "recompute.exchanges\nrecompute.exchanges.all\nrecompute.exchanges.held_bytes\n"
      "recompute.exchanges.kept\nrecompute.exchanges.wire_bytes_saved\n"
      "recompute.norms\nrecompute.ops\nrecompute.saved_bytes\nrecompute.seconds\n"
      "roofline\nroofline.by_kind\nroofline.ops\n"
      "step\nstep.all_gathers\nstep.all_reduced_bytes\nstep.all_reduces\nstep.all_to_alls\n"
      "step.cast_bytes\nstep."
      "concatenated_"
      "bytes\n"
      "step.copied_bytes\nstep.exchanged_bytes\nstep.gathered_bytes\nstep.ops\nstep.reduce_"
      "scatters\nstep.reduced_bytes\n"
      "time\ntime.busy_s\ntime.busy_s.compute\ntime.busy_s.gather\ntime.busy_s.reduce\ntime."
      "exposed_by_"
      "stream_s\n"
      "time.exposed_by_stream_s.compute\ntime.exposed_by_stream_s.gather\ntime.exposed_by_stream_s."
      "reduce\n"
      "time.exposed_communication_s\ntime.mfu_causal\ntime.mfu_full\ntime.peak_flops_per_s\ntime."
      "roofline_"
      "s\ntime.step_s\n"
      "time.tokens_per_s\ntime.tokens_per_s_per_rank\n"
      "wire\nwire.by_collective\nwire.by_collective.all_gather\nwire.by_collective.all_gather."
      "bytes\n"
      "wire.by_collective.all_gather.count\nwire.by_collective.all_reduce\nwire.by_collective.all_"
      "reduce."
      "bytes\n"
      "wire.by_collective.all_reduce.count\nwire.by_collective.all_to_all\n"
      "wire.by_collective.all_to_all.bytes\nwire.by_collective.all_to_all.count\n"
      "wire.by_collective.reduce_scatter\nwire.by_collective."
      "reduce_"
      "scatter.bytes\n"
      "wire.by_collective.reduce_scatter.count\nwire.by_purpose\nwire.by_purpose.exchanges\n"
      "wire.by_purpose.gradient_"
      "replicas\nwire.by_"
      "purpose.gradients\n"
      "wire.by_purpose.parameters\nwire.by_purpose.statistics\nwire.bytes_per_rank_and_step\n"
      "wire.parameters_as\nwire.parameters_as.f32\n");
  REQUIRE(report["plan"]["hash"] == r.hash);
  REQUIRE(report["options"]["sharding.reshard"] == "after_forward");
  REQUIRE(report["memory"]["arena_bytes"].is_number_integer());
  REQUIRE(report["roofline"]["ops"].size() == r.ops.size());
  for (const char* key : {"kind", "label", "body", "stream", "runs", "seconds", "flops",
                          "read_bytes", "write_bytes", "wire_bytes", "bound"})
    REQUIRE(report["roofline"]["ops"][0].contains(key));
  REQUIRE_FALSE(PlanReportJson(r, OpList::kNone)["roofline"].contains("ops"));
}

TEST_CASE("options name what linears multiply where that is FP8", "[plan][report]") {
  const auto options = [](LinearEncoding linears) {
    return PlanFor(SmallModel(2), {1, 1}, {}, SmallBatch(1), linears)
        .Report(test::SlowMachine())
        .options;
  };
  CHECK_FALSE(options(LinearEncoding::kCompute).contains("precision.linear"));
  for (const LinearEncoding linears : {LinearEncoding::kFp8Tensor, LinearEncoding::kFp8Block})
    CHECK(options(linears).at("precision.linear") == Name(linears));
}

TEST_CASE("a plan says what gathered parameters travel as", "[plan][report]") {
  const auto report = [](WeightGather gather) {
    PlanOptions options = SmallBatch(1);
    options.downcast = Downcast::kAfterUpdate;
    PrecisionPolicy precision;
    precision.compute = DType::kBF16;
    return PlanFor(SmallModel(2), {1, 2}, precision, options, LinearEncoding::kFp8Block, gather)
        .Report(test::SlowMachine());
  };
  const PlanReport wide = report(WeightGather::kCompute), narrow = report(WeightGather::kLinear);
  CHECK_FALSE(wide.options.contains("precision.gather"));
  CHECK(narrow.options.at("precision.gather") == "linear");
  CHECK(PlanReportText(wide).find("parameters as") == std::string::npos);
  CHECK(PlanReportText(narrow).find("e4m3 ") != std::string::npos);
  for (const PlanReport& r : {wide, narrow}) {
    int64_t sum = 0;
    for (const auto& [dtype, bytes] : r.wire.parameters_as) sum += bytes;
    CHECK(sum == r.wire.parameters);
    const json figures = PlanReportJson(r, OpList::kNone)["wire"]["parameters_as"];
    CHECK(figures.size() == r.wire.parameters_as.size());
    CHECK(figures["bf16"] == r.wire.parameters_as.at(DType::kBF16));
  }
  // Of two blocks, each gathered once: half a bucket of 8 bits where it was one of 16.
  const int64_t block = Padded({96 * 32, 96, 32 * 32, 32, 128 * 32, 128, 32 * 128, 32}, 4);
  CHECK(narrow.wire.parameters_as.at(DType::kE4M3) == 2 * block / 2);
  CHECK(wide.wire.parameters_as.at(DType::kBF16) - narrow.wire.parameters_as.at(DType::kBF16) ==
        2 * block / 2 * 2);
}

TEST_CASE("a plan in FP8 says at what rate the machine multiplies it", "[plan][report]") {
  const auto report = [](LinearEncoding linears) {
    return PlanFor(SmallModel(2), {1, 1}, {}, SmallBatch(1), linears).Report(FindMachine("h100"));
  };
  const PlanReport compute = report(LinearEncoding::kCompute),
                   fp8 = report(LinearEncoding::kFp8Block);
  CHECK_THAT(PlanReportText(fp8), Catch::Contains("GEMM 1.37 PFLOP/s FP8, 770 TFLOP/s bf16"));
  CHECK_THAT(PlanReportText(compute), !Catch::Contains("FP8"));
  CHECK(PlanReportJson(fp8, OpList::kNone)["machine"]["gemm_fp8_flops_per_s"] == 1.37e15);
  CHECK_FALSE(PlanReportJson(compute, OpList::kNone)["machine"].contains("gemm_fp8_flops_per_s"));
}

TEST_CASE("the text fits 100 columns and says the figures", "[plan][report]") {
  const int world = GENERATE(1, 2);
  const std::string machine = GENERATE("h100", "cpu");
  PlanOptions options = SmallBatch(2);
  options.allocator = GENERATE(AllocatorKind::kPacked, AllocatorKind::kMaxPool);
  const PlanReport r = PlanFor(SmallModel(7), {1, world}, {}, options).Report(FindMachine(machine));
  const std::string text = PlanReportText(r);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    REQUIRE(line.size() <= 100);
    REQUIRE((line.empty() || line.back() != ' '));
  }
  for (const std::string& part :
       {r.hash, BytesText(r.memory.arena), BytesText(r.memory.lower_bound),
        SecondsText(r.time.step), "tokens/s                " + CountText(r.time.tokens_per_second),
        std::string("all-gather")})
    REQUIRE_THAT(text, Catch::Contains(part));
  REQUIRE_THAT(text,
               Catch::Contains("h.*/ln_2: forms the residual sum h.*/attn.add itself (7 times)"));
}

TEST_CASE("figures for people keep three digits", "[plan][report]") {
  REQUIRE(BytesText(0) == "0 B");
  REQUIRE(BytesText(1023) == "1023 B");
  REQUIRE(BytesText(1024) == "1.00 KiB");
  REQUIRE(BytesText(int64_t{1536} << 20) == "1.50 GiB");
  REQUIRE(BytesText(int64_t{100} << 30) == "100 GiB");
  REQUIRE(SecondsText(12.34) == "12.3 s");
  REQUIRE(SecondsText(0.25) == "250 ms");
  REQUIRE(SecondsText(9.999e-3) == "10.0 ms");
  REQUIRE(SecondsText(1.5e-6) == "1.50 us");
  REQUIRE(CountText(999) == "999 ");
  REQUIRE(CountText(1.24e8) == "124 M");
}

}  // namespace
}  // namespace millrace

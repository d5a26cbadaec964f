// The hybrids of configs and Qwen3's stacks, with a block that predicts one token further and
// without: the sizes and FLOPs that their shapes were published with, and plans on a laptop for one
// rank and for many.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/config/load.h"
#include "runtime/plan/graph/model_flops.h"
#include "runtime/plan/schedule/allocator_table.h"
#include "runtime/run/assemble.h"

namespace millrace {
namespace {

using Sets = std::vector<std::string>;

LoadedConfig Load(const std::string& name, const Sets& sets, int world) {
  return LoadConfig(Sets{"configs/" + name + ".json"}, sets, {.world = world, .has_cuda = true});
}

AssembledRun Plan(const std::string& name, const Sets& sets, int world) {
  return Assemble(Load(name, sets, world).config, world, {.backend = Backend::kCuda}, {"train"});
}

// By hand, from the shapes as NVIDIA and Qwen published them. `all`: elements of one block of the
// kind; `active`: of its matrices, those that one token is multiplied by.
struct Kind {
  char kind;
  int64_t all, active, attention = 0, scan = 0;  // columns of attention; channels * states
};
Kind Mamba(int64_t c, int64_t heads, int64_t groups = 8, int64_t state = 128) {
  const int64_t inner = heads * 64, conv = inner + 2 * groups * state;
  const int64_t matrices = c * (inner + conv + heads) + inner * c + conv * 4;
  return {'M', matrices + conv + 3 * heads + inner + c, matrices, 0, inner * state};
}
Kind Attention(int64_t c, int64_t heads, int64_t kv_heads) {
  const int64_t matrices = c * (heads + 2 * kv_heads) * 128 + heads * 128 * c;
  return {'*', matrices + c, matrices, heads * 128};
}
Kind Mlp(int64_t c, int64_t ffn) { return {'-', 2 * c * ffn + c, 2 * c * ffn}; }
Kind Experts(int64_t c, int64_t experts, int64_t top_k, int64_t ffn, int64_t shared) {
  const int64_t dense = experts * c + 2 * c * shared;
  const int64_t bias = experts;  // of the router, in no product
  return {'E', dense + experts * 2 * c * ffn + c + bias, dense + top_k * 2 * c * ffn};
}
// Attention with norms of queries and keys, and experts with a gate, each behind a norm.
Kind QwenExperts(int64_t c, int64_t heads, int64_t kv_heads, int64_t experts, int64_t top_k,
                 int64_t ffn) {
  const Kind attention = Attention(c, heads, kv_heads);
  return {'E', attention.all + 2 * 128 + experts * c + experts * 3 * c * ffn + c,
          attention.active + experts * c + top_k * 3 * c * ffn, attention.attention};
}

// The same with an MLP in the experts' place.
Kind QwenMlp(int64_t c, int64_t heads, int64_t kv_heads, int64_t ffn) {
  const Kind attention = Attention(c, heads, kv_heads);
  return {'-', attention.all + 2 * 128 + 3 * c * ffn + c, attention.active + 3 * c * ffn,
          attention.attention};
}

struct Hybrid {
  const char* name;
  std::string pattern;
  int64_t width, vocab;
  std::vector<Kind> kinds;
  std::string further;             // of a block behind the trunk: its branches; one: the family's
  double billions, active = 0;     // as published; 0: nobody has
  double gflops_without_scan = 0;  // per token of 4096
  bool tied = false;
};

constexpr const char* kNano = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
constexpr const char* kH = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";

std::vector<Hybrid> Hybrids() {
  const std::vector<Kind> nano = {Mamba(2688, 64), Attention(2688, 32, 2),
                                  Experts(2688, 128, 6, 1856, 3712)};
  const std::string whole = kNano, h = kH;
  return {
      {"nemotron_nano", whole, 2688, 131072, nano, "*E", 31.58, 3.58, 19.97},
      {"nemotron_nano_half", whole.substr(0, 26), 2688, 131072, nano, "*E", 0},
      {"nemotron_h_8b",
       h,
       4096,
       131072,
       {Mamba(4096, 128), Attention(4096, 32, 8), Mlp(4096, 21504)},
       "*-",
       8.1},
      {"nemotron_h_1b",
       h.substr(0, 26),
       2048,
       131072,
       {Mamba(2048, 64), Attention(2048, 16, 4), Mlp(2048, 10752)},
       "*-",
       0},
      // Eight of 48 layers: 30.53 B - 40 x 0.623 B.
      {"qwen3_moe_8l",
       "EEEEEEEE",
       2048,
       151936,
       {QwenExperts(2048, 32, 4, 128, 8, 768)},
       "E",
       5.61},
      // 0.6 B, of which 0.44 B are no embedding.
      {.name = "qwen3_600m",
       .pattern = std::string(28, '-'),
       .width = 1024,
       .vocab = 151936,
       .kinds = {QwenMlp(1024, 16, 8, 3072)},
       .further = "-",
       .billions = 0.596,
       .tied = true},
  };
}

const Kind& Of(const Hybrid& h, char kind) {
  for (const Kind& each : h.kinds)
    if (each.kind == kind) return each;
  FAIL("no such kind");
  return h.kinds.front();
}

Sets Further(const Hybrid& h) {
  Sets sets = {"model.mtp.depth=1"};
  if (h.further.size() > 1) sets.push_back("model.mtp.pattern=" + h.further);
  return sets;
}

TEST_CASE("hybrids of configs have the published sizes and FLOPs per token", "[run][hybrid]") {
  for (const Hybrid& h : Hybrids())
    for (const bool further : {false, true}) {
      INFO(h.name << (further ? " with a further token" : ""));
      const AssembledRun run = Plan(h.name, further ? Further(h) : Sets{}, 1);
      int64_t all = (h.tied ? 1 : 2) * h.vocab * h.width + h.width, active = h.vocab * h.width;
      double attention = 0, scans = 0, flops = 0;
      const auto add = [&](const Kind& kind) {
        all += kind.all;
        active += kind.active;
        attention += static_cast<double>(kind.attention);
        scans += static_cast<double>(kind.scan);
      };
      for (const char kind : h.pattern) add(Of(h, kind));
      if (further) {  // its branches, the projection of two rows, and three norms
        for (const char kind : h.further) add(Of(h, kind));
        all += 2 * h.width * h.width + 3 * h.width;
        active += 2 * h.width * h.width;
        flops += 6 * static_cast<double>(h.vocab * h.width);  // its head
      }
      flops += 6 * static_cast<double>(active) + 6 * attention * 4096 + 21 * scans;
      CHECK(Parameters(run.spec) == all);
      CHECK(MatmulParameters(run.spec) == active);
      CHECK(run.flops.causal == Approx(flops).epsilon(1e-12));
      if (further) continue;
      if (h.billions > 0) CHECK(static_cast<double>(all) / 1e9 == Approx(h.billions).epsilon(2e-3));
      if (h.active > 0)  // the embedding counts as active there
        CHECK(static_cast<double>(active + h.vocab * h.width) / 1e9 ==
              Approx(h.active).epsilon(2e-3));
      if (h.gflops_without_scan > 0)
        CHECK((flops - 21 * scans) / 1e9 == Approx(h.gflops_without_scan).epsilon(1e-3));
    }
}

// Assemble proves each plan.
TEST_CASE("hybrids of configs are planned for one rank and for many", "[run][hybrid]") {
  for (const Hybrid& h : Hybrids())
    for (const int world : {1, 2, 4, 8, 64})
      for (const bool further : {false, true}) {
        INFO(h.name << ", " << world << " ranks" << (further ? ", a further token" : ""));
        const AssembledRun run = Plan(h.name, further ? Further(h) : Sets{}, world);
        const StepPlan& plan = run.plans.Of("train");
        // Master weights, two moments and bf16 weights of a rank's share, and what pads it.
        const double share = 14.0 * static_cast<double>(Parameters(run.spec)) / world;
        CHECK(static_cast<double>(plan.persistent_bytes) > share);
        CHECK(static_cast<double>(plan.persistent_bytes) < 1.01 * share + (8 << 20));
        CHECK(plan.arena_bytes < 1.02 * static_cast<double>(plan.lower_bound));
      }
}

TEST_CASE("published stacks: packed pools meet their bound, and every arena is as the table says",
          "[run][hybrid]") {
  for (const char* name : {"nemotron_nano", "nemotron_h_8b"}) {
    const Config config = Load(name, {}, 8).config;
    const AssembledRun run = Plan(name, {}, 8);
    const AllocatorTable table = CompareAllocators(config, run);
    REQUIRE(table.rows.size() == 6);
    for (const AllocatorRow& row : table.rows) {
      INFO(name << " " << Name(row.kind));
      CHECK(row.bytes.parameters >= table.lower_bound.parameters);
      CHECK(row.bytes.gradients >= table.lower_bound.gradients);
      CHECK(row.bytes.arena >= table.lower_bound.arena);
      const std::string set = fmt::format("memory.allocator={}", Name(row.kind));
      const AssembledRun with = Plan(name, {set}, 8);
      const StepPlan& plan = with.plans.Of("train");
      CHECK(row.bytes.arena == plan.arena_bytes);
      if (row.kind == AllocatorKind::kPacked) {
        CHECK(row.bytes.parameters == table.lower_bound.parameters);
        CHECK(row.bytes.gradients == table.lower_bound.gradients);
      } else {
        CHECK(row.bytes.parameters == plan.param_pool_bytes);
        CHECK(row.bytes.gradients == plan.grad_pool_bytes);
        CHECK(row.bytes.parameters > table.lower_bound.parameters);
      }
    }
  }
}

}  // namespace
}  // namespace millrace

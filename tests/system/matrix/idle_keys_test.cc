// What runtime/config calls a key without effect leaves the plan as it is, and every other value
// changes it.
#include <catch2/catch.hpp>

#include "runtime/config/load.h"
#include "runtime/plan/step_plan.h"
#include "runtime/run/assemble.h"

namespace millrace {
namespace {

// {"section": {"key": VALUE}} of "section.key=VALUE".
std::string File(const std::string& set) {
  const size_t dot = set.find('.'), equals = set.find('=');
  return "{\"" + set.substr(0, dot) + "\": {\"" + set.substr(dot + 1, equals - dot - 1) +
         "\": " + set.substr(equals + 1) + "}}";
}

struct Circumstances {
  int world, replicate;
  std::string compute, downcast;
  int accumulate;
};

// The later author, who decides whether the option of the first one acts. All parameters are
// multiples of 128 elements: in which dtype gradients travel decides how others are aligned
// (shard_layout.cc), also where none travels.
std::string File(const Circumstances& c) {
  std::string text =
      R"({"model": {"layers": 4, "d_model": 128, "heads": 2, "vocab": 64, "seq_len": 8},
    "data": {"kind": "synthetic"}, "precision": {"compute": ")" +
      c.compute + R"("}, "train": {"micro_batch": 1, "accumulate": )" +
      std::to_string(c.accumulate) + R"(}, "parallel": {"replicate": )" +
      std::to_string(c.replicate) + "}";
  if (!c.downcast.empty()) text += R"(, "sharding": {"downcast": ")" + c.downcast + "\"}";
  return text + "}";
}

struct Planned {
  std::string plan;
  size_t notes;
};

Planned PlanOf(const std::string& first, const Circumstances& c) {
  const std::vector<ConfigText> texts = {{"first.json", first}, {"later.json", File(c)}};
  const LoadedConfig loaded = LoadConfigTexts(texts, {}, {.world = c.world});
  const AssembledRun run =
      Assemble(loaded.config, c.world, {Backend::kCpu, 0, 0}, {"train", "eval", "generate"});
  return {ToString(run.plans.Of("train")) + ToString(run.plans.Of("eval")) +
              ToString(run.plans.Of("generate")),
          loaded.notes.size()};
}

TEST_CASE("a key is called idle exactly where it changes no plan", "[config][idle][plan]") {
  int idle = 0, acts = 0;
  for (const auto& [world, replicate] : {std::pair(1, 1), {2, 1}, {2, 2}, {4, 2}})
    for (const std::string compute : {"fp32", "bf16"})
      for (const std::string downcast : {"", "per_gather"})
        for (const int accumulate : {1, 2}) {
          // With fp32 the choice has no effect, which would be a note of its own.
          if (compute == "fp32" && !downcast.empty()) continue;
          const Circumstances c{world, replicate, compute, downcast, accumulate};
          const Planned without = PlanOf("{}", c);
          REQUIRE(without.notes == 0);
          for (const std::string option : {"sharding.reshard=\"never\"",
                                           "sharding.reshard=\"after_backward\"",
                                           "sharding.downcast=\"after_gather\"",
                                           "sharding.downcast=\"per_gather\"",
                                           "sharding.grad_sync=\"last\"",
                                           "sharding.grad_concat=\"every\"",
                                           "sharding.blocks_per_unit=2",
                                           "memory.allocator=\"coloured\"",
                                           "memory.allocator=\"max_pool\"",
                                           "memory.allocator=\"fixed\"",
                                           "memory.allocator=\"persistent\"",
                                           "memory.allocator=\"dynamic\"",
                                           "memory.prefetch=0",
                                           "memory.prefetch=3",
                                           "memory.reduce_depth=2",
                                           "memory.recompute=\"block\"",
                                           "precision.norms=\"compute\"",
                                           "precision.grad_accumulate=\"bf16\"",
                                           "precision.grad_wire=\"bf16\"",
                                           "execution.overlap_weight_gradients=true"}) {
            if (!downcast.empty() && option.starts_with("sharding.downcast")) continue;
            CAPTURE(world, replicate, compute, downcast, accumulate, option);
            const Planned with = PlanOf(File(option), c);
            REQUIRE(with.notes == (with.plan == without.plan ? 1 : 0));
            (with.notes == 1 ? idle : acts) += 1;
          }
        }
  REQUIRE(idle > 50);
  REQUIRE(acts > 200);
}

}  // namespace
}  // namespace millrace

// Sequences that are put through prefill and decode token by token, with the logits that the
// training forward has of them.
#pragma once

#include <functional>
#include <vector>

#include "runtime/run/generate/engine_token_model.h"
#include "tests/system/options.h"

namespace millrace::test {

using Logits = std::vector<float>;  // [Vp]

// Two blocks and sequences of 80: a block of 64 queries of attention, and one of 16.
Trial GeneratingTrial(ModelConfig::Family family, Precision precision, int world = 1);

// With the plans of training, evaluation and inference.
AssembledRun InferenceRun(const Trial& trial);
void RunPlans(const Trial& trial, const std::function<void(RankContext&)>& fn);

// A sequence that is put through a model token by token, whatever that would draw.
struct Sequence {
  int64_t slot = 0;
  std::vector<int32_t> tokens;
  std::vector<int64_t> prompt;  // tokens of each of its prefills
  std::vector<Logits> expected;
  double tolerance = 0;  // of logits; 0: their bits
  std::vector<int32_t> pages = {};
  int64_t cached = 0;
};

inline const Sampling kGreedy{.temperature = 0, .top = 3};

// Six sequences whose prompts are cut in many ways, their pages dealt out in no order. A
// collective; other sequences on each data rank.
std::vector<Sequence> SequencesOf(RankContext& rank, const Config& config);

// Each throws where the plan's logits are not those that are expected.
// Its whole prompt, in its parts.
void Prefill(RankContext& rank, EngineTokenModel& model, Sequence& s);
// A token of each of `active`, in that order.
void Decode(RankContext& rank, EngineTokenModel& model, const std::vector<Sequence*>& active);
// All of them, up to `length`: one joins every third step, each leaves at its end; the order of
// rows changes from step to step.
void Generate(RankContext& rank, EngineTokenModel& model, std::vector<Sequence>& sequences,
              int64_t length);

// Returns, by rank, what was generated. `expected`: such, where the engine poisons what the
// training forward leaves.
using Generated = std::vector<std::vector<Sequence>>;
Generated RequireLogits(const Trial& trial, const Generated* expected = nullptr);

}  // namespace millrace::test

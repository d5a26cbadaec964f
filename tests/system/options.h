// The options that may not change a bit of a run, and for each the counter that
// shows that it is in force.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/system/run_model.h"

namespace millrace::test {

// What an option reaches: the run alone, so that the plan and its hash are the base's; the plan's
// title (how it will be run), so that the hash is another and all that is planned the same; or what
// is planned.
enum class Reach { kRun, kTitle, kPlan };

struct Option {
  std::string name;
  std::function<void(Trial&)> set;
  // Whether the option has anything to act on: a gather needs ranks to gather from, a
  // downcast a narrower dtype.
  std::function<bool(const Trial&)> applies;
  // A number that must differ from the base's when it applies: counted while the run ran, or
  // planned bytes that the engine allocated.
  std::function<int64_t(const Outcome&)> governs;
  // False: chosen when the run starts, so that the plan and its hash are the base's.
  Reach reach = Reach::kPlan;
  // What the addresses, the order and the edges of the executed plan have to be, whatever the
  // base's are: why they are not, or "". tests/system/plan_effects.h.
  std::function<std::string(const Trial&, const Outcome&)> trouble = nullptr;
};
std::vector<Option> BitwiseOptions();
// Of a block one bucket at most is gathered, and blocks are of one kind: what effects on addresses
// and order are stated for.
bool OneBucketPerBlock(const AssembledRun& run);

// What the options are compared within: runs of different bases have different bits.
struct Base {
  std::string name;
  Trial trial;
};

enum class Precision {
  kFp32,
  kBf16,
  kBf16Sums,
  kBf16All,
  kFp16,
  kFp16All
};  // bf16 activations; + bf16 gradient sums; + bf16 wire and norms; fp16 as the first and the last
void SetPrecision(Config& config, Precision precision);
std::string Name(Precision precision);
Base MakeBase(ModelConfig::Family family, bool tied, Precision precision, int world,
              int64_t accumulate);
// The same with linears in FP8; tied for GPT-2, untied for others.
inline constexpr LinearEncoding kFloat8Encodings[] = {LinearEncoding::kFp8Tensor,
                                                      LinearEncoding::kFp8Block};
Base MakeFloat8Base(ModelConfig::Family family, LinearEncoding linear, Precision precision,
                    int world, int64_t accumulate);
// Sizes past a block of 128 in each direction, and no multiple of it.
void WidenPastBlocks(Config& config);
// Seven blocks in units of 1, 1, 3, 1 and 1, in which the allocators differ.
void MakeUneven(Base& base);
// The same with blocks split over `tensor` ranks, 2 or 3; sizes that these divide.
void MakeTensor(Base& base, int64_t tensor);

// Groups of parameters: a block, parts of others and a norm that are frozen, one block's MLP or
// experts and all second norms with constants of their own; by Muon another block's MLP.
void SetGroups(Config& config, bool muon);

// Qwen3's blocks with eight experts, on ranks of their own along `expert`, 1, 2 or 4.
void MakeExperts(Base& base, int64_t expert);
// Such bases, alone and beside shard or replicate.
std::vector<Base> ExpertBases(Precision precision);

// Bases of meshes that split a model: tensor, context, both, and each beside shard or replicate.
// Sequences of 12, accumulate 2.
std::vector<Base> SplitBases(ModelConfig::Family family, Precision precision);

// memory.recompute=auto with half of what recomputing norms and activations everywhere saves left
// to save: of the arena that the trial's other options plan.
void SetTightBudget(Trial& trial);

// Whether a configuration file may ask for this, by the rules that the command line checks.
bool Valid(const Trial& trial);
// REQUIREs the closed forms on every rank, and that the engine allocated what was planned.
void RequireCounters(const Trial& trial, const Outcome& outcome);

int64_t ShardAxis(const Trial& trial);
bool Narrow(const Trial& trial);  // are gathered matrices narrower than master weights?

}  // namespace millrace::test

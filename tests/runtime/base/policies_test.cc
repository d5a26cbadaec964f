// The names of policies are a contract: configurations, plans and reports have them.
#include "runtime/base/policies.h"

#include <catch2/catch.hpp>

namespace millrace {
namespace {

TEST_CASE("every value of a policy has its name, and no other", "[base][policies]") {
  CHECK(NamesOf(Reshard{}).size() == 4);
  CHECK(Name(Reshard::kNever) == "never");
  CHECK(Name(Reshard::kAfterBackward) == "after_backward");
  CHECK(Name(Reshard::kAfterForward) == "after_forward");
  CHECK(Name(Reshard::kAuto) == "auto");
  CHECK(NamesOf(Downcast{}).size() == 4);
  CHECK(Name(Downcast::kAfterGather) == "after_gather");
  CHECK(Name(Downcast::kPerGather) == "per_gather");
  CHECK(Name(Downcast::kInGather) == "in_gather");
  CHECK(Name(Downcast::kAfterUpdate) == "after_update");
  CHECK(NamesOf(GradSync{}).size() == 2);
  CHECK(Name(GradSync::kEvery) == "every");
  CHECK(Name(GradSync::kLast) == "last");
  CHECK(NamesOf(GradConcat{}).size() == 3);
  CHECK(Name(GradConcat::kEvery) == "every");
  CHECK(Name(GradConcat::kLast) == "last");
  CHECK(Name(GradConcat::kDirect) == "direct");
  CHECK(NamesOf(AllocatorKind{}).size() == 6);
  CHECK(Name(AllocatorKind::kPacked) == "packed");
  CHECK(Name(AllocatorKind::kColoured) == "coloured");
  CHECK(Name(AllocatorKind::kMaxPool) == "max_pool");
  CHECK(Name(AllocatorKind::kFixed) == "fixed");
  CHECK(Name(AllocatorKind::kPersistent) == "persistent");
  CHECK(Name(AllocatorKind::kDynamic) == "dynamic");
  CHECK(NamesOf(Recompute{}).size() == 4);
  CHECK(Name(Recompute::kNone) == "none");
  CHECK(Name(Recompute::kNorms) == "norms");
  CHECK(Name(Recompute::kBlock) == "block");
  CHECK(Name(Recompute::kAuto) == "auto");
  CHECK(NamesOf(ModelFamily{}).size() == 5);
  CHECK(Name(ModelFamily::kGpt2) == "gpt2");
  CHECK(Name(ModelFamily::kLlama) == "llama");
  CHECK(Name(ModelFamily::kQwen3) == "qwen3");
  CHECK(Name(ModelFamily::kQwen3Moe) == "qwen3_moe");
  CHECK(Name(ModelFamily::kNemotronH) == "nemotron_h");
  CHECK(NamesOf(ActivationKind{}).size() == 3);
  CHECK(Name(ActivationKind::kGelu) == "gelu");
  CHECK(Name(ActivationKind::kSwiglu) == "swiglu");
  CHECK(Name(ActivationKind::kRelu2) == "relu2");
  CHECK(NamesOf(ScheduleKind{}).size() == 3);
  CHECK(Name(ScheduleKind::kConstant) == "constant");
  CHECK(Name(ScheduleKind::kCosine) == "cosine");
  CHECK(Name(ScheduleKind::kWsd) == "wsd");
  CHECK(NamesOf(GraphMode{}).size() == 3);
  CHECK(Name(GraphMode::kStep) == "step");
  CHECK(Name(GraphMode::kMicrobatch) == "microbatch");
  CHECK(Name(GraphMode::kOff) == "off");
  CHECK(NamesOf(EarlyLaunch{}).size() == 3);
  CHECK(Name(EarlyLaunch::kOff) == "off");
  CHECK(Name(EarlyLaunch::kEnd) == "end");
  CHECK(Name(EarlyLaunch::kBegin) == "begin");
  CHECK(NamesOf(DataKind{}).size() == 3);
  CHECK(Name(DataKind::kText) == "text");
  CHECK(Name(DataKind::kTokens) == "tokens");
  CHECK(Name(DataKind::kSynthetic) == "synthetic");
  CHECK(NamesOf(ResumePolicy{}).size() == 3);
  CHECK(Name(ResumePolicy::kAuto) == "auto");
  CHECK(Name(ResumePolicy::kMust) == "must");
  CHECK(Name(ResumePolicy::kNever) == "never");
}

TEST_CASE("what plan texts say as a number keeps it", "[base][policies]") {
  CHECK(static_cast<int>(GraphMode::kStep) == 0);
  CHECK(static_cast<int>(GraphMode::kMicrobatch) == 1);
  CHECK(static_cast<int>(GraphMode::kOff) == 2);
  CHECK(static_cast<int>(ActivationKind::kGelu) == 0);
  CHECK(static_cast<int>(ActivationKind::kSwiglu) == 1);
  CHECK(static_cast<int>(ActivationKind::kRelu2) == 2);
  CHECK(static_cast<int>(ScheduleKind::kConstant) == 0);
  CHECK(static_cast<int>(ScheduleKind::kCosine) == 1);
  CHECK(static_cast<int>(ScheduleKind::kWsd) == 2);
}

}  // namespace
}  // namespace millrace

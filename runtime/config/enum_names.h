// The JSON names of the enums that the configuration alone knows, in the order of their
// enumerators. Name(value) gives one. The others have theirs in runtime/base/policies.h.
#pragma once

#include "runtime/base/policies.h"
#include "runtime/config/config.h"

namespace millrace {

constexpr auto NamesOf(RopeScalingConfig::Type) { return internal::NameList<1>{"llama3"}; }
constexpr auto NamesOf(OptimizerConfig::Kind) { return internal::NameList<2>{"adamw", "muon"}; }
constexpr auto NamesOf(PrecisionConfig::Format) {
  return internal::NameList<3>{"fp32", "bf16", "fp16"};
}
constexpr auto NamesOf(PrecisionConfig::Norms) { return internal::NameList<2>{"fp32", "compute"}; }
constexpr auto NamesOf(TrainConfig::Loss) {
  return internal::NameList<2>{"cross_entropy", "policy_gradient"};
}
constexpr auto NamesOf(ExecutionConfig::Backend) {
  return internal::NameList<3>{"auto", "cpu", "cuda"};
}
constexpr auto NamesOf(ExecutionConfig::PeerMemory) {
  return internal::NameList<3>{"off", "auto", "on"};
}
constexpr auto NamesOf(LogLevel) {
  return internal::NameList<5>{"trace", "debug", "info", "warning", "error"};
}
constexpr auto NamesOf(CheckpointConfig::OnError) {
  return internal::NameList<2>{"continue", "stop"};
}
constexpr auto NamesOf(GuardConfig::Policy) {
  return internal::NameList<3>{"skip", "roll_back", "stop"};
}

}  // namespace millrace

// The JSON names of the configuration's enums, in the order of their
// enumerators. Name(value) gives one.
#pragma once

#include <array>
#include <string_view>

#include "runtime/config/config.h"

namespace millrace {
namespace internal {

template <size_t n>
using NameList = std::array<std::string_view, n>;

}  // namespace internal

constexpr auto NamesOf(RopeScalingConfig::Type) { return internal::NameList<1>{"llama3"}; }
constexpr auto NamesOf(ModelConfig::Family) { return internal::NameList<2>{"gpt2", "llama"}; }
constexpr auto NamesOf(ModelConfig::Activation) { return internal::NameList<2>{"gelu", "swiglu"}; }
constexpr auto NamesOf(DataConfig::Kind) {
  return internal::NameList<3>{"text", "tokens", "synthetic"};
}
constexpr auto NamesOf(OptimizerConfig::Kind) { return internal::NameList<1>{"adamw"}; }
constexpr auto NamesOf(ScheduleConfig::Kind) {
  return internal::NameList<3>{"constant", "cosine", "wsd"};
}
constexpr auto NamesOf(PrecisionConfig::Format) { return internal::NameList<2>{"fp32", "bf16"}; }
constexpr auto NamesOf(PrecisionConfig::Norms) { return internal::NameList<2>{"fp32", "compute"}; }
constexpr auto NamesOf(ShardingConfig::Reshard) {
  return internal::NameList<4>{"never", "after_backward", "after_forward", "auto"};
}
constexpr auto NamesOf(ShardingConfig::Downcast) {
  return internal::NameList<4>{"after_gather", "per_gather", "in_gather", "after_update"};
}
constexpr auto NamesOf(ShardingConfig::GradSync) { return internal::NameList<2>{"every", "last"}; }
constexpr auto NamesOf(ShardingConfig::GradConcat) {
  return internal::NameList<3>{"every", "last", "direct"};
}
constexpr auto NamesOf(MemoryConfig::Allocator) {
  return internal::NameList<6>{"packed", "coloured", "max_pool", "fixed", "persistent", "dynamic"};
}
constexpr auto NamesOf(MemoryConfig::Recompute) {
  return internal::NameList<4>{"none", "norms", "block", "auto"};
}
constexpr auto NamesOf(ExecutionConfig::Backend) {
  return internal::NameList<3>{"auto", "cpu", "cuda"};
}
constexpr auto NamesOf(ExecutionConfig::Graph) {
  return internal::NameList<3>{"step", "microbatch", "off"};
}
constexpr auto NamesOf(ExecutionConfig::ProgrammaticLaunch) {
  return internal::NameList<3>{"off", "end", "begin"};
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
constexpr auto NamesOf(CheckpointConfig::Resume) {
  return internal::NameList<3>{"auto", "must", "never"};
}

template <typename E>
requires requires { NamesOf(E{}); }
constexpr std::string_view Name(E value) { return NamesOf(value).at(static_cast<size_t>(value)); }

}  // namespace millrace

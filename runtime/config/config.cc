#include "runtime/config/config.h"

#include <algorithm>

namespace millrace {

int64_t TrainConfig::Accumulate(int64_t data_ranks) const {
  if (accumulate) return *accumulate;
  return global_batch ? std::max<int64_t>(1, *global_batch / (micro_batch * data_ranks)) : 1;
}

Mesh ParallelConfig::MeshOver(int64_t world) const {
  return Mesh(static_cast<int>(replicate), static_cast<int>(Shard(world)))
      .With(Axis::kPipe, static_cast<int>(pipe))
      .With(Axis::kContext, static_cast<int>(context))
      .With(Axis::kExpert, static_cast<int>(expert))
      .With(Axis::kTensor, static_cast<int>(tensor));
}

int64_t TrainConfig::GlobalBatch(int64_t data_ranks) const {
  return micro_batch * Accumulate(data_ranks) * data_ranks;
}

std::vector<int64_t> ShardingConfig::BlocksOfUnits(int64_t layers) const {
  if (const auto* list = std::get_if<std::vector<int64_t>>(&blocks_per_unit)) return *list;
  const int64_t each = std::get<int64_t>(blocks_per_unit);
  std::vector<int64_t> blocks(static_cast<size_t>(layers / each), each);
  if (layers % each > 0) blocks.push_back(layers % each);
  return blocks;
}

int64_t ScheduleConfig::DecaySteps(int64_t train_steps) const {
  switch (kind) {
    case Kind::kConstant:
      return 0;
    case Kind::kCosine:
      return decay_steps.value_or(std::max<int64_t>(1, train_steps - warmup));
    case Kind::kWsd:
      return decay_steps.value_or(std::min((train_steps + 4) / 5, train_steps - warmup));
  }
  return 0;
}

namespace {

// One number or several, none above `most`; ascending, each once.
std::vector<int64_t> AtMost(const IntegerOrList& given, int64_t most) {
  const auto* one = std::get_if<int64_t>(&given);
  std::vector<int64_t> values =
      one != nullptr ? std::vector{*one} : std::get<std::vector<int64_t>>(given);
  for (int64_t& value : values) value = std::min(value, most);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

std::vector<int64_t> InferenceConfig::PrefillRows(int64_t seq_len) const {
  return AtMost(prefill, MaxLength(seq_len));
}

std::vector<int64_t> InferenceConfig::DecodeRows() const { return AtMost(decode, slots); }

}  // namespace millrace

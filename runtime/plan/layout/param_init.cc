#include "runtime/plan/layout/param_init.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/base/fnv.h"
#include "runtime/base/philox.h"
#include "runtime/plan/layout/param_runs.h"

namespace millrace {
namespace {

// Calls fill(from, to) on parts of [begin, end), several at a time where there is enough to do: a
// billion normal values take one core most of a minute. Each value is a function of its index, so
// the cut does not matter.
template <class Fill>
void InParts(int64_t begin, int64_t end, const Fill& fill) {
  constexpr int64_t kPart = int64_t{1} << 18, kMostThreads = 16;
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t threads =
      std::clamp<int64_t>((end - begin) / kPart, 1, std::min(cores, kMostThreads));
  std::vector<std::jthread> others;
  for (int64_t t = 1; t < threads; ++t)
    others.emplace_back([&, t] {
      fill(begin + (end - begin) * t / threads, begin + (end - begin) * (t + 1) / threads);
    });
  fill(begin, begin + (end - begin) / threads);
}

// Of u in (0, 1).
float StepBias(double u) {
  constexpr double kLeast = 1e-3, kMost = 0.1;
  const double step = kLeast * std::pow(kMost / kLeast, u);
  return static_cast<float>(std::log(std::expm1(step)));
}

// Values of logical elements [begin, end) of `param` to out[0 .. end - begin).
void FillLogical(const ParamSpec& param, uint64_t seed, int64_t begin, int64_t end, float* out) {
  switch (param.init) {
    case InitKind::kZeros:
      std::fill(out, out + (end - begin), 0.0f);
      return;
    case InitKind::kOnes:
      std::fill(out, out + (end - begin), 1.0f);
      return;
    case InitKind::kNormal: {
      const uint64_t stream = Fnv1a64(param.name);
      InParts(begin, end, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i)
          out[i - begin] = static_cast<float>(param.init_std *
                                              PhiloxNormal(seed, stream, static_cast<uint64_t>(i)));
      });
      return;
    }
    case InitKind::kLogIndex:
      for (int64_t i = begin; i < end; ++i)
        out[i - begin] = static_cast<float>(std::log(static_cast<double>(i + 1)));
      return;
    case InitKind::kStepBias: {
      const uint64_t stream = Fnv1a64(param.name);
      for (int64_t i = begin; i < end; ++i)
        out[i - begin] =
            StepBias(UnitUniform(PhiloxBlock(seed, stream, static_cast<uint64_t>(i))[0]));
      return;
    }
  }
}

}  // namespace

void FillShard(const ShardLayout& layout, FlatId flat, int rank, uint64_t seed, float* shard) {
  std::fill(shard, shard + layout.flat(flat).shard_numel, 0.0f);
  ForEachRun(layout, flat, rank, [&](const ParamRun& run) {
    FillLogical(layout.param(run.param).spec, seed, run.logical, run.logical + run.numel,
                shard + run.local);
  });
}

float InitialValue(const ParamSpec& param, uint64_t seed, int64_t index) {
  float value = 0;
  FillLogical(param, seed, index, index + 1, &value);
  return value;
}

}  // namespace millrace

#include "runtime/plan/layout/param_init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/fnv.h"
#include "runtime/base/philox.h"
#include "runtime/plan/layout/param_runs.h"

namespace millrace {
namespace {

// Calls fill(from, to) on parts of [0, n), several at a time where there is enough to do: a billion
// normal values take one core half a minute. Each value is a function of its index, so the cut does
// not matter.
template <class Fill>
void InParts(int64_t n, const Fill& fill) {
  constexpr int64_t kPart = int64_t{1} << 18, kMostThreads = 16;
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t threads = std::clamp<int64_t>(n / kPart, 1, std::min(cores, kMostThreads));
  std::vector<std::jthread> others;
  for (int64_t t = 1; t < threads; ++t)
    others.emplace_back([&, t] { fill(n * t / threads, n * (t + 1) / threads); });
  fill(0, n / threads);
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
      for (int64_t i = begin; i < end;) {
        const std::array<double, 2> pair =
            PhiloxNormals(seed, stream, static_cast<uint64_t>(i / 2));
        do {
          out[i - begin] = static_cast<float>(param.init_std * pair[static_cast<size_t>(i % 2)]);
        } while (++i < end && i % 2 != 0);
      }
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

void FillShard(const ShardLayout& layout, FlatId flat, int rank, uint64_t seed,
               std::span<float> room,
               const std::function<void(int64_t first, std::span<const float> values)>& f) {
  MR_CHECK(!room.empty(), "no room to fill the shard of {}", layout.flat(flat).name);
  std::vector<ParamRun> runs;  // ascending in the shard; of split parameters many and short
  ForEachRun(layout, flat, rank, [&](const ParamRun& run) { runs.push_back(run); });
  const auto fill = [&](int64_t begin, int64_t end, float* out) {
    std::fill(out, out + (end - begin), 0.0f);
    auto run = std::partition_point(runs.begin(), runs.end(),
                                    [&](const ParamRun& r) { return r.local + r.numel <= begin; });
    for (; run != runs.end() && run->local < end; ++run) {
      const int64_t from = std::max(run->local, begin), to = std::min(run->local + run->numel, end);
      const int64_t logical = run->logical + (from - run->local);
      FillLogical(layout.param(run->param).spec, seed, logical, logical + (to - from),
                  out + (from - begin));
    }
  };
  const int64_t numel = layout.flat(flat).shard_numel;
  for (int64_t first = 0; first < numel; first += std::ssize(room)) {
    const int64_t n = std::min<int64_t>(numel - first, std::ssize(room));
    InParts(n,
            [&](int64_t from, int64_t to) { fill(first + from, first + to, room.data() + from); });
    f(first, room.first(static_cast<size_t>(n)));
  }
}

void FillShard(const ShardLayout& layout, FlatId flat, int rank, uint64_t seed, float* shard) {
  const auto numel = static_cast<size_t>(layout.flat(flat).shard_numel);
  FillShard(layout, flat, rank, seed, {shard, numel}, [](int64_t, std::span<const float>) {});
}

float InitialValue(const ParamSpec& param, uint64_t seed, int64_t index) {
  float value = 0;
  FillLogical(param, seed, index, index + 1, &value);
  return value;
}

}  // namespace millrace

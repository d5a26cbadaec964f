// A GPU's memory while an arena is without it: as much more is free as was given back, others can
// have it, and what was recorded finds the same bits when it is there again.
//
// Prints, for each part, bytes and times.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "runtime/base/error.h"
#include "tests/system/generate/cached_sequences.h"

namespace millrace::test {
namespace {

// 134 million parameters: every part is many of the driver's pages.
Trial LargeTrial() {
  Trial trial = GeneratingTrial(ModelConfig::Family::kLlama, Precision::kBf16);
  ModelConfig& model = trial.config.model;
  model.layers = 12;
  model.d_model = 768;
  model.heads = 12;
  model.kv_heads = 12;
  model.head_dim = 64;
  model.ffn = 2048;
  model.vocab = 32000;
  model.seq_len = 512;
  trial.config.train.micro_batch = 8;
  trial.config.inference.slots = 16;
  trial.config.inference.page_tokens = 16;
  trial.config.inference.prefill = std::vector<int64_t>{128};
  trial.config.inference.decode = std::vector<int64_t>{1, 16};
  trial.config.sharding.downcast = ShardingConfig::Downcast::kAfterUpdate;
  return trial;
}

// Of what the driver keeps for itself when memory is mapped or pinned.
constexpr int64_t kDriver = 16 << 20;

double MillisecondsOf(RankContext& rank, const Config& config, int64_t step, std::string* bits) {
  const auto begin = std::chrono::steady_clock::now();
  const StepScalars s = StepOn(rank, config, step);
  *bits += fmt::format("{:a} {:a}\n", s.loss, s.grad_norm);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// Losses and norms of nine steps, with a part released behind each third one.
std::string BitsOf(const Trial& trial) {
  std::string bits;
  RunPlans(trial, [&](RankContext& rank) {
    Engine& engine = rank.engine;
    Device& device = engine.device();
    engine.InitWeights(static_cast<uint64_t>(trial.config.train.seed));
    int64_t step = 0;
    const auto steps = [&](int64_t count) {
      double last = 0;
      for (int64_t end = step + count; step < end; ++step)
        last = MillisecondsOf(rank, trial.config, step, &bits);
      return last;
    };
    const double before = steps(3);  // issued, captured, launched
    if (trial.releasable)
      fmt::print("arena {} bytes, a step {:.1f} ms\n", engine.arena_bytes(), before);
    for (const ArenaPart part : kArenaParts) {
      if (trial.releasable) {
        const int64_t used = device.UsedBytes(), launches = engine.counters().graph_launches;
        const MovedMemory gone = engine.Release(part);
        const int64_t freed = used - device.UsedBytes();
        CHECK(gone.bytes > 4 * kDriver);
        CHECK(std::abs(freed - gone.bytes) <= kDriver);
        {  // somebody else uses it
          const auto other = device.Allocate(gone.bytes - kDriver, "another program");
          device.EnqueueFill(other->data(), std::byte{0x5A}, other->bytes(),
                             engine.stream(StreamId::kCompute));
          engine.stream(StreamId::kCompute).Sync();
        }
        const MovedMemory back = engine.Acquire();
        CHECK(back.bytes == gone.bytes);
        CHECK(std::abs(used - device.UsedBytes()) <= kDriver);
        const double first = steps(1), second = steps(1);
        CHECK(engine.counters().graph_launches == launches + 2);
        steps(1);
        fmt::print(
            "{}: {} bytes released in {:.1f} ms and acquired in {:.1f} ms, {} bytes of states to "
            "and from the host; the device's used memory fell by {}; the step behind it {:.1f} ms, "
            "the next {:.1f} ms\n",
            Name(part), gone.bytes, gone.seconds * 1e3, back.seconds * 1e3, gone.host_bytes, freed,
            first, second);
      } else {
        steps(3);
      }
    }
    for (const float value : engine.ReadShard("master", FlatId{1}))
      bits += fmt::format("{:a} ", value);
  });
  return bits;
}

TEST_CASE("a GPU has the memory back, and graphs find the same bits", "[release][gpu]") {
  Trial trial = LargeTrial();
  const std::string plain = BitsOf(trial);
  trial.releasable = true;
  REQUIRE(BitsOf(trial) == plain);
}

TEST_CASE("an arena that finds no memory is released as before, and can be had later",
          "[release][gpu]") {
  Trial trial = LargeTrial();
  trial.releasable = true;
  RunPlans(trial, [&](RankContext& rank) {
    Engine& engine = rank.engine;
    Device& device = engine.device();
    engine.InitWeights(1);
    std::string bits;
    MillisecondsOf(rank, trial.config, 0, &bits);
    const std::vector<float> weights = engine.ReadShard("master", FlatId{1});
    const int64_t bytes = engine.Release(ArenaPart::kAll).bytes;
    // All of it is somebody else's. A size that fits is looked for from above.
    std::unique_ptr<DeviceBuffer> other;
    int64_t size = int64_t{1} << 40;
    while (!other && size > (1 << 20)) {
      try {
        other = device.Allocate(size, "another program");
      } catch (const Error&) {
        size -= size / 64;
      }
    }
    std::vector<std::unique_ptr<DeviceBuffer>> rest;
    for (int64_t part = bytes / 4; part > (4 << 20);) {
      try {
        rest.push_back(device.Allocate(part, "another program"));
      } catch (const Error&) {
        part /= 2;
      }
    }
    const int64_t used = device.UsedBytes();
    REQUIRE_THROWS_WITH(engine.Acquire(),
                        Catch::Contains("cannot allocate") && Catch::Contains("for arena"));
    REQUIRE(engine.released() != nullptr);
    REQUIRE(std::abs(device.UsedBytes() - used) <= kDriver);
    rest.clear();
    other.reset();
    engine.Acquire();
    REQUIRE(engine.ReadShard("master", FlatId{1}) == weights);
    MillisecondsOf(rank, trial.config, 1, &bits);
  });
}

}  // namespace
}  // namespace millrace::test

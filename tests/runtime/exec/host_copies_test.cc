// What the host gives runs and reads of them, while other runs come in between.
#include "runtime/exec/arena/host_copies.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/late_device.h"

namespace millrace {
namespace {

using Words = std::vector<int32_t>;

// A "plan" that adds 100 to each of its words: its output is what a next run writes over. Nothing
// runs before somebody waits for it.
struct Plans {
  std::unique_ptr<test::LateDevice> device = test::MakeLateDevice();
  std::unique_ptr<Stream> stream = device->MakeStream(StreamRole::kCompute);
  HostCopies copies{*device, *stream};
  Words state = Words(4), output = Words(4);

  int64_t Run(const Words& words, const std::vector<HostCopies::Feed>& feeds = {}) {
    const HostCopies::Write write{reinterpret_cast<std::byte*>(state.data()),
                                  std::as_bytes(std::span(words))};
    const int64_t run = copies.Begin({&write, 1}, feeds, [&](std::span<const Device::Copy> all) {
      device->EnqueueCopies(all, {}, *stream);
    });
    Enqueue([this] {
      for (size_t i = 0; i < 4; ++i) output[i] = state[i] + 100;
    });
    const auto* const from = reinterpret_cast<const std::byte*>(output.data());
    copies.End(run, {{from, 4}, {from + 4, 12}});
    return run;
  }
  void Enqueue(std::function<void()> work) { device->Enqueue(std::move(work), *stream); }
  // One word, to place `to` of the state.
  HostCopies::Feed Feed(int64_t run, size_t read, int64_t at, size_t to) {
    return {run, read, at, reinterpret_cast<std::byte*>(&state[to]), 4};
  }
  Words Collect(int64_t run) {
    const auto& reads = copies.Collect(run);
    REQUIRE(reads.size() == 2);
    Words words(4);
    std::memcpy(words.data(), reads[0].data(), reads[0].size());
    std::memcpy(words.data() + 1, reads[1].data(), reads[1].size());
    return words;
  }
};

TEST_CASE("runs are collected in any order, though each writes over what the last one made") {
  Plans plans;
  const int64_t first = plans.Run({1, 2, 3, 4}), second = plans.Run({5, 6, 7, 8}),
                third = plans.Run({9, 10, 11, 12});
  CHECK(plans.Collect(second) == Words{105, 106, 107, 108});
  const int64_t fourth = plans.Run({13, 14, 15, 16});
  CHECK(plans.Collect(fourth) == Words{113, 114, 115, 116});
  CHECK(plans.Collect(first) == Words{101, 102, 103, 104});
  CHECK(plans.Collect(third) == Words{109, 110, 111, 112});
  CHECK_THROWS_AS(plans.Collect(third), Error);
}

TEST_CASE("a run is fed by the run before it, or by one that is further back") {
  Plans plans;
  const int64_t first = plans.Run({1, 2, 3, 4});
  plans.copies.Collect(plans.Run({5, 6}, {plans.Feed(first, 0, 0, 2), plans.Feed(first, 1, 8, 3)}));
  CHECK(plans.state == Words{5, 6, 101, 104});
  const int64_t third = plans.Run({0, 0}, {plans.Feed(first, 1, 0, 2), plans.Feed(first, 1, 4, 3)});
  CHECK(plans.Collect(third) == Words{100, 100, 202, 203});
  CHECK_THROWS_AS(plans.Run({0}, {plans.Feed(third, 0, 0, 1)}), Error);  // collected
}

TEST_CASE("what a run is given of another outlives that one, whoever has its memory next") {
  Plans plans;
  const int64_t first = plans.Run({1, 2, 3, 4});
  plans.Run({5, 6, 7, 8});  // nobody collects it: what the first one made goes to the host
  const int64_t third = plans.Run({0, 0}, {plans.Feed(first, 1, 0, 2), plans.Feed(first, 1, 4, 3)});
  CHECK(plans.Collect(first) == Words{101, 102, 103, 104});
  const Words many(64, 7);
  Words state(64), output(64);
  const HostCopies::Write write{reinterpret_cast<std::byte*>(state.data()),
                                std::as_bytes(std::span(many))};
  const int64_t fourth =
      plans.copies.Begin({&write, 1}, {}, [&](std::span<const Device::Copy> all) {
        plans.device->EnqueueCopies(all, {}, *plans.stream);
      });
  plans.Enqueue([&] { output = state; });
  plans.copies.End(fourth, {{reinterpret_cast<const std::byte*>(output.data()), 64 * 4}});
  CHECK(plans.Collect(third) == Words{100, 100, 202, 203});
  const auto& reads = plans.copies.Collect(fourth);
  REQUIRE(reads.size() == 1);
  CHECK(std::memcmp(reads[0].data(), many.data(), 64 * 4) == 0);
}

TEST_CASE("what is about to be written over is copied first") {
  Plans plans;
  const int64_t first = plans.Run({1, 2, 3, 4});
  plans.copies.Flush();
  plans.Enqueue([&] { plans.output = {0, 0, 0, 0}; });
  CHECK(plans.Collect(first) == Words{101, 102, 103, 104});
}

TEST_CASE("runs that are forgotten are nobody's") {
  Plans plans;
  const int64_t first = plans.Run({1, 2, 3, 4}), second = plans.Run({5, 6, 7, 8});
  plans.stream->Sync();
  plans.copies.Forget();
  CHECK_THROWS_AS(plans.Collect(first), Error);
  CHECK_THROWS_AS(plans.Collect(second), Error);
  CHECK(plans.Collect(plans.Run({9, 10, 11, 12})) == Words{109, 110, 111, 112});
}

}  // namespace
}  // namespace millrace

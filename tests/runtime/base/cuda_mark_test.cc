// Marks that a GPU writes to host memory: seen in stream order, also when captured, and
// while what follows hangs.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/cuda_device.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

uint64_t Load(const HostBuffer& words, int64_t offset) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(words.data() + offset),
                         __ATOMIC_ACQUIRE);
}

bool Becomes(const HostBuffer& words, int64_t offset, uint64_t value) {
  for (int i = 0; i < 1000 && Load(words, offset) != value; ++i) std::this_thread::sleep_for(5ms);
  return Load(words, offset) == value;
}

// Holds the stream up until it is let go.
struct Gate {
  std::atomic<bool> open = false;
  void Close(Stream& stream) {
    open = false;
    MR_CUDA(cudaLaunchHostFunc(
        AsCuda(stream).get(),
        [](void* gate) {
          while (!static_cast<Gate*>(gate)->open) std::this_thread::sleep_for(1ms);
        },
        this));
  }
};

TEST_CASE(
    "a mark is seen while the work behind it hangs, and not before the work ahead of it is done",
    "[cuda]") {
  CudaDevice device(0);
  const auto words = device.AllocateHost(256, "words");
  std::fill(words->data(), words->data() + 256, std::byte{0});
  const auto stream = device.MakeStream(StreamRole::kCompute);
  Gate gate;
  device.EnqueueMark(words->data(), 0x123456789abcdef0u, *stream);
  device.EnqueueMark(words->data() + 64, 1, *stream);
  gate.Close(*stream);
  device.EnqueueMark(words->data() + 64, 2, *stream);
  CHECK(Becomes(*words, 64, 1));
  CHECK(Load(*words, 0) == 0x123456789abcdef0u);
  std::this_thread::sleep_for(200ms);
  CHECK(Load(*words, 64) == 1);
  gate.open = true;
  stream->Sync();
  CHECK(Load(*words, 64) == 2);
}

TEST_CASE("marks that are enqueued together are all written, the last one after the others",
          "[cuda]") {
  CudaDevice device(0);
  const auto words = device.AllocateHost(64 * Device::kMostMarks, "words");
  std::fill(words->data(), words->data() + words->bytes(), std::byte{0});
  const auto stream = device.MakeStream(StreamRole::kCompute);
  for (uint64_t run = 1; run <= 200; ++run) {
    std::vector<Device::Mark> marks;
    for (size_t i = 0; i < Device::kMostMarks; ++i)
      marks.push_back({words->data() + 64 * i, 100 * run + i});
    device.EnqueueMarks(marks, *stream);
    const int64_t last = 64 * (Device::kMostMarks - 1);
    REQUIRE(Becomes(*words, last, 100 * run + Device::kMostMarks - 1));
    for (size_t i = 0; i + 1 < Device::kMostMarks; ++i)
      REQUIRE(Load(*words, static_cast<int64_t>(64 * i)) == 100 * run + i);
  }
  CHECK_THROWS(device.EnqueueMarks({}, *stream));
  CHECK_THROWS(device.EnqueueMarks(std::vector<Device::Mark>(Device::kMostMarks + 1), *stream));
}

TEST_CASE("captured marks are written by each launch, on the streams that they were captured on",
          "[cuda]") {
  CudaDevice device(0);
  const auto words = device.AllocateHost(256, "words");
  const auto origin = device.MakeStream(StreamRole::kCompute),
             side = device.MakeStream(StreamRole::kCollectives);
  const auto fork = device.MakeEvent(), join = device.MakeEvent();
  device.BeginCapture(*origin);
  device.EnqueueMark(words->data(), 11, *origin);
  origin->Record(*fork);
  side->Wait(*fork);
  device.EnqueueMark(words->data() + 64, 22, *side);
  side->Record(*join);
  origin->Wait(*join);
  device.EnqueueMark(words->data() + 128, 33, *origin);
  const auto graph = device.EndCapture(*origin);
  CHECK(graph->nodes() == 3);
  for (int launch = 0; launch < 3; ++launch) {
    std::fill(words->data(), words->data() + 256, std::byte{0});
    Gate gate;
    gate.Close(*origin);
    graph->Launch(*origin);
    std::this_thread::sleep_for(50ms);
    CHECK(Load(*words, 0) == 0);
    gate.open = true;
    origin->Sync();
    CHECK(Load(*words, 0) == 11);
    CHECK(Load(*words, 64) == 22);
    CHECK(Load(*words, 128) == 33);
  }
}

}  // namespace
}  // namespace millrace

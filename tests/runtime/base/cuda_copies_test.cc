// Small copies of a GPU, several in a launch: between its memory and a host's, in stream order.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "runtime/base/cuda/cuda_device.h"

namespace millrace {
namespace {

// Words that tell where they belong.
void Number(HostBuffer& buffer, uint32_t first) {
  for (int64_t i = 0; i < buffer.bytes() / 4; ++i) {
    const uint32_t word = first + static_cast<uint32_t>(i);
    std::memcpy(buffer.data() + 4 * i, &word, 4);
  }
}

TEST_CASE("copies of any number and size go to their places, and to no others", "[cuda]") {
  CudaDevice device(0);
  constexpr int64_t kBytes = 1 << 20;
  const auto from = device.AllocateHost(kBytes, "from"), to = device.AllocateHost(kBytes, "to");
  const auto near = device.Allocate(kBytes, "near"), far = device.Allocate(kBytes, "far");
  const auto stream = device.MakeStream(StreamRole::kCompute);
  const auto event = device.MakeEvent();
  for (const size_t count : {1, 2, 31, 32, 33, 100}) {
    CAPTURE(count);
    Number(*from, static_cast<uint32_t>(count) << 20);
    std::fill(to->data(), to->data() + kBytes, std::byte{0x5a});
    std::vector<std::byte> expected(to->data(), to->data() + kBytes);
    device.EnqueueFill(near->data(), std::byte{0}, kBytes, *stream);
    std::vector<Device::Copy> in, across, out;
    int64_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      const int64_t bytes = i % 3 == 0 ? 4 : i % 3 == 1 ? 16 * 300 : 4 * 777;
      in.push_back({near->data() + at, from->data() + at, bytes});
      across.push_back({far->data() + at, near->data() + at, bytes});
      out.push_back({to->data() + at, far->data() + at, bytes});
      std::copy_n(from->data() + at, bytes, expected.begin() + at);
      at += bytes + 4 * static_cast<int64_t>(i % 5);
    }
    device.EnqueueCopies(in, {}, *stream);
    device.EnqueueCopies(across, {}, *stream);
    device.EnqueueCopies(out, {}, *stream);
    stream->Record(*event);
    device.SyncEvent(*event);
    REQUIRE(std::equal(expected.begin(), expected.end(), to->data()));
  }
}

TEST_CASE("long copies go whole to their places, beside short ones and marks", "[cuda]") {
  CudaDevice device(0);
  constexpr int64_t kBytes = 1 << 20, kShort = 48;
  const auto from = device.AllocateHost(kBytes, "from"), to = device.AllocateHost(kBytes, "to"),
             words = device.AllocateHost(64, "words");
  const auto there = device.Allocate(kBytes, "there");
  const auto stream = device.MakeStream(StreamRole::kCompute);
  uint64_t value = 0;
  // Around a block's bytes, and the most blocks'; both ends at 16 bytes, and not.
  for (const int64_t bytes : {4092, 4096, 4100, 65536, 65540, 500000})
    for (const int64_t at : {0, 4, 16}) {
      CAPTURE(bytes, at);
      Number(*from, static_cast<uint32_t>(++value) << 20);
      std::fill(to->data(), to->data() + kBytes, std::byte{0x5a});
      std::fill(words->data(), words->data() + 64, std::byte{0});
      std::vector<std::byte> expected(to->data(), to->data() + kBytes);
      const int64_t far = kBytes - kShort;
      std::copy_n(from->data() + at, bytes, expected.begin() + at);
      std::copy_n(from->data() + far, kShort, expected.begin() + far);
      const auto copy = [&](std::byte* into, const std::byte* out_of) {
        const std::vector<Device::Copy> copies = {{into + far, out_of + far, kShort},
                                                  {into + at, out_of + at, bytes}};
        const Device::Mark mark{words->data(), value};
        device.EnqueueCopies(copies, {&mark, 1}, *stream);
      };
      copy(there->data(), from->data());
      copy(to->data(), there->data());
      stream->Sync();
      REQUIRE(std::equal(expected.begin(), expected.end(), to->data()));
      uint64_t word;
      std::memcpy(&word, words->data(), sizeof word);
      REQUIRE(word == value);
    }
}

TEST_CASE("a copy reads what the copy before it has written to the host's memory", "[cuda]") {
  CudaDevice device(0);
  const auto first = device.AllocateHost(256, "first"), last = device.AllocateHost(256, "last");
  const auto words = device.Allocate(512, "words");
  const auto stream = device.MakeStream(StreamRole::kCompute);
  const auto copy = [&](std::byte* to, const std::byte* from) {
    const Device::Copy one{to, from, 256};
    device.EnqueueCopies({&one, 1}, {}, *stream);
  };
  std::fill(last->data(), last->data() + 256, std::byte{0});
  for (uint32_t round = 0; round < 200; ++round) {
    // The host writes again as soon as the last round is over.
    Number(*first, 1000 * round);
    copy(words->data(), first->data());
    copy(last->data(), words->data());
    copy(words->data() + 256, last->data());
    copy(last->data(), words->data() + 256);
    stream->Sync();
    REQUIRE(std::memcmp(first->data(), last->data(), 256) == 0);
  }
}

TEST_CASE("marks come with copies, whatever the number of both", "[cuda]") {
  CudaDevice device(0);
  constexpr int64_t kBytes = 4096;
  const auto from = device.AllocateHost(kBytes, "from"), to = device.AllocateHost(kBytes, "to"),
             words = device.AllocateHost(64 * Device::kMostMarks, "words");
  const auto stream = device.MakeStream(StreamRole::kCompute);
  uint64_t value = 1;
  for (const size_t count : {0, 1, 32, 33, 70})
    for (size_t marked = 0; marked <= Device::kMostMarks; ++marked) {
      CAPTURE(count, marked);
      Number(*from, static_cast<uint32_t>(++value) << 12);
      std::fill(to->data(), to->data() + kBytes, std::byte{0});
      std::fill(words->data(), words->data() + words->bytes(), std::byte{0});
      std::vector<Device::Copy> copies;
      for (size_t i = 0; i < count; ++i)
        copies.push_back({to->data() + 4 * i, from->data() + 4 * i, 4});
      std::vector<Device::Mark> marks;
      for (size_t i = 0; i < marked; ++i) marks.push_back({words->data() + 64 * i, value + i});
      device.EnqueueCopies(copies, marks, *stream);
      stream->Sync();
      REQUIRE(std::memcmp(to->data(), from->data(), 4 * count) == 0);
      for (size_t i = 0; i < Device::kMostMarks; ++i) {
        uint64_t word;
        std::memcpy(&word, words->data() + 64 * i, sizeof word);
        REQUIRE(word == (i < marked ? value + i : 0));
      }
    }
  CHECK_THROWS(
      device.EnqueueCopies({}, std::vector<Device::Mark>(Device::kMostMarks + 1), *stream));
}

}  // namespace
}  // namespace millrace

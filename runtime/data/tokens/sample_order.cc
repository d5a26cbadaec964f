#include "runtime/data/tokens/sample_order.h"

#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace millrace {
namespace {

// Four rounds already make a strong pseudorandom permutation of a large domain (Luby and Rackoff);
// a small one, where each half has a few bits, needs more to look shuffled.
constexpr int kRounds = 8;
constexpr int64_t kLargest = int64_t{1} << 62;

}  // namespace

Permutation::Permutation(int64_t n, uint64_t seed, uint64_t stream)
    : n_(n), seed_(seed), stream_(stream), half_bits_(1) {
  MR_REQUIRE(ErrorCode::kInvalidArgument, n >= 1 && n <= kLargest,
             "a permutation needs 1 to 2^62 elements, got {}", n);
  while (2 * half_bits_ < 62 && (int64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
}

uint64_t Permutation::Round(int round, uint64_t half) const noexcept {
  // A half has at most 31 bits: the round number goes above it.
  const PhiloxCounter words = PhiloxBlock(seed_, stream_, half | (uint64_t(round) << 32));
  return words[0] & ((uint64_t{1} << half_bits_) - 1);
}

int64_t Permutation::operator()(int64_t i) const {
  MR_CHECK(i >= 0 && i < n_, "index {} outside [0, {})", i, n_);
  uint64_t value = static_cast<uint64_t>(i);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ Round(round, right);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(value);
}

int64_t Permutation::Inverse(int64_t permuted) const {
  MR_CHECK(permuted >= 0 && permuted < n_, "index {} outside [0, {})", permuted, n_);
  uint64_t value = static_cast<uint64_t>(permuted);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (int round = kRounds - 1; round >= 0; --round) {
      const uint64_t previous = right ^ Round(round, left);
      right = left;
      left = previous;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(value);
}

SampleOrder::SampleOrder(int64_t windows, uint64_t seed) : windows_(windows), seed_(seed) {
  MR_REQUIRE(ErrorCode::kInvalidArgument, windows >= 1 && windows <= kLargest,
             "a sample order needs 1 to 2^62 windows, got {}", windows);
}

int64_t SampleOrder::Epoch(int64_t sample) const {
  MR_CHECK_GE(sample, 0, "samples count from 0");
  return sample / windows_;
}

int64_t SampleOrder::Window(int64_t sample) const {
  const int64_t epoch = Epoch(sample);
  return Permutation(windows_, seed_, static_cast<uint64_t>(epoch))(sample - epoch * windows_);
}

int64_t StepLayout::GlobalBatch() const {
  MR_CHECK(world >= 1 && micro_batch >= 1 && accumulate >= 1,
           "world {}, micro_batch {}, accumulate {}: all at least 1", world, micro_batch,
           accumulate);
  return accumulate * world * micro_batch;
}

int64_t StepLayout::Sample(const Place& place) const {
  MR_CHECK(place.step >= 0 && place.microbatch >= 0 && place.microbatch < accumulate &&
               place.rank >= 0 && place.rank < world && place.row >= 0 && place.row < micro_batch,
           "step {}, microbatch {} of {}, rank {} of {}, row {} of {}", place.step,
           place.microbatch, accumulate, place.rank, world, place.row, micro_batch);
  return place.step * GlobalBatch() + (place.microbatch * world + place.rank) * micro_batch +
         place.row;
}

StepLayout::Place StepLayout::PlaceOf(int64_t sample) const {
  MR_CHECK_GE(sample, 0, "samples count from 0");
  const int64_t in_step = sample % GlobalBatch();
  return Place{.step = sample / GlobalBatch(),
               .microbatch = in_step / (micro_batch * world),
               .rank = in_step / micro_batch % world,
               .row = in_step % micro_batch};
}

}  // namespace millrace

// Which training window is consumed when, and by whom: a pure function of the seed, so that every
// rank of every world computes the same order, any sample in constant time, with no index file and
// nothing to save but a step.
//
//   sample    0, 1, 2, ... over the whole run; sample s belongs to epoch s / n
//   window    in [0, n), what a TokenSource reads; within an epoch every window comes exactly once
//   position  of a sample within its step: j = (microbatch * world + rank) * micro_batch + row
//
// Step k consumes the samples [k*G, (k+1)*G), G being the global batch in sequences. Two worlds
// with the same G therefore train on the same sequences in the same steps, and a step may reach
// into the next epoch.
#pragma once

#include <cstdint>

namespace millrace {

// A keyed bijection of [0, n): a balanced Feistel network over the next even number of bits,
// walked along its cycle until it is back inside [0, n) (at most four applications on
// average). n in [1, 2^62].
// Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.
class Permutation {
 public:
  Permutation(int64_t n, uint64_t seed, uint64_t stream);

  int64_t n() const noexcept { return n_; }
  int64_t operator()(int64_t i) const;      // i in [0, n)
  int64_t Inverse(int64_t permuted) const;  // Inverse((*this)(i)) == i

 private:
  uint64_t Round(int round, uint64_t half) const noexcept;

  int64_t n_;
  uint64_t seed_;
  uint64_t stream_;
  int half_bits_;  // the network permutes [0, 4^half_bits)
};

class SampleOrder {
 public:
  // windows: n above, at least 1, else Error(kInvalidArgument). seed: data.shuffle_seed.
  SampleOrder(int64_t windows, uint64_t seed);

  int64_t windows() const noexcept { return windows_; }
  int64_t Epoch(int64_t sample) const;   // sample >= 0
  int64_t Window(int64_t sample) const;  // each epoch has a permutation of its own

 private:
  int64_t windows_;
  uint64_t seed_;
};

// How the samples of a step are dealt out. All at least 1.
struct StepLayout {
  int64_t world = 1;        // data ranks: base/mesh.h
  int64_t micro_batch = 1;  // sequences per data rank and microbatch
  int64_t accumulate = 1;   // microbatches per step

  int64_t GlobalBatch() const;  // G, in sequences

  // The sample that `rank` reads as row `row` of `microbatch` in `step`. Out of range:
  // Error(kInternal).
  struct Place {
    int64_t step = 0, microbatch = 0, rank = 0, row = 0;
    bool operator==(const Place&) const = default;
  };
  int64_t Sample(const Place& place) const;
  Place PlaceOf(int64_t sample) const;  // the inverse
};

}  // namespace millrace

// Segments of updates for the contracts of AdamW and Muon: with constants of their own each.
#pragma once

#include <algorithm>
#include <memory>

#include "runtime/base/arithmetic.h"
#include "tests/kernels/contract/contract.h"

namespace millrace::test {

// Of a flat parameter of 3 n elements; borders as layouts have them, at multiples of 64, or
// anywhere; `many`: more than a kernel takes as arguments.
inline UpdateSegments RandomSegments(Random& random, int64_t n, bool many) {
  auto segments = std::make_shared<std::vector<UpdateSegment>>();
  const int64_t step = Flip(random) ? 64 : 1, most = many ? 9 : n + 40;
  for (int64_t begin = 0; begin < std::max<int64_t>(1, 3 * n);
       begin += Pick(random, 1, CeilDiv(most, step)) * step) {
    const double k = static_cast<double>(Pick(random, 0, 4));
    segments->push_back({.begin = begin,
                         .lr_scale = 0.25 + k,
                         .weight_decay = Flip(random) ? 0 : 0.1 * k,
                         .beta1 = 0.5 + 0.1 * k,
                         .beta2 = 0.9 + 0.02 * k,
                         .eps = Flip(random) ? 1e-8 : 1e-3});
  }
  return segments;
}

// That of element `i` of a shard which begins at `flat_begin`.
inline const UpdateSegment& SegmentAt(const UpdateSegments& segments, int64_t flat_begin,
                                      int64_t i) {
  size_t s = segments->size() - 1;
  while ((*segments)[s].begin > flat_begin + i) --s;
  return (*segments)[s];
}

}  // namespace millrace::test

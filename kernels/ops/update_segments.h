// Constants of an update that differ along a flat parameter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace millrace {

// What elements of a flat parameter from `begin` to the next segment's, or the end, are updated by,
// instead of what the op says for all. Ascending; the first begins at 0. With moments in
// bf16, elements that are in none of the op's runs (gaps, which hold zeros) need not be decayed.
struct UpdateSegment {
  int64_t begin = 0;
  double lr_scale = 1;  // of scalars->lr
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // AdamW's

  bool SameConstants(const UpdateSegment& other) const {
    return lr_scale == other.lr_scale && weight_decay == other.weight_decay &&
           beta1 == other.beta1 && beta2 == other.beta2 && eps == other.eps;
  }
};
using UpdateSegments = std::shared_ptr<const std::vector<UpdateSegment>>;

// f(begin, end, segment) for the parts [begin, end) of a shard of n elements whose first is element
// `flat_begin` of the flat parameter, in order.
template <class F>
void ForSegments(const std::vector<UpdateSegment>& segments, int64_t flat_begin, int64_t n, F&& f) {
  for (size_t s = 0; s < segments.size(); ++s) {
    const bool last = s + 1 == segments.size();
    const int64_t begin = std::max<int64_t>(0, segments[s].begin - flat_begin);
    const int64_t end = last ? n : std::min(n, segments[s + 1].begin - flat_begin);
    if (begin < end) f(begin, end, segments[s]);
  }
}

}  // namespace millrace

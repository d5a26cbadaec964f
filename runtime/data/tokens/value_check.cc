#include "runtime/data/tokens/value_check.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;  // of a read; stays in a processor's cache

// Whether all values lie in [0, end). Of unsigned ones a negative one is a large one.
template <typename Value>
bool AllBelow(const Value* values, int64_t n, int64_t end) {
  using Unsigned = std::make_unsigned_t<Value>;
  Unsigned largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<Unsigned>(values[i]));
  return std::cmp_less(largest, end) &&
         std::cmp_less_equal(largest, std::numeric_limits<Value>::max());
}

// The first chunk that has another value is given to `read`, which finds and names it.
template <typename Value, typename Read>
void CheckValues(const InputFile& file, int64_t data_offset, int64_t first, int64_t n, int64_t end,
                 const Read& read) {
  constexpr int64_t kChunk = kChunkBytes / int64_t{sizeof(Value)};
  std::vector<Value> values(static_cast<size_t>(std::min(n, kChunk)));
  for (int64_t done = 0; done < n; done += kChunk) {
    const int64_t length = std::min(kChunk, n - done);
    file.Read(data_offset + (first + done) * int64_t{sizeof(Value)}, values.data(),
              length * int64_t{sizeof(Value)});
    if (!AllBelow(values.data(), length, end)) read(first + done, length);
  }
}

[[noreturn]] void ThrowChanged(const InputFile& file) {
  throw Error(ErrorCode::kData, fmt::format("{} changed while it was checked", file.path()));
}

template <typename Id>
void CheckIds(const TokenSegment& segment, int64_t first, int64_t n, int64_t vocab) {
  CheckValues<Id>(*segment.file, segment.data_offset, first, n, vocab,
                  [&](int64_t from, int64_t count) {
                    std::vector<int32_t> ids(static_cast<size_t>(count));
                    ReadTokens(segment, from, count, vocab, ids.data());
                    ThrowChanged(*segment.file);
                  });
}

}  // namespace

bool MayLieOutside(const TokenSegment& segment, int64_t vocab) {
  return segment.is_signed() || segment.bytes_per_token >= 4 ||
         int64_t{1} << (8 * segment.bytes_per_token) > vocab;
}

void CheckTokens(const TokenSegment& segment, int64_t first, int64_t n, int64_t vocab) {
  if (!MayLieOutside(segment, vocab)) return;
  switch (segment.bytes_per_token) {
    case 1:
      return segment.is_signed() ? CheckIds<int8_t>(segment, first, n, vocab)
                                 : CheckIds<uint8_t>(segment, first, n, vocab);
    case 2:
      return segment.is_signed() ? CheckIds<int16_t>(segment, first, n, vocab)
                                 : CheckIds<uint16_t>(segment, first, n, vocab);
    case 4:
      return segment.is_signed() ? CheckIds<int32_t>(segment, first, n, vocab)
                                 : CheckIds<uint32_t>(segment, first, n, vocab);
    default:
      return CheckIds<int64_t>(segment, first, n, vocab);
  }
}

void CheckMask(const LossMask& mask, int64_t first, int64_t n) {
  CheckValues<uint8_t>(mask.file(), 0, first, n, 2, [&](int64_t from, int64_t count) {
    std::vector<uint8_t> marks(static_cast<size_t>(count));
    mask.Read(from, count, marks.data());
    ThrowChanged(mask.file());
  });
}

}  // namespace millrace

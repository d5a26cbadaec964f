#include "runtime/exec/arena/arena_part.h"

#include <algorithm>
#include <set>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// Copies that lie end to end, but for the alignment of states, are one range: they share pages.
std::vector<ByteRange> BytesOfCopies(const StateLayout& states) {
  std::vector<ByteRange> ranges;
  for (const StateTensor& state : states.tensors) {
    if (state.writer != StateWriter::kPrologue || !state.source) continue;
    const int64_t end = state.offset + RoundUp(state.bytes(), kArenaAlignment);
    if (!ranges.empty() && ranges.back().end == state.offset)
      ranges.back().end = end;
    else
      ranges.push_back({state.offset, end});
  }
  return ranges;
}

}  // namespace

std::string_view Name(ArenaPart part) {
  static constexpr std::string_view kNames[] = {"era", "copies", "all"};
  return kNames[static_cast<size_t>(part)];
}

std::vector<ByteRange> PagesOf(ArenaPart part, const StateLayout& states, int64_t arena_bytes,
                               int64_t page_bytes) {
  std::vector<ByteRange> ranges;
  switch (part) {
    case ArenaPart::kEra:
      ranges = {{states.run_bytes, arena_bytes}};
      break;
    case ArenaPart::kCopies:
      ranges = BytesOfCopies(states);
      break;
    case ArenaPart::kAll:
      ranges = {{0, arena_bytes}};
      break;
  }
  std::vector<ByteRange> pages;
  for (const ByteRange& range : ranges) {
    const int64_t begin = RoundUp(range.begin, page_bytes),
                  end = range.end >= arena_bytes ? RoundUp(arena_bytes, page_bytes)
                                                 : range.end / page_bytes * page_bytes;
    if (begin < end) pages.push_back({begin, end});
  }
  return pages;
}

std::vector<int64_t> CutsOf(const StateLayout& states, int64_t arena_bytes, int64_t page_bytes) {
  std::set<int64_t> cuts;
  for (const ArenaPart part : kArenaParts)
    for (const ByteRange& range : PagesOf(part, states, arena_bytes, page_bytes)) {
      cuts.insert(range.begin);
      cuts.insert(range.end);
    }
  return {cuts.begin(), cuts.end()};
}

int64_t BytesOf(const std::vector<ByteRange>& ranges) {
  int64_t bytes = 0;
  for (const ByteRange& range : ranges) bytes += range.end - range.begin;
  return bytes;
}

bool Touches(const std::vector<ByteRange>& ranges, int64_t begin, int64_t end) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const ByteRange& range) {
    return range.begin < end && begin < range.end;
  });
}

}  // namespace millrace

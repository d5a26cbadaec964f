// The parts of an arena whose memory can go back to the device while nothing runs, as pages
// (Engine::Release): pure arithmetic, for engine and tests.
//
// kEra     All that lies behind the states of the run: gathered weights and caches of inference,
//          and the activations, gradients and buckets that training lays over them.
// kCopies  What is made from master weights and kept: of the run (`compute`), of the era
//          (gathered).
// kAll     The arena.
//
// Kept     States of the run that cannot be made again: what no prologue writes, and is valid.
//          They lie in kAll alone. All else a plan's prologue makes again from those, with the same
//          bits: a run begins with no more, and a checkpoint holds no more.
// Pages    Ranges are rounded inwards, so a page that somebody else's bytes share stays; the end of
//          the arena has its page alone.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/plan/state_layout.h"

namespace millrace {

enum class ArenaPart { kEra, kCopies, kAll };
inline constexpr ArenaPart kArenaParts[] = {ArenaPart::kEra, ArenaPart::kCopies, ArenaPart::kAll};
std::string_view Name(ArenaPart part);  // "era", "copies", "all"

// The pages of a part, ascending, apart from each other. arena_bytes: of the arena, as asked for.
std::vector<ByteRange> PagesOf(ArenaPart part, const StateLayout& states, int64_t arena_bytes,
                               int64_t page_bytes);
// Where the ranges of all parts begin and end, ascending: Device::AllocatePaged's cuts.
std::vector<int64_t> CutsOf(const StateLayout& states, int64_t arena_bytes, int64_t page_bytes);

int64_t BytesOf(const std::vector<ByteRange>& ranges);
bool Touches(const std::vector<ByteRange>& ranges, int64_t begin, int64_t end);

}  // namespace millrace

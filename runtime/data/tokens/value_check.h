// Whether files hold what they may, at the speed of reading: ids of a vocabulary, masks of 0 and 1.
// No value is kept.
//
// Errors  As ReadTokens' and LossMask::Read's, with the byte offset of what is found.
#pragma once

#include <cstdint>

#include "runtime/data/tokens/loss_mask.h"
#include "runtime/data/tokens/token_files.h"

namespace millrace {

// Whether ids of the segment's type can lie outside [0, vocab).
bool MayLieOutside(const TokenSegment& segment, int64_t vocab);

// Of tokens [first, first + n) of the segment.
void CheckTokens(const TokenSegment& segment, int64_t first, int64_t n, int64_t vocab);
void CheckMask(const LossMask& mask, int64_t first, int64_t n);

}  // namespace millrace

// The generated tables behind unicode.h and nfc.h (tools/text/unicode_tables.py).
#pragma once

#include <cstdint>

namespace millrace {

extern const uint32_t kClassRanges[];  // code point << 4 | flags: from there to the next one's
extern const int kClassRangesCount;

extern const uint32_t kNfcMarks[];  // code point << 8 | combining class: from there to the next
extern const int kNfcMarksCount;
extern const uint32_t kNfcSingles[];  // code point, what it decomposes to; by code point
extern const int kNfcSinglesCount;
extern const uint32_t kNfcPairs[];  // code point, first | 1 << 31 if never composed, second
extern const int kNfcPairsCount;

}  // namespace millrace

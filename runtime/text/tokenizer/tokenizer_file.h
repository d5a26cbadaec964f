// A tokenizer.json of Hugging Face, read and checked: what of it byte-level BPE needs.
//
//   model           BPE: vocab with all 256 byte symbols, merges as "a b" or ["a", "b"],
//                   ignore_merges; no dropout, byte_fallback, prefix or suffix of subwords.
//                   unk_token and fuse_unk say nothing here: no byte is unknown
//   normalizer      null or NFC
//   pre_tokenizer   ByteLevel, alone or last in a Sequence behind Split and Digits; the patterns
//                   are those of bpe/split_pattern.h
//   post_processor  null, ByteLevel (offsets only), TemplateProcessing with one A, or a Sequence
//   decoder         ByteLevel
//   truncation, padding: null
//
// Whatever else a file says is refused: nothing is left out silently. Sequences may hold one.
//
// Errors  kData: file, path within it (model.merges[7]), what is there, what is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/bpe/bpe.h"
#include "runtime/text/bpe/split_pattern.h"
#include "runtime/text/tokenizer/added_tokens.h"

namespace millrace {

struct TokenizerFile {
  std::vector<std::pair<std::string, int32_t>> vocab;  // symbols as in the file, and ids
  std::vector<BpeMerge> merges;                        // by rank
  std::array<int32_t, 256> byte_ids = {};              // the token of each byte
  bool ignore_merges = false;  // a piece that is a token's text is that token, whatever merges say
  bool nfc = false;
  std::vector<SplitPattern> splits;  // each cuts the pieces of the one before
  bool add_prefix_space = false;     // a blank before each piece that reaches ByteLevel without
  SplitPattern byte_level_split = SplitPattern::kGpt2;  // ByteLevel's own, behind that blank
  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> prefix, suffix;  // special tokens around a text
};

// Of the file's text; `name` is for errors.
TokenizerFile ParseTokenizerFile(std::string_view text, const std::string& name);

}  // namespace millrace

// Byte-level BPE from text: counts pieces, then merges the pair that occurs most, again and again.
//
// Of pairs that occur equally often the one with the smaller ids comes first, so that the result
// depends on nothing but the counts. Ids: special tokens, the 256 bytes in the order of their
// symbols, then merges in theirs; what PyPI's tokenizers trains on the same pieces is the same.
// Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units".
//
// Memory  One entry per different piece, and one per pair and piece that it is in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/text/bpe/bpe.h"
#include "runtime/text/bpe/split_pattern.h"

namespace millrace {

// How often each piece occurs; counts of several threads may be added.
class PieceCounts {
 public:
  explicit PieceCounts(SplitPattern pattern) : pattern_(pattern) {}

  void Add(std::string_view text);  // valid UTF-8
  void Add(const PieceCounts& others);

  const std::unordered_map<std::string, int64_t>& counts() const { return counts_; }
  SplitPattern pattern() const { return pattern_; }

 private:
  SplitPattern pattern_;
  std::unordered_map<std::string, int64_t> counts_;
};

struct BpeTraining {
  int64_t vocab = 0;      // tokens, special ones and bytes included
  int64_t min_count = 2;  // a pair that occurs less often is not merged
  std::vector<std::string> special_tokens = {};
  std::function<void(int64_t tokens)> progress = {};  // called for each new token
};

struct TrainedBpe {
  std::vector<std::string> tokens;  // bytes, by id; of special tokens the content
  std::vector<BpeMerge> merges;
  int64_t specials = 0;  // the first ids
};

// Fewer tokens than asked for when no pair occurs often enough. Errors: kInvalidArgument for a
// vocabulary smaller than bytes and special tokens.
TrainedBpe TrainBpe(const PieceCounts& pieces, const BpeTraining& training);

// As a tokenizer.json.
std::string TokenizerJson(const TrainedBpe& trained, SplitPattern pattern);

}  // namespace millrace

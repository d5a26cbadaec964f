#include "runtime/text/bpe/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/text/bpe/byte_alphabet.h"

namespace millrace {
namespace {

struct Word {
  std::vector<int32_t> symbols;
  int64_t count;
};

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{uint32_t(left)} << 32 | uint32_t(right);
}

struct Candidate {
  uint64_t pair;
  int64_t count;
  // A queue's order: most frequent on top, then the smaller pair.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(const PieceCounts& pieces, const BpeTraining& training) : training_(training) {
    for (const std::string& token : training.special_tokens) AddToken(token);
    trained_.specials = static_cast<int64_t>(trained_.tokens.size());
    std::vector<std::pair<std::string, int>> symbols;  // UTF-8 sorts as code points do
    for (int byte = 0; byte < 256; ++byte)
      symbols.emplace_back(SymbolsOfBytes(std::string(1, static_cast<char>(byte))), byte);
    std::sort(symbols.begin(), symbols.end());
    std::vector<int32_t> id_of_byte(256);
    for (const auto& [symbol, byte] : symbols)
      id_of_byte[byte] = AddToken(std::string(1, static_cast<char>(byte)));
    for (const auto& [piece, count] : pieces.counts()) {
      Word& word = words_.emplace_back(Word{{}, count});
      for (const char byte : piece) word.symbols.push_back(id_of_byte[static_cast<uint8_t>(byte)]);
    }
    CountPairs();
  }

  TrainedBpe Run() {
    while (static_cast<int64_t>(trained_.tokens.size()) < training_.vocab && !queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(top.pair);
      if (found == pairs_.end()) continue;
      if (found->second.count != top.count) {
        queue_.push({top.pair, found->second.count});  // others took some of them
        continue;
      }
      if (top.count < std::max<int64_t>(1, training_.min_count)) break;
      Merge(top.pair);
      if (training_.progress) training_.progress(static_cast<int64_t>(trained_.tokens.size()));
    }
    return std::move(trained_);
  }

 private:
  struct Pair {
    int64_t count = 0;
    std::vector<int32_t> words;  // that have it, or had it; rising
  };

  int32_t AddToken(const std::string& bytes) {
    const auto [at, added] = ids_.emplace(bytes, static_cast<int32_t>(trained_.tokens.size()));
    if (added) trained_.tokens.push_back(bytes);
    return at->second;
  }

  void CountPairs() {
    for (size_t w = 0; w < words_.size(); ++w)
      for (size_t i = 0; i + 1 < words_[w].symbols.size(); ++i)
        Change(words_[w].symbols[i], words_[w].symbols[i + 1], static_cast<int32_t>(w), 1);
    for (const auto& [pair, state] : pairs_) queue_.push({pair, state.count});
  }

  void Change(int32_t left, int32_t right, int32_t word, int64_t by) {
    Pair& pair = pairs_[PairKey(left, right)];
    pair.count += by * words_[word].count;
    if (by > 0 && (pair.words.empty() || pair.words.back() != word)) pair.words.push_back(word);
  }

  void Merge(uint64_t key) {
    const auto left = static_cast<int32_t>(key >> 32), right = static_cast<int32_t>(key);
    const int32_t result = AddToken(trained_.tokens[left] + trained_.tokens[right]);
    trained_.merges.push_back({left, right, result});
    const std::vector<int32_t> words = std::move(pairs_.at(key).words);
    std::vector<uint64_t> changed;
    for (const int32_t word : words) MergeIn(word, {left, right, result}, changed);
    pairs_.erase(key);
    for (const uint64_t pair : changed)
      if (const auto found = pairs_.find(pair); found != pairs_.end())
        queue_.push({pair, found->second.count});
  }

  // Replaces the pair in one word, from the left; `changed` gets the pairs that came to be.
  void MergeIn(int32_t word, const BpeMerge& merge, std::vector<uint64_t>& changed) {
    std::vector<int32_t>& symbols = words_[word].symbols;
    size_t kept = 0;
    for (size_t i = 0; i < symbols.size(); ++i) {
      if (i + 1 == symbols.size() || symbols[i] != merge.left || symbols[i + 1] != merge.right) {
        symbols[kept++] = symbols[i];
        continue;
      }
      if (kept > 0)
        Replace(symbols[kept - 1], merge.left, symbols[kept - 1], merge.result, word, changed);
      if (i + 2 < symbols.size())
        Replace(merge.right, symbols[i + 2], merge.result, symbols[i + 2], word, changed);
      symbols[kept++] = merge.result;
      ++i;
    }
    symbols.resize(kept);
  }

  void Replace(int32_t old_left, int32_t old_right, int32_t left, int32_t right, int32_t word,
               std::vector<uint64_t>& changed) {
    Change(old_left, old_right, word, -1);
    Change(left, right, word, 1);
    changed.push_back(PairKey(left, right));
  }

  const BpeTraining& training_;
  TrainedBpe trained_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Word> words_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

void PieceCounts::Add(std::string_view text) {
  std::string key;
  ForEachPiece(pattern_, text, [&](std::string_view piece) {
    key = piece;
    ++counts_[key];
  });
}

void PieceCounts::Add(const PieceCounts& others) {
  for (const auto& [piece, count] : others.counts_) counts_[piece] += count;
}

TrainedBpe TrainBpe(const PieceCounts& pieces, const BpeTraining& training) {
  const int64_t fixed = 256 + static_cast<int64_t>(training.special_tokens.size());
  MR_REQUIRE(ErrorCode::kInvalidArgument, training.vocab >= fixed,
             "a vocabulary of {} is too small for 256 bytes and {} special tokens", training.vocab,
             fixed - 256);
  return Trainer(pieces, training).Run();
}

}  // namespace millrace

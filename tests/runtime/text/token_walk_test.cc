#include "runtime/text/bpe/token_walk.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/text/bpe/byte_trie.h"
#include "runtime/text/bpe/merge_borders.h"
#include "runtime/text/tokenizer/text_encoder.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/text/unicode/unicode.h"
#include "tests/runtime/text/golden.h"

namespace millrace {
namespace {

using Random = std::mt19937;

std::string RandomText(Random& random, const std::vector<std::string>& letters, int most) {
  std::string text;
  for (int n = 1 + int(random() % unsigned(most)); n > 0; --n)
    text += letters[random() % letters.size()];
  return text;
}

TEST_CASE("the trie finds the longest entry that a text begins with", "[text]") {
  const std::vector<std::string> letters = {"a",    "b",    std::string(1, '\0'),
                                            "\xff", "\xe4", "\xb8\xad"};
  for (unsigned seed = 0; seed < 20; ++seed) {
    Random random(seed);
    std::map<std::string, uint32_t> known;
    for (int i = 0; i < 300; ++i) known.emplace(RandomText(random, letters, 9), i);
    std::vector<ByteTrie::Entry> entries;
    for (const auto& [bytes, value] : known) entries.push_back({bytes, value});
    std::shuffle(entries.begin(), entries.end(), random);
    const ByteTrie trie(entries);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = RandomText(random, letters, 12);
      uint32_t value = ByteTrie::kNone;
      size_t length = 0;
      for (size_t n = 1; n <= text.size(); ++n)
        if (const auto found = known.find(text.substr(0, n)); found != known.end())
          value = found->second, length = n;
      const auto* const begin = reinterpret_cast<const uint8_t*>(text.data());
      const ByteTrie::Match match = trie.Longest(begin, begin + text.size());
      REQUIRE(match.value == value);
      REQUIRE(match.length == length);
    }
  }
  const uint8_t byte = 'a';
  REQUIRE(ByteTrie({}).Longest(&byte, &byte + 1).value == ByteTrie::kNone);
}

// Merges of tokens that were made before, so that ids and ranks rise together.
struct RandomModel {
  std::array<int32_t, 256> byte_ids;
  std::vector<BpeMerge> merges;
  std::vector<std::string> bytes;  // by id

  RandomModel(Random& random, const std::vector<std::string>& letters, int count) {
    std::iota(byte_ids.begin(), byte_ids.end(), 0);
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, char(byte));
    std::vector<int32_t> used;
    std::set<std::string> known;
    for (const std::string& letter : letters)
      for (const char byte : letter)
        if (known.emplace(1, byte).second) used.push_back(uint8_t(byte));
    for (int i = 0; i < count; ++i) {
      const int32_t left = used[random() % used.size()], right = used[random() % used.size()];
      const std::string both = bytes[size_t(left)] + bytes[size_t(right)];
      if (both.size() > 40 || !known.insert(both).second) continue;
      merges.push_back({left, right, int32_t(bytes.size())});
      used.push_back(int32_t(bytes.size()));
      bytes.push_back(both);
    }
  }
  BpeModel model() const { return BpeModel(byte_ids, merges); }
};

std::vector<int32_t> Merged(const BpeModel& model, const std::string& text) {
  BpeScratch scratch;
  std::vector<int32_t> ids;
  model.Encode(text, scratch, ids);
  return ids;
}

std::vector<int32_t> Walked(const TokenWalk& walk, const std::string& text) {
  std::vector<uint64_t> scratch = {~uint64_t{0}};
  std::vector<int32_t> ids(text.size(), -7);
  ids.resize(walk.Encode(text, scratch, ids.data()));
  return ids;
}

// Few letters make ties, overlaps and dead ends common: `aaa`, `abab`, halves of characters.
const std::vector<std::vector<std::string>> kAlphabets = {
    {"a"}, {"a", "b"}, {"a", "b", "c", " "}, {"中", "文", "不"}, {"中", "a", "é", "\xe4\xb8\xaa"}};

TEST_CASE("a walk over tokens has the ids of merging", "[text]") {
  int walks = 0, long_texts = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    Random random(seed);
    const auto& letters = kAlphabets[seed % kAlphabets.size()];
    const RandomModel made(random, letters, 2 + int(random() % 80));
    const BpeModel model = made.model();
    const std::optional<TokenWalk> walk = TokenWalk::Make(model, made.merges, made.bytes);
    if (!walk) continue;
    ++walks;
    for (int i = 0; i < 120; ++i) {
      const std::string text = RandomText(random, letters, i % 10 == 0 ? 700 : 30);
      CAPTURE(seed, text);
      long_texts += text.size() > 256;
      REQUIRE(Walked(*walk, text) == Merged(model, text));
    }
  }
  REQUIRE(walks > 75);
  REQUIRE(long_texts > 500);
}

TEST_CASE("ids need not follow ranks", "[text]") {
  for (unsigned seed = 0; seed < 40; ++seed) {
    Random random(seed);
    RandomModel made(random, {"a", "b", "中"}, 60);
    std::vector<int32_t> id_of(made.bytes.size());
    std::iota(id_of.begin(), id_of.end(), 0);
    std::shuffle(id_of.begin(), id_of.end(), random);
    std::vector<std::string> bytes(made.bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) bytes[size_t(id_of[i])] = made.bytes[i];
    for (int32_t& id : made.byte_ids) id = id_of[size_t(id)];
    for (auto& [left, right, result] : made.merges)
      left = id_of[size_t(left)], right = id_of[size_t(right)], result = id_of[size_t(result)];
    const BpeModel model = made.model();
    const std::optional<TokenWalk> walk = TokenWalk::Make(model, made.merges, bytes);
    if (!walk) continue;
    for (int i = 0; i < 50; ++i) {
      const std::string text = RandomText(random, {"a", "b", "中"}, 40);
      CAPTURE(seed, text);
      REQUIRE(Walked(*walk, text) == Merged(model, text));
    }
  }
}

TEST_CASE("a token that no text becomes is not walked over", "[text]") {
  std::array<int32_t, 256> byte_ids;
  std::iota(byte_ids.begin(), byte_ids.end(), 0);
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, char(byte));
  bytes.insert(bytes.end(), {"bc", "ab", "abc"});
  // a bc: b merges with c first, so that ab + c never is.
  const std::vector<BpeMerge> merges = {{'b', 'c', 256}, {'a', 'b', 257}, {257, 'c', 258}};
  const BpeModel model(byte_ids, merges);
  const std::optional<TokenWalk> walk = TokenWalk::Make(model, merges, bytes);
  REQUIRE(walk);
  REQUIRE(Walked(*walk, "abc") == std::vector<int32_t>{'a', 256});
  REQUIRE(Walked(*walk, "abab") == std::vector<int32_t>{257, 257});
}

nlohmann::json WholeDocument() {
  for (const text::GoldenVariant& variant : text::ReadGolden())
    if (variant.name == "whole") return nlohmann::json::parse(variant.json);
  throw std::runtime_error("no variant");
}

TEST_CASE("merges out of order have no walk, and the same ids as before", "[text]") {
  nlohmann::json document = WholeDocument();
  REQUIRE(Tokenizer(document.dump(), "t").walk() != nullptr);
  auto& merges = document["model"]["merges"];
  std::reverse(merges.begin(), merges.end());
  const Tokenizer tokenizer(document.dump(), "t");
  REQUIRE(tokenizer.walk() == nullptr);
  TextEncoder encoder(tokenizer);
  for (const text::GoldenVariant& variant : text::ReadGolden())
    for (const auto& one : variant.cases)
      if (!one.text.empty() && one.text.find('|') == std::string::npos)
        REQUIRE(encoder.Encode(one.text) == Merged(tokenizer.model(), one.text));
}

TEST_CASE("a long piece that falls into parts has the ids of the whole", "[text]") {
  const Tokenizer tokenizer(WholeDocument().dump(), "t");
  Random random(3);
  std::vector<std::string> words;  // whole characters, so that any row of them is UTF-8
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (const std::string word(tokenizer.Bytes(id));
        FindInvalidUtf8(word) < 0 && word.find('|') == std::string::npos)
      words.push_back(word);
  for (const char* other : {"中文分词不需要空格", "の", "한국어", "𠀀", "é"})
    words.push_back(other);
  for (const int64_t cache_bytes : {int64_t{4096}, TextEncoder::kCacheBytes}) {
    TextEncoder encoder(tokenizer, cache_bytes);
    for (int i = 0; i < 400; ++i) {
      const std::string text = RandomText(random, words, i % 20 == 0 ? 400 : 25);
      CAPTURE(text);
      REQUIRE(encoder.Encode(text) == Merged(tokenizer.model(), text));
      REQUIRE(encoder.Encode(text) == Merged(tokenizer.model(), text));  // out of the caches
    }
  }
}

TEST_CASE("pieces of any length and number of ids are remembered with theirs", "[text]") {
  const Tokenizer tokenizer(WholeDocument().dump(), "t");
  const std::vector<std::string> words = {"a", "the",  "q\x01", "é",  "при",
                                          "Ω", "中文", "の",    "한", "𠀀"};
  Random random(5);
  std::vector<std::string> texts;  // one piece each
  std::set<std::pair<size_t, size_t>> kinds;
  for (int i = 0; i < 3000; ++i) {
    texts.push_back(RandomText(random, words, 1 + i % 12));
    kinds.insert({std::min<size_t>(texts.back().size() / 16, 2),
                  std::min<size_t>(Merged(tokenizer.model(), texts.back()).size() / 5, 2)});
  }
  REQUIRE(kinds.size() == 7);  // up to 15, 31, more bytes; up to 4, 9, more ids: what can be
  for (const int64_t cache_bytes : {int64_t{4096}, TextEncoder::kCacheBytes}) {
    TextEncoder encoder(tokenizer, cache_bytes);
    for (int round = 0; round < 3; ++round)
      for (const std::string& text : texts) {
        CAPTURE(text, round);
        REQUIRE(encoder.Encode(text) == Merged(tokenizer.model(), text));
        if (round == 1) REQUIRE(encoder.Encode(text) == Merged(tokenizer.model(), text));
      }
  }
}

TEST_CASE("parts end where no token spans", "[text]") {
  const std::vector<std::string_view> tokens = {"中文", "文a", "é\xe4", "\xad\xe6"};
  const MergeBorders borders(tokens);
  const auto parts = [&](const std::string& text, int most) {
    std::vector<std::string> found;
    const uint8_t* ends[16];
    const auto* p = reinterpret_cast<const uint8_t*>(text.data());
    for (const uint8_t* const end = p + text.size(); p < end;) {
      const int count = borders.PartEnds(p, end, most, ends);
      for (int i = 0; i < count; p = ends[i++])
        found.emplace_back(reinterpret_cast<const char*>(p), size_t(ends[i] - p));
    }
    return found;
  };
  using Parts = std::vector<std::string>;
  for (const int most : {1, 2, 16}) {
    REQUIRE(parts("a中文ab", most) == Parts{"a", "中文a", "b"});
    REQUIRE(parts("é中", most) == Parts{"é中"});  // a token has the first byte of 中 behind é
    REQUIRE(parts("中文中", most) == Parts{"中文", "中"});
    REQUIRE(parts("中是", most) == Parts{"中是"});  // bytes of a token that cuts both
    REQUIRE(parts("x", most) == Parts{"x"});
  }
}

}  // namespace
}  // namespace millrace

#include "runtime/text/tokenize/text_blocks.h"

#include <zlib.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/text/tokenize/ordered_work.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

const TextCutter kCutter(SplitPattern::kGpt2);

std::string Write(const TempDir& dir, const std::string& name, const std::string& content) {
  const std::string path = dir.path() + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::string Gzip(const std::string& text) {
  z_stream state = {};
  REQUIRE(deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(text.size() + 1000, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&state, Z_FINISH) == Z_STREAM_END);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// Words that no two places of the text share.
std::string Words(int count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += "word" + std::to_string(i * 7919 % 100003) + "x ";
  return text;
}

std::string ReadAll(const std::string& path, int64_t chunk) {
  const auto stream = OpenByteStream(path);
  std::string text, part(static_cast<size_t>(chunk), '\0');
  while (const int64_t got = stream->Read(part.data(), chunk)) text += part.substr(0, size_t(got));
  REQUIRE(stream->consumed() == stream->file_bytes());
  return text;
}

struct Part {
  std::string text;
  bool ends_document;
  bool operator==(const Part&) const = default;
};

std::vector<Part> PartsOf(const std::vector<std::string>& paths, const TextPlace& begin = {}) {
  std::vector<Part> parts;
  TextBlocks blocks(paths, kCutter, begin);
  for (TextBlock block; blocks.Next(block);)
    ForEachPart(block, "text", [&](const DocumentPart& p) {
      parts.push_back({std::string(p.text), p.ends_document});
    });
  REQUIRE(blocks.consumed() == blocks.total_bytes());
  return parts;
}

TEST_CASE("compressed text is read as it was, in members and frames", "[text][blocks]") {
  const TempDir dir;
  const std::string a = Words(60000), b = Words(300);
  for (const int64_t chunk : {int64_t{1000}, int64_t{1} << 20}) {
    REQUIRE(ReadAll(Write(dir, "a.txt", a), chunk) == a);
    REQUIRE(ReadAll(Write(dir, "a.gz", Gzip(a) + Gzip("") + Gzip(b)), chunk) == a + b);
    REQUIRE(ReadAll(Write(dir, "a.zst", Zstd(a) + Zstd("") + Zstd(b)), chunk) == a + b);
  }
}

TEST_CASE("damaged and cut-off compressed text is refused with the file", "[text][blocks]") {
  const TempDir dir;
  const std::string text = Words(50000);
  for (const bool zstd : {false, true}) {
    const std::string name = zstd ? "t.zst" : "t.gz", packed = zstd ? Zstd(text) : Gzip(text);
    const auto refused = [&](const std::string& content, const std::string& what) {
      const std::string path = Write(dir, name, content);
      RequireError(ErrorCode::kData, {path, zstd ? "zstd" : "gzip", what},
                   [&] { ReadAll(path, 10000); });
    };
    refused(packed.substr(0, packed.size() - 10), "cut off");
    refused("", "cut off");
    refused("plain text", "damaged");
    std::string flipped = packed;
    flipped[2] = static_cast<char>(flipped[2] ^ 0x55);
    refused(flipped, "damaged");
  }
}

TEST_CASE("JSON lines are documents, text files are one each", "[text][blocks]") {
  const TempDir dir;
  const std::string lines =
      "{\"text\":\"one\"}\n\n  \r\n{\"n\":1,\"text\":\"t\\u00e9\\n\"}\n{\"text\":\"\"}";
  const std::vector<std::string> paths = {Write(dir, "a.jsonl", lines), Write(dir, "b.txt", "b b"),
                                          Write(dir, "c.jsonl.gz", Gzip(lines + "\n"))};
  const std::vector<Part> of_lines = {{"one", true}, {"t\u00e9\n", true}, {"", true}};
  std::vector<Part> expected = of_lines;
  expected.push_back({"b b", true});
  expected.insert(expected.end(), of_lines.begin(), of_lines.end());
  REQUIRE(PartsOf(paths) == expected);
}

TEST_CASE("blocks end at words, and go on from any of their places", "[text][blocks]") {
  const TempDir dir;
  const std::string text = Words(400000);
  const std::vector<std::string> paths = {Write(dir, "a.txt.gz", Gzip(text)),
                                          Write(dir, "b.txt", text)};
  TextBlocks blocks(paths, kCutter, {});
  std::vector<TextBlock> all;
  for (TextBlock block; blocks.Next(block);) all.push_back(block);
  REQUIRE(all.size() >= 8);
  std::string joined;
  for (const TextBlock& block : all) {
    joined += block.text;
    REQUIRE(std::ssize(block.text) <= TextBlocks::kBlockBytes);
    if (!block.ends_document) REQUIRE(block.text.back() == 'x');
  }
  REQUIRE((joined == text + text));
  for (size_t i = 0; i < all.size(); i += 3) {
    TextBlocks rest(paths, kCutter, all[i].begin);
    TextBlock block;
    for (size_t j = i; j < all.size(); ++j) {
      REQUIRE(rest.Next(block));
      REQUIRE((block.text == all[j].text && block.end == all[j].end));
    }
    REQUIRE_FALSE(rest.Next(block));
  }
}

TEST_CASE("a bad line is named by its number and byte, bad text by its byte", "[text][blocks]") {
  const TempDir dir;
  const auto refused = [&](const std::string& name, const std::string& content,
                           const std::string& what) {
    const std::string path = Write(dir, name, content);
    RequireError(ErrorCode::kData, {path, what}, [&] { PartsOf({path}); });
  };
  refused("a.jsonl", "{\"text\":\"a\"}\n\n[1]\n",
          "line 3 is not a JSON object in UTF-8, by its byte 0 (14 of the text)");
  refused("a.jsonl", "{\"text\":\"a\"",
          "line 1 is not a JSON object in UTF-8, by its byte 11 (11 of the text)");
  refused("a.jsonl", "{\"text\":\"\xff\"}",
          "line 1 is not a JSON object in UTF-8, by its byte 9 (9 of the text)");
  refused("a.jsonl", "{\"text\":\"a\"}\n\r\n \n {\"text\" \"a\"}\n",
          "line 4 is not a JSON object in UTF-8, by its byte 11 (28 of the text)");
  std::string many;
  for (int i = 0; i < 3000; ++i) many += "{\"text\":\"" + std::string(900, 'a') + "\"}\n";
  REQUIRE(std::ssize(many) > 2 * TextBlocks::kBlockBytes);
  refused("a.jsonl", many + "{x}\n",
          "line 3001 is not a JSON object in UTF-8, by its byte 1 (" +
              std::to_string(many.size() + 1) + " of the text)");
  refused("a.jsonl", "{\"text\":\"\\ud800\"}", "line 1 is not a JSON object");
  refused("a.jsonl", "{\"txt\":\"a\"}\n", "line 1 has no string \"text\"");
  refused("a.jsonl", "{\"text\":7}\n", "line 1 has no string \"text\"");
  refused("a.txt", Words(200000) + "\xff", "is not UTF-8");
  refused("b.txt", "ab\xff", "byte 2 (0xff)");
}

TEST_CASE("results come in order, and the first error of the order leaves", "[text][blocks]") {
  for (const int threads : {1, 3}) {
    int next = 0;
    std::vector<int> used;
    const auto items = [&](int& item) { return (item = next++) < 50; };
    const auto workers = [] {
      return [](const int& item) {
        if (item == 40 || item == 43) throw std::runtime_error(std::to_string(item));
        return item * item;
      };
    };
    REQUIRE_THROWS_WITH((RunInOrder<int, int>(threads, items, workers,
                                              [&](int& result) { used.push_back(result); })),
                        "40");
    REQUIRE(used.size() == 40);
    for (int i = 0; i < 40; ++i) REQUIRE(used[static_cast<size_t>(i)] == i * i);
  }
}

}  // namespace
}  // namespace millrace

// Files of text as a sequence of blocks that may be worked on apart, for tokenizing and for
// counting pieces on all cores.
//
//   *.jsonl[.gz|.zst]  one JSON object a line, a document each: its member `field`. Empty lines
//                      are nothing
//   all others         one document each, compressed or not
//
// A block ends behind a line, or where its document ends or may be cut (TextCutter). It holds at
// least kBlockBytes where the file has them and ends at the last such place in them, so that blocks
// depend on the file and on where the first begins, and on nothing else.
//
// Errors  kData: what ByteStream says; a line or a stretch of text without a place to cut that is
//         longer than kMostBlockBytes; what is not JSON or not UTF-8, with the file, the line, and
//         the byte of the text at which that shows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenize/byte_stream.h"
#include "runtime/text/tokenizer/token_stream.h"

namespace millrace {

// Where a block begins: nothing before it is left to do.
struct TextPlace {
  int64_t file = 0;    // index of the input
  int64_t offset = 0;  // in its text, decompressed
  int64_t line = 0;    // lines before the place; JSONL only
  bool operator==(const TextPlace&) const = default;
};

struct TextBlock {
  TextPlace begin, end;
  std::string path;
  std::string text;
  bool jsonl = false;
  bool ends_document = false;  // of text; JSONL ends one with each line
};

class TextBlocks {
 public:
  static constexpr int64_t kBlockBytes = int64_t{1} << 20;
  static constexpr int64_t kMostBlockBytes = int64_t{1} << 30;

  TextBlocks(std::vector<std::string> paths, const TextCutter& cutter, const TextPlace& begin);

  bool Next(TextBlock& block);  // false: no more

  int64_t total_bytes() const noexcept { return total_bytes_; }  // of all files, as they lie
  int64_t consumed() const noexcept;                             // of them, so far

 private:
  void OpenFile();
  int64_t CutOf(std::string_view text, int64_t from) const;

  std::vector<std::string> paths_;
  const TextCutter& cutter_;
  TextPlace place_;
  std::unique_ptr<ByteStream> stream_;  // of place_.file; null: not open yet
  std::string rest_;                    // read, and not yet in a block
  bool jsonl_ = false;
  std::vector<int64_t> file_bytes_;
  int64_t total_bytes_ = 0;
};

// Whether a file of this name is JSON lines.
bool IsJsonLines(std::string_view path);

// A line of JSON lines, from 1.
struct LinePlace {
  const std::string& path;
  int64_t number;
  int64_t offset;             // of its first byte in the text
  std::string Words() const;  // "FILE: line N"
};

// Calls back with each object of a block of JSON lines.
void ForEachLine(const TextBlock& block,
                 const std::function<void(const nlohmann::json&, const LinePlace&)>& use);

// Calls back with each text of the block: a document, or a part of one.
struct DocumentPart {
  std::string_view text;
  bool ends_document;
};
void ForEachPart(const TextBlock& block, const std::string& field,
                 const std::function<void(const DocumentPart&)>& use);

}  // namespace millrace

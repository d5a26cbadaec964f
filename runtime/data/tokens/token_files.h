// Files of tokens and of text as one sequence of token ids.
//
//   text    One byte is one token (ids 0 to 255). Between two files stands one separator,
//   kDocumentSeparator. A file that begins as a compressed one does is refused.
//   tokens  raw: little-endian uint16 and nothing else (nanoGPT).
//           llm.c: 256 little-endian int32 {magic, version, count, 0...}, then count tokens: uint16
//           for magic 20240520 version 1, uint32 for magic 20240801 version 7. The count must agree
//           with the file's size. Those that `millrace tokenize` made have a stamp in the header's
//           zeros, which says whose ids they are. Megatron: ids of a type that NAME.idx beside
//           NAME.bin says (megatron_index.h); a path may name either file, or NAME. Files follow
//           each other without a separator: whoever made them put their own.
//
// A path names a file, or a folder. Of a folder all files directly in it are taken, in the byte
// order of their names, except those whose name starts with a dot, and of text empty ones; of a
// folder of tokens only *.bin. A symbolic link counts as the file it leads to. A file reachable by
// several names is taken once: under its own name if that is in the folder, else under the first
// link's. What is neither file nor link is passed over.
//
// Errors  kData, with the file's name, what was found and what is expected.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/input_file.h"
#include "runtime/data/tokens/megatron_index.h"

namespace millrace {

// The id between two text files. Text contains no zero byte, so it means "another
// document" and nothing else.
inline constexpr int32_t kDocumentSeparator = 0;

enum class TokenFileKind { kText, kTokens };

// The tokenizer that a file's ids come from.
struct TokenStamp {
  std::string tokenizer;  // Hash128 of its file; "": the file does not say
  int64_t vocab = 0;      // ids are below it
};

// The tokens of one file and their place in the sequence.
struct TokenSegment {
  std::shared_ptr<const InputFile> file;
  int64_t bytes_per_token = 1;                 // 1, 2, 4 or 8
  int64_t data_offset = 0;                     // of the first token in the file, in bytes
  int64_t count = 0;                           // tokens in the file, at least 1
  int64_t first = 0;                           // index of the first one in the sequence
  std::optional<MegatronIndex> megatron = {};  // of a file that has one
  TokenStamp stamp = {};

  int64_t end() const noexcept { return first + count; }
  bool is_signed() const noexcept { return megatron && megatron->is_signed; }
};

// The header of a token file of llm.c with a stamp, if that names a tokenizer, for 2 or 4 bytes per
// token and 1 to 2^31 - 1 tokens.
inline constexpr int64_t kTokenHeaderInts = 256, kTokenHeaderBytes = kTokenHeaderInts * 4;
std::array<int32_t, kTokenHeaderInts> TokenFileHeader(int64_t bytes_per_token, int64_t count,
                                                      const TokenStamp& stamp);

// The files that `path` stands for; never empty.
std::vector<std::string> ListTokenFiles(const std::string& path, TokenFileKind kind);

// Opens them and lays them one after the other; leaves the separator's place between text files.
std::vector<TokenSegment> OpenTokenFiles(const std::vector<std::string>& paths, TokenFileKind kind);

// out[i] = token `first + i` of the segment, counted from the segment's start, for i in [0, n). An
// id outside [0, vocab) is an error that names file, byte offset and id.
void ReadTokens(const TokenSegment& segment, int64_t first, int64_t n, int64_t vocab, int32_t* out);

}  // namespace millrace

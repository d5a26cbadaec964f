#include "runtime/data/tokens/token_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

constexpr int32_t kMagicU16 = 20240520, kVersionU16 = 1;
constexpr int32_t kMagicU32 = 20240801, kVersionU32 = 7;

// From header[kStampInt] on, in the bytes that llm.c leaves zero.
constexpr int64_t kStampInt = 16;
struct StampBytes {
  char name[8];
  char tokenizer[32];
  int64_t vocab;
};
constexpr char kStampName[8] = {'m', 'i', 'l', 'l', 'r', 'a', 'c', 'e'};

TokenStamp ReadStamp(const InputFile& file) {
  StampBytes bytes;
  file.Read(kStampInt * 4, &bytes, sizeof(bytes));
  if (std::memcmp(bytes.name, kStampName, sizeof(kStampName)) != 0) return {};
  return {std::string(bytes.tokenizer, sizeof(bytes.tokenizer)), bytes.vocab};
}

// A Megatron dataset goes by its name alone, or by either of its files.
std::string BinOfMegatron(const std::string& path) {
  constexpr std::string_view kIdx = ".idx";
  if (path.ends_with(kIdx)) return path.substr(0, path.size() - kIdx.size()) + ".bin";
  return !FileExists(path) && FileExists(path + std::string(kIdx)) ? path + ".bin" : path;
}

std::vector<std::string> ListFolder(const std::string& path, TokenFileKind kind) {
  struct Found {
    bool is_link;
    std::string name;
    std::pair<dev_t, ino_t> identity;
  };
  std::vector<Found> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entries(path, error), end; !error && entries != end;
       entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name[0] == '.' || (kind == TokenFileKind::kTokens && !name.ends_with(".bin"))) continue;
    struct stat status;
    MR_REQUIRE(ErrorCode::kData, ::stat(entries->path().c_str(), &status) == 0,
               "{} cannot be read (a link that leads nowhere?); remove it or name one file",
               entries->path().string());
    // Text may be empty. Of tokens that is a file which was cut off, and is opened to say so.
    if (S_ISREG(status.st_mode) && (status.st_size > 0 || kind == TokenFileKind::kTokens))
      found.push_back({entries->is_symlink(error), name, {status.st_dev, status.st_ino}});
  }
  MR_REQUIRE(ErrorCode::kData, !error, "cannot list the folder {}: {}", path, error.message());
  const auto named = [&](std::string_view end) {
    return std::any_of(found.begin(), found.end(),
                       [&](const Found& file) { return file.name.ends_with(end); });
  };
  MR_REQUIRE(ErrorCode::kData,
             kind != TokenFileKind::kText || !named("tokens.json") || !named(".bin"),
             "the folder {} has token files, with their tokens.json, and no text; they are read "
             "with data.kind=tokens",
             path);
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.is_link, a.name) <
           std::pair(b.is_link, b.name);  // own names claim their file first
  });
  std::set<std::pair<dev_t, ino_t>> taken;
  std::vector<std::string> files;
  for (const Found& file : found)
    if (taken.insert(file.identity).second)
      files.push_back((std::filesystem::path(path) / file.name).string());
  std::sort(files.begin(), files.end());
  MR_REQUIRE(ErrorCode::kData, !files.empty(), "the folder {} has no {} directly in it", path,
             kind == TokenFileKind::kText ? "non-empty file" : "*.bin file");
  return files;
}

// Files that a reader of raw uint16 would swallow as tokens, or one of bytes as text, by how they
// begin. What each is called tells the user what went wrong.
using namespace std::string_view_literals;
struct ForeignFormat {
  std::string_view start, name;
};
constexpr std::array kCompressed = {
    ForeignFormat{"PK\x03\x04"sv, "a zip archive"}, ForeignFormat{"\x1f\x8b"sv, "a gzip file"},
    ForeignFormat{"\x28\xb5\x2f\xfd"sv, "a zstd file"},
    ForeignFormat{"BZh91AY&SY"sv, "a bzip2 file"}, ForeignFormat{"\xfd\x37zXZ\0"sv, "an xz file"}};
constexpr std::array kBinary = {ForeignFormat{"\x93NUMPY"sv, "a NumPy array"},
                                ForeignFormat{"BZh"sv, "a bzip2 file"},
                                ForeignFormat{"PAR1"sv, "a Parquet file"},
                                ForeignFormat{"ARROW1"sv, "an Arrow file"},
                                ForeignFormat{"MMIDIDX\0\0"sv, "a Megatron index"},
                                ForeignFormat{"BIN.TOK\n"sv, "an LLM.Q token file"}};

void RefuseFormats(const InputFile& file, std::span<const ForeignFormat> formats,
                   std::string_view instead) {
  std::array<char, 12> bytes;
  const int64_t n = std::min<int64_t>(file.size(), std::ssize(bytes));
  file.Read(0, bytes.data(), n);
  const std::string_view start(bytes.data(), static_cast<size_t>(n));
  for (const ForeignFormat& format : formats)
    MR_REQUIRE(ErrorCode::kData, !start.starts_with(format.start), "{} is {}; {}", file.path(),
               format.name, instead);
}

TokenSegment OpenText(std::shared_ptr<const InputFile> file) {
  RefuseFormats(*file, kCompressed,
                "its bytes are not those of the text. Unpack it, or make token files of it "
                "(millrace tokenize reads .gz and .zst)");
  const int64_t size = file->size();
  return {.file = std::move(file), .bytes_per_token = 1, .data_offset = 0, .count = size};
}

TokenSegment OpenMegatron(std::shared_ptr<const InputFile> file, const std::string& index_path) {
  const InputFile index_file(index_path, ErrorCode::kData);
  const MegatronIndex index = ReadMegatronIndex(index_file, file->path(), file->size());
  MR_REQUIRE(ErrorCode::kData, index.tokens > 0, "{}: its sequences are all empty", index_path);
  return {.file = std::move(file),
          .bytes_per_token = index.bytes_per_token,
          .count = index.tokens,
          .megatron = index};
}

TokenSegment OpenTokens(std::shared_ptr<const InputFile> file) {
  const std::string& path = file->path();
  if (const std::string index = MegatronIndexPath(path); !index.empty() && FileExists(index))
    return OpenMegatron(std::move(file), index);
  const int64_t size = file->size();
  std::array<int32_t, 3> header = {};
  file->Read(0, header.data(), std::min<int64_t>(size, sizeof(header)));
  constexpr std::string_view kInstead =
      "token files are raw uint16 (nanoGPT), llm.c's, or NAME.bin beside Megatron's NAME.idx";
  RefuseFormats(*file, kCompressed, kInstead);
  RefuseFormats(*file, kBinary, kInstead);

  const auto [magic, version, count] = header;
  if (magic == kMagicU16 || magic == kMagicU32) {
    const int32_t expected = magic == kMagicU16 ? kVersionU16 : kVersionU32;
    const int64_t bytes_per_token = magic == kMagicU16 ? 2 : 4;
    MR_REQUIRE(ErrorCode::kData, size >= kTokenHeaderBytes,
               "{} has llm.c's magic {} but only {} bytes; the header alone has {}", path, magic,
               size, kTokenHeaderBytes);
    MR_REQUIRE(ErrorCode::kData, version == expected,
               "{}: byte offset 4 has version {}; of llm.c's magic {} version {} is known", path,
               version, magic, expected);
    MR_REQUIRE(ErrorCode::kData, count > 0,
               "{}: byte offset 8 says {} tokens; at least 1 is expected", path, count);
    const int64_t wanted = kTokenHeaderBytes + bytes_per_token * count;
    MR_REQUIRE(ErrorCode::kData, size == wanted,
               "{}: byte offset 8 says {} tokens, which makes {} bytes, but the file has {}: {}",
               path, count, wanted, size,
               size < wanted ? "truncated?" : "trailing bytes, or a wrong count");
    TokenStamp stamp = ReadStamp(*file);
    return {.file = std::move(file),
            .bytes_per_token = bytes_per_token,
            .data_offset = kTokenHeaderBytes,
            .count = count,
            .stamp = std::move(stamp)};
  }
  // llm.c dates its magics. These two words as raw tokens would need ids above
  // 55,000 in just this place.
  MR_REQUIRE(
      ErrorCode::kData, size < 4 || magic < 20240101 || magic > 20241231,
      "{} starts with {}, the magic of another kind of llm.c file; token files have {} or {}", path,
      magic, kMagicU16, kMagicU32);
  MR_REQUIRE(ErrorCode::kData, size % 2 == 0,
             "{} has {} bytes; raw uint16 tokens need an even number: truncated?", path, size);
  return {.file = std::move(file), .bytes_per_token = 2, .data_offset = 0, .count = size / 2};
}

template <typename Id>
void Widen(const TokenSegment& segment, int64_t first, int64_t n, int64_t vocab, int32_t* out) {
  constexpr int64_t kChunk = 4096;
  std::array<Id, kChunk> ids;
  for (int64_t done = 0; done < n; done += kChunk) {
    const int64_t length = std::min(kChunk, n - done);
    const int64_t offset = segment.data_offset + (first + done) * int64_t{sizeof(Id)};
    segment.file->Read(offset, ids.data(), length * int64_t{sizeof(Id)});
    Id smallest = 0, largest = 0;
    for (int64_t i = 0; i < length; ++i) {
      smallest = std::min(smallest, ids[i]);
      largest = std::max(largest, ids[i]);
      out[done + i] = static_cast<int32_t>(ids[i]);
    }
    if (smallest == 0 && int64_t{largest} < vocab) continue;
    const auto outside = [&](Id id) { return std::cmp_less(id, 0) || int64_t{id} >= vocab; };
    const int64_t bad = std::find_if(ids.begin(), ids.begin() + length, outside) - ids.begin();
    throw Error(
        ErrorCode::kData,
        fmt::format(
            "{}: token {} (byte offset {}) has id {}; the model's vocabulary has ids 0 to {}",
            segment.file->path(), first + done + bad, offset + bad * int64_t{sizeof(Id)},
            int64_t{ids[bad]}, vocab - 1));
  }
}

}  // namespace

std::array<int32_t, kTokenHeaderInts> TokenFileHeader(int64_t bytes_per_token, int64_t count,
                                                      const TokenStamp& stamp) {
  MR_CHECK((bytes_per_token == 2 || bytes_per_token == 4) && count > 0 && count <= INT32_MAX,
           "{} tokens of {} bytes", count, bytes_per_token);
  std::array<int32_t, kTokenHeaderInts> header = {};
  header[0] = bytes_per_token == 2 ? kMagicU16 : kMagicU32;
  header[1] = bytes_per_token == 2 ? kVersionU16 : kVersionU32;
  header[2] = static_cast<int32_t>(count);
  if (stamp.tokenizer.empty()) return header;
  StampBytes bytes = {};
  MR_CHECK_EQ(stamp.tokenizer.size(), sizeof(bytes.tokenizer), "a tokenizer's hash");
  std::memcpy(bytes.name, kStampName, sizeof(kStampName));
  std::memcpy(bytes.tokenizer, stamp.tokenizer.data(), sizeof(bytes.tokenizer));
  bytes.vocab = stamp.vocab;
  std::memcpy(&header[kStampInt], &bytes, sizeof(bytes));
  return header;
}

std::vector<std::string> ListTokenFiles(const std::string& given, TokenFileKind kind) {
  const std::string path = kind == TokenFileKind::kTokens ? BinOfMegatron(given) : given;
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  MR_REQUIRE(ErrorCode::kData, std::filesystem::exists(status), "{} does not exist", path);
  if (std::filesystem::is_directory(status)) return ListFolder(path, kind);
  MR_REQUIRE(ErrorCode::kData, std::filesystem::is_regular_file(status),
             "{} is neither a file nor a folder", path);
  return {path};
}

std::vector<TokenSegment> OpenTokenFiles(const std::vector<std::string>& paths,
                                         TokenFileKind kind) {
  std::vector<TokenSegment> segments;
  for (const std::string& path : paths) {
    auto file = std::make_shared<const InputFile>(path, ErrorCode::kData);
    MR_REQUIRE(ErrorCode::kData, file->size() > 0, "{} is empty", path);
    TokenSegment segment =
        kind == TokenFileKind::kTokens ? OpenTokens(std::move(file)) : OpenText(std::move(file));
    if (!segments.empty())
      segment.first = segments.back().end() + (kind == TokenFileKind::kText ? 1 : 0);
    segments.push_back(std::move(segment));
  }
  return segments;
}

void ReadTokens(const TokenSegment& segment, int64_t first, int64_t n, int64_t vocab,
                int32_t* out) {
  MR_CHECK(first >= 0 && n >= 0 && first + n <= segment.count, "tokens {} to {} of {} in {}", first,
           first + n, segment.count, segment.file->path());
  const bool is_signed = segment.is_signed();
  switch (segment.bytes_per_token) {
    case 1:
      return is_signed ? Widen<int8_t>(segment, first, n, vocab, out)
                       : Widen<uint8_t>(segment, first, n, vocab, out);
    case 2:
      return is_signed ? Widen<int16_t>(segment, first, n, vocab, out)
                       : Widen<uint16_t>(segment, first, n, vocab, out);
    case 4:
      return is_signed ? Widen<int32_t>(segment, first, n, vocab, out)
                       : Widen<uint32_t>(segment, first, n, vocab, out);
    default:
      return Widen<int64_t>(segment, first, n, vocab, out);
  }
}

}  // namespace millrace

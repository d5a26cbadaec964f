#include "runtime/data/tokens/megatron_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kMagic = "MMIDIDX\0\0"sv;
constexpr uint64_t kVersion = 1;
constexpr int64_t kVersionAt = 9, kDTypeAt = 17, kSequencesAt = 18, kMarksAt = 26,
                  kHeaderBytes = 34;
constexpr int64_t kLengthBytes = 4, kOffsetBytes = 8, kMarkBytes = 8;
constexpr int64_t kChunk = 8192;  // elements read at once

struct DTypeRow {
  int code;
  std::string_view name;
  int64_t bytes;  // of an id; 0: none are of this type
  bool is_signed;
};
constexpr std::array<DTypeRow, 8> kDTypes = {{{1, "uint8", 1, false},
                                              {2, "int8", 1, true},
                                              {3, "int16", 2, true},
                                              {4, "int32", 4, true},
                                              {5, "int64", 8, true},
                                              {6, "float64", 0, true},
                                              {7, "float32", 0, true},
                                              {8, "uint16", 2, false}}};

template <typename T>
T At(const std::array<char, kHeaderBytes>& header, int64_t offset) {
  T value;
  std::memcpy(&value, header.data() + offset, sizeof value);
  return value;
}

// Calls fn(i, element i) for the `count` elements that lie at `offset`.
template <typename T, typename F>
void ForEach(const InputFile& file, int64_t offset, int64_t count, F&& fn) {
  std::vector<T> chunk(static_cast<size_t>(std::min(count, kChunk)));
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t n = std::min(kChunk, count - done);
    file.Read(offset + done * int64_t{sizeof(T)}, chunk.data(), n * int64_t{sizeof(T)});
    for (int64_t i = 0; i < n; ++i) fn(done + i, chunk[static_cast<size_t>(i)]);
  }
}

class IndexReader {
 public:
  IndexReader(const InputFile& file, const std::string& bin_path, int64_t bin_bytes)
      : file_(file), bin_path_(bin_path), bin_bytes_(bin_bytes) {}

  MegatronIndex Read() {
    ReadHeader();
    ReadLengths();
    ReadOffsets();
    ReadMarks();
    return index_;
  }

 private:
  void ReadHeader() {
    MR_REQUIRE(ErrorCode::kData, file_.size() >= kHeaderBytes,
               "{} has {} bytes; a Megatron index begins with {}: truncated?", path(), file_.size(),
               kHeaderBytes);
    std::array<char, kHeaderBytes> header;
    file_.Read(0, header.data(), kHeaderBytes);
    MR_REQUIRE(ErrorCode::kData, std::string_view(header.data(), kMagic.size()) == kMagic,
               "{} stands beside {} and is no Megatron index: it does not begin with MMIDIDX and "
               "two zeros. Remove or rename it if {} is another kind of token file",
               path(), bin_path_, bin_path_);
    const auto version = At<uint64_t>(header, kVersionAt);
    MR_REQUIRE(ErrorCode::kData, version == kVersion,
               "{}: byte offset {} has version {}; version {} is known", path(), kVersionAt,
               version, kVersion);
    SetDType(At<uint8_t>(header, kDTypeAt));
    SetSizes(At<uint64_t>(header, kSequencesAt), At<uint64_t>(header, kMarksAt));
  }

  void SetDType(int code) {
    const auto row = std::find_if(kDTypes.begin(), kDTypes.end(),
                                  [&](const DTypeRow& type) { return type.code == code; });
    MR_REQUIRE(ErrorCode::kData, row != kDTypes.end(),
               "{}: byte offset {} has dtype {}; 1 to 8 are known", path(), kDTypeAt, code);
    MR_REQUIRE(ErrorCode::kData, row->bytes > 0,
               "{}: byte offset {} has dtype {}, {}; ids are integers", path(), kDTypeAt, code,
               row->name);
    index_.bytes_per_token = row->bytes;
    index_.is_signed = row->is_signed;
  }

  // Compared by division: sums of what a damaged file says could overflow.
  void SetSizes(uint64_t sequences, uint64_t marks) {
    const auto left = static_cast<uint64_t>(file_.size() - kHeaderBytes);
    MR_REQUIRE(ErrorCode::kData,
               sequences >= 1 && sequences <= left / (kLengthBytes + kOffsetBytes),
               "{}: byte offset {} says {} sequences; at least 1 is expected, and the file's {} "
               "bytes have room for {}: truncated?",
               path(), kSequencesAt, sequences, file_.size(), left / (kLengthBytes + kOffsetBytes));
    const uint64_t rest = left - sequences * (kLengthBytes + kOffsetBytes);
    MR_REQUIRE(ErrorCode::kData, marks >= 2 && marks <= rest / kMarkBytes,
               "{}: byte offset {} says {} marks of documents; at least 2 are expected, and the "
               "file's {} bytes have room for {}: truncated?",
               path(), kMarksAt, marks, file_.size(), rest / kMarkBytes);
    const uint64_t trailing = rest - marks * kMarkBytes;
    MR_REQUIRE(
        ErrorCode::kData, trailing != sequences || trailing == 0,
        "{} gives each of its {} sequences a mode: a multimodal dataset, of which no ids are "
        "read",
        path(), sequences);
    MR_REQUIRE(ErrorCode::kData, trailing == 0,
               "{} has {} bytes; its header ({} sequences, {} marks) makes {}", path(),
               file_.size(), sequences, marks, file_.size() - static_cast<int64_t>(trailing));
    index_.sequences = static_cast<int64_t>(sequences);
    index_.documents = static_cast<int64_t>(marks) - 1;
  }

  void ReadLengths() {
    ForEach<int32_t>(file_, kHeaderBytes, index_.sequences, [&](int64_t i, int32_t length) {
      MR_REQUIRE(ErrorCode::kData, length >= 0,
                 "{}: byte offset {}: sequence {} has {} ids; at least 0 are expected", path(),
                 kHeaderBytes + i * kLengthBytes, i, length);
      index_.tokens += length;
      MR_REQUIRE(ErrorCode::kData, index_.tokens <= bin_bytes_,
                 "{}: byte offset {}: sequences 0 to {} have {} ids, but {} has {} bytes: "
                 "truncated, or the index of another file?",
                 path(), kHeaderBytes + i * kLengthBytes, i, index_.tokens, bin_path_, bin_bytes_);
    });
    const int64_t bytes = index_.tokens * index_.bytes_per_token;
    MR_REQUIRE(ErrorCode::kData, bytes == bin_bytes_,
               "{} says {} ids of {} byte{}, which makes {} bytes, but {} has {}: {}", path(),
               index_.tokens, index_.bytes_per_token, index_.bytes_per_token == 1 ? "" : "s", bytes,
               bin_path_, bin_bytes_,
               bin_bytes_ < bytes ? "truncated?" : "trailing bytes, or the index of another file");
  }

  // Lengths and offsets in step, so that neither is held.
  void ReadOffsets() {
    const int64_t offsets_at = index_.OffsetsAt();
    std::vector<int32_t> lengths(static_cast<size_t>(std::min(index_.sequences, kChunk)));
    int64_t expected = 0;
    ForEach<int64_t>(file_, offsets_at, index_.sequences, [&](int64_t i, int64_t offset) {
      if (i % kChunk == 0)
        file_.Read(kHeaderBytes + i * kLengthBytes, lengths.data(),
                   std::min(kChunk, index_.sequences - i) * kLengthBytes);
      MR_REQUIRE(ErrorCode::kData, offset == expected,
                 "{}: byte offset {}: sequence {} begins at byte {} of {}; {} is expected, behind "
                 "the one before it",
                 path(), offsets_at + i * kOffsetBytes, i, offset, bin_path_, expected);
      expected += lengths[static_cast<size_t>(i % kChunk)] * index_.bytes_per_token;
    });
  }

  void ReadMarks() {
    const int64_t marks_at = index_.DocumentsAt();
    int64_t before = 0;
    ForEach<int64_t>(file_, marks_at, index_.documents + 1, [&](int64_t i, int64_t mark) {
      const int64_t offset = marks_at + i * kMarkBytes;
      MR_REQUIRE(ErrorCode::kData, i > 0 || mark == 0,
                 "{}: byte offset {}: the first document begins with sequence {}; 0 is expected",
                 path(), offset, mark);
      MR_REQUIRE(ErrorCode::kData, mark >= before && mark <= index_.sequences,
                 "{}: byte offset {}: document {} begins with sequence {}; {} to {} are expected",
                 path(), offset, i, mark, before, index_.sequences);
      MR_REQUIRE(ErrorCode::kData, i < index_.documents || mark == index_.sequences,
                 "{}: byte offset {}: the documents end before sequence {}; {}, the number of "
                 "sequences, is expected",
                 path(), offset, mark, index_.sequences);
      before = mark;
    });
  }

  const std::string& path() const { return file_.path(); }

  const InputFile& file_;
  const std::string& bin_path_;
  const int64_t bin_bytes_;
  MegatronIndex index_;
};

}  // namespace

int64_t MegatronIndex::OffsetsAt() const noexcept {
  return kHeaderBytes + sequences * kLengthBytes;
}
int64_t MegatronIndex::DocumentsAt() const noexcept {
  return OffsetsAt() + sequences * kOffsetBytes;
}

std::string MegatronIndexPath(const std::string& bin_path) {
  constexpr std::string_view kBin = ".bin";
  if (!bin_path.ends_with(kBin)) return "";
  return bin_path.substr(0, bin_path.size() - kBin.size()) + ".idx";
}

MegatronIndex ReadMegatronIndex(const InputFile& index, const std::string& bin_path,
                                int64_t bin_bytes) {
  return IndexReader(index, bin_path, bin_bytes).Read();
}

}  // namespace millrace

#include "runtime/data/tokens/file_tokens.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/data/hash.h"
#include "runtime/data/tokens/value_check.h"

namespace millrace {
namespace {

constexpr int64_t kCheckedWhenOpened = int64_t{256} << 20;  // bytes

// A file without a stamp may be anybody's; one with a stamp is never bytes'.
void CheckStamp(const TokenSegment& segment, const ExpectedTokenizer& expected) {
  const TokenStamp& stamp = segment.stamp;
  if (stamp.tokenizer.empty() || stamp.tokenizer == expected.hash) return;
  MR_REQUIRE(
      ErrorCode::kData, !expected.hash.empty(),
      "{} was made with a tokenizer (hash {}, {} ids), and data.tokenizer is {}: its ids are "
      "no bytes. Name that tokenizer.json; text that is to be blended with the file has to be "
      "made into token files as well (millrace tokenize)",
      segment.file->path(), stamp.tokenizer, stamp.vocab, expected.name);
  throw Error(
      ErrorCode::kData,
      fmt::format("{} was made with another tokenizer (hash {}, {} ids) than data.tokenizer, "
                  "{} (hash {})",
                  segment.file->path(), stamp.tokenizer, stamp.vocab, expected.name,
                  expected.hash));
}

// Masks of all segments, or none: data.loss_mask.
std::vector<LossMask> OpenMasks(const std::vector<TokenSegment>& segments,
                                const TokenSourceOptions& options) {
  std::vector<LossMask> masks;
  if (options.loss_mask == false || options.kind != TokenSourceOptions::Kind::kTokens) return masks;
  for (const TokenSegment& segment : segments) {
    const std::string& path = segment.file->path();
    const std::string mask = LossMaskPath(path);
    const bool exists = FileExists(mask);
    MR_REQUIRE(ErrorCode::kConfig, options.loss_mask || !exists,
               "{} says which tokens of {} count as targets, and data.loss_mask is null: true to "
               "train on these alone, false to train on all",
               mask, path);
    if (!options.loss_mask) continue;
    const bool is_first = &segment == &segments.front();
    MR_REQUIRE(ErrorCode::kData, is_first || exists == !masks.empty(),
               "{} has {} mask ({}), but {} has {}: of {} all files have one, or none", path,
               exists ? "a" : "no", mask, segments.front().file->path(), exists ? "none" : "one",
               options.path);
    if (exists) masks.emplace_back(path, segment.count);
  }
  return masks;
}

// Of all segments: where their documents begin.
std::vector<MegatronDocuments> OpenDocuments(const std::vector<TokenSegment>& segments,
                                             const TokenSourceOptions& options) {
  std::vector<MegatronDocuments> documents;
  if (!options.index_documents) return documents;
  for (const TokenSegment& segment : segments) {
    const std::string& path = segment.file->path();
    MR_REQUIRE(ErrorCode::kConfig, segment.megatron.has_value(),
               "data.document_mask is true and data.end_of_document null, and {} has no index of "
               "Megatron that says where its documents begin; name the id that they end with",
               path);
    documents.emplace_back(MegatronIndexPath(path), *segment.megatron);
  }
  return documents;
}

// Name, size, beginning and end.
void AddFile(const InputFile& file, Hasher128& hash) {
  constexpr int64_t kSample = 4096;
  std::vector<char> bytes(kSample);
  const int64_t size = file.size(), n = std::min(size, kSample);
  hash.Update(
      fmt::format("\n{} {} ", std::filesystem::path(file.path()).filename().string(), size));
  for (const int64_t offset : {int64_t{0}, size - n}) {
    file.Read(offset, bytes.data(), n);
    hash.Update(bytes.data(), n);
  }
}

}  // namespace

FileTokens::FileTokens(const TokenSourceOptions& options, TokenFileKind kind,
                       const std::vector<std::string>& paths)
    : seq_len_(options.seq_len),
      vocab_(options.vocab),
      kind_(kind),
      segments_(OpenTokenFiles(paths, kind)) {
  const int64_t tokens = segments_.back().end();
  windows_ = (tokens - 1) / seq_len_;
  MR_REQUIRE(ErrorCode::kData, windows_ >= 1,
             "{} has {} tokens; one window of model.seq_len = {} needs {}", options.path, tokens,
             seq_len_, seq_len_ + 1);
  if (options.tokenizer)
    for (const TokenSegment& segment : segments_) CheckStamp(segment, *options.tokenizer);
  masks_ = OpenMasks(segments_, options);
  documents_ = OpenDocuments(segments_, options);
  for (const TokenSegment& segment : segments_)
    if (MayLieOutside(segment, vocab_))
      bytes_per_token_ = std::max(bytes_per_token_, segment.bytes_per_token);
  if (!masks_.empty()) ++bytes_per_token_;
  checked_windows_ = windows_;
  if (bytes_per_token_ > 0)
    checked_windows_ = std::min(windows_, kCheckedWhenOpened / bytes_per_token_ / seq_len_);
  CheckWindows(0, checked_windows_);
}

template <class F>
void FileTokens::ForEachPartOf(int64_t window, F&& use) const {
  MR_CHECK(window >= 0 && window < windows_, "window {} of {}", window, windows_);
  ForEachPart(window * seq_len_, (window + 1) * seq_len_ + 1, use);
}

template <class F>
void FileTokens::ForEachPart(int64_t begin, int64_t end, F&& use) const {
  int64_t position = begin;
  auto segment =
      std::upper_bound(segments_.begin(), segments_.end(), position,
                       [](int64_t value, const TokenSegment& s) { return value < s.first; }) -
      1;
  while (position < end) {
    if (position == segment->end()) {
      // The place of a separator, or of none: the next segment starts here.
      ++segment;
      if (position < segment->first) use(Part{kSeparator, 0, 1, position++ - begin});
      continue;
    }
    const int64_t n = std::min(end, segment->end()) - position;
    use(Part{static_cast<size_t>(segment - segments_.begin()), position - segment->first, n,
             position - begin});
    position += n;
  }
}

void FileTokens::Read(int64_t window, int32_t* out) const {
  ForEachPartOf(window, [&](const Part& part) {
    if (part.segment == kSeparator)
      out[part.at] = kDocumentSeparator;
    else
      ReadTokens(segments_[part.segment], part.first, part.count, vocab_, out + part.at);
  });
}

void FileTokens::ReadMarks(int64_t window, uint8_t* out) const {
  std::fill(out, out + seq_len_ + 1, uint8_t{0});
  if (masks_.empty() && documents_.empty()) return;
  ForEachPartOf(window, [&](const Part& part) {
    uint8_t* const marks = out + part.at;
    if (!masks_.empty()) {
      masks_[part.segment].Read(part.first, part.count, marks);
      for (int64_t i = 0; i < part.count; ++i) marks[i] = marks[i] == 0 ? kNoTarget : 0;
    }
    if (!documents_.empty())
      documents_[part.segment].Mark(part.first, part.count, kBeginsDocument, marks);
  });
}

std::string FileTokens::Describe() const {
  return fmt::format("{} {} file{}, {} tokens{}", segments_.size(),
                     kind_ == TokenFileKind::kText ? "text" : "token",
                     segments_.size() == 1 ? "" : "s", segments_.back().end(),
                     masks_.empty() ? "" : " with loss masks");
}

// Masks are part of the data, whether or not they are read.
std::string FileTokens::Fingerprint() const {
  Hasher128 hash;
  hash.Update(
      fmt::format("files kind={} T={} vocab={}", static_cast<int>(kind_), seq_len_, vocab_));
  for (const TokenSegment& segment : segments_) {
    AddFile(*segment.file, hash);
    if (const auto& index = segment.megatron)
      hash.Update(fmt::format("megatron bytes={} signed={} sequences={} documents={}",
                              index->bytes_per_token, index->is_signed, index->sequences,
                              index->documents));
    const std::string mask = LossMaskPath(segment.file->path());
    if (kind_ == TokenFileKind::kTokens && FileExists(mask))
      AddFile(InputFile(mask, ErrorCode::kData), hash);
  }
  return hash.Hex();
}

// By ctime, which whoever writes cannot set back: rsync and `touch -r` restore the other one.
std::string FileTokens::FilesAsTheyAre() const {
  Hasher128 hash;
  hash.Update(Fingerprint());
  const auto add = [&](const std::string& path) {
    struct stat status;
    MR_REQUIRE(ErrorCode::kData, ::stat(path.c_str(), &status) == 0, "{} is gone", path);
    hash.Update(fmt::format("\n{} {} {} {}.{:09d}", std::filesystem::absolute(path).string(),
                            status.st_ino, status.st_size, status.st_ctim.tv_sec,
                            status.st_ctim.tv_nsec));
  };
  for (const TokenSegment& segment : segments_) {
    add(segment.file->path());
    if (!masks_.empty()) add(LossMaskPath(segment.file->path()));
  }
  return hash.Hex();
}

void FileTokens::CheckWindows(int64_t first, int64_t count) const {
  MR_CHECK(first >= 0 && count >= 0 && first + count <= windows_, "windows {}+{} of {}", first,
           count, windows_);
  const int64_t end = first + count;
  if (bytes_per_token_ == 0 || count == 0) return;
  ForEachPart(first * seq_len_, end == windows_ ? segments_.back().end() : end * seq_len_ + 1,
              [&](const Part& part) {
                if (part.segment == kSeparator) return;
                CheckTokens(segments_[part.segment], part.first, part.count, vocab_);
                if (!masks_.empty()) CheckMask(masks_[part.segment], part.first, part.count);
              });
}

}  // namespace millrace

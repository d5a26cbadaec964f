#include "runtime/data/token_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "runtime/data/hash.h"
#include "runtime/data/token_files.h"

namespace millrace {
namespace {

constexpr int64_t kCheckedWhenOpened = int64_t{256} << 20;  // bytes
constexpr int64_t kHeldOutPart = 10;                        // one window in ten
constexpr int64_t kSyntheticWindows = int64_t{1} << 40;
constexpr uint64_t kSyntheticStream =
    0x53594e5448455449;  // apart from the streams of parameters and epochs

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

class FileTokens final : public TokenSource {
 public:
  FileTokens(const TokenSourceOptions& options, TokenFileKind kind,
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
    CheckIds();
  }

  int64_t seq_len() const noexcept override { return seq_len_; }
  int64_t windows() const noexcept override { return windows_; }

  void Read(int64_t window, int32_t* out) const override {
    MR_CHECK(window >= 0 && window < windows_, "window {} of {}", window, windows_);
    int64_t position = window * seq_len_;
    const int64_t end = position + seq_len_ + 1;
    auto segment =
        std::upper_bound(segments_.begin(), segments_.end(), position,
                         [](int64_t value, const TokenSegment& s) { return value < s.first; }) -
        1;
    while (position < end) {
      if (position ==
          segment->end()) {  // the place of a separator, or of none: the next segment starts here
        ++segment;
        if (position < segment->first) {
          *out++ = kDocumentSeparator;
          ++position;
        }
        continue;
      }
      const int64_t n = std::min(end, segment->end()) - position;
      ReadTokens(*segment, position - segment->first, n, vocab_, out);
      out += n;
      position += n;
    }
  }

  std::string Describe() const override {
    const bool text = kind_ == TokenFileKind::kText;
    return fmt::format("{} {} file{}, {} tokens", segments_.size(), text ? "text" : "token",
                       segments_.size() == 1 ? "" : "s", segments_.back().end());
  }

  std::string Fingerprint() const override {
    Hasher128 hash;
    hash.Update(
        fmt::format("files kind={} T={} vocab={}", static_cast<int>(kind_), seq_len_, vocab_));
    constexpr int64_t kSample = 4096;
    std::vector<char> bytes(kSample);
    for (const TokenSegment& segment : segments_) {
      const int64_t size = segment.file->size(), n = std::min(size, kSample);
      hash.Update(fmt::format(
          "\n{} {} ", std::filesystem::path(segment.file->path()).filename().string(), size));
      for (const int64_t offset : {int64_t{0}, size - n}) {
        segment.file->Read(offset, bytes.data(), n);
        hash.Update(bytes.data(), n);
      }
      if (const auto& index = segment.megatron)
        hash.Update(fmt::format("megatron bytes={} signed={} sequences={} documents={}",
                                index->bytes_per_token, index->is_signed, index->sequences,
                                index->documents));
    }
    return hash.Hex();
  }

 private:
  void CheckIds() const {
    int64_t left = kCheckedWhenOpened;
    std::vector<int32_t> ids(1 << 16);
    for (const TokenSegment& segment : segments_) {
      if (!segment.is_signed() && segment.bytes_per_token < 4 &&
          int64_t{1} << (8 * segment.bytes_per_token) <= vocab_)
        continue;
      for (int64_t first = 0; first < segment.count && left > 0; first += int64_t(ids.size())) {
        const int64_t n = std::min<int64_t>(int64_t(ids.size()), segment.count - first);
        ReadTokens(segment, first, n, vocab_, ids.data());
        left -= n * segment.bytes_per_token;
      }
    }
  }

  int64_t seq_len_;
  int64_t vocab_;
  TokenFileKind kind_;
  std::vector<TokenSegment> segments_;
  int64_t windows_ = 0;
};

class SyntheticTokens final : public TokenSource {
 public:
  explicit SyntheticTokens(const TokenSourceOptions& options)
      : seq_len_(options.seq_len), vocab_(options.vocab), seed_(options.seed) {}

  int64_t seq_len() const noexcept override { return seq_len_; }
  int64_t windows() const noexcept override { return kSyntheticWindows; }

  void Read(int64_t window, int32_t* out) const override {
    MR_CHECK(window >= 0 && window < kSyntheticWindows, "window {} of {}", window,
             kSyntheticWindows);
    for (int64_t i = 0; i <= seq_len_; ++i) {
      const uint64_t position = static_cast<uint64_t>(window * seq_len_ + i);
      const uint64_t word = PhiloxBlock(seed_, kSyntheticStream, position / 4)[position % 4];
      out[i] = static_cast<int32_t>((word * static_cast<uint64_t>(vocab_)) >> 32);
    }
  }

  std::string Describe() const override { return fmt::format("synthetic tokens, seed {}", seed_); }
  std::string Fingerprint() const override {
    return Hash128(fmt::format("synthetic seed={} T={} vocab={}", seed_, seq_len_, vocab_));
  }

 private:
  int64_t seq_len_;
  int64_t vocab_;
  uint64_t seed_;
};

// Windows [first, first + count) of another source.
class WindowRange final : public TokenSource {
 public:
  WindowRange(std::shared_ptr<const TokenSource> all, int64_t first, int64_t count)
      : all_(std::move(all)), first_(first), count_(count) {}

  int64_t seq_len() const noexcept override { return all_->seq_len(); }
  int64_t windows() const noexcept override { return count_; }
  void Read(int64_t window, int32_t* out) const override {
    MR_CHECK(window >= 0 && window < count_, "window {} of {}", window, count_);
    all_->Read(first_ + window, out);
  }
  std::string Describe() const override {
    return fmt::format("{}: windows {} to {} of {}", all_->Describe(), first_, first_ + count_ - 1,
                       all_->windows());
  }
  std::string Fingerprint() const override {
    return Hash128(fmt::format("{} windows {}+{}", all_->Fingerprint(), first_, count_));
  }

 private:
  std::shared_ptr<const TokenSource> all_;
  int64_t first_;
  int64_t count_;
};

void CheckOptions(const TokenSourceOptions& options) {
  MR_REQUIRE(ErrorCode::kInvalidArgument,
             options.seq_len >= 1 && options.seq_len <= int64_t{1} << 22,
             "seq_len is {}; 1 to 2^22 are allowed", options.seq_len);
  MR_REQUIRE(ErrorCode::kInvalidArgument, options.vocab >= 1 && options.vocab <= int64_t{1} << 31,
             "vocab is {}; 1 to 2^31 are allowed", options.vocab);
  MR_REQUIRE(ErrorCode::kData,
             options.kind == TokenSourceOptions::Kind::kSynthetic || !options.path.empty(),
             "data.path is missing: a file or a folder of {}",
             options.kind == TokenSourceOptions::Kind::kText ? "text" : "tokens");
}

TokenFileKind FileKind(const TokenSourceOptions& options) {
  return options.kind == TokenSourceOptions::Kind::kText ? TokenFileKind::kText
                                                         : TokenFileKind::kTokens;
}

}  // namespace

std::shared_ptr<const TokenSource> OpenTokenSource(const TokenSourceOptions& options) {
  CheckOptions(options);
  if (options.kind == TokenSourceOptions::Kind::kSynthetic)
    return std::make_shared<SyntheticTokens>(options);
  const TokenFileKind kind = FileKind(options);
  return std::make_shared<FileTokens>(options, kind, ListTokenFiles(options.path, kind));
}

namespace {

// A folder's files, those with val in their names apart; else all.
DataSplit OpenByName(const TokenSourceOptions& options) {
  if (options.kind != TokenSourceOptions::Kind::kTokens ||
      !std::filesystem::is_directory(options.path))
    return {.train = OpenTokenSource(options), .held_out = nullptr};
  std::vector<std::string> train, val;
  for (std::string& file : ListTokenFiles(options.path, TokenFileKind::kTokens)) {
    const bool is_val =
        std::filesystem::path(file).filename().string().find("val") != std::string::npos;
    (is_val ? val : train).push_back(std::move(file));
  }
  MR_REQUIRE(ErrorCode::kData, !train.empty(),
             "every *.bin file in {} has \"val\" in its name; none is left to train on",
             options.path);
  DataSplit split;
  split.train = std::make_shared<FileTokens>(options, TokenFileKind::kTokens, train);
  if (!val.empty())
    split.held_out = std::make_shared<FileTokens>(options, TokenFileKind::kTokens, val);
  return split;
}

}  // namespace

std::shared_ptr<const TokenSource> OpenTrainingPart(const TokenSourceOptions& options) {
  CheckOptions(options);
  return OpenByName(options).train;
}

DataSplit OpenDataSplit(const TokenSourceOptions& options,
                        const std::optional<std::string>& val_path) {
  CheckOptions(options);
  if (options.kind != TokenSourceOptions::Kind::kSynthetic && val_path.has_value()) {
    TokenSourceOptions val_options = options;
    val_options.path = *val_path;
    std::shared_ptr<const TokenSource> held_out = OpenTokenSource(val_options);
    return {.train = OpenTrainingPart(options), .held_out = std::move(held_out)};
  }
  DataSplit split = OpenByName(options);
  if (split.held_out != nullptr) return split;

  const int64_t windows = split.train->windows();
  MR_REQUIRE(
      ErrorCode::kData, windows >= 2,
      "{} has one window of model.seq_len = {} tokens: too little to hold a part out; add data, "
      "shorten seq_len or set data.val_path",
      options.path, options.seq_len);
  const int64_t held = std::max<int64_t>(1, windows / kHeldOutPart);
  return {.train = std::make_shared<WindowRange>(split.train, 0, windows - held),
          .held_out = std::make_shared<WindowRange>(split.train, windows - held, held)};
}

}  // namespace millrace

#include "runtime/data/tokens/token_source.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "runtime/data/hash.h"
#include "runtime/data/tokens/file_tokens.h"
#include "runtime/data/tokens/made_folder.h"
#include "runtime/data/tokens/token_files.h"

namespace millrace {
namespace {

constexpr int64_t kHeldOutPart = 10;  // one window in ten
constexpr int64_t kSyntheticWindows = int64_t{1} << 40;
constexpr uint64_t kSyntheticStream =
    0x53594e5448455449;  // apart from the streams of parameters and epochs

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
  void ReadMarks(int64_t window, uint8_t* out) const override {
    MR_CHECK(window >= 0 && window < count_, "window {} of {}", window, count_);
    all_->ReadMarks(first_ + window, out);
  }
  bool has_loss_mask() const noexcept override { return all_->has_loss_mask(); }
  int64_t checked_windows() const noexcept override {
    return std::clamp<int64_t>(all_->checked_windows() - first_, 0, count_);
  }
  void CheckWindows(int64_t first, int64_t count) const override {
    all_->CheckWindows(first_ + first, count);
  }
  int64_t window_bytes() const noexcept override { return all_->window_bytes(); }
  std::string FilesAsTheyAre() const override {
    return Hash128(fmt::format("{} windows {}+{}", all_->FilesAsTheyAre(), first_, count_));
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

// Where no file says where documents begin, an id has to.
void RequireKnownDocuments(const TokenSourceOptions& options) {
  MR_REQUIRE(ErrorCode::kConfig,
             !options.index_documents || options.kind == TokenSourceOptions::Kind::kTokens,
             "data.document_mask is true and data.end_of_document null; it has to be the id that "
             "documents in {} end with (Megatron's indices alone say where they begin)",
             options.path.empty() ? "synthetic data" : options.path);
}

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
  RequireKnownDocuments(options);
  if (options.kind == TokenSourceOptions::Kind::kTokens) RequireWholeFolder(options.path);
}

TokenFileKind FileKind(const TokenSourceOptions& options) {
  return options.kind == TokenSourceOptions::Kind::kText ? TokenFileKind::kText
                                                         : TokenFileKind::kTokens;
}

}  // namespace

void TokenSource::CheckWindows(int64_t, int64_t) const {}

void TokenSource::ReadMarks(int64_t, uint8_t* out) const {
  std::fill(out, out + seq_len() + 1, uint8_t{0});
}

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

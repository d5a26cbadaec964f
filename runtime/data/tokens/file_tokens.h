// Files of tokens or of text as windows of ids (token_source.h), with what lies beside them: masks
// of targets, indices of documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/tokens/loss_mask.h"
#include "runtime/data/tokens/megatron_documents.h"
#include "runtime/data/tokens/token_files.h"
#include "runtime/data/tokens/token_source.h"

namespace millrace {

class FileTokens final : public TokenSource {
 public:
  FileTokens(const TokenSourceOptions& options, TokenFileKind kind,
             const std::vector<std::string>& paths);

  int64_t seq_len() const noexcept override { return seq_len_; }
  int64_t windows() const noexcept override { return windows_; }
  bool has_loss_mask() const noexcept override { return !masks_.empty(); }
  int64_t checked_windows() const noexcept override { return checked_windows_; }
  void CheckWindows(int64_t first, int64_t count) const override;
  int64_t window_bytes() const noexcept override { return bytes_per_token_ * seq_len_; }
  void Read(int64_t window, int32_t* out) const override;
  void ReadMarks(int64_t window, uint8_t* out) const override;
  std::string Describe() const override;
  std::string Fingerprint() const override;
  std::string FilesAsTheyAre() const override;

 private:
  // A stretch of tokens that is of one segment, or one separator.
  struct Part {
    size_t segment;        // kSeparator: none
    int64_t first, count;  // tokens of the segment
    int64_t at;            // where they are in the stretch
  };
  static constexpr size_t kSeparator = SIZE_MAX;

  template <class F>
  void ForEachPart(int64_t begin, int64_t end, F&& use) const;
  template <class F>
  void ForEachPartOf(int64_t window, F&& use) const;

  int64_t seq_len_;
  int64_t vocab_;
  TokenFileKind kind_;
  std::vector<TokenSegment> segments_;
  std::vector<LossMask> masks_;               // of each segment, or empty
  std::vector<MegatronDocuments> documents_;  // likewise
  int64_t bytes_per_token_ = 0;               // to be checked: ids that may be bad, masks
  int64_t windows_ = 0, checked_windows_ = 0;
};

}  // namespace millrace

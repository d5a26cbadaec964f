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
  void Read(int64_t window, int32_t* out) const override;
  void ReadMarks(int64_t window, uint8_t* out) const override;
  std::string Describe() const override;
  std::string Fingerprint() const override;

 private:
  // A stretch of a window that is of one segment, or one separator.
  struct Part {
    size_t segment;        // kSeparator: none
    int64_t first, count;  // tokens of the segment
    int64_t at;            // where they are in the window
  };
  static constexpr size_t kSeparator = SIZE_MAX;

  template <class F>
  void ForEachPart(int64_t window, F&& use) const;
  void CheckIds() const;
  void CheckMasks() const;

  int64_t seq_len_;
  int64_t vocab_;
  TokenFileKind kind_;
  std::vector<TokenSegment> segments_;
  std::vector<LossMask> masks_;               // of each segment, or empty
  std::vector<MegatronDocuments> documents_;  // likewise
  int64_t windows_ = 0;
};

}  // namespace millrace

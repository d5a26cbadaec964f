// Training data as numbered windows of token ids. Window w of a sequence with T = seq_len is
// tokens [w*T, w*T + T], T+1 of them: inputs are the first T, targets the last T. Windows share no
// input and no target; tokens after the last whole window are not used.
//
// What the ids come from: files of text or tokens (token_files.h), or `synthetic`: uniform ids from
// a counter-based generator, for benchmarks and tests.
//
// Held out: the windows of val_path; without it those of the files in data.path, if that is a
// folder of tokens, whose names contain "val" (nanoGPT and llm.c name them so); else the last tenth
// of the windows, rounded down, at least one. Held-out targets are never a training target.
//
// Beside the ids may be known which of them count as targets (loss_mask.h), and where documents
// begin (of Megatron's datasets): marks, one for each token.
//
// Errors   kData: missing or damaged files, ids outside the vocabulary, too little for one window.
//          Up to 256 MiB of data are checked when opened; the rest by CheckWindows, which training
//          does before its first step, so that a bad id does not wait for step 50,000.
// Threads  Read may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/policies.h"

namespace millrace {

// Bits of a mark.
inline constexpr uint8_t kNoTarget = 1, kBeginsDocument = 2;

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t seq_len() const noexcept = 0;  // T
  virtual int64_t windows() const noexcept = 0;  // at least 1

  // out [T+1] = the ids of `window`, in [0, windows()).
  virtual void Read(int64_t window, int32_t* out) const = 0;

  // out [T+1] = what is known of them: kNoTarget as the files' masks say, kBeginsDocument as their
  // indices do. Of options that ask for neither 0.
  virtual void ReadMarks(int64_t window, uint8_t* out) const;
  // Whether kNoTarget is said by masks; else each token is a target.
  virtual bool has_loss_mask() const noexcept { return false; }

  // Windows [0, this) were checked when the source was opened.
  virtual int64_t checked_windows() const noexcept { return windows(); }
  // Throws what Read or ReadMarks of a window in [first, first + count) would, at the speed of
  // reading the files; with the last window goes what the files have behind it.
  virtual void CheckWindows(int64_t first, int64_t count) const;
  virtual int64_t window_bytes() const noexcept { return 0; }  // that a check of one reads

  // For people: "13 text files, 213,454 tokens".
  virtual std::string Describe() const = 0;

  // Changes when the data does: names, sizes, beginnings and ends of the files, T, the vocabulary.
  // A resumed run compares it, because the same sample order over other data is another run.
  virtual std::string Fingerprint() const = 0;
  // Changes also when a file is written to: Fingerprint, paths and times of change.
  virtual std::string FilesAsTheyAre() const { return Fingerprint(); }
};

// Whose ids a run takes: those of a tokenizer.json, or bytes.
struct ExpectedTokenizer {
  std::string name;  // data.tokenizer, for messages
  std::string hash;  // Hash128 of its file; "": bytes
};

struct TokenSourceOptions {
  using Kind = DataKind;
  Kind kind = Kind::kText;
  std::string path;     // a file or a folder; not for synthetic
  int64_t seq_len = 0;  // T, at least 1
  int64_t vocab = 0;    // ids are in [0, vocab)
  uint64_t seed = 0;    // synthetic only
  // Files whose stamp has another one are refused. None: any, for who only looks at them.
  std::optional<ExpectedTokenizer> tokenizer = {};
  // data.loss_mask: whether the masks beside the files are read. None: a file with one is refused,
  // with what to say. Of a path either all files have one, or none.
  std::optional<bool> loss_mask = false;
  // Documents begin where Megatron's indices say; a file without one is refused (kConfig).
  bool index_documents = false;
};

std::shared_ptr<const TokenSource> OpenTokenSource(const TokenSourceOptions& options);

// Training windows and held-out windows, each numbered from 0.
struct DataSplit {
  std::shared_ptr<const TokenSource> train;
  std::shared_ptr<const TokenSource> held_out;
};

DataSplit OpenDataSplit(const TokenSourceOptions& options,
                        const std::optional<std::string>& val_path);

// What is trained on where something else is held out: OpenDataSplit's `train` with a val_path.
std::shared_ptr<const TokenSource> OpenTrainingPart(const TokenSourceOptions& options);

}  // namespace millrace

#include "runtime/text/tokenize/tokenize_job.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/base/error.h"
#include "runtime/data/run_lock.h"
#include "runtime/text/tokenize/ordered_work.h"
#include "runtime/text/tokenize/text_blocks.h"
#include "runtime/text/tokenize/token_writer.h"
#include "runtime/text/tokenize/tokenize_state.h"

namespace millrace {
namespace {

// A job that was just killed takes a moment to die.
constexpr std::chrono::milliseconds kLockPatience(500);

struct Work {
  TextBlock block;
  int64_t bytes = 0;  // of the input files, once the block was read
};

struct Done {
  EncodedDocuments documents;
  TextPlace end;  // of the block
  int64_t bytes = 0;
};

// Where a text may be cut; of JSON lines it is not asked.
TextCutter CutterOf(const IdSpace& ids) {
  return ids.tokenizer != nullptr ? TextCutter(*ids.tokenizer) : TextCutter(SplitPattern::kGpt2);
}

void CheckOptions(const IdSpace& ids, const TokenizeOptions& options) {
  MR_REQUIRE(ErrorCode::kInvalidArgument, options.file_tokens > 0 && options.threads > 0,
             "file_tokens {} and threads {} must be positive", options.file_tokens,
             options.threads);
  const DocumentForm form = options.documents.form;
  if (form == DocumentForm::kMessages) RequireTokensOf(options.documents.chat, *ids.tokenizer);
  if (form == DocumentForm::kText) return;
  for (const std::string& path : options.inputs)
    MR_REQUIRE(ErrorCode::kData, IsJsonLines(path),
               "{} is text; {} are read from JSON lines (*.jsonl, *.jsonl.gz, *.jsonl.zst)", path,
               Name(form));
}

}  // namespace

TokenizeResult RunTokenizeJob(const IdSpace& ids, const TokenizeOptions& options, FileSystem& files,
                              const std::function<void(const TokenizeProgress&)>& progress) {
  CheckOptions(ids, options);
  MakeFolder(files, options.folder);
  const RunLock lock(options.folder, kLockPatience, ".tokenize.lock", {"folder", "tokenize job"});
  TokenizeState state = LoadTokenizeState(ids.stamp, options);
  const auto result = [&](bool nothing_to_do) {
    return TokenizeResult{std::ssize(state.files), state.Tokens(), state.documents,
                          state.text_bytes,        state.targets,  nothing_to_do,
                          lock.warning()};
  };
  if (state.done) return result(true);
  const TextCutter cutter = CutterOf(ids);
  TextBlocks blocks(options.inputs, cutter, state.next);
  // Before the first file, which would be nobody's if the job ended between the two.
  if (state.files.empty()) SaveTokenizeState(ids.stamp, options, state, files);
  TokenWriter writer(files, options.folder, ids.stamp, std::ssize(state.files));
  // Bytes before the place to go on from, as far as whole files say.
  TokenizeProgress seen = {.bytes = 0,
                           .total_bytes = blocks.total_bytes(),
                           .resumed_bytes = blocks.consumed(),
                           .tokens = state.Tokens()};
  const auto publish = [&] {
    const TokenWriter::Written written = writer.Finish();
    state.files.push_back({written.name, written.tokens});
    SaveTokenizeState(ids.stamp, options, state, files);
  };
  RunInOrder<Work, Done>(
      options.threads,
      [&](Work& work) {
        const bool more = blocks.Next(work.block);
        work.bytes = blocks.consumed();
        return more;
      },
      [&] {
        return [encoder = std::make_shared<DocumentEncoder>(ids.tokenizer, ids.stamp.vocab,
                                                            options.documents)](const Work& work) {
          return Done{encoder->Encode(work.block), work.block.end, work.bytes};
        };
      },
      [&](Done& done) {
        const EncodedDocuments& documents = done.documents;
        if (!documents.ids.empty()) writer.Append(documents.ids, documents.mask);
        state.next = done.end;
        state.documents += documents.documents;
        state.text_bytes += documents.text_bytes;
        state.targets += std::count(documents.mask.begin(), documents.mask.end(), 1);
        seen.bytes = done.bytes;
        seen.tokens += std::ssize(documents.ids);
        if (writer.count() >= options.file_tokens) publish();
        progress(seen);
      });
  state.done = true;
  if (writer.count() > 0)
    publish();
  else
    SaveTokenizeState(ids.stamp, options, state, files);
  return result(false);
}

}  // namespace millrace

#include "runtime/text/tokenize_job.h"

#include <chrono>
#include <memory>

#include "runtime/base/error.h"
#include "runtime/data/run_lock.h"
#include "runtime/text/ordered_work.h"
#include "runtime/text/text_blocks.h"
#include "runtime/text/token_writer.h"
#include "runtime/text/tokenize_state.h"

namespace millrace {
namespace {

// A job that was just killed takes a moment to die.
constexpr std::chrono::milliseconds kLockPatience(500);

struct Tokens {
  std::vector<int32_t> ids;
  int64_t documents = 0, text_bytes = 0;
  TextPlace end;      // of the block
  int64_t bytes = 0;  // of the input files, once the block was read
};

struct Work {
  TextBlock block;
  int64_t bytes = 0;
};

Tokens Encode(TextEncoder& encoder, const Work& work, const TokenizeOptions& options) {
  Tokens tokens = {.ids = {}, .end = work.block.end, .bytes = work.bytes};
  const EncodeOptions encoding = {options.special, AroundText::kNothing};
  ForEachPart(work.block, options.field, [&](const DocumentPart& part) {
    encoder.Encode(part.text, encoding, tokens.ids);
    tokens.text_bytes += std::ssize(part.text);
    if (!part.ends_document) return;
    ++tokens.documents;
    if (options.separator) tokens.ids.push_back(*options.separator);
  });
  return tokens;
}

}  // namespace

TokenizeResult RunTokenizeJob(const Tokenizer& tokenizer, const TokenizeOptions& options,
                              FileSystem& files,
                              const std::function<void(const TokenizeProgress&)>& progress) {
  MR_REQUIRE(ErrorCode::kInvalidArgument, options.file_tokens > 0 && options.threads > 0,
             "file_tokens {} and threads {} must be positive", options.file_tokens,
             options.threads);
  MakeFolder(files, options.folder);
  const RunLock lock(options.folder, kLockPatience, ".tokenize.lock", {"folder", "tokenize job"});
  TokenizeState state = LoadTokenizeState(tokenizer, options);
  const auto result = [&](bool nothing_to_do) {
    return TokenizeResult{std::ssize(state.files), state.Tokens(), state.documents,
                          state.text_bytes,        nothing_to_do,  lock.warning()};
  };
  if (state.done) return result(true);
  const TextCutter cutter(tokenizer);
  TextBlocks blocks(options.inputs, cutter, state.next);
  // Before the first file, which would be nobody's if the job ended between the two.
  if (state.files.empty()) SaveTokenizeState(tokenizer, options, state, files);
  TokenWriter writer(files, options.folder, {tokenizer.hash(), tokenizer.vocab_size()},
                     std::ssize(state.files));
  // Bytes before the place to go on from, as far as whole files say.
  TokenizeProgress seen = {.bytes = 0,
                           .total_bytes = blocks.total_bytes(),
                           .resumed_bytes = blocks.consumed(),
                           .tokens = state.Tokens()};
  const auto publish = [&] {
    const TokenWriter::Written written = writer.Finish();
    state.files.push_back({written.name, written.tokens});
    SaveTokenizeState(tokenizer, options, state, files);
  };
  RunInOrder<Work, Tokens>(
      options.threads,
      [&](Work& work) {
        const bool more = blocks.Next(work.block);
        work.bytes = blocks.consumed();
        return more;
      },
      [&] {
        return [&options, encoder = std::make_shared<TextEncoder>(tokenizer)](const Work& work) {
          return Encode(*encoder, work, options);
        };
      },
      [&](Tokens& tokens) {
        if (!tokens.ids.empty()) writer.Append(tokens.ids);
        state.next = tokens.end;
        state.documents += tokens.documents;
        state.text_bytes += tokens.text_bytes;
        seen.bytes = tokens.bytes;
        seen.tokens += std::ssize(tokens.ids);
        if (writer.count() >= options.file_tokens) publish();
        progress(seen);
      });
  state.done = true;
  if (writer.count() > 0)
    publish();
  else
    SaveTokenizeState(tokenizer, options, state, files);
  return result(false);
}

}  // namespace millrace

// millrace tokenize and detokenize: text files to token files and back.
#include "tools/cli/tokenize.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/data/token_files.h"
#include "runtime/text/tokenize_job.h"
#include "tools/cli/console.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/verbs.h"

namespace millrace {
namespace {

// Behind each document, so that a model sees where one ends.
std::optional<int32_t> SeparatorOf(const Tokenizer& tokenizer, const std::string& asked) {
  if (asked == "none") return std::nullopt;
  if (!asked.empty()) {
    const std::optional<int32_t> id = tokenizer.AddedTokenId(asked);
    MR_REQUIRE(ErrorCode::kConfig, id.has_value(), "--separator {}: not an added token of {}",
               asked, tokenizer.name());
    return id;
  }
  for (const char* usual : {"<|endoftext|>", "<|end_of_text|>"})
    if (const std::optional<int32_t> id = tokenizer.AddedTokenId(usual)) return id;
  throw Error(
      ErrorCode::kConfig,
      fmt::format("{} has neither <|endoftext|> nor <|end_of_text|>; name the token between "
                  "documents: --separator TOKEN, or none",
                  tokenizer.name()));
}

}  // namespace

std::vector<std::string> TextInputs(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths)
    for (std::string& file : ListTokenFiles(path, TokenFileKind::kText))
      files.push_back(std::move(file));
  return files;
}

int ThreadsOf(int asked) {
  return asked > 0 ? asked : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int TokenizeVerb(const TokenizeArguments& arguments) {
  const Tokenizer tokenizer = Tokenizer::Load(arguments.tokenizer);
  const TokenizeOptions options = {
      .inputs = TextInputs(arguments.inputs),
      .folder = arguments.out,
      .field = arguments.field,
      .separator = SeparatorOf(tokenizer, arguments.separator),
      .special = arguments.special ? SpecialText::kToken : SpecialText::kPlain,
      .file_tokens = arguments.file_tokens,
      .threads = ThreadsOf(arguments.threads)};
  const auto began = std::chrono::steady_clock::now();
  TokenizeResult result;
  {
    ProgressBar bar;
    result = RunTokenizeJob(
        tokenizer, options, FileSystem::Posix(), [&](const TokenizeProgress& progress) {
          bar.Show({progress.bytes, progress.total_bytes, progress.resumed_bytes,
                    HumanRate(double(progress.tokens)) + " tokens"});
        });
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (!result.warning.empty()) std::cerr << "millrace: warning: " << result.warning << "\n";
  std::cout << fmt::format(
      "{} tokens of {} documents ({} of text) in {} files of {}{}\n", result.tokens,
      result.documents, HumanBytes(result.text_bytes), result.files, options.folder,
      result.nothing_to_do ? ", made by an earlier call" : fmt::format(", {:.1f} s", seconds));
  return 0;
}

int DetokenizeVerb(const DetokenizeArguments& arguments) {
  const Tokenizer tokenizer = Tokenizer::Load(arguments.tokenizer);
  std::vector<std::string> files;
  for (const std::string& path : arguments.inputs)
    for (std::string& file : ListTokenFiles(path, TokenFileKind::kTokens))
      files.push_back(std::move(file));
  const SpecialTokens special =
      arguments.skip_special ? SpecialTokens::kSkip : SpecialTokens::kKeep;
  std::vector<int32_t> ids;
  for (const TokenSegment& segment : OpenTokenFiles(files, TokenFileKind::kTokens)) {
    const std::string& hash = segment.stamp.tokenizer;
    MR_REQUIRE(ErrorCode::kData, hash.empty() || hash == tokenizer.hash(),
               "{} was made with another tokenizer (hash {}) than {} (hash {})",
               segment.file->path(), hash, tokenizer.name(), tokenizer.hash());
    constexpr int64_t kChunk = 1 << 16;
    for (int64_t at = 0; at < segment.count; at += kChunk) {
      ids.resize(static_cast<size_t>(std::min(kChunk, segment.count - at)));
      ReadTokens(segment, at, std::ssize(ids), tokenizer.vocab_size(), ids.data());
      std::cout << tokenizer.Decode(ids, special);
    }
  }
  return 0;
}

}  // namespace millrace

// millrace tokenize and detokenize: text files to token files and back.
#include "tools/cli/tokenize/tokenize.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iostream>
#include <optional>
#include <system_error>
#include <thread>

#include "runtime/base/counted.h"
#include "runtime/base/error.h"
#include "runtime/data/tokens/token_files.h"
#include "runtime/text/tokenize/tokenize_job.h"
#include "tools/cli/terminal/console.h"
#include "tools/cli/terminal/progress_bar.h"
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

// Of ids: they are taken as they are, unless an id is given.
std::optional<int32_t> SeparatorOfIds(const IdSpace& ids, const std::string& asked) {
  if (asked.empty() || asked == "none") return std::nullopt;
  int32_t id = -1;
  const auto [end, error] = std::from_chars(asked.data(), asked.data() + asked.size(), id);
  const bool number = error == std::errc() && end == asked.data() + asked.size();
  if (!number && ids.tokenizer != nullptr) return SeparatorOf(*ids.tokenizer, asked);
  MR_REQUIRE(ErrorCode::kConfig, number && id >= 0 && id < ids.stamp.vocab,
             "--separator {}: none, {}or an id from 0 to {} is expected", asked,
             ids.tokenizer != nullptr ? "an added token of the tokenizer " : "",
             ids.stamp.vocab - 1);
  return id;
}

DocumentForm FormOf(const std::string& name) {
  if (name == "ids") return DocumentForm::kIds;
  return name == "messages" ? DocumentForm::kMessages : DocumentForm::kText;
}

// What is said that has no effect, and what is missing.
void CheckWords(const TokenizeArguments& arguments) {
  const bool ids = arguments.from == "ids", messages = arguments.from == "messages";
  MR_REQUIRE(ErrorCode::kConfig, !arguments.tokenizer.empty() || ids,
             "--from {}: needs --tokenizer; ids alone do without", arguments.from);
  MR_REQUIRE(ErrorCode::kConfig, arguments.tokenizer.empty() == (arguments.vocab > 0),
             "{}: either --tokenizer, or --vocab with --from ids",
             arguments.vocab > 0 ? "--vocab and --tokenizer" : "neither --tokenizer nor --vocab");
  MR_REQUIRE(ErrorCode::kConfig, messages == !arguments.chat.empty(),
             "--from {} {} --template: messages alone, which need one (chatml, llama3, plain)",
             arguments.from, arguments.chat.empty() ? "without" : "with");
  MR_REQUIRE(ErrorCode::kConfig, !arguments.special || arguments.from == "text",
             "--from {} with --special: text alone may have special tokens in it", arguments.from);
}

DocumentOptions DocumentsOf(const IdSpace& ids, const TokenizeArguments& arguments) {
  DocumentOptions documents = {
      .form = FormOf(arguments.from),
      .field = arguments.field,
      .special = arguments.special ? SpecialText::kToken : SpecialText::kPlain};
  if (documents.form == DocumentForm::kMessages) documents.chat = ChatTemplateOf(arguments.chat);
  documents.separator = documents.form == DocumentForm::kIds
                            ? SeparatorOfIds(ids, arguments.separator)
                            : SeparatorOf(*ids.tokenizer, arguments.separator);
  return documents;
}

std::string InWords(const TokenizeResult& result, const TokenizeOptions& options) {
  std::string text = fmt::format("{} tokens of {} documents", result.tokens, result.documents);
  if (options.documents.form == DocumentForm::kText)
    text += fmt::format(" ({} of text)", HumanBytes(result.text_bytes));
  if (options.documents.form == DocumentForm::kMessages)
    text += fmt::format(", {} of them targets,", result.targets);
  return text + fmt::format(" in {} of {}", Counted(result.files, "file"), options.folder);
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
  CheckWords(arguments);
  std::optional<Tokenizer> tokenizer;
  if (!arguments.tokenizer.empty()) tokenizer.emplace(Tokenizer::Load(arguments.tokenizer));
  const IdSpace ids = tokenizer ? IdSpace(*tokenizer) : IdSpace(arguments.vocab);
  const TokenizeOptions options = {.inputs = TextInputs(arguments.inputs),
                                   .folder = arguments.out,
                                   .documents = DocumentsOf(ids, arguments),
                                   .file_tokens = arguments.file_tokens,
                                   .threads = ThreadsOf(arguments.threads)};
  const auto began = std::chrono::steady_clock::now();
  TokenizeResult result;
  {
    ProgressBar bar;
    result =
        RunTokenizeJob(ids, options, FileSystem::Posix(), [&](const TokenizeProgress& progress) {
          bar.Show({progress.bytes, progress.total_bytes, progress.resumed_bytes,
                    HumanRate(double(progress.tokens)) + " tokens"});
        });
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (!result.warning.empty()) std::cerr << "millrace: warning: " << result.warning << "\n";
  std::cout << InWords(result, options)
            << (result.nothing_to_do ? ", made by an earlier call"
                                     : fmt::format(", {:.1f} s", seconds))
            << "\n";
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

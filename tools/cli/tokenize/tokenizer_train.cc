// millrace tokenizer train: byte-level BPE from text files.
#include <fmt/core.h>

#include <iostream>
#include <memory>

#include "runtime/base/error.h"
#include "runtime/data/file_system.h"
#include "runtime/text/bpe/bpe_trainer.h"
#include "runtime/text/tokenize/ordered_work.h"
#include "runtime/text/tokenize/text_blocks.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tools/cli/terminal/console.h"
#include "tools/cli/terminal/progress_bar.h"
#include "tools/cli/tokenize/tokenize.h"
#include "tools/cli/verbs.h"

namespace millrace {
namespace {

SplitPattern PatternNamed(const std::string& name) {
  if (name == "llama3") return SplitPattern::kLlama3;
  return name == "qwen2" ? SplitPattern::kQwen2 : SplitPattern::kGpt2;
}

PieceCounts CountPieces(const TokenizerTrainArguments& arguments, SplitPattern pattern) {
  const TextCutter cutter(pattern);
  TextBlocks blocks(TextInputs(arguments.inputs), cutter, {});
  PieceCounts all(pattern);
  ProgressBar bar;
  RunInOrder<TextBlock, PieceCounts>(
      ThreadsOf(arguments.threads), [&](TextBlock& block) { return blocks.Next(block); },
      [&] {
        return [&](const TextBlock& block) {
          PieceCounts counts(pattern);
          ForEachPart(block, arguments.field,
                      [&](const DocumentPart& part) { counts.Add(part.text); });
          return counts;
        };
      },
      [&](PieceCounts& counts) {
        all.Add(counts);
        bar.Show({blocks.consumed(), blocks.total_bytes(), 0,
                  fmt::format("{} different pieces", all.counts().size())});
      });
  return all;
}

}  // namespace

int TokenizerTrainVerb(const TokenizerTrainArguments& arguments) {
  const SplitPattern pattern = PatternNamed(arguments.pattern);
  BpeTraining training = {.vocab = arguments.vocab,
                          .min_count = arguments.min_count,
                          .special_tokens = arguments.special_tokens};
  if (training.special_tokens.empty()) training.special_tokens = {"<|endoftext|>"};
  const auto least = int64_t{256} + std::ssize(training.special_tokens);
  MR_REQUIRE(ErrorCode::kConfig, training.vocab >= least,
             "--vocab {}: at least {}, which are bytes and special tokens", training.vocab, least);
  const PieceCounts pieces = CountPieces(arguments, pattern);
  const TrainedBpe trained = TrainBpe(pieces, training);
  const std::string json = TokenizerJson(trained, pattern);
  const Tokenizer tokenizer(json, arguments.out);  // what cannot be read is not written
  WriteFileAtomically(FileSystem::Posix(), arguments.out, json);
  std::cout << fmt::format("{}: {} tokens, {} merges, from {} different pieces\n", arguments.out,
                           tokenizer.vocab_size(), trained.merges.size(), pieces.counts().size());
  if (tokenizer.vocab_size() < arguments.vocab)
    std::cout << fmt::format("fewer than --vocab {}: no other pair occurs {} times\n",
                             arguments.vocab, arguments.min_count);
  return 0;
}

}  // namespace millrace

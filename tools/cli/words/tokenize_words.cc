// The words of tokenize, detokenize and tokenizer train.
#include <memory>

#include "tools/cli/words/verb_words.h"

namespace millrace {
namespace {

void AddInputs(CLI::App* app, std::vector<std::string>* inputs, const std::string& help) {
  app->add_option("inputs", *inputs, help)->required();
}

void AddThreads(CLI::App* app, int* threads) {
  app->add_option("--threads", *threads, "0: one per core; results do not depend on it")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
}

constexpr const char* kInputs =
    "files, and folders of them: *.jsonl are JSON lines, others text; .gz and .zst are read";

}  // namespace

void AddTokenize(CLI::App* app, CommandLine* line) {
  auto tokenize = std::make_shared<TokenizeArguments>();
  AddInputs(app, &tokenize->inputs, kInputs);
  app->add_option("--tokenizer", tokenize->tokenizer,
                  "tokenizer.json; ids may do with --vocab instead");
  app->add_option("--vocab", tokenize->vocab, "ids are below it, where there is no --tokenizer")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  app->add_option("--from", tokenize->from,
                  "what a document is: text, a list of ids, or the messages of a conversation, of "
                  "whose answers a mask is made (data.loss_mask)")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "ids", "messages"}));
  app->add_option("--template", tokenize->chat,
                  "how messages become text: chatml, llama3 or plain; there are none of Jinja");
  app->add_option("--out", tokenize->out,
                  "folder of the token files; the same command goes on where one ended")
      ->required();
  app->add_option("--separator", tokenize->separator,
                  "token behind each document, of ids an id, or none (default: <|endoftext|> or "
                  "<|end_of_text|>; of ids none)");
  app->add_flag("--special", tokenize->special,
                "text that looks like a special token is one (default: it is text)");
  app->add_option("--file-tokens", tokenize->file_tokens, "tokens of a file, about")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app->add_option("--field", tokenize->field,
                  "member of a JSON line that holds its document (default: text, messages; ids, "
                  "input_ids, tokens or token_ids)");
  AddThreads(app, &tokenize->threads);
  app->callback([=] { line->command = [=] { return TokenizeVerb(*tokenize); }; });
}

void AddDetokenize(CLI::App* app, CommandLine* line) {
  auto detokenize = std::make_shared<DetokenizeArguments>();
  AddInputs(app, &detokenize->inputs, "token files, and folders of them");
  app->add_option("--tokenizer", detokenize->tokenizer, "tokenizer.json")->required();
  app->add_flag("--skip-special", detokenize->skip_special, "leave special tokens out");
  app->callback([=] { line->command = [=] { return DetokenizeVerb(*detokenize); }; });
}

void AddTokenizerTrain(CLI::App* app, CommandLine* line) {
  auto train = std::make_shared<TokenizerTrainArguments>();
  AddInputs(app, &train->inputs, kInputs);
  app->add_option("--out", train->out, "tokenizer.json to write")->required();
  app->add_option("--vocab", train->vocab, "tokens, bytes and special ones included")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{256}, int64_t{1} << 24));
  app->add_option("--pattern", train->pattern, "how text is split: gpt2, llama3 or qwen2")
      ->capture_default_str()
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen2"}));
  app->add_option("--special-token", train->special_tokens,
                  "may be given again; the first ids (default: <|endoftext|>)")
      ->allow_extra_args(false)
      ->take_all();
  app->add_option("--min-count", train->min_count, "a pair that occurs less often is not merged")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app->add_option("--field", train->field, "member of a JSON line that holds its text")
      ->capture_default_str();
  AddThreads(app, &train->threads);
  app->callback([=] { line->command = [=] { return TokenizerTrainVerb(*train); }; });
}

}  // namespace millrace

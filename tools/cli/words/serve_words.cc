// The words of `serve`.
#include <memory>

#include "tools/cli/words/verb_words.h"

namespace millrace {
namespace {

void AddServeLimits(CLI::App* app, ServeArguments* serve) {
  constexpr int64_t kMost = int64_t{1} << 20;
  app->add_option("--max-queue", serve->max_queue, "answers that may wait; beyond it: 429")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, kMost));
  app->add_option("--max-tokens", serve->max_tokens, "of an answer; 0: as many as fit")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kMost));
  app->add_option("--max-body-mib", serve->max_body_mib, "MiB of a request; beyond it: 413")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app->add_option("--connections", serve->connections, "open at a time; others wait")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{4}, kMost));
  app->add_option("--request-s", serve->request_s, "seconds for a request, waiting included")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 1e6) & NotNan());
  app->add_option("--drain-s", serve->drain_s,
                  "after SIGTERM: seconds for what has been asked; a second signal ends it")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6) & NotNan());
}

}  // namespace

void AddServe(CLI::App* app, CommandLine* line) {
  auto serve = std::make_shared<ServeArguments>();
  AddConfiguration(app, &serve->config);
  CLI::Option* const checkpoint = app->add_option(
      "--checkpoint", serve->checkpoint, "a checkpoint folder (default: the newest of run.dir)");
  app->add_option("--follow", serve->follow,
                  "a run's folder: its newest checkpoint, and each newer one once it is there")
      ->excludes(checkpoint);
  app->add_option("--host", serve->host,
                  "address to listen at, in digits; beyond this host takes --token-file and "
                  "--insecure")
      ->capture_default_str();
  app->add_option("--port", serve->port, "0: one that is free, which is said")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  app->add_option("--model-name", serve->model_name, "the model's name for clients")
      ->capture_default_str()
      ->check(CLI::Validator(
          [](const std::string& name) { return name.empty() ? "it is empty" : std::string(); },
          ""));
  app->add_option("--chat-template", serve->chat_template,
                  "chatml, llama3 or plain; without one there is no chat");
  app->add_option("--token-file", serve->token_file,
                  "bearer tokens, one a line, mode 600; every path but /health asks for one");
  app->add_flag("--insecure", serve->insecure, "other hosts may send tokens in clear text");
  AddServeLimits(app, serve.get());
  app->callback([=] { line->command = [=] { return ServeVerb(*serve); }; });
}

}  // namespace millrace

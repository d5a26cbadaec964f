// The table of verbs, and the words of those that train.
#include "tools/cli/words/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/config/nearest.h"
#include "tools/cli/words/verb_words.h"

namespace millrace {
namespace {

void AddTrainWords(CLI::App* app, TrainArguments* arguments) {
  AddConfiguration(app, &arguments->config);
  app->add_option("--metrics-port", arguments->metrics_port,
                  "serve Prometheus text on 127.0.0.1:PORT/metrics, by rank 0; 0: a free port, "
                  "which is said")
      ->check(CLI::Range(0, 65535));
  app->add_option(
         "--trace-step", arguments->trace_step,
         "time every op of this step on all ranks, into run.dir/timeline.json, which report draws")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
}

void AddTrain(CLI::App* app, CommandLine* line) {
  auto train = std::make_shared<TrainArguments>();
  AddTrainWords(app, train.get());
  app->callback([=] { line->command = [=] { return TrainVerb(*train); }; });
}

// An empty variable in a script would train on one rank instead of many.
std::string NotBlank(const std::string& text) {
  return text.find_first_not_of(" \t\n") == text.npos ? "there is no program in an empty command"
                                                      : "";
}

// What stands behind "--" of `launch`: a command line of its own; only `train` makes sense.
ConfigArguments LaunchedConfiguration(const std::vector<std::string>& command) {
  MR_REQUIRE(ErrorCode::kConfig, !command.empty() && command.front() == "train",
             "launch supervises `train` alone: millrace launch [OPTION...] -- train CONFIG...{}",
             command.empty() ? "" : fmt::format(", not {}", command.front()));
  CLI::App train{"train, under launch"};
  TrainArguments parsed;
  AddTrainWords(&train, &parsed);
  std::vector<std::string> words(command.rbegin(),
                                 command.rend() - 1);  // as CLI11 wants them: reversed
  try {
    train.parse(words);
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kConfig, fmt::format("launch -- train: {}", error.what()));
  }
  return parsed.config;
}

void AddLaunch(CLI::App* app, CommandLine* line) {
  auto launch = std::make_shared<LaunchArguments>();
  auto* ranks = app->add_option("--ranks", launch->ranks.ranks, "ranks under mpirun; 1: without")
                    ->capture_default_str()
                    ->check(CLI::Range(1, 99999));
  auto* hosts = app->add_option("--hostfile", launch->ranks.hostfile, "hosts, as mpirun reads them")
                    ->check(CLI::ExistingFile);
  app->add_option("--mpirun", launch->mpirun,
                  "what starts the ranks instead: \"mpirun -n 16 --hostfile ...\"")
      ->excludes(ranks)
      ->excludes(hosts)
      ->check(CLI::Validator(NotBlank, ""));
  app->add_option("--max-restarts", launch->max_restarts, "give up after so many")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 53));
  app->add_option("--grace-s", launch->grace_s,
                  "seconds for saving after a signal; then the run is killed")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e9) & NotNan());
  app->callback([=] {
    line->command = [=] {
      launch->command = line->launched;
      launch->train = LaunchedConfiguration(launch->command);
      return LaunchVerb(*launch);
    };
  });
}

struct Verb {
  const char *name, *help;
  void (*add)(CLI::App*, CommandLine*);
};

void AddVerbs(CLI::App* app, CommandLine* line, std::initializer_list<Verb> verbs) {
  app->require_subcommand(1);
  for (const Verb& verb : verbs) verb.add(app->add_subcommand(verb.name, verb.help), line);
}

void AddConfig(CLI::App* app, CommandLine* line) {
  AddVerbs(
      app, line,
      {{"schema", "JSON Schema of a configuration", AddConfigSchema},
       {"docs", "every key, as Markdown", AddConfigDocs},
       {"show", "every key, its value and where it comes from", AddConfigShow},
       {"validate", "all mistakes at once; exit code 2 when there are any", AddConfigValidate}});
}

void AddTokenizer(CLI::App* app, CommandLine* line) {
  AddVerbs(app, line,
           {{"train", "make a tokenizer.json, byte-level BPE, from text", AddTokenizerTrain}});
}

constexpr std::initializer_list<Verb> kVerbs = {
    {"train", "train, or go on training; one line per step", AddTrain},
    {"launch",
     "train under a supervisor, which starts it again from the newest checkpoint: -- train ...",
     AddLaunch},
    {"eval", "held-out loss of a checkpoint, as a JSON line", AddEval},
    {"plan", "what a run will need and how long it will take; no GPU, no MPI", AddPlan},
    {"bench", "time training steps on synthetic tokens", AddBench},
    {"generate", "text from a checkpoint, for one prompt or many", AddGenerate},
    {"score", "log-probabilities that a checkpoint gives to texts, as JSON lines", AddScore},
    {"serve", "a checkpoint behind an endpoint of OpenAI's API, over HTTP", AddServe},
    {"inspect", "what a checkpoint, run, safetensors or token file holds; verifies checksums",
     AddInspect},
    {"compare",
     "two runs: where losses begin to differ, and what was different; exit code 1 when they are",
     AddCompare},
    {"report", "a run as one HTML page: curves, memory, configuration", AddReport},
    {"doctor",
     "what this host has, what is missing, and the fix; exit code 0 when training can work",
     AddDoctor},
    {"import", "a Hugging Face folder becomes the first checkpoint of run.dir", AddImport},
    {"export", "a checkpoint becomes a Hugging Face folder", AddExport},
    {"tokenize", "text files, JSON lines too, compressed or not, become token files", AddTokenize},
    {"detokenize", "the text of token files, on standard output", AddDetokenize},
    {"tokenizer", "train", AddTokenizer},
    {"config", "schema, docs, show, validate", AddConfig},
};

// CLI11 would only say that a verb is missing.
void RequireVerb(const std::string& word) {
  std::vector<std::string_view> names;
  for (const Verb& verb : kVerbs) names.push_back(verb.name);
  if (std::find(names.begin(), names.end(), word) != names.end()) return;
  const std::string nearest = NearestName(word, names);
  throw Error(ErrorCode::kConfig,
              fmt::format("{}: no such verb{}; there are {}", word,
                          nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest),
                          fmt::join(names, ", ")));
}

// What a word that nobody expects may have been meant for; "": it is not known.
std::string WordsInTheWrongPlace(const std::vector<std::string>& words) {
  if (words.front() == "launch")
    return "what launch starts stands behind \"--\": millrace launch [OPTION...] -- train "
           "CONFIG...";
  const bool of_ranks = std::any_of(words.begin() + 1, words.end(), [](const std::string& word) {
    return word.starts_with("-n") || word.starts_with("--ranks") || word.starts_with("--hostfile");
  });
  return of_ranks ? "-n N and --hostfile FILE stand ahead of the verb: millrace -n N train CONFIG"
                  : "";
}

}  // namespace

Command ParseCommandLine(const char* program, std::vector<std::string> words) {
  if (!words.empty() && !words.front().starts_with("-")) RequireVerb(words.front());
  auto line = std::make_shared<CommandLine>();
  CLI::App app{"Millrace trains transformers from one JSON file; see README.md."};
  app.footer(
      "-n N and --hostfile FILE before train, launch, eval, bench, generate or score: as N ranks "
      "under mpirun.");
  AddVerbs(&app, line.get(), kVerbs);
  if (!words.empty() && words.front() == "launch") {
    const auto dashes = std::find(words.begin(), words.end(), "--");
    if (dashes != words.end()) line->launched.assign(dashes + 1, words.end());
    words.erase(dashes, words.end());
  }
  std::vector<const char*> arguments = {program};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error) == 0 ? 0 : ExitCode(ErrorCode::kConfig);
    const bool unexpected = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
    if (const std::string hint = unexpected ? WordsInTheWrongPlace(words) : ""; !hint.empty())
      std::cerr << hint << std::endl;
    return [code] { return code; };
  }
  return [line] { return line->command(); };
}

}  // namespace millrace

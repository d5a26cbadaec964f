// The program millrace: parses the command line and runs one verb. The one place, with ranks.cc,
// that names a backend.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/config/nearest.h"
#include "tools/cli/command.h"
#include "tools/cli/launch_once.h"
#include "tools/cli/standard_streams.h"
#include "tools/launch/mpirun_words.h"
#include "tools/launch/rank_command.h"
#include "tools/launch/stop_requests.h"

namespace millrace {
namespace {

void AddConfig(CLI::App* app, ConfigArguments* arguments) {
  app->add_option("config", arguments->files, "configuration files (JSON); later ones win")
      ->required();
  app->add_option("--set", arguments->sets, "key=value, over the files; typed by the key")
      ->allow_extra_args(false)
      ->take_all();
}

void AddTrain(CLI::App* app, TrainArguments* arguments) {
  AddConfig(app, &arguments->config);
  app->add_option("--metrics-port", arguments->metrics_port,
                  "serve Prometheus text on 127.0.0.1:PORT/metrics, by rank 0; 0: a free port, "
                  "which is said")
      ->check(CLI::Range(0, 65535));
  app->add_option(
         "--trace-step", arguments->trace_step,
         "time every op of this step on all ranks, into run.dir/timeline.json, which report draws")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
}

// A range has no opinion about NaN, which compares with nothing.
std::string NotNan(const std::string& text) {
  return std::isnan(std::strtod(text.c_str(), nullptr)) ? "Value " + text + " is not a number" : "";
}

// An empty variable in a script would train on one rank instead of many.
std::string NotBlank(const std::string& text) {
  return text.find_first_not_of(" \t\n") == text.npos ? "there is no program in an empty command"
                                                      : "";
}

void RequireVerb(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
  if (std::find(names.begin(), names.end(), word) != names.end()) return;
  const std::string nearest =
      NearestName(word, std::vector<std::string_view>(names.begin(), names.end()));
  throw Error(ErrorCode::kConfig,
              fmt::format("{}: no such verb{}; there are {}", word,
                          nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest),
                          fmt::join(names, ", ")));
}

// What stands behind "--" of `launch`: a command line of its own, of which
// only `train` makes sense.
LaunchArguments Launched(std::vector<std::string> command) {
  MR_REQUIRE(ErrorCode::kConfig, !command.empty() && command.front() == "train",
             "launch supervises `train` alone: millrace launch [OPTION...] -- train CONFIG...{}",
             command.empty() ? "" : fmt::format(", not {}", command.front()));
  LaunchArguments launch;
  launch.command = command;
  CLI::App train{"train, under launch"};
  TrainArguments parsed;
  AddTrain(&train, &parsed);
  std::vector<std::string> words(command.rbegin(),
                                 command.rend() - 1);  // as CLI11 wants them: reversed
  try {
    train.parse(words);
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kConfig, fmt::format("launch -- train: {}", error.what()));
  }
  launch.train = parsed.config;
  return launch;
}

// What stands before the verb, as options of `launch`. One rank is its default, and may come from
// tools/millrace beside an --mpirun.
std::vector<std::string> LaunchWords(const RankOptions& options, std::vector<std::string> words) {
  if (!options.hostfile.empty()) words.insert(words.begin() + 1, {"--hostfile", options.hostfile});
  if (options.ranks > 1)
    words.insert(words.begin() + 1, {"--ranks", std::to_string(options.ranks)});
  return words;
}

int Main(const char* program, std::vector<std::string> words) {
  CLI::App app{"Millrace trains transformers from one JSON file; see README.md."};
  app.footer(
      "-n N and --hostfile FILE before train, launch, eval, bench or generate: as N ranks under "
      "mpirun.");
  app.require_subcommand(1);
  std::function<int()> verb;

  TrainArguments train;
  CLI::App* train_app = app.add_subcommand("train", "train, or go on training; one line per step");
  AddTrain(train_app, &train);
  train_app->callback([&] { verb = [&] { return TrainVerb(train); }; });

  LaunchArguments launch;
  std::vector<std::string> launched;
  CLI::App* launch_app = app.add_subcommand(
      "launch",
      "train under a supervisor, which starts it again from the newest checkpoint: -- train ...");
  auto* launch_ranks =
      launch_app->add_option("--ranks", launch.ranks.ranks, "ranks under mpirun; 1: without")
          ->capture_default_str()
          ->check(CLI::Range(1, 99999));
  auto* launch_hosts =
      launch_app->add_option("--hostfile", launch.ranks.hostfile, "hosts, as mpirun reads them")
          ->check(CLI::ExistingFile);
  launch_app
      ->add_option("--mpirun", launch.mpirun,
                   "what starts the ranks instead: \"mpirun -n 16 --hostfile ...\"")
      ->excludes(launch_ranks)
      ->excludes(launch_hosts)
      ->check(CLI::Validator(NotBlank, ""));
  launch_app->add_option("--max-restarts", launch.max_restarts, "give up after so many")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 53));
  launch_app
      ->add_option("--grace-s", launch.grace_s,
                   "seconds for saving after a signal; then the run is killed")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e9) & CLI::Validator(NotNan, ""));
  launch_app->callback([&] {
    verb = [&] {
      LaunchArguments all = Launched(launched);
      all.ranks = launch.ranks;
      all.mpirun = launch.mpirun;
      all.max_restarts = launch.max_restarts;
      all.grace_s = launch.grace_s;
      return LaunchVerb(all);
    };
  });

  EvalArguments eval;
  CLI::App* eval_app = app.add_subcommand("eval", "held-out loss of a checkpoint, as a JSON line");
  AddConfig(eval_app, &eval.config);
  eval_app->add_option("--checkpoint", eval.checkpoint,
                       "a checkpoint folder (default: the newest of run.dir)");
  eval_app->callback([&] { verb = [&] { return EvalVerb(eval); }; });

  PlanArguments plan;
  CLI::App* plan_app =
      app.add_subcommand("plan", "what a run will need and how long it will take; no GPU, no MPI");
  AddConfig(plan_app, &plan.config);
  plan_app->add_option("--world", plan.world, "ranks")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  plan_app
      ->add_option("--machine", plan.machine,
                   "h100, h200, cpu, or a machine file (./NAME.json; doctor --measure writes one)")
      ->capture_default_str();
  // Beyond these bounds lie slips of the keyboard, and times that are no finite numbers.
  const auto rate = CLI::Range(1e-6, 1e6) & CLI::Validator(NotNan, "");
  plan_app
      ->add_option("--link", plan.link_gbs,
                   "GB/s that a rank sends within its host, in place of the machine's figure")
      ->check(rate);
  plan_app
      ->add_option("--ranks-per-host", plan.ranks_per_host,
                   "ranks of a host; neighbouring ranks share one (default 8; cpu: all)")
      ->check(CLI::Range(1, 1 << 20));
  plan_app
      ->add_option("--host-link", plan.host_link_gbs,
                   "GB/s that a rank sends to other hosts (default 50; cpu: not known)")
      ->check(rate);
  plan_app->add_flag("--json", plan.json, "one JSON object");
  plan_app->add_flag("--text", plan.text, "the plan itself: every buffer, op and edge");
  plan_app->add_flag("--advise", plan.advise,
                     "the five fastest plans at CONFIG's tokens per step: axes, micro batch, "
                     "reshard, recomputation, prefetch");
  plan_app->add_flag("--pool-only", plan.pool_only, "CONFIG is a bucket pool: bytes by allocator");
  plan_app->add_option("--html", plan.html, "write a page: memory map and timeline");
  plan_app->add_option("--trace", plan.trace, "write a Chrome trace of the simulated step");
  plan_app->callback([&] { verb = [&] { return PlanVerb(plan); }; });

  BenchArguments bench;
  CLI::App* bench_app = app.add_subcommand("bench", "time training steps on synthetic tokens");
  AddConfig(bench_app, &bench.config);
  bench_app->add_option("--steps", bench.steps, "timed steps")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  bench_app->add_option("--warmup", bench.warmup, "steps before them")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  bench_app->add_flag("--json", bench.json, "one JSON line");
  bench_app->add_flag("--ops", bench.ops, "also time by kind of op, in eager steps");
  bench_app->add_flag("--floor", bench.floor,
                      "also measure what this machine allows at best; implies --ops");
  bench_app->add_option("--trace", bench.trace,
                        "also write a Chrome trace of a measured step of all ranks");
  bench_app->add_flag(
      "--update", bench.update,
      "also time norm, clip and AdamW per tensor, per flat parameter and as graphs");
  bench_app->add_option("--graph-dot", bench.graph_dot,
                        "also write rank 0's captured step in Graphviz's language; on the CPU the "
                        "recorded list");
  bench_app->callback([&] { verb = [&] { return BenchVerb(bench); }; });

  GenerateArguments generate;
  CLI::App* generate_app =
      app.add_subcommand("generate", "text from a checkpoint (no key/value cache yet)");
  AddConfig(generate_app, &generate.config);
  generate_app->add_option("--checkpoint", generate.checkpoint,
                           "a checkpoint folder (default: the newest of run.dir)");
  generate_app->add_option("--prompt", generate.prompt, "text to continue")->capture_default_str();
  generate_app->add_option("--tokens", generate.tokens, "tokens to generate")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  generate_app->add_option("--temperature", generate.temperature, "0: the likeliest token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0) & CLI::Validator(NotNan, ""));
  generate_app->add_option("--top-k", generate.top_k, "0: all")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  generate_app->add_option("--seed", generate.seed, "the same text for the same seed")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, (int64_t{1} << 53) - 1));
  generate_app->callback([&] { verb = [&] { return GenerateVerb(generate); }; });

  InspectArguments inspected;
  CLI::App* inspect_app = app.add_subcommand(
      "inspect", "what a checkpoint, run, safetensors or token file holds; verifies checksums");
  inspect_app->add_option("path", inspected.path, "file or folder")->required();
  inspect_app->add_flag("--json", inspected.json, "JSON");
  inspect_app->add_flag(
      "--verify", inspected.verify,
      "a line for each checkpoint: sound, or what is damaged; exit code 4 if any is");
  inspect_app->callback([&] { verb = [&] { return InspectVerb(inspected); }; });

  CompareArguments compared;
  CLI::App* compare_app = app.add_subcommand(
      "compare",
      "two runs: where losses begin to differ, and what was different; exit code 1 when they are");
  compare_app->add_option("run_a", compared.a, "run.dir of a run")->required();
  compare_app->add_option("run_b", compared.b, "run.dir of another")->required();
  compare_app->add_flag("--json", compared.json, "one JSON object");
  compare_app->callback([&] { verb = [&] { return CompareVerb(compared); }; });

  ReportArguments report;
  CLI::App* report_app =
      app.add_subcommand("report", "a run as one HTML page: curves, memory, configuration");
  report_app->add_option("run_dir", report.run_dir, "run.dir of a run")->required();
  report_app->add_option("--out", report.out, "file to write (default: report.html in run.dir)");
  report_app->callback([&] { verb = [&] { return ReportVerb(report); }; });

  bool doctor_json = false;
  CLI::App* doctor_app = app.add_subcommand(
      "doctor",
      "what this host has, what is missing, and the fix; exit code 0 when training can work");
  doctor_app->add_flag("--json", doctor_json, "JSON");
  std::string measured;
  doctor_app->add_option("--measure", measured,
                         "measure this host, a minute, and write a machine file for plan "
                         "--machine; under mpirun with collectives");
  doctor_app->callback([&] {
    verb = [&] { return measured.empty() ? DoctorVerb(doctor_json) : MeasureVerb(measured); };
  });

  ExchangeArguments imported, exported;
  CLI::App* import_app =
      app.add_subcommand("import", "a Hugging Face folder becomes the first checkpoint of run.dir");
  AddConfig(import_app, &imported.config);
  import_app
      ->add_option("--from", imported.folder, "Hugging Face folder: config.json, *.safetensors")
      ->required();
  import_app->callback([&] { verb = [&] { return ImportVerb(imported); }; });
  CLI::App* export_app = app.add_subcommand("export", "a checkpoint becomes a Hugging Face folder");
  AddConfig(export_app, &exported.config);
  export_app->add_option("--to", exported.folder, "folder to write; new or empty")->required();
  export_app->add_option("--checkpoint", exported.checkpoint,
                         "a checkpoint folder (default: the newest of run.dir)");
  export_app->callback([&] { verb = [&] { return ExportVerb(exported); }; });

  CLI::App* config_app = app.add_subcommand("config", "schema, docs, show, validate");
  config_app->require_subcommand(1);
  config_app->add_subcommand("schema", "JSON Schema of a configuration")->callback([&] {
    verb = [] { return ConfigSchemaVerb(); };
  });
  config_app->add_subcommand("docs", "every key, as Markdown")->callback([&] {
    verb = [] { return ConfigDocsVerb(); };
  });
  ConfigArguments shown, validated;
  bool show_json = false;
  std::optional<int> show_world, validate_world;
  CLI::App* show_app =
      config_app->add_subcommand("show", "every key, its value and where it comes from");
  AddConfig(show_app, &shown);
  show_app->add_option("--world", show_world, "ranks it will run on")
      ->check(CLI::Range(1, 1 << 20));
  show_app->add_flag("--json", show_json, "values only, as JSON");
  bool show_origin = true;  // accepted for the sake of the name; origins are always shown
  show_app->add_flag("--origin", show_origin, "origins are always shown");
  show_app->callback([&] { verb = [&] { return ConfigShowVerb(shown, show_world, show_json); }; });
  CLI::App* validate_app = config_app->add_subcommand(
      "validate", "all mistakes at once; exit code 2 when there are any");
  AddConfig(validate_app, &validated);
  validate_app->add_option("--world", validate_world, "ranks it will run on")
      ->check(CLI::Range(1, 1 << 20));
  validate_app->callback(
      [&] { verb = [&] { return ConfigValidateVerb(validated, validate_world); }; });

  // CLI11 would only say that a verb is missing.
  if (!words.empty() && !words.front().starts_with("-")) RequireVerb(app, words.front());
  if (!words.empty() && words.front() == "launch") {
    const auto dashes = std::find(words.begin(), words.end(), "--");
    if (dashes != words.end()) launched.assign(dashes + 1, words.end());
    words.erase(dashes, words.end());
  }
  std::vector<const char*> arguments = {program};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : ExitCode(ErrorCode::kConfig);
  }
  return verb();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  std::string verb;
  try {
    const bool is_rank = !words.empty() && words.front() == millrace::kAsRank;
    millrace::AnnounceRank(words);
    std::optional<millrace::RankOptions> ranks;
    if (!is_rank) ranks = millrace::TakeRankOptions(words);
    if (!words.empty()) verb = words.front();
    millrace::PrepareStandardStreams(verb);
    if (ranks && millrace::RunsAsRanks(verb)) return millrace::LaunchOnce(*ranks, words);
    if (verb != "launch")
      millrace::UnblockStopSignals();
    else if (ranks)
      words = millrace::LaunchWords(*ranks, words);
    return millrace::FinishStandardOutput(verb, millrace::Main(argv[0], words));
  } catch (const millrace::Error& error) {
    std::cerr << "millrace: " << error.what() << std::endl;
    return millrace::ExitCode(error.code());
  } catch (const std::exception& error) {
    std::cerr << "millrace: " << error.what() << std::endl;
    return millrace::ExitCode(millrace::ErrorCode::kInternal);
  }
}

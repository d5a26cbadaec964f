// The verbs of the command line, each with its words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/launch/rank_command.h"

namespace millrace {

// CONFIG... --set key=value...
struct ConfigArguments {
  std::vector<std::string> files;
  std::vector<std::string> sets;
};

// One command-line verb; each is one file. Returns the process's exit code.
struct TrainArguments {
  ConfigArguments config;
  std::optional<int> metrics_port;  // 0: one that is free
  int64_t trace_step = 0;           // 0: none
};
struct EvalArguments {
  ConfigArguments config;
  std::string checkpoint;          // "" newest of run.dir
  std::vector<std::string> tasks;  // none: the held-out loss
  std::optional<int64_t> limit;    // examples of each
  std::string examples;            // file for a line of each; "": none
};
struct GenerateArguments {
  ConfigArguments config;
  std::string checkpoint;
  std::vector<std::string> prompts;  // none, and no file: "The "
  std::string file;                  // of JSON lines; "": none
  std::optional<int64_t> tokens;     // none: kDefaultTokens, or as many as there is room for
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 1, min_p = 0;
  int64_t seed = 0;
  int64_t samples = 1, logprobs = 0;
  std::vector<std::string> stop;
  bool json = false;
};
inline constexpr int64_t kDefaultTokens = 200;
inline constexpr int64_t kMostSamples = 1 << 20;  // that wait for their turn
struct ScoreArguments {
  ConfigArguments config;
  std::string checkpoint, input;
  int64_t stride = 0;
};
struct ServeArguments {
  ConfigArguments config;
  std::string checkpoint, follow;  // follow: a run's folder; "": the weights stay
  std::string host = "127.0.0.1", model_name = "millrace", chat_template, token_file;
  bool insecure = false;
  int64_t port = 8000, max_queue = 512, max_tokens = 0, connections = 1000, max_body_mib = 16;
  double request_s = 600, drain_s = 30;
};
struct PlanArguments {
  ConfigArguments config;
  int world = 1;
  bool json = false, allocators = false, text = false, advise = false;
  std::string machine, html, trace;  // machine: empty, as the backend
  std::string plan = "train";        // that `text` is of
  int ranks_per_host = 0;
  double link_gbs = 0, host_link_gbs = 0;  // GB/s; 0: the machine's own
};
struct BenchArguments {
  ConfigArguments config;
  int64_t steps = 20, warmup = 5;
  bool json = false, ops = false, floor = false, update = false;
  std::vector<int64_t> decode;  // sequences at a time; none: training steps are timed
  int64_t prompt_tokens = 16;
  std::string trace;      // file; "": none
  std::string graph_dot;  // file; "": none
};
struct ExchangeArguments {
  ConfigArguments config;
  std::string folder, checkpoint;
};
struct InspectArguments {
  std::string path;
  bool json = false;
  bool verify = false;  // only whether it is sound; Error(kConfig) for what carries no checksums
};
struct CompareArguments {
  std::string a, b;  // folders of runs
  bool json = false;
};
struct ReportArguments {
  std::string run_dir;
  std::string out;  // "": report.html in run_dir
};

struct TokenizeArguments {
  std::string tokenizer, out;  // tokenizer "": none, for ids alone
  std::vector<std::string> inputs;
  std::string from = "text";  // text, ids or messages
  std::string chat;           // a template's name, for messages
  int64_t vocab = 0;          // without a tokenizer
  std::string field;          // "": as DocumentOptions::field
  // An added token's text, or an id; "": the tokenizer's own, of ids none; "none".
  std::string separator;
  bool special = false;
  int64_t file_tokens = 100'000'000;
  int threads = 0;  // 0: one per core
};
struct DetokenizeArguments {
  std::string tokenizer;
  std::vector<std::string> inputs;
  bool skip_special = false;
};
struct TokenizerTrainArguments {
  std::string out, pattern = "gpt2", field = "text";
  std::vector<std::string> inputs, special_tokens;
  int64_t vocab = 32768, min_count = 2;
  int threads = 0;
};

struct LaunchArguments {
  std::vector<std::string> command;  // "train", CONFIG, ...: what each attempt is given
  ConfigArguments train;             // the same, parsed
  RankOptions ranks;
  std::string mpirun;  // "" or the words that start the ranks, instead of `ranks`
  int64_t max_restarts = 100;
  double grace_s = 300;  // for a run that was asked to stop
};

int TrainVerb(const TrainArguments& arguments);
int LaunchVerb(const LaunchArguments& arguments);
int EvalVerb(const EvalArguments& arguments);
int EvalTasksVerb(const EvalArguments& arguments);  // of its tasks
int GenerateVerb(const GenerateArguments& arguments);
int ScoreVerb(const ScoreArguments& arguments);
int ServeVerb(const ServeArguments& arguments);
int PlanVerb(const PlanArguments& arguments);
int BenchVerb(const BenchArguments& arguments);
int InspectVerb(const InspectArguments& arguments);
int CompareVerb(const CompareArguments& arguments);  // 0: the same; 1: they differ
int ReportVerb(const ReportArguments& arguments);
int ImportVerb(const ExchangeArguments& arguments);
int ExportVerb(const ExchangeArguments& arguments);
int TokenizeVerb(const TokenizeArguments& arguments);
int DetokenizeVerb(const DetokenizeArguments& arguments);
int TokenizerTrainVerb(const TokenizerTrainArguments& arguments);
int DoctorVerb(
    bool json);  // 0: training on the best backend of this host can work; 2 or 77: it cannot
int MeasureVerb(const std::string& file);  // doctor --measure
int ConfigSchemaVerb();
int ConfigDocsVerb();
int ConfigShowVerb(const ConfigArguments& arguments, std::optional<int> world, bool json);
int ConfigValidateVerb(const ConfigArguments& arguments, std::optional<int> world);

}  // namespace millrace

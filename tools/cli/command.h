// What the verbs share: the words of the command line, and where a verb runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm_factory.h"
#include "runtime/config/load.h"
#include "runtime/data/run_lock.h"
#include "runtime/plan/cost/machine.h"
#include "runtime/run/session.h"
#include "tools/cli/program_log.h"
#include "tools/launch/rank_command.h"

namespace millrace {

// CONFIG... --set key=value...
struct ConfigArguments {
  std::vector<std::string> files;
  std::vector<std::string> sets;
};

// One rank of a verb that needs ranks: its factory, the environment of a session, and
// whose figures MFU is for.
struct RankContext {
  CommFactory& factory;
  Environment environment;
  Machine machine;
  LoadedConfig config;
  ProgramLog& log;
  bool leader() const { return factory.rank() == 0; }
};

// LoadRunConfig, for this machine and `world` ranks (empty: not known).
LoadedConfig LoadHere(const ConfigArguments& arguments, std::optional<int64_t> world);

// The notes of a configuration, a line each on standard error.
void SayNotes(const LoadedConfig& loaded);

// Runs `body` on this process's rank: under MPI when a launcher started it, alone otherwise. Loads
// and checks the configuration first: a wrong one is printed once, by rank 0, and is the exit code
// 2 of every rank. An exception of the body ends the whole job with its exit code; what every rank
// finds alike (data, checkpoint, ...) is said by rank 0 alone. In preflight (MILLRACE_PREFLIGHT=1,
// MILLRACE_WORLD=N; launch_once.h) only the checking is done.
int RunOnRanks(const ConfigArguments& arguments, const PlanSelection& plans,
               const std::function<int(RankContext&)>& body);

// On rank 0 the lock of run.dir, for verbs that write there; a warning of it is said.
// Error(kConfig): another run has it. The other ranks go on at once, and are ended
// with rank 0 if it is refused.
std::unique_ptr<RunLock> LockRun(const RankContext& context);

// One command-line verb; each is one file. Returns the process's exit code.
struct TrainArguments {
  ConfigArguments config;
  std::optional<int> metrics_port;  // 0: one that is free
  int64_t trace_step = 0;           // 0: none
};
struct EvalArguments {
  ConfigArguments config;
  std::string checkpoint;  // "" newest of run.dir
};
struct GenerateArguments {
  ConfigArguments config;
  std::string checkpoint;
  std::string prompt = "The ";
  int64_t tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 0;
  int64_t seed = 0;
};
struct PlanArguments {
  ConfigArguments config;
  int world = 1;
  bool json = false, pool_only = false, text = false, advise = false;
  std::string machine = "h100", html, trace;
  int ranks_per_host = 0;
  double link_gbs = 0, host_link_gbs = 0;  // GB/s; 0: the machine's own
};
struct BenchArguments {
  ConfigArguments config;
  int64_t steps = 20, warmup = 5;
  bool json = false, ops = false, floor = false, update = false;
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
int GenerateVerb(const GenerateArguments& arguments);
int PlanVerb(const PlanArguments& arguments);
int BenchVerb(const BenchArguments& arguments);
int InspectVerb(const InspectArguments& arguments);
int CompareVerb(const CompareArguments& arguments);  // 0: the same; 1: they differ
int ReportVerb(const ReportArguments& arguments);
int ImportVerb(const ExchangeArguments& arguments);
int ExportVerb(const ExchangeArguments& arguments);
int DoctorVerb(
    bool json);  // 0: training on the best backend of this host can work; 2 or 77: it cannot
int MeasureVerb(const std::string& file);  // doctor --measure
int ConfigSchemaVerb();
int ConfigDocsVerb();
int ConfigShowVerb(const ConfigArguments& arguments, std::optional<int> world, bool json);
int ConfigValidateVerb(const ConfigArguments& arguments, std::optional<int> world);

}  // namespace millrace

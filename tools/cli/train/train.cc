// millrace train: trains, resumes, ends with what it has learned.
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iostream>

#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/mesh.h"
#include "runtime/exec/engine.h"
#include "runtime/plan/graph/model_flops.h"
#include "runtime/record/step_figures.h"
#include "runtime/run/training/training.h"
#include "tools/cli/command.h"
#include "tools/cli/launch/this_program.h"
#include "tools/cli/terminal/console.h"
#include "tools/cli/text.h"
#include "tools/cli/train/fault.h"
#include "tools/serve/metrics_server.h"

namespace millrace {
namespace {

std::atomic<bool> stop_requested{false};

// The first request: save after this step. SIGTERM after a request: whoever repeats it does not
// want to wait, and what is saved is saved.
void RequestStop(int signal) {
  if (signal == SIGTERM && stop_requested.load()) {
    std::signal(SIGTERM, SIG_DFL);
    std::raise(SIGTERM);
  }
  stop_requested.store(true);
}

void InstallSignalHandlers() {
  struct sigaction action = {};
  action.sa_handler = RequestStop;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGUSR1, SIGTERM}) sigaction(signal, &action, nullptr);
}

void OpenLog(const RankContext& context) {
  const std::string& run_dir = context.config.config.run.dir;
  const int rank = context.factory.rank();
  NoteLogFolder(run_dir);
  context.log.OpenFile(
      LogFolder(run_dir), LogName(rank),
      fmt::format("rank {} of {}, pid {} on {}: {}", rank, context.factory.world_size(), ::getpid(),
                  HostName(), CommandLine()));
}

void PrintBegin(const Session& session) {
  std::cout << fmt::format("training {} parameters on {}; {}; run {}",
                           HumanRate(static_cast<double>(Parameters(session.run().spec))),
                           RanksInWords(session.run().layout.mesh), session.DataDescription(),
                           session.config().run.dir)
            << std::endl;
  for (const std::string& note : ExecutionNotes(session.config())) std::cout << note << std::endl;
}

// What the model writes, or why it cannot. All ranks draw from the same logits, so they have the
// same answer. A diverged model has been trained and saved like any other; with execution.checked
// its first value that is not finite ends the call, on whichever rank makes it.
std::string SampleText(Session& session) {
  const std::string prompt = "The ";
  const ByteCodec codec;
  try {
    const std::vector<int32_t> drawn = session.Generate(codec.Encode(prompt), 200, {});
    return fmt::format("sample:\n{}{}\n", prompt, Printable(codec.Decode(drawn)));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNonFinite || session.config().execution.checked) throw;
    return fmt::format("no sample: {}\n", error.what());
  }
}

void PrintEnd(Session& session, Console& console, const TrainResult& result) {
  std::string sample;
  if (session.config().data.kind == DataConfig::Kind::kText) sample = SampleText(session);
  if (session.rank() != 0) return;
  console.ClearBar();
  std::cout << fmt::format("trained steps {} to {}: training loss {:.4f} -> {:.4f}",
                           result.first_step + 1, result.last_step, *result.first_loss,
                           *result.last_loss);
  if (result.eval_before && result.eval_after)
    std::cout << fmt::format(", held-out loss {:.4f} -> {:.4f}", *result.eval_before,
                             *result.eval_after);
  std::cout << "\n" << sample << "run: " << session.config().run.dir << std::endl;
}

}  // namespace

int TrainVerb(const TrainArguments& arguments) {
  const PlanSelection plans{"train", "eval", "generate"};
  const std::vector<TrainFault> faults = FaultsFromEnvironment();
  const std::vector<DiskFault> disk_faults = DiskFaultsFromEnvironment();
  return RunOnRanks(arguments.config, plans, [&](RankContext& context) {
    InstallSignalHandlers();
    const Config& config = context.config.config;
    Console console(StdoutIsTerminal(), context.log);
    const std::unique_ptr<RunLock> lock = LockRun(context);
    NewestFigures figures;
    std::unique_ptr<MetricsServer> metrics_server;
    if (context.leader() && arguments.metrics_port) {
      metrics_server = std::make_unique<MetricsServer>(figures, *arguments.metrics_port);
      std::cout << fmt::format("metrics: http://127.0.0.1:{}/metrics", metrics_server->port())
                << std::endl;
    }
    for (const DiskFault& fault : disk_faults)
      MR_REQUIRE(ErrorCode::kConfig, fault.rank < context.factory.world_size(),
                 "{}: a fault on rank {}: there are {} ranks", kDiskFaultVariable, fault.rank,
                 context.factory.world_size());
    MR_REQUIRE(ErrorCode::kConfig, arguments.trace_step == 0 || !config.execution.checked,
               "--trace-step times ops one by one: not with execution.checked = true");
    const std::unique_ptr<FileSystem> disk = FaultyDisk(disk_faults, context.factory.rank());
    TrainOptions options{context.machine, context.config.origin,
                         metrics_server ? &figures : nullptr, disk.get()};
    options.trace_step = arguments.trace_step;
    options.on_begin = [&context] { OpenLog(context); };
    PlanSelection all = plans;
    if (config.eval.tasks) all.push_back("score");
    Session session(config, context.environment, {.plans = all, .data = true, .goes_on = true});
    if (context.leader()) PrintBegin(session);
    TrainFaults injected(faults, session.engine(), config.model.Vocab());
    const TrainResult result = Train(session, options, stop_requested, {&injected, &console});
    if (result.complete_before) {
      if (context.leader())
        std::cout << fmt::format(
                         "{} is complete: {} of {} steps. Train on with --set train.steps=N, or "
                         "start anew with --set run.dir=DIR.",
                         config.run.dir, result.last_step, config.train.steps)
                  << std::endl;
      return 0;
    }
    if (result.preempted) {
      if (context.leader()) {
        console.ClearBar();
        std::cout << fmt::format("stopped on request after step {}; run the same command to go on",
                                 result.last_step)
                  << std::endl;
      }
      session.engine().comms().world().Barrier();
      return ExitCode(ErrorCode::kPreempted);
    }
    PrintEnd(session, console, result);
    return 0;
  });
}

}  // namespace millrace

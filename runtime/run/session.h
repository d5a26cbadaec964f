// A run in this process: plans, engine, data, for one rank. Made from a configuration; the verbs of
// the command line and embedders use it.
//
// Errors   kConfig, kData, kDoesNotFit before any memory of the device is touched; then as the
//          engine's.
// Threads  One session per rank, used by one thread. Sessions share nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/comm_set.h"
#include "runtime/base/device.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/exec/observe/progress.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/record/run_environment.h"
#include "runtime/record/source_figures.h"
#include "runtime/run/assemble.h"
#include "runtime/run/data/batcher.h"
#include "runtime/run/data/run_data.h"
#include "runtime/run/tuning.h"

namespace millrace {

class Engine;
class Watchdog;
struct KernelTable;

// What the main program chose: the device, its kernels and its transport. All outlive the session.
struct Environment {
  Device* device = nullptr;
  const KernelTable* kernels = nullptr;
  CommFactory* comm_factory = nullptr;
  BackendTraits traits;
  CommSharing sharing = CommSharing::kSeparate;
  ProfilerRanges* ranges = nullptr;  // null: no profiler listens
  // Whether the factory's communicators gather and reduce over peers' memory.
  bool peer_memory = false;
  std::optional<Tuner> tuner;  // none: nothing to choose
  // Ends the whole job, on the watchdog's thread, with what it has to say
  // (watch/watchdog.h). Null: no watchdog.
  std::function<void(const std::string& verdict)> on_stall;
  Log* log = nullptr;  // null: nothing is said
  std::function<RunEnvironment()>
      describe;  // what this rank runs on, for the record; null: not recorded
  std::optional<uint64_t> adversary_seed;  // tests
};

struct SessionParts {
  PlanSelection plans = {"train"};
  bool data = true;  // open the data source
  // Training will go on from run.dir's newest checkpoint, if there is one: the session measures no
  // algorithms then.
  bool goes_on = false;
  bool releasable = false;  // EngineOptions::releasable
};

struct SamplingOptions {
  double temperature = 0.8;  // 0: the likeliest token
  int64_t top_k = 0;         // 0: all
  uint64_t seed = 0;
};

class Session {
 public:
  Session(const Config& config, const Environment& environment, const SessionParts& parts);
  ~Session();

  const Config& config() const { return config_; }
  const AssembledRun& run() const { return run_; }
  Engine& engine() { return *engine_; }
  Device& device() const { return *device_; }
  Log& log() const { return *log_; }
  ProgressMarks* marks() const { return marks_.get(); }  // null without a watchdog
  // What this rank does in a scope, for the watchdog and a profiler.
  PhaseScope Phase(RunPhase phase, int64_t detail = 0) const {
    return PhaseScope(marks(), phase, detail, ranges_);
  }
  int rank() const;
  int world() const;
  // Ranks of a data rank read the same sequences (base/mesh.h).
  int data_rank() const;

  // Fresh weights: model.init_from, or the generator with train.seed.
  void InitWeights();

  // Of the algorithms in force; "" where there was nothing to choose. The same on all ranks.
  const std::string& tuning() const { return tuning_.hash; }
  const std::string& tuning_table() const { return tuning_.table; }  // RunIdentity::tuning
  // As the environment's.
  bool peer_memory() const { return peer_memory_; }
  RunEnvironment Describe() const { return describe_ ? describe_() : RunEnvironment(); }
  // MemoryBytes of its device while the session was set up.
  struct MemoryMarks {
    int64_t start = 0, communicators = 0;  // before there were communicators, and with them
    int64_t before_arena = 0, ready = 0;   // algorithms chosen; engine made
  };
  const MemoryMarks& memory_marks() const { return memory_; }

  bool has_data() const { return batcher_ != nullptr; }
  const Batcher& batcher() const;  // with data
  const RunData& data() const;     // with data
  std::string DataDescription() const { return data().Describe(); }
  std::string DataFingerprint() const { return data().Fingerprint(); }
  // What a blend has drawn before a step, whose data is that of `data_step`, as JSON: part of a
  // checkpoint, from which GoOnWithData is faster than drawing again. "null" without data.sources.
  std::string DataState(int64_t data_step) const;
  void GoOnWithData(const std::string& state);
  // Of each of data.sources, at the end of `data_step` (1-based); empty without them.
  std::vector<SourceFigures> SourcesAfter(int64_t data_step) const;

  // Collectives, over held-out microbatches: data.eval_batches of the data, of each source that has
  // some, or `count` of the caller's, of which `batches` gives this rank's: tokens
  // [micro_batch, T+1], and how many of their targets count.
  struct HeldOutBatch {
    HostInputs inputs;
    double weight = 0;
  };
  struct MeanLoss {
    double loss = 0;      // over the targets of all data ranks
    int64_t targets = 0;  // their number
  };
  struct HeldOutLoss : MeanLoss {  // of several: by their weights
    std::vector<SourceLoss> sources =
        {};  // of each of data.sources, where each has a part held out
  };
  HeldOutLoss EvaluateHeldOut();
  double Evaluate() { return EvaluateHeldOut().loss; }
  MeanLoss EvaluateOn(int64_t count, const std::function<HeldOutBatch(int64_t batch)>& batches);

  // `count` tokens that follow `prompt` (not empty; only its last seq_len tokens are seen). No
  // key/value cache: every token runs the whole window. Every rank calls it with the same arguments
  // and gets the same tokens.
  std::vector<int32_t> Generate(std::span<const int32_t> prompt, int64_t count,
                                const SamplingOptions& sampling);

 private:
  void Tune(const Environment& environment, const SessionParts& parts);
  MeanLoss EvaluateOn(const TokenSource& held_out);
  void StartWatchdog(const Environment& environment);

  Config config_;
  Device* device_;
  Log* log_;
  ProfilerRanges* ranges_;
  bool peer_memory_;
  std::function<RunEnvironment()> describe_;
  std::unique_ptr<CommSet> comms_;
  AssembledRun run_;
  std::unique_ptr<ProgressMarks> marks_;
  std::unique_ptr<Watchdog> watchdog_;  // watches until the engine has gone
  ChosenTuning tuning_;
  MemoryMarks memory_;
  RunData data_;
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace millrace

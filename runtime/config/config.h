// The configuration as plain data. A default-constructed Config *is* the documented defaults;
// keys.cc gives every field its key path, type, range and one-line documentation, load.h fills it
// from files and `--set`.
//
// An optional that is empty ("null" in JSON) means what its key's documentation says; the member
// functions give the value then in force. Enumerators are listed in the order of their JSON names;
// policies that other layers know have their enums in runtime/base/policies.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/mesh.h"
#include "runtime/base/policies.h"
#include "runtime/config/data_source.h"
#include "runtime/config/model_config.h"
#include "runtime/config/optimizer_group.h"

namespace millrace {

// One number for all, or a list that is not empty.
using IntegerOrList = std::variant<int64_t, std::vector<int64_t>>;

struct DataConfig {
  using Kind = DataKind;
  Kind kind = Kind::kText;
  std::optional<std::string> path = {};
  std::optional<DataSources> sources = {};
  std::optional<std::string> val_path = {};
  std::string tokenizer = "bytes";
  int64_t shuffle_seed = 0;
  int64_t eval_batches = 8;
  std::optional<bool> document_mask = {};
  std::optional<int64_t> end_of_document = {};
  std::optional<bool> loss_mask = {};

  Kind KindOf(const DataSource& source) const { return source.kind.value_or(kind); }
  // Of a configuration that LoadRunConfig has loaded, which leaves no null.
  bool MasksDocuments() const { return document_mask.value_or(false); }
  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  enum class Loss { kCrossEntropy, kPolicyGradient };
  struct Policy {
    double clip_low = 0.2, clip_high = 0.2;
    double kl = 0;
    bool operator==(const Policy&) const = default;
  };
  int64_t steps = 1000;
  int64_t micro_batch = 8;  // sequences per data rank and microbatch
  std::optional<int64_t> accumulate = {};
  std::optional<int64_t> global_batch = {};  // sequences per step, over all data ranks
  int64_t seed = 0;
  int64_t eval_every = 0;
  Loss loss = Loss::kCrossEntropy;
  bool loss_weights = false;
  Policy policy = {};

  int64_t Accumulate(int64_t data_ranks) const;   // microbatches per step
  int64_t GlobalBatch(int64_t data_ranks) const;  // micro_batch * Accumulate * data_ranks
  bool operator==(const TrainConfig&) const = default;
};

struct ScheduleConfig {
  using Kind = ScheduleKind;
  Kind kind = Kind::kConstant;
  int64_t warmup = 0;
  std::optional<int64_t> decay_steps = {};
  double min_lr = 0;

  int64_t DecaySteps(int64_t train_steps) const;  // 0 for constant
  bool operator==(const ScheduleConfig&) const = default;
};

struct LossScaleConfig {
  double init_scale = 65536;
  double growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool operator==(const LossScaleConfig&) const = default;
};

struct PrecisionConfig {
  enum class Format { kFp32, kBf16, kFp16 };
  enum class Norms { kFp32, kCompute };
  Format compute = Format::kFp32;
  Format master = Format::kFp32;
  Norms norms = Norms::kFp32;
  LinearEncoding linear = LinearEncoding::kCompute;
  WeightGather gather = WeightGather::kCompute;
  Format grad_accumulate = Format::kFp32;
  Format grad_wire = Format::kFp32;
  LossScaleConfig loss_scale;
  bool operator==(const PrecisionConfig&) const = default;
};

struct MuonConfig {
  std::optional<double> lr = {};
  double momentum = 0.95;
  bool nesterov = true;
  int64_t ns_steps = 5;
  double ns_linear = 3.4445, ns_cubic = -4.7750, ns_quintic = 2.0315;
  double eps = 1e-7;
  MuonAdjust adjust_lr = MuonAdjust::kMatchRmsAdamW;
  std::optional<double> weight_decay = {};
  bool operator==(const MuonConfig&) const = default;
};

struct OptimizerConfig {
  using Kind = OptimizerKind;  // kMuon: all else by AdamW
  Kind name = Kind::kAdamW;
  double lr = 3e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1;  // 0: no clipping
  PrecisionConfig::Format moments = PrecisionConfig::Format::kFp32;
  MuonConfig muon;
  ScheduleConfig schedule;
  std::optional<OptimizerGroups> groups = {};

  bool HasMuon() const {
    return name == Kind::kMuon ||
           (groups && std::any_of(groups->begin(), groups->end(), [](const OptimizerGroup& group) {
              return group.name == Kind::kMuon;
            }));
  }
  double MuonLr() const { return muon.lr.value_or(lr); }
  double MuonWeightDecay() const { return muon.weight_decay.value_or(weight_decay); }
  bool operator==(const OptimizerConfig&) const = default;
};

struct ParallelConfig {
  std::optional<int64_t> shard = {};
  int64_t replicate = 1;
  int64_t context = 1;
  int64_t expert = 1;
  bool experts_over_tensor = false;
  int64_t tensor = 1;
  int64_t tensor_strips = 1;
  int64_t pipe = 1;

  // That have experts of their own.
  int64_t ExpertRanks() const { return expert * (experts_over_tensor ? tensor : 1); }
  int64_t DataRankSize() const { return context * tensor; }  // ranks of a data rank
  // Ranks to one place along shard and replicate; kBeyond where they are as many or more, so that
  // products with other axes are numbers.
  static constexpr int64_t kBeyond = int64_t{1} << 22;  // more than any world
  int64_t OtherAxes() const { return std::min(expert * DataRankSize(), kBeyond); }
  int64_t Shard(int64_t world) const { return shard.value_or(world / (replicate * OtherAxes())); }
  // Groups of ranks that read sequences of their own; those of a group share them.
  int64_t DataRanks(int64_t world) const { return std::max<int64_t>(1, world / DataRankSize()); }
  // Of `world` ranks, where the axes' product is that; else of as many as their product.
  Mesh MeshOver(int64_t world) const;
  bool operator==(const ParallelConfig&) const = default;
};

struct ShardingConfig {
  using Reshard = millrace::Reshard;
  using Downcast = millrace::Downcast;
  using GradSync = millrace::GradSync;
  using GradConcat = millrace::GradConcat;
  Reshard reshard = Reshard::kAfterForward;
  Downcast downcast = Downcast::kAfterUpdate;
  GradSync grad_sync = GradSync::kEvery;
  GradConcat grad_concat = GradConcat::kDirect;
  // One number for all units, of which the last takes what is left; or one for each unit.
  IntegerOrList blocks_per_unit = int64_t{1};
  // Blocks of each unit of a model with `layers` blocks.
  std::vector<int64_t> BlocksOfUnits(int64_t layers) const;
  bool operator==(const ShardingConfig&) const = default;
};

struct MemoryConfig {
  using Allocator = AllocatorKind;
  using Recompute = millrace::Recompute;
  Allocator allocator = Allocator::kPacked;
  int64_t prefetch = 1;
  std::optional<int64_t> slots = {};
  int64_t reduce_depth = 1;
  Recompute recompute = Recompute::kNone;
  std::optional<double> budget_gib = {};

  // Whether the allocator places buckets in slots, so that their number is a choice.
  static bool HasSlots(Allocator allocator) {
    return allocator == Allocator::kColoured || allocator == Allocator::kMaxPool ||
           allocator == Allocator::kFixed;
  }
  int64_t Slots() const { return slots.value_or(prefetch + 1); }
  bool operator==(const MemoryConfig&) const = default;
};

struct ExecutionConfig {
  enum class Backend { kAuto, kCpu, kCuda };
  using Graph = GraphMode;
  using ProgrammaticLaunch = EarlyLaunch;
  enum class PeerMemory { kOff, kAuto, kOn };
  Backend backend = Backend::kAuto;
  Graph graph = Graph::kStep;
  bool checked = false;
  bool deterministic = true;
  std::optional<bool> overlap_weight_gradients = {};
  bool tune = true;
  std::optional<std::string> tuning_file = {};
  bool tune_again = false;
  ProgrammaticLaunch programmatic_launch = ProgrammaticLaunch::kEnd;
  PeerMemory peer_memory = PeerMemory::kOff;
  int64_t watchdog_s = 20;  // 0: no watchdog

  // Where the algorithms that were measured for a run are kept.
  std::string TuningFile(const std::string& run_dir) const {
    return tuning_file.value_or(run_dir + "/tuning.json");
  }
  bool operator==(const ExecutionConfig&) const = default;
};

struct CheckpointConfig {
  using Resume = ResumePolicy;
  enum class OnError { kContinue, kStop };
  int64_t every = 1000;
  bool at_end = true;
  int64_t keep = 2;
  std::optional<int64_t> keep_every = {};
  int64_t keep_best = 0;
  bool asynchronous = true;
  OnError on_error = OnError::kContinue;
  Resume resume = Resume::kAuto;
  bool operator==(const CheckpointConfig&) const = default;
};

// Tasks that the model is scored on while it is trained.
struct EvalConfig {
  std::optional<std::vector<std::string>> tasks = {};
  int64_t every = 0;  // steps; 0: after the last alone
  std::optional<int64_t> limit = {};
  bool operator==(const EvalConfig&) const = default;
};

// What is watched while a run goes on, and what is done about it.
struct GuardConfig {
  enum class Policy { kSkip, kRollBack, kStop };
  Policy non_finite = Policy::kSkip;
  std::optional<Policy> loss_spike = {};
  int64_t spike_window = 64;
  double spike_factor = 8;
  int64_t max_roll_backs = 3;
  int64_t replicas_every = 0;  // steps; 0: never
  int64_t rerun_every = 0;     // steps; 0: never
  int64_t order_every = 0;     // steps; 0: never
  bool operator==(const GuardConfig&) const = default;
};

// Plans that generate: prefill and decode over paged caches.
struct InferenceConfig {
  int64_t slots = 8;
  int64_t page_tokens = 32;
  std::optional<int64_t> pages = {};
  std::optional<int64_t> max_length = {};
  IntegerOrList prefill = std::vector<int64_t>{32, 256};
  IntegerOrList decode = std::vector<int64_t>{1, 8};
  std::optional<bool> exact = {};

  int64_t MaxLength(int64_t seq_len) const { return max_length.value_or(seq_len); }
  int64_t PagesOfSequence(int64_t seq_len) const {
    return (MaxLength(seq_len) + page_tokens - 1) / page_tokens;
  }
  int64_t Pages(int64_t seq_len) const { return pages.value_or(slots * PagesOfSequence(seq_len)); }
  // Rows of the plans, ascending, each once: none more than there can be.
  std::vector<int64_t> PrefillRows(int64_t seq_len) const;
  std::vector<int64_t> DecodeRows() const;
  bool operator==(const InferenceConfig&) const = default;
};

struct RunConfig {
  std::string dir = "runs/default";
  bool tensorboard = false;
  int64_t loads_every = 100;  // steps; 0: never
  // After the last step, too.
  bool RecordsLoads(int64_t step, int64_t steps) const {
    return loads_every > 0 && (step % loads_every == 0 || step == steps);
  }
  LogLevel log_level = LogLevel::kInfo;
  bool operator==(const RunConfig&) const = default;
};

struct Config {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  PrecisionConfig precision;
  ShardingConfig sharding;
  MemoryConfig memory;
  ExecutionConfig execution;
  CheckpointConfig checkpoint;
  EvalConfig eval;
  GuardConfig guard;
  InferenceConfig inference;
  RunConfig run;
  bool operator==(const Config&) const = default;
};

}  // namespace millrace

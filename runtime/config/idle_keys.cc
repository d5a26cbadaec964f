#include "runtime/config/idle_keys.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "runtime/config/keys.h"

namespace millrace {
namespace {

// A circumstance that makes keys idle.
struct Circumstance {
  IdleBy by;
  std::vector<std::string> causes;
  bool (*holds)(const Config&, const ConfigContext&);
  std::string reason;
};

struct Rule {
  std::string_view key;
  Circumstance when;
};

bool ComputesInFp32(const Config& c) {
  return c.precision.compute == PrecisionConfig::Format::kFp32;
}

// With one rank to a copy, weights whose compute form is kept are used where they lie. Others are
// cast into buckets, one unit after the other, as gathered ones are.
bool KeepsComputeWeights(const Config& c) {
  return ComputesInFp32(c) || c.sharding.downcast == ShardingConfig::Downcast::kAfterUpdate;
}

// To a copy, as it was written.
bool OneRank(const Config& c) { return c.parallel.shard == 1 && c.parallel.OtherAxes() == 1; }

bool OneRankPerCopy(const Config& c, const ConfigContext& context) {
  return !c.parallel.shard && context.world && *context.world == c.parallel.replicate;
}

bool RollsBack(const GuardConfig& guard) {
  return guard.non_finite == GuardConfig::Policy::kRollBack ||
         guard.loss_spike == GuardConfig::Policy::kRollBack;
}

using C = const Config&;
using Context = const ConfigContext&;
using Rules = std::vector<Rule>;

Circumstance ByKeys(std::vector<std::string> causes, bool (*holds)(C, Context),
                    std::string reason) {
  return {IdleBy::kKeys, std::move(causes), holds, std::move(reason)};
}

Circumstance ByWorld(bool (*holds)(C, Context), std::string reason) {
  return {IdleBy::kWorld, {}, holds, std::move(reason)};
}

Circumstance NoBlockHas(bool (*holds)(C, Context), const std::string& what) {
  return ByKeys({"model.family", "model.pattern"}, holds, "no block of the model has " + what);
}

Rules OfExperts() {
  const Circumstance no_experts =
      NoBlockHas([](C c, Context) { return !c.model.Has('E'); }, "experts");
  const Circumstance no_aux_loss = ByKeys(
      {"model.moe.aux_loss"},
      [](C c, Context) { return c.model.moe.aux_loss == AuxLossKind::kNone; },
      "there is no auxiliary loss");
  const Circumstance no_bias = ByKeys(
      {"model.moe.bias", "model.family"}, [](C c, Context) { return !c.model.RouterBias(); },
      "the router has no bias");
  const Circumstance no_exchange = ByKeys(
      {"parallel.expert"}, [](C c, Context) { return c.parallel.ExpertRanks() == 1; },
      "every rank has all experts");
  const Circumstance one_tensor_rank = ByKeys(
      {"parallel.tensor"}, [](C c, Context) { return c.parallel.tensor == 1; },
      "no ranks split matrices");
  return {
      {"model.moe.experts", no_experts},
      {"model.moe.top_k", no_experts},
      {"model.moe.ffn", no_experts},
      {"model.moe.router", no_experts},
      {"model.moe.bias", no_experts},
      {"model.moe.groups", no_experts},
      {"model.moe.top_groups", no_experts},
      {"model.moe.normalise", no_experts},
      {"model.moe.scaling", no_experts},
      {"model.moe.shared_ffn", no_experts},
      {"model.moe.aux_loss", no_experts},
      {"model.moe.aux_coefficient", no_aux_loss},
      {"model.moe.bias_rate", no_bias},
      {"model.moe.gate", no_experts},
      {"model.moe.receive_capacity", no_exchange},
      {"run.loads_every", no_experts},
      {"parallel.experts_over_tensor", no_experts},
      {"parallel.experts_over_tensor", one_tensor_rank},
  };
}

Rules OfMambaAndMtp() {
  const Circumstance no_mamba =
      NoBlockHas([](C c, Context) { return !c.model.Has('M'); }, "a mixer");
  const Circumstance no_mtp = ByKeys(
      {"model.mtp.depth"}, [](C c, Context) { return c.model.mtp.depth == 0; },
      "no block predicts further tokens");
  return {
      {"model.mamba.heads", no_mamba},  {"model.mamba.head_dim", no_mamba},
      {"model.mamba.groups", no_mamba}, {"model.mamba.state", no_mamba},
      {"model.mamba.chunk", no_mamba},  {"model.mamba.dt_min", no_mamba},
      {"model.mamba.dt_max", no_mamba}, {"model.mtp.loss_scale", no_mtp},
      {"model.mtp.pattern", no_mtp},
  };
}

Rules OfModel() {
  const Circumstance learned_positions = ByKeys(
      {"model.family"}, [](C c, Context) { return c.model.family == ModelConfig::Family::kGpt2; },
      "gpt2 has learned positions");
  const Circumstance no_positions = ByKeys(
      {"model.family", "model.attention.rope"},
      [](C c, Context) { return c.model.family != ModelConfig::Family::kGpt2 && !c.model.Rope(); },
      "attention has no positions");
  const Circumstance patterned = ByKeys(
      {"model.pattern"}, [](C c, Context) { return c.model.pattern.has_value(); },
      "the pattern says how many blocks there are");
  const Circumstance no_attention =
      NoBlockHas([](C c, Context) { return !c.model.Has('*'); }, "attention");
  const Circumstance no_mlp = NoBlockHas([](C c, Context) { return !c.model.Has('-'); }, "an MLP");
  const Circumstance no_activation = NoBlockHas(
      [](C c, Context) { return !c.model.Has('-') && !c.model.Has('E'); }, "an MLP or experts");
  return {
      {"model.layers", patterned},
      {"model.heads", no_attention},
      {"model.kv_heads", no_attention},
      {"model.head_dim", no_attention},
      {"model.ffn", no_mlp},
      {"model.activation", no_activation},
      {"model.rope_theta", learned_positions},
      {"model.rope_theta", no_positions},
      {"model.rope_scaling", learned_positions},
      {"model.rope_scaling", no_positions},
      {"model.attention.rope", no_attention},
      {"model.attention.qk_norm", no_attention},
      {"model.attention.window", no_attention},
  };
}

Rules OfDataAndTraining() {
  const Circumstance from_folder = ByKeys(
      {"model.init_from"}, [](C c, Context) { return c.model.init_from.has_value(); },
      "the weights begin as those of a folder");
  const Circumstance synthetic = ByKeys(
      {"data.kind"}, [](C c, Context) { return c.data.kind == DataConfig::Kind::kSynthetic; },
      "synthetic data is read from no file");
  const Circumstance no_tasks = ByKeys(
      {"eval.tasks"}, [](C c, Context) { return !c.eval.tasks; },
      "there are no tasks to score the model on");
  const Circumstance sources_say = ByKeys(
      {"data.sources"},
      [](C c, Context) {
        return c.data.sources && std::all_of(c.data.sources->begin(), c.data.sources->end(),
                                             [](const DataSource& one) { return one.kind; });
      },
      "each source says its own");
  const Circumstance constant = ByKeys(
      {"optimizer.schedule.kind"},
      [](C c, Context) { return c.optimizer.schedule.kind == ScheduleConfig::Kind::kConstant; },
      "a constant schedule does not decay");
  const Circumstance no_muon = ByKeys(
      {"optimizer.name", "optimizer.groups"}, [](C c, Context) { return !c.optimizer.HasMuon(); },
      "all parameters are updated by AdamW");
  const Circumstance not_evaluated = ByKeys(
      {"train.eval_every"}, [](C c, Context) { return c.train.eval_every == 0; },
      "which checkpoints are best is known from their held-out loss, so set eval_every");
  const Circumstance last_alone = ByKeys(
      {"checkpoint.every"}, [](C c, Context) { return c.checkpoint.every == 0; },
      "a run is saved when it ends, and the newest checkpoint stays anyway");
  const Circumstance no_policy = ByKeys(
      {"train.loss"},
      [](C c, Context) { return c.train.loss != TrainConfig::Loss::kPolicyGradient; },
      "the loss is no policy gradient");
  const Circumstance not_masked = ByKeys(
      {"data.document_mask"}, [](C c, Context) { return c.data.document_mask == false; },
      "where documents end is of no matter unless they are masked");
  return {
      {"data.end_of_document", not_masked},
      {"train.policy.clip_low", no_policy},
      {"train.policy.clip_high", no_policy},
      {"train.policy.kl", no_policy},
      {"data.path", synthetic},
      {"data.sources", synthetic},
      {"eval.every", no_tasks},
      {"eval.limit", no_tasks},
      {"data.kind", sources_say},
      {"data.val_path", synthetic},
      {"train.seed", from_folder},
      {"optimizer.muon.lr", no_muon},
      {"optimizer.muon.momentum", no_muon},
      {"optimizer.muon.nesterov", no_muon},
      {"optimizer.muon.ns_steps", no_muon},
      {"optimizer.muon.ns_linear", no_muon},
      {"optimizer.muon.ns_cubic", no_muon},
      {"optimizer.muon.ns_quintic", no_muon},
      {"optimizer.muon.eps", no_muon},
      {"optimizer.muon.adjust_lr", no_muon},
      {"optimizer.muon.weight_decay", no_muon},
      {"optimizer.schedule.decay_steps", constant},
      {"optimizer.schedule.min_lr", constant},
      {"checkpoint.keep_best", not_evaluated},
      {"checkpoint.keep_every", last_alone},
  };
}

Rules OfLossScaling() {
  const Circumstance no_scale = ByKeys(
      {"precision.compute"},
      [](C c, Context) { return c.precision.compute != PrecisionConfig::Format::kFp16; },
      "only gradients in fp16 are scaled");
  return {
      {"precision.loss_scale.init_scale", no_scale},
      {"precision.loss_scale.growth_factor", no_scale},
      {"precision.loss_scale.backoff_factor", no_scale},
      {"precision.loss_scale.growth_interval", no_scale},
  };
}

Rules OfCopies() {
  const Circumstance fp32 = ByKeys(
      {"precision.compute"}, [](C c, Context) { return ComputesInFp32(c); },
      "fp32 weights are used as they are stored, without a cast");
  const std::string nothing_travels = "one rank to a copy of the model gathers and reduces nothing";
  const std::string nothing_gathered =
      "one rank to a copy of the model uses its weights where they lie";
  const Circumstance shard_1 = ByKeys(
      {"parallel.shard"}, [](C c, Context) { return OneRank(c); }, nothing_travels);
  const Circumstance one_rank = ByWorld(OneRankPerCopy, nothing_travels);
  const Circumstance shard_1_kept = ByKeys(
      {"parallel.shard", "precision.compute", "sharding.downcast"},
      [](C c, Context) { return OneRank(c) && KeepsComputeWeights(c); }, nothing_gathered);
  const Circumstance one_rank_kept = ByWorld(
      [](C c, Context context) { return OneRankPerCopy(c, context) && KeepsComputeWeights(c); },
      nothing_gathered);
  const Circumstance no_slots = ByKeys(
      {"memory.allocator"},
      [](C c, Context) { return !MemoryConfig::HasSlots(c.memory.allocator); },
      "only the allocators coloured, max_pool and fixed have slots");
  const Circumstance stays_gathered = ByKeys(
      {"sharding.reshard"},
      [](C c, Context) {
        return c.sharding.reshard == ShardingConfig::Reshard::kNever ||
               c.sharding.reshard == ShardingConfig::Reshard::kAfterBackward;
      },
      "blocks take turns in slots when they are given up after their forward");
  const Circumstance tensor_1 = ByKeys(
      {"parallel.tensor"}, [](C c, Context) { return c.parallel.tensor == 1; },
      "one rank has all rows and exchanges none");
  return {
      {"parallel.tensor_strips", tensor_1}, {"precision.norms", fp32},
      {"sharding.reshard", shard_1_kept},   {"sharding.reshard", one_rank_kept},
      {"sharding.downcast", fp32},          {"sharding.grad_sync", shard_1},
      {"sharding.grad_sync", one_rank},     {"memory.allocator", shard_1_kept},
      {"memory.allocator", one_rank_kept},  {"memory.prefetch", shard_1_kept},
      {"memory.prefetch", one_rank_kept},   {"memory.slots", no_slots},
      {"memory.slots", stays_gathered},     {"memory.slots", shard_1_kept},
      {"memory.slots", one_rank_kept},      {"memory.reduce_depth", shard_1},
      {"memory.reduce_depth", one_rank},
  };
}

Rules OfGpus() {
  const std::string of_gpus = "it concerns GPUs alone";
  const Circumstance cpu = ByKeys(
      {"execution.backend"},
      [](C c, Context) { return c.execution.backend == ExecutionConfig::Backend::kCpu; }, of_gpus);
  const Circumstance found_cpu = {IdleBy::kMachine,
                                  {},
                                  [](C c, Context context) {
                                    return c.execution.backend == ExecutionConfig::Backend::kAuto &&
                                           context.auto_is_cpu;
                                  },
                                  of_gpus + ", and none is used here"};
  const Circumstance not_tuned = ByKeys(
      {"execution.tune"}, [](C c, Context) { return !c.execution.tune; },
      "without tuning the file is neither read nor written");
  const Circumstance checked = ByKeys(
      {"execution.checked"}, [](C c, Context) { return c.execution.checked; },
      "checked execution walks op by op, without graphs");
  const Circumstance no_graph = ByKeys(
      {"execution.graph"},
      [](C c, Context) { return c.execution.graph == ExecutionConfig::Graph::kOff; },
      "it concerns kernels of a graph");
  return {
      {"execution.graph", checked},
      {"execution.deterministic", cpu},
      {"execution.deterministic", found_cpu},
      {"execution.tune", cpu},
      {"execution.tune", found_cpu},
      {"execution.tuning_file", not_tuned},
      {"execution.tuning_file", cpu},
      {"execution.tuning_file", found_cpu},
      {"execution.tune_again", not_tuned},
      {"execution.tune_again", cpu},
      {"execution.tune_again", found_cpu},
      {"execution.programmatic_launch", no_graph},
      {"execution.programmatic_launch", checked},
      {"execution.programmatic_launch", cpu},
      {"execution.programmatic_launch", found_cpu},
  };
}

Rules OfOtherRanks() {
  const Circumstance no_spikes = ByKeys(
      {"guard.loss_spike"}, [](C c, Context) { return !c.guard.loss_spike; },
      "loss spikes are not watched");
  const Circumstance no_roll_back = ByKeys(
      {"guard.non_finite", "guard.loss_spike"}, [](C c, Context) { return !RollsBack(c.guard); },
      "no guard rolls back");
  const Circumstance one_copy = ByKeys(
      {"parallel.replicate"}, [](C c, Context) { return c.parallel.replicate == 1; },
      "with one replica there is nothing to compare");
  const auto mesh_of_1 = [](const std::string& reason) {
    return ByKeys(
        {"parallel.shard", "parallel.replicate"},
        [](C c, Context) { return OneRank(c) && c.parallel.replicate == 1; }, reason);
  };
  const auto world_of_1 = [](const std::string& reason) {
    return ByWorld([](C c, Context context) { return !c.parallel.shard && context.world == 1; },
                   reason);
  };
  const std::string nothing_sent = "one rank sends its gradients to nobody";
  const std::string alone = "one rank has no other to compare its collectives with";
  return {
      {"precision.grad_wire", mesh_of_1(nothing_sent)},
      {"precision.grad_wire", world_of_1(nothing_sent)},
      {"guard.spike_window", no_spikes},
      {"guard.spike_factor", no_spikes},
      {"guard.max_roll_backs", no_roll_back},
      {"guard.replicas_every", one_copy},
      {"guard.order_every", mesh_of_1(alone)},
      {"guard.order_every", world_of_1(alone)},
  };
}

Rules OfLoop() {
  const Circumstance own_steps = {IdleBy::kCaller,
                                  {},
                                  [](C, Context context) { return context.caller_steps; },
                                  "the program that makes the steps evaluates and saves"};
  const Circumstance own_tokens = {IdleBy::kCaller,
                                   {},
                                   [](C, Context context) { return !context.needs_data; },
                                   "tokens come from the program that makes the steps"};
  Rules rules;
  for (const std::string_view key :
       {"train.eval_every", "checkpoint.every", "checkpoint.at_end", "checkpoint.keep_every",
        "checkpoint.keep_best", "checkpoint.asynchronous", "checkpoint.on_error",
        "checkpoint.resume", "run.tensorboard", "run.loads_every"})
    rules.push_back({key, own_steps});
  for (const std::string_view key :
       {"data.kind", "data.path", "data.val_path", "data.shuffle_seed", "data.eval_batches"})
    rules.push_back({key, own_tokens});
  return rules;
}

Rules AllRules() {
  Rules all;
  for (const auto& of : {OfModel, OfExperts, OfMambaAndMtp, OfDataAndTraining, OfLossScaling,
                         OfCopies, OfGpus, OfOtherRanks, OfLoop})
    for (Rule& rule : of()) all.push_back(std::move(rule));
  return all;
}

bool IsDefault(std::string_view path, const Config& config) {
  if (path == "model.rope_scaling") return !config.model.rope_scaling;  // a section
  static const Config kDefaults;
  const Key& key = *FindKey(path);
  return key.get(config) == key.get(kDefaults);
}

}  // namespace

std::vector<IdleKey> FindIdleKeys(const Config& config, const ConfigContext& context) {
  std::vector<IdleKey> idle;
  static const Rules kRules = AllRules();
  for (const Rule& rule : kRules) {
    if (IsDefault(rule.key, config) || !rule.when.holds(config, context)) continue;
    idle.push_back({std::string(rule.key), rule.when.by, rule.when.causes, rule.when.reason});
  }
  return idle;
}

}  // namespace millrace

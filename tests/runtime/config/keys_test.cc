#include "runtime/config/keys.h"

#include <catch2/catch.hpp>
#include <set>

#include "kernels/ops/router_ops.h"

namespace millrace {
namespace {

// The names that are promised to users; adding is allowed, renaming is not.
const char* const kPromised[] = {
    "model.family",
    "model.layers",
    "model.d_model",
    "model.heads",
    "model.kv_heads",
    "model.head_dim",
    "model.ffn",
    "model.vocab",
    "model.seq_len",
    "model.tied",
    "model.activation",
    "model.norm_eps",
    "model.rope_theta",
    "model.rope_scaling.rope_type",
    "model.rope_scaling.factor",
    "model.rope_scaling.low_freq_factor",
    "model.rope_scaling.high_freq_factor",
    "model.rope_scaling.original_max_position_embeddings",
    "model.init_std",
    "model.init_from",
    "data.kind",
    "data.path",
    "data.sources",
    "data.val_path",
    "data.tokenizer",
    "data.shuffle_seed",
    "data.eval_batches",
    "train.steps",
    "train.micro_batch",
    "train.accumulate",
    "train.global_batch",
    "train.seed",
    "train.eval_every",
    "optimizer.name",
    "optimizer.lr",
    "optimizer.betas",
    "optimizer.eps",
    "optimizer.weight_decay",
    "optimizer.clip",
    "optimizer.schedule.kind",
    "optimizer.schedule.warmup",
    "optimizer.schedule.decay_steps",
    "optimizer.schedule.min_lr",
    "optimizer.groups",
    "parallel.shard",
    "parallel.replicate",
    "parallel.context",
    "parallel.expert",
    "parallel.tensor",
    "parallel.pipe",
    "precision.compute",
    "precision.master",
    "precision.norms",
    "precision.linear",
    "precision.grad_accumulate",
    "precision.grad_wire",
    "sharding.reshard",
    "sharding.downcast",
    "sharding.grad_sync",
    "sharding.grad_concat",
    "sharding.blocks_per_unit",
    "memory.allocator",
    "memory.prefetch",
    "memory.slots",
    "memory.reduce_depth",
    "memory.recompute",
    "memory.budget_gib",
    "execution.backend",
    "execution.graph",
    "execution.checked",
    "execution.deterministic",
    "execution.overlap_weight_gradients",
    "execution.tune",
    "execution.tuning_file",
    "execution.tune_again",
    "execution.programmatic_launch",
    "execution.peer_memory",
    "execution.watchdog_s",
    "checkpoint.every",
    "checkpoint.at_end",
    "checkpoint.keep",
    "checkpoint.keep_every",
    "checkpoint.keep_best",
    "checkpoint.asynchronous",
    "checkpoint.on_error",
    "checkpoint.resume",
    "eval.tasks",
    "eval.every",
    "eval.limit",
    "guard.non_finite",
    "guard.loss_spike",
    "guard.spike_window",
    "guard.spike_factor",
    "guard.max_roll_backs",
    "guard.replicas_every",
    "guard.rerun_every",
    "guard.order_every",
    "inference.slots",
    "inference.page_tokens",
    "inference.pages",
    "inference.max_length",
    "inference.prefill",
    "inference.decode",
    "inference.exact",
    "run.dir",
    "run.tensorboard",
    "run.loads_every",
    "run.log_level",
};

// Two values of the key's type and range, unlike each other.
std::pair<KeyValue, KeyValue> TwoValues(const Key& key) {
  switch (key.type) {
    case KeyType::kBool:
      return {false, true};
    case KeyType::kInteger:
      return {int64_t{5}, int64_t{7}};
    case KeyType::kNumber:
      return {2.5, 3.5};
    case KeyType::kString:
      return {std::string("a"), std::string("b")};
    case KeyType::kChoice:
      return {std::string(key.choices.front()), std::string(key.choices.back())};
    case KeyType::kNumberPair:
      return {std::array{0.25, 0.5}, std::array{0.5, 0.75}};
    case KeyType::kIntegerOrList:
      return {int64_t{5}, std::vector<int64_t>{1, 3, 1}};
    case KeyType::kGroups:
      return {OptimizerGroups{{.parameters = {"a"}, .frozen = true}},
              OptimizerGroups{{.parameters = {"b", "a*"}, .lr = 0.5, .betas = {{0.5, 0.25}}},
                              {.parameters = {"*"}, .name = OptimizerKind::kMuon}}};
    case KeyType::kStrings:
      return {std::vector<std::string>{"a"}, std::vector<std::string>{"b", "a"}};
    case KeyType::kSources:
      return {DataSources{{.path = "a"}},
              DataSources{{"b", 2.5, DataKind::kTokens, "c"}, {.path = "a", .weight = 0.5}}};
  }
  return {};
}

TEST_CASE("every promised key exists, once", "[config][keys]") {
  for (const char* path : kPromised) {
    CAPTURE(path);
    REQUIRE(FindKey(path) != nullptr);
  }
  std::set<std::string> paths;
  for (const Key& key : Keys()) REQUIRE(paths.insert(key.path).second);
}

TEST_CASE("as many experts may be asked for as kernels can route to", "[config][keys]") {
  for (const char* path : {"model.moe.experts", "model.moe.groups", "model.moe.top_groups"}) {
    CAPTURE(path);
    REQUIRE(FindKey(path)->range.max == static_cast<double>(kMaxExperts));
  }
  REQUIRE(FindKey("model.moe.top_k")->range.max == static_cast<double>(kMaxTopK));
}

TEST_CASE("setting a key changes that key and no other", "[config][keys]") {
  for (const Key& key : Keys()) {
    CAPTURE(key.path);
    const auto [first, second] = TwoValues(key);
    Config config;
    for (const KeyValue& value : {first, second, first}) {
      const Config before = config;
      key.set(config, value);
      REQUIRE(key.get(config) == value);
      for (const Key& other : Keys())
        if (other.path != key.path) REQUIRE(other.get(config) == other.get(before));
    }
  }
}

TEST_CASE("a nullable key can be emptied again, and is empty by default", "[config][keys]") {
  int nullable = 0;
  for (const Key& key : Keys()) {
    if (!key.nullable) continue;
    CAPTURE(key.path);
    ++nullable;
    Config config;
    REQUIRE(key.get(config) == KeyValue());
    key.set(config, TwoValues(key).first);
    REQUIRE_FALSE(config == Config());
    key.set(config, KeyValue());
    REQUIRE(config == Config());
  }
  REQUIRE(nullable >= 15);
}

TEST_CASE("a choice's names follow its enumerators", "[config][keys]") {
  Config config;
  FindKey("memory.allocator")->set(config, std::string("max_pool"));
  REQUIRE(config.memory.allocator == MemoryConfig::Allocator::kMaxPool);
  FindKey("sharding.reshard")->set(config, std::string("after_backward"));
  REQUIRE(config.sharding.reshard == ShardingConfig::Reshard::kAfterBackward);
  FindKey("model.activation")->set(config, std::string("swiglu"));
  REQUIRE(config.model.activation == ModelConfig::Activation::kSwiglu);
}

TEST_CASE("sections are the objects around keys", "[config][keys]") {
  REQUIRE(IsSection(""));
  REQUIRE(IsSection("optimizer"));
  REQUIRE(IsSection("optimizer.schedule"));
  REQUIRE_FALSE(IsSection("optimizer.sched"));
  REQUIRE_FALSE(IsSection("optimizer.lr"));
  REQUIRE(IsNullableSection("model.rope_scaling"));
  REQUIRE_FALSE(IsNullableSection("optimizer.schedule"));
  REQUIRE(FindKey("optimizer.schedule.min_lr")->section() == "optimizer.schedule");
  REQUIRE(FindKey("optimizer.schedule.min_lr")->leaf() == "min_lr");
}

TEST_CASE("what is allowed reads as a sentence", "[config][keys]") {
  REQUIRE(Allowed(*FindKey("model.layers")) == "an integer from 1 to 10000");
  REQUIRE(Allowed(*FindKey("model.head_dim")) == "an integer from 1 to 65536, or null");
  REQUIRE(Allowed(*FindKey("optimizer.clip")) == "a number of at least 0");
  REQUIRE(Allowed(*FindKey("optimizer.eps")) == "a number from 1e-30 to 1e+30");
  REQUIRE(Allowed(*FindKey("optimizer.betas")) ==
          "a list of 2 numbers, each of at least 0 and below 1");
  REQUIRE(Allowed(*FindKey("sharding.blocks_per_unit")) ==
          "an integer from 1 to 10000, or a list of such");
  REQUIRE(Allowed(*FindKey("precision.master")) == "fp32");
  REQUIRE(Allowed(*FindKey("parallel.pipe")) == "1");
  REQUIRE(Allowed(*FindKey("sharding.grad_sync")) == "one of every, last");
  REQUIRE(Allowed(*FindKey("execution.checked")) == "true or false");
  REQUIRE(Allowed(*FindKey("run.dir")) == "a string that is not empty");
}

}  // namespace
}  // namespace millrace

#include "runtime/config/idle_keys.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/config/keys.h"
#include "tests/runtime/config/load_support.h"

namespace millrace {
namespace {

using nlohmann::json;

// A key, what makes it idle, what lets it act instead, and what the case needs besides.
struct Case {
  std::string key, idle_by, acts_by;
  std::vector<std::string> besides = {};

  std::string path() const { return key.substr(0, key.find('=')); }
  std::string cause() const { return idle_by.substr(0, idle_by.find('=')); }
};

const std::vector<std::string> kHybrid = {"model.family=nemotron_h"};

const std::vector<Case> kCases = {
    {"model.rope_theta=5", "model.family=gpt2", "model.family=llama"},
    {R"(model.rope_scaling={"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
        "high_freq_factor": 4, "original_max_position_embeddings": 512})",
     "model.family=gpt2", "model.family=llama"},
    {"model.rope_theta=5",
     "model.attention.rope=false",
     "model.attention.rope=true",
     {"model.family=llama"}},
    {"model.layers=3", "model.pattern=E-", "model.pattern=null", {"model.family=qwen3_moe"}},
    {"model.heads=6", "model.pattern=M-", "model.pattern=M*", kHybrid},
    {"model.kv_heads=6", "model.pattern=M-", "model.pattern=M*", kHybrid},
    {"model.head_dim=6", "model.pattern=M-", "model.pattern=M*", kHybrid},
    {"model.attention.rope=true", "model.pattern=M-", "model.pattern=M*", kHybrid},
    {"model.attention.qk_norm=true", "model.pattern=M-", "model.pattern=M*", kHybrid},
    {"model.attention.window=6", "model.pattern=M-", "model.pattern=M*", kHybrid},
    {"model.ffn=6", "model.pattern=M*", "model.pattern=M-", kHybrid},
    {"model.moe.experts=6", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.moe.top_k=1", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.moe.ffn=6", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.moe.router=softmax", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.moe.bias=false", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.moe.groups=2", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.moe.normalise=false", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.moe.scaling=2", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.moe.shared_ffn=2", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.moe.aux_loss=switch", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.activation=swiglu", "model.pattern=M*", "model.pattern=M-", kHybrid},
    {"model.moe.aux_coefficient=1",
     "model.moe.aux_loss=none",
     "model.moe.aux_loss=pooled",
     {"model.family=qwen3_moe"}},
    {"model.moe.bias_rate=1",
     "model.moe.bias=false",
     "model.moe.bias=true",
     {"model.family=qwen3_moe"}},
    {"model.moe.gate=balanced", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"parallel.experts_over_tensor=true",
     "parallel.tensor=1",
     "parallel.tensor=2",
     {"model.family=qwen3_moe"}},
    {"model.moe.receive_capacity=2",
     "parallel.expert=1",
     "parallel.expert=2",
     {"model.family=qwen3_moe"}},
    {"run.loads_every=5", "model.pattern=M*", "model.pattern=ME", kHybrid},
    {"model.mamba.heads=2", "model.pattern=E*", "model.pattern=ME", kHybrid},
    {"model.mamba.head_dim=2", "model.pattern=E*", "model.pattern=ME", kHybrid},
    {"model.mamba.groups=2", "model.pattern=E*", "model.pattern=ME", kHybrid},
    {"model.mamba.state=2", "model.pattern=E*", "model.pattern=ME", kHybrid},
    {"model.mamba.chunk=2", "model.pattern=E*", "model.pattern=ME", kHybrid},
    {"model.mamba.dt_min=0.5", "model.pattern=E*", "model.pattern=ME", kHybrid},
    {"model.mamba.dt_max=0.5", "model.pattern=E*", "model.pattern=ME", kHybrid},
    {"model.mtp.loss_scale=2",
     "model.mtp.depth=0",
     "model.mtp.depth=1",
     {"model.family=qwen3_moe"}},
    {"model.mtp.pattern=-", "model.mtp.depth=0", "model.mtp.depth=1", {"model.family=qwen3_moe"}},
    {"precision.loss_scale.init_scale=2", "precision.compute=bf16", "precision.compute=fp16"},
    {"precision.loss_scale.growth_factor=4", "precision.compute=bf16", "precision.compute=fp16"},
    {"precision.loss_scale.backoff_factor=0.25", "precision.compute=fp32",
     "precision.compute=fp16"},
    {"precision.loss_scale.growth_interval=5", "precision.compute=bf16", "precision.compute=fp16"},
    {"data.path=a.txt", "data.kind=synthetic", "data.kind=text"},
    {"data.val_path=a.txt", "data.kind=synthetic", "data.kind=text", {"data.path=null"}},
    {R"(data.sources=[{"path": "a"}])", "data.kind=synthetic", "data.kind=text"},
    {"eval.every=5", "eval.tasks=null", R"(eval.tasks=["ppl:a"])"},
    {"eval.limit=5", "eval.tasks=null", R"(eval.tasks=["ppl:a"])"},
    {"data.kind=tokens",
     R"(data.sources=[{"path": "a", "kind": "text"}, {"path": "b", "kind": "tokens"}])",
     R"(data.sources=[{"path": "a"}, {"path": "b", "kind": "text"}])",
     {"model.vocab=300"}},
    {"train.seed=7", "model.init_from=there", "model.init_from=null"},
    {"optimizer.schedule.decay_steps=5", "optimizer.schedule.kind=constant",
     "optimizer.schedule.kind=cosine"},
    {"optimizer.schedule.min_lr=1e-5", "optimizer.schedule.kind=constant",
     "optimizer.schedule.kind=wsd"},
    {"precision.norms=compute", "precision.compute=fp32", "precision.compute=bf16"},
    {"precision.grad_wire=bf16", "parallel.shard=1", "parallel.shard=4"},
    {"sharding.downcast=per_gather", "precision.compute=fp32", "precision.compute=bf16"},
    {"sharding.reshard=never", "parallel.shard=1", "parallel.shard=4"},
    {"sharding.reshard=never",
     "sharding.downcast=after_update",
     "sharding.downcast=per_gather",
     {"parallel.shard=1", "precision.compute=bf16"}},
    {"sharding.grad_sync=last", "parallel.shard=1", "parallel.shard=4"},
    {"memory.allocator=fixed", "parallel.shard=1", "parallel.shard=4"},
    {"memory.prefetch=0", "parallel.shard=1", "parallel.shard=4"},
    {"memory.prefetch=3", "parallel.shard=1", "parallel.shard=4"},
    {"memory.slots=4", "memory.allocator=packed", "memory.allocator=fixed"},
    {"memory.slots=4",
     "sharding.reshard=never",
     "sharding.reshard=after_forward",
     {"memory.allocator=fixed"}},
    {"memory.slots=4",
     "sharding.reshard=after_backward",
     "sharding.reshard=after_forward",
     {"memory.allocator=max_pool"}},
    {"memory.reduce_depth=2", "parallel.shard=1", "parallel.shard=4"},
    {"execution.graph=microbatch", "execution.checked=true", "execution.checked=false"},
    {"execution.graph=off", "execution.checked=true", "execution.checked=false"},
    {"execution.deterministic=false", "execution.backend=cpu", "execution.backend=auto"},
    {"execution.tune=false", "execution.backend=cpu", "execution.backend=auto"},
    {"execution.tuning_file=t.json", "execution.backend=cpu", "execution.backend=auto"},
    {"execution.tuning_file=t.json", "execution.tune=false", "execution.tune=true"},
    {"execution.tune_again=true", "execution.backend=cpu", "execution.backend=auto"},
    {"execution.tune_again=true", "execution.tune=false", "execution.tune=true"},
    {"execution.programmatic_launch=begin", "execution.backend=cpu", "execution.backend=auto"},
    {"execution.programmatic_launch=begin", "execution.graph=off", "execution.graph=microbatch"},
    {"execution.programmatic_launch=begin", "execution.checked=true", "execution.checked=false"},
    {"data.end_of_document=7",
     "data.document_mask=false",
     "data.document_mask=true",
     {"data.kind=synthetic"}},
    {"train.policy.clip_low=0.1", "train.loss=cross_entropy", "train.loss=policy_gradient"},
    {"train.policy.clip_high=0.1", "train.loss=cross_entropy", "train.loss=policy_gradient"},
    {"train.policy.kl=0.1", "train.loss=cross_entropy", "train.loss=policy_gradient"},
    {"checkpoint.keep_best=2", "train.eval_every=0", "train.eval_every=1000"},
    {"checkpoint.keep_every=10", "checkpoint.every=0", "checkpoint.every=5"},
    {"guard.spike_window=5", "guard.loss_spike=null", "guard.loss_spike=skip"},
    {"guard.spike_factor=5", "guard.loss_spike=null", "guard.loss_spike=skip"},
    {"guard.max_roll_backs=5", "guard.non_finite=stop", "guard.non_finite=roll_back"},
    {"guard.max_roll_backs=5", "guard.loss_spike=skip", "guard.loss_spike=roll_back"},
    {"guard.replicas_every=5", "parallel.replicate=1", "parallel.replicate=2"},
    {"guard.order_every=5", "parallel.shard=1", "parallel.shard=4"},
};

// {"a": {"b": VALUE}} of "a.b=VALUE", for each.
std::string File(const std::vector<std::string>& sets) {
  json file = json::object();
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    const std::string text = set.substr(equals + 1);
    json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
    std::string pointer = "/" + set.substr(0, equals);
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    file[json::json_pointer(pointer)] = value.is_discarded() ? json(text) : value;
  }
  return file.dump();
}

std::vector<std::string> With(std::vector<std::string> list, const std::string& last) {
  list.push_back(last);
  return list;
}

// What is not said by a case: data that needs no path.
std::vector<std::string> Base(const Case& c) {
  if (c.idle_by.starts_with("data.")) return c.besides;
  return With(c.besides, "data.kind=synthetic");
}

bool Names(const std::string& line, const Case& c, const std::string& place) {
  return line.starts_with(c.path()) && line.find(c.cause()) != line.npos &&
         line.find("(" + place) != line.npos &&
         line.find("so " + c.path() + " has no effect") != line.npos;
}

struct Given {
  std::vector<std::string> texts, sets;
};

void RequireError(const Case& c, const Given& given) {
  const std::vector<std::string> problems = Problems(given.texts, given.sets);
  for (const std::string& problem : problems) UNSCOPED_INFO(problem);
  REQUIRE(problems.size() == 1);
  REQUIRE(Names(problems[0], c, ""));
}

void RequireNote(const Case& c, const Given& given, const std::string& place) {
  const std::vector<std::string> notes = Load(given.texts, given.sets).notes;
  for (const std::string& note : notes) UNSCOPED_INFO(note);
  REQUIRE(notes.size() == 1);
  REQUIRE(Names(notes[0], c, "file0.json:1:"));  // the key's own place
  REQUIRE(Names(notes[0], c, place));
}

TEST_CASE("one author may not make an own key idle", "[config][idle]") {
  for (const Case& c : kCases) {
    CAPTURE(c.key, c.idle_by);
    RequireError(c, {{File(With(With(Base(c), c.key), c.idle_by))}, {}});
    RequireError(c, {{File(Base(c))}, {c.key, c.idle_by}});  // --set are one author, in any order
    RequireError(c, {{File(Base(c))}, {c.idle_by, c.key}});
  }
}

TEST_CASE("a key that comes after what makes it idle is an error", "[config][idle]") {
  for (const Case& c : kCases) {
    CAPTURE(c.key, c.idle_by);
    const std::string idle = File(With(Base(c), c.idle_by));
    RequireError(c, {{idle}, {c.key}});
    RequireError(c, {{idle, File({c.key})}, {}});
  }
}

TEST_CASE("a later author who makes a key idle is named in a note", "[config][idle]") {
  for (const Case& c : kCases) {
    CAPTURE(c.key, c.idle_by);
    const bool with_path = c.acts_by == "data.kind=text" && c.path() == "data.val_path";
    Case full = c;
    if (with_path) full.besides = {};  // text needs data.path, which would be idle as well
    const std::string acts = File(With(With(Base(full), c.acts_by), c.key));
    if (!with_path) REQUIRE(Problems({acts}).empty());
    RequireNote(c, {{acts}, {c.idle_by}}, "--set " + c.idle_by);
    RequireNote(c, {{acts, File({c.idle_by})}, {}}, "file1.json:1:");
    if (!with_path) REQUIRE(Load({acts}).notes.empty());
  }
}

TEST_CASE("a default is nobody's wish", "[config][idle]") {
  for (const Case& c : kCases) {
    const Key* key = FindKey(c.path());
    if (!key) continue;  // model.rope_scaling
    const json value = json::parse(ConfigToJson(Config())).at(json::json_pointer("/" + [&] {
      std::string path = c.path();
      std::replace(path.begin(), path.end(), '.', '/');
      return path;
    }()));
    CAPTURE(c.key, c.idle_by);
    const std::string text = File(With(With(Base(c), c.path() + "=" + value.dump()), c.idle_by));
    if (c.path() == "data.path") continue;  // needed, or null
    REQUIRE(Problems({text}).empty());
    REQUIRE(Load({text}).notes.empty());
  }
}

TEST_CASE("what defaults leave idle is an error of who wrote it", "[config][idle]") {
  for (const std::string set :
       {"optimizer.schedule.min_lr=1e-5", "sharding.downcast=per_gather", "memory.slots=3",
        "guard.spike_window=5", "guard.max_roll_backs=1", "guard.replicas_every=2"})
    for (const Given& given : {Given{{kSynthetic, File({set})}, {}}, Given{{kSynthetic}, {set}}}) {
      CAPTURE(set);
      const std::vector<std::string> problems = Problems(given.texts, given.sets);
      REQUIRE(problems.size() == 1);
      REQUIRE(problems[0].find("(default)") != std::string::npos);
    }
}

TEST_CASE("an error is not hidden by a later author's part in it", "[config][idle]") {
  // Idle by its own author already, and by a second reason from the command line.
  const std::string own = File({"data.kind=synthetic", "memory.allocator=fixed",
                                "sharding.reshard=never", "memory.slots=3"});
  REQUIRE(Problems({own}, {"memory.allocator=packed"}).size() == 1);
  REQUIRE(Problems({own}, {"memory.allocator=packed"})[0].find("sharding.reshard") !=
          std::string::npos);
}

struct Portable {
  std::string key;
  ConfigContext idle, acts;
};

TEST_CASE("ranks and machines make a key idle with a note", "[config][idle]") {
  const ConfigContext one{.world = 1}, two{.world = 2};
  const ConfigContext cpu{.auto_is_cpu = true}, gpu{.has_cuda = true};
  for (const Portable& p : {Portable{"sharding.reshard=never", one, two},
                            {"sharding.grad_sync=last", one, two},
                            {"memory.allocator=fixed", one, two},
                            {"memory.prefetch=2", one, two},
                            {"memory.reduce_depth=2", one, two},
                            {"precision.grad_wire=bf16", one, two},
                            {"guard.order_every=2", one, two},
                            {"execution.deterministic=false", cpu, gpu},
                            {"execution.tune=false", cpu, gpu},
                            {"execution.tuning_file=t.json", cpu, gpu},
                            {"execution.tune_again=true", cpu, gpu},
                            {"execution.programmatic_launch=begin", cpu, gpu}}) {
    CAPTURE(p.key);
    for (const Given& given :
         {Given{{File({"data.kind=synthetic", p.key})}, {}}, Given{{kSynthetic}, {p.key}}}) {
      const std::vector<std::string> notes = Load(given.texts, given.sets, p.idle).notes;
      REQUIRE(notes.size() == 1);
      REQUIRE(notes[0].starts_with(p.key.substr(0, p.key.find('=')) + " = "));
      REQUIRE(Load(given.texts, given.sets, p.acts).notes.empty());
      REQUIRE(Load(given.texts, given.sets, {}).notes.empty());  // not known: nothing is said
    }
  }
  // Replicas of one rank each are such a world, too.
  const std::vector<std::string> replicas = {"parallel.replicate=2", "memory.reduce_depth=2"};
  REQUIRE(Load({kSynthetic}, replicas, two).notes.size() == 1);
  REQUIRE(Load({kSynthetic}, replicas, {.world = 4}).notes.empty());
  // But they send gradients to each other.
  REQUIRE(
      Load({kSynthetic}, {"parallel.replicate=2", "precision.grad_wire=bf16"}, two).notes.empty());
  // What the file asks of a backend or a mesh by name is its own mistake.
  REQUIRE(Problems({kSynthetic}, {"execution.backend=cpu", "execution.tune=false"}, cpu).size() ==
          1);
  REQUIRE(Problems({kSynthetic}, {"parallel.shard=1", "memory.prefetch=2"}, one).size() == 1);
}

TEST_CASE("every shipped configuration serves one rank and many, CPU and GPU", "[config][idle]") {
  // document_test.cc loads them on two ranks with CUDA.
  for (const char* file : {"configs/quickstart.json", "configs/gpt2_124m.json",
                           "configs/gpt2_30m.json", "configs/llama_160m.json"})
    for (const int64_t world : {1, 8})
      for (const bool is_cpu : {false, true}) {
        CAPTURE(file, world, is_cpu);
        const std::vector<std::string> files = {file};
        REQUIRE_NOTHROW(
            LoadConfig(files, {}, {.world = world, .has_cuda = !is_cpu, .auto_is_cpu = is_cpu}));
      }
}

}  // namespace
}  // namespace millrace

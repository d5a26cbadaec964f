#include "runtime/config/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "runtime/config/enum_names.h"

namespace millrace {
namespace {

template <typename T>
struct Unwrapped {
  using type = T;
  static constexpr bool kNullable = false;
};
template <typename T>
struct Unwrapped<std::optional<T>> {
  using type = T;
  static constexpr bool kNullable = true;
};

template <typename T>
constexpr KeyType TypeOf() {
  if constexpr (std::is_same_v<T, bool>) return KeyType::kBool;
  if constexpr (std::is_same_v<T, int64_t>) return KeyType::kInteger;
  if constexpr (std::is_same_v<T, double>) return KeyType::kNumber;
  if constexpr (std::is_same_v<T, std::string>) return KeyType::kString;
  if constexpr (std::is_same_v<T, std::array<double, 2>>) return KeyType::kNumberPair;
  if constexpr (std::is_same_v<T, IntegerOrList>) return KeyType::kIntegerOrList;
  if constexpr (std::is_enum_v<T>) return KeyType::kChoice;
}

template <typename T>
KeyValue ToValue(const T& field) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(Name(field));
  } else if constexpr (std::is_same_v<T, IntegerOrList>) {
    return std::visit([](const auto& held) { return KeyValue(held); }, field);
  } else {
    return field;
  }
}
template <typename T>
KeyValue ToValue(const std::optional<T>& field) {
  return field ? ToValue(*field) : KeyValue();
}

template <typename T>
void Store(T& field, const KeyValue& value) {
  using Plain = typename Unwrapped<T>::type;
  if (Unwrapped<T>::kNullable && std::holds_alternative<std::monostate>(value)) {
    field = T{};
  } else if constexpr (std::is_enum_v<Plain>) {
    const auto names = NamesOf(Plain{});
    const auto it = std::find(names.begin(), names.end(), std::get<std::string>(value));
    field = static_cast<Plain>(it - names.begin());
  } else if constexpr (std::is_same_v<Plain, IntegerOrList>) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(&value))
      field = *list;
    else
      field = std::get<int64_t>(value);
  } else {
    field = std::get<Plain>(value);
  }
}

// A row of the table; `access` returns the field of a Config, const or not.
template <typename Access>
Key MakeKey(std::string path, Access access, KeyRange range, std::string doc) {
  using Field = std::remove_cvref_t<decltype(access(std::declval<Config&>()))>;
  using Plain = typename Unwrapped<Field>::type;
  Key key;
  key.path = std::move(path);
  key.type = TypeOf<Plain>();
  key.nullable = Unwrapped<Field>::kNullable;
  if constexpr (std::is_enum_v<Plain>) {
    const auto names = NamesOf(Plain{});
    key.choices.assign(names.begin(), names.end());
  }
  key.range = range;
  key.doc = std::move(doc);
  key.get = [access](const Config& config) { return ToValue(access(config)); };
  key.set = [access](Config& config, const KeyValue& value) { Store(access(config), value); };
  return key;
}

Key Required(Key key) {
  key.required = true;
  return key;
}

Key Only(std::string_view choice, Key key) {
  key.choices = {choice};
  return key;
}
Key Only(int64_t value, std::string_view later, Key key) {
  key.range = {.min = static_cast<double>(value), .max = static_cast<double>(value)};
  key.later = later;
  return key;
}

// The object behind a nullable section: made when a key in it is set, its
// defaults when one is read.
RopeScalingConfig& Made(std::optional<RopeScalingConfig>& section) {
  return section ? *section : section.emplace();
}
const RopeScalingConfig& Made(const std::optional<RopeScalingConfig>& section) {
  static const RopeScalingConfig kDefaults;
  return section ? *section : kDefaults;
}

KeyRange From(double min, double max) { return {.min = min, .max = max}; }
KeyRange Above(double min) { return {.min = min, .min_exclusive = true}; }
KeyRange AtLeast(double min) { return {.min = min}; }

constexpr double kMillion = 1e6;
// Above 0 for kernels too: a float32 would make smaller values 0, and larger ones infinite.
constexpr KeyRange kFloat32 = {.min = 1e-30, .max = 1e30};
constexpr double kMaxSeed = 9007199254740991;  // 2^53 - 1: every JSON reader keeps it exact

// The path is the field's own name, so the two cannot differ.
#define KEY(field, ...) \
  MakeKey(              \
      #field, [](auto& c) -> auto& { return c.field; }, __VA_ARGS__)
#define ROPE_KEY(field, ...)        \
  Required(MakeKey(                 \
      "model.rope_scaling." #field, \
      [](auto& c) -> auto& { return Made(c.model.rope_scaling).field; }, __VA_ARGS__))

std::vector<Key> MakeKeys() {
  const KeyRange any;
  return {
      KEY(model.family, any,
          "Architecture: GPT-2 (learned positions, LayerNorm) or Llama (RoPE, RMSNorm)."),
      KEY(model.layers, From(1, 10000), "Transformer blocks."),
      KEY(model.d_model, From(1, kMillion),
          "Width of the residual stream; a multiple of `model.heads`."),
      KEY(model.heads, From(1, 10000), "Query heads."),
      KEY(model.kv_heads, From(1, 10000),
          "Key and value heads; divides `model.heads`. null: equal to it. gpt2 has no other "
          "choice."),
      KEY(model.head_dim, From(1, 65536),
          "Width of a head; even for llama. null: `d_model / heads`."),
      KEY(model.ffn, From(1, 10 * kMillion),
          "Hidden width of the feed-forward layer. null: `4 d_model` for gpt2; `8/3 d_model`, up "
          "to a multiple of 256, for llama."),
      KEY(model.vocab, From(1, 10 * kMillion),
          "Vocabulary. At least 256 for bytes; needed for `data.kind: tokens`. null: 256."),
      KEY(model.seq_len, From(1, 4194304), "Tokens per sequence, and positions of gpt2."),
      KEY(model.tied, any,
          "Output layer shares the embedding's weights. null: true for gpt2, false for llama."),
      KEY(model.activation, any,
          "gpt2: `gelu` (the tanh approximation, `gelu_new`); llama: `swiglu`. null: the "
          "family's."),
      KEY(model.norm_eps, kFloat32, "Added to the variance in LayerNorm and RMSNorm."),
      KEY(model.rope_theta, kFloat32, "Base of the rotary frequencies; llama only. null: 10000."),
      KEY(model.init_std, From(0, 10), "Standard deviation of the initial weights."),
      KEY(model.init_from, any,
          "Hugging Face folder (config.json, safetensors) to start from; model keys given here "
          "must agree with it. null: random."),
      ROPE_KEY(rope_type, any, "Kind of rotary frequency scaling; llama only."),
      ROPE_KEY(factor, AtLeast(1), "Divides the lowest frequencies."),
      ROPE_KEY(low_freq_factor, Above(0),
               "Wavelengths above original positions / this are scaled in full."),
      ROPE_KEY(high_freq_factor, Above(0), "Wavelengths below original positions / this are kept."),
      ROPE_KEY(original_max_position_embeddings, From(1, 1000 * kMillion),
               "Positions that the unscaled model was trained on."),

      KEY(data.kind, any,
          "`text`: files of text; `tokens`: llm.c or nanoGPT token files; `synthetic`: no files."),
      KEY(data.path, any, "File or folder to train on. Needed unless `data.kind` is synthetic."),
      KEY(data.val_path, any,
          "File or folder to evaluate on. null: the files of `data.path` with val in their names "
          "(token files), else its last tenth, which is then not trained on."),
      KEY(data.tokenizer, any, "`bytes`: one token per byte. Others are not read yet."),
      KEY(data.shuffle_seed, From(0, kMaxSeed),
          "Decides the order of the samples, the same at any world size."),
      KEY(data.eval_batches, From(1, kMillion), "Batches per evaluation."),

      KEY(train.steps, From(1, 1000 * kMillion), "Optimizer steps of the whole run."),
      KEY(train.micro_batch, From(1, kMillion),
          "Sequences per data rank and microbatch (`parallel.tensor`, `parallel.context`)."),
      KEY(train.accumulate, From(1, kMillion),
          "Microbatches per step. null: 1, or what `train.global_batch` asks for."),
      KEY(train.global_batch, From(1, 1000 * kMillion),
          "Sequences per step over all data ranks: `micro_batch * accumulate * world / (context * "
          "tensor)`. Sets `train.accumulate`, or checks it. null: no say."),
      KEY(train.seed, From(0, kMaxSeed),
          "Decides the initial weights, the same at any world size."),
      KEY(train.eval_every, From(0, 1000 * kMillion),
          "Steps between evaluations; the last step is followed by one, too. 0: none."),

      KEY(optimizer.name, any, "Optimizer."),
      KEY(optimizer.lr, From(0, 1000), "Learning rate after warm-up."),
      KEY(optimizer.betas, {.min = 0, .max = 1, .max_exclusive = true},
          "Decay of AdamW's first and second moment."),
      KEY(optimizer.eps, kFloat32, "Added to the root of the second moment."),
      KEY(optimizer.weight_decay, From(0, 1000), "Decoupled weight decay of matrices."),
      KEY(optimizer.clip, AtLeast(0), "Largest global gradient norm. 0: no clipping."),
      KEY(optimizer.schedule.kind, any,
          "After a linear warm-up: `constant`; `cosine` decay; `wsd`: constant, then a linear "
          "decay at the end."),
      KEY(optimizer.schedule.warmup, From(0, 1000 * kMillion), "Steps of linear warm-up."),
      KEY(optimizer.schedule.decay_steps, From(1, 1000 * kMillion),
          "Steps of decay: after the warm-up for cosine, the last ones of the run for wsd. null: "
          "all that follow the warm-up; a fifth of `train.steps`."),
      KEY(optimizer.schedule.min_lr, From(0, 1000), "Learning rate at the end of the decay."),

      KEY(parallel.shard, From(1, kMillion),
          "Ranks that share one copy of the model, each with sequences of its own. null: world / "
          "(replicate * context * tensor)."),
      KEY(parallel.replicate, From(1, kMillion),
          "Copies of the model. replicate * shard * context * tensor is the world."),
      KEY(parallel.context, From(1, kMillion),
          "Ranks that share each sequence: of `2 * context` equal chunks of it each has one of the "
          "first and one of the last, so that causal work is even. A *data rank* is one such "
          "group. "
          "`model.seq_len` is a multiple of `2 * context`."),
      KEY(parallel.tensor, From(1, kMillion),
          "Neighbouring ranks that split the matrices of a block and the rows between blocks: one "
          "*data rank*, which reads `train.micro_batch` sequences. It divides `model.heads`, "
          "`model.kv_heads` (or is a multiple of them), `model.ffn`, `model.seq_len` and the rows "
          "`micro_batch * seq_len`."),
      KEY(parallel.tensor_strips, From(1, 64),
          "Strips of rows that ranks along tensor exchange one by one: the product of one runs "
          "beside the exchange of the next. 1: an exchange is complete before its product begins. "
          "Strips decide which rows a rank has, and so the order of some sums."),
      Only(1, "pipelines come later",
           KEY(parallel.pipe, any, "Stages that the model's blocks are cut into.")),

      KEY(precision.compute, any, "Weights and activations in forward and backward."),
      Only("fp32", KEY(precision.master, any, "The weights that the optimizer updates.")),
      KEY(precision.norms, any, "Weights of norms: kept in fp32, or as `precision.compute`."),
      KEY(precision.grad_accumulate, any, "Gradients summed over microbatches."),
      KEY(precision.grad_wire, any, "Gradients while they are reduced across ranks."),

      KEY(sharding.reshard, any,
          "When a unit's gathered weights are given up. `auto`: the fewest gathers within "
          "`memory.budget_gib`."),
      KEY(sharding.downcast, any,
          "Where fp32 shards become compute weights: after each gather, before it, in the gather's "
          "own kernel (`in_gather`: CPU ranks, or GPUs with `peer_memory`), or once after the "
          "update. The bits are the same."),
      KEY(sharding.grad_sync, any,
          "Reduce gradients in every microbatch, or in the last one only."),
      KEY(sharding.grad_concat, any,
          "Copy gradients into the reduction's bucket in every microbatch, in the last, or never: "
          "`direct` lets the weight-gradient kernels write there."),
      KEY(sharding.blocks_per_unit, From(1, 10000),
          "Transformer blocks gathered together: one number for all units, of which the last takes "
          "what is left, or a list with a number for each unit, whose sum is `model.layers`."),

      KEY(memory.allocator, any, "How gathered weights and gradients get their addresses."),
      KEY(memory.prefetch, From(0, 64), "Units gathered ahead of their use."),
      KEY(memory.slots, From(1, 128),
          "Buckets of the allocators coloured, max_pool and fixed; at least prefetch + 1. The "
          "others have none, nor do blocks that stay gathered (sharding.reshard never, "
          "after_backward): each has its own place. null: prefetch + 1."),
      KEY(memory.reduce_depth, From(1, 64), "Reductions in flight before backward waits."),
      KEY(memory.recompute, any,
          "What backward computes again: nothing, norms and activations, or whole blocks. `auto`: "
          "the cheapest of these in as many blocks as `memory.budget_gib` asks for, or the "
          "device's memory if no budget is given. The bits are the same."),
      KEY(memory.budget_gib, From(1e-6, 1e9),
          "Largest arena per rank, in GiB: `recompute: auto` stays within it, `reshard: auto` "
          "fills it, a plan above it is refused. null: no limit."),

      KEY(execution.backend, any,
          "`auto`: cuda where it is built in and a GPU is present, else cpu."),
      KEY(execution.graph, any,
          "Record and replay the whole step, each forward, backward and update by itself "
          "(`microbatch`), or nothing. `microbatch` joins all streams at each graph's end: what "
          "one of them gathers or reduces never runs beside the next. The bits are the same."),
      KEY(execution.checked, any,
          "Poison freed memory and stop (73) at the first op that makes a value that is not "
          "finite. Checked walks op by op, on every backend; `execution.graph` is not used. "
          "Slower, "
          "same bits."),
      KEY(execution.deterministic, any,
          "Forbid kernels whose bits depend on timing. The CPU has none."),
      KEY(execution.overlap_weight_gradients, any,
          "Compute gradients of weights beside those of activations, on the reduce stream. null: "
          "on GPUs, where tokens of a microbatch times `model.d_model` are at most 2^23: such "
          "products leave room for others."),
      KEY(execution.tune, any,
          "Measure the GPU library's algorithms for the plan's products and take the fastest, "
          "once, when a run begins: what was measured is kept in `execution.tuning_file` and in "
          "each checkpoint, and a run that goes on takes the checkpoint's. Products of matrices "
          "alone are tuned; collectives and attention are not. false: the library's first "
          "suggestions."),
      KEY(execution.tuning_file, any,
          "Algorithms to use, and where newly measured ones go; runs that share it have the same "
          "bits. null: `tuning.json` in `run.dir`."),
      KEY(execution.tune_again, any,
          "Measure everything again, also where a run goes on: it gets other bits. The old file "
          "stays as `<file>.old`. For one call."),
      KEY(execution.programmatic_launch, any,
          "Set a kernel of a graph up before the one ahead of it is complete: as soon as that "
          "one's blocks end, or begin. The bits are the same."),
      KEY(execution.peer_memory, any,
          "All-gather and reduce-scatter by kernels of our own that load and store other GPUs' "
          "memory over NVLink, in place of NCCL's, and sum in rank order. `on`: stop where that "
          "cannot be: it takes GPUs of one host, at most 8 to a copy of the parameters. `auto`: "
          "where it can be; the start of a run says which."),
      KEY(execution.watchdog_s, From(0, 86400),
          "Seconds without any progress after which the job ends with exit code 71, naming the "
          "rank that holds it up. 0: never."),

      KEY(checkpoint.every, From(0, 1000 * kMillion),
          "Steps between checkpoints. 0: only at the end."),
      KEY(checkpoint.at_end, any,
          "A checkpoint of the last step. false: none, as for a benchmark; a run that is asked to "
          "stop is saved all the same."),
      KEY(checkpoint.keep, From(1, 10000), "Newest checkpoints kept."),
      KEY(checkpoint.keep_every, From(1, 1000 * kMillion),
          "Checkpoints of steps that are multiples of this stay for good. null: none does."),
      KEY(checkpoint.keep_best, From(0, 10000),
          "Checkpoints with the lowest held-out loss that stay as well; `checkpoint.every` must be "
          "a multiple of `train.eval_every`."),
      KEY(checkpoint.asynchronous, any,
          "Training waits for a copy of the state in host memory only (12 bytes per parameter, "
          "divided by `parallel.shard`), which is written while steps go on. false: training waits "
          "until it is on disk."),
      KEY(checkpoint.on_error, any,
          "When the disk refuses a checkpoint: `continue` training and say so, or `stop` with exit "
          "code 74, as the last one of a run always does. Earlier ones stay as they are."),
      KEY(checkpoint.resume, any,
          "`auto`: go on from the newest good checkpoint if there is one; `must`: stop if there is "
          "none; `never`: start anew."),

      KEY(guard.non_finite, any,
          "A step whose loss or gradients are not finite: `skip` its update on all ranks; "
          "`roll_back` to the newest sound checkpoint and leave out the data of the steps from "
          "there through this one; `stop` with exit code 73, saving nothing."),
      KEY(guard.loss_spike, any,
          "The same for a step whose loss is a spike: above median + spike_factor * max(1.4826 * "
          "median absolute deviation, 0.001 * median) of the last spike_window finite losses, that "
          "of the step just before it left out. There is none before there are so many. null: not "
          "watched."),
      KEY(guard.spike_window, From(1, 100000), "Losses that a loss is compared with."),
      KEY(guard.spike_factor, Above(0),
          "Robust standard deviations above their median that make a spike."),
      KEY(guard.max_roll_backs, From(0, kMillion),
          "Roll-backs of a run; where another would follow, it stops with exit code 73."),
      KEY(guard.replicas_every, From(0, 1000 * kMillion),
          "Steps between comparisons of the replicas' weights and moments, by hash; a difference "
          "stops with exit code 73. 0: never."),
      KEY(guard.rerun_every, From(0, 1000 * kMillion),
          "Steps between those that are run twice from the same state and compared bit for bit; a "
          "difference stops with exit code 73. Each rank needs host memory for its shards of "
          "weights and moments. 0: never."),
      KEY(guard.order_every, From(0, 1000 * kMillion),
          "Steps between comparisons of which collectives the ranks have issued, in what order, "
          "also made before each checkpoint; a difference stops with exit code 73. 0: never."),

      KEY(run.dir, any, "Folder of metrics, summary, checkpoints and logs."),
      KEY(run.tensorboard, any,
          "Also write the figures of each step as TensorBoard events, into the folder "
          "`tensorboard` of `run.dir`."),
      KEY(run.log_level, any,
          "Least important messages that standard error shows. The logs of `train`, "
          "`run.dir/logs/rank_N.log`, have those from `debug` on in any case."),
  };
}

}  // namespace

std::string_view Key::section() const {
  const std::string_view all = path;
  const size_t dot = all.rfind('.');
  return dot == all.npos ? std::string_view() : all.substr(0, dot);
}

std::string_view Key::leaf() const {
  const std::string_view all = path;
  return all.substr(all.rfind('.') + 1);  // npos + 1 is 0
}

const std::vector<Key>& Keys() {
  static const std::vector<Key> kKeys = MakeKeys();
  return kKeys;
}

const Key* FindKey(std::string_view path) {
  for (const Key& key : Keys())
    if (key.path == path) return &key;
  return nullptr;
}

bool IsSection(std::string_view path) {
  if (path.empty()) return true;
  return std::any_of(Keys().begin(), Keys().end(), [&](const Key& key) {
    return key.path.size() > path.size() && key.path.starts_with(path) &&
           key.path[path.size()] == '.';
  });
}

bool IsNullableSection(std::string_view path) {
  return std::any_of(Keys().begin(), Keys().end(),
                     [&](const Key& key) { return key.required && key.section() == path; });
}

namespace {

std::string RangeText(const Key& key) {
  const KeyRange& range = key.range;
  const auto number = [&](double value) {
    return key.type == KeyType::kInteger || key.type == KeyType::kIntegerOrList
               ? fmt::format("{}", static_cast<int64_t>(value))
               : fmt::format("{}", value);
  };
  const bool has_min = range.min > -std::numeric_limits<double>::infinity();
  const bool has_max = range.max < std::numeric_limits<double>::infinity();
  std::string text;
  if (has_min && has_max && !range.min_exclusive && !range.max_exclusive)
    return fmt::format(" from {} to {}", number(range.min), number(range.max));
  if (has_min)
    text += fmt::format(" {} {}", range.min_exclusive ? "above" : "of at least", number(range.min));
  if (has_min && has_max) text += " and";
  if (has_max)
    text += fmt::format(" {} {}", range.max_exclusive ? "below" : "of at most", number(range.max));
  return text;
}

}  // namespace

std::string Allowed(const Key& key) {
  std::string text;
  switch (key.type) {
    case KeyType::kBool:
      text = "true or false";
      break;
    case KeyType::kInteger:
      text = key.range.min == key.range.max ? fmt::format("{}", static_cast<int64_t>(key.range.min))
                                            : "an integer" + RangeText(key);
      break;
    case KeyType::kNumber:
      text = "a number" + RangeText(key);
      break;
    case KeyType::kString:
      text = "a string that is not empty";
      break;
    case KeyType::kChoice:
      text = (key.choices.size() == 1 ? "" : "one of ") +
             fmt::format("{}", fmt::join(key.choices, ", "));
      break;
    case KeyType::kNumberPair:
      text = "a list of 2 numbers, each" + RangeText(key);
      break;
    case KeyType::kIntegerOrList:
      text = "an integer" + RangeText(key) + ", or a list of such";
      break;
  }
  return key.nullable ? text + ", or null" : text;
}

}  // namespace millrace

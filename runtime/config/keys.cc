#include "runtime/config/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/config/key_rows.h"

namespace millrace {
namespace {

// All but `model`.
std::vector<Key> OtherKeys() {
  const KeyRange any;
  return {
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
  static const std::vector<Key> kKeys = [] {
    std::vector<Key> keys = ModelKeys();
    for (Key& key : OtherKeys()) keys.push_back(std::move(key));
    return keys;
  }();
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

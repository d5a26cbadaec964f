#include "runtime/config/keys.h"

#include "runtime/config/key_rows.h"

namespace millrace {

// A function for each section but `model`.
namespace {

std::vector<Key> DataKeys() {
  return {
      KEY(data.kind, any,
          "`text`: files of text; `tokens`: token files of llm.c, nanoGPT or Megatron; "
          "`synthetic`: no files."),
      KEY(data.path, any,
          "File or folder to train on. It or `data.sources` is needed unless `data.kind` is "
          "synthetic."),
      KEY(data.sources, any,
          "Instead of `data.path`: several, each `{\"path\": ..., \"weight\": 1, \"kind\": null, "
          "\"val_path\": null}`. Each sample is from the source furthest behind its share of the "
          "weights (Megatron's rule), the same at any world size; kind null is `data.kind`, "
          "val_path as `data.val_path`. A run goes on with the sources that it began with."),
      KEY(data.val_path, any,
          "File or folder to evaluate on. null: the files of `data.path` with val in their names "
          "(token files), else its last tenth, which is then not trained on; of several sources "
          "that of each, and the loss is their mean by weight."),
      KEY(data.tokenizer, any,
          "`bytes`, one token per byte; or the path of a tokenizer.json, byte-level BPE, that "
          "token files were made with (`millrace tokenize`). It is checked against them and "
          "`model.vocab`, and goes with checkpoints and exports. Files that say that another "
          "tokenizer made them are refused."),
      KEY(data.shuffle_seed, From(0, kMaxSeed),
          "Decides the order of the samples, the same at any world size."),
      KEY(data.eval_batches, From(1, kMillion),
          "Batches per evaluation, each of train.micro_batch windows of every data rank: the first "
          "ones of the held-out part, as far as it has whole batches. Losses of other products of "
          "the three are of other windows."),
      KEY(data.document_mask, any,
          "A row of `model.seq_len` tokens is the documents that lie in it: attention and "
          "positions stop where one ends, and states of mixers begin anew; the first token of a "
          "document is no target. Packed documents have the losses that they have in rows of their "
          "own. null: true on CPUs where documents are known (`data.end_of_document` is given, or "
          "all files have an .idx of Megatron's) and may be masked, else false; the start says "
          "which where they are known. Not with `parallel.context`, `model.mtp` or "
          "`precision.linear: fp8_tensor`. On GPUs masks have to be asked for, as steps take "
          "longer with them, and are not there for mixers; bf16 heads that are no multiple of 8 up "
          "to 128 are slow there. A program that makes the steps itself has to say true."),
      KEY(data.end_of_document, From(0, 10 * kMillion),
          "The id that ends a document and belongs to it, as `data.path` has it: see "
          "`data.document_mask`. null: documents begin where the .idx files of Megatron's datasets "
          "say, which all files need if they are to be masked."),
      KEY(data.loss_mask, any,
          "true: of token files with a mask beside them (NAME.mask, one byte per token; `millrace "
          "tokenize --from messages` makes them) the tokens that it leaves out are no targets, in "
          "training and evaluation. Every file of a path has one, or none; sources without may be "
          "blended. false: masks are not read. null: files that have one are refused."),
  };
}

std::vector<Key> TrainKeys() {
  return {
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
      KEY(train.loss, any,
          "`cross_entropy`, or `policy_gradient`: the clipped one of PPO and GRPO, per token, from "
          "the old log-probability and the advantage of each target. These come with each step "
          "from the program that embeds the runtime; `millrace train` has none and refuses it. "
          "Not with `model.mtp`. The held-out loss is the cross entropy."),
      KEY(train.loss_weights, any,
          "Each target's loss is multiplied by a weight that comes with the step, and the sum "
          "divided by that of the weights over the whole step, all ranks. Given like what a "
          "policy gradient needs; `millrace train` refuses it. Blocks of `model.mtp` weigh a "
          "token as the trunk does; the losses of experts are without weights."),
      KEY(train.policy.clip_low, From(0, 1),
          "A ratio of new to old probability counts down to 1 - clip_low."),
      KEY(train.policy.clip_high, From(0, 1000), "And up to 1 + clip_high."),
      KEY(train.policy.kl, From(0, 1000),
          "Weight of the divergence (k3, per token) from reference log-probabilities, which then "
          "come with each step, too. 0: there are none."),
  };
}

std::vector<Key> OptimizerKeys() {
  return {
      KEY(optimizer.name, any,
          "`adamw`; or `muon`: matrices between hidden states (attention, MLPs, experts, "
          "projections of mixers) by Muon, those that lie fused (queries, keys, values; gate, "
          "up) and experts each on their own; embeddings, head, routers, convolutions, biases "
          "and norms by AdamW, as the other keys of this section say."),
      KEY(optimizer.lr, From(0, 1000), "Learning rate after warm-up."),
      KEY(optimizer.betas, {.min = 0, .max = 1, .max_exclusive = true},
          "Decay of AdamW's first and second moment."),
      KEY(optimizer.eps, kFloat32, "Added to the root of the second moment."),
      KEY(optimizer.weight_decay, From(0, 1000), "Decoupled weight decay of matrices."),
      KEY(optimizer.clip, AtLeast(0), "Largest global gradient norm. 0: no clipping."),
      OneOf({"fp32", "bf16"},
            KEY(optimizer.moments, any,
                "Both moments of AdamW: 8 bytes per parameter, or in bf16 4, rounded "
                "stochastically so that small changes are not lost.")),
      KEY(optimizer.groups, any,
          "Parameters that are updated in another way, each `{\"parameters\": ..., \"name\": ..., "
          "\"lr\": ..., \"lr_mult\": ..., \"weight_decay\": ..., \"betas\": [..., ...], "
          "\"eps\": ..., \"frozen\": false}`; what is left out is as for the rest. `parameters` is "
          "a pattern or a list of such over the names that `millrace inspect` shows "
          "(`h.0.attn.qkv.weight`): `*` is any number of characters, `?` one. A parameter is of "
          "the first group that matches, and each pattern must match one. The schedule moves `lr` "
          "in proportion; `lr_mult` is a factor of the learning rate instead. `weight_decay` "
          "applies to all of the group, biases and norms, too. `name` muon takes matrices between "
          "hidden states alone. `frozen` parameters stay as they are: no gradients are reduced "
          "and no moments kept, and the gradient's norm is without them. The biases of routers "
          "follow their own rule and may be frozen. On resuming, learning rates, decay, betas and "
          "eps may be others, and what was trained may be frozen; what was frozen cannot be "
          "trained, nor adamw become muon, as the checkpoint has no moments of it."),
      KEY(optimizer.muon.lr, From(0, 1000),
          "Muon's learning rate after warm-up; the schedule moves both in proportion. null: "
          "`optimizer.lr`."),
      KEY(optimizer.muon.momentum, {.min = 0, .max = 1, .max_exclusive = true},
          "Decay of the mean of gradients, which is f32 whatever `optimizer.moments` says."),
      KEY(optimizer.muon.nesterov, any, "Look ahead: the mean with the gradient once more in it."),
      KEY(optimizer.muon.ns_steps, From(1, 99),
          "Steps of the Newton-Schulz iteration, in `precision.compute`."),
      KEY(optimizer.muon.ns_linear, From(-1000, 1000),
          "A step makes linear s + cubic s^3 + quintic s^5 of every singular value s."),
      KEY(optimizer.muon.ns_cubic, From(-1000, 1000), "The factor of its cube."),
      KEY(optimizer.muon.ns_quintic, From(-1000, 1000), "The factor of its fifth power."),
      KEY(optimizer.muon.eps, kFloat32, "The smallest norm that a matrix is divided by."),
      KEY(optimizer.muon.adjust_lr, any,
          "What the learning rate is multiplied by: `original`, sqrt(max(1, rows / columns)), "
          "wants one of its own, about 0.02; `match_rms_adamw`, 0.2 sqrt(max(rows, columns)), "
          "goes with AdamW's."),
      KEY(optimizer.muon.weight_decay, From(0, 1000),
          "Decoupled weight decay of matrices that Muon updates, by the learning rate as it is "
          "before that. null: `optimizer.weight_decay`."),
      KEY(optimizer.schedule.kind, any,
          "After a linear warm-up: `constant`; `cosine` decay; `wsd`: constant, then a linear "
          "decay at the end."),
      KEY(optimizer.schedule.warmup, From(0, 1000 * kMillion), "Steps of linear warm-up."),
      KEY(optimizer.schedule.decay_steps, From(1, 1000 * kMillion),
          "Steps of decay: after the warm-up for cosine, the last ones of the run for wsd. null: "
          "all that follow the warm-up; a fifth of `train.steps`."),
      KEY(optimizer.schedule.min_lr, From(0, 1000), "Learning rate at the end of the decay."),
  };
}

std::vector<Key> ParallelKeys() {
  return {
      KEY(parallel.shard, From(1, kMillion),
          "Ranks that share one copy of the model, each with sequences of its own. null: world / "
          "(replicate * context * expert * tensor)."),
      KEY(parallel.replicate, From(1, kMillion),
          "Copies of the model. replicate * shard * context * expert * tensor is the world."),
      KEY(parallel.context, From(1, kMillion),
          "Ranks that share each sequence: of `2 * context` equal chunks of it each has one of the "
          "first and one of the last, so that causal work is even. A *data rank* is one such "
          "group. `model.seq_len` is a multiple of `2 * context`."),
      KEY(parallel.expert, From(1, kMillion),
          "Ranks that have `model.moe.experts / expert` of each block's experts, each with "
          "sequences of its own, and exchange the rows of their tokens. To all other weights they "
          "are what `parallel.shard` is. It divides `model.moe.experts`."),
      KEY(parallel.experts_over_tensor, any,
          "Split experts over `tensor`, too: each of `expert * tensor` ranks has "
          "`model.moe.experts / (expert * tensor)`, and the ranks of a data rank exchange rows as "
          "those of `expert` do. Else they have the same experts."),
      KEY(parallel.tensor, From(1, kMillion),
          "Neighbouring ranks that split the matrices of a block and the rows between blocks: one "
          "*data rank*, which reads `train.micro_batch` sequences. It divides `model.heads`, "
          "`model.kv_heads` (or is a multiple of them), `model.ffn`, `model.moe.shared_ffn`, heads "
          "and groups of `model.mamba`, and `seq_len / (context * tensor_strips)`."),
      KEY(parallel.tensor_strips, From(1, 64),
          "Strips of rows that ranks along tensor exchange one by one: the product of one runs "
          "beside the exchange of the next. 1: an exchange is complete before its product begins. "
          "Strips decide which rows a rank has, and so the order of some sums."),
      Only(1, "pipelines come later",
           KEY(parallel.pipe, any, "Stages that the model's blocks are cut into.")),
  };
}

std::vector<Key> PrecisionKeys() {
  return {
      KEY(precision.compute, any,
          "Weights and activations in forward and backward. fp16: without muon and FP8, on GPUs "
          "without experts, mixers and caches, too; its gradients are scaled "
          "(`precision.loss_scale`)."),
      Only("fp32", KEY(precision.master, any, "The weights that the optimizer updates.")),
      KEY(precision.norms, any, "Weights of norms: kept in fp32, or as `precision.compute`."),
      KEY(precision.linear, any,
          "What the products of linears in blocks (attention's and MLPs' projections, Mamba's) "
          "multiply: values as `precision.compute`, or FP8 with one scale per tensor, or per 128 "
          "elements along the sum (weights: 128 x 128). Embedding, head, norms, router, experts "
          "and attention stay. Masters, gradients and files as ever. GPUs: Hopper, columns and a "
          "rank's rows of a sequence in multiples of 16, no caches. `parallel.tensor=1`."),
      KEY(precision.gather, any,
          "What gathers of these linears' weights carry: weights as `precision.compute`, quantized "
          "behind each gather, or with `linear` (`precision.linear` in FP8) payloads of 8 bits. "
          "Each rank makes these of its shard once after the update, and all ranks have the "
          "scales. Half the gathered bytes of bf16; the same bits in every result and file. "
          "`sharding.downcast=after_update`, no experts."),
      KEY(precision.grad_accumulate, any,
          "Gradients summed over microbatches. fp16: with `precision.compute` fp16 alone, with "
          "which bf16 is not."),
      KEY(precision.grad_wire, any,
          "Gradients while they are reduced across ranks. fp16: as `precision.grad_accumulate`."),
      KEY(precision.loss_scale.init_scale, From(1, 0x1p32),
          "With fp16 the gradient of the loss is multiplied by a scale, and gradients are divided "
          "by it before the norm, clipping and the update: as PyTorch's GradScaler does, with its "
          "names and defaults. This is the first scale. A step whose gradients are not finite, "
          "while its loss is, is skipped on all ranks and makes the scale smaller; that is counted "
          "and is no incident of `guard`, unless the scale would fall below 1. A power of two."),
      KEY(precision.loss_scale.growth_factor, From(2, 1024),
          "What the scale is multiplied by after `growth_interval` updates without an overflow, up "
          "to 2^64. A power of two."),
      KEY(precision.loss_scale.backoff_factor,
          {.min = 0, .max = 1, .min_exclusive = true, .max_exclusive = true},
          "What it is multiplied by at an overflow. A power of two."),
      KEY(precision.loss_scale.growth_interval, From(1, 1000 * kMillion),
          "Updates in a row after which the scale grows."),
  };
}

std::vector<Key> ShardingKeys() {
  return {
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
  };
}

std::vector<Key> MemoryKeys() {
  return {
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
          "fills it, rows that tensor and context exchange are kept in it where that saves time, "
          "a plan above it is refused. null: no limit."),
  };
}

std::vector<Key> ExecutionKeys() {
  return {
      KEY(execution.backend, any,
          "`auto`: cuda where it is built in and a GPU is present, else cpu."),
      KEY(execution.graph, any,
          "Record and replay the whole step, each forward, backward and update by itself "
          "(`microbatch`), or nothing. `microbatch` joins all streams at each graph's end: what "
          "one of them gathers or reduces never runs beside the next. The bits are the same."),
      KEY(execution.checked, any,
          "Poison freed memory and stop (73) at the first op that makes a value that is not "
          "finite. Checked walks op by op, on every backend; `execution.graph` is not used. "
          "Slower, same bits."),
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
          "Algorithms to use, and where newly measured ones go, with what each that was compared "
          "took; runs that share it have the same bits. null: `tuning.json` in `run.dir`."),
      KEY(execution.tune_again, any,
          "Measure everything again, also where a run goes on: it gets other bits. The old file "
          "stays as `<file>.old`. For one call."),
      KEY(execution.programmatic_launch, any,
          "Set a kernel of a graph up before the one ahead of it is complete: as soon as that "
          "one's blocks end, or begin. The bits are the same; small steps take less time."),
      KEY(execution.peer_memory, any,
          "Collectives within a copy of the parameters by kernels of our own that load and store "
          "other GPUs' memory over NVLink, in place of NCCL's, and sum in rank order. `on`: stop "
          "where that cannot be: it takes GPUs of one host, at most 8 to a copy of the parameters. "
          "`auto`: where it can be; the start of a run says which."),
      KEY(execution.watchdog_s, From(0, 86400),
          "Seconds without any progress after which the job ends with exit code 71, naming the "
          "rank that holds it up. 0: never."),
  };
}

std::vector<Key> CheckpointKeys() {
  return {
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
          "Training waits for a copy of the state in host memory only (4 bytes for each number: 12 "
          "per parameter by AdamW, with `optimizer.moments` bf16, too, 8 by Muon; divided by the "
          "ranks of one copy of the model), which is written while steps go on. false: training "
          "waits until it is on disk."),
      KEY(checkpoint.on_error, any,
          "When the disk refuses a checkpoint or a line of metrics: `continue` training and say "
          "so, or `stop` with exit code 74, as a run's last checkpoint always does. Earlier ones "
          "stay as they are."),
      KEY(checkpoint.resume, any,
          "`auto`: go on from the newest good checkpoint if there is one; `must`: stop if there is "
          "none; `never`: start anew."),
  };
}

std::vector<Key> EvalKeys() {
  return {
      KEY(eval.tasks, any,
          "Tasks that the model is scored on: `hellaswag:FILE.bin` (llm.c's file and rules), "
          "`hellaswag:FILE.jsonl` (lm-eval's rules), `hellaswag-llmc:FILE.jsonl`, `ppl:PATH` "
          "(perplexity of texts). null: none."),
      KEY(eval.every, From(0, 1000 * kMillion),
          "Steps between scores; the last step is followed by them, too. 0: after the last alone."),
      KEY(eval.limit, From(1, 1000 * kMillion),
          "Examples of each task, from the front. null: all."),
  };
}

std::vector<Key> GuardKeys() {
  return {
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
  };
}

std::vector<Key> InferenceKeys() {
  return {
      KEY(inference.slots, From(1, 65536), "Sequences that are generated at once, at most."),
      KEY(inference.page_tokens, From(1, 65536),
          "Positions of a page: keys and values of a sequence lie in pages."),
      KEY(inference.pages, From(1, 1000 * kMillion),
          "Pages of all sequences. null: enough for `slots` sequences of `max_length`."),
      KEY(inference.max_length, From(1, kMillion),
          "Positions of a sequence, prompt and answer. null: `model.seq_len`, which it must not "
          "exceed."),
      KEY(inference.prefill, From(1, kMillion),
          "Tokens of a prompt that one plan takes, a plan for each number; longer prompts go in "
          "parts of the largest. None takes more than `max_length`."),
      KEY(inference.decode, From(1, 65536),
          "Sequences that one plan takes a token further, a plan for each number; more go in "
          "parts. None takes more than `slots`."),
      KEY(inference.exact, any,
          "With caches, logits have the bits of the training forward, whatever sequences are "
          "generated beside each other and however prompts are cut; no experts. On CPUs a program"
          " that trains beside it needs products that give all places of a microbatch the same "
          "bits, as those for AVX-512 do and those for AVX2 do not, or `train.micro_batch` 1: "
          "true is refused without. On GPUs training, scoring and generating then share kernels "
          "of our own, which have a cost: of compute capability 9.0, models of attention and MLPs"
          " in bf16 with heads of 64 or 128, no window and no documents, `parallel.tensor` and "
          "`parallel.context` 1. null: true on CPUs where the model allows it, and the log says "
          "where products do not; false on GPUs."),
  };
}

std::vector<Key> RunKeys() {
  return {
      KEY(run.dir, any, "Folder of metrics, summary, checkpoints and logs."),
      KEY(run.tensorboard, any,
          "Also write the figures of each step as TensorBoard events, into the folder "
          "`tensorboard` of `run.dir`."),
      KEY(run.loads_every, From(0, 1000 * kMillion),
          "Steps between lines of metrics.jsonl that have the load of every expert (`loads`), of "
          "which `report` draws a map; 0: none has. The line of step `train.steps` has them as "
          "well. A line of 23 blocks of 128 experts is about 15 KB."),
      KEY(run.log_level, any,
          "Least important messages that standard error shows. The logs of `train`, "
          "`run.dir/logs/rank_N.log`, have those from `debug` on in any case."),
  };
}

}  // namespace

const std::vector<Key>& Keys() {
  static const std::vector<Key> kKeys = Joined(
      {ModelKeys, DataKeys, TrainKeys, OptimizerKeys, ParallelKeys, PrecisionKeys, ShardingKeys,
       MemoryKeys, ExecutionKeys, CheckpointKeys, EvalKeys, GuardKeys, InferenceKeys, RunKeys});
  return kKeys;
}

}  // namespace millrace

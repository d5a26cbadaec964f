#!/usr/bin/env python3
"""tools/examples/grpo/large.py by TRL's GRPOTrainer with transformers' generation: the same prompts, reward, group, clipping, learning rate and number of updates,
and answers of the same length, as nothing ends one. Needs torch, transformers, trl, accelerate and datasets.

  python3 tools/bench/peers/trl_grpo.py CONFIG [--turns] [arguments of even.py] [--tuned]

As TRL has it: float32 weights under autocast to bf16, recomputed layers, model.generate with its own cache. --tuned: bf16 weights and moments, nothing
recomputed, a static cache, with which generate compiles its steps. Where an update follows its rollout TRL scores nothing and forms no ratio: none is told.
A line of JSON for each step.
"""
import json, os, statistics, sys, tempfile, time

os.environ["HF_HUB_OFFLINE"] = "1"
import datasets
import tokenizers
import torch
import transformers
import trl

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/grpo"))
import even
import torch_grpo

EXTRA = [("--tuned", {"action": "store_true"}), ("--device", {"default": "cuda"})]


def tokenizer_of(vocab):
    """Numbers are words. What would end or pad an answer is behind the vocabulary, so that no model draws it."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(token): token for token in range(vocab + 1)}))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token=str(vocab), pad_token=str(vocab), padding_side="left")


class Trainer(trl.GRPOTrainer):
    sample_s = score_s = 0.0

    def _generate_single_turn(self, *args, **named):
        begin = now()
        drawn = super()._generate_single_turn(*args, **named)
        self.sample_s += now() - begin
        return drawn

    def _get_per_token_logps_and_entropies(self, *args, **named):
        """Of a rollout, or with gradients of an update."""
        if torch.is_grad_enabled():
            return super()._get_per_token_logps_and_entropies(*args, **named)
        begin = now()
        scored = super()._get_per_token_logps_and_entropies(*args, **named)
        self.score_s += now() - begin
        return scored


def now():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Report(transformers.TrainerCallback):
    """Takes steps when it is asked to, and says how long each took."""

    def __init__(self, a):
        self.a, self.turns, self.left, self.rewards, self.trainer = a, even.turns(a), 0, [], None

    def on_step_begin(self, args, state, control, **_):
        if self.left == 0:
            self.asked = self.left = next(self.turns)
        self.rewards.clear()
        self.trainer.sample_s = self.trainer.score_s = 0.0
        self.began = now()

    def on_step_end(self, args, state, control, **_):
        taken, sample, score = now() - self.began, self.trainer.sample_s, self.trainer.score_s
        memory = dict(allocated_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved()) if torch.cuda.is_available() else {}
        print(json.dumps(dict(step=state.global_step - 1, step_s=taken, sample_s=sample, score_s=score, train_s=taken - sample - score,
                              reward=statistics.fmean(self.rewards), **memory)), flush=True)
        self.left -= 1
        if self.left == 0:
            print(json.dumps(dict(turn=self.asked)), flush=True)


def main():
    a = even.arguments(__doc__, EXTRA).parse_args()
    if a.iterations != 1:
        sys.exit(f"--iterations {a.iterations}: a step of TRL's is an update, so a rollout with several is none; 1 is allowed")
    began = time.perf_counter()
    with open(a.config) as text:
        config = json.load(text)
    vocab, rows = config["model"]["vocab"], a.prompts * a.group
    if rows % a.micro_batch:
        sys.exit(f"{rows} rows are no multiple of --micro-batch {a.micro_batch}")
    torch.manual_seed(a.seed)
    net = torch_grpo.model_of(config, a.device).train()
    net.config.eos_token_id = net.generation_config.eos_token_id = vocab
    if not a.tuned:
        net = net.float()
    report = Report(a)

    def reward(completion_ids, **_):
        report.rewards += (own := [even.reward(one) for one in completion_ids])
        if any(len(one) != a.answer_tokens for one in completion_ids):
            sys.exit("an answer is short")
        return own

    with tempfile.TemporaryDirectory() as folder:
        args = trl.GRPOConfig(
            folder, max_steps=a.steps, per_device_train_batch_size=a.micro_batch, gradient_accumulation_steps=rows // a.micro_batch, num_generations=a.group,
            max_completion_length=a.answer_tokens, learning_rate=a.lr, lr_scheduler_type="constant", shuffle_dataset=False, seed=a.seed,
            bf16=not a.tuned, use_cpu=a.device == "cpu", report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
            **(dict(gradient_checkpointing=False, cache_implementation="static", optim="adamw_torch_fused") if a.tuned else {}))
        texts = [" ".join(map(str, prompt)) for step in range(a.steps) for prompt in even.prompts(a, vocab, step)]
        report.trainer = Trainer(net, reward, args, datasets.Dataset.from_dict({"prompt": texts}), processing_class=tokenizer_of(vocab), callbacks=[report])
        print(json.dumps(dict(parameters=net.num_parameters(), start_s=time.perf_counter() - began, torch=torch.__version__, transformers=transformers.__version__,
                              trl=trl.__version__, device=torch.cuda.get_device_name() if a.device == "cuda" else a.device)), flush=True)
        report.trainer.remove_callback(transformers.PrinterCallback)
        report.trainer.train()


if __name__ == "__main__":
    main()

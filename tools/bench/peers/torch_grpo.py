#!/usr/bin/env python3
"""The loop of tools/examples/grpo/large.py written with transformers: the same prompts, reward, group, clipping, learning rate and number of updates, and answers
of the same length, so that both do the same work. Needs torch and transformers.

  python3 tools/bench/peers/torch_grpo.py CONFIG [--turns] [arguments of even.py]

LlamaForCausalLM in bf16 beside fp32 weights and AdamW's fp32 moments, as Millrace has them; SDPA. Answers come from a static cache of all sequences at once, of
which a step with its draw is one compiled function (--mode: the first of a list that works), and behind a prompt there is one row of logits. For scoring and
training the layers are compiled, all by one graph, and the head with the loss, which have logits of answers alone. Gradients of microbatches add up in bf16.
A line of JSON for each step.
"""
import json, os, statistics, sys, time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/grpo"))
import even

EXTRA = [("--mode", {"default": "reduce-overhead,max-autotune-no-cudagraphs,default", "help": "of torch.compile for a step of decode; none: not compiled"}),
         ("--device", {"default": "cuda"})]


def model_of(config, device):
    m = config["model"]
    assert m["family"] == "llama", "Llama alone"
    shape = transformers.LlamaConfig(
        vocab_size=m["vocab"], hidden_size=m["d_model"], intermediate_size=m["ffn"], num_hidden_layers=m["layers"], num_attention_heads=m["heads"],
        num_key_value_heads=m.get("kv_heads", m["heads"]), rms_norm_eps=1e-5, tie_word_embeddings=m.get("tied", True), max_position_embeddings=m["seq_len"],
        rope_parameters={"rope_type": "default", "rope_theta": m.get("rope_theta", 10000.0)}, attn_implementation="sdpa", initializer_range=0.02)
    with torch.device(device):
        return transformers.LlamaForCausalLM(shape).to(torch.bfloat16).eval()  # there is no dropout


class Decoder:
    """Draws answers for all prompts at once, at temperature 1."""

    def __init__(self, net, a):
        self.net, self.a = net, a
        self.cache = transformers.StaticCache(config=net.config, max_cache_len=a.prompt_tokens + a.answer_tokens)
        self.mode = None
        self.modes = a.mode.split(",")
        self.step = None

    @staticmethod
    def draw(logits):
        """By the least of exponential variables over probabilities: no host, and one kernel with the softmax."""
        p = torch.softmax(logits.float(), -1)
        return torch.argmax(p / torch.empty_like(p).exponential_(1.0), -1, keepdim=True)

    def forward(self, tokens, positions):
        return self.draw(self.net(input_ids=tokens, position_ids=positions, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits[:, -1])

    def rollout(self, prompts):
        a, rows = self.a, prompts.shape[0]
        answer = torch.empty(rows, a.answer_tokens, dtype=torch.long, device=prompts.device)
        self.cache.reset()
        token = self.forward(prompts, torch.arange(a.prompt_tokens, device=prompts.device)[None])
        position = torch.full((1, 1), a.prompt_tokens, device=prompts.device)
        answer[:, :1] = token
        for i in range(1, a.answer_tokens):
            token = self.step(token, position).clone()
            answer[:, i:i + 1] = token
            position += 1
        return answer

    @torch.no_grad()
    def __call__(self, prompts):
        while True:
            try:
                if self.step is None:
                    self.mode = self.modes.pop(0)
                    mode = None if self.mode == "default" else self.mode
                    self.step = self.forward if self.mode == "none" else torch.compile(self.forward, fullgraph=True, mode=mode)
                return self.rollout(prompts)
            except Exception as error:  # whatever a compiler throws
                if not self.modes:
                    raise
                print(json.dumps({"failed in " + self.mode: str(error)[-500:]}), flush=True)
                torch._dynamo.reset()
                self.step = None


class Trainer:

    def __init__(self, net, a):
        self.net, self.a, self.device = net, a, a.device
        self.narrow = list(net.parameters())
        self.wide = [p.detach().float().clone() for p in self.narrow]
        for wide in self.wide:
            wide.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(self.wide, lr=a.lr, betas=(0.9, 0.999), weight_decay=0.0, fused=self.device == "cuda")
        compiled = (lambda f: torch.compile(f, fullgraph=True, dynamic=False)) if a.mode != "none" else lambda f: f
        self.layers = [compiled(layer) for layer in net.model.layers]
        self.logprobs_of, self.loss_of = compiled(self.logprobs), compiled(self.loss)

    def hidden(self, tokens):
        """LlamaModel.forward without a cache and without a mask, as SDPA has a causal one. Of the positions before an answer's tokens."""
        model = self.net.model
        x, positions = model.embed_tokens(tokens), torch.arange(tokens.shape[1], device=tokens.device)[None]
        rotations = model.rotary_emb(x, position_ids=positions)
        for layer in self.layers:
            x = layer(x, attention_mask=None, position_embeddings=rotations, position_ids=positions, use_cache=False)
        return model.norm(x)[:, -self.a.answer_tokens - 1:-1]

    def logprobs(self, hidden, targets):
        logits = self.net.lm_head(hidden).float()
        return logits.gather(-1, targets[..., None]).squeeze(-1) - logits.logsumexp(-1)

    def loss(self, hidden, targets, old, advantages):
        """TRL's dapo: the mean over all tokens of all answers. Also the sum of ratios."""
        ratio = torch.exp(self.logprobs(hidden, targets) - old)
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return -gain.sum() / (self.a.prompts * self.a.group * self.a.answer_tokens), ratio.detach().sum()

    @torch.no_grad()
    def score(self, tokens):
        answer = self.a.answer_tokens
        return torch.cat([self.logprobs_of(self.hidden(part), part[:, -answer:]) for part in tokens.split(self.a.micro_batch)])

    def update(self, tokens, old, advantages):
        loss, ratio = 0.0, 0.0
        for part, before, advantage in zip(*(t.split(self.a.micro_batch) for t in (tokens, old, advantages))):
            own, sum_of_ratios = self.loss_of(self.hidden(part), part[:, -self.a.answer_tokens:], before, advantage)
            own.backward()
            loss, ratio = loss + own.detach(), ratio + sum_of_ratios
        for wide, narrow in zip(self.wide, self.narrow):
            wide.grad = narrow.grad.float()
            narrow.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self.wide, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_copy_(self.narrow, self.wide)
        return float(loss), float(norm), float(ratio) / old.numel()


class Clock:

    def __init__(self, device):
        self.parts, self.device = {}, device
        self.at = self.now()

    def now(self):
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def lap(self, name):
        now = self.now()
        self.parts[name] = now - self.at
        self.at = now


def one_step(decoder, trainer, a, vocab, step):
    clock = Clock(a.device)
    prompts = torch.tensor([p for p in even.prompts(a, vocab, step) for _ in range(a.group)], device=a.device)
    answers = decoder(prompts)
    listed = answers.tolist()
    clock.lap("sample_s")
    rewards = [even.reward(one) for one in listed]
    grouped = torch.tensor(rewards, dtype=torch.float64).view(a.prompts, a.group)
    advantages = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    advantages = advantages.float().view(-1, 1).to(a.device)
    clock.lap("reward_s")
    tokens = torch.cat([prompts, answers], 1)
    old = trainer.score(tokens)
    clock.lap("score_s")
    done = [trainer.update(tokens, old, advantages) for _ in range(a.iterations)]
    clock.lap("train_s")
    memory = dict(allocated_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved()) if a.device == "cuda" else {}
    return dict(step=step, step_s=sum(clock.parts.values()), **clock.parts, reward=statistics.fmean(rewards), losses=[loss for loss, _, _ in done],
                norms=[norm for _, norm, _ in done], ratios=[ratio for _, _, ratio in done], mode=decoder.mode, **memory)


def main():
    a = even.arguments(__doc__, EXTRA).parse_args()
    began = time.perf_counter()
    with open(a.config) as text:
        config = json.load(text)
    torch.manual_seed(a.seed)
    net = model_of(config, a.device)
    decoder, trainer = Decoder(net, a), Trainer(net, a)
    print(json.dumps(dict(parameters=sum(p.numel() for p in trainer.narrow), start_s=time.perf_counter() - began, torch=torch.__version__,
                          transformers=transformers.__version__, device=torch.cuda.get_device_name() if a.device == "cuda" else a.device)), flush=True)
    step = 0
    for count in even.turns(a):
        for step in range(step, step + count):
            print(json.dumps(one_step(decoder, trainer, a, config["model"]["vocab"], step)), flush=True)
        step += 1
        print(json.dumps(dict(turn=count)), flush=True)


if __name__ == "__main__":
    main()

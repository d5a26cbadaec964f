#!/usr/bin/env python3
"""Makes the golden reference data in this folder: tiny models of each family, PyTorch against float64.

Run (CPU only, a few minutes; README.md says what each file and tensor is):

    python3 -m venv venv && venv/bin/pip install torch==2.11.0 transformers==5.23.0 safetensors==0.8.0
    venv/bin/python tests/golden/make_golden.py [--out DIR] [NAME ...]

The config_transformers4.json files, the form that most published folders have, come from the same script in an
environment with transformers==4.57.1: make_golden.py --config-only.

Made with Python 3.11, PyTorch 2.11.0, transformers 5.23.0, safetensors 0.8.0. Every random number comes from a seeded
generator and one thread computes, so the same versions on the same kind of CPU give the same files; elsewhere the
figures in float64 agree to about 1e-14, and the fp32 and bf16 error figures (which are rounding noise) to a factor.

The script stops with an assertion when the references disagree with each other: transformers in float32 must match
the float64 reference to 1e-5 of the unit's largest value, and in bf16 must stay inside the derived bounds.
"""
import argparse
import json
import math
import os
import pathlib
import platform

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import safetensors
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

import reference

STEPS, BATCH = 10, 3
SEQ = 17  # no mesh divides it
SPLIT_SEQ = 12  # 2 and 3 ranks of tensor do, and 2 and 3 of context, which take two chunks each
BF16_ROUNDOFF = 2.0**-8  # 8 significant bits, round to nearest
FP32_ROUNDOFF = 2.0**-24
PERTURBATIONS = 32  # random rounding patterns per bound
BOUND_MARGIN = 2.0  # bounds are this times the worst pattern seen

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=128)

# Adam's first step moves an element by lr * sign(gradient), whatever its size; an element whose gradient is as small as
# float32 noise would make ten losses a matter of luck. Of 400 seeds per model, the chosen one is among those with the
# largest smallest gradient (MIN_GRADIENT is asserted); max_norm lies well between the gradient norms of the ten steps.
MIN_GRADIENT = 1e-6
# Of keys by which experts with a bias are chosen, over the ten steps: float32 chooses as float64 does.
MIN_MARGIN = 1e-4
# Norms of later steps are held to NORM_LIMIT of themselves, which rounding to float32 alone must not reach, with
# BOUND_MARGIN (asserted). A Mamba-2 mixer's gradients feel it where the variance in its gated norm is small: with the
# other models' learning rate by up to 1e-5, and of 25 seeds whose first step is well most are worse.
NORM_LIMIT, NORM_PERTURBATIONS = 1e-5, 16

# `model` uses the names of the configuration contract, so that a test can hand it to the trainer. head_dim 8 with theta
# 10000 has wavelengths 6.3, 63, 630 and 6300: with LLAMA3 one is kept, one blended and two are slowed down.
SPECS = {
    "gpt2_tiny": dict(
        seed=79, max_norm=1.5, warmup=0, cosine=False,
        model=dict(family="gpt2", layers=2, d_model=36, heads=3, kv_heads=3, head_dim=12, ffn=100, vocab=101,
                   seq_len=SEQ, tied=True, norm_eps=1e-5)),
    "llama_tiny": dict(
        seed=216, max_norm=3.55, warmup=3, cosine=True, max_positions=1024,
        model=dict(family="llama", layers=2, d_model=48, heads=6, kv_heads=2, head_dim=8, ffn=50, vocab=103,
                   seq_len=SEQ, tied=False, norm_eps=1e-5, rope_theta=10000.0, rope_scaling=LLAMA3)),
    "llama_tied_tiny": dict(  # odd width, and heads * head_dim is not the width
        seed=315, max_norm=4.0, warmup=0, cosine=False, max_positions=SEQ,
        model=dict(family="llama", layers=2, d_model=45, heads=3, kv_heads=3, head_dim=14, ffn=61, vocab=97,
                   seq_len=SEQ, tied=True, norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None)),
    # For meshes that split a model: heads, ffn and rows are multiples of 2 and of 3, other sizes are not.
    "gpt2_split": dict(
        seed=48, max_norm=2.9, warmup=0, cosine=False,
        model=dict(family="gpt2", layers=2, d_model=42, heads=6, kv_heads=6, head_dim=7, ffn=102, vocab=101,
                   seq_len=SPLIT_SEQ, tied=True, norm_eps=1e-5)),
    "llama_split": dict(
        seed=397, max_norm=3.85, warmup=3, cosine=True, max_positions=1024,
        model=dict(family="llama", layers=2, d_model=60, heads=12, kv_heads=6, head_dim=6, ffn=54, vocab=103,
                   seq_len=SPLIT_SEQ, tied=False, norm_eps=1e-5, rope_theta=10000.0, rope_scaling=LLAMA3)),
    "llama_shared": dict(  # one key and value head, which all ranks of tensor share
        seed=359, max_norm=5.1, warmup=0, cosine=False, max_positions=SPLIT_SEQ,
        model=dict(family="llama", layers=2, d_model=42, heads=6, kv_heads=1, head_dim=10, ffn=66, vocab=97,
                   seq_len=SPLIT_SEQ, tied=True, norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None)),
    "qwen3_tiny": dict(  # heads * head_dim (60) is not the width
        seed=120, max_norm=2.85, warmup=0, cosine=False, max_positions=SEQ,
        model=dict(family="qwen3", layers=2, d_model=44, heads=6, kv_heads=2, head_dim=10, ffn=58, vocab=101,
                   seq_len=SEQ, tied=False, norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None)),
    "qwen3_moe_tiny": dict(
        seed=4, max_norm=1.92, warmup=0, cosine=False, max_positions=SEQ,
        model=dict(family="qwen3_moe", layers=2, d_model=26, heads=2, kv_heads=1, head_dim=10, vocab=67, seq_len=SEQ,
                   tied=False, norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
                   moe=dict(experts=5, top_k=2, ffn=9))),
    "nemotron_h_tiny": dict(  # an odd head_dim: nothing is rotated
        seed=112, max_norm=3.05, warmup=0, cosine=False, max_positions=SEQ,
        model=dict(family="nemotron_h", pattern="*--*-", d_model=45, heads=4, kv_heads=2, head_dim=7, ffn=62, vocab=103,
                   seq_len=SEQ, tied=False, norm_eps=1e-5)),
    "nemotron_h_mamba_tiny": dict(  # chunks of 8, 8 and 1 positions
        seed=192, max_norm=6.5, lr=5e-3, warmup=3, cosine=True, max_positions=SEQ,
        model=dict(family="nemotron_h", pattern="MM-*M", d_model=45, heads=4, kv_heads=2, head_dim=7, ffn=62, vocab=103,
                   seq_len=SEQ, tied=False, norm_eps=1e-5,
                   mamba=dict(heads=6, head_dim=5, groups=2, state=7, chunk=8))),
    "nemotron_h_moe_tiny": dict(  # biases that begin away from 0 and follow the loads
        seed=196, max_norm=1.52, warmup=0, cosine=False, max_positions=SEQ,
        model=dict(family="nemotron_h", pattern="E*-E", d_model=26, heads=2, kv_heads=1, head_dim=7, ffn=31,
                   vocab=67, seq_len=SEQ, tied=False, norm_eps=1e-5,
                   moe=dict(experts=6, top_k=2, ffn=9, groups=3, top_groups=2, scaling=2.5, shared_ffn=11,
                            bias_rate=0.01))),
}
CLASSES = dict(gpt2="GPT2LMHeadModel", llama="LlamaForCausalLM", qwen3="Qwen3ForCausalLM",
               qwen3_moe="Qwen3MoeForCausalLM",
               nemotron_h="NemotronHForCausalLM")
BIAS = "e_score_correction_bias"
BLOCKS = {"M": "mamba", "E": "moe", "*": "full_attention", "-": "mlp"}
OPTIMIZER = dict(name="adamw", lr=1e-2, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1)  # lr: unless the model has its own


def optimizer_of(spec):
    return dict(OPTIMIZER, lr=spec.get("lr", OPTIMIZER["lr"]))


def schedule(spec):
    """optimizer.schedule as the configuration contract writes it."""
    if not spec["cosine"]:
        return dict(kind="constant", warmup=spec["warmup"])
    return dict(kind="cosine", warmup=spec["warmup"], decay_steps=STEPS - spec["warmup"], min_lr=optimizer_of(spec)["lr"] / 10)


def learning_rates(spec):
    """(step + 1) / warmup of lr while step < warmup; then constant, or a cosine reaching min_lr decay_steps later."""
    s, peak = schedule(spec), optimizer_of(spec)["lr"]
    def at(step):
        if step < s["warmup"]:
            return peak * (step + 1) / s["warmup"]
        if s["kind"] == "constant":
            return peak
        progress = (step - s["warmup"]) / s["decay_steps"]
        return s["min_lr"] + 0.5 * (peak - s["min_lr"]) * (1 + math.cos(math.pi * progress))
    return [at(step) for step in range(STEPS)]


def hf_config(spec):
    """The spec as a transformers configuration, dropout off. transformers 5 renamed the RoPE fields."""
    m = spec["model"]
    if m["family"] == "gpt2":
        return transformers.GPT2Config(
            n_layer=m["layers"], n_embd=m["d_model"], n_head=m["heads"], n_inner=m["ffn"], vocab_size=m["vocab"],
            n_positions=m["seq_len"], layer_norm_epsilon=m["norm_eps"], tie_word_embeddings=True, use_cache=False,
            embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    if m["family"] == "nemotron_h":
        mamba = m.get("mamba")
        sizes = {} if mamba is None else dict(
            mamba_num_heads=mamba["heads"], mamba_head_dim=mamba["head_dim"], n_groups=mamba["groups"],
            ssm_state_size=mamba["state"], chunk_size=mamba["chunk"])
        if "moe" in m:
            moe = m["moe"]
            sizes.update(
                n_routed_experts=moe["experts"], num_experts_per_tok=moe["top_k"], moe_intermediate_size=moe["ffn"],
                n_group=moe["groups"], topk_group=moe["top_groups"], routed_scaling_factor=moe["scaling"],
                norm_topk_prob=True, n_shared_experts=1, moe_shared_expert_intermediate_size=moe["shared_ffn"])
        if "ffn" in m:
            sizes["intermediate_size"] = m["ffn"]
        return transformers.NemotronHConfig(
            **sizes, layers_block_type=[BLOCKS[kind] for kind in m["pattern"]], hidden_size=m["d_model"],
            num_attention_heads=m["heads"], num_key_value_heads=m["kv_heads"], head_dim=m["head_dim"],
            vocab_size=m["vocab"], max_position_embeddings=spec["max_positions"],
            layer_norm_epsilon=m["norm_eps"], tie_word_embeddings=m["tied"], use_cache=False, bos_token_id=0,
            eos_token_id=0)
    scaling = m["rope_scaling"]
    if int(transformers.__version__.split(".")[0]) >= 5:
        rope = dict(rope_parameters=dict(scaling or dict(rope_type="default"), rope_theta=m["rope_theta"]))
    else:
        rope = dict(rope_theta=m["rope_theta"], rope_scaling=scaling)
    sizes = dict(intermediate_size=m["ffn"]) if "ffn" in m else dict(
        num_experts=m["moe"]["experts"], num_experts_per_tok=m["moe"]["top_k"], moe_intermediate_size=m["moe"]["ffn"],
        norm_topk_prob=True, intermediate_size=m["moe"]["ffn"])
    return dict(llama=transformers.LlamaConfig, qwen3=transformers.Qwen3Config,
                qwen3_moe=transformers.Qwen3MoeConfig)[m["family"]](
        num_hidden_layers=m["layers"], hidden_size=m["d_model"], num_attention_heads=m["heads"],
        num_key_value_heads=m["kv_heads"], head_dim=m["head_dim"], vocab_size=m["vocab"], **sizes,
        max_position_embeddings=spec["max_positions"], rms_norm_eps=m["norm_eps"], tie_word_embeddings=m["tied"],
        use_cache=False, bos_token_id=0, eos_token_id=0, **rope)


def hf_model(spec):
    """An untrained transformers model of the spec's shape."""
    net = getattr(transformers, CLASSES[spec["model"]["family"]])(hf_config(spec))
    for module in net.modules():
        # 5.23.0 clamps steps to time_step_min, whatever time_step_limit says (transformers #48989).
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, math.inf)
    if "moe" in spec["model"]:
        net.set_experts_implementation("eager")  # the default has no gradient of float64 and its own order of sums
    return net


def disk_name(name, family):
    """What a parameter is called in a folder: transformers 5 renames Nemotron-H's when it loads and saves."""
    return "backbone." + name.removeprefix("model.") if family == "nemotron_h" and name.startswith("model.") else name


def stored(net, family):
    """The parameters as a folder has them: one matrix for each expert, gate and up apart; and routers' biases."""
    tensors = {disk_name(n, family): b.detach().clone() for n, b in net.named_buffers() if n.endswith(BIAS)}
    for name, p in net.named_parameters():
        p = p.detach().clone()
        if name.endswith("experts.gate_up_proj"):
            for e, matrix in enumerate(p):
                for part, half in zip(("gate", "up"), matrix.chunk(2)):
                    tensors[name.replace("gate_up_proj", f"{e}.{part}_proj.weight")] = half.clone()
        elif name.endswith(("experts.up_proj", "experts.down_proj")):
            base, _, part = disk_name(name, family).rpartition(".")
            for e, matrix in enumerate(p):
                tensors[f"{base}.{e}.{part}.weight"] = matrix.clone()
        else:
            tensors[disk_name(name, family)] = p
    return tensors


def in_memory(name, tensors, family):
    """The other way round: the parameter that transformers calls `name`."""
    def experts(*parts):
        count = sum(n.startswith(base) and n.endswith("down_proj.weight") for n in tensors)
        return torch.stack([torch.cat([tensors[f"{base}{e}.{part}_proj.weight"] for part in parts]) for e in range(count)])

    base = disk_name(name, family).rpartition(".")[0] + "."
    if name.endswith("experts.gate_up_proj"):
        return experts("gate", "up")
    for part in ("up", "down"):
        if name.endswith(f"experts.{part}_proj"):
            return experts(part)
    return tensors[disk_name(name, family)]


def initialise(net, generator):
    """Norm weights and D 1 +- 0.1, biases +- 0.1, embeddings 0.2, matrices 0.15: no gradient vanishes, no value is special."""
    for name, p in net.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "conv1d" in name and p.dim() == 3:
            noise *= 0.5
        elif p.dim() >= 2:
            noise *= 0.2 if reference.unit_of(name) == "embedding" else 0.15
        else:
            noise = 0.1 * noise + (1.0 if name.endswith(("weight", "mixer.D")) else 0.0)
        p.data.copy_(noise)
    for name, b in net.named_buffers():
        if name.endswith(BIAS):
            b.copy_(0.05 * torch.randn(b.shape, generator=generator))


def make_tokens(vocab, seq, generator):
    """int32 [STEPS, 1, BATCH, seq + 1]: mostly 3 t + 1 mod vocab, one in three random, so that the loss can fall."""
    tokens = torch.randint(vocab, (STEPS, 1, BATCH, seq + 1), generator=generator)
    follow = torch.rand(tokens.shape, generator=generator) < 2 / 3
    for i in range(1, seq + 1):
        tokens[..., i] = torch.where(follow[..., i], (3 * tokens[..., i - 1] + 1) % vocab, tokens[..., i])
    return tokens


class Functional:
    """The reference model: float64 parameters, an optional rounding model at every stored value."""

    def __init__(self, spec, initial, site=reference.identity):
        self.model, self.site = spec["model"], site
        self.params = {n: p.double().requires_grad_() for n, p in initial.items() if not n.endswith(BIAS)}
        self.biases = {n: b.double() for n, b in initial.items() if n.endswith(BIAS)}
        self.loads = {}

    def logits(self, inputs):
        return reference.logits({**self.params, **self.biases}, self.model, inputs, self.site, self.loads)


class Transformers:
    """The transformers model, computing in `dtype` from float32 master parameters."""

    def __init__(self, spec, initial, dtype):
        self.net = hf_model(spec).to(dtype)
        self.family = spec["model"]["family"]
        self.params = {n: p.clone().requires_grad_() for n, p in initial.items() if not n.endswith(BIAS)}
        self.biases = {n: b.clone() for n, b in initial.items() if n.endswith(BIAS)}
        self.loads = {}
        for name, module in self.net.named_modules():
            if hasattr(module, BIAS):
                bias = disk_name(f"{name}.{BIAS}", self.family)
                module.register_forward_hook(lambda gate, _, out, bias=bias: self.loads.update(
                    {bias: torch.bincount(out[2].flatten(), minlength=gate.num_experts)}))

    def logits(self, inputs):
        params = dict(self.net.named_parameters())
        cast = {n: in_memory(n, self.params, self.family).to(p.dtype) for n, p in params.items()}
        cast.update({n: self.biases[disk_name(n, self.family)] for n, _ in self.net.named_buffers() if n.endswith(BIAS)})
        return torch.func.functional_call(self.net, cast, args=(), kwargs=dict(input_ids=inputs)).logits.to(
            torch.float32)


def backward(model, tokens):
    """One step's loss (a tensor) and logits; leaves the gradients in model.params. The loss is the mean over tokens."""
    for p in model.params.values():
        p.grad = None
    inputs, targets = tokens[0, :, :-1], tokens[0, :, 1:]
    logits = model.logits(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / targets.numel()
    loss.backward()
    return loss.detach(), logits.detach()


def train(model, spec, tokens):
    """STEPS steps of clip and AdamW, and of routers' biases against the loads. Returns losses and gradient norms before clipping, as Python floats."""
    decayed = [p for p in model.params.values() if p.dim() >= 2]
    others = [p for p in model.params.values() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=OPTIMIZER["weight_decay"]), dict(params=others, weight_decay=0.0)],
        lr=optimizer_of(spec)["lr"], betas=OPTIMIZER["betas"], eps=OPTIMIZER["eps"], foreach=False)
    losses, norms = [], []
    for step, lr in enumerate(learning_rates(spec)):
        loss, _ = backward(model, tokens[step])
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.params.values()))
        scale = min(1.0, spec["max_norm"] / norm.item())  # clip_grad_norm_ would add 1e-6 to the norm
        for p in model.params.values():
            p.grad.mul_(scale)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        for name, bias in model.biases.items():
            load = model.loads[name].to(bias.dtype)
            bias.add_(torch.sign(load.mean() - load), alpha=spec["model"]["moe"]["bias_rate"])
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms


def max_diff(a, b):
    return (a.double() - b.double()).abs().max().item()


def grad_errors(model, grads):
    return {n: max_diff(p.grad, grads[n]) for n, p in model.params.items()}


def unit_maxima(tensors):
    maxima = {}
    for name, value in tensors.items():
        unit = reference.unit_of(name)
        maxima[unit] = max(maxima.get(unit, 0.0), value.abs().max().item())
    return maxima


def bf16_bounds(spec, initial, tokens, logits, grads, losses):
    """BOUND_MARGIN times the largest error over PERTURBATIONS random rounding patterns (see README.md)."""
    worst = dict(logits=0.0, grad=dict.fromkeys(grads, 0.0), loss=[0.0] * STEPS)
    for seed in range(PERTURBATIONS):
        site = reference.perturbation(1000 * spec["seed"] + seed, BF16_ROUNDOFF)
        model = Functional(spec, initial, site)
        _, got = backward(model, tokens[0])
        worst["logits"] = max(worst["logits"], max_diff(got, logits))
        for name, error in grad_errors(model, grads).items():
            worst["grad"][name] = max(worst["grad"][name], error)
        run, _ = train(Functional(spec, initial, site), spec, tokens)
        worst["loss"] = [max(w, abs(a - b)) for w, a, b in zip(worst["loss"], run, losses)]
    return dict(logits=BOUND_MARGIN * worst["logits"],
                grad={n: BOUND_MARGIN * e for n, e in worst["grad"].items()},
                loss=[BOUND_MARGIN * e for e in worst["loss"]])


def norm_noise(spec, initial, tokens, norms):
    """The largest relative change of a gradient norm over random patterns of rounding to float32 (see README.md)."""
    worst = 0.0
    for seed in range(NORM_PERTURBATIONS):
        site = reference.perturbation(1000 * spec["seed"] + seed, FP32_ROUNDOFF)
        _, run = train(Functional(spec, initial, site), spec, tokens)
        worst = max(worst, *(abs(a - b) / b for a, b in zip(run, norms)))
    return worst


def reduced_precision(spec, initial, tokens, dtype, logits, grads, finals):
    """What transformers gets in `dtype`: its ten losses and norms, and its errors against the reference."""
    model = Transformers(spec, initial, dtype)
    _, got = backward(model, tokens[0])
    report = dict(err=dict(logits=max_diff(got, logits), grad=grad_errors(model, grads)))
    model = Transformers(spec, initial, dtype)
    report["loss"], report["grad_norm"] = train(model, spec, tokens)
    report["err"]["param"] = {n: max_diff(p.detach(), finals[n]) for n, p in {**model.params, **model.biases}.items()}
    return report


def make(name, out):
    spec = SPECS[name]
    generator = torch.Generator().manual_seed(spec["seed"])
    net = hf_model(spec)
    initialise(net, generator)
    tokens = make_tokens(spec["model"]["vocab"], spec["model"]["seq_len"], generator)
    initial = stored(net, spec["model"]["family"])

    exact = Functional(spec, initial)
    _, logits = backward(exact, tokens[0])
    grads = {n: p.grad.clone() for n, p in exact.params.items()}
    exact = Functional(spec, initial)
    losses, norms = train(exact, spec, tokens)
    finals = {n: p.detach() for n, p in {**exact.params, **exact.biases}.items()}
    assert exact.loads.get("margin", math.inf) > MIN_MARGIN, exact.loads["margin"]
    fp32 = reduced_precision(spec, initial, tokens, torch.float32, logits, grads, finals)
    bf16 = reduced_precision(spec, initial, tokens, torch.bfloat16, logits, grads, finals)
    bounds = bf16_bounds(spec, initial, tokens, logits, grads, losses)
    fp32["norm_noise"] = norm_noise(spec, initial, tokens, norms)

    units = unit_maxima(grads)
    for n, g in grads.items():
        size = g.abs().flatten()
        first, end = shift_invariant(spec).get(n, (0, 0))
        assert size[first:end].sum() < 1e-12
        size = torch.cat((size[:first], size[end:]))
        assert size[size > 0].min() > MIN_GRADIENT, n  # unused embedding rows are exactly zero
    clipped = [norm > spec["max_norm"] for norm in norms]
    assert any(clipped) and not all(clipped), norms
    assert BOUND_MARGIN * fp32["norm_noise"] <= NORM_LIMIT, fp32["norm_noise"]
    assert fp32["err"]["logits"] <= 1e-5 * logits.abs().max().item()
    assert max(abs(a - b) for a, b in zip(fp32["loss"], losses)) <= 1e-5
    assert all(abs(a - b) <= limit for a, b, limit in zip(bf16["loss"], losses, bounds["loss"]))
    assert bf16["err"]["logits"] <= bounds["logits"]
    for n in grads:
        assert fp32["err"]["grad"][n] <= 1e-5 * units[reference.unit_of(n)], n
        assert bf16["err"]["grad"][n] <= bounds["grad"][n], n

    folder = out / name
    net.save_pretrained(folder / "hf")
    save_file(dict(tokens=tokens.int(), logits=logits), folder / "golden.safetensors")
    save_file({"grad." + n: g for n, g in grads.items()}, folder / "grad.safetensors")
    save_file({"param." + n: p.contiguous() for n, p in finals.items()}, folder / "final.safetensors")
    golden = dict(
        made_with=dict(python=platform.python_version(), torch=torch.__version__, transformers=transformers.__version__,
                       safetensors=safetensors.__version__, cpu_capability=torch.backends.cpu.get_cpu_capability()),
        model=spec["model"],
        optimizer=dict(**optimizer_of(spec), clip=spec["max_norm"], schedule=schedule(spec)),
        lr=learning_rates(spec), loss=losses, grad_norm=norms, clipped=clipped,
        logits_max=logits.abs().max().item(),
        unit={n: reference.unit_of(n) for n in finals}, unit_grad_max=units,
        grad_max={n: g.abs().max().item() for n, g in grads.items()},
        shift_invariant=shift_invariant(spec), fp32=fp32, bf16=bf16, bf16_bound=bounds)
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)
    summarise(name, golden)


def write_config(name, out):
    config = hf_config(SPECS[name])
    config.architectures = [CLASSES[config.model_type]]
    config.torch_dtype = "float32"  # save_pretrained of a model would add both
    major = transformers.__version__.split(".")[0]
    (out / name / f"config_transformers{major}.json").write_text(config.to_json_string())


def shift_invariant(spec):
    """name -> [first, end) elements whose exact gradient is zero: softmax ignores what the key bias adds to a row."""
    m = spec["model"]
    if m["family"] != "gpt2":
        return {}
    return {f"transformer.h.{i}.attn.c_attn.bias": [m["d_model"], 2 * m["d_model"]] for i in range(m["layers"])}


def summarise(name, g):
    def worst(errors, scale):
        return max(e / scale[g["unit"][n]] for n, e in errors.items())
    print(f"{name}: loss {g['loss'][0]:.4f} -> {g['loss'][-1]:.4f}, norms {min(g['grad_norm']):.3f}"
          f"..{max(g['grad_norm']):.3f}, {sum(g['clipped'])} of {STEPS} steps clipped")
    print(f"  fp32: logits {g['fp32']['err']['logits'] / g['logits_max']:.1e}, gradients "
          f"{worst(g['fp32']['err']['grad'], g['unit_grad_max']):.1e} of the unit, losses "
          f"{max(abs(a - b) for a, b in zip(g['fp32']['loss'], g['loss'])):.1e}")
    print(f"  bf16: logits {g['bf16']['err']['logits'] / g['logits_max']:.1e} (bound "
          f"{g['bf16_bound']['logits'] / g['logits_max']:.1e}), gradients "
          f"{worst(g['bf16']['err']['grad'], g['unit_grad_max']):.1e} (bound "
          f"{worst(g['bf16_bound']['grad'], g['unit_grad_max']):.1e}), losses "
          f"{max(abs(a - b) for a, b in zip(g['bf16']['loss'], g['loss'])):.1e} (bound "
          f"{max(g['bf16_bound']['loss']):.1e})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *SPECS], help="models to make; all by default")
    parser.add_argument("--config-only", action="store_true",
                        help="only write <name>/config_transformers<major>.json as the installed version does")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in args.names or SPECS:
        if args.config_only and hasattr(transformers, CLASSES[SPECS[name]["model"]["family"]]):
            write_config(name, args.out)
        elif not args.config_only:
            make(name, args.out)


if __name__ == "__main__":
    main()

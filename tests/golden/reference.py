"""GPT-2, Llama, Qwen3 (dense and with experts) and Nemotron-H written out in plain tensor operations, in whatever dtype
the parameters have.

transformers computes RMSNorm, RoPE and (eager) softmax in float32 even in a float64 model, so its float64 output is
not a float64 reference. This file is; make_golden.py asserts that transformers agrees with it to float32 precision.

Parameters are a dict of transformers' own names. Every value that a bf16 implementation would store in bf16 passes
through `site`, the identity for the reference itself; make_golden.py passes a perturbation there to measure how
much bf16 rounding can move each result.
"""
import math

import torch
import torch.nn.functional as F


def identity(x):
    return x


class _Perturb(torch.autograd.Function):
    """Multiplies the value, and later its gradient, by independent 1 + u * uniform(-1, 1)."""

    @staticmethod
    def forward(ctx, x, generator, u):
        ctx.generator, ctx.u = generator, u
        return x * (1 + u * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1))

    @staticmethod
    def backward(ctx, g):
        return g * (1 + ctx.u * (2 * torch.rand(g.shape, generator=ctx.generator, dtype=g.dtype) - 1)), None, None


def perturbation(seed, u):
    """A `site` that models storing in a format of unit roundoff u: a relative error of at most u, at random."""
    generator = torch.Generator().manual_seed(seed)
    return lambda x: _Perturb.apply(x, generator, u)


def llama3_inverse_frequencies(head_dim, theta, scaling):
    """float64 [head_dim / 2]; `scaling` is the Llama 3 dict, or None for plain RoPE."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if scaling is None:
        return inverse
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * inverse / (2 * math.pi)  # within the original context
    keep = ((turns - low) / (high - low)).clamp(0, 1)  # 1: high frequency, kept; 0: low frequency, slowed down
    return inverse * (keep + (1 - keep) / scaling["factor"])


def _attention(q, k, v, site):
    """q [B, H, T, E], k and v [B, K, T, E], K divides H; causal; returns [B, T, H * E]."""
    batch, heads, length, head_dim = q.shape
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(head_dim)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    p = site(scores.masked_fill(future, -math.inf).softmax(-1))
    return site((p @ v).transpose(1, 2).reshape(batch, length, heads * head_dim))


def _split_heads(x, head_dim):
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def products(x, weights):
    """x with each of several weights [out, in]; those that the trainer keeps fused come together."""
    return [x @ w.T for w in weights]


def gpt2_logits(p, model, tokens, site=identity, products=products):
    """tokens [B, T] to logits [B, T, vocab]. Linear weights are [in, out], as in GPT-2's own files."""
    p = {name: site(value) for name, value in p.items()}

    def norm(x, name):
        return site(F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], model["norm_eps"]))

    def linear(x, name):
        return site(products(x, [p[name + ".weight"].T])[0] + p[name + ".bias"])

    x = site(p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"][: tokens.shape[1]])
    for i in range(model["layers"]):
        block = f"transformer.h.{i}."
        qkv = linear(norm(x, block + "ln_1"), block + "attn.c_attn").chunk(3, -1)
        q, k, v = (_split_heads(part, model["head_dim"]) for part in qkv)
        x = site(x + linear(_attention(q, k, v, site), block + "attn.c_proj"))
        z = linear(norm(x, block + "ln_2"), block + "mlp.c_fc")
        x = site(x + linear(site(F.gelu(z, approximate="tanh")), block + "mlp.c_proj"))
    return site(norm(x, "transformer.ln_f") @ p["transformer.wte.weight"].T)


def llama_logits(p, model, tokens, site=identity, products=products):
    """tokens [B, T] to logits [B, T, vocab]. Linear weights are [out, in]. qwen3: with norms of query and key heads."""
    p = {name: site(value) for name, value in p.items()}
    dtype = p["model.norm.weight"].dtype
    inverse = llama3_inverse_frequencies(model["head_dim"], model["rope_theta"], model["rope_scaling"])
    angle = torch.outer(torch.arange(tokens.shape[1], dtype=torch.float64), inverse)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def norm(x, name):
        return site(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + model["norm_eps"]) * p[name + ".weight"])

    def linears(x, *names):
        return [site(y) for y in products(x, [p[name + ".weight"] for name in names])]

    def rotate(x):  # the pair of element i is element i + head_dim / 2
        a, b = x.chunk(2, -1)
        return site(torch.cat((a * cos - b * sin, b * cos + a * sin), -1))

    x = p["model.embed_tokens.weight"][tokens]
    for i in range(model["layers"]):
        block = f"model.layers.{i}."
        y = norm(x, block + "input_layernorm")
        q, k, v = (_split_heads(z, model["head_dim"])
                   for z in linears(y, *(f"{block}self_attn.{n}_proj" for n in "qkv")))
        if model["family"] in ("qwen3", "qwen3_moe"):
            q, k = norm(q, block + "self_attn.q_norm"), norm(k, block + "self_attn.k_norm")
        x = site(x + linears(_attention(rotate(q), rotate(k), v, site), block + "self_attn.o_proj")[0])
        y = norm(x, block + "post_attention_layernorm")
        if model["family"] == "qwen3_moe":
            x = site(x + qwen3_experts(p, block + "mlp.", y, model["moe"], site))
            continue
        gate, up = linears(y, block + "mlp.gate_proj", block + "mlp.up_proj")
        x = site(x + linears(site(F.silu(gate) * up), block + "mlp.down_proj")[0])
    head = p["model.embed_tokens.weight" if model["tied"] else "lm_head.weight"]
    return site(norm(x, "model.norm") @ head.T)


def _mamba(p, rows, mixer, model, site):
    """rows z|x|B|C|dt [B, T, .] to the gated, normalised output of a Mamba-2 mixer [B, T, H P], by the recurrence.

    dt is never stored in less than float32, so that it does not pass through `site`; nor do states."""
    heads, width, groups, states = (model["mamba"][key] for key in ("heads", "head_dim", "groups", "state"))
    inner, batch, length = heads * width, rows.shape[0], rows.shape[1]
    z, xbc, dt = rows.split((inner, inner + 2 * groups * states, heads), -1)
    taps = p[mixer + "conv1d.weight"][:, 0]  # [C, K]: the last is the current position's
    padded = F.pad(xbc, (0, 0, taps.shape[1] - 1, 0))
    convolved = sum(taps[:, k] * padded[:, k : k + length] for k in range(taps.shape[1]))
    x, b, c = site(F.silu(convolved + p[mixer + "conv1d.bias"])).split((inner, groups * states, groups * states), -1)
    x = x.unflatten(-1, (heads, width))
    b, c = (v.unflatten(-1, (groups, states)).repeat_interleave(heads // groups, 2) for v in (b, c))
    dt = F.softplus(dt + p[mixer + "dt_bias"])
    decay = torch.exp(-dt * p[mixer + "A_log"].exp())  # [B, T, H]
    state, outputs = x.new_zeros(batch, heads, width, states), []
    for t in range(length):
        state = decay[:, t, :, None, None] * state + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        outputs.append((state * c[:, t, :, None]).sum(-1) + p[mixer + "D"][:, None] * x[:, t])
    y = site(torch.stack(outputs, 1).flatten(2))
    v = (y * F.silu(z)).unflatten(-1, (groups, -1))
    v = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + model["norm_eps"])
    return site(v.flatten(2) * p[mixer + "norm.weight"])


def choices(scores, top_k):
    """[..., top_k]: experts from the largest score on, the first of equals."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]


def qwen3_experts(p, name, x, moe, site):
    """x [B, T, C]. Each token's experts, weighted by the softmax over all of them, divided by the sum of the chosen."""
    scores = (x @ p[name + "gate.weight"].T).softmax(-1)  # not stored: logits and scores are float32
    chosen = choices(scores, moe["top_k"])
    weights = scores.gather(-1, chosen)
    weights = weights / weights.sum(-1, keepdim=True)
    gated = lambda rows, linear: F.silu(linear(rows, "gate")) * linear(rows, "up")
    return _experts(p, name, x, chosen, weights, moe["experts"], gated, site)


def _experts(p, name, x, chosen, weights, experts, hidden, site):
    """Sum of weights[..., k] * expert chosen[..., k] of each row of x [B, T, C]; hidden(rows, linear) is within one."""
    y = torch.zeros_like(x)
    for e in range(experts):
        def linear(rows, part):
            return site(rows @ p[f"{name}experts.{e}.{part}_proj.weight"].T)

        b, t, k = (chosen == e).nonzero(as_tuple=True)
        z = site(hidden(x[b, t], linear) * weights[b, t, k, None])
        y = y.index_put((b, t), linear(z, "down"), accumulate=True)
    return site(y)


def nemotron_h_experts(p, name, x, moe, site, loads):
    """x [B, T, C]. Experts are chosen by sigmoid + bias among the groups whose two largest have the largest sum, and
    weighted by the sigmoid, divided by the sum of the chosen, times scaling. `loads` notes how often each was chosen,
    and by how little a choice might have been another."""
    scores = (x @ p[name + "gate.weight"].T).sigmoid()
    keys = scores.detach() + p[name + "gate.e_score_correction_bias"]
    groups = keys.unflatten(-1, (moe["groups"], -1))
    values = groups.topk(2, dim=-1).values.sum(-1)
    kept = choices(values, moe["top_groups"])
    allowed = torch.zeros_like(values, dtype=torch.bool).scatter(-1, kept, True)
    left = groups.masked_fill(~allowed[..., None], -math.inf).flatten(-2)
    chosen = choices(left, moe["top_k"])
    if loads is not None:
        loads[name + "gate.e_score_correction_bias"] = torch.bincount(chosen.flatten(), minlength=moe["experts"])
        for of, count in ((values, moe["top_groups"]), (left, moe["top_k"])):
            ranked = of.sort(dim=-1, descending=True).values
            apart = (ranked[..., count - 1] - ranked[..., count]).min().item() if count < of.shape[-1] else math.inf
            loads["margin"] = min(loads.get("margin", math.inf), apart)
    weights = scores.gather(-1, chosen)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * moe["scaling"]
    y = _experts(p, name, x, chosen, weights, moe["experts"], lambda rows, linear: F.relu(linear(rows, "up")).square(),
                 site)
    shared = name + "shared_experts."
    z = site(F.relu(site(x @ p[shared + "up_proj.weight"].T)).square())
    return site(y + site(z @ p[shared + "down_proj.weight"].T))


def nemotron_h_logits(p, model, tokens, site=identity, loads=None):
    """tokens [B, T] to logits [B, T, vocab]. Linear weights are [out, in]; one branch per block, no positions."""
    biases = {name: value for name, value in p.items() if name.endswith("e_score_correction_bias")}
    p = {name: site(value) for name, value in p.items()}

    def norm(x, name):
        return site(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + model["norm_eps"]) * p[name + ".weight"])

    def linear(x, name):
        return site(x @ p[name + ".weight"].T)

    p.update(biases)  # f32, whatever else is stored in less
    x = p["backbone.embeddings.weight"][tokens]
    for i, kind in enumerate(model["pattern"]):
        block = f"backbone.layers.{i}."
        y, mixer = norm(x, block + "norm"), block + "mixer."
        if kind == "*":
            q, k, v = (_split_heads(linear(y, f"{mixer}{n}_proj"), model["head_dim"]) for n in "qkv")
            x = site(x + linear(_attention(q, k, v, site), mixer + "o_proj"))
        elif kind == "-":
            x = site(x + linear(site(F.relu(linear(y, mixer + "up_proj")).square()), mixer + "down_proj"))
        elif kind == "M":
            x = site(x + linear(_mamba(p, linear(y, mixer + "in_proj"), mixer, model, site), mixer + "out_proj"))
        elif kind == "E":
            x = site(x + nemotron_h_experts(p, mixer, y, model["moe"], site, loads))
        else:
            raise ValueError(f"block {i} is {kind}")
    return site(norm(x, "backbone.norm_f") @ p["lm_head.weight"].T)


def logits(p, model, tokens, site=identity, loads=None):
    """`loads`: a dict for what routers with a bias have chosen, by the bias's name."""
    if model["family"] == "nemotron_h":
        return nemotron_h_logits(p, model, tokens, site, loads)
    families = dict(gpt2=gpt2_logits, llama=llama_logits, qwen3=llama_logits, qwen3_moe=llama_logits)
    return families[model["family"]](p, model, tokens, site)


def unit_of(name):
    """The FSDP unit that a parameter belongs to: embedding, block<i> or head."""
    if "wte" in name or "wpe" in name or "embed" in name:
        return "embedding"
    parts = name.split(".")
    return "block" + parts[2] if parts[1] in ("h", "layers") else "head"

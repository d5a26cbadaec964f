#!/usr/bin/env python3
"""Makes {mtp_tiny,mtp_deep_tiny,mtp_weighted_tiny}/golden.json: losses and every gradient of a Qwen3 with blocks, one or
three, that predict one token further each.

transformers has no training path of such a block, so this is written by hand, in float64, after DeepSeek-V3 (arXiv
2412.19437, section 2.2) and Megatron-LM's options: the trunk's *normalised* output goes on, and then that of each depth;
ids and targets are rolled left by one more at each, a vacated id being 0, and each added loss is a mean over the targets
that are left (of T of a sequence, T - k at depth k). Their sum is divided by the depth. mtp_weighted_tiny has a weight for
each token as a target, whichever depth predicts it: each loss is the weighted sum over that of the weights of its own
targets, as Megatron-LM rolls the mask and counts it anew at each depth.

    python3 -m venv venv && venv/bin/pip install torch==2.11.0
    venv/bin/python tests/golden/make_mtp.py

Parameters, tokens and weights follow from formulas that tests/models/mtp_golden_test.cc and
tests/system/step/policy_loss_test.cc have as well, so none are stored. Names
and layouts are the trainer's: [out, in], q | k | v and gate | up fused by rows.
"""
import json
import math
import pathlib

import torch
import torch.nn.functional as F

import reference

D, HEADS, KV, HEAD_DIM, FFN, VOCAB, T, B, LAYERS, EPS, THETA, SCALE = 10, 4, 2, 4, 14, 37, 7, 3, 2, 1e-5, 10000.0, 0.3
SCALING = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)


def block_shapes(p):
    return {p + "norm_1.weight": [D], p + "attn.qkv.weight": [(HEADS + 2 * KV) * HEAD_DIM, D],
            p + "attn.q_norm.weight": [HEAD_DIM], p + "attn.k_norm.weight": [HEAD_DIM],
            p + "attn.proj.weight": [D, HEADS * HEAD_DIM], p + "norm_2.weight": [D],
            p + "mlp.gate_up.weight": [2 * FFN, D], p + "mlp.down.weight": [D, FFN]}


def shapes(depth):
    """In the order of the trainer's units."""
    s = {"embed.weight": [VOCAB, D]}
    for i in range(LAYERS):
        s |= block_shapes(f"h.{i}.")
    s |= {"norm_f.weight": [D], "lm_head.weight": [VOCAB, D]}
    for k in range(1, depth + 1):
        p = f"mtp.{k}."
        s |= {p + "norm_e.weight": [D], p + "norm_h.weight": [D], p + "e_proj.weight": [D, D], p + "h_proj.weight": [D, D]}
        s |= block_shapes(p) | {p + "norm_out.weight": [D]}
    return s


def parameters(depth):
    """f32(base + 0.4 sin(1.3 p + 0.71 i + 0.0137 i^2)) of element i of parameter p; base 1 of norms."""
    params = {}
    for p, (name, shape) in enumerate(shapes(depth).items()):
        base = 1.0 if "norm" in name else 0.0
        values = [base + 0.4 * math.sin(1.3 * p + 0.71 * i + 0.0137 * i * i) for i in range(math.prod(shape))]
        params[name] = torch.tensor(values, dtype=torch.float32).double().reshape(shape).requires_grad_()
    return params


def tokens(sequences):
    return torch.tensor([[(7 * i + i * i % 11 + 5 * b) % VOCAB for i in range(T + 1)] for b in range(sequences)])


def token_weights(sequences):
    """Of the targets of the next token, [B, T]: 0, 0.5, 1 and 1.5."""
    return torch.tensor([[0.5 * ((3 * b + 2 * t + b * t) % 4) for t in range(T)] for b in range(sequences)], dtype=torch.float64)


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rotate(x):
    inverse = reference.llama3_inverse_frequencies(HEAD_DIM, THETA, SCALING)
    angle = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), inverse)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def block(x, w, p):
    q, k, v = (norm(x, w[p + "norm_1.weight"]) @ w[p + "attn.qkv.weight"].T).split(
        [HEADS * HEAD_DIM, KV * HEAD_DIM, KV * HEAD_DIM], -1)
    heads = [z.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for z in (q, k, v)]
    q, k = norm(heads[0], w[p + "attn.q_norm.weight"]), norm(heads[1], w[p + "attn.k_norm.weight"])
    x = x + F.scaled_dot_product_attention(rotate(q), rotate(k), heads[2], is_causal=True, enable_gqa=True).transpose(
        1, 2).flatten(2) @ w[p + "attn.proj.weight"].T
    gate, up = (norm(x, w[p + "norm_2.weight"]) @ w[p + "mlp.gate_up.weight"].T).chunk(2, -1)
    return x + (F.silu(gate) * up) @ w[p + "mlp.down.weight"].T


def losses(w, window, depth, weights):
    """Means, by their weights, over the targets that there are: of the next token, and of each one after it."""
    def mean(logits, k):
        of = logits[:, : T - k].flatten(0, 1), window[:, k + 1 :].flatten()
        if weights is None:
            return F.cross_entropy(*of)
        weight = weights[:, k:].flatten()
        return (F.cross_entropy(*of, reduction="none") * weight).sum() / weight.sum()

    head = w["lm_head.weight"].T
    x = w["embed.weight"][window[:, :-1]]
    for i in range(LAYERS):
        x = block(x, w, f"h.{i}.")
    x = norm(x, w["norm_f.weight"])
    means = [mean(x @ head, 0)]
    for k in range(1, depth + 1):
        p = f"mtp.{k}."
        ids = F.pad(window[:, k:], (0, k - 1))
        both = torch.cat((norm(w["embed.weight"][ids], w[p + "norm_e.weight"]), norm(x, w[p + "norm_h.weight"])), -1)
        y = both @ torch.cat((w[p + "e_proj.weight"], w[p + "h_proj.weight"]), -1).T
        x = norm(block(y, w, p), w[p + "norm_out.weight"])
        means.append(mean(x @ head, k))  # the last k positions have no token k + 1 on
    return means


def make(name, depth, sequences=B, weights=None):
    w = parameters(depth)
    next_token, *further = losses(w, tokens(sequences), depth, weights)
    added = sum(further) / depth
    (next_token + SCALE * added).backward()
    golden = dict(loss=next_token.item(), mtp=added.item(), loss_scale=SCALE,
                  grad={name: [float(f"{g:.9g}") for g in p.grad.flatten().tolist()] for name, p in w.items()})
    path = pathlib.Path(__file__).resolve().parent / name / "golden.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(golden, indent=0) + "\n")
    print(f"{name}: loss {golden['loss']:.6f}, further tokens {golden['mtp']:.6f}")


def main():
    torch.set_num_threads(1)
    make("mtp_tiny", 1)
    make("mtp_deep_tiny", 3)
    make("mtp_weighted_tiny", 3, 4, token_weights(4))


if __name__ == "__main__":
    main()

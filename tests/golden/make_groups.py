#!/usr/bin/env python3
"""Makes groups/: ten steps of three of the tiny models with groups of parameters, as PyTorch's param_groups have them.

    python3 -m venv venv && venv/bin/pip install torch==2.9.0 numpy safetensors
    venv/bin/python tests/golden/make_groups.py

Models, initial parameters, tokens and schedules are those of the folders; Muon is make_muon.py's. `torch` of a group are
the transformers' names of what `parameters` matches of ours. A frozen parameter has requires_grad=False, is in no
optimizer, and clip_grad_norm does not see it.
"""
import fnmatch
import json

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.optim import _muon

import make_muon
import reference

CASES = {
    # Constants that differ inside every flat parameter: of biases and norms, which now decay; of a block's MLP.
    "gpt2_tiny": dict(groups=[
        dict(parameters="h.1.mlp.*", torch=["*.h.1.mlp.*"], lr=0.004, betas=[0.8, 0.9], eps=1e-4),
        dict(parameters=["*.bias", "*ln_?.*"], torch=["*.bias", "*ln_?.*"], lr_mult=0.5, weight_decay=0.3),
        dict(parameters="embed/wpe", torch=["*wpe*"], weight_decay=0),
    ]),
    # Embedding and first block frozen, and a norm and a matrix behind them; a cosine schedule, which moves lr in proportion.
    "llama_tiny": dict(groups=[
        dict(parameters=["embed*", "h.0.*", "h.1.norm_1.*", "h.1.mlp.down.weight"],
             torch=["*embed_tokens*", "*.layers.0.*", "*.layers.1.input_layernorm.*", "*.layers.1.mlp.down_proj.*"], frozen=True),
        dict(parameters="lm_head.weight", torch=["lm_head.weight"], lr=0.002, weight_decay=0),
    ]),
    # Muon for MLPs alone, and of one block with a rate and a decay of its own; what is tied is frozen.
    "llama_tied_tiny": dict(muon=dict(lr=0.02, adjust_lr="original"), groups=[
        dict(parameters="h.1.mlp.*.weight", torch=["*.layers.1.mlp.*"], name="muon", lr_mult=0.5, weight_decay=0.3),
        dict(parameters="h.?.mlp.*.weight", torch=["*.mlp.*"], name="muon"),
        dict(parameters="embed*", torch=["*embed_tokens*"], frozen=True),
    ]),
}


def group_of(groups, name):
    for group in groups:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in group["torch"]):
            return group
    return {}


def train(leaves, optimizer, groups, tokens):
    o, m = optimizer, {**make_muon.DEFAULTS, **optimizer.get("muon", {})}
    adamw, muon, trained = [], [], []
    for name, parts in [(n, [p]) for n, p in leaves.whole.items()] + list(leaves.parts.items()):
        group = group_of(groups, name)
        if group.get("frozen"):
            for p in parts:
                p.requires_grad_(False)
            continue
        trained += parts
        by_muon = name in leaves.parts
        own = m.get("lr", o["lr"]) if by_muon else o["lr"]
        peak = group.get("lr", own) * group.get("lr_mult", 1)
        decay = o["weight_decay"] if by_muon or parts[0].dim() >= 2 else 0.0
        entry = dict(params=parts, lr=peak, peak=peak, weight_decay=group.get("weight_decay", decay))
        if not by_muon:
            entry.update(betas=group.get("betas", o["betas"]), eps=group.get("eps", o["eps"]))
        (muon if by_muon else adamw).append(entry)
    optimizers = [torch.optim.AdamW(adamw, foreach=False)]
    if muon:
        optimizers.append(torch.optim.Muon(muon, momentum=m["momentum"], nesterov=m["nesterov"], eps=m["eps"], ns_steps=m["ns_steps"],
                                           ns_coefficients=(m["ns_linear"], m["ns_cubic"], m["ns_quintic"]),
                                           adjust_lr_fn=m["adjust_lr"]))
    losses, norms = [], []
    for step, factor in enumerate(make_muon.lr_factors(o, len(tokens))):
        for p in trained:
            p.grad = None
        inputs, targets = tokens[step, 0, :, :-1].long(), tokens[step, 0, :, 1:].long()
        logits = reference.logits(leaves.params(), leaves.model, inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / targets.numel()
        loss.backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in trained))
        for p in trained:
            p.grad.mul_(min(1.0, o["clip"] / norm.item()))
        for of in optimizers:
            for group in of.param_groups:
                group["lr"] = group["peak"] * factor
            of.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms


def make(name, case):
    folder = make_muon.HERE / name
    golden = json.loads((folder / "golden.json").read_text())
    tokens = load_file(folder / "golden.safetensors")["tokens"]
    initial = load_file(folder / "hf" / "model.safetensors")
    groups = case["groups"]
    optimizer = dict(golden["optimizer"], groups=[{k: v for k, v in g.items() if k != "torch"} for g in groups])
    if "muon" in case:
        optimizer["muon"] = case["muon"]
    for group in groups:
        assert any(group_of(groups, n) is group for n in initial), group
    make_muon.is_hidden = lambda n, p: group_of(groups, n).get("name") == "muon"
    runs = {}
    for dtype in (torch.float64, torch.float32):
        leaves = make_muon.Leaves(golden["model"], initial, dtype)
        runs[dtype] = (*train(leaves, optimizer, groups, tokens), make_muon.final(leaves))
    losses, norms, params = runs[torch.float64]
    single = runs[torch.float32]
    frozen = [n for n in params if group_of(groups, n).get("frozen")]
    assert all(torch.equal(params[n], initial[n].double()) for n in frozen)
    err = {n: (single[2][n] - p).abs().max().item() for n, p in params.items()}
    lr = [optimizer["lr"] * f for f in make_muon.lr_factors(optimizer, len(tokens))]
    data = dict(optimizer=optimizer, loss=losses, grad_norm=norms, lr=lr, frozen=frozen,
                fp32=dict(loss=single[0], grad_norm=single[1], err=dict(param=err)))
    (make_muon.HERE / "groups" / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    save_file({f"param.{n}": p for n, p in params.items()}, make_muon.HERE / "groups" / f"{name}.safetensors")
    worst = max(err, key=lambda n: err[n] / params[n].abs().max().item())
    print(name, losses[0], losses[-1], "float32: losses", max(abs(a - b) for a, b in zip(losses, single[0])), "norms",
          max(abs(a - b) / a for a, b in zip(norms, single[1])), worst, err[worst], params[worst].abs().max().item(), frozen)


if __name__ == "__main__":
    torch.set_num_threads(1)
    (make_muon.HERE / "groups").mkdir(exist_ok=True)
    _muon._zeropower_via_newtonschulz = make_muon.without_cast()
    for name, case in CASES.items():
        make(name, case)

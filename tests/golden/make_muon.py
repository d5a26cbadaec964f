#!/usr/bin/env python3
"""Makes muon/: ten steps of three of the tiny models by PyTorch's Muon and AdamW.

    python3 -m venv venv && venv/bin/pip install torch==2.9.0 numpy safetensors
    venv/bin/python tests/golden/make_muon.py

Models, initial parameters and tokens are those of gpt2_tiny, llama_tied_tiny and llama_tiny. Matrices of blocks are
updated by torch.optim.Muon, [out, in], q, k, v, gate and up each on its own; the rest by torch.optim.AdamW. PyTorch's
Muon orthogonalises in bfloat16 whatever the parameters are: here it is the source of its own function with that cast
taken out, in float64 for the reference, in float32 for `fp32` (what rounding does to it). zeropower.safetensors has
matrices by both functions, as it is and without the cast.
"""
import inspect
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.optim import _muon

import reference

HERE = pathlib.Path(__file__).parent
CASES = {
    "gpt2_tiny": dict(lr=0.02, adjust_lr="original", weight_decay=0.05),
    "llama_tied_tiny": dict(adjust_lr="match_rms_adamw"),
    # An even number of steps, other coefficients, no look-ahead, a schedule.
    "llama_tiny": dict(lr=0.03, adjust_lr="original", momentum=0.9, nesterov=False, ns_steps=4, ns_linear=3.0, ns_cubic=-4.0,
                       ns_quintic=1.75),
}
DEFAULTS = dict(momentum=0.95, nesterov=True, ns_steps=5, ns_linear=3.4445, ns_cubic=-4.7750, ns_quintic=2.0315, eps=1e-7)
MATRICES = [("attn.qkv", 3, 42, 45), ("attn.proj", 1, 45, 42), ("mlp.gate_up", 2, 61, 45), ("mlp.down", 1, 45, 61)]

AS_IT_IS = _muon._zeropower_via_newtonschulz


def without_cast():
    source = inspect.getsource(AS_IT_IS)
    assert source.count(".bfloat16()") == 1
    scope = dict(vars(_muon))
    exec(source.replace(".bfloat16()", ".clone()"), scope)
    return scope[AS_IT_IS.__name__]


def is_hidden(name, p):
    return p.dim() == 2 and reference.unit_of(name).startswith("block")


class Leaves:
    """Parameters by transformers' names, of which Muon's are matrices [out, in] of their own."""

    def __init__(self, model, initial, dtype):
        self.model, self.whole, self.parts = model, {}, {}
        for name, p in initial.items():
            p = p.to(dtype)
            if not is_hidden(name, p):
                self.whole[name] = p.clone().requires_grad_()
                continue
            matrix = p.T if model["family"] == "gpt2" else p
            count = 3 if name.endswith("c_attn.weight") else 1
            self.parts[name] = [part.clone().contiguous().requires_grad_() for part in matrix.chunk(count)]

    def params(self):
        joined = {name: torch.cat(parts) for name, parts in self.parts.items()}
        if self.model["family"] == "gpt2":
            joined = {name: p.T for name, p in joined.items()}
        return {**self.whole, **joined}

    def matrices(self):
        return [part for parts in self.parts.values() for part in parts]

    def others(self):
        return list(self.whole.values())


def lr_factors(optimizer, steps):
    """Of each step, the learning rate over that after warm-up."""
    s, peak = optimizer["schedule"], optimizer["lr"]
    def at(step):
        if step < s["warmup"]:
            return (step + 1) / s["warmup"]
        if s["kind"] == "constant":
            return 1.0
        progress = (step - s["warmup"]) / s["decay_steps"]
        low = s["min_lr"] / peak
        return low + 0.5 * (1 - low) * (1 + math.cos(math.pi * progress))
    return [at(step) for step in range(steps)]


def train(leaves, optimizer, tokens):
    o, m = optimizer, {**DEFAULTS, **optimizer["muon"]}
    decay = lambda p: o["weight_decay"] if p.dim() >= 2 else 0.0
    adamw = torch.optim.AdamW([dict(params=[p], weight_decay=decay(p)) for p in leaves.others()], lr=o["lr"],
                              betas=o["betas"], eps=o["eps"], foreach=False)
    muon_lr = m.get("lr", o["lr"])
    muon = torch.optim.Muon(leaves.matrices(), lr=muon_lr, weight_decay=m.get("weight_decay", o["weight_decay"]),
                            momentum=m["momentum"], nesterov=m["nesterov"],
                            ns_coefficients=(m["ns_linear"], m["ns_cubic"], m["ns_quintic"]), eps=m["eps"], ns_steps=m["ns_steps"],
                            adjust_lr_fn=m["adjust_lr"])
    losses, norms = [], []
    for step, factor in enumerate(lr_factors(o, len(tokens))):
        trained = leaves.matrices() + leaves.others()
        for p in trained:
            p.grad = None
        inputs, targets = tokens[step, 0, :, :-1].long(), tokens[step, 0, :, 1:].long()
        logits = reference.logits(leaves.params(), leaves.model, inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / targets.numel()
        loss.backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in trained))
        for p in trained:
            p.grad.mul_(min(1.0, o["clip"] / norm.item()))
        for of, peak in ((adamw, o["lr"]), (muon, muon_lr)):
            for group in of.param_groups:
                group["lr"] = peak * factor
            of.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms


def final(leaves):
    return {name: p.detach().double().contiguous() for name, p in leaves.params().items()}


def make(name, muon):
    folder = HERE / name
    golden = json.loads((folder / "golden.json").read_text())
    tokens = load_file(folder / "golden.safetensors")["tokens"]
    initial = load_file(folder / "hf" / "model.safetensors")
    optimizer = dict(golden["optimizer"], name="muon", muon=muon)
    runs = {}
    for dtype in (torch.float64, torch.float32):
        leaves = Leaves(golden["model"], initial, dtype)
        runs[dtype] = (*train(leaves, optimizer, tokens), final(leaves))
    losses, norms, params = runs[torch.float64]
    single = runs[torch.float32]
    err = {n: (single[2][n] - p).abs().max().item() for n, p in params.items()}
    data = dict(optimizer=optimizer, loss=losses, grad_norm=norms, lr=[optimizer["lr"] * f for f in
                                                                        lr_factors(optimizer, len(tokens))],
                fp32=dict(loss=single[0], grad_norm=single[1], err=dict(param=err)))
    (HERE / "muon" / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    save_file({f"param.{n}": p for n, p in params.items()}, HERE / "muon" / f"{name}.safetensors")
    worst = max(err, key=lambda n: err[n] / params[n].abs().max().item())
    print(name, losses[0], losses[-1], "float32: losses", max(abs(a - b) for a, b in zip(losses, single[0])), "norms",
          max(abs(a - b) / a for a, b in zip(norms, single[1])), worst, err[worst], params[worst].abs().max().item())


def zeropower():
    """Matrices of a block of llama_tied_tiny, fused as the runtime has them, with spectra that fall: `in`, values of bf16;
    `out` in float64, and as PyTorch's function makes it in bfloat16."""
    generator = torch.Generator().manual_seed(5)
    exact, tensors = without_cast(), {}
    for name, parts, rows, columns in MATRICES:
        found = {"in": [], "out": [], "bf16": []}
        for _ in range(parts):
            g = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
            u, s, v = torch.linalg.svd(g, full_matrices=False)
            g = (u @ torch.diag(s / torch.arange(1, len(s) + 1, dtype=torch.float64)) @ v).bfloat16().double()
            args = ((3.4445, -4.7750, 2.0315), 5, 1e-7)
            found["in"].append(g)
            found["out"].append(exact(g, *args))
            found["bf16"].append(AS_IT_IS(g, *args).double())
        for kind, matrices in found.items():
            tensors[f"{kind}.{name}"] = torch.cat(matrices).contiguous()
    save_file(tensors, HERE / "muon" / "zeropower.safetensors")
    for name, *_ in MATRICES:
        error = tensors["bf16." + name] - tensors["out." + name]
        print(name, "bfloat16:", error.abs().max().item(), error.square().mean().sqrt().item())


if __name__ == "__main__":
    torch.set_num_threads(1)
    (HERE / "muon").mkdir(exist_ok=True)
    zeropower()
    _muon._zeropower_via_newtonschulz = without_cast()
    for name, muon in CASES.items():
        make(name, muon)

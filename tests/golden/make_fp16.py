#!/usr/bin/env python3
"""Makes fp16/: bounds on what storing in half precision may do to the numbers of the tiny models.

    python3 -m venv venv && venv/bin/pip install torch==2.9.0 transformers==5.17.0 safetensors==0.8.0
    venv/bin/python tests/golden/make_fp16.py [NAME ...]

Models, initial parameters, tokens and the float64 reference are those of the folders. Bounds are derived as bf16's are
(README.md), with 11 significant bits: u = 2^-11. Not all of them are bf16's by 8: the first steps of AdamW move an
element by lr * sign(gradient), and how many signs rounding turns is not linear in u.

The script stops with an assertion when PyTorch's own float16 is outside: transformers with parameters cast to float16,
float32 masters, and a loss that is multiplied by SCALE, its gradients divided by it, as GradScaler does.
"""
import argparse
import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import make_golden as golden
import reference

FP16_ROUNDOFF = 2.0**-11  # 11 significant bits, round to nearest
SCALE = 4096.0
HERE = pathlib.Path(__file__).resolve().parent
MODELS = ["gpt2_tiny", "llama_tiny", "llama_tied_tiny", "qwen3_tiny", "nemotron_h_tiny", "gpt2_split", "llama_split"]


def norm_of(model):
    return torch.sqrt(sum(p.grad.double().square().sum() for p in model.params.values())).item()


def bounds(spec, initial, tokens, known):
    """golden.BOUND_MARGIN times the largest error over random rounding patterns."""
    logits, grads, losses, norms = known
    worst = dict(logits=0.0, grad=dict.fromkeys(grads, 0.0), loss=[0.0] * golden.STEPS, grad_norm=0.0)
    for seed in range(golden.PERTURBATIONS):
        site = reference.perturbation(1000 * spec["seed"] + seed, FP16_ROUNDOFF)
        model = golden.Functional(spec, initial, site)
        _, got = golden.backward(model, tokens[0])
        worst["logits"] = max(worst["logits"], golden.max_diff(got, logits))
        worst["grad_norm"] = max(worst["grad_norm"], abs(norm_of(model) - norms[0]))
        for name, error in golden.grad_errors(model, grads).items():
            worst["grad"][name] = max(worst["grad"][name], error)
        run, _ = golden.train(golden.Functional(spec, initial, site), spec, tokens)
        worst["loss"] = [max(w, abs(a - b)) for w, a, b in zip(worst["loss"], run, losses)]
    margin = golden.BOUND_MARGIN
    return dict(logits=margin * worst["logits"], grad_norm=margin * worst["grad_norm"],
                grad={n: margin * e for n, e in worst["grad"].items()}, loss=[margin * e for e in worst["loss"]])


def scaled_backward(model, tokens):
    """golden.backward with the loss scaled and the gradients unscaled; both factors are powers of two."""
    for p in model.params.values():
        p.grad = None
    inputs, targets = tokens[0, :, :-1], tokens[0, :, 1:]
    logits = model.logits(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / targets.numel()
    (loss * SCALE).backward()
    for p in model.params.values():
        p.grad.div_(SCALE)
    return loss.detach(), logits.detach()


def pytorch_float16(spec, initial, tokens, known):
    logits, grads, _, norms = known
    golden.backward = scaled_backward
    model = golden.Transformers(spec, initial, torch.float16)
    _, got = golden.backward(model, tokens[0])
    report = dict(err=dict(logits=golden.max_diff(got, logits), grad=golden.grad_errors(model, grads),
                           grad_norm=abs(norm_of(model) - norms[0])))
    report["loss"], _ = golden.train(golden.Transformers(spec, initial, torch.float16), spec, tokens)
    return report


def make(name, out):
    spec = golden.SPECS[name]
    folder = HERE / name
    stored = json.loads((folder / "golden.json").read_text())
    data = load_file(folder / "golden.safetensors")
    grads = {n.removeprefix("grad."): g for n, g in load_file(folder / "grad.safetensors").items()}
    initial = load_file(folder / "hf/model.safetensors")
    initial = {n: initial[n] for n in grads}
    known = data["logits"], grads, stored["loss"], stored["grad_norm"]
    tokens = data["tokens"].long()

    unscaled = golden.backward
    bound = bounds(spec, initial, tokens, known)
    theirs = pytorch_float16(spec, initial, tokens, known)
    golden.backward = unscaled
    ratios = [theirs["err"]["logits"] / bound["logits"], theirs["err"]["grad_norm"] / bound["grad_norm"]]
    ratios += [theirs["err"]["grad"][n] / bound["grad"][n] for n in grads]
    ratios += [abs(a - b) / limit for a, b, limit in zip(theirs["loss"], stored["loss"], bound["loss"])]
    assert max(ratios) <= 1, ratios
    out.mkdir(exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(dict(
        made_with=dict(torch=torch.__version__), bound=bound, pytorch=theirs), indent=1) + "\n")
    eighth = [8 * b / a for a, b in zip(stored["bf16_bound"]["loss"], bound["loss"])]
    print(f"{name}: PyTorch reaches {max(ratios):.2f} of the bounds; 8 * bound / bf16's bound: logits "
          f"{8 * bound['logits'] / stored['bf16_bound']['logits']:.2f}, losses {min(eighth):.2f}..{max(eighth):.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *MODELS])
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "fp16")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.names or MODELS:
        make(name, args.out)


if __name__ == "__main__":
    main()

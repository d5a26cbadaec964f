#!/usr/bin/env python3
"""Makes router.{safetensors,json} of the models with experts: which experts each token goes to, and with which weights.

    python3 -m venv venv && venv/bin/pip install torch==2.11.0 transformers==5.23.0 safetensors==0.8.0
    venv/bin/python tests/golden/make_router.py

Models, initial parameters, tokens and optimizers are those of the folders, as make_golden.py has made them. Over ten
steps, the float64 reference and transformers in float32 note what every router answers. The script stops with an
assertion where they choose otherwise, or where the losses are not those of golden.json.

transformers asks for Nemotron-H's choices unsorted (topk(sorted=False)): of each token they are compared as a set, and
stored from the largest key on, as the reference has them. Qwen3-MoE's are compared in their order.
"""
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

import make_golden
import reference

HERE = pathlib.Path(__file__).parent
# Of keys by which experts and groups are chosen and ordered, over the ten steps. Rounding to float32 moves a key by 1e-6.
MIN_MARGIN = 1e-5


class Answers:
    """What routers answer in one forward: (chosen, weights) [B, T, K] of each, in the order of the blocks."""

    def __init__(self):
        self.given, self.margin = [], float("inf")

    def take(self):
        taken, self.given = self.given, []
        return torch.stack([c for c, _ in taken]), torch.stack([w for _, w in taken])

    def watch_reference(self):
        experts, choices = reference._experts, reference.choices

        def noting(p, name, x, chosen, weights, *others):
            self.given.append((chosen, weights.detach()))
            return experts(p, name, x, chosen, weights, *others)

        def measuring(scores, top_k):
            ranked = scores.detach().sort(dim=-1, descending=True).values[..., : top_k + 1]
            gaps = ranked[..., :-1] - ranked[..., 1:]
            self.margin = min(self.margin, gaps.min().item())
            return choices(scores, top_k)

        reference._experts, reference.choices = noting, measuring

    def watch_transformers(self, net, batch):
        """Routers are the modules that answer (logits, weights, experts), rows of a batch end to end."""
        def note(_, __, out):
            self.given.append(tuple(x.detach().unflatten(0, (batch, -1)) for x in (out[2], out[1])))

        routers = [m for n, m in net.named_modules() if n.endswith(".gate")]
        for router in routers:
            router.register_forward_hook(note)
        return len(routers)


def answers_of(model, spec, tokens, answers):
    """Losses of ten steps, and the answers of each: [steps, blocks, B, T, K]."""
    steps, logits = [], model.logits

    def noting(inputs):
        out = logits(inputs)
        steps.append(answers.take())
        return out

    model.logits = noting
    losses, _ = make_golden.train(model, spec, tokens)
    return losses, torch.stack([c for c, _ in steps]), torch.stack([w for _, w in steps])


def by_expert(chosen, weights):
    order = chosen.argsort(-1)
    return chosen.gather(-1, order), weights.gather(-1, order)


def make(name):
    folder, spec = HERE / name, make_golden.SPECS[name]
    golden = json.loads((folder / "golden.json").read_text())
    initial = load_file(folder / "hf" / "model.safetensors")
    tokens = load_file(folder / "golden.safetensors")["tokens"].long()

    exact, theirs = Answers(), Answers()
    experts, choices = reference._experts, reference.choices
    exact.watch_reference()
    losses, chosen, weights = answers_of(make_golden.Functional(spec, initial), spec, tokens, exact)
    reference._experts, reference.choices = experts, choices
    assert max(abs(a - b) for a, b in zip(losses, golden["loss"])) < 1e-9, losses
    assert exact.margin > MIN_MARGIN, exact.margin

    model = make_golden.Transformers(spec, initial, torch.float32)
    assert theirs.watch_transformers(model.net, make_golden.BATCH) == chosen.shape[1]
    losses, their_chosen, their_weights = answers_of(model, spec, tokens, theirs)
    assert max(abs(a - b) for a, b in zip(losses, golden["fp32"]["loss"])) < 1e-5, losses
    as_compared = (lambda *pair: pair) if spec["model"]["family"] == "qwen3_moe" else by_expert
    ours, others = as_compared(chosen, weights), as_compared(their_chosen, their_weights)
    assert torch.equal(ours[0], others[0])
    errors = (ours[1] - others[1].double()).abs().flatten(1).max(-1).values

    save_file(dict(ids=chosen.int(), weights=weights), folder / "router.safetensors")
    (folder / "router.safetensors").chmod(0o644)
    router = dict(made_with=dict(torch=torch.__version__, transformers=make_golden.transformers.__version__),
                  margin=exact.margin, weights_max=weights.max().item(), fp32_err=errors.tolist())
    (folder / "router.json").write_text(json.dumps(router, indent=1) + "\n")
    print(f"{name}: {list(chosen.shape)}, margin {exact.margin:.2g}, weights up to {router['weights_max']:.3g}, "
          f"transformers in float32 off by {errors[0]:.2g} at first and {errors.max():.2g} at most")


def main():
    torch.set_num_threads(1)
    for name, spec in make_golden.SPECS.items():
        if "moe" in spec["model"]:
            make(name)


if __name__ == "__main__":
    main()

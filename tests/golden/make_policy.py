#!/usr/bin/env python3
"""Makes policy_tiny/golden.json: losses and every gradient of a Qwen3 whose targets have weights, by cross entropy and by
the clipped policy gradient.

In float64, with the model of make_mtp.py. The policy gradient is that of TRL's GRPOTrainer (trl/trainer/grpo_trainer.py,
`_compute_loss`, loss_type "dapo"): the ratio per token, clipped by one bound below and another above, beta times the
k3 estimate of the divergence from a reference, sums over tokens divided by one number for the whole step.

    python3 -m venv venv && venv/bin/pip install torch==2.11.0
    venv/bin/python tests/golden/make_policy.py

Parameters, tokens, weights and advantages follow from formulas that tests/system/step/policy_loss_test.cc has as well. The old
and the reference log-probabilities, f32, are stored: they lie at chosen distances from the model's own.
"""
import json
import math
import pathlib

import torch

import make_mtp

B, T, LOW, HIGH, BETA = 4, make_mtp.T, 0.2, 0.28, 0.04


def window():
    return torch.tensor([[(7 * i + i * i % 11 + 5 * b) % make_mtp.VOCAB for i in range(T + 1)] for b in range(B)])


def by_place(f):
    return torch.tensor([[f(b, t) for t in range(T)] for b in range(B)], dtype=torch.float64)


def weights():
    """0, 0.5, 1 or 1.5."""
    return by_place(lambda b, t: ((3 * b + 2 * t + b * t) % 4) / 2)


def advantages():
    """Multiples of 1/8 of both signs, one for each sequence and a little for each place."""
    return by_place(lambda b, t: (8 * (b % 2) - 4 + (b + t) % 3) / 8)


def log_probabilities(w):
    x = w["embed.weight"][window()[:, :-1]]
    for i in range(make_mtp.LAYERS):
        x = make_mtp.block(x, w, f"h.{i}.")
    x = make_mtp.norm(x, w["norm_f.weight"])
    return torch.log_softmax(x @ w["lm_head.weight"].T, -1).gather(-1, window()[:, 1:, None])[..., 0]


def gradients(loss, w):
    return {name: [float(f"{g:.9g}") for g in grad.flatten().tolist()]
            for name, grad in zip(w, torch.autograd.grad(loss, list(w.values())))}


def main():
    torch.set_num_threads(1)
    w = make_mtp.parameters(0)
    weight, advantage = weights(), advantages()
    plain = (weight * -log_probabilities(w)).sum() / weight.sum()
    golden = dict(weighted=dict(loss=plain.item(), grad=gradients(plain, w)))

    logp = log_probabilities(w)
    f32 = lambda x: x.detach().float().double()
    # Well within the bounds and well beyond either.
    old = f32(logp - by_place(lambda b, t: (0.05, -0.07, 0.5, -0.6, 0.0)[(b + 2 * t) % 5]))
    reference = f32(logp + by_place(lambda b, t: 0.3 * math.sin(1 + b + 2 * t)))
    ratio = torch.exp(logp - old)
    first, second = ratio * advantage, torch.clamp(ratio, 1 - LOW, 1 + HIGH) * advantage
    k3 = torch.exp(reference - logp) - (reference - logp) - 1
    loss = (weight * (-torch.min(first, second) + BETA * k3)).sum() / weight.sum()
    counts = weight != 0
    clipped = ((ratio < 1 - LOW) & (advantage < 0)) | ((ratio > 1 + HIGH) & (advantage > 0))
    golden["policy"] = dict(loss=loss.item(), grad=gradients(loss, w), clip_low=LOW, clip_high=HIGH, beta=BETA,
                            old_logprobs=old.flatten().tolist(), reference_logprobs=reference.flatten().tolist(),
                            tally=[counts.sum().item(), (clipped & counts).sum().item(), ratio[counts].sum().item(),
                                   k3[counts].sum().item()])
    path = pathlib.Path(__file__).resolve().parent / "policy_tiny" / "golden.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(golden, indent=0) + "\n")
    print(f"policy_tiny: weighted {plain:.6f}, policy {loss:.6f}, tally {golden['policy']['tally']}")


if __name__ == "__main__":
    main()

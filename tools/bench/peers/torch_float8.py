#!/usr/bin/env python3
"""torchao's float8 training over FSDP2 at a training step that Millrace does too; as torch_bench.py, whose arguments, timing and JSON line these are.

  mpirun -n 2 --bind-to none python3 tools/bench/peers/torch_float8.py CONFIG --variant fsdp2_keep --sdpa cudnn [--recipe rowwise]

The linears of blocks multiply in FP8, as with precision.linear; embedding, head, norms and attention stay, and weights are FP32 where they are updated.
tensorwise   a scale per tensor. Gathers carry FP8; one all-reduce after the update gives the scales of all weights. torchao's fastest recipe
rowwise      a scale per row, powers of two. Gathers carry bf16: torchao's have no FP8 for it

Needs torchao: 0.17.0 is made for torch 2.11 (pip download --no-deps torchao==0.17.0 where there is a network, pip install --no-deps --target on the host with GPUs).
"""
import argparse, dataclasses, importlib.metadata, os, sys

# What its libraries have is for other recipes than these.
os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")
import torch
import torch_bench
from torchao.float8 import Float8LinearConfig, convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp

RECIPES = ("tensorwise", "rowwise")


def linears_of(recipe, emulate):
    """`emulate`: products in fp32 of what FP8 holds, where there are no units for it."""
    if recipe == "tensorwise":
        return Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=emulate)
    torch._inductor.config.emulate_precision_casts = True  # as torchtitan does: without it compiled scales differ from eager ones (pytorch #150859)
    return dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate)


class Model(torch_bench.Model):
    linears = None  # Float8LinearConfig

    def __init__(self, c, dtype):
        super().__init__(c, dtype)
        convert_to_float8_training(self.blocks, config=self.linears)


class Trainer(torch_bench.Trainer):
    def compute(self):
        loss = super().compute()
        precompute_float8_dynamic_scale_for_fsdp(self.model)  # of weights that are gathered in FP8; nothing where none are
        return loss


def main():
    """torch_bench's, with this model and one argument more."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--recipe", default="tensorwise", choices=RECIPES)
    extra, sys.argv[1:] = parser.parse_known_args()
    measure = torch_bench.measure

    def measured(args, *rest):
        Model.linears = linears_of(extra.recipe, args.device == "cpu")
        return dict(measure(args, *rest), recipe=extra.recipe, torchao=importlib.metadata.version("torchao"))

    torch_bench.VARIANTS = {name: (spread, mode, f"torchao float8, {what}") for name, (spread, mode, what) in torch_bench.VARIANTS.items() if spread in ("reshard", "keep")}
    torch_bench.Model, torch_bench.Trainer, torch_bench.measure = Model, Trainer, measured
    return torch_bench.main()


if __name__ == "__main__":
    sys.exit(main())

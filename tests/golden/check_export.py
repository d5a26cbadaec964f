#!/usr/bin/env python3
"""Loads a Hugging Face folder (one that `millrace export` wrote) in transformers and compares its logits, offline.

    check_export.py FOLDER LOGITS.safetensors [--tolerance 1e-5]

LOGITS.safetensors holds `tokens` [..., B, T] or [..., B, T + 1] (integers; a last column of targets is dropped, leading
dimensions such as step and microbatch are flattened away and the first B sequences are used) and `logits` [B, T, vocab]
(any float dtype; the vocabulary without padding), as golden.safetensors does. Prints one JSON line. Exit 0: equal
to within tolerance * max|logits| and no tensor was missing, superfluous or of the wrong shape; else 1.
"""
import argparse
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import load_file


def inputs_for(tokens, logits):
    batch, length = logits.shape[:2]
    tokens = tokens.reshape(-1, tokens.shape[-1]).long()
    if len(tokens) < batch or tokens.shape[-1] not in (length, length + 1):
        sys.exit(f"tokens {list(tokens.shape)} do not fit logits {list(logits.shape)}")
    return tokens[:batch, :length]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("logits")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    want = load_file(args.logits)
    inputs = inputs_for(want["tokens"], want["logits"])
    net, report = transformers.AutoModelForCausalLM.from_pretrained(
        args.folder, local_files_only=True, dtype=torch.float32, output_loading_info=True)
    problems = {key: sorted(map(str, value)) for key, value in report.items() if value}
    with torch.no_grad():
        got = net.eval()(input_ids=inputs).logits.double()
    if got.shape != want["logits"].shape:
        sys.exit(f"logits {list(got.shape)}, expected {list(want['logits'].shape)}")
    scale = want["logits"].double().abs().max().item()
    diff = (got - want["logits"].double()).abs().max().item()
    ok = not problems and diff <= args.tolerance * scale  # false for NaN
    print(json.dumps(dict(ok=ok, max_abs_diff=diff, max_abs_logit=scale, tolerance=args.tolerance, problems=problems,
                          model=type(net).__name__, transformers=transformers.__version__)))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

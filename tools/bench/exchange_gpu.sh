#!/bin/bash
# exchange_gpu.sh PROGRAM: a run that changes device. Trains a small model 30 steps on the CPU, on the GPU, and from CPU to GPU to CPU
# at steps 10 and 20, and prints the losses after the last change side by side. Exit 1 when they are apart by more than 0.5 %.
set -euo pipefail
program=$1 folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/c.json" <<'J'
{"model": {"family": "llama", "layers": 3, "d_model": 96, "heads": 4, "ffn": 256, "seq_len": 64, "vocab": 256},
 "data": {"kind": "text", "path": "/usr/share/common-licenses"}, "train": {"micro_batch": 4, "steps": 30},
 "optimizer": {"lr": 1e-3}, "checkpoint": {"every": 0}}
J
for leg in "cpu cpu 30" "cuda cuda 30" "mixed cpu 10" "mixed cuda 20" "mixed cpu 30"; do
  read -r run device steps <<<"$leg"
  "$program" train "$folder/c.json" --set "run.dir=$folder/$run" --set "execution.backend=$device" --set "train.steps=$steps" >/dev/null
done
python3 - "$folder" <<'P'
import json, sys
def losses(run):
    return [json.loads(line)["loss"] for line in open(f"{sys.argv[1]}/{run}/metrics.jsonl")]
cpu, cuda, mixed = map(losses, ("cpu", "cuda", "mixed"))
assert len(cpu) == len(cuda) == len(mixed) == 30, (len(cpu), len(cuda), len(mixed))
worst = max(abs(a - b) / a for other in (cuda, mixed) for a, b in zip(cpu, other))
print(f"| step | cpu | cuda | cpu, cuda from 11, cpu from 21 |\n|---|---|---|---|")
for s in (0, 9, 10, 19, 20, 29):
    print(f"| {s + 1} | {cpu[s]:.6f} | {cuda[s]:.6f} | {mixed[s]:.6f} |")
print(f"largest relative difference {worst:.2e}")
sys.exit(worst > 5e-3)
P

#!/bin/bash
# against_torch.sh [--at-once] [--compile] [--fp32 | --bf16] [--seed N] [--device cpu] CONFIG TEXT STEPS OUT: CONFIG (GPT-2) trained on the bytes of the file TEXT by
# Millrace and by PyTorch, one after the other on one device (--at-once: on the first two GPUs), from the same weights, in the same order of batches.
# Run from a package's folder. --fp32 and --bf16 are about the peer alone: CONFIG says what we compute in.
# OUT gets config.json, millrace.jsonl, torch.jsonl, summary.json and curves.svg; a table of losses and step times goes to standard output.
# MILLRACE and PYTHON name other programs than bin/millrace and python3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
torch_arguments=() at_once= seed=0
while [[ ${1:-} == --* ]]; do
  [[ $1 != --at-once ]] || { at_once=yes; shift; continue; }
  [[ $1 != --seed ]] || { seed=$2; shift 2; continue; }
  torch_arguments+=("$1")
  [[ $1 != --device ]] || { torch_arguments+=("$2"); shift; }
  shift
done
(($# == 4)) || { sed -n '2,6s/^# \?//p' "$0" >&2; exit 2; }
config=$1 text=$(realpath "$2") steps=$3 out=$4 millrace=${MILLRACE:-bin/millrace} python=${PYTHON:-python3}
mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" - "$config" "$text" "$steps" "$work" "$seed" >"$out/config.json" <<'P'
import json, sys
config, text, steps, work, seed = sys.argv[1:]
with open(config) as file:
    c = json.load(file)
c["data"] = {"kind": "text", "path": text, "shuffle_seed": int(seed)}
c["train"].update(steps=int(steps), seed=int(seed))
warmup = min(200, int(steps) // 10)
c["optimizer"] = {"lr": 6e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0,
                  "schedule": {"kind": "cosine", "warmup": warmup, "decay_steps": int(steps) - warmup, "min_lr": 6e-5}}
c["checkpoint"] = {"every": 0}
c["run"] = {"dir": work + "/run"}
print(json.dumps(c, indent=2))
P
# One step that changes nothing worth the name: Adam's update is at most the learning rate.
"$millrace" train "$out/config.json" --set train.steps=1 --set optimizer.lr=1e-30 --set optimizer.weight_decay=0 \
  --set optimizer.schedule.kind=constant --set optimizer.schedule.warmup=0 --set optimizer.schedule.decay_steps=null \
  --set optimizer.schedule.min_lr=0 --set "run.dir=$work/initial" >"$work/log" || { cat "$work/log" >&2; exit 1; }
"$millrace" export "$out/config.json" --set "run.dir=$work/initial" --to "$work/weights" >"$work/log"
Ours() {
  "$millrace" train "$out/config.json" --set "model.init_from=$work/weights" >"$out/millrace.log"
  cp "$work/run/metrics.jsonl" "$out/millrace.jsonl"
  cp "$work/run/summary.json" "$out/summary.json"
}
Torch() { "$python" "$here/peers/torch_train.py" "$out/config.json" --weights "$work/weights" --out "$out/torch.jsonl" "${torch_arguments[@]}"; }
if [[ $at_once ]]; then
  IFS=, read -r first second _ <<<"${CUDA_VISIBLE_DEVICES:-0,1}"
  CUDA_VISIBLE_DEVICES=$second Torch &
  peer=$!
  trap 'rm -rf "$work"; kill "$peer" 2>/dev/null' EXIT
  CUDA_VISIBLE_DEVICES=$first Ours
  wait "$peer"
else
  Ours
  Torch
fi
"$python" "$here/loss_curves.py" --out "$out/curves.svg" --title "$(basename "$config" .json), $steps steps on $(stat -c %s "$text") bytes" \
  "Millrace=$out/millrace.jsonl" "PyTorch=$out/torch.jsonl"
"$python" - "$out" <<'P'
import json, sys
def median(run):
    with open(f"{sys.argv[1]}/{run}.jsonl") as lines:
        times = sorted(v["step_ms"] for v in map(json.loads, lines) if v["step"] > 10)
    return times[len(times) // 2]
ours, torch = median("millrace"), median("torch")
print(f"\nmedian step: Millrace {ours:.1f} ms, PyTorch {torch:.1f} ms, ratio {torch / ours:.2f}")
P

#!/bin/bash
# gpu_checks.sh OUT [STAGE...]: what is promised of GPUs, shown on this host. Run from an unpacked package made with --tests. A line per check
# with its exit code and seconds; logs go to OUT. Exit 1 when a check failed. CUDA_VISIBLE_DEVICES says which GPUs; checks of ranks use all of them.
#
#   tests      every test program
#   sanitize   our kernels under compute-sanitizer: tools/bench/sanitize_gpu.sh, which takes up to an hour and can be called again alone
#   runs       checked walk of 20 steps; CPU to CUDA and back; a second run that measures no algorithm again
#   watchdog   a collective left out, a rank stopped: exit code 71, the rank and unit named, nothing left (2 GPUs)
#   bitwise    options that may not change a bit: GPT-2 124M and Llama 160M at B 64, T 1024, 100 steps
#   ablations  tools/bench/seeds.py
# Without stages: the first four.
set -uo pipefail
[[ $# -ge 1 && $1 != -* ]] || { sed -n '2,11s/^# \?//p' "$0" >&2; exit 2; }
mkdir -p "$1" || exit 2
out=$(realpath "$1") stages=("${@:2}")
((${#stages[@]})) || stages=(tests sanitize runs watchdog)
ranks=$(nvidia-smi -L | grep -c '^GPU ')
[[ -z ${CUDA_VISIBLE_DEVICES:-} ]] || ranks=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
mpi=(mpirun -n "$ranks" --bind-to none)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# Check SECONDS NAME COMMAND...: SECONDS is the most it may take.
Check() {
  local limit=$1 name=$2 began=$SECONDS code=0 word=ok
  shift 2
  timeout -k 10 "$limit" "$@" >"$out/$name.log" 2>&1 || code=$?
  if ((code)); then word=FAILED failed=1; fi
  echo "$word $name: exit code $code, $((SECONDS - began)) s; $(grep -av '^=*$' "$out/$name.log" | tail -n1 | cut -c1-150)"
}

Tests() {
  local program name
  for program in libexec/tests/*_test; do
    name=$(basename "$program")
    case $name in
      nccl_*) ((ranks > 1)) || continue ;;
    esac
    Check 240 "$name" bin/with-libs "$program" -d yes
  done
}

# Two runs in two folders with one tuning file: the second leaves the file as it is and uses the same algorithms.
Retune() {
  local run before
  for run in first second; do
    before=$(stat -c %y "$work/tuning.json" 2>/dev/null)
    "${mpi[@]}" bin/millrace train configs/gpt2_30m.json --set train.steps=11 --set "run.dir=$work/$run" \
      --set "execution.tuning_file=$work/tuning.json" || return 1
  done
  [[ $before == "$(stat -c %y "$work/tuning.json")" ]] || { echo "the second run wrote the tuning file"; return 1; }
  [[ $(grep tuning_hash "$work/first/summary.json") == "$(grep tuning_hash "$work/second/summary.json")" ]]
}

# Skipped [OPTION...]: rank 1 leaves out the collectives of a step from unit h.1 on. Stopped: rank 1 gets SIGSTOP in the middle of a run.
Skipped() {
  local code=0
  MILLRACE_INJECT=20:1:skip=h.1 "${mpi[@]}" -x MILLRACE_INJECT bin/millrace train configs/gpt2_124m.json --set sharding.blocks_per_unit=1 \
    --set "run.dir=$work/skipped$#" --set checkpoint.every=0 "$@" || code=$?
  echo "exit code $code, 71 is right"
  ((code == 71))
}
Stopped() {
  local code=0 job pid victim= i began
  "${mpi[@]}" bin/millrace train configs/gpt2_124m.json --set "run.dir=$work/stopped" --set checkpoint.every=0 --set train.steps=5000 &
  job=$!
  for i in $(seq 60); do
    [[ $(wc -l <"$work/stopped/metrics.jsonl" 2>/dev/null || echo 0) -lt 20 ]] || break
    sleep 1
  done
  for pid in $(pgrep -f "run.dir=$work/stopped"); do
    if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx OMPI_COMM_WORLD_RANK=1; then victim=$pid; fi
  done
  [[ -n $victim ]] || { kill "$job"; echo "no rank 1 was found"; return 1; }
  kill -STOP "$victim"
  began=$SECONDS
  wait "$job" || code=$?
  echo "exit code $code, 71 is right, $((SECONDS - began)) s after the stop; left over: $(pgrep -fc "run.dir=$work/stopped")"
  ((code == 71 && SECONDS - began <= 45)) && ! pgrep -f "run.dir=$work/stopped"
}

for stage in "${stages[@]}"; do
  case $stage in
    tests) Tests ;;
    sanitize) Check 3700 sanitize bash tools/bench/sanitize_gpu.sh "$out/sanitize" --seconds 3600 ;;
    runs)
      Check 200 checked bin/millrace train configs/gpt2_30m.json --set train.steps=20 --set execution.checked=true --set "run.dir=$work/checked"
      Check 120 exchange bash tools/bench/exchange_gpu.sh bin/millrace
      export -f Retune
      Check 120 retune bash -c "$(declare -p mpi work); Retune"
      ;;
    watchdog)
      ((ranks > 1)) || { echo "skipped watchdog: one GPU"; continue; }
      export -f Skipped Stopped
      Check 120 skipped_collective bash -c "$(declare -p mpi work); Skipped"
      Check 120 skipped_peers_collective bash -c "$(declare -p mpi work); Skipped --set execution.peer_memory=on"
      Check 180 stopped_rank bash -c "$(declare -p mpi work); Stopped"
      ;;
    bitwise)
      for model in gpt2_124m llama_160m; do
        Check 1200 "bitwise_$model" python3 tools/bench/bitwise_gpu.py "configs/$model.json" --ranks "$ranks" --steps 100
      done
      ;;
    ablations) Check 900 ablations python3 -B tools/bench/seeds.py --device "x$ranks" --ranks "$ranks" --out "$out" --budget-s 850 ;;
    *) echo "no stage '$stage'" >&2; exit 2 ;;
  esac
done
exit "$failed"

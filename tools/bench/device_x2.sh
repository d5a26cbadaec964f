#!/bin/bash
# device_x2.sh OUT [SECONDS [WHEEL]]: what the pages of tools/bench, and promises about several GPUs, need of two GPUs or of four, in order of worth, within SECONDS
# (540). Run from an unpacked package of a clean commit (tools/package OUT.tar.gz; with --tests for stages exchange and heap). Rows go to OUT/*.json, each as soon as
# it has run. Rows of this commit and machine that OUT or EARLIER has are not run again: run it until it says that nothing is left, then copy OUT/*.json into
# tools/bench/results and run tools/bench/tables.py.
#
#   WHEEL     Megatron-FSDP's (pip download --no-deps megatron-fsdp); without it that peer has no rows
#   EARLIER   variable: folder of JSON from earlier calls; tools/bench/results unless it is set
#   PYTHON    variable: one that has torch; python3 unless it is set. Hybrids' peers need mamba_ssm's folders ops/triton and utils in PYTHONPATH
#   OLD       variable: program of an earlier package, for stage gate
#   CARD      variable: of the files' names; h200 unless it is set
#   GPUS      variable: 2 or 4; unless it is set, as many as there are
#   STAGES    variable: of those below, in this order; all of that number of GPUs unless it is set
#
# On two: seeds     the five systems' comparisons, axes, hybrids, FP8 and Muon: seeds.py
#         small, large   beside the peers: headline.py
#         decode    a token of Llama 8B on two cards (tensor 2) beside one
#         exchange  dispatch and combine of experts' rows
#         measure, times, advice   a machine file of this host, step times that it predicts, and whether the advised plan is the fastest
#         bytes     what communicators count beside NVLink's own counters
#         hosts, heap   NCCL between two namespaces; heaps at the end of communicators
#         gate      step times beside OLD's
# On four: four (FP8, axes, experts and bits of seeds.py), large4 (beside the peers), exchange, measure, times, advice, gate
#
# Exit code 0: nothing is left; 3: the time was up, run it again; 1: a row failed; 2: wrong arguments.
set -uo pipefail
if (($# < 1 || $# > 3)) || [[ $1 == -* ]]; then
  sed -n '2,27s/^# \?//p' "$0" >&2
  exit 2
fi
limit=${2:-540} wheel=${3:-} python=${PYTHON:-python3} earlier=${EARLIER:-tools/bench/results} card=${CARD:-h200}
gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')}
if [[ -z ${GPUS:-} ]] && ((gpus != 4)); then gpus=2; fi
[[ $gpus =~ ^[24]$ ]] || { echo "device_x2.sh: GPUS is 2 or 4, not '$gpus'" >&2; exit 2; }
all="seeds small large decode exchange measure times advice bytes hosts heap gate"
((gpus == 2)) || all="four large4 exchange measure times advice gate"
read -ra stages <<<"${STAGES:-$all}"
[[ $limit =~ ^[0-9]+$ ]] || { echo "device_x2.sh: SECONDS is a whole number, not '$limit'" >&2; exit 2; }
[[ -z $wheel || -f $wheel ]] || { echo "device_x2.sh: no file $wheel" >&2; exit 2; }
for stage in "${stages[@]}"; do
  [[ " $all " == *" $stage "* ]] || { echo "device_x2.sh: no stage '$stage' on $gpus GPUs; there are ${all// /, }" >&2; exit 2; }
done
mkdir -p "$1" || exit 2
out=$(realpath "$1") failed=0 left=0 on="$card-x$gpus"
said=$(mktemp)
trap 'rm -f "$said"' EXIT
export NCCL_NVLS_ENABLE=0 PYTHONDONTWRITEBYTECODE=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Begin NAME LEAST: whether there is time for what takes LEAST seconds; `budget` is then what is left.
Begin() {
  budget=$((limit - SECONDS))
  ((budget < $2)) || return 0
  echo "$1: not begun, the time is up"
  left=1
  return 1
}

# Stage NAME COMMAND...: with what is left of the time as its budget.
Stage() {
  local name=$1 code=0
  shift
  Begin "$name" 10 || return 0
  "$@" --earlier "$earlier" --budget-s "$budget" 2>&1 | tee "$said" || code=$?
  ((code == 0)) || failed=1
  if grep -qE 'not begun, the budget|left out, the budget' "$said"; then left=1; fi
}

# Once FILE SECONDS COMMAND...: what COMMAND prints is OUT/FILE, and what it says otherwise OUT/FILE.log. Not where OUT/FILE is there.
Once() {
  local file=$1 most=$2 code=0
  shift 2
  [[ ! -s $out/$file ]] || return 0
  Begin "$file" "$most" || return 0
  timeout -k 10 "$most" "$@" >"$out/$file.part" 2>"$out/$file.log" || code=$?
  if ((code)); then
    failed=1
    echo "$file: exit code $code: $(tail -n 2 "$out/$file.log" | tr '\n' ' ' | cut -c1-300)"
    return
  fi
  mv "$out/$file.part" "$out/$file"
  echo "$file: done"
}

# Headline NAME CASE...: beside the peers, in two rounds.
Headline() {
  local name=$1
  shift
  Stage "$name" "$python" -B tools/bench/headline.py "$@" --ranks "$gpus" --rounds 2 --steps 20 --warmup 8 --sdpa cudnn --name "${on}_$name" \
    --out "$out/$name" --python "$python" ${wheel:+--megatron "$wheel"}
  cp "$out/$name"/headline_*.json "$out" 2>/dev/null
}

# Decode RANKS: steps of Llama 8B, a sequence on RANKS cards together.
Decode() {
  Once "decode_llama_8b_x$1.json" 150 bin/millrace -n "$1" bench configs/llama_8b.json --decode 1 --prompt-tokens 504 --warmup 8 --steps 308 --json \
    --set "parallel.tensor=$1" --set inference.slots=8 --set 'inference.decode=[1]' --set 'inference.prefill=[512]' --set inference.max_length=1024 \
    --set execution.programmatic_launch=end
}

mpi=(mpirun -n "$gpus" --bind-to none) machine=$out/machine_$on.json
for stage in "${stages[@]}"; do
  case $stage in
    seeds) Stage seeds "$python" -B tools/bench/seeds.py --device "$on" --out "$out" ;;
    four) Stage four "$python" -B tools/bench/seeds.py --device "$on" --ranks 4 --own --out "$out" ;;
    small) Headline small gpt2_124m_b64 gpt2_30m_b4 gpt2_124m_b4 ;;
    large) Headline large llama_1b_b4 ;;
    large4) Headline large llama_8b_b1 llama_1b_b8 gpt2_1558m_b16 ;;
    decode) Decode 1; Decode 2 ;;
    exchange) Once "exchange_$on.md" 60 "${mpi[@]}" bin/with-libs libexec/tests/exchange_bench ;;
    measure) Once "measure_$on.txt" 120 "${mpi[@]}" bin/millrace doctor --measure "$machine" ;;
    times)
      of_ranks=()
      ((gpus == 2)) || of_ranks=(--ranks "$gpus")
      Once "times_$on.txt" 240 "$python" -B tools/bench/step_times.py record "${of_ranks[@]}" --budget-s 220 --out "$out/step_times_$on.json"
      ;;
    advice)
      for model in gpt2_124m llama_1b; do
        Once "advice_${model}_$on.md" 240 "$python" -B tools/bench/advice.py "configs/$model.json" --ranks "$gpus" --machine "$machine" --out "$out/advice_${model}_$on.json"
      done
      ;;
    bytes) Once "bytes_$on.json" 180 "$python" -B tools/bench/wire_check.py --ranks "$gpus" --json ;;
    hosts) Once "hosts_$on.txt" 90 bash tools/bench/two_hosts_gpu.sh "$out/hosts" ;;
    heap) Once "heap_$on.txt" 150 bash tools/bench/heap_gpu.sh "$out/heap" ;;
    gate)
      if [[ -z ${OLD:-} ]]; then echo "gate: no program to compare with, OLD is not set"; else
        cases=(gpt2_30m:train.micro_batch=4 gpt2_124m:train.micro_batch=4 gpt2_124m:train.micro_batch=64)
        ((gpus == 2)) || cases=(llama_8b:train.micro_batch=1 llama_1b:train.micro_batch=8 gpt2_1558m:train.micro_batch=16)
        Once "gate_$on.md" 240 "$python" -B tools/bench/step_gate.py "$OLD" bin/millrace --ranks "$gpus" --out "$out/step_gate_$on.json" "${cases[@]/#/--case=}"
      fi
      ;;
  esac
done
((failed == 0)) || exit 1
((left == 0)) || { echo "the time was up: run the same command again"; exit 3; }
echo "nothing is left"

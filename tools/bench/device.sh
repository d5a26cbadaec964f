#!/bin/bash
# device.sh OUT [SECONDS [WHEEL]]: what the pages of tools/bench, and promises about GPUs, need of one GPU, two or four, in order of worth, within SECONDS
# (540). Run from an unpacked package of a clean commit (tools/package OUT.tar.gz; with --tests for stages exchange, heap and sanitize). What has run lies in OUT
# and is not run again; nor are rows of this commit and machine that EARLIER has: run it until it says that nothing is left, then copy OUT/*.json into
# tools/bench/results and run tools/bench/tables.py.
#
#   WHEEL     Megatron-FSDP's (pip download --no-deps megatron-fsdp); without it that peer has no rows
#   EARLIER   variable: folder of JSON from earlier calls; tools/bench/results unless it is set
#   PYTHON    variable: one that has torch; python3 unless it is set. In PYTHONPATH, hybrids' peers need mamba_ssm's folders ops/triton and utils, FP8's need
#             torchao, and stage grpo needs our wheel's package
#   OLD       variable: program of an earlier package, for stage gate
#   CARD      variable: of the files' names; h200 unless it is set
#   GPUS      variable: 1, 2 or 4; unless it is set, the most of these that there are
#   STAGES    variable: of those below, in this order; all of that number of GPUs unless it is set
#   ONLY      variable: groups of stages one, seeds and four, as seeds.py --groups takes them
#
# On one: one       what seeds.py has for one GPU alone: bits at Llama 8B's width, where a short step's time goes, a hybrid beside PyTorch
#         small, large   beside the peers: headline.py
#         decode, prefill   tokens per second; what a prompt takes beside the forward of training
#         generate  whether caches give what the training forward gives: generate_gpu.py, by family and precision
#         exact     whether answers have the bits of their scores under inference.exact: exact_gpu.py, by family and programmatic launch
#         grpo, documents   steps of GRPO beside PyTorch's; what data.document_mask costs
#         sanitize  our kernels under compute-sanitizer
#         gate      step times beside OLD's
# On two: seeds     the five systems' comparisons, axes, hybrids, FP8 and Muon: seeds.py
#         small, large
#         decode    a token of Llama 8B on two cards (tensor 2) beside one
#         exchange  dispatch and combine of experts' rows
#         measure, times, advice   a machine file of this host, step times that it predicts, and whether the advised plan is the fastest
#         bytes     what communicators count beside NVLink's own counters
#         hosts, heap   NCCL between two namespaces; heaps at the end of communicators
#         gate
# On four: four (FP8, axes, experts and bits of seeds.py), large4 (beside the peers), exchange, measure, times, advice, gate
#
# Exit code 0: nothing is left, or, as the last line says, only what cannot run here (grpo without our wheel's package, gate without OLD); 3: the time was up,
# run it again; 1: a row failed, or STAGES names what cannot run here; 2: wrong arguments.
set -uo pipefail
if (($# < 1 || $# > 3)) || [[ $1 == -* ]]; then
  sed -n '2,36s/^# \?//p' "$0" >&2
  exit 2
fi
limit=${2:-540} wheel=${3:-} python=${PYTHON:-python3} earlier=${EARLIER:-tools/bench/results} card=${CARD:-h200}
gpus=${GPUS:-}
if [[ -z $gpus ]]; then
  there=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
  for gpus in 4 2 1 0; do ((there < gpus)) || break; done
fi
case $gpus in
  1) all="one small large decode prefill generate exact grpo documents sanitize gate" ;;
  2) all="seeds small large decode exchange measure times advice bytes hosts heap gate" ;;
  4) all="four large4 exchange measure times advice gate" ;;
  *) echo "device.sh: GPUS is 1, 2 or 4, not '$gpus'" >&2; exit 2 ;;
esac
read -ra stages <<<"${STAGES:-$all}"
[[ $limit =~ ^[0-9]+$ ]] || { echo "device.sh: SECONDS is a whole number, not '$limit'" >&2; exit 2; }
[[ -z $wheel || -f $wheel ]] || { echo "device.sh: no file $wheel" >&2; exit 2; }
for stage in "${stages[@]}"; do
  [[ " $all " == *" $stage "* ]] || { echo "device.sh: no stage '$stage' on $gpus GPUs; there are ${all// /, }" >&2; exit 2; }
done
mkdir -p "$1" || exit 2
out=$(realpath "$1") failed=0 left=0 lacking=() on="$card-x$gpus"
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

# Stage NAME OPTION COMMAND...: with what is left of the time as its budget, which OPTION names. Exit code 3 is of a command whose time was up.
Stage() {
  local name=$1 option=$2 code=0
  shift 2
  Begin "$name" 10 || return 0
  "$@" "$option" "$budget" 2>&1 | tee "$said" || code=$?
  case $code in
    0) ;;
    3) left=1 ;;
    *) failed=1 ;;
  esac
  if grep -qE 'not begun, the budget|left out, the budget|: no time left for it' "$said"; then left=1; fi
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
    echo "$file: exit code $code: $(tail -qn 2 "$out/$file.log" "$out/$file.part" | tr '\n' ' ' | cut -c1-300)"
    return
  fi
  mv "$out/$file.part" "$out/$file"
  echo "$file: done"
}

# Lacks STAGE WHY: it cannot run here. A failure where STAGES asks for it.
Lacks() {
  echo "$1: cannot run here: $2"
  lacking+=("$1 ($2)")
  [[ -z ${STAGES:-} ]] || failed=1
}

# Seeds NAME OPTION...: rows of seeds.py.
Seeds() {
  local name=$1
  shift
  Stage "$name" --budget-s "$python" -B tools/bench/seeds.py --device "$on" --ranks "$gpus" ${ONLY:+--groups "$ONLY"} "$@" --out "$out" --earlier "$earlier"
}

# Headline NAME CASE...: beside the peers, in two rounds.
Headline() {
  local name=$1
  shift
  Stage "$name" --budget-s "$python" -B tools/bench/headline.py "$@" --ranks "$gpus" --rounds 2 --steps 20 --warmup 8 --sdpa cudnn --name "${on}_$name" \
    --out "$out/$name" --python "$python" ${wheel:+--megatron "$wheel"} --earlier "$earlier"
  cp "$out/$name"/headline_*.json "$out" 2>/dev/null
}

# Decode RANKS: steps of Llama 8B, a sequence on RANKS cards together.
Decode() {
  Once "decode_llama_8b_x$1.json" 150 bin/millrace -n "$1" bench configs/llama_8b.json --decode 1 --prompt-tokens 504 --warmup 8 --steps 308 --json \
    --set "parallel.tensor=$1" --set inference.slots=8 --set 'inference.decode=[1]' --set 'inference.prefill=[512]' --set inference.max_length=1024 \
    --set execution.programmatic_launch=end
}

# KeysOf STAGE MODULE NAME: `keys` are those of a dictionary in a script of this folder. A failure of STAGE where PYTHON does not say them.
KeysOf() {
  local lines program='import importlib, sys; sys.path.insert(0, "tools/bench"); print("\n".join(getattr(importlib.import_module(sys.argv[1]), sys.argv[2])))'
  if lines=$("$python" -B -c "$program" "$2" "$3" 2>"$said") && [[ -n $lines ]]; then
    mapfile -t keys <<<"$lines"
    return
  fi
  failed=1
  echo "$1: $python does not say what $3 of $2.py are: $(tail -n 1 "$said" | cut -c1-300)"
  return 1
}

mpi=(mpirun -n "$gpus" --bind-to none) machine=$out/machine_$on.json
for stage in "${stages[@]}"; do
  case $stage in
    one | four) Seeds "$stage" --own ;;
    seeds) Seeds seeds ;;
    small) Headline small gpt2_124m_b64 gpt2_30m_b4 gpt2_124m_b4 ;;
    large) Headline large llama_1b_b4 ;;
    large4) Headline large llama_8b_b1 llama_1b_b8 gpt2_1558m_b16 ;;
    decode)
      if ((gpus == 1)); then
        Stage decode --budget-s "$python" -B tools/bench/decode_gpu.py "$out/decode"
      else
        Decode 1
        Decode 2
      fi
      ;;
    prefill) Stage prefill --budget-s "$python" -B tools/bench/prefill_gpu.py "$out/prefill" ;;
    generate)
      KeysOf generate generate_gpu FAMILIES || continue
      for family in "${keys[@]}"; do
        for precision in fp32 bf16; do
          Once "generate_${family}_${precision}_$on.txt" 60 "$python" -B tools/bench/generate_gpu.py --program bin/millrace --only "$family" \
            --precision "$precision"
        done
      done
      ;;
    exact)
      KeysOf exact exact_gpu FAMILIES || continue
      for family in "${keys[@]}"; do
        for launch in off end; do
          Once "exact_${family}_${launch}_$on.txt" 60 "$python" -B tools/bench/exact_gpu.py --program bin/millrace --only "$family" \
            --set "execution.programmatic_launch=$launch"
        done
      done
      ;;
    grpo)
      KeysOf grpo grpo_gpu CASES || continue
      if ! "$python" -B -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("millrace") is None)'; then
        Lacks grpo "$python has no millrace, which our wheel brings"
      else
        for case in "${keys[@]}"; do
          Once "grpo_${case}_$on.md" 240 "$python" -B tools/bench/grpo_gpu.py "$out/grpo" --only "$case" --peer-python "$python" --budget-s 220
        done
      fi
      ;;
    documents) Once "documents_$on.md" 240 "$python" -B tools/bench/documents_gpu.py "$out/documents" --budget-s 220 ;;
    sanitize) Stage sanitize --seconds bash tools/bench/sanitize_gpu.sh "$out/sanitize" ;;
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
      if [[ -z ${OLD:-} ]]; then Lacks gate "no program to compare with, OLD is not set"; else
        cases=(gpt2_30m:train.micro_batch=4 gpt2_124m:train.micro_batch=4 gpt2_124m:train.micro_batch=64)
        ((gpus < 4)) || cases=(llama_8b:train.micro_batch=1 llama_1b:train.micro_batch=8 gpt2_1558m:train.micro_batch=16)
        Once "gate_$on.md" 240 "$python" -B tools/bench/step_gate.py "$OLD" bin/millrace --ranks "$gpus" --out "$out/step_gate_$on.json" "${cases[@]/#/--case=}"
      fi
      ;;
  esac
done
((failed == 0)) || exit 1
((left == 0)) || { echo "the time was up: run the same command again"; exit 3; }
if ((${#lacking[@]} == 0)); then echo "nothing is left"; else
  printf -v lacks ', %s' "${lacking[@]}"
  echo "nothing is left but what cannot run here: ${lacks#, }"
fi

#!/bin/bash
# device_x2.sh OUT [SECONDS [WHEEL]]: what the pages of tools/bench need of two GPUs, in order of worth, within SECONDS (540). Run from an unpacked
# package of a clean commit (tools/package OUT.tar.gz). Rows go to OUT/*.json, each as soon as it has run. Rows of this commit and machine that OUT or
# EARLIER has are not run again: run it until it says that nothing is left, then copy OUT/*.json into tools/bench/results and run tools/bench/tables.py.
#
#   WHEEL     Megatron-FSDP's (pip download --no-deps megatron-fsdp); without it that peer has no rows
#   EARLIER   variable: folder of JSON from earlier calls; tools/bench/results unless it is set
#   PYTHON    variable: one that has torch; python3 unless it is set
#   STAGES    variable: of "seeds small large", in this order; all unless it is set
#
# Exit code 0: nothing is left; 3: the time was up, run it again; 1: a row failed; 2: wrong arguments.
set -uo pipefail
if (($# < 1 || $# > 3)) || [[ $1 == -* ]]; then
  sed -n '2,11s/^# \?//p' "$0" >&2
  exit 2
fi
limit=${2:-540} wheel=${3:-} python=${PYTHON:-python3} earlier=${EARLIER:-tools/bench/results}
read -ra stages <<<"${STAGES:-seeds small large}"
[[ $limit =~ ^[0-9]+$ ]] || { echo "device_x2.sh: SECONDS is a whole number, not '$limit'" >&2; exit 2; }
[[ -z $wheel || -f $wheel ]] || { echo "device_x2.sh: no file $wheel" >&2; exit 2; }
for stage in "${stages[@]}"; do
  [[ $stage =~ ^(seeds|small|large)$ ]] || { echo "device_x2.sh: no stage '$stage'; there are seeds, small and large" >&2; exit 2; }
done
mkdir -p "$1" || exit 2
out=$(realpath "$1") failed=0 left=0
said=$(mktemp)
trap 'rm -f "$said"' EXIT
export NCCL_NVLS_ENABLE=0 PYTHONDONTWRITEBYTECODE=1

# Stage NAME COMMAND...: with what is left of the time as its budget.
Stage() {
  local name=$1 budget=$((limit - SECONDS)) code=0
  shift
  if ((budget < 10)); then
    echo "$name: not begun, the time is up"
    left=1
    return
  fi
  "$@" --earlier "$earlier" --budget-s "$budget" 2>&1 | tee "$said" || code=$?
  ((code == 0)) || failed=1
  if grep -qE 'not begun, the budget|left out, the budget' "$said"; then left=1; fi
}

# Headline NAME CASE...: beside the peers, in two rounds.
Headline() {
  local name=$1
  shift
  Stage "$name" "$python" -B tools/bench/headline.py "$@" --ranks 2 --rounds 2 --steps 20 --warmup 8 --sdpa cudnn --name "h200-x2_$name" \
    --out "$out/$name" --python "$python" ${wheel:+--megatron "$wheel"}
  cp "$out/$name"/headline_*.json "$out" 2>/dev/null
}

for stage in "${stages[@]}"; do
  case $stage in
    seeds) Stage seeds "$python" -B tools/bench/seeds.py --device h200-x2 --out "$out" ;;
    small) Headline small gpt2_124m_b64 gpt2_30m_b4 ;;
    large) Headline large llama_1b_b4 ;;
  esac
done
((failed == 0)) || exit 1
((left == 0)) || { echo "the time was up: run the same command again"; exit 3; }
echo "nothing is left"

#!/bin/bash
# heap_gpu.sh OUT [SECONDS]: whether the heap of a process whose ranks are threads breaks when NCCL's communicators are destroyed, with
# NCCL_CUMEM_ENABLE=0 (what tests set) and with 1 (NCCL's default): tests/comm/nccl/README.md. Run from an unpacked package made with --tests,
# on two GPUs or more. For each of the two, SECONDS (default 55) of `peer_steps_test` and of `engine_lives 30 2 step` in turn, five at a
# time. A line per setting: programs that ended well, broken heaps (glibc's words, or a signal), and others. Exit 1: a broken heap with 0.
set -uo pipefail
[[ $# -ge 1 && $1 != -* ]] || { sed -n '2,6s/^# \?//p' "$0" >&2; exit 2; }
mkdir -p "$1" || exit 2
out=$(realpath "$1") seconds=${2:-55}

# One SETTING NUMBER: programs until the time is over. A line per program: its exit code, and the log's name.
One() {
  local end=$((SECONDS + seconds)) round=0 code name
  while ((SECONDS < end)); do
    round=$((round + 1)) code=0 name=cumem$1.$2.$round
    local command=(libexec/tests/peer_steps_test)
    ((round % 2)) || command=(libexec/tests/engine_lives 30 2 step)
    NCCL_CUMEM_ENABLE=$1 timeout -k 5 60 bin/with-libs "${command[@]}" >"$out/$name.log" 2>&1 || code=$?
    echo "$code $name.log"
  done
}

worst=0
for setting in 0 1; do
  jobs=()
  for number in 1 2 3 4 5; do
    One "$setting" "$number" >"$out/cumem$setting.$number.codes" &
    jobs+=($!)
  done
  wait "${jobs[@]}"
  well=0 broken=0 other=0
  while read -r code log; do
    if ((code == 0)); then
      well=$((well + 1))
    elif ((code >= 128 && code != 137)) || grep -qE 'double free|corrupted|malloc\(\)|free\(\)' "$out/$log"; then
      broken=$((broken + 1))
    else
      other=$((other + 1))
    fi
  done < <(cat "$out/cumem$setting".*.codes)
  echo "NCCL_CUMEM_ENABLE=$setting: $well ended well, $broken broken heaps, $other other failures (logs in $out)"
  if ((setting == 0 && broken > 0)); then worst=1; fi
done
exit "$worst"

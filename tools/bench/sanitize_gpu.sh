#!/bin/bash
# sanitize_gpu.sh OUT [--seconds N] [--only REGEX] [--jobs N] [--list]: our kernels under compute-sanitizer's memcheck, racecheck, initcheck and
# synccheck. Run from an unpacked package made with --tests, on a host with one GPU or more. A row per tool and program; each row's
# result lies in OUT/rows, so that a later call goes on where this one stopped. Prints the table of all rows so far.
#
# --seconds N    no row begins, or goes on, later than that (default 560: a host may end a command after ten minutes)
# --only REGEX   of names TOOL.PROGRAM; rows that match are run again unless they have passed
# --jobs N       processes at a time of a row that has one per test case (default 6); they take turns on the card
# --list         the names of the rows, in order
#
# The first four rows run planted_faults: each tool must find the fault there, and it must be told to be ours. memcheck and initcheck see
# all kernels, racecheck and synccheck (which look at shared memory and barriers of one kernel) ours alone. Peers' kernels run with two
# ranks on one card: as processes that take turns on it, for initcheck as threads, since it must see the stores of both.
# Exit 1: a row failed. Exit 3: rows are left.
set -uo pipefail
[[ $# -ge 1 && $1 != -* ]] || { sed -n '2,15s/^# \?//p' "$0" >&2; exit 2; }
mkdir -p "$1/rows" || exit 2
out=$(realpath "$1") limit=560 only=. jobs=6 list=false
shift
while (($#)); do
  case $1 in
    --seconds) limit=${2:?--seconds needs a number}; shift ;;
    --only) only=${2:?--only needs a regular expression}; shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    --list) list=true ;;
    *) echo "sanitize_gpu.sh: unknown argument '$1'; allowed: --seconds N, --only REGEX, --jobs N, --list" >&2; exit 2 ;;
  esac
  shift
done
here=$(dirname "$(realpath "$0")")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# TOOL|PROGRAM|MOST SECONDS|HOW|CASES: HOW is one, cases (a process for each test case), processes or threads (two ranks on one card); CASES are
# Catch2's, separated by commas.
own_attention='our own attention*,the gradient of our own attention,the gradient in turn*,gradients in turn end*,attention by the implementation*,forward alone*'
own_context='our own kernels*'
products='matmul*,column_sum,column sums*,a bf16 gradient*,a captured product*'
peer_cases='an all-gather puts*,a reduce-scatter has*,a gather of rounded*,rounds of three*,what peers cannot*,ranks in different*'
rows=()
for tool in memcheck racecheck initcheck synccheck; do rows+=("$tool|planted_faults|60|one|$tool"); done
for tool in memcheck racecheck synccheck initcheck; do
  # A draw's thousands of rows take racecheck more than five minutes: 55 of its repeats gave no report (H100, 2026-11-24).
  contract_how=one contract_cases=
  if [[ $tool == racecheck ]]; then contract_how=cases contract_cases='~sample*'; fi
  rows+=("$tool|contract_test|400|$contract_how|$contract_cases" "$tool|rows_test|400|one|" "$tool|step_test|200|one|" "$tool|tickets_test|120|one|")
  if [[ $tool == initcheck ]]; then how=threads peer_most=90; else how=processes peer_most=240; fi
  rows+=("$tool|peer_test|$peer_most|$how|$peer_cases" "$tool|peer_sums_test|$peer_most|$how|~a thousand*" "$tool|peer_marks_test|$peer_most|$how|"
         "$tool|attention_test|300|one|$own_attention" "$tool|launch_test|120|one|"
         "$tool|cuda_mark_test|60|one|" "$tool|cuda_copies_test|60|one|" "$tool|mamba_test|300|one|" "$tool|context_attention_test|300|one|$own_context"
         "$tool|cached_attention_test|300|one|" "$tool|packed_attention_test|300|one|" "$tool|in_order_row_test|300|one|")
  # racecheck ends in an internal error of its own beside cuBLASLt's products (CUDA 13.0, H100 and H200). Ours there are contract_test's, too.
  [[ $tool == racecheck ]] || rows+=("$tool|matmul_test|400|one|$products")
done

# Cases PROGRAM CASES: the names of its test cases, as Catch2 takes them; it exits with their number.
Cases() {
  local names
  names=$(bin/with-libs "libexec/tests/$1" --list-test-names-only ${2:+"$2"}) || true
  sed 's/,/\\,/g' <<<"$names"
}

# Row TOOL PROGRAM SECONDS HOW CASES
Row() {
  local tool=$1 program=$2 most=$3 how=$4 cases=$5 name=$1.$2 code=0 began=$SECONDS
  local sanitizer=(compute-sanitizer --tool "$tool" --print-limit 10000 --log-file "$out/$name.%p.san")
  local command=("libexec/tests/$program") extra=()
  case $tool in
    racecheck | synccheck) sanitizer+=(--kernel-name kns=millrace) ;;
  esac
  # Under mpirun Catch2 takes its output for a terminal's.
  if [[ $program == planted_faults ]]; then extra=(--expect-report); else command+=(--use-colour no); fi
  [[ -z $cases ]] || command+=("$cases")
  rm -f "$out/$name".*.san
  case $how in
    one) command=("${sanitizer[@]}" "${command[@]}") ;;
    cases) command=("${sanitizer[@]}" "libexec/tests/$program" --use-colour no '{}') ;;
    processes)
      command=(env MILLRACE_TEST_ONE_GPU=1 MILLRACE_TEST_LAUNCHES=3 mpirun -n 2 --bind-to none -x MILLRACE_TEST_ONE_GPU -x MILLRACE_TEST_LAUNCHES
               "${sanitizer[@]}" "${command[@]}") ;;
    threads)
      command=(env MILLRACE_TEST_ONE_GPU=1 MILLRACE_TEST_RANKS=2 MILLRACE_TEST_LAUNCHES=3 CUDA_MODULE_LOADING=EAGER CUDA_DEVICE_MAX_CONNECTIONS=32
               "${sanitizer[@]}" "${command[@]}") ;;
  esac
  if [[ $how == cases ]]; then
    Cases "$program" "$cases" >"$out/$name.cases"
    command=(xargs -d '\n' -P "$jobs" -I '{}' bash -c '"$@" >>"$0.$$.log"' "$out/$name" bin/with-libs "${command[@]}")
    rm -f "$out/$name".*.log
    timeout -k 10 "$most" "${command[@]}" <"$out/$name.cases" 2>"$out/$name.err" || code=$?
    cat "$out/$name".*.log "$out/$name.err" >"$out/$name.log"
  else
    timeout -k 10 "$most" bin/with-libs "${command[@]}" >"$out/$name.log" 2>&1 || code=$?
  fi
  local logs=()
  mapfile -t logs < <(compgen -G "$out/$name.*.san")
  # Threads are one process: one log, one summary of the tests.
  python3 "$here/sanitizer_log.py" "${logs[@]}" --program-log "$out/$name.log" --exit-code "$code" --tool "$tool" --program "$program" \
    --seconds $((SECONDS - began)) "${extra[@]}" >"$out/rows/$name.json" || { echo "sanitize_gpu.sh: $name: its log cannot be read" >&2; return; }
  echo "$name: $(cut -c1-300 "$out/rows/$name.json")"
}

left=0 results=()
for row in "${rows[@]}"; do
  IFS='|' read -r tool program most how cases <<<"$row"
  name=$tool.$program
  if $list; then echo "$name"; continue; fi
  results+=("$out/rows/$name.json")
  [[ $name =~ $only ]] || continue
  ! grep -qs '"verdict": "pass"' "$out/rows/$name.json" || continue
  rest=$((limit - SECONDS))
  if ((rest < 20)); then left=$((left + 1)); continue; fi
  Row "$tool" "$program" $((most < rest ? most : rest)) "$how" "$cases"
  if [[ $program == planted_faults ]] && ! grep -qs '"verdict": "pass"' "$out/rows/$name.json"; then
    echo "sanitize_gpu.sh: $tool does not find the planted fault, so nothing that it says later is worth anything" >&2
  fi
done
! $list || exit 0
done_rows=()
for result in "${results[@]}"; do [[ ! -s $result ]] || done_rows+=("$result"); done
((${#done_rows[@]} == 0)) || python3 "$here/sanitizer_log.py" --table "${done_rows[@]}" | tee "$out/table.md"
! grep -qs '"verdict": "FAIL"' "${done_rows[@]}" || exit 1
((left == 0)) || { echo "$left rows are left: call again"; exit 3; }
! grep -qs '"verdict": "time"' "${done_rows[@]}" || exit 3

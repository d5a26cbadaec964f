#!/bin/bash
# A case that could not run counts as skipped, from the program that leaves it out to the counts of tools/test.
set -uo pipefail

program=$PWD/tests/build/skip_program
root=$PWD
folder=$(mktemp -d "$TEST_TMPDIR/skipped.XXXXXX")
bad=0

# ExpectLines NAME FILE LINE...: the lines of the file that are about skipping.
ExpectLines() {
  local name=$1 file=$2
  shift 2
  diff <(printf '%s\n' "$@") <(grep '^skipped' "$file") || { echo "FAILED: $name"; bad=1; }
}

"$program" '[some]' >"$folder/some" || { echo "FAILED: cases that are left out are no failures"; bad=1; }
ExpectLines "some are left out" "$folder/some" "skipped case: is left out: needs 2 GPUs, 1 visible" \
  "skipped case: is left out: needs 4 GPUs, 1 visible" "skipped case: runs in part: needs 2 GPUs, 1 visible"
"$program" '[none]' >"$folder/none" || { echo "FAILED: no case ran: no failure"; bad=1; }
ExpectLines "all are left out" "$folder/none" "skipped case: is left out: needs 2 GPUs, 1 visible" \
  "skipped case: is left out: needs 4 GPUs, 1 visible" "skipped all"
"$program" runs >"$folder/runs" || { echo "FAILED: a plain case"; bad=1; }
! grep '^skipped' "$folder/runs" || { echo "FAILED: nothing is left out"; bad=1; }

# Events as Bazel writes them: a test of one log, one of two shards, one that failed.
Event() {
  printf '{"id":{"testResult":{"label":"%s","run":1,"shard":%s,"attempt":1}},"testResult":{"testActionOutput":[{"name":"test.log","uri":"file://%s"},{"name":"test.xml","uri":"file:///none"}],"status":"%s"}}\n' "$@"
}
{
  echo '{"id":{"started":{}},"started":{"uuid":"1"}}'
  Event //t:some 1 "$folder/some" PASSED
  Event //t:none 1 "$folder/none" PASSED
  Event //t:half 1 "$folder/runs" PASSED
  Event //t:half 2 "$folder/none" PASSED
  Event //t:broken 1 "$folder/none" FAILED
} >"$folder/events"
printf '//t:%-60s %s\n' some 'PASSED in 1.0s' none '(cached) PASSED in 1.0s' half 'PASSED in 2.0s' broken 'FAILED in 1.0s' gone SKIPPED >"$folder/log"

source tools/lib/results.sh
CountResults stage "$folder/log" "$folder/events" >"$folder/out"
diff - "$folder/out" <<'LINES' || { echo "FAILED: what is named"; bad=1; }
skipped: //t:half: is left out: needs 2 GPUs, 1 visible
skipped: //t:half: is left out: needs 4 GPUs, 1 visible
skipped: //t:none: is left out: needs 2 GPUs, 1 visible
skipped: //t:none: is left out: needs 4 GPUs, 1 visible
skipped: //t:some: is left out: needs 2 GPUs, 1 visible
skipped: //t:some: is left out: needs 4 GPUs, 1 visible
skipped: //t:some: runs in part: needs 2 GPUs, 1 visible
LINES
[[ "$passed $failed $skipped ${failures[*]}" == "2 1 8 stage //t:broken: FAILED" ]] || { echo "FAILED: counts: $passed $failed $skipped"; bad=1; }

failed=0 failures=()
CountResults stage /dev/null "$folder/no_events" >"$folder/out" 2>&1
((failed == 1)) || { echo "FAILED: events that cannot be read pass in silence"; bad=1; }

((bad == 0)) && echo "all as promised"
exit "$bad"

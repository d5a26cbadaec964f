#!/bin/bash
# What became of each test, from the program that leaves cases out to the counts of tools/test.
set -uo pipefail

program=$PWD/tests/build/skip_program
root=$PWD
folder=$(mktemp -d "$TEST_TMPDIR/results.XXXXXX")
bad=0

Fail() {
  echo "FAILED: $*"
  bad=1
}

# ExpectLines NAME FILE LINE...: the lines of the file that are about skipping.
ExpectLines() {
  local name=$1 file=$2
  shift 2
  diff <(printf '%s\n' "$@") <(grep '^skipped' "$file") || Fail "$name"
}

"$program" '[some]' >"$folder/some" || Fail "cases that are left out are no failures"
ExpectLines "some are left out" "$folder/some" "skipped case: is left out: needs 2 GPUs, 1 visible" \
  "skipped case: is left out: needs 4 GPUs, 1 visible" "skipped case: runs in part: needs 2 GPUs, 1 visible"
"$program" '[none]' >"$folder/none" || Fail "no case ran: no failure"
ExpectLines "all are left out" "$folder/none" "skipped case: is left out: needs 2 GPUs, 1 visible" \
  "skipped case: is left out: needs 4 GPUs, 1 visible" "skipped all"
"$program" runs >"$folder/runs" || Fail "a plain case"
! grep '^skipped' "$folder/runs" || Fail "nothing is left out"
seq -f 'line %g' 100 >"$folder/broken"
printf '9 passed, 0 failed, 0 skipped\n' >>"$folder/broken"
printf 'Terminated\n' >"$folder/slow"

# Events as Bazel 4.2.3 writes them, of `bazel test --test_tag_filters=unit,-long`.
# Test TARGET COMPLETED [TAGS]: what became of building it. Result TARGET SHARD LOG STATUS: one run of
# it. Summary TARGET STATUS RUNS CACHED [LOG]: of all its runs; LOG is one of a run that did not pass.
# Only tests that ran have one.
built='"completed":{"success":true}' broken='"completed":{"failureDetail":{}}'
foreign='"aborted":{"reason":"SKIPPED"}'
Test() {
  printf '{"id":{"targetConfigured":{"label":"%s"}},"configured":{"testSize":"SMALL","tag":[%s]}}\n' "$1" "${3-\"unit\"}"
  printf '{"id":{"targetCompleted":{"label":"%s","configuration":{"id":"c"}}},%s}\n' "$1" "$2"
}
Result() {
  printf '{"id":{"testResult":{"label":"%s","run":1,"shard":%s,"attempt":1}},"testResult":{"testActionOutput":[{"name":"test.log","uri":"file://%s"},{"name":"test.xml","uri":"file:///none"}],"status":"%s"}}\n' "$@"
}
Summary() {
  local log=
  [[ -z ${5:-} ]] || log="\"failed\":[{\"uri\":\"file://$5\"}],"
  printf '{"id":{"testSummary":{"label":"%s","configuration":{"id":"c"}}},"testSummary":{%s"overallStatus":"%s","totalRunCount":%s,"totalNumCached":%s}}\n' \
    "$1" "$log" "$2" "$3" "$4"
}
last='{"id":{"progress":{"opaqueCount":12}},"progress":{},"lastMessage":true}'
Begin() {
  echo '{"id":{"started":{}},"children":[{"progress":{}}],"started":{"uuid":"1"}}'
  echo '{"id":{"optionsParsed":{}},"optionsParsed":{"cmdLine":["--keep_going","--test_tag_filters=unit,-long"]}}'
}
{
  Begin
  for name in some none half flaky broken slow lost; do Test "//t:$name" "$built"; done
  echo '{"id":{"targetConfigured":{"label":"//t:library"}},"configured":{"targetKind":"cc_library rule"}}'
  echo '{"id":{"targetCompleted":{"label":"//t:library"}},"completed":{}}'
  Test //t:foreign "$foreign"
  Test //t:typo "$broken"
  Test //t:never_built '"aborted":{"reason":"USER_INTERRUPTED"}'
  for name in built broken foreign; do Test "//t:not_chosen_$name" "${!name}" '"unit","long"'; done
  Test //t:not_chosen_either "$broken" '"system"'
  Test //t:not_tagged "$broken" ""
  Result //t:some 1 "$folder/some" PASSED
  Summary //t:some PASSED 1 0
  Result //t:none 1 "$folder/none" PASSED
  Summary //t:none PASSED 1 1
  Result //t:half 1 "$folder/runs" PASSED
  Result //t:half 2 "$folder/none" PASSED
  Summary //t:half PASSED 2 2
  Result //t:flaky 1 "$folder/broken" FAILED
  Result //t:flaky 1 "$folder/runs" PASSED
  Summary //t:flaky FLAKY 2 1 "$folder/broken"
  Result //t:broken 1 "$folder/none" FAILED
  Summary //t:broken FAILED 1 0 "$folder/broken"
  Result //t:slow 1 "$folder/slow" TIMEOUT
  Summary //t:slow TIMEOUT 1 0 "$folder/slow"
} >"$folder/begin"
cat "$folder/begin" - <<<"$last" >"$folder/events"

source tools/lib/results.sh
CountResults stage "$folder/events" >"$folder/out"
diff - "$folder/out" <<'LINES' || Fail "what is named"
flaky: //t:flaky
skipped: //t:half: is left out: needs 2 GPUs, 1 visible
skipped: //t:half: is left out: needs 4 GPUs, 1 visible
skipped: //t:none: is left out: needs 2 GPUs, 1 visible
skipped: //t:none: is left out: needs 4 GPUs, 1 visible
skipped: //t:some: is left out: needs 2 GPUs, 1 visible
skipped: //t:some: is left out: needs 4 GPUs, 1 visible
skipped: //t:some: runs in part: needs 2 GPUs, 1 visible
stage: 3 tests passed, 1 of them from Bazel's cache
LINES
# Passed: some, half, flaky. Skipped: seven cases, the test none, the target foreign.
[[ "$passed $failed $skipped" == "3 5 9" ]] || Fail "counts: $passed $failed $skipped"
diff <(
  echo "stage //t:broken: FAILED"
  echo "stage //t:lost: NO STATUS"
  echo "stage //t:never_built: NO STATUS"
  echo "stage //t:slow: TIMEOUT"
  echo "stage //t:typo: FAILED TO BUILD"
) <(printf '%s\n' "${failures[@]}") || Fail "failures, a line each"

# At the end all failures come before any log; of logs that name no failure, the last lines.
diff <(
  printf 'failed: %s\n' "${failures[@]}"
  echo "stage //t:broken: FAILED"
  seq -f '  | line %g' 90 100
  echo "  | 9 passed, 0 failed, 0 skipped"
  echo "stage //t:slow: TIMEOUT"
  echo "  | Terminated"
) <(PrintFailures) || Fail "failures, then the last lines of their logs"
# Of 150 characters the first log has half, and the second more than that, as far as it needs it.
diff <(
  printf 'failed: %s\n' "${failures[@]}"
  echo "stage //t:broken: FAILED"
  seq -f '  | line %g' 90 93
  echo "stage //t:slow: TIMEOUT"
  echo "  | Terminated"
) <(PrintFailures 150) || Fail "shares of the room for logs"

# ExpectExcerpt NAME LINE...: of the log on standard input.
ExpectExcerpt() {
  local name=$1
  shift
  cat >"$folder/log"
  diff <(printf '%s\n' "$@") <(tools/lib/test_excerpt.py "$folder/log") || Fail "excerpt of $name"
}
rule=----------------------------------------------------------------------
ExpectExcerpt unittest "FAIL: test_two" "AssertionError: 1 != 2 : why" '  File "tests/cli/a_test.py", line 7, in expect' \
  "    self.assertEqual(1, 2, 'why')" "ERROR: test_three" "FileNotFoundError: [Errno 2] No such file: 'run/log'" \
  '  File "tests/cli/a_test.py", line 9, in test_three' "    os.stat('run/log')" <<END
ERROR: what a program said
test_one (__main__.A.test_one) ... ok
======================================================================
FAIL: test_two (__main__.A.test_two)
$rule
Traceback (most recent call last):
  File "/cache/bazel/0/execroot/millrace/bazel-out/k8-opt/bin/a_test.runfiles/millrace/tests/cli/a_test.py", line 3, in test_two
    self.expect()
  File "/cache/bazel/0/execroot/millrace/bazel-out/k8-opt/bin/a_test.runfiles/millrace/tests/cli/a_test.py", line 7, in expect
    self.assertEqual(1, 2, 'why')
AssertionError: 1 != 2 : why

======================================================================
ERROR: test_three (__main__.A.test_three)
$rule
Traceback (most recent call last):
  File "/cache/bazel/0/execroot/millrace/bazel-out/k8-opt/bin/a_test.runfiles/millrace/tests/cli/a_test.py", line 9, in test_three
    os.stat('run/log')
  File "<frozen genericpath>", line 50, in getsize
FileNotFoundError: [Errno 2] No such file: '/cache/bazel/0/execroot/millrace/_tmp/0ff/run/log'

$rule
Ran 3 tests in 0.1s
END
ExpectExcerpt Catch2 "case: sums are equal / of two ranks" "tests/a_test.cc:9: FAILED:" "  REQUIRE( a == b )" "with expansion:" \
  "  1 == 2" "tests/a_test.cc:8: FAILED:" "due to unexpected exception with message:" "  no" <<END
$rule
sums are equal
  of two ranks
$rule
tests/a_test.cc:4
......................................................................

tests/a_test.cc:9: FAILED:
  REQUIRE( a == b )
with expansion:
  1 == 2

tests/a_test.cc:8: FAILED:
due to unexpected exception with message:
  no

======================================================================
test cases: 1 | 1 failed
END
ExpectExcerpt ThreadSanitizer "WARNING: ThreadSanitizer: data race (pid=1)" "    #1 millrace::Add(int) runtime/exec/sum.cc:5 (a_test+0x1)" \
  "SUMMARY: ThreadSanitizer: data race /usr/include/x.h:1 in Of" <<'END'
WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 8 at 0x7f by thread T2:
    #0 Of(int) /usr/include/x.h:1 (a_test+0x2)
    #1 millrace::Add(int) runtime/exec/sum.cc:5 (a_test+0x1)
SUMMARY: ThreadSanitizer: data race /usr/include/x.h:1 in Of
END
ExpectExcerpt "undefined behaviour" "kernels/cpu/a.cc:3:5: runtime error: signed integer overflow" "    #0 Add kernels/cpu/a.cc:3" <<'END'
kernels/cpu/a.cc:3:5: runtime error: signed integer overflow
    #0 Add kernels/cpu/a.cc:3
END
# Each failure is named while there is room for it, and gives up its last lines first.
ExpectExcerpt "a script" "FAILED: one" "FAILED: two" <<<$'noise\nFAILED: one\n1c1\nFAILED: two'
ExpectExcerpt "a long failure between short ones" "FAILED: 1" "a.cc:1: FAILED:" "  2" "  3" "  4" "  5" "FAILED: 3" \
  "FAILED: 4" "FAILED: 5" "FAILED: 6" "FAILED: 7" "FAILED: 8" <<<"$(echo FAILED: 1; echo a.cc:1: FAILED:; seq -f '  %g' 2 9; echo; seq -f 'FAILED: %g' 3 8)"
mapfile -t first < <(seq -f 'FAILED: %g' 11)
ExpectExcerpt "many failures" "${first[@]}" "and 9 more failures" < <(seq -f 'FAILED: %g' 20)

# ExpectUnreadable NAME EVENTS
ExpectUnreadable() {
  passed=0 failed=0 failures=()
  CountResults stage "$2" >"$folder/out" 2>&1
  [[ "$passed $failed" == "0 1" ]] || Fail "$1 pass in silence: $passed $failed"
}
ExpectUnreadable "events that are not there" "$folder/no_events"
ExpectUnreadable "events that end before the build did" "$folder/begin"
{
  Begin
  Test //t:some "$built"
  Result //t:some 1 "$folder/no_log" PASSED
  Summary //t:some PASSED 1 0
  echo "$last"
} >"$folder/no_log_events"
ExpectUnreadable "logs that are not there" "$folder/no_log_events"

((bad == 0)) && echo "all as promised"
exit "$bad"

# Counting what tests said. Sourced, not run; `root` is the repository.

passed=0 failed=0 skipped=0
failures=()  # "STAGE TARGET: STATUS", and on further lines the end of the test's logs

# CountResults STAGE EVENTS: adds the results of a `bazel test`, whose --build_event_json_file is
# EVENTS. A case that could not run on this machine counts as skipped, and is named; so does a test
# of which nothing ran, which else has passed.
CountResults() {
  local stage=$1 kind target text logs= from_cache=0 now=0 cached=0
  while IFS=$'\t' read -r kind target text; do
    case $kind in
      case)
        skipped=$((skipped + 1))
        echo "skipped: $target: $text"
        ;;
      cached) from_cache=1 ;;
      log) logs+=$'\n'$(LogEnd "$text") ;;
      status)
        case $text in
          PASSED | FLAKY)
            now=$((now + 1)) cached=$((cached + from_cache))
            [[ $text == PASSED ]] || echo "flaky: $target"
            ;;
          SKIPPED) skipped=$((skipped + 1)) ;;
          *) failed=$((failed + 1)) failures+=("$stage $target: $text$logs") ;;
        esac
        logs= from_cache=0
        ;;
      unreadable)
        failed=$((failed + 1))
        failures+=("$stage: what became of the tests is not known: Bazel's events cannot be read")
        ;;
    esac
  done < <("$root/tools/lib/test_results.py" "$2" || echo unreadable)
  passed=$((passed + now))
  echo "$stage: $now tests passed, $cached of them from Bazel's cache"
}

# LogEnd LOG: its last lines, for people. Indented, so that no line of a test is taken for one of
# ours.
LogEnd() {
  echo "  $1:"
  tail -n 40 "$1" 2>&1 | cut -c 1-300 | sed 's/^/  | /'
}

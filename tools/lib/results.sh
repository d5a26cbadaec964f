# Counting what tests said. Sourced, not run; `root` is the repository.

passed=0 failed=0 skipped=0
failures=()  # "STAGE TARGET: STATUS", one line each
excerpts=()  # of some: that line, and below it what the test's logs say of it

# CountResults STAGE EVENTS: adds the results of a `bazel test`, whose --build_event_json_file is
# EVENTS. A case that could not run on this machine counts as skipped, and is named; so does a test
# of which nothing ran, which else has passed.
CountResults() {
  local stage=$1 kind target text logs= from_cache=0 now=0 cached=0 failure
  while IFS=$'\t' read -r kind target text; do
    case $kind in
      case)
        skipped=$((skipped + 1))
        echo "skipped: $target: $text"
        ;;
      cached) from_cache=1 ;;
      log) logs+=$'\n'$(Excerpt "$text") ;;
      status)
        case $text in
          PASSED | FLAKY)
            now=$((now + 1)) cached=$((cached + from_cache))
            [[ $text == PASSED ]] || echo "flaky: $target"
            ;;
          SKIPPED) skipped=$((skipped + 1)) ;;
          *)
            failure="$stage $target: $text"
            failed=$((failed + 1)) failures+=("$failure")
            [[ -z $logs ]] || excerpts+=("$failure$logs")
            ;;
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

# Excerpt LOG: what went wrong in it, in at most 12 lines. Indented, so that no line of a test is taken
# for one of ours. Bazel has said where the log is.
Excerpt() {
  "$root/tools/lib/test_excerpt.py" "$1" 2>&1 | sed 's/^/  | /'
}

# PrintFailures [CHARACTERS]: all of `failures` first, a line each, for whoever keeps no more than the
# beginning of this; then `excerpts`, in at most CHARACTERS (4000). Each has an equal share of that, and
# of what those before it did not need; a longer one loses its last lines.
PrintFailures() {
  local left=${1:-4000} rest=${#excerpts[@]} text
  ((${#failures[@]} == 0)) || printf 'failed: %s\n' "${failures[@]}"
  for text in "${excerpts[@]}"; do
    while ((${#text} + 1 > left / rest)) && [[ $text == *$'\n'* ]]; do text=${text%$'\n'*}; done
    left=$((left - ${#text} - 1)) rest=$((rest - 1))
    [[ $text != *$'\n'* ]] || printf '%s\n' "$text"
  done
}

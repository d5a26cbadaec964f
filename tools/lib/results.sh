# Counting what tests said. Sourced, not run; `root` is the repository.

passed=0 failed=0 skipped=0
failures=()  # "STAGE TARGET: STATUS"

# CountResults STAGE LOG EVENTS: adds the results of a `bazel test`. LOG is its output, EVENTS its --build_event_json_file.
# A case that could not run on this machine counts as skipped, and is named; so does a test of which nothing ran, which else has passed.
CountResults() {
  local stage=$1 log=$2 events=$3 target status kind text
  local -A nothing_ran=()
  while IFS=$'\t' read -r kind target text; do
    case $kind in
      all) nothing_ran[$target]=1 ;;
      case)
        skipped=$((skipped + 1))
        echo "skipped: $target: $text"
        ;;
      unreadable) failed=$((failed + 1)) failures+=("$stage: which cases were skipped is not known: no events of Bazel's can be read") ;;
    esac
  done < <("$root/tools/lib/skipped_cases.py" "$events" || echo unreadable)
  while read -r target status; do
    case $status in
      PASSED | FLAKY) [[ -n ${nothing_ran[$target]:-} ]] || passed=$((passed + 1)) ;;
      SKIPPED) skipped=$((skipped + 1)) ;;
      *) failed=$((failed + 1)) failures+=("$stage $target: $status") ;;
    esac
  done < <(sed -n -E 's#^(//[^ ]+) +(\(cached\) )?(PASSED|FLAKY|SKIPPED|FAILED TO BUILD|FAILED|TIMEOUT|NO STATUS|INCOMPLETE|REMOTE FAILURE).*#\1 \3#p' "$log")
}

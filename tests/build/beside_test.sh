#!/bin/bash
# Work beside tests (tools/lib/beside.sh): its priority, and that it ends when it is to.
set -uo pipefail

folder=$(mktemp -d "$TEST_TMPDIR/beside.XXXXXX")
failed=0

Fail() {
  echo "FAILED: $*"
  failed=1
}

# A script that starts COMMAND beside itself, then runs a child of SECONDS, then waits for both.
cat >"$folder/script" <<SCRIPT
set -euo pipefail
scratch=$folder
source "$PWD/tools/lib/common.sh"
source "$PWD/tools/lib/children.sh"
source "$PWD/tools/lib/beside.sh"
seconds=\$1
shift
StartBeside "\$@"
RunChild TERM sleep "\$seconds" || true
EndBeside
SCRIPT

# Until COMMAND succeeds, for at most 60 s.
Until() {
  local tries
  for ((tries = 0; tries < 600; tries++)); do
    if "$@" 2>/dev/null; then return 0; fi
    sleep 0.1
  done
  return 1
}
Gone() { ! kill -0 "$(<"$folder/pid")" 2>/dev/null; }

bash "$folder/script" 0 bash -c "nice >$folder/nice; sleep 1; echo end >$folder/end" >"$folder/out" || Fail "the script"
[[ $(<"$folder/nice") == 19 ]] || Fail "its priority is $(<"$folder/nice")"
[[ -e $folder/end ]] || Fail "its end was not waited for"
grep -q '^waited [0-9]* s for what was built beside$' "$folder/out" || Fail "nothing is said: $(<"$folder/out")"

# What it starts in a session of its own, and what detaches itself, has the lowest priority among
# sessions, too; the script's own session keeps the one that it had.
if [[ -e /proc/self/autogroup ]]; then
  # Once 19 is there, or after 60 s.
  cat >"$folder/session" <<'SESSION'
for ((tries = 0; tries < 600; tries++)); do
  [[ $(</proc/self/autogroup) != *" nice 19" ]] || break
  sleep 0.1
done
cat /proc/self/autogroup >"$1"
SESSION
  mine=$(</proc/self/autogroup)
  bash "$folder/script" 0 bash -c "setsid --wait bash $folder/session $folder/waited
    setsid --fork bash $folder/session $folder/detached
    for ((i = 0; i < 700; i++)); do [[ ! -s $folder/detached ]] || break; sleep 0.1; done" >"$folder/out" || Fail "sessions"
  for kind in waited detached; do
    [[ $(<"$folder/$kind") == *" nice 19" ]] || Fail "a session that is $kind has $(<"$folder/$kind")"
  done
  [[ $(</proc/self/autogroup) == "$mine" ]] || Fail "our own session, $mine, has $(</proc/self/autogroup)"
fi

# What fails beside is no failure: the stage that needs it asks again.
bash "$folder/script" 0 false >"$folder/out" || Fail "a failure beside ended the script"

# Asked to stop while its child runs (300 s), and while it waits for what is beside it (0 s).
for seconds in 300 0; do
  rm -f "$folder/pid"
  bash "$folder/script" "$seconds" bash -c "echo \$\$ >$folder/pid; exec sleep 300" >"$folder/out" &
  script=$!
  Until test -s "$folder/pid" || Fail "it did not start"
  sleep 0.5
  ! Gone || Fail "it ended by itself"
  kill -TERM "$script"
  wait "$script"
  Gone || Fail "it outlives a script that was stopped"
done

# Killed outright.
rm -f "$folder/pid"
bash "$folder/script" 300 bash -c "echo \$\$ >$folder/pid; exec sleep 300" >"$folder/out" &
script=$!
Until test -s "$folder/pid" || Fail "it did not start"
{ kill -KILL "$script" && wait "$script"; } 2>/dev/null
Until Gone || Fail "it outlives a script that was killed"

exit "$failed"

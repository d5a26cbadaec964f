#!/bin/bash
# What tools/millrace promises about ranks, exit codes and signals (tools/README.md), driven with fake_program.
set -uo pipefail
set -m  # background jobs keep SIGINT, which a plain shell makes them ignore

export MILLRACE_BINARY=$PWD/tests/build/fake_program
launcher=$PWD/tools/millrace
folder=$(mktemp -d "$TEST_TMPDIR/launcher.XXXXXX")
export TMPDIR=$folder  # the launcher's own temporary files
failed=0

Fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$folder/out" "$folder/err"
  failed=1
}

# Expect NAME CODE COMMAND...: the command's exit code; its output stays in $folder/out and $folder/err.
Expect() {
  local name=$1 want=$2 code=0
  shift 2
  timeout -s KILL 60 "$@" >"$folder/out" 2>"$folder/err" || code=$?
  ((code == want)) || Fail "$name: exit code $code, not $want"
}

ExpectText() { grep -qE -e "$2" "$folder/$1" || Fail "no line in $1 matches '$2'"; }
RefuseText() { ! grep -qE -e "$2" "$folder/$1" || Fail "a line in $1 matches '$2'"; }

# Until COMMAND succeeds, for at most 60 s.
Until() {
  local tries
  for ((tries = 0; tries < 600; tries++)); do
    "$@" && return 0
    sleep 0.1
  done
  return 1
}

# Whether SIGTERM does not simply end process PID: it is caught or blocked.
TakesTerm() {
  local mask
  for mask in $(sed -n -E 's/^Sig(Blk|Cgt):\s*//p' "/proc/$1/status" 2>/dev/null); do ((16#$mask & 1 << 14)) && return 0; done
  return 1
}

# StartSteps ARG...: the launcher in the background with `train step`; returns when every rank steps. Sets job and pids[rank].
StartSteps() {
  rm -f "$folder/pids"
  "$launcher" "$@" train step "$folder/pids" >"$folder/out" 2>"$folder/err" &
  job=$!
  Until test -e "$folder/pids" || Fail "$*: no rank steps"
  mapfile -t pids <"$folder/pids"
}

# ExpectEnd NAME CODE: of the job that StartSteps started, within 60 seconds.
ExpectEnd() {
  local code=0 tenths
  for ((tenths = 0; tenths < 600; tenths++)); do
    kill -0 "$job" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$job" 2>/dev/null && Fail "$1: still runs after 60 s"
  wait "$job" 2>/dev/null || code=$?
  ((code == $2)) || Fail "$1: exit code $code, not $2"
}

# Every pid of the last job is gone, or is a zombie whose parent does not care, within 60 seconds.
ExpectNoRanks() {
  local pid tenths
  for pid in "${pids[@]}"; do
    for ((tenths = 0; tenths < 600; tenths++)); do
      grep -qs '^State:.[^ZX]' "/proc/$pid/status" || continue 2
      sleep 0.1
    done
    Fail "$1: rank process $pid is left over"
  done
}

# Usage.
Expect "no verb" 2 "$launcher"
Expect "ranks that are no number" 2 "$launcher" -n two train
ExpectText err "-n two: the number of ranks"
Expect "no such hostfile" 2 "$launcher" -n 2 --hostfile "$folder/none" train

Expect "a value in the same word" 2 "$launcher" -n0 train
ExpectText err "-n 0: the number of ranks"
Expect "a hostfile in the same word" 2 "$launcher" --ranks=3 --hostfile="$folder/none" train
ExpectText err "--hostfile $folder/none: no such readable file"
Expect "ranks in the same word" 0 "$launcher" -n3 train print
[[ $(wc -l <"$folder/out") == 3 ]] || Fail "-n3 starts other than three ranks"

# Ranks: stdout and stderr arrive, nothing of mpirun's or the launcher's own is added; oversubscribed.
Expect "five ranks" 0 "$launcher" -n 5 train print
[[ $(sort "$folder/out" | tr '\n' ' ') == "out 0 out 1 out 2 out 3 out 4 " ]] || Fail "standard output of five ranks"
[[ $(sed 1d "$folder/err" | sort | head -n1) == "err 0 of 5, BLAS threads 1" ]] || Fail "standard error of five ranks"
(($(wc -l <"$folder/err") == 6)) || Fail "six lines on standard error: the preflight's and five ranks'"
Expect "one rank needs no mpirun" 0 "$launcher" train print
ExpectText err "^err 0 of 1"
RefuseText err "preflight"
Expect "standard input is closed" 0 bash -c '"$@" <&-' bash "$launcher" train print
Expect "standard input is closed, two ranks" 0 bash -c '"$@" <&-' bash "$launcher" -n 2 train print
Expect "other verbs take any exit code through" 4 "$launcher" -n 2 inspect exit 4

# On a terminal, too.
Expect "on a terminal" 73 script -qec "$launcher -n 3 train exit 73" /dev/null
Expect "on a terminal" 0 script -qec "$launcher -n 2 train print" /dev/null
[[ $(tr -d '\r' <"$folder/out" | grep '^out' | sort | tr '\n' ' ') == "out 0 out 1 " ]] || Fail "standard output on a terminal"

# The configuration is checked once, before any rank.
Expect "bad configuration" 2 "$launcher" -n 3 train bad_config
[[ $(<"$folder/err") == "preflight for 3" ]] || Fail "a bad configuration is said once"

# Exit codes pass through, without mpirun's commentary.
Expect "a rank's own exit code" 73 "$launcher" -n 3 train exit 73
RefuseText err "Primary job|mpirun|-----"
Expect "a rank that aborts the job" 77 "$launcher" -n 3 train abort 77
ExpectText err "^rank 1 aborts$"
RefuseText err "MPI_ABORT|mpirun|-----"
Expect "a crash is a bug" 70 "$launcher" -n 3 train crash
ExpectText err "^millrace: rank 1 \(pid [0-9]+\) on [^ ]+ crashed with SIGSEGV"

# mpirun's own crash after a rank has ended the job does not hide the rank's code.
mkdir "$folder/bin"
cat >"$folder/bin/mpirun" <<'SCRIPT'
#!/bin/bash
rule=$(printf -- '-%.0s' {1..74})
token=$(grep -oE -e '--as-rank=[0-9a-f]{16}' <<<"$*")
printf '\036millrace-rank %s 0 2 41\n%s\nMPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 71.\n%s\n' "${token#*=}" "$rule" "$rule" >&2
kill -SEGV $$
SCRIPT
chmod +x "$folder/bin/mpirun"
Expect "mpirun crashes on its way out" 71 env PATH="$folder/bin:$PATH" "$launcher" -n 2 train print

# mpirun that deadlocks when its ranks have ended is killed. What it had said is the code, else there is a code of its own.
cat >"$folder/bin/mpirun" <<'SCRIPT'
#!/usr/bin/python3
import os, signal, subprocess, sys, threading, time
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
rank = subprocess.Popen(['sleep', '4'])
rule = '-' * 74
token = next(word[len('--as-rank='):] for word in sys.argv if word.startswith('--as-rank='))
for number in (0, 1):
    print('\x1emillrace-rank %s %d 2 %d' % (token, number, rank.pid), file=sys.stderr, flush=True)
time.sleep(2)
if 'abort' in sys.argv:
    print('%s\nMPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 71.\n%s' % (rule, rule), file=sys.stderr, flush=True)
time.sleep(3)  # the rank has ended, and nobody has waited for it
lock = threading.Lock()
lock.acquire()
lock.acquire()
SCRIPT
# Each waits for 9 s: beside each other and beside all that follows, with files of their own.
mkdir "$folder/abort" "$folder/wordless"
deadlocks=()
(
  bin=$folder/bin folder=$folder/abort
  Expect "mpirun deadlocks on its way out" 71 env PATH="$bin:$PATH" "$launcher" -n 2 train abort
  ExpectText err "^millrace: no rank is left, but Open MPI's mpirun did not end for 5 s"
  exit "$failed"
) &
deadlocks+=($!)
(
  bin=$folder/bin folder=$folder/wordless
  Expect "mpirun deadlocks without a word" 76 env PATH="$bin:$PATH" "$launcher" -n 2 train print
  ExpectText err "^millrace: what code the job ended with is not known"
  exit "$failed"
) &
deadlocks+=($!)

# A rank that is killed is named.
StartSteps -n 3
kill -KILL "${pids[2]}"
ExpectEnd "kill -9 of rank 2" 72
ExpectText err "^millrace: rank 2 \(pid ${pids[2]}\) on [^ ]+ was killed by SIGKILL"
ExpectNoRanks "kill -9 of rank 2"

# A request to stop reaches every rank, whatever its name, and ends in 75.
for signal in USR1 TERM INT HUP; do
  StartSteps -n 3
  kill -s "$signal" "$job"
  ExpectEnd "SIG$signal to the launcher" 75
  (($(grep -c '^rank [012] saved$' "$folder/err") == 3)) || Fail "SIG$signal: three ranks save"
  RefuseText err "Forwarding|mpirun"
done
StartSteps
kill -TERM "$job"
ExpectEnd "SIGTERM, without mpirun" 75

# A request while ranks are being started is not lost, from the moment that the launcher is a program of its own.
for delay in 0.05 0.15 0.3; do
  rm -f "$folder/pids"
  "$launcher" -n 3 train step "$folder/pids" >"$folder/out" 2>"$folder/err" &
  job=$!
  Until TakesTerm "$job" || Fail "SIGTERM after $delay s: the launcher does not take it"
  sleep "$delay"
  kill -TERM "$job"
  ExpectEnd "SIGTERM after $delay s" 75
done

# Nor while the program is loaded.
printf '#!/bin/bash\ntouch "%s"\nuntil [[ -e "%s" ]]; do sleep 0.05; done\nexec "%s" "$@"\n' "$folder/loading" "$folder/load" "$MILLRACE_BINARY" >"$folder/slow_program"
chmod +x "$folder/slow_program"
MILLRACE_BINARY=$folder/slow_program "$launcher" -n 2 train step "$folder/pids" >"$folder/out" 2>"$folder/err" &
job=$!
Until test -e "$folder/loading" || Fail "the program is not loaded"
kill -TERM "$job"
touch "$folder/load"
ExpectEnd "SIGTERM while the program is loaded" 75
ExpectText err "^millrace: stopped before the ranks started"

# A launcher that is killed leaves nothing behind.
StartSteps -n 3
kill -KILL "$job"
wait "$job" 2>/dev/null
ExpectNoRanks "kill -9 of the launcher"

for deadlock in "${deadlocks[@]}"; do wait "$deadlock" || failed=1; done

((failed == 0)) && echo "all as promised"
exit "$failed"

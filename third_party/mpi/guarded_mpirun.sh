#!/bin/bash
# guarded_mpirun.sh REPORT RANKS ARG...: becomes `mpirun ARG...`, and leaves a process beside it that kills it when it cannot end.
#
# After a job has ended badly, Open MPI 4.1.4 at times deadlocks in its own PMIx_server_finalize: no rank is left, mpirun's main thread
# waits for a thread that waits for it, and no signal but KILL ends it. That is told from an mpirun that still has work by all of:
#   - no child of it is left, and no rank can be elsewhere: each was seen to be its child, or mpirun has said how the job ended (a line
#     `code` or `signal` in REPORT, the file that tools/lib/relay_stderr.pl writes);
#   - its main thread waits for a lock, not for someone to read its output;
#   - both have been so for 15 s.
# Nor does it end after a bad end while a daemon of its on another host does not answer (power, cable). Its remote shell is its child.
# That is told by: mpirun has said how the job ended, none of its children is an announced rank, and both have been so for 15 s. Daemons
# end their ranks themselves when they lose mpirun.
#
# Then mpirun is killed. REPORT gets a line `stuck WORDS`; when it is the empty string, all RANKS are on this host, and standard error
# gets the words. Where the kernel has no /proc/PID/task/TID/children there is no guard.
set -uo pipefail

patience_s=15

# The time at which process PID started, as the kernel counts, and its state; empty when it is gone.
StartAndState() {
  local stat=
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
  read -ra stat <<<"${stat##*) }"
  echo "${stat[19]} ${stat[0]}"
}

Guard() {
  local pid=$1 report=$2 ranks=$3 began seconds=0 start state child wait words away=0 shells
  local -A seen=()
  read -r began _ < <(StartAndState "$pid")
  while sleep 1; do
    read -r start state < <(StartAndState "$pid")
    [[ ${start:-} == "$began" && $state != [ZX] ]] || return 0
    [[ -r /proc/$pid/task/$pid/children ]] || return 0
    seconds=$((seconds + 1)) away=$((away + 1))
    [[ $state != [Tt] ]] || seconds=0 away=0
    HasSaidTheEnd || away=0
    shells=()
    # shellcheck disable=SC2013  # all numbers of a line are wanted
    for child in $(cat "/proc/$pid"/task/*/children 2>/dev/null); do
      read -r _ state < <(StartAndState "$child")
      [[ $state != [ZX] ]] || continue
      seen[$child]=1 seconds=0
      shells+=("$child")
      ! IsRank "$child" || away=0
    done
    ((seconds == 0)) || JobIsOver || seconds=0
    wait=$(cat "/proc/$pid/wchan" 2>/dev/null) || true  # "0" where the kernel does not tell
    [[ $wait == *futex* || -z $wait || $wait == 0 ]] || seconds=0
    ((${#shells[@]})) || away=0
    if ((away >= patience_s)); then
      echo "stuck no rank is left on this host, but mpirun waited $patience_s s for another one, which does not answer: killed it" >>"$report"
      kill -KILL "$pid" "${shells[@]}"  # a remote shell that is left would hold the launcher's pipes
      return 0
    fi
    if ((seconds >= patience_s)); then
      words="no rank is left, but Open MPI's mpirun did not end for $patience_s s (4.1.4 does so at times after a bad end): killed it"
      if [[ -n $report ]]; then echo "stuck $words" >>"$report"; else echo "$words" >&2; fi
      kill -KILL "$pid"
      return 0
    fi
  done
}

# For Guard: whether mpirun has said how the job ended.
HasSaidTheEnd() { [[ -n $report ]] && grep -qE '^(code|signal) ' "$report"; }

# For Guard: whether a child of mpirun's has announced itself as a rank.
IsRank() { grep -qE "^pid [0-9]+ $1\$" "$report"; }

# For Guard: whether no rank can be left anywhere, given that mpirun has no child.
JobIsOver() {
  [[ -n $report ]] || return 0
  ! HasSaidTheEnd || return 0
  local announced=0 number
  while read -r _ _ number; do
    [[ -n ${seen[$number]:-} ]] || return 1
    announced=$((announced + 1))
  done < <(grep '^pid ' "$report")
  ((announced >= ranks))
}

report=$1
ranks=$2
shift 2
errors=/dev/null  # the launcher reads mpirun's standard error to its end, so nobody else may hold it
[[ -n $report ]] || errors=/dev/stderr
# Its parent is not this process: mpirun would wonder about a child that it did not start.
(Guard $$ "$report" "$ranks" </dev/null >/dev/null 2>"$errors" &)
exec mpirun "$@"

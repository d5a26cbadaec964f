#!/bin/bash
# tools/lib/relay_stderr.pl drops mpirun's own frames and lets every other byte pass, in order.
set -euo pipefail
folder=$TEST_TMPDIR
rule=$(printf -- '-%.0s' {1..74})

# Relay INPUT WANT REPORT: both texts byte for byte.
Relay() {
  printf '%s' "$1" | tools/lib/relay_stderr.pl "$folder/report" 2>"$folder/err"
  printf '%s' "$2" | cmp - "$folder/err" || { echo "FAILED: passed on:"; cat "$folder/err"; exit 1; }
  printf '%s' "$3" | cmp - "$folder/report" || { echo "FAILED: reported:"; cat "$folder/report"; exit 1; }
}

killed="$rule
mpirun noticed that process rank 2 with PID 0 on node east-7 exited on signal 9 (Killed).
$rule
"
primary="$rule
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
$rule
"
Relay "" "" ""
Relay $'a\nb' $'a\nb' ""
Relay "x${primary}${killed}y" "xy" $'signal 2 east-7 9\n'
Relay $'\x1emillrace-rank 0 41\none\n\x1emillrace-rank 1 42\ntwo\n' $'one\ntwo\n' $'pid 0 41\npid 1 42\n'
# Frames and rules that are not mpirun's closing words stay, also when such words follow.
Relay "$rule"$'\nour table\n'"$rule"$'\n' "$rule"$'\nour table\n'"$rule"$'\n' ""
Relay "$rule"$'\nour table\n'"$rule"$'\n'"$primary"$'z\n' "$rule"$'\nour table\n'"$rule"$'\nz\n' ""
aborted="$rule
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
with errorcode 71.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
$rule
"
Relay "a${aborted}b" "ab" $'code 71\n'
detected="$rule
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[18881,1],2]
  Exit code:    73
$rule
"
Relay "$detected" "" $'code 73\n'
Relay '[east-7:13504] 1 more process has sent help message help-mpi-api.txt / mpi-abort
[east-7:13504] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages
[east-7:13504] [[31437,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer in file ../../../orte/util/show_help.c at line 501
[east-7:13504] our own
' $'[east-7:13504] our own\n' ""
lost="$rule
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[64547,0],0] on node east-7
  Remote daemon: [[64547,0],1] on node east-8

This is usually due to either a failure of the TCP network
$rule
"
Relay "a${lost}b" "ab" $'host east-8\n'
peer="$rule
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process.

  Local host: east-7
  Local PID:  64
  Peer host:  east-9
$rule
"
Relay "a${peer}b" "ab" $'host east-9\n'
# A daemon that ended while its ranks ran is a lost host; one that never started is mpirun's own trouble.
unstarted="$rule
ORTE was unable to reliably start one or more daemons.
$rule
"
Relay "a${unstarted}b" "a${unstarted}b" ""
Relay $'\x1emillrace-rank 0 41\n'"${unstarted}b" "b" $'pid 0 41\nhost ?\n'
Relay "mpirun: Forwarding signal 10 to job"$'\nok\n' $'ok\n' ""
Relay "$rule"$'\nPrimary job  terminated nor' "$rule"$'\nPrimary job  terminated nor' ""

# A frame that comes in pieces is still one; what is begun and not finished passes after a moment, before the input ends.
{
  printf '%s' "50% ${killed:0:40}"
  sleep 0.05
  printf '%s' "${killed:40}"
  printf '%s' "51% ----------"
  sleep 1
  cp "$folder/err" "$folder/early"
} | tools/lib/relay_stderr.pl "$folder/report" 2>"$folder/err"
[[ $(<"$folder/early") == "50% 51% ----------" ]] || { echo "FAILED: a progress bar waits: $(<"$folder/early")"; exit 1; }
echo "all as promised"

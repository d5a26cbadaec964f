# Running a child so that signals reach it and it never outlives the script. Sourced, not run; needs common.sh.
#
# bash runs a trap only between commands, so a child that signals must reach at once runs in the background and is waited for.

child=0             # the running child's pid, or 0
child_signal=TERM   # what to send it when this script is asked to stop
stop_requests=0     # how many times this script was asked to stop

# The trap of every signal that asks to stop. The first request is passed on as the child's own signal; from the second on, TERM:
# whoever repeats it does not want to wait.
RequestStop() {
  stop_requests=$((stop_requests + 1))
  if ((stop_requests == 1)); then
    PassOnStop
  elif ((child)); then
    kill -s TERM "$child" 2>/dev/null || true
  fi
}

PassOnStop() { ((child == 0)) || kill -s "$child_signal" "$child" 2>/dev/null || true; }

trap RequestStop INT TERM HUP USR1

# RunChild SIGNAL COMMAND...: runs the command in a session of its own, so that a Ctrl-C on the terminal reaches this script alone, and
# returns its exit code. SIGNAL is what RequestStop sends it. If this script is killed, the kernel sends the child INT if that is
# SIGNAL (Bazel's client stops its build; by TERM it would stop the server too, which others may be using), else TERM. The child
# reads what standard input is redirected from; a terminal stays with the shell that it belongs to.
RunChild() {
  child_signal=$1
  shift
  local code=0 again at_death=TERM
  if [[ $child_signal == INT ]]; then at_death=INT; fi
  if [[ -t 0 ]]; then exec 0</dev/null; fi
  setsid setpriv --pdeathsig "$at_death" -- "$@" <&0 &
  child=$!
  ((stop_requests == 0)) || PassOnStop
  {
    # A trapped signal ends `wait` early with a code above 128; the child may still run.
    while true; do
      code=0
      wait "$child" || code=$?
      kill -0 "$child" || break
    done
    # The last wait may have been cut short just as the child ended; bash remembers the child's own code.
    again=0
    wait "$child" || again=$?
    ((again == 127)) || code=$again
  } 2>/dev/null  # bash's own "Killed" line; the caller has better words for it
  child=0
  return "$code"
}

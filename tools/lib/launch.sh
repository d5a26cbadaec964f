# Running the program as one process or as ranks under mpirun, and turning how they end into an exit code. Sourced, not run; needs
# common.sh and children.sh.

# LaunchOne PROGRAM VERB [ARG...]: one process, no mpirun. Does not return.
LaunchOne() {
  local code=0 note
  note=$(mktemp "${TMPDIR:-/tmp}/millrace.XXXXXX" 2>/dev/null) || note=  # without it nothing but the last lines of a crash is missing
  trap "rm -f ${note@Q}" EXIT
  local began=$EPOCHSECONDS
  RunChild USR1 env MILLRACE_LOGS_NOTE="$note" "$@" || code=$?
  if IsSignalCode "$code"; then
    ShowLastLines "$note" 0 "$began"
    ExitForSignal "rank 0 on $HOSTNAME" $((code - 128))
  fi
  exit "$code"
}

# LaunchRanks N HOSTFILE PROGRAM VERB [ARG...]: N ranks under mpirun, HOSTFILE may be empty. Does not return.
LaunchRanks() {
  local ranks=$1 hostfile=$2 program=$3 code=0 folder
  shift 2
  folder=$(mktemp -d "${TMPDIR:-/tmp}/millrace.XXXXXX") || Die 74 "millrace: no temporary folder can be made in ${TMPDIR:-/tmp} (TMPDIR)."
  trap "rm -rf ${folder@Q}" EXIT

  # The program checks the configuration once, as one process, so that a wrong key is said once and before any rank starts.
  RunChild TERM env MILLRACE_PREFLIGHT=1 MILLRACE_WORLD="$ranks" MILLRACE_LOGS_NOTE="$folder/logs" "$@" </dev/null || code=$?
  ((stop_requests)) && Die 75 "millrace: stopped before the ranks started; nothing to save."
  IsSignalCode "$code" && Die 70 "millrace: the check of the configuration crashed (signal $(kill -l $((code - 128))))."
  ((code)) && exit "$code"

  local relay output began=$EPOCHSECONDS
  mkfifo "$folder/stderr" "$folder/stdout"
  setsid "$root/tools/lib/relay_stderr.pl" "$folder/report" <"$folder/stderr" &
  relay=$!
  setsid "$root/tools/lib/relay_stdout.pl" <"$folder/stdout" &
  output=$!

  # mpirun forwards a signal to the ranks that it has started, and drops it when there are none yet.
  AllRanksRun() { (($(grep -c '^pid ' "$folder/report") == ranks)); }
  child_ready=AllRanksRun

  MpirunArguments "$ranks" "$hostfile"
  code=0
  RunChild USR1 "$root/third_party/mpi/guarded_mpirun.sh" "$folder/report" "$ranks" "${mpirun_arguments[@]}" "$root/tools/lib/rank" "$@" \
    </dev/null >"$folder/stdout" 2>"$folder/stderr" || code=$?
  WaitBriefly "$relay"
  WaitForOutput "$output" || case $code:$2 in
    0:train) ;;           # its results are files
    0:*) code=74 ;;
  esac
  ExitForJob "$code" "$folder/report" "$folder/logs" "$began"
}

# Sets mpirun_arguments and the environment that goes with them.
MpirunArguments() {
  local ranks=$1 hostfile=$2 name
  if ((EUID == 0)); then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
  # A rank's standard output is a pseudo-terminal of mpirun's whatever ours is, and its standard error a pipe.
  MILLRACE_STDOUT_TTY=0 MILLRACE_STDERR_TTY=0
  if [[ -t 1 ]]; then MILLRACE_STDOUT_TTY=1; fi
  if [[ -t 2 ]]; then
    MILLRACE_STDERR_TTY=1
    COLUMNS=$(stty size <&2 2>/dev/null | cut -d' ' -f2) || true
  fi
  [[ ${COLUMNS:-0} != 0 ]] || COLUMNS=80
  export MILLRACE_STDOUT_TTY MILLRACE_STDERR_TTY COLUMNS
  # Reading a peer's memory directly is forbidden in most containers, and Open MPI then warns on every start.
  export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}
  # A host that falls silent (power, cable) is noticed after 15 s, before ranks are thought to hang; Open MPI itself waits for 8 minutes.
  export OMPI_MCA_oob_tcp_keepalive_time=${OMPI_MCA_oob_tcp_keepalive_time:-6}
  export OMPI_MCA_oob_tcp_keepalive_intvl=${OMPI_MCA_oob_tcp_keepalive_intvl:-3}
  export OMPI_MCA_oob_tcp_keepalive_probes=${OMPI_MCA_oob_tcp_keepalive_probes:-3}
  mpirun_arguments=(-n "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
  [[ -z $hostfile ]] || mpirun_arguments+=(--hostfile "$hostfile")
  for name in OPENBLAS_NUM_THREADS OMP_NUM_THREADS MILLRACE_STDOUT_TTY MILLRACE_STDERR_TTY COLUMNS NO_COLOR CI; do
    [[ -z ${!name:-} ]] || mpirun_arguments+=(-x "$name")
  done
}

# Waits for a process that is about to end; ends it when it is not.
WaitBriefly() {
  local pid=$1 tenths
  for ((tenths = 0; tenths < 20; tenths++)); do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$pid" 2>/dev/null || true
}

# Waits until a process has written what there is, however slow its reader; its exit code. A second request to stop ends it.
WaitForOutput() {
  local pid=$1 code=0
  while true; do
    code=0
    wait "$pid" || code=$?
    kill -0 "$pid" 2>/dev/null || break
    ((stop_requests < 2)) || kill -KILL "$pid" 2>/dev/null || true
  done
  return "$code"
}

# ShowLastLines NOTE RANK BEGAN: the last lines of the log of a rank that a signal ended, and which could not show them itself. The
# program has written into the file NOTE which folder has the logs. Nothing where the newest start in the log is not of this job, which
# began at BEGAN (seconds since 1970), or the user wanted it to stop.
ShowLastLines() {
  local rank=$2 folder= log lines
  ((stop_requests == 0)) || return 0
  [[ -r $1 ]] && read -r folder <"$1"
  log=$folder/rank_$rank.log
  [[ -n $folder && -r $log ]] || return 0
  lines=$(awk -v since="$(date -u -d "@$3" +%Y-%m-%dT%H:%M:%S)" '
    /^[0-9][0-9T:.-]*Z [a-z]+ +rank [0-9]+  start [0-9]+: / { count = 0; ours = substr($0, 1, 19) >= since; next }
    ours { line[count++] = $0 }
    END { for (i = count > 20 ? count - 20 : 0; i < count; i++) print "  " line[i] }' "$log") || return 0
  [[ -z $lines ]] || Say "millrace: the last lines of rank $rank ($log):"$'\n'"$lines"
}

# ExitForJob CODE REPORT NOTE BEGAN: from mpirun's exit code and what relay_stderr.pl noted. NOTE and BEGAN as for ShowLastLines.
ExitForJob() {
  local code=$1 report=$2 kind rank host signal stuck said pid='?'
  stuck=$(sed -n 's/^stuck //p' "$report" | head -n1)
  [[ -z $stuck ]] || Say "millrace: $stuck."
  if read -r kind rank host signal < <(grep -m1 '^signal ' "$report"); then
    pid=$(sed -n "s/^pid $rank \([0-9]*\)$/\1/p" "$report" | head -n1)
    ShowLastLines "$3" "$rank" "$4"
    ExitForSignal "rank $rank (pid ${pid:-?}) on $host" "$signal"
  fi
  if ((code != 0)) && ! grep -q '^pid ' "$report"; then
    ((stop_requests)) && Die 75 "millrace: stopped before the ranks started; nothing to save."
    Die 72 "millrace: mpirun could not start the ranks (its exit code $code; its messages are above)."
  fi
  said=$(sed -n 's/^code //p' "$report" | head -n1)
  if ((code != 0)) && [[ -z $said ]] && host=$(LostHost "$report"); then
    ((stop_requests > 1)) && ExitForSignal "the job" 15
    Die 72 "millrace: $host was lost. The job has been stopped; the same command goes on from the last checkpoint, if there is one."
  fi
  # mpirun 4.1.4 at times crashes on its way out, after the job has ended; the job's code is what counts.
  if [[ -n $stuck ]]; then
    [[ -n $said ]] || Die 76 "millrace: what code the job ended with is not known; the same command goes on, or says that the run is complete."
  fi
  if IsSignalCode "$code" && [[ -n $said ]]; then exit "$said"; fi
  if IsSignalCode "$code"; then ExitForSignal mpirun $((code - 128)); fi
  # Asked twice, mpirun ends the ranks and itself, with a code that says nothing.
  if ((stop_requests > 1 && code == 1)); then ExitForSignal "the job" 15; fi
  exit "$code"
}

# Prints which host does not answer, when the report has one.
LostHost() {
  local name
  name=$(sed -n 's/^host //p' "$1" | sort -u | grep -vx '?' | head -n1)
  if [[ -n $name ]]; then echo "host $name"; elif grep -qx 'host ?' "$1"; then echo "a host"; else return 1; fi
}

# Whether an exit code means "ended by a signal", as shells write it.
IsSignalCode() { (($1 > 128 && $1 <= 128 + 64)); }

# ExitForSignal WHO SIGNAL: a process of the job ended by a signal.
ExitForSignal() {
  local who=$1 number=$2 name
  name=SIG$(kill -l "$number")
  if ((stop_requests > 1)); then Die 143 "millrace: stopped at once, on the second request; the last checkpoint is what there is."; fi
  if ((stop_requests == 1)) && [[ $name == SIGUSR1 ]]; then
    Die 75 "millrace: stopped before the first step; there was nothing to save."
  fi
  case $name in
    SIGILL | SIGTRAP | SIGABRT | SIGBUS | SIGFPE | SIGSEGV | SIGSYS)
      Die 70 "millrace: $who crashed with $name: a bug in Millrace. The job has been stopped."
      ;;
    *) Die 72 "millrace: $who was killed by $name. The job has been stopped; the same command goes on from the last checkpoint, if there is one." ;;
  esac
}

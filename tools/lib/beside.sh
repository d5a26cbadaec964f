# Work at the lowest priority beside tests that mostly wait. Sourced, not run; needs children.sh, and
# `scratch` is a folder.

beside=0  # its pid, or 0

# StartBeside COMMAND...: runs the command in the background for the processors that nobody else
# wants. What it says is dropped: whoever needs its result asks for it again.
StartBeside() {
  setpriv --pdeathsig TERM -- python3 -B "${BASH_SOURCE[0]%/*}/beside.py" "$@" \
    </dev/null >"$scratch/beside" 2>&1 &
  beside=$!
}

# Waits for its end; if this script was or is asked to stop, it is, too.
EndBeside() {
  local began=$SECONDS
  ((beside)) || return 0
  while kill -0 "$beside" 2>/dev/null; do
    ((stop_requests == 0)) || kill -s TERM "$beside" 2>/dev/null || true
    wait "$beside" || true
  done
  beside=0
  echo "waited $((SECONDS - began)) s for what was built beside"
}

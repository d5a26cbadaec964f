# Building the program when a source is newer than it. Sourced, not run; needs common.sh, children.sh and
# cuda.sh.

# BuildIfStale ROOT PROGRAM: builds //tools/cli:millrace, with CUDA where there is a toolkit, unless the last successful build began after
# every source's last change and found the same of CUDA.
# The time is that of a stamp, not of the program: Bazel leaves the program alone when a change does not reach it.
BuildIfStale() {
  local root=$1 program=$2 stamp=$1/bazel-out/.millrace_built changed cuda
  cuda=$("$root/third_party/cuda/find_cuda.sh") || true
  if [[ -x $program && -e $stamp && $cuda == "$(<"$stamp")" ]]; then
    # Folders count too: deleting or renaming a file changes only its folder. Results beside the sources (runs) do not.
    changed=$(cd "$root" && find WORKSPACE BUILD .bazelrc runtime kernels comm models tools third_party \
      \( -type d -o -name BUILD -o -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.bzl' -o -name '*.BUILD' \
      -o -name WORKSPACE -o -name .bazelrc \) -newer "$stamp" -print -quit)
    [[ -n $changed ]] || return 0
  fi
  local began=$SECONDS next code=0
  next=$(mktemp)  # as old as the beginning of this build: what is edited during it counts as changed
  echo "$cuda" >"$next"
  CudaArguments "$root"
  [[ -x $program ]] || Say "Building Millrace (the first time takes some minutes) ..."
  # On a terminal Bazel draws its own progress; in a pipe a line now and then.
  local output=(--ui_event_filters=-info)
  [[ -t 2 ]] || output+=(--color=no --curses=no --show_progress_rate_limit=30)
  RunChild INT env -C "$root" bazel build "${output[@]}" "${cuda_arguments[@]}" //tools/cli:millrace >&2 || code=$?
  if ((code)); then
    rm -f "$next"
    ((stop_requests)) && Die 75 "millrace: stopped while building; nothing has run."
    Die 70 "millrace: the build failed (Bazel's exit code $code; its messages are above)."
  fi
  mv "$next" "$stamp"
  [[ -x $program ]] || Die 70 "millrace: Bazel built //tools/cli:millrace, but $program is not there."
  Say "Built in $((SECONDS - began)) s."
}

# Building the program when a source is newer than it. Sourced, not run; needs common.sh, children.sh and
# cuda.sh.

# BuildIfStale ROOT PROGRAM CUDA: builds //tools/cli:millrace, unless the last successful build began after every source's last change, and
# was asked for the same and found the same of CUDA. The time is that of a stamp, not of the program: Bazel leaves the program alone when
# a change does not reach it.
#
# CUDA: `auto` builds with it where an NVIDIA driver is visible and a toolkit is found. Compiling kernels takes longer than all the rest,
# and without a driver nothing could run them. `always` (--cuda) builds with it in any case; a part that is missing is an error then.
BuildIfStale() {
  local root=$1 program=$2 wanted=$3 stamp=$1/bazel-out/.millrace_built changed cuda="the CPU alone"
  if [[ $wanted == always ]] || HasNvidiaDriver; then
    cuda=$("$root/third_party/cuda/find_cuda.sh") || [[ $wanted == auto ]] || DieWithoutCuda "$root"
  fi
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
  cuda_arguments=()
  if [[ $cuda != "the CPU alone" ]]; then
    CudaArguments "$root"
  else
    Say "no NVIDIA driver is visible: building the program for the CPU alone (tools/millrace --cuda builds it with CUDA, too)"
  fi
  [[ -x $program ]] || Say "Building Millrace (the first time takes some minutes) ..."
  CompilerArguments
  # On a terminal Bazel draws its own progress; in a pipe a line now and then.
  local output=(--ui_event_filters=-info)
  [[ -t 2 ]] || output+=(--color=no --curses=no --show_progress_rate_limit=30)
  RunChild INT env -C "$root" bazel build "${output[@]}" "${cuda_arguments[@]}" "${compiler_arguments[@]}" //tools/cli:millrace >&2 || code=$?
  if ((code)); then
    rm -f "$next"
    ((stop_requests)) && Die 75 "millrace: stopped while building; nothing has run."
    Die 70 "millrace: the build failed (Bazel's exit code $code; its messages are above)."
  fi
  mv "$next" "$stamp"
  [[ -x $program ]] || Die 70 "millrace: Bazel built //tools/cli:millrace, but $program is not there."
  Say "Built in $((SECONDS - began)) s."
}

DieWithoutCuda() {
  FindCuda "$1"
  Die 2 "millrace: --cuda needs a CUDA toolkit with cuBLASLt, cuDNN and NCCL; missing here:" "${cuda_missing[@]/#/  }"
}

# Sets compiler_arguments. Warnings are errors (.bazelrc) with the compiler that we build with. Another version warns about more, and who
# only wants to run the program should not have to care.
CompilerArguments() {
  compiler_arguments=()
  [[ $(g++ -dumpversion) == 12* ]] || compiler_arguments=(--copt=-Wno-error)
}

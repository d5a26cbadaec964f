# What the scripts in tools/ share. Sourced, not run.

# A closed standard input would be the number of the next file that is opened, and could not be handed on.
[[ -e /proc/self/fd/0 ]] || exec 0</dev/null

# Every argument as a line for a person. Standard output stays free for results.
Say() { printf '%s\n' "$@" >&2; }

# Die CODE LINE...: says the lines and exits with the code (tools/README.md lists the codes).
Die() {
  local code=$1
  shift
  Say "$@"
  exit "$code"
}

# CacheFolder KIND ROOT: where the user's cache keeps what is built of KIND (fuzz, sanitizers) for the
# checkout ROOT.
CacheFolder() { echo "${XDG_CACHE_HOME:-$HOME/.cache}/millrace/$1/$(printf '%s' "$2" | md5sum | cut -c1-12)"; }

# SanitizerBazel ROOT: sets sanitizer_bazel to the command that builds what runs under sanitizers. It has
# an output folder, and hence a server, of its own: a server runs one command at a time, and these are
# built beside tests that the other one runs. It leaves soon. At the lowest priority beside compilers it
# may take minutes to start, and its client gives up after two.
SanitizerBazel() {
  sanitizer_bazel=(bazel "--output_base=$(CacheFolder sanitizers "$1")/bazel" --max_idle_secs=60
    --local_startup_timeout_secs=3600)
}

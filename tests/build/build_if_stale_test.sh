#!/bin/bash
# When tools/millrace builds, and what it asks Bazel for: with a tree, a Bazel and a find_cuda.sh that are made here.
set -uo pipefail

libraries=$PWD/tools/lib
folder=$(mktemp -d "$TEST_TMPDIR/build.XXXXXX")
root=$folder/root
program=$root/bazel-bin/millrace
failed=0

Fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$folder/out" "$folder/calls"
  failed=1
}

mkdir -p "$folder/bin" "$root"/{bazel-out,bazel-bin,runtime,kernels,comm,models,tools,third_party/cuda}
touch "$root"/{WORKSPACE,BUILD,.bazelrc,runtime/a.cc}
cat >"$folder/bin/bazel" <<SCRIPT
#!/bin/bash
echo "bazel \$*" >>"$folder/calls"
touch "$program"
chmod +x "$program"
SCRIPT
printf '#!/bin/bash\necho ${COMPILER:-12}\n' >"$folder/bin/g++"
printf '#!/bin/bash\ncat %q\ngrep -q ^missing= %q && exit 1\nexit 0\n' "$folder/cuda" "$folder/cuda" >"$root/third_party/cuda/find_cuda.sh"
chmod +x "$folder"/bin/* "$root/third_party/cuda/find_cuda.sh"
PATH=$folder/bin:$PATH

# Build NAME CODE DRIVER CUDA: of a machine with a driver (true, false), as `auto` or `always`.
Build() {
  local code=0
  : >"$folder/calls"
  sleep 0.01  # file systems keep time in ticks
  (
    set -euo pipefail
    source "$libraries/common.sh"
    source "$libraries/children.sh"
    source "$libraries/cuda.sh"
    source "$libraries/build.sh"
    driver=$3
    HasNvidiaDriver() { $driver; }
    BuildIfStale "$root" "$program" "$4"
  ) >"$folder/out" 2>&1 || code=$?
  ((code == $2)) || Fail "$1: exit code $code, not $2"
}
ExpectText() { grep -qE -e "$1" "$folder/out" || Fail "no line matches '$1'"; }
ExpectCall() { grep -qE -e "$1" "$folder/calls" || Fail "no call matches '$1'"; }
RefuseCall() { ! grep -qE -e "$1" "$folder/calls" || Fail "a call matches '$1'"; }

echo nvcc=/nvcc >"$folder/cuda"  # a toolkit with all of it
Build "no driver" 0 false auto
ExpectCall '//tools/cli:millrace$'
RefuseCall 'config=cuda'
ExpectText '^no NVIDIA driver is visible: .*tools/millrace --cuda'
Build "no driver, again" 0 false auto
RefuseCall .
[[ ! -s $folder/out ]] || Fail "nothing is built, and something said"
Build "--cuda" 0 false always
ExpectCall '--config=cuda .*//tools/cli:millrace$'
Build "--cuda, again" 0 false always
RefuseCall .
Build "without --cuda again" 0 false auto
ExpectCall .
RefuseCall 'config=cuda'
Build "a driver" 0 true auto
ExpectCall '--config=cuda'
Build "a driver or --cuda: the same program" 0 true always
RefuseCall .
echo x >>"$root/runtime/a.cc"
Build "a source has changed" 0 true auto
ExpectCall '--config=cuda'
rm "$root/runtime/a.cc"
Build "a source is gone" 0 true auto
ExpectCall .
echo nccl_version=3 >>"$folder/cuda"
Build "the toolkit has changed" 0 true auto
ExpectCall '--config=cuda'

echo 'missing=nvcc (looked everywhere)' >"$folder/cuda"
Build "--cuda without a toolkit" 2 false always
ExpectText '^millrace: --cuda needs a CUDA toolkit'
ExpectText '^  nvcc \(looked everywhere\)'
RefuseCall .
Build "a driver without a toolkit" 0 true auto
ExpectText '^no CUDA toolkit found: '
RefuseCall 'config=cuda'

RefuseCall 'Wno-error'
rm "$program"
COMPILER=13 Build "another compiler" 0 false auto
ExpectCall '--copt=-Wno-error'

((failed == 0)) && echo "all as promised"
exit "$failed"

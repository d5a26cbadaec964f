#!/bin/bash
# A package (tools/package) as its user meets it: unpacked somewhere, no build tree, an environment with nothing in it.
# Arguments: the program without CUDA, and the one with CUDA where this build has it.
set -uo pipefail

debs=$PWD/tools/lib/package/debs.sh
folder=$(mktemp -d "$TEST_TMPDIR/package.XXXXXX")
failed=0

Fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$folder/out" "$folder/err"
  failed=1
}

# Clean COMMAND...: with nothing of our environment but what a container of tests needs; output in $folder/out and $folder/err.
Clean() {
  timeout -s KILL 120 env -i PATH=/usr/bin:/bin HOME="$folder" TMPDIR="$folder" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_btl_vader_single_copy_mechanism=none "$@" >"$folder/out" 2>"$folder/err"
}

ExpectText() { grep -qE -e "$2" "$folder/$1" || Fail "no line in $1 matches '$2'"; }

cuda=()
(($# < 2)) || cuda=(--cuda "$2")
mkdir "$folder/stage" "$folder/elsewhere"
tools/lib/package/assemble.sh "$folder/stage/millrace" "version of a test" "$1" "${cuda[@]}" >"$folder/out" 2>"$folder/err" || Fail "assemble"
tar -C "$folder/stage" -czf "$folder/package.tar.gz" millrace
rm -rf "$folder/stage"
tar -C "$folder/elsewhere" -xzf "$folder/package.tar.gz"
package=$folder/elsewhere/millrace
cd "$package" || exit 1

cp VERSION "$folder/out"
ExpectText out '^version of a test$'
ExpectText out '^oldest glibc: 2\.[0-9]+$'

# The libraries that Debian has and another system need not have come from the package, not from this machine.
Clean bin/with-libs bash -c 'LD_TRACE_LOADED_OBJECTS=1 libexec/millrace-cpu'
for name in libspdlog libfmt libopenblas libgfortran libxxhash libz\\. libzstd; do
  grep -q "$name" "$folder/out" || continue  # a program need not use all of them
  grep -q "$name.* => $package/" "$folder/out" || Fail "$name is not the package's"
done
grep -q "libopenblas.* => $package/" "$folder/out" || Fail "libopenblas is not the package's"

settings=(--set train.steps=4 --set train.eval_every=0 --set optimizer.schedule.warmup=1 --set checkpoint.every=4 --set execution.backend=cpu)
Clean bin/millrace train configs/quickstart.json "${settings[@]}" --set run.dir="$folder/one" || Fail "one process"
ExpectText out '^step 4/4 '
[[ -e $folder/one/summary.json ]] || Fail "no summary"
Clean mpirun -n 2 --oversubscribe --bind-to none bin/millrace train configs/quickstart.json "${settings[@]}" --set run.dir="$folder/two" ||
  Fail "two ranks"
ExpectText out '^step 4/4 '
[[ $(wc -l <"$folder/two/metrics.jsonl") == 4 ]] || Fail "two ranks wrote other than four steps"
rm -rf "$folder/two"
Clean bin/millrace -n 2 train configs/quickstart.json "${settings[@]}" --set run.dir="$folder/two" || Fail "two ranks by the program's own launcher"
[[ $(wc -l <"$folder/two/metrics.jsonl") == 4 ]] || Fail "two ranks of the program's own launcher wrote other than four steps"
Clean bin/millrace doctor --json || Fail "doctor"
ExpectText out '"ok":true'

# The same folder as a Debian package, unpacked where it would lie below a root.
"$debs" "$folder/debs" 0.1.0 --program "$package" >"$folder/out" 2>"$folder/err" || Fail "debs"
dpkg-deb -x "$folder/debs/millrace_0.1.0_amd64.deb" "$folder/root" 2>"$folder/err" || Fail "unpacking the .deb"
Clean "$folder/root/usr/bin/millrace" config validate configs/quickstart.json || Fail "the program of the .deb"
Clean dpkg-deb -f "$folder/debs/millrace_0.1.0_amd64.deb" Depends
ExpectText out 'libc6 \(>= 2\.[0-9]+\).*openmpi-bin'

# Its manual page has each verb with each of its options, and how it ends.
gzip -dc "$folder/root/usr/share/man/man1/millrace.1.gz" >"$folder/millrace.1" || Fail "the manual page"
Clean groff -man -ww -Tascii -P-cbou "$folder/millrace.1" || Fail "groff"
[[ ! -s $folder/err ]] || Fail "groff warns about the manual page"
cp "$folder/out" "$folder/page"
Clean bin/millrace --help
verbs=$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p' "$folder/out")
(($(wc -w <<<"$verbs") > 10)) || Fail "so few verbs: $verbs"
options=0
for verb in $verbs; do
  sed -n "/^   $verb\$/,/^   [a-z]/p" "$folder/page" >"$folder/of_verb"
  grep -q "^       millrace $verb " "$folder/of_verb" || Fail "the manual page has no verb $verb"
  Clean bin/millrace "$verb" --help
  for option in $(grep -oE '^  --[a-z0-9-]+' "$folder/out"); do
    options=$((options + 1))
    grep -qE -e "^       $option( |\$)" "$folder/of_verb" || Fail "the manual page of $verb has no $option"
  done
done
((options > 50)) || Fail "so few options: $options"
grep -qE '^       75 +preempted' "$folder/page" || Fail "the manual page has no exit codes"

if (($# >= 2)); then
  grep -qx 'required libnccl.so.2' libexec/cuda_libraries || Fail "the package does not say that it needs NCCL"
  if [[ ! -e /dev/nvidiactl && ! -e /proc/driver/nvidia/version ]]; then
    # Once for all ranks, and only for verbs that would use a GPU.
    Clean mpirun -n 2 --oversubscribe --bind-to none bin/millrace train configs/quickstart.json "${settings[@]}" --set run.dir="$folder/three"
    (($(grep -c 'no NVIDIA driver on this host' "$folder/err") == 1)) || Fail "not said once that there is no GPU"
    Clean bin/millrace -n 2 train configs/quickstart.json "${settings[@]}" --set run.dir="$folder/four"
    (($(grep -c 'no NVIDIA driver on this host' "$folder/err") == 1)) || Fail "not said once by the launcher that there is no GPU"
    Clean bin/millrace config validate configs/gpt2_124m.json
    ! grep -q driver "$folder/err" || Fail "a verb that needs no device speaks of one"
  fi
  # CUDA's libraries in LD_LIBRARY_PATH win over all other places.
  mkdir "$folder/given"
  while read -r _ name; do touch "$folder/given/$name"; done <libexec/cuda_libraries
  Clean env LD_LIBRARY_PATH="$folder/given" bash -c 'source libexec/env.sh; echo "$LD_LIBRARY_PATH|$missing_cuda"'
  grep -qxF "$folder/given:$package/lib|" "$folder/out" || Fail "a folder was added although LD_LIBRARY_PATH has every library"
  echo 'required libno_such_thing.so.1' >>libexec/cuda_libraries
  Clean bash -c 'source libexec/env.sh; echo "$missing_cuda"'
  ExpectText out 'libno_such_thing\.so\.1$'
  Clean bin/millrace doctor
  ExpectText out 'libno_such_thing\.so\.1'
fi

((failed == 0)) && echo "PASSED"
exit "$failed"

#!/bin/bash
# What tools/setup promises about asking, installing and refusing, with an apt, a dpkg-query, an id and a sudo that are made here.
set -uo pipefail

setup=$PWD/tools/setup
folder=$(mktemp -d "$TEST_TMPDIR/setup.XXXXXX")
failed=0
export CUDA_HOME=/nowhere
unset CI MILLRACE_NO_INSTALL

Fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$folder/out" "$folder/calls"
  failed=1
}

# Fake NAME: the script on standard input, as a command of that name.
mkdir "$folder/bin" "$folder/no_sudo"
Fake() {
  { echo '#!/bin/bash'; cat; } >"$folder/bin/$1"
  chmod +x "$folder/bin/$1"
}
export FAKE=$folder
Fake id <<'SCRIPT'
cat "$FAKE/uid"
SCRIPT
Fake sudo <<'SCRIPT'
[[ $1 != -n ]] || { shift; [[ -e $FAKE/sudo_without_password ]] || exit 1; }
exec "$@"
SCRIPT
Fake apt-get <<'SCRIPT'
[[ -e /proc/self/fd/0 ]] || echo "no standard input" >>"$FAKE/calls"
echo "apt-get $*" >>"$FAKE/calls"
[[ $1 == install ]] || exit 0
for word in "${@:2}"; do [[ $word == -* ]] || echo "installed $word 1" >>"$FAKE/installed"; done
SCRIPT
Fake dpkg-query <<'SCRIPT'
cat "$FAKE/installed"
SCRIPT
Fake apt-cache <<'SCRIPT'
echo "  Candidate: $(sed -n "s/^$2 //p" "$FAKE/candidates" | grep . || echo 1)"
SCRIPT
# Versions are compared by dpkg itself, but for the "1" that the made apt installs.
Fake dpkg <<'SCRIPT'
[[ $2 != 1 ]] || exit 1
exec /usr/bin/dpkg "$@"
SCRIPT

# Try NAME CODE UID [ARG...]: set-up on a machine that has nothing, for this user, without a terminal.
Try() {
  local name=$1 want=$2 code=0
  echo "$3" >"$folder/uid"
  shift 3
  rm -f "$folder/calls"
  touch "$folder/calls" "$folder/candidates"
  cp "${installed:-/dev/null}" "$folder/installed"
  PATH=$folder/bin:/usr/bin:/bin timeout -s KILL 60 "${command[@]}" "$@" >"$folder/out" 2>&1 <"${input:-/dev/null}" || code=$?
  ((code == want)) || Fail "$name: exit code $code, not $want"
}
command=("$setup")
ExpectText() { grep -qE -e "$1" "$folder/out" || Fail "no line matches '$1'"; }
ExpectCall() { grep -qE -e "$1" "$folder/calls" || Fail "no call matches '$1'"; }
RefuseCall() { ! grep -qE -e "$1" "$folder/calls" || Fail "a call matches '$1'"; }

# Without a terminal: root installs, and says what.
Try "root" 0 0
ExpectText '^Installing: bazel-bootstrap g\+\+ '
ExpectCall '^apt-get update'
ExpectCall '^apt-get install .*--no-install-recommends bazel-bootstrap '
RefuseCall 'clang|catch2|valijson'
Try "root, for tests" 0 0 --tests
ExpectCall '^apt-get install .* catch2 libvalijson-dev clang libclang-rt-dev lld'

# Nothing to do when all of it is there.
cp "$folder/installed" "$folder/all"
installed=$folder/all Try "all is there" 0 0 --tests
[[ ! -s $folder/out && ! -s $folder/calls ]] || Fail "there was nothing to do or to say"
installed=$folder/all Try "all is there, installing is forbidden" 0 1000 --tests --no-install

# A standard input that is closed, not empty.
code=0
echo 0 >"$folder/uid"
: >"$folder/installed"
PATH=$folder/bin:/usr/bin:/bin "$setup" >"$folder/out" 2>&1 <&- || code=$?
((code == 0)) || Fail "standard input closed: exit code $code"
ExpectText '^Installing: '
RefuseCall 'no standard input'

# Another user installs by sudo, if it asks for no password; else there is the command to type.
touch "$folder/sudo_without_password"
Try "sudo without password" 0 1000
ExpectCall '^apt-get install '
rm "$folder/sudo_without_password"
Try "sudo with password" 2 1000
ExpectText '^  sudo apt-get update && sudo apt-get install -y --no-install-recommends bazel-bootstrap '
ExpectText 'sudo asks for a password'
RefuseCall .
Try "sudo with password, --yes" 2 1000 --yes
RefuseCall .

# Forbidden.
Try "--no-install" 2 0 --no-install
ExpectText '^  apt-get update && apt-get install -y '
RefuseCall .
MILLRACE_NO_INSTALL=1 Try "MILLRACE_NO_INSTALL=1" 2 0
RefuseCall .
MILLRACE_NO_INSTALL=1 CI=true Try "forbidden in CI, too" 2 0 --yes
RefuseCall .
MILLRACE_NO_INSTALL=perhaps Try "neither 0 nor 1" 2 0
ExpectText "MILLRACE_NO_INSTALL=perhaps; allowed: 0, 1"

# What is forbidden is not fetched with pip, either: on a machine that lacks cuDNN's frontend headers alone.
mkdir -p "$folder/root/tools" "$folder/root/third_party/cuda"
cp "$setup" "$folder/root/tools/setup"
cp -rL "${setup%/setup}/lib" "$folder/root/tools/lib"
cat >"$folder/root/third_party/cuda/find_cuda.sh" <<'SCRIPT'
#!/bin/bash
[[ $# == 0 ]] || { echo "$FAKE/headers"; exit; }
printf '%s\n' nvcc=/nvcc 'missing=nvidia-cudnn-frontend 1.32.0'
exit 1
SCRIPT
chmod +x "$folder/root/third_party/cuda/find_cuda.sh"
Fake python3 <<'SCRIPT'
echo "python3 $*" >>"$FAKE/calls"
[[ $* == *--version ]]
SCRIPT
command=("$folder/root/tools/setup")
installed=$folder/all Try "headers are missing" 0 0 --cuda
ExpectCall '^python3 -m pip .*download'
installed=$folder/all Try "headers are missing, installing is forbidden" 0 0 --cuda --no-install
ExpectText 'nvidia-cudnn-frontend are missing, and installing is forbidden'
RefuseCall 'download'
command=("$setup")
rm "$folder/bin/python3"

# On a terminal it asks.
command=(script -qec "$setup" /dev/null)
echo n >"$folder/n"
echo y >"$folder/y"
input=$folder/n Try "asked, no" 2 0
ExpectText 'Install them now'
RefuseCall .
input=$folder/y Try "asked, yes" 0 0
ExpectText 'Install them now'
ExpectCall '^apt-get install '
command=("$setup")

# A distribution that does not have it: said before anything is installed.
echo 'bazel-bootstrap 3.5.1+ds-3ubuntu1' >"$folder/candidates"
Try "Bazel is too old" 2 0
ExpectText '^  bazel-bootstrap is 3\.5\.1\+ds-3ubuntu1 here; Millrace builds with 4\.2\.3'
RefuseCall 'apt-get install'
printf '%s\n' 'bazel-bootstrap 4.2.3+ds-9ubuntu2' 'catch2 3.4.0-1build1' 'libcli11-dev (none)' >"$folder/candidates"
Try "Catch2 is too new, a package is not there" 2 0 --tests
ExpectText '^  catch2 is 3\.4\.0-1build1 here'
ExpectText '^  there is no package libcli11-dev'
RefuseCall 'apt-get install'
printf '%s\n' 'bazel-bootstrap 4.2.3+ds-9ubuntu2' 'catch2 3.4.0-1build1' >"$folder/candidates"
Try "Catch2 is only for tests" 0 0
sed 's/^installed catch2 .*/installed catch2 3.4.0-1/' "$folder/all" >"$folder/catch3"
installed=$folder/catch3 Try "an installed Catch2 is too new" 2 0 --tests
ExpectText '^setup: catch2 is 3\.4\.0-1 here'

Try "usage" 2 0 --nonsense
ExpectText "unknown argument '--nonsense'; allowed: "

((failed == 0)) && echo "all as promised"
exit "$failed"

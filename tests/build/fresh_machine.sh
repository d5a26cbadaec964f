#!/bin/bash
# tests/build/fresh_machine.sh [--suite NAME] [--commands N] [--bind FOLDER]...: README's first commands on a machine that has nothing. Makes
# a minimal Debian with debootstrap, clones this repository's HEAD into it, and runs there the first N (1) lines of README.md that begin
# with ./tools/, as they stand, with standard input closed. Prints how long packages, compilation and training took; exits with the
# command's code.
#
# --suite    the Debian release, bookworm unless named
# --commands 2 runs ./tools/test, too: half an hour and more
# --bind     shows a folder of this machine at the same place there, read-only: a CUDA toolkit, say
#
# Needs root and Debian's debootstrap. Packages come from where this machine's apt has them. All mounts are in a mount namespace of its
# own, all processes in a process namespace: neither outlives the script, and what it deletes in the end has nothing mounted in it. The
# devices are made with mknod; this machine's /dev is not touched.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

Die() {
  printf '%s\n' "$@" >&2
  exit 2
}

# Where this machine's apt gets the suite from.
Mirror() {
  apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$1 //p" | head -n1
}

# How this machine's apt fetches: proxies, certificates, retries; nothing of what it does after an installation.
FetchSettings() { apt-config dump | grep -E '^Acquire::(http|https|Retries|ForceIPv[46])\b' || true; }

# The first N commands of README.md.
Commands() { grep -E '^\./tools/' "$repository/README.md" | head -n "$1"; }

MakeDevices() {
  local dev=$1 device
  mount -t tmpfs -o mode=755 tmpfs "$dev"
  for device in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "$dev/${device%:*}" c 1 "${device#*:}"
  done
  mknod -m 666 "$dev/tty" c 5 0
  ln -s /proc/self/fd "$dev/fd"
  ln -s /proc/self/fd/0 "$dev/stdin"
  ln -s /proc/self/fd/1 "$dev/stdout"
  ln -s /proc/self/fd/2 "$dev/stderr"
  mkdir "$dev/pts" "$dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$dev/pts"
  ln -s pts/ptmx "$dev/ptmx"
  mount -t tmpfs -o mode=1777 tmpfs "$dev/shm"
}

# Within the namespaces: makes the machine in the folder $1.
MakeMachine() {
  local machine=$1 mirror proxy= file
  mirror=$(Mirror "$suite")
  [[ -n $mirror ]] || Die "fresh_machine: apt on this machine has no source for $suite"
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  if [[ -n $proxy ]]; then export http_proxy=$proxy; fi
  debootstrap --variant=minbase "$suite" "$machine" "$mirror" >"$machine.log" 2>&1 ||
    { tail -n 20 "$machine.log" >&2; Die "fresh_machine: debootstrap failed"; }
  rm -f "$machine/etc/apt/sources.list"
  for file in sources.list sources.list.d auth.conf auth.conf.d trusted.gpg.d keyrings; do
    [[ ! -e /etc/apt/$file ]] || cp -rL "/etc/apt/$file" "$machine/etc/apt/"
  done
  FetchSettings >"$machine/etc/apt/apt.conf.d/90fetch"
  cp -L /etc/resolv.conf /etc/hosts "$machine/etc/"
  if [[ -e /etc/ssl/certs/ca-certificates.crt ]]; then
    mkdir -p "$machine/etc/ssl/certs"
    cp -L /etc/ssl/certs/ca-certificates.crt "$machine/etc/ssl/certs/"
  fi
  git -c advice.detachedHead=false clone --quiet --no-local "$repository" "$machine/root/millrace"
  MakeDevices "$machine/dev"
  mount -t proc proc "$machine/proc"
  mount -t sysfs -o ro sysfs "$machine/sys"
  for file in "${binds[@]}"; do
    mkdir -p "$machine$file"
    mount --bind "$file" "$machine$file"
    mount -o remount,bind,ro "$machine$file"
  done
}

# Passes lines on, with the seconds since the start before each, and notes when the two turning points came.
Follow() {
  local line now begin=$1 built=- building=-
  while IFS= read -r line; do
    now=$(awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    case $line in
      "Building Millrace"*) building=$now ;;
      "Built in "*) built=$now ;;
    esac
    printf '%7s  %s\n' "$now" "$line"
  done
  echo "$building $built" >"$2"
}

# RunCommand MACHINE COMMAND: with a new user's environment; prints the split.
RunCommand() {
  local machine=$1 command=$2 begin=$EPOCHREALTIME code=0 building built
  echo "== $command"
  chroot "$machine" env -i HOME=/root USER=root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    bash -c "cd ~/millrace && $command" <&- 2>&1 | Follow "$begin" "$machine.points" || code=${PIPESTATUS[0]}
  read -r building built <"$machine.points"
  awk -v begin="$begin" -v end="$EPOCHREALTIME" -v building="$building" -v built="$built" -v code="$code" 'BEGIN {
    total = end - begin
    if (built != "-") printf "packages %.0f s, compile %.0f s, run %.0f s, ", building, built - building, total - built
    printf "total %.0f s, exit code %d\n", total, code
  }'
  return "$code"
}

# The first process of the namespaces.
Inside() {
  local folder=$1 command code=0
  MakeMachine "$folder/machine"
  while IFS= read -r command; do
    RunCommand "$folder/machine" "$command" || code=$?
  done < <(Commands "$commands")
  return "$code"
}

suite=bookworm commands=1 binds=() inside=
while (($#)); do
  case $1 in
    -h | --help) sed -n '2,14s/^# \?//p' "$0"; exit 0 ;;
    --suite | --commands | --bind | --inside) (($# >= 2)) || Die "fresh_machine: $1 needs a value" ;;&
    --suite) suite=$2 ;;
    --commands) commands=$2 ;;
    --bind) binds+=("$(realpath -e "$2")") ;;
    --inside) inside=$2 ;;
    *) Die "fresh_machine: unknown argument '$1'; allowed: --suite, --commands, --bind" ;;
  esac
  shift 2
done
[[ $commands == [12] ]] || Die "fresh_machine: --commands $commands: 1 or 2"
if [[ -n $inside ]]; then
  Inside "$inside"
  exit
fi

((EUID == 0)) || Die "fresh_machine: only root can make a machine"
for tool in debootstrap unshare git; do
  command -v "$tool" >/dev/null || Die "fresh_machine: there is no $tool (Debian: apt-get install debootstrap util-linux git)"
done
folder=$(mktemp -d "${TMPDIR:-/tmp}/fresh_machine.XXXXXX")
mkdir "$folder/machine"
CleanUp() {
  if grep -qF " $folder" /proc/self/mountinfo; then
    echo "fresh_machine: $folder has something mounted in it, and stays" >&2
  else
    rm -rf --one-file-system "$folder"
  fi
}
trap CleanUp EXIT
arguments=(--suite "$suite" --commands "$commands")
for bind in "${binds[@]}"; do arguments+=(--bind "$bind"); done
code=0
unshare --mount --propagation private --pid --fork --kill-child --mount-proc "$0" "${arguments[@]}" --inside "$folder" || code=$?
exit "$code"

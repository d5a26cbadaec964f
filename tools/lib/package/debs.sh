#!/bin/bash
# debs.sh OUT VERSION [--library TREE] [--program FOLDER]: Debian packages in OUT, of an install tree (library.sh) and of a package's folder
# (assemble.sh), as version VERSION:
#   libmillraceX.Y   the library; several series live beside each other, as their SONAMEs do
#   libmillrace-dev  headers, pkg-config and CMake files, schema, manual page
#   millrace         the program, in /usr/lib/millrace, and its manual page
# Needs dpkg-deb, for --program also python3 and that the program runs here, whose help becomes the manual page; and no root.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
source "$here/../common.sh"

(($# >= 2)) || Die 2 "debs: OUT VERSION, please"
readonly out=$1 version=$2
shift 2
tree= program=
while (($#)); do
  case $1 in
    --library) tree=$2 ;;
    --program) program=$2 ;;
    *) Die 2 "debs: unknown argument '$1'; allowed: --library, --program" ;;
  esac
  shift 2
done
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+([+~-][a-z0-9.+~-]*)?$ ]] || Die 2 "debs: version $version"
mkdir -p "$out"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/millrace_debs.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# Root NAME: the folder whose files become the package's, with its licences.
Root() { echo "$scratch/$1"; }

# Build NAME SECTION DEPENDS DESCRIPTION: of what lies in Root NAME.
Build() {
  local name=$1 root
  root=$(Root "$name")
  mkdir -p "$root/DEBIAN"
  cat >"$root/DEBIAN/control" <<EOT
Package: $name
Version: $version
Architecture: amd64
Maintainer: The authors of Millrace
Section: $2
Priority: optional
Depends: $3
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Description: $4
EOT
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  chmod -R u=rwX,go=rX "$root"
  dpkg-deb -Zgzip --root-owner-group --build "$root" "$out/${name}_${version}_amd64.deb" >/dev/null
}

# Manual FROM NAME: pages of a MANPATH's folder become the package's, compressed as Debian has them.
Manual() {
  local root link
  root=$(Root "$2")/usr/share/man
  mkdir -p "$root"
  cp -a "$1"/man? "$root"
  find "$root" -type f -exec gzip -9n {} +
  find "$root" -type l | while read -r link; do
    ln -s "$(readlink "$link").gz" "$link.gz"
    rm "$link"
  done
}

# The oldest glibc that the library's symbol versions ask for.
Glibc() { readelf -V --wide "$1" | grep -o 'Name: GLIBC_[0-9.]*' | sed 's/.*_//' | sort -uV | tail -n1; }

if [[ -n $tree ]]; then
  soname=$(readelf -d "$tree/lib/libmillrace.so" | sed -n 's/.*(SONAME).*\[\(.*\)\]$/\1/p')
  series=${soname#libmillrace.so.}
  runtime=libmillrace$series
  root=$(Root "$runtime")
  mkdir -p "$root/usr/lib" "$root/usr/share/doc/$runtime" "$root/DEBIAN"
  cp -a "$tree"/lib/libmillrace.so."$series"* "$root/usr/lib"
  cat "$tree"/share/licenses/millrace/* >"$root/usr/share/doc/$runtime/copyright"
  echo "libmillrace $series $runtime (>= $series.0)" >"$root/DEBIAN/shlibs"
  echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
  Build "$runtime" libs "libc6 (>= $(Glibc "$tree/lib/libmillrace.so")), libgcc-s1" "training runtime for transformers, as a library"

  root=$(Root libmillrace-dev)
  mkdir -p "$root/usr/lib" "$root/usr/share/doc"
  cp -a "$tree/include" "$root/usr"
  cp -a "$tree/lib/libmillrace.so" "$tree/lib/pkgconfig" "$tree/lib/cmake" "$root/usr/lib"
  cp -a "$tree/share/millrace" "$root/usr/share"
  cp -a "$tree/share/doc/millrace" "$root/usr/share/doc/libmillrace-dev"
  Manual "$tree/share/man" libmillrace-dev
  Build libmillrace-dev libdevel "$runtime (= $version)" "training runtime for transformers, to link with"
fi

if [[ -n $program ]]; then
  root=$(Root millrace)
  mkdir -p "$root/usr/lib" "$root/usr/bin" "$root/usr/share/doc/millrace"
  cp -a "$program" "$root/usr/lib/millrace"
  ln -s ../lib/millrace/bin/millrace "$root/usr/bin/millrace"
  cat "$program"/share/licenses/* >"$root/usr/share/doc/millrace/copyright"
  python3 -B "$here/manual.py" program "$program/bin/millrace" "$version" "$here/../../README.md" "$scratch/man"
  Manual "$scratch/man" millrace
  Build millrace science "libc6 (>= $(sed -n 's/^oldest glibc: //p' "$program/VERSION")), libstdc++6 (>= 12), libgcc-s1, libopenmpi3 | libopenmpi3t64, openmpi-bin" \
    "training runtime for transformers"
fi
ls -1 "$out"

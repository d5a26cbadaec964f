#!/bin/bash
# library.sh PREFIX LIBRARY [CUDA_LIBRARY]: makes an install tree for programs that link Millrace, from the built libmillrace.so: headers, library,
# libmillrace_cuda.so beside it where there is one, pkg-config and CMake files, schema, manual page, licences, and the wheel in PREFIX/wheel. The working directory is the repository's root. The tree can lie
# anywhere: all its files find each other by where they are.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
source "$here/../common.sh"
(($# == 2 || $# == 3)) || Die 2 "library: PREFIX LIBRARY [CUDA_LIBRARY], please"
readonly prefix=$1 library=$2 cuda_library=${3:-} header=runtime/api/c/millrace.h

# The one place that has the version is the header.
Version() { sed -n "s/^#define MR_VERSION_$1 \([0-9]*\)$/\1/p" "$header"; }
version=$(Version MAJOR).$(Version MINOR).$(Version PATCH)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || Die 70 "library: no version in $header"
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]$/\1/p')
[[ $soname == libmillrace.so.${version%.*} ]] || Die 70 "library: its SONAME is $soname, and the header's version $version"

mkdir -p "$prefix"/{include,lib/pkgconfig,lib/cmake/millrace,share/millrace,share/doc/millrace,share/licenses/millrace}
install -m 644 runtime/api/c/millrace.h runtime/api/c/millrace_arrow.h runtime/api/c/millrace_dlpack.h "$prefix/include"
install -m 644 "$library" "$prefix/lib/libmillrace.so.$version"
strip --strip-unneeded "$prefix/lib/libmillrace.so.$version"
ln -sf "libmillrace.so.$version" "$prefix/lib/$soname"
ln -sf "$soname" "$prefix/lib/libmillrace.so"
# It is opened by this name from the folder of the other one, and nobody links it.
if [[ -n $cuda_library ]]; then
  install -m 644 "$cuda_library" "$prefix/lib/libmillrace_cuda.so"
  strip --strip-unneeded "$prefix/lib/libmillrace_cuda.so"
fi

# Fill FROM TO: a text with the version in its places.
Fill() { sed "s/@VERSION@/$version/g; s/@SERIES@/${version%.*}/g" "$here/library/$1" >"$prefix/$2"; }
Fill millrace.pc.in lib/pkgconfig/millrace.pc
Fill millrace-config.cmake.in lib/cmake/millrace/millrace-config.cmake
Fill millrace-config-version.cmake.in lib/cmake/millrace/millrace-config-version.cmake
python3 -B "$here/manual.py" library "$header" "$version" "$prefix/share/man"
install -m 644 runtime/api/c/README.md "$prefix/share/doc/millrace/README.md"

python3 -B "$here/wheel.py" "$prefix/lib/$soname" "$version" "$prefix/wheel" ${cuda_library:+"$prefix/lib/libmillrace_cuda.so"}
python3 -B -c 'import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.mr_config_schema.restype = ctypes.c_char_p
sys.stdout.write(library.mr_config_schema().decode())' "$(realpath "$prefix/lib/$soname")" >"$prefix/share/millrace/config.schema.json"

# Of what is inside the library.
for package in libopenblas-serial-dev libfmt-dev libxxhash-dev nlohmann-json3-dev libstdc++-12-dev; do
  [[ ! -r /usr/share/doc/$package/copyright ]] || install -m 644 "/usr/share/doc/$package/copyright" "$prefix/share/licenses/millrace/$package"
done

#!/bin/bash
# assemble.sh FOLDER VERSION_TEXT CPU_PROGRAM [--cuda PROGRAM] [--test PROGRAM]...: makes the folder of a package (tools/package) from built
# programs. The working directory is the repository's root. Writes FOLDER/VERSION with what the programs ask of a host.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
source "$here/../common.sh"

readonly folder=$1 version=$2 cpu_program=$3
shift 3
cuda_program=
tests=()
while (($#)); do
  case $1 in
    --cuda) cuda_program=$2 ;;
    --test) tests+=("$2") ;;
    *) Die 2 "assemble: unknown argument '$1'" ;;
  esac
  shift 2
done

# Libraries by who has them. One that is in no list would make a package that starts here and nowhere else.
readonly bundled='^lib(spdlog|fmt|openblas|gfortran|quadmath|xxhash|z|zstd|microhttpd|gnutls|p11-kit|idn2|unistring|tasn1|nettle|hogweed|gmp|ffi)\.so'
readonly of_cuda='^lib(cublasLt|cublas|cudnn|nccl|nvrtc)\.so'
readonly of_host='^(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libmpi|ld-linux-x86-64)\.so'

mkdir -p "$folder"/{bin,lib,libexec,share/licenses}
install -m 755 "$here/millrace" "$here/with-libs" "$folder/bin"
install -m 644 "$here/env.sh" "$folder/libexec/env.sh"
install -m 644 "$here/README.md" "$folder/README.md"

Install() {
  install -m 755 "$1" "$2"
  strip "$2"
}
Install "$cpu_program" "$folder/libexec/millrace-cpu"
[[ -z $cuda_program ]] || Install "$cuda_program" "$folder/libexec/millrace-cuda"
if ((${#tests[@]})); then
  mkdir -p "$folder/libexec/tests"
  for program in "${tests[@]}"; do Install "$program" "$folder/libexec/tests/${program##*/}"; done
fi

# Needed FILE: sonames that FILE asks for.
Needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p'; }

# FileOf NAME ASKER: the file that the loader gives ASKER as NAME.
FileOf() { ldd "$2" | sed -n "s|^[[:space:]]*$1 => \(/.*\) (0x.*|\1|p" | head -n1; }

declare -A done_with=() cuda_libraries=()
# Bundle FILE ORIGINAL: copies what FILE needs and we bring, and what that needs. ORIGINAL is FILE where the loader finds its libraries.
Bundle() {
  local name file package
  for name in $(Needed "$1"); do
    [[ -z ${done_with[$name]:-} ]] || continue
    done_with[$name]=yes
    if [[ $name =~ $bundled ]]; then
      file=$(readlink -f "$(FileOf "$name" "$2")")
      install -m 644 "$file" "$folder/lib/$name"
      package=$(dpkg -S "$file" 2>/dev/null | head -n1 | cut -d: -f1) || package=
      if [[ -n $package && -r /usr/share/doc/$package/copyright ]]; then
        install -m 644 "/usr/share/doc/$package/copyright" "$folder/share/licenses/$package"
      fi
      Bundle "$file" "$file"
    elif [[ $name =~ $of_cuda ]]; then
      cuda_libraries[$name]=required
    elif [[ ! $name =~ $of_host ]]; then
      Die 70 "package: $1 needs $name, of which nobody has said whether the package brings it (tools/lib/package/assemble.sh)"
    fi
  done
}
Bundle "$folder/libexec/millrace-cpu" "$cpu_program"
if [[ -n $cuda_program ]]; then Bundle "$folder/libexec/millrace-cuda" "$cuda_program"; fi
for program in "${tests[@]}"; do Bundle "$folder/libexec/tests/${program##*/}" "$program"; done

if ((${#cuda_libraries[@]})); then
  # cuDNN opens NVRTC by itself; it is of the same major version as the toolkit, as cuBLASLt is.
  for name in "${!cuda_libraries[@]}"; do
    [[ $name != libcublasLt.so.* ]] || cuda_libraries[libnvrtc.so.${name##*.}]=optional
  done
  for name in "${!cuda_libraries[@]}"; do echo "${cuda_libraries[$name]} $name"; done | sort -r >"$folder/libexec/cuda_libraries"
fi

# Newest PREFIX: of the symbol versions PREFIX_x.y.z that the programs and libraries ask for.
Newest() {
  find "$folder/bin" "$folder/lib" "$folder/libexec" -type f -print0 | xargs -0 readelf -V --wide 2>/dev/null |
    grep -o "Name: $1_[0-9.]*" | sed "s/.*_//" | sort -uV | tail -n1
}
{
  echo "$version"
  echo "oldest glibc: $(Newest GLIBC)"
  echo "oldest libstdc++: with GLIBCXX_$(Newest GLIBCXX)"
  echo "CPU: x86-64 with AVX2 and FMA (x86-64-v3)"
  echo "from the host: Open MPI 4.1 or newer (libmpi.so.40)${cuda_program:+; for GPUs $(sort -r "$folder/libexec/cuda_libraries" | cut -d' ' -f2 | paste -sd' ')}"
} >"$folder/VERSION"

# Data and scripts, without what only Bazel reads.
Copy() { tar -cf - --exclude=BUILD --exclude='*.cc' --exclude='__pycache__' --dereference "$@" | tar -xf - -C "$folder"; }
Copy configs tools/bench
((${#tests[@]} == 0)) || Copy tests/golden

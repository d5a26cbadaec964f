#!/bin/bash
# find_cuda.sh: what of CUDA a build can use on this machine, as lines key=value. Bazel's repository rules and the scripts in tools/ both
# ask here, so that they cannot disagree.
#
#   nvcc                         the compiler
#   PART_include PART_lib        for PART of cudart, cublaslt, cudnn, nccl: folder of its header, file to link
#   PART_version                 as its header says it
#   cudnn_frontend_include       nvidia-cudnn-frontend's headers, fetched by tools/setup
#   missing=TEXT                 one line for each thing that is not there
#
# Exit code 0: all of it is there. 1: something is missing. Of several places the first that has header and library is taken:
# $CUDA_HOME, /usr/local/cuda, the folders nvidia/* of python3's site-packages, Debian's. A CUDA_HOME that names no toolkit hides
# every other compiler: what a user asked for is not replaced in silence.
set -euo pipefail

version=1.32.0  # of nvidia-cudnn-frontend; tools/setup asks for it with --cudnn-frontend-folder
frontend=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/millrace/nvidia_cudnn_frontend-$version
if [[ ${1:-} == --cudnn-frontend-folder ]]; then
  echo "$frontend"
  exit 0
fi

complete=true
Missing() {
  echo "missing=$1"
  complete=false
}

# Prefixes GROUP: folders in which to look. Python is asked only when the groups before it do not have everything.
Prefixes() {
  case $1 in
    home) printf '%s\n' ${CUDA_HOME:+"$CUDA_HOME"} /usr/local/cuda ;;
    pip)
      python3 -c 'import glob, site
for folder in site.getsitepackages() + [site.getusersitepackages()]:
    print("\n".join(sorted(glob.glob(folder + "/nvidia/*"))))' 2>/dev/null || true
      ;;
    debian) printf '%s\n' /usr/lib/cuda /usr ;;
  esac
}

# FindPart NAME HEADER [LIBRARY...]: prints NAME_include and NAME_lib from the first prefix that has the header and one of the libraries
# (shell patterns; a pip folder has only libNAME.so.MAJOR; none: headers are all there is of it). Sets found_header.
found_header=
FindPart() {
  local name=$1 header=$2 group prefix include folder pattern file
  shift 2
  found_header=
  for group in home pip debian; do
    while read -r prefix; do
      for include in "$prefix"/include "$prefix"/targets/x86_64-linux/include "$prefix"/include/x86_64-linux-gnu; do
        [[ -n $prefix && -r $include/$header ]] || continue
        if (($# == 0)); then
          found_header=$include/$header
          echo "${name}_include=$include"
          return
        fi
        for folder in "$prefix"/lib64 "$prefix"/lib "$prefix"/targets/x86_64-linux/lib "$prefix"/lib/x86_64-linux-gnu; do
          for pattern in "$@"; do
            for file in "$folder"/$pattern; do
              [[ -r $file ]] || continue
              found_header=$include/$header
              echo "${name}_include=$include"
              echo "${name}_lib=$file"
              return
            done
          done
        done
      done
    done < <(Prefixes "$group")
  done
  Missing "$name ($header${1:+ with $1}; looked in CUDA_HOME, /usr/local/cuda, python3's nvidia packages and Debian's folders)"
}

# Defined NAME FILE: the number that a header defines NAME as.
Defined() { sed -n -E "s/^#define[[:space:]]+$1[[:space:]]+([0-9]+).*/\1/p" "$2" | head -n1; }

FindNvcc() {
  local group prefix
  if [[ -n ${CUDA_HOME:-} && ! -x $CUDA_HOME/bin/nvcc ]]; then
    Missing "nvcc (CUDA_HOME=$CUDA_HOME has no bin/nvcc)"
    return
  fi
  for group in home pip debian; do
    while read -r prefix; do
      [[ -n $prefix && -x $prefix/bin/nvcc ]] || continue
      echo "nvcc=$prefix/bin/nvcc"
      return
    done < <(Prefixes "$group")
  done
  Missing "nvcc (looked in CUDA_HOME, /usr/local/cuda, python3's nvidia packages and Debian's folders)"
}

FindNvcc
$complete || exit 1

FindPart cudart cuda_runtime_api.h libcudart_static.a
if [[ -n $found_header ]]; then
  number=$(Defined CUDART_VERSION "$found_header")
  echo "cudart_version=$((number / 1000)).$((number % 1000 / 10))"
fi
FindPart nvtx nvtx3/nvToolsExt.h
FindPart cublaslt cublasLt.h 'libcublasLt.so.[0-9]*' libcublasLt.so
if [[ -n $found_header ]]; then
  api=${found_header%/*}/cublas_api.h
  echo "cublaslt_version=$(Defined CUBLAS_VER_MAJOR "$api").$(Defined CUBLAS_VER_MINOR "$api").$(Defined CUBLAS_VER_PATCH "$api")"
fi
FindPart cudnn cudnn.h 'libcudnn.so.[0-9]*' libcudnn.so
if [[ -n $found_header ]]; then
  numbers=${found_header%/*}/cudnn_version.h
  echo "cudnn_version=$(Defined CUDNN_MAJOR "$numbers").$(Defined CUDNN_MINOR "$numbers").$(Defined CUDNN_PATCHLEVEL "$numbers")"
fi
FindPart nccl nccl.h 'libnccl.so.[0-9]*' libnccl.so
if [[ -n $found_header ]]; then
  echo "nccl_version=$(Defined NCCL_MAJOR "$found_header").$(Defined NCCL_MINOR "$found_header").$(Defined NCCL_PATCH "$found_header")"
fi
if [[ -r $frontend/include/cudnn_frontend.h ]]; then
  echo "cudnn_frontend_include=$frontend/include"
  echo "cudnn_frontend_version=$version"
else
  Missing "nvidia-cudnn-frontend $version (tools/setup fetches it)"
fi
$complete

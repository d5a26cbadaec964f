# What the scripts in tools/ know about CUDA. Sourced, not run; needs common.sh.

# FindCuda ROOT: sets cuda_state to complete, none (no compiler) or incomplete, cuda_missing to the parts that are missing, as words for
# people, and cuda_frontend_missing to true when nvidia-cudnn-frontend is the one thing that is.
FindCuda() {
  local found code=0 line
  found=$("$1/third_party/cuda/find_cuda.sh") || code=$?
  cuda_missing=()
  while read -r line; do
    [[ $line != missing=* ]] || cuda_missing+=("${line#missing=}")
  done <<<"$found"
  cuda_state=complete cuda_frontend_missing=false
  ((code)) || return 0
  cuda_state=incomplete
  [[ $found == *nvcc=* ]] || cuda_state=none
  [[ ${#cuda_missing[@]} == 1 && ${cuda_missing[0]} == nvidia-cudnn-frontend* ]] && cuda_frontend_missing=true
  return 0
}

# Whether this machine has an NVIDIA driver. The files are those of the driver itself and of WSL's.
HasNvidiaDriver() { [[ -e /dev/nvidiactl || -e /proc/driver/nvidia/version || -e /dev/dxg ]]; }

# CudaArguments ROOT: sets cuda_arguments, what Bazel is to be given: --config=cuda where everything is there; else nothing, and one line
# says why.
CudaArguments() {
  FindCuda "$1"
  cuda_arguments=()
  case $cuda_state in
    complete) cuda_arguments=(--config=cuda) ;;
    none) Say "no CUDA toolkit found: building the CPU backend only" ;;
    incomplete) Say "CUDA toolkit found, but not all of it: building the CPU backend only; missing: $(printf '%s; ' "${cuda_missing[@]}")" ;;
  esac
}

# The exact file: NVIDIA's headers are the same for every Python, and one hash is enough when the platform is named, too.
readonly cudnn_frontend_requirement='nvidia-cudnn-frontend==1.32.0 --hash=sha256:c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0'

# FetchCudnnFrontend ROOT: nvidia-cudnn-frontend's headers, into the folder of the user's cache where find_cuda.sh looks. Fails with a
# message when they cannot be had. Appears there by one rename, so that an interrupted set-up leaves nothing half done.
FetchCudnnFrontend() {
  local target folder
  target=$("$1/third_party/cuda/find_cuda.sh" --cudnn-frontend-folder)
  mkdir -p "${target%/*}"
  folder=$(mktemp -d "${target%/*}/fetch.XXXXXX")
  echo "$cudnn_frontend_requirement" >"$folder/requirements.txt"
  Say "Fetching the headers of nvidia-cudnn-frontend ..."
  if python3 -m pip --disable-pip-version-check --quiet download --require-hashes --no-deps --only-binary=:all: --implementation cp \
    --python-version 3.11 --abi cp311 --platform manylinux_2_28_x86_64 --dest "$folder" --requirement "$folder/requirements.txt" >&2 &&
    python3 -m zipfile -e "$folder"/nvidia_cudnn_frontend-*.whl "$folder/wheel" && [[ -e $folder/wheel/include/cudnn_frontend.h ]]; then
    mkdir "$folder/result"
    mv "$folder/wheel/include" "$folder/result/include"
    mv -T "$folder/result" "$target" 2>/dev/null || true  # another set-up was faster
  fi
  rm -rf "$folder"
  [[ -e $target/include/cudnn_frontend.h ]]
}

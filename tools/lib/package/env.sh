# Where a package finds the libraries that it does not bring: CUDA's and Open MPI's. Sourced by the scripts in bin/; sets LD_LIBRARY_PATH
# and, as words for people, missing_cuda. `home` is the package's folder.
#
# Each library is taken from the first of: LD_LIBRARY_PATH as given, CUDA_HOME, /usr/local/cuda, the nvidia packages of python3, the
# folder beside mpirun, the loader's own folders (Debian's packages).

home=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)

# Standard error of one rank is enough for what all ranks find alike.
IsFirstRank() { [[ ${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${SLURM_PROCID:-0}}}} == 0 ]]; }
Say() { IsFirstRank && printf 'millrace: %s\n' "$@" >&2 || true; }

# python3 is asked once, and only when a library is in none of the places before it.
python_folders=unknown
PythonFolders() {
  if [[ $python_folders == unknown ]]; then
    python_folders=$(python3 -c 'import glob, site
for folder in site.getsitepackages() + [site.getusersitepackages()]:
    print("\n".join(sorted(glob.glob(folder + "/nvidia/*/lib"))))' 2>/dev/null) || python_folders=
  fi
  printf '%s\n' "$python_folders"
}

# FindLibrary NAME: adds the folder of NAME to LD_LIBRARY_PATH unless the loader finds it anyway. Fails when it is nowhere.
FindLibrary() {
  local name=$1 folder mpirun
  local -a given=() places=()
  IFS=: read -r -a given <<<"${LD_LIBRARY_PATH:-}"
  for folder in "${given[@]}"; do
    [[ -n $folder && -e $folder/$name ]] && return 0
  done
  [[ -z ${CUDA_HOME:-} ]] || places+=("$CUDA_HOME/lib64" "$CUDA_HOME/lib")
  places+=(/usr/local/cuda/lib64)
  for folder in "${places[@]}"; do
    [[ -e $folder/$name ]] && AddFolder "$folder" && return 0
  done
  while read -r folder; do
    [[ -n $folder && -e $folder/$name ]] && AddFolder "$folder" && return 0
  done < <(PythonFolders)
  if mpirun=$(command -v mpirun); then
    folder=$(dirname "$(dirname "$(readlink -f "$mpirun")")")/lib
    [[ -e $folder/$name ]] && AddFolder "$folder" && return 0
  fi
  for folder in /usr/lib/x86_64-linux-gnu /lib/x86_64-linux-gnu /usr/lib64 /usr/lib; do
    [[ -e $folder/$name ]] && return 0
  done
  { ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | grep -q "^[[:space:]]*$name "
}

AddFolder() { export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$1; }

# Our own libraries come after what the user gave.
AddFolder "$home/lib"
FindLibrary libmpi.so.40 || true  # CheckLoads says what cannot be done without

missing_cuda=
if [[ -e $home/libexec/cuda_libraries ]]; then
  PythonFolders >/dev/null  # here, not in the process substitution, so that it is asked once
  while read -r kind library; do
    FindLibrary "$library" || [[ $kind == optional ]] || missing_cuda+="${missing_cuda:+, }$library"
  done <"$home/libexec/cuda_libraries"
fi

# CheckLoads PROGRAM: the loader's own words about what PROGRAM lacks, with the likely fix, and exit code 2; nothing when it can start.
CheckLoads() {
  local lacks
  lacks=$(LD_TRACE_LOADED_OBJECTS=1 "$1" 2>&1 | grep 'not found' | sed 's/^[[:space:]]*//' | sort -u) || return 0
  Say "this host lacks what the program needs:" "  ${lacks//$'\n'/$'\n'millrace:   }"
  [[ $lacks != *libmpi* ]] || Say "Open MPI 4.1 or newer: apt-get install openmpi-bin libopenmpi3, or its folder in LD_LIBRARY_PATH"
  [[ $lacks != *GLIBC* ]] || Say "too old a system; the file VERSION says the oldest that serves"
  exit 2
}

# One BLAS thread per rank, as tools/millrace does; a caller's own choice stays.
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

#!/bin/bash
# run_under_mpi.sh N PROGRAM [ARG...]: the program as N ranks on this host, whatever the number of cores. Used by mpi_test, in the folder of
# a test's files.
set -euo pipefail
ranks=$1
program=$2
shift 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec third_party/mpi/guarded_mpirun.sh "" "$ranks" -n "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl self,vader \
  --mca btl_vader_single_copy_mechanism none "./$program" "$@" </dev/null

#!/bin/bash
# run_under_mpi.sh N PROGRAM [ARG...]: the program as N ranks on this host. Used by mpi_test, in the folder of a test's files.
set -euo pipefail
ranks=$1
program=$2
shift 2
exec tests/support/under_mpirun "$ranks" "./$program" "$@" </dev/null

#!/bin/bash
# lm_eval_wheel.sh LIBRARY: lm-eval on the wheel beside lm-eval through transformers (tests/golden/lm_eval_wheel.py). By hand: pip fills an
# environment of its own, of 6 GB with what torch brings. LM_EVAL_PYTHON=PYTHON takes the packages of one that is there.
set -euo pipefail
folder=$(mktemp -d "${TEST_TMPDIR:-/tmp}/lm_eval.XXXXXX")
trap 'rm -rf "$folder"' EXIT
tools/lib/package/library.sh "$folder/tree" "$1" >/dev/null
python=${LM_EVAL_PYTHON:-}
if [[ -z $python ]]; then
  python3 -m venv "$folder/venv"
  python=$folder/venv/bin/python
  "$python" -m pip install --quiet --disable-pip-version-check lm-eval==0.4.13 transformers==5.23.0 tokenizers==0.23.3 torch==2.15.0 \
    accelerate==1.15.0 datasets==5.2.0 numpy==2.4.6
fi
# Before a wheel that is installed there.
"$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$folder/wheel" "$folder"/tree/wheel/*.whl
export PYTHONPATH=$folder/wheel HOME=$folder
"$python" tests/golden/lm_eval_wheel.py >"$folder/said" 2>&1 || { tail -40 "$folder/said" >&2; exit 1; }
grep -E '^trained|examples,' "$folder/said"
# The requests of lm-eval, shared out among ranks: one result on all of them, and that of one rank.
for ranks in 1 2 3; do
  mpirun -n "$ranks" --oversubscribe --allow-run-as-root -x PYTHONPATH -x HOME "$python" tests/golden/lm_eval_ranks.py --mpi
done >"$folder/ranks" 2>"$folder/said" || { tail -40 "$folder/said" >&2; exit 1; }
[[ $(grep -c '^results ' "$folder/ranks") == 6 && $(grep '^results ' "$folder/ranks" | sort -u | wc -l) == 1 ]] || { cat "$folder/ranks" >&2; exit 1; }

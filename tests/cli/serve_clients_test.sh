#!/bin/bash
# serve_clients.py in a virtual environment of its own, with these clients from PyPI. MILLRACE_CLIENTS_PYTHON names a Python that has them.
set -euo pipefail
readonly clients=(openai==3.54.0 lm_eval==0.4.13 aiohttp==3.14.5 requests==2.34.2 tenacity==9.2.1 tqdm)
python=${MILLRACE_CLIENTS_PYTHON:-}
if [[ -z $python ]]; then
  folder=${TEST_TMPDIR:?}/clients
  python3 -m venv "$folder"
  python=$folder/bin/python
  "$python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "${clients[@]}"
fi
exec "$python" -B tests/cli/serve_clients.py

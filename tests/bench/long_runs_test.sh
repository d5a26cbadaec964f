#!/bin/bash
# long_runs_test.sh: the script beside this one, with Python's standard library only.
exec python3 -B tests/bench/long_runs_test.py

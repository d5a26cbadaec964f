#!/bin/bash
# generate_test.sh: the script beside this one, with Python's standard library only.
exec python3 -B tests/bench/generate_test.py

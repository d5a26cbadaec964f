#!/bin/bash
# headline_test.sh: the script beside this one, with Python's standard library only.
exec python3 -B tests/bench/headline_test.py

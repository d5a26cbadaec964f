#!/bin/bash
# advice_test.sh: the script beside this one, with Python's standard library only.
exec python3 -B tests/bench/advice_test.py

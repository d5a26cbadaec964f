#!/bin/bash
# bits_gate_test.sh: the script beside this one, with Python's standard library only.
exec python3 -B tests/bench/bits_gate_test.py

#!/bin/bash
# wire_check_test.sh: the script beside this one, with Python's standard library only.
exec python3 -B tests/bench/wire_check_test.py

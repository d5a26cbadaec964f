#!/bin/bash
# sanitizer_log_test.sh: the script beside this one, with Python's standard library only.
exec python3 -B tests/bench/sanitizer_log_test.py

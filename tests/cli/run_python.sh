#!/bin/bash
# run_python.sh TEST.py: one of the scripts beside this one, with Python's standard library only.
exec python3 -B "$1"

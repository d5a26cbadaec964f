#!/bin/bash
# hosts_test.sh: HOSTS.md and its picture are what the planner gives today.
exec python3 -B tools/bench/hosts.py --check --program "$PWD/tools/cli/millrace_cpu"

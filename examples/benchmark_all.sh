#!/usr/bin/env bash
# Runs the benchmarks in parts, the most valuable first, into one JSON file: see benchmark_all.py, or `--help`.
#
#     examples/benchmark_all.sh --preflight        # what is missing here, and how to bring it to a machine without a network
#     examples/benchmark_all.sh                    # on a GPU, if there is one, else on the CPU with small clips
#     examples/benchmark_all.sh --dry              # a try of every part in a minute
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH="examples${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" examples/benchmark_all.py "$@"

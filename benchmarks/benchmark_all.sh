#!/usr/bin/env bash
# Runs the benchmarks in parts, the most valuable first, into one JSON file: see benchmark_all.py, or `--help`.
#
#     benchmarks/benchmark_all.sh --preflight        # what is missing here, and how to bring it to a machine without a network
#     benchmarks/benchmark_all.sh                    # on a GPU, if there is one, else on the CPU with small clips
#     benchmarks/benchmark_all.sh --dry              # a try of every part in a minute
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
# The package that is installed, else that of this folder.
(cd / && "$python" -c 'import lightning_multigrid' 2> /dev/null) || PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
PYTHONPATH="$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}" exec "$python" benchmarks/benchmark_all.py "$@"

#!/usr/bin/env bash
# The first nine minutes on a GPU, in the order of what one wants to know:
#
#     benchmarks/first_minutes.sh [FOLDER]      # of the results, by default gpu_results
#
# A part that fails, or takes longer than its limit (seconds), does not end the others. Each writes FOLDER/PART.json as it goes, so what
# is cut off keeps its rounds, and FOLDER/PART.log. A part whose log ends with "done" is not run again. Limits add up to nine minutes.
# PYTHON is the interpreter.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
results=${1:-gpu_results}
mkdir -p "$results"
export PYTHONPATH="$PWD/benchmarks:$PWD${PYTHONPATH:+:$PYTHONPATH}"

part() { # NAME LIMIT SCRIPT OPTIONS...
    local name=$1 limit=$2 script=$3
    shift 3
    local log=$results/$name.log
    if [[ $(tail -n 1 "$log" 2> /dev/null) == done ]]; then
        echo "== $name: done before ($log)"
        return
    fi
    echo "== $name (at most $limit s): $script.py $*"
    if timeout --signal=INT --kill-after=10 "$limit" \
        "$python" "benchmarks/$script.py" "$@" --json "$results/$name.json" 2>&1 | tee "$log"; then
        echo done >> "$log"
    else
        echo "== $name FAILED or took too long; the others go on." | tee -a "$log"
    fi
}

steps() { # NAME LIMIT OPTIONS...
    local name=$1 limit=$2
    shift 2
    part "$name" "$limit" benchmark_speedup --device cuda --precision bf16 --clips 8 --rounds 3 --warm-up 2 "$@"
}

# 1. Is it right? All tests that need a GPU pass, or nothing below counts.
part cuda_tests 90 cuda_tests --device cuda
# 2. How long does a step take on each grid? Compare "x faster" with "FLOPs x fewer": as much is what the method promises. The profile
# says whether the kernels or the host, which starts them, is the limit; a CUDA graph, which is started at once, is the proof.
steps steps 110 --setting slowfast i3d i3d_nl --profile
steps steps_mvit 60 --setting mvit --profile
steps steps_channels_last 80 --setting slowfast i3d --channels-last --fused --profile
steps steps_cuda_graphs 70 --setting slowfast i3d --cuda-graphs
# 3. Does the loader deliver as many clips per second as these steps take?
part loader 75 benchmark_loader --made 4 --methods ours --workers 16 --turn 1024 --rounds 2
# 4. What do statistics over sub-mini-batches cost?
part norm 45 benchmark_norm --device cuda --seconds 20

#!/usr/bin/env bash
# The first ten minutes on a GPU, in the order of what one wants to know:
#
#     benchmarks/first_minutes.sh [FOLDER]      # of the results, by default gpu_results
#
# A part that fails, or takes longer than its limit (seconds), does not end the others. Each writes FOLDER/PART.json as it goes, so what
# is cut off keeps its rounds, and FOLDER/PART.log. A part whose log ends with "done" is not run again. Limits add up to fifteen minutes.
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

# At 16 bits. cuDNN tries no kernels, which would take minutes.
steps() { # NAME LIMIT OPTIONS...
    local name=$1 limit=$2
    shift 2
    part "$name" "$limit" benchmark_speedup --device cuda --precision bf16 --kernels 0 --rounds 3 --warm-up 2 "$@"
}
fit="--device cuda --model slowfast --clips 8 --frames 32 --size 224 --precision bf16-mixed --epochs 2
     --clips-of-epoch 1500 --videos 4 --workers 16"

# 1. Is it right? All tests that need a GPU pass, or nothing below counts.
part cuda_tests 90 cuda_tests --device cuda
# 2. How long does a step take on each grid? Compare "x faster" with "FLOPs x fewer": as much is what the method promises. The profile
# says whether the kernels or the host, which starts them, is the limit; a CUDA graph, which is started at once, is the proof.
steps steps 110 --setting slowfast i3d i3d_nl --clips 8 --profile
steps steps_mvit 60 --setting mvit --clips 8 --profile
steps steps_channels_last 80 --setting slowfast i3d --clips 8 --channels-last --fused --profile
steps steps_cuda_graphs 70 --setting slowfast i3d --clips 8 --cuda-graphs
# 3. Do the loaders keep up, in a real `fit`, which also says what it waited for, and alone?
part fit 90 benchmark_train $fit
part fit_baseline 120 benchmark_train $fit --baseline
part loader 60 benchmark_loader --made 4 --methods ours --clips 8 --workers 16 --turn 1024 --rounds 2
# 4. What do statistics over sub-mini-batches cost, what a larger mini-batch, and what resampling?
part norm 45 benchmark_norm --device cuda --seconds 20
steps steps_of_32 70 --setting slowfast --clips 32
steps steps_resampled 60 --setting slowfast --resample

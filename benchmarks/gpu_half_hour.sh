#!/usr/bin/env bash
# Half an hour on a GPU, in calls of at most nine minutes, each of which goes on where the one before stopped:
#
#     benchmarks/gpu_half_hour.sh [FOLDER]      # of the results, by default gpu_results; call it until it says that all is done
#
# A part that fails, or takes longer than its limit (seconds), does not end the others. Each writes FOLDER/PART.json as it goes, so what
# is cut off keeps its rounds, and FOLDER/PART.log. A part whose log ends with "done" is not run again, and one that doesn't fit into the
# rest of the nine minutes waits for the next call. At the end of a call `results/tables.py` prints the tables of what there is.
#
# PYTHON is the interpreter. GRID is the folder with `videos` and `words.csv` (`tasks/grid_words.py` says which); without it there is no
# complete training. TINY=1 tries everything at tiny sizes on a CPU: its numbers mean nothing.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
results=${1:-gpu_results}
budget=${BUDGET:-540}
mkdir -p "$results"
results=$(cd "$results" && pwd)
export PYTHONPATH="$PWD/benchmarks:$PWD${PYTHONPATH:+:$PYTHONPATH}"
waits=0

run() { # NAME LIMIT COMMAND...
    local name=$1 limit=$2
    shift 2
    local log=$results/$name.log
    if [[ $(tail -n 1 "$log" 2> /dev/null) == done ]]; then
        echo "== $name: done before ($log)"
        return
    fi
    if ((limit > budget - SECONDS)); then
        echo "== $name: waits for the next call ($limit s)"
        waits=1
        return
    fi
    echo "== $name (at most $limit s): $*"
    if timeout --signal=INT --kill-after=10 "$limit" "$@" 2>&1 | tee "$log"; then
        echo done >> "$log"
    else
        echo "== $name FAILED or took too long; the others go on." | tee -a "$log"
    fi
}

part() { # NAME LIMIT SCRIPT OPTIONS...
    local name=$1 limit=$2 script=$3
    shift 3
    run "$name" "$limit" "$python" "benchmarks/$script.py" "$@" --json "$results/$name.json"
}

train() { # VARIANT SEED LIMIT OPTIONS...
    local variant=$1 seed=$2 limit=$3
    shift 3
    run "gpu_words_${variant}_$seed" "$limit" "$python" -m lightning_multigrid fit --config benchmarks/tasks/gpu_words.yaml "$@" \
        --seed_everything "$seed" --data.train="$results/words/train" --data.val="$results/words/val" \
        --trainer.callbacks+=lightning_multigrid.reports.Recorder --trainer.callbacks.variant="$variant" \
        --trainer.callbacks.file="$results/gpu_words/$variant-$seed.json" --trainer.callbacks.seed="$seed" "${words[@]}"
}

if [[ ${TINY:-0} == 1 ]]; then
    device=cpu
    steps=(--setting small --device cpu --clips 2 --frames 8 --size 32 --rounds 1 --warm-up 1)
    shapes=(--shapes 16x2x2x3x3)
    fit=(--device cpu --clips 2 --frames 8 --size 32 --steps 1 --workers 1 --made 1 --seconds 2)
    words=(--trainer.accelerator=cpu --trainer.precision=32-true --trainer.max_epochs=1 --trainer.check_val_every_n_epoch=1 --trainer.limit_train_batches=8
        --trainer.limit_val_batches=1 --data.frames=4 --data.size=32 "--data.short_side=[32, 36]" --data.num_workers=0)
    profile=() slowfast=() i3d=() bare=(--base-shapes)
else
    device=cuda
    steps=(--device cuda --precision bf16 --clips 8 --rounds 3 --warm-up 2)
    shapes=(--seconds 60)
    fit=(--device cuda --setting slowfast --clips 8 --precision bf16-mixed --channels-last --steps 15 --workers "$(($(nproc) - 1))")
    words=()
    profile=(--profile) slowfast=(--setting slowfast) i3d=(--setting slowfast i3d) bare=(--base-shapes)
fi

# a. Is it right? All tests that need a GPU pass, or nothing below counts. And what BatchNorm over sub-mini-batches costs.
part cuda_tests 120 cuda_tests --device "$device"
part norm_gpu 90 benchmark_norm --device "$device" "${shapes[@]}"

# b. How long does a step take on each grid, and how much memory? Compare "faster" with the ratio of FLOPs: as much is what the method
# promises. The profile says whether the kernels or the host, which starts them, is the limit.
part gpu_steps 110 benchmark_speedup "${steps[@]}" "${i3d[@]}" "${profile[@]}"
part gpu_steps_channels_last 90 benchmark_speedup "${steps[@]}" "${i3d[@]}" --channels-last --fused "${profile[@]}"

# c. A complete training that is large enough: words by the lips, the baseline and a plan of two coarse shapes, with two seeds.
if [[ -n ${GRID:-} ]]; then
    if [[ ! -d $results/words ]]; then
        run words 150 "$python" benchmarks/tasks/grid_words.py "$GRID" "$results/words"
    fi
    for seed in 0 1; do
        train baseline "$seed" 270 --trainer.callbacks=null
        train multigrid "$seed" 200 --config benchmarks/tasks/rows/progressive.yaml
    done
fi

# d. Is the loader the limit in a `fit`, on which grid, and how much memory does each grid take?
part gpu_fit 150 benchmark_fit "${fit[@]}"

# e. What is slow to begin, last: `torch.compile` makes a graph for each shape.
part gpu_steps_compiled 300 benchmark_speedup "${steps[@]}" "${slowfast[@]}" --compile --fused "${bare[@]}"
part gpu_steps_channels_last_compiled 300 benchmark_speedup "${steps[@]}" "${slowfast[@]}" --channels-last --compile --fused "${bare[@]}"

"$python" benchmarks/results/tables.py "$results"
if ((waits)); then
    echo "Call it again for the rest."
else
    echo "All is done."
fi

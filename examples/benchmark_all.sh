#!/usr/bin/env bash
# Every benchmark, into a folder of JSON files, then the tables. On a GPU less than 10 minutes:
#
#     examples/benchmark_all.sh                    # a GPU, if there is one, else the CPU with small clips
#     COMPILE=1 examples/benchmark_all.sh          # also torch.compile, which takes minutes more
#     RESULTS=/tmp/mine QUICK=1 examples/benchmark_all.sh     # a try in a minute or two
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python}
results=${RESULTS:-examples/results}
device=${DEVICE:-$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')}
quick=() rounds=7 seconds=40
if [[ -n ${QUICK:-} ]]; then
    quick=(--clips 2 --frames 16 --size 48) rounds=1 seconds=2
fi

run() { # script, name of the JSON file, options
    local script=$1 name=$2
    shift 2
    echo "== $script: $name"
    "$python" "examples/$script.py" --device "$device" --json "$results/$name.json" "$@"
}

if [[ $device == cuda ]]; then
    # 1. The paper's settings with its clips on each GPU, beside its figures, and the days of Table 4's single GPU.
    run benchmark_speedup speedup_gpu --precision bf16 --rounds 5 \
        --setting slowfast slowfast_t64 slowfast_320 i3d i3d_nl i3d_1gpu "${quick[@]}"
    # 2. What closes the gap, one by one, on one setting: compare `i3d_1gpu` of the runs.
    run benchmark_speedup speedup_gpu_fp32 --setting i3d_1gpu --rounds 3 "${quick[@]}"
    run benchmark_speedup speedup_gpu_channels_last --precision bf16 --channels-last --setting i3d_1gpu slowfast \
        --rounds 3 "${quick[@]}"
    run benchmark_speedup speedup_gpu_fused --precision bf16 --fused --setting i3d_1gpu --rounds 3 "${quick[@]}"
    run benchmark_speedup speedup_gpu_resample --precision bf16 --resample --setting i3d_1gpu slowfast \
        --rounds 3 "${quick[@]}"
    run benchmark_speedup speedup_gpu_divisor --precision bf16 --size-divisor 32 --setting i3d_1gpu slowfast \
        --rounds 3 "${quick[@]}"
    if [[ -n ${COMPILE:-} ]]; then
        run benchmark_speedup speedup_gpu_compile --precision bf16 --compile --setting i3d_1gpu --rounds 3 "${quick[@]}"
    fi
    run benchmark_norm norm_gpu --seconds "$seconds"
    run benchmark_overhead overhead_gpu --rounds 3
else
    run benchmark_speedup speedup_small --rounds "$rounds"
    run benchmark_speedup speedup_i3d_reduced --setting i3d_1gpu --clips 2 --size 64 --rounds "$rounds" "${quick[@]}"
    run benchmark_speedup speedup_slowfast_reduced --setting slowfast --clips 2 --frames 16 --size 64 \
        --rounds "$rounds"
    run benchmark_norm norm_cpu --seconds "$seconds"
    run benchmark_overhead overhead_cpu --rounds "$rounds" --import-rounds "$rounds"
fi
if [[ $results == examples/results ]]; then
    "$python" examples/results/tables.py
fi

#!/usr/bin/env bash
# Runs the benchmarks, each into a JSON file, then makes the tables:
#
#     examples/benchmark_all.sh                    # on a GPU, if there is one, else on the CPU with small clips
#     examples/benchmark_all.sh speedup norm       # only these parts
#     RESULTS=/tmp/mine QUICK=1 examples/benchmark_all.sh     # a try in a minute or two
#
# The parts on a GPU are `speedup` (the paper's settings), `gap` (what brings the times nearer to the FLOPs), `norm` and
# `overhead`, and `compile` if it is named. On a CPU they are `speedup`, `norm` and `overhead`.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python}
results=${RESULTS:-examples/results}
device=${DEVICE:-$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')}
quick=() rounds=7 seconds=40
if [[ -n ${QUICK:-} ]]; then
    quick=(--clips 2 --frames 16 --size 48) rounds=1 seconds=2
fi
parts=("$@")
if [[ $# == 0 ]]; then
    parts=(speedup norm overhead)
    [[ $device == cuda ]] && parts=(speedup gap norm overhead)
fi

run() { # script, name of the JSON file, options
    local script=$1 name=$2 began=$SECONDS
    shift 2
    echo "== $script: $name"
    "$python" "examples/$script.py" --device "$device" --json "$results/$name.json" "$@"
    echo "== $name took $((SECONDS - began)) s"
}

gpu() { # end of the JSON file's name, options; it tries few kernels, as each try takes long
    run benchmark_speedup "speedup_gpu_$1" --rounds 3 --kernels 3 "${@:2}" "${quick[@]}"
}

for part in "${parts[@]}"; do
    case $device-$part in
    cuda-compile | cuda-gap | *-speedup | *-norm | *-overhead) ;;
    *)
        echo "no part $part on $device; there are speedup, norm and overhead, and on a GPU gap and compile" >&2
        exit 2
        ;;
    esac
done

for part in "${parts[@]}"; do
    case $device-$part in
    cuda-speedup)
        # The paper's settings, with as many clips per GPU, for comparison with its figures; i3d_1gpu is its Table 4.
        for setting in slowfast i3d_1gpu i3d i3d_nl slowfast_t64 slowfast_320; do
            gpu "$setting" --precision bf16 --setting "$setting"
        done
        ;;
    cuda-gap)
        gpu fp32 --setting i3d_1gpu
        gpu channels_last --precision bf16 --channels-last --setting i3d_1gpu
        gpu resample --precision bf16 --channels-last --resample --setting i3d_1gpu
        gpu fused --precision bf16 --channels-last --fused --setting i3d_1gpu
        gpu divisor --precision bf16 --channels-last --size-divisor 32 --setting i3d_1gpu
        gpu slowfast_channels_last --precision bf16 --channels-last --setting slowfast
        ;;
    cuda-compile)
        gpu compile --precision bf16 --channels-last --compile --setting i3d_1gpu
        ;;
    cuda-norm) run benchmark_norm norm_gpu --seconds "$seconds" ;;
    cuda-overhead) run benchmark_overhead overhead_gpu --rounds 3 --import-rounds 0 ;;
    cpu-speedup)
        run benchmark_speedup speedup_small --rounds "$rounds"
        run benchmark_speedup speedup_i3d_reduced --setting i3d_1gpu --clips 2 --size 64 --rounds "$rounds" "${quick[@]}"
        run benchmark_speedup speedup_slowfast_reduced --setting slowfast --clips 2 --frames 16 --size 64 \
            --rounds "$rounds"
        ;;
    cpu-norm) run benchmark_norm norm_cpu --seconds "$seconds" ;;
    cpu-overhead) run benchmark_overhead overhead_cpu --rounds "$rounds" --import-rounds "$rounds" ;;
    esac
done
if [[ $results == examples/results ]]; then
    "$python" examples/results/tables.py
fi

"""The ceilings of a device: bytes copied per second, FLOPs of a matrix product, host time of an operation.

    python benchmarks/benchmark_machine.py --device cuda --json machine.json

They are what `predict.py` takes from data sheets, and what a predicted time is to be judged by. A copy
counts the bytes that are read and those that are written. The host's time is that of one operation on a tensor so small
that the device waits for the host.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measuring import choose_device, machine, machine_line, make_clock, write_json
from torch import nn


def seconds_of(work: Callable[[], Any], clock: Callable[[], float], rounds: int, repeats: int) -> float:
    """Median seconds of one call, over rounds of several calls; the first round warms up."""
    spent = []
    for _ in range(rounds + 1):
        began = clock()
        for _ in range(repeats):
            work()
        spent.append((clock() - began) / repeats)
    return median(spent[1:])


def products(device: torch.device, side: int, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """TFLOP per second of a matrix product, by precision."""
    found = {}
    for name, dtype, precision in (
        ("bf16", torch.bfloat16, "high"),
        ("tf32", torch.float32, "high"),
        ("fp32", torch.float32, "highest"),
    ):
        torch.set_float32_matmul_precision(precision)
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        found[name] = 2 * side**3 / seconds_of(lambda a=a, b=b: a @ b, clock, rounds, 5) / 1e12
    return found


def host_microseconds(device: torch.device, calls: int, rounds: int) -> dict[str, float]:
    """Microseconds of Python, torch and launch for an operation, alone and in a layer with its backward."""
    clock = make_clock(device) if device.type == "cuda" else time.perf_counter
    x = torch.ones(8, device=device)
    layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(calls // 10)]).to(device)

    def forward_backward() -> None:
        layers(x).sum().backward()

    return {
        "an operation": 1e6 * seconds_of(lambda: x.add_(1), clock, rounds, calls),
        "a linear layer, forward and backward": 1e6 * seconds_of(forward_backward, clock, rounds, 1) / len(layers),
    }


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="that a copy reads")
    parser.add_argument("--side", type=int, default=8192, help="of the matrices")
    parser.add_argument("--calls", type=int, default=2000, help="of the small operation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.parse_args(args)
    device = choose_device(options.device, parser.error)
    options.device = device.type
    clock = make_clock(device)
    print(machine_line(machine(device)))

    source = torch.ones(max(1, round(options.gigabytes * 1e9)), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * len(source) / seconds_of(lambda: target.copy_(source), clock, options.rounds, 5)
    found = {
        "copy_terabytes_per_second": copied / 1e12,
        "product_teraflops": products(device, options.side, options.rounds, clock),
        "host_microseconds": host_microseconds(device, options.calls, options.rounds),
    }
    print(f"Copies: {found['copy_terabytes_per_second']:.3g} TB/s, read and written.")
    for name, rate in found["product_teraflops"].items():
        print(f"Matrix products, {name}: {rate:.3g} TFLOP/s.")
    for name, spent in found["host_microseconds"].items():
        print(f"Host, {name}: {spent:.1f} us.")
    shown = {key: value for key, value in vars(options).items() if key != "json"}
    write_json(options.json, "machine", shown, found)


if __name__ == "__main__":
    main()

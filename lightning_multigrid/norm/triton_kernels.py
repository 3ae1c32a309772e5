"""Triton's kernels of BatchNorm over groups of rows, and their launches. Only `channels_last.py` imports this file.

Legend: P rows and C channels of a matrix in rows, k groups of neighbouring rows, s splits of a group. A program reads
tiles of ROWS x COLUMNS values; C are grains of GRAIN values, which a thread reads at once. Sums are float32, whatever
the matrix holds, and have the same bits each time.
"""

import torch
import triton
from torch import Tensor
from triton import language as tl

from lightning_multigrid.norm.channels_last import RowGroups

_TILE = 4096  # values that a program reads at once
_WARPS = 8
_PROGRAMS = 1024  # that keep a GPU busy
_MOST_SPLITS = 64  # of a group; a program of `_combine` reads those of a group at once
# Triton would compile a kernel again for each kind of number.
_NUMBERS = ["small", "extra", "larger", "groups", "splits", "parts", "grains"]


@triton.jit
def _group_of(group, small, extra, larger):
    """The first row of a group, and its number of rows."""
    begin = group.to(tl.int64) * small + tl.minimum(group, larger).to(tl.int64) * extra
    return begin, small + tl.where(group < larger, extra, 0)


@triton.jit
def _ends_of(split, rows, splits):
    """A group's rows that belong to a split of it: the first, and the one after the last."""
    each = (rows + splits - 1) // splits
    return tl.minimum(split * each, rows), tl.minimum((split + 1) * each, rows)


@triton.jit(do_not_specialize=_NUMBERS)
def _moments(
    x,
    means,
    squares,
    small,
    extra,
    larger,
    splits,
    grains,
    GRAIN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """For each group and split: the mean, and the sum of squared differences from it (k x s x C).

    Each row of the tile goes through the split by Welford's recurrence, which no large mean makes inexact.
    """
    channels = grains * GRAIN
    group, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    begin, rows = _group_of(group, small, extra, larger)
    start, end = _ends_of(split, rows, splits)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    count = tl.zeros((ROWS,), tl.float32)
    mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    square = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < end)[:, None] & (column < channels)[None, :]
        at = (begin + row)[:, None] * channels + column[None, :]
        value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
        count += tl.where(row < end, 1.0, 0.0)
        difference = tl.where(inside, value - mean, 0.0)
        mean += difference * (1 / tl.maximum(count, 1.0))[:, None]
        square += difference * (value - mean)
    whole = tl.sum(mean * count[:, None], axis=0) / tl.maximum(tl.sum(count, axis=0), 1.0)
    apart = mean - whole[None, :]
    to = (group * splits + split) * channels + column
    tl.store(means + to, whole, mask=column < channels)
    tl.store(squares + to, tl.sum(square + apart * apart * count[:, None], axis=0), mask=column < channels)


@triton.jit(do_not_specialize=_NUMBERS)
def _combine(
    means, squares, mean, var, small, extra, larger, splits, channels, SPLITS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Mean and (biased) variance of each group (k x C) from those of its splits."""
    group = tl.program_id(0)
    _, rows = _group_of(group, small, extra, larger)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.arange(0, SPLITS)
    start, end = _ends_of(split, rows, splits)
    count = (end - start).to(tl.float32)[:, None]
    inside = (split < splits)[:, None] & (column < channels)[None, :]
    at = (group * splits + split)[:, None] * channels + column[None, :]
    each = tl.load(means + at, mask=inside, other=0)
    whole = tl.sum(each * count, axis=0) / rows
    apart = each - whole[None, :]
    square = tl.load(squares + at, mask=inside, other=0) + tl.where(inside, apart * apart * count, 0.0)
    tl.store(mean + group * channels + column, whole, mask=column < channels)
    tl.store(var + group * channels + column, tl.sum(square, axis=0) / rows, mask=column < channels)


@triton.jit(do_not_specialize=[*_NUMBERS, "momentum", "eps"])
def _normalize(
    x, out, mean, var, weight, bias, running_mean, running_var, small, extra, larger, groups, parts, momentum, eps,
    grains, GRAIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Writes the normalised rows. The first program moves the running statistics, too."""
    channels = grains * GRAIN
    group, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    begin, rows = _group_of(group, small, extra, larger)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < channels
    row = part * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & known[None, :]
    at = (begin + row)[:, None] * channels + column[None, :]
    of = group * channels + column
    scale = tl.rsqrt(tl.load(var + of, mask=known, other=1) + eps)
    if weight is not None:
        scale *= tl.load(weight + column, mask=known, other=0).to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    value = (value - tl.load(mean + of, mask=known, other=0)[None, :]) * scale[None, :]
    if bias is not None:
        value += tl.load(bias + column, mask=known, other=0).to(tl.float32)[None, :]
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)
    if running_mean is not None:  # noqa: SIM102  # decided when Triton compiles
        if tl.program_id(0) == 0:
            # The averages over groups, weighted by their rows, of the means and of the unbiased variances.
            seen_mean = tl.zeros((COLUMNS,), tl.float32)
            seen_var = tl.zeros((COLUMNS,), tl.float32)
            total = (groups.to(tl.int64) * small + larger.to(tl.int64) * extra).to(tl.float32)
            for each in range(0, groups):
                rows_of_each = (small + tl.where(each < larger, extra, 0)).to(tl.float32)
                share = rows_of_each / total
                seen_mean += share * tl.load(mean + each * channels + column, mask=known, other=0)
                biased = tl.load(var + each * channels + column, mask=known, other=0)
                seen_var += share * rows_of_each / (rows_of_each - 1) * biased
            before = tl.load(running_mean + column, mask=known, other=0).to(tl.float32)
            after = before + momentum * (seen_mean - before)
            tl.store(running_mean + column, after.to(running_mean.dtype.element_ty), mask=known)
            before = tl.load(running_var + column, mask=known, other=0).to(tl.float32)
            after = before + momentum * (seen_var - before)
            tl.store(running_var + column, after.to(running_var.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=_NUMBERS)
def _gradient_sums(
    grad,
    x,
    mean,
    sums,
    products,
    small,
    extra,
    larger,
    splits,
    grains,
    GRAIN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """For each group and split: sums of the gradients, and of their products with x - mean (k x s x C)."""
    channels = grains * GRAIN
    group, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    begin, rows = _group_of(group, small, extra, larger)
    start, end = _ends_of(split, rows, splits)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    center = tl.load(mean + group * channels + column, mask=column < channels, other=0)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < end)[:, None] & (column < channels)[None, :]
        at = (begin + row)[:, None] * channels + column[None, :]
        slope = tl.load(grad + at, mask=inside, other=0).to(tl.float32)
        total += slope
        product += slope * (tl.load(x + at, mask=inside, other=0).to(tl.float32) - center[None, :])
    to = (group * splits + split) * channels + column
    tl.store(sums + to, tl.sum(total, axis=0), mask=column < channels)
    tl.store(products + to, tl.sum(product, axis=0), mask=column < channels)


@triton.jit(do_not_specialize=[*_NUMBERS, "eps"])
def _gradients(
    grad, x, mean, var, weight, sums, products, out, of_weight, of_bias, small, extra, larger, groups, parts, eps,
    grains, GRAIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Writes the gradients of the rows. The first program adds up those of weight and bias over the groups, too."""
    channels = grains * GRAIN
    group, part = tl.program_id(0) // parts, tl.program_id(0) % parts
    begin, rows = _group_of(group, small, extra, larger)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < channels
    row = part * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & known[None, :]
    at = (begin + row)[:, None] * channels + column[None, :]
    of = group * channels + column
    inverse = tl.rsqrt(tl.load(var + of, mask=known, other=1) + eps)
    shift = tl.load(sums + of, mask=known, other=0) / rows
    slope = tl.load(products + of, mask=known, other=0) * inverse * inverse / rows
    if weight is not None:  # noqa: SIM108
        scale = inverse * tl.load(weight + column, mask=known, other=0).to(tl.float32)
    else:
        scale = inverse
    value = tl.load(x + at, mask=inside, other=0).to(tl.float32) - tl.load(mean + of, mask=known, other=0)[None, :]
    value = tl.load(grad + at, mask=inside, other=0).to(tl.float32) - shift[None, :] - value * slope[None, :]
    tl.store(out + at, (value * scale[None, :]).to(out.dtype.element_ty), mask=inside)
    if tl.program_id(0) == 0:
        total = tl.zeros((COLUMNS,), tl.float32)
        product = tl.zeros((COLUMNS,), tl.float32)
        for each in range(0, groups):
            there = each * channels + column
            total += tl.load(sums + there, mask=known, other=0)
            inverse = tl.rsqrt(tl.load(var + there, mask=known, other=1) + eps)
            product += tl.load(products + there, mask=known, other=0) * inverse
        tl.store(of_weight + column, product, mask=known)
        tl.store(of_bias + column, total, mask=known)


class _Launches:
    """How many programs of which tiles a matrix of rows needs."""

    def __init__(self, channels: int, groups: RowGroups) -> None:
        self.columns = min(128, triton.next_power_of_2(channels))
        self.rows = _TILE // self.columns
        self.blocks = triton.cdiv(channels, self.columns)
        most = groups.small + (groups.extra if groups.larger else 0)  # rows of the largest group
        self.parts = triton.cdiv(most, self.rows)
        useful = min(_MOST_SPLITS, _PROGRAMS // (groups.number * self.blocks), self.parts // 4)
        self.splits = 1 << max(0, useful.bit_length() - 1)  # a power of two
        self.each_split = (groups.number * self.splits, self.blocks)
        self.each_part = (groups.number * self.parts, self.blocks)
        grain = min(16, channels & -channels)  # the largest power of two that divides the channels
        self.tile = {"grains": channels // grain, "GRAIN": grain, "ROWS": self.rows, "COLUMNS": self.columns}
        self.tile["num_warps"] = _WARPS


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    groups: RowGroups,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output as `x`; means and biased variances, k x C at 32 bits. `x` is N x C x * in channels-last memory."""
    channels = x.shape[1]
    plan, ends = _Launches(channels, groups), (groups.small, groups.extra, groups.larger)
    parts = x.new_empty((2, groups.number, plan.splits, channels), dtype=torch.float32)
    mean, var = (x.new_empty((groups.number, channels), dtype=torch.float32) for _ in range(2))  # of their own memory
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _moments[plan.each_split](x, *parts, *ends, plan.splits, **plan.tile)
        narrow = min(32, plan.columns)
        tiles = {"channels": channels, "SPLITS": plan.splits, "COLUMNS": narrow}
        _combine[groups.number, triton.cdiv(channels, narrow)](*parts, mean, var, *ends, plan.splits, **tiles)
        running = (running_mean, running_var)
        _normalize[plan.each_part](
            x, out, mean, var, weight, bias, *running, *ends, groups.number, plan.parts, momentum, eps, **plan.tile
        )
    return out, mean, var


def backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, var: Tensor, groups: RowGroups, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `x`, and of weight and bias (C at 32 bits). `grad` has the memory format of `x`."""
    channels = x.shape[1]
    plan, ends = _Launches(channels, groups), (groups.small, groups.extra, groups.larger)
    parts = x.new_empty((2, groups.number, plan.splits, channels), dtype=torch.float32)
    of_weight, of_bias = (x.new_empty(channels, dtype=torch.float32) for _ in range(2))
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _gradient_sums[plan.each_split](grad, x, mean, *parts, *ends, plan.splits, **plan.tile)
        sums, products = parts.sum(dim=2)
        _gradients[plan.each_part](
            grad, x, mean, var, weight, sums, products, out, of_weight, of_bias, *ends, groups.number, plan.parts, eps,
            **plan.tile,
        )  # fmt: skip
    return out, of_weight, of_bias

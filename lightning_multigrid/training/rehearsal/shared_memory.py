"""The memory in which workers hand mini-batches over: is there enough of it for those of a plan?"""

import os
import shutil
from math import ceil

from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_multigrid.loading import MultigridLoader
from lightning_multigrid.training.rehearsal.batches import bytes_of_clips

_FOLDER = "/dev/shm"  # of Linux; other systems have no such limit
_MIB, _GIB = 1 << 20, 1 << 30


def tell_small_shared_memory(loader: MultigridLoader, devices: int) -> None:
    """Warns if what the workers of a loader read ahead may not fit; each device of this machine has such a loader.

    It is computed of the first sample. Clips of others may have more bytes.
    """
    if not loader.num_workers or not os.path.isdir(_FOLDER):
        return
    bytes_of = bytes_of_clips(loader, loader.sampler.plan.schedule.grids)
    clips = {shape: devices * loader.clips_in_flight(shape) for shape in bytes_of}
    shape = max(clips, key=lambda shape: bytes_of[shape] * clips[shape])
    needed, free = bytes_of[shape] * clips[shape], shutil.disk_usage(_FOLDER).free
    if needed <= free:
        return
    # Of a mini-batch that all workers read together, more workers read no more.
    fewer = "`prefetch_factor`" if loader.pieces > 1 else "`num_workers` or `prefetch_factor`"
    rank_zero_warn(
        f"Workers hand mini-batches over in {_FOLDER}, which has {free / _MIB:,.0f} MiB free. At {shape}, training "
        f"needs about {needed / _MIB:,.0f} MiB there, as up to {clips[shape]:,} clips of {bytes_of[shape] / _MIB:.2g} "
        "MiB are read ahead or in use; a validation needs some more. When it is full, workers die of a bus error. "
        f"Start the container with `--ipc=host` or `--shm-size={ceil(2 * needed / _GIB)}g`, or give the loader a "
        f"smaller {fewer}."
    )

"""From the order of a pass over the data to requests, and from requests to mini-batches, for any dataset.

The shape of a clip travels in its request, so workers hold no state. It imports torch, NumPy and `schedule`; it does
not import Lightning. Begin with `requests.py`, then `order.py`, `sampler.py` and `loader.py`. The clips of a user's own
dataset come to a grid in `fixed_clips.py`, `samples.py` and `reduction.py`; `streams.py` is for iterable datasets.
"""

from lightning_multigrid.loading.fixed_clips import FixedClips, clip_dataset
from lightning_multigrid.loading.loader import (
    MultigridLoader,
    ScriptLoader,
    in_worker,
    same_loader,
    sendable,
    stream_loader,
)
from lightning_multigrid.loading.order import OrderSampler, first_indices, order_of, shuffled_order
from lightning_multigrid.loading.randomness import LONG, derive_seed, held_by, reseed, seeded
from lightning_multigrid.loading.reduction import Change
from lightning_multigrid.loading.requests import ClipDataset, ClipRequest, length_of, visits
from lightning_multigrid.loading.sampler import MultigridSampler, baseline_sampler
from lightning_multigrid.loading.samples import Follow, SampleParts, all_parts
from lightning_multigrid.loading.streams import CollateAtOnce, StreamSamples

__all__ = ["LONG", "Change", "ClipDataset", "ClipRequest", "CollateAtOnce", "FixedClips", "Follow", "MultigridLoader"]
__all__ += ["MultigridSampler", "OrderSampler", "SampleParts", "ScriptLoader", "StreamSamples", "all_parts"]
__all__ += ["baseline_sampler", "clip_dataset", "derive_seed", "first_indices", "held_by", "in_worker", "length_of"]
__all__ += ["order_of", "reseed", "same_loader", "seeded", "sendable", "shuffled_order", "stream_loader", "visits"]

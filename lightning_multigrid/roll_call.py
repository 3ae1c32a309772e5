"""Says which rank ended a training of several; the ranks that are left see only that a connection broke.

Each rank gives signs of life to a store on rank 0, from a thread of its own. The first rank that ends with an error
finds out whether that was its own or because another one is gone, and leaves what it found for the others.

Where ranks wait for each other on GPUs, none ends when the process or the machine of one is gone: they wait for many
minutes. So rank 0 also looks for the signs of the others, and says after a while that there are none. The others say
that rank 0 has ended when its store is closed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from lightning.pytorch import Trainer
from torch import distributed as dist

__all__ = ["RollCall", "call_roll"]

log = logging.getLogger(__name__)

_PERIOD = 0.5  # seconds between signs of life
_LOOK_EVERY = 4  # of them, rank 0 looks for those of the others
_LOOKS = 15  # without a sign, though no rank has failed, before that is said
_GONE = 2.5  # seconds without one
_ENDED = b"ended"  # in lieu of a sign


class RollCall:
    """The signs of life of a rank, until `close`.

    Args:
        host: Where rank 0 is.
        port: Of the store; 0 on rank 0, which chooses one.
        rank: This rank.
        world: Number of ranks.

    Raises:
        RuntimeError: If rank 0 cannot be reached (torch's `DistNetworkError`).
    """

    def __init__(self, host: str, port: int, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self._store = _store(host, port, is_master=rank == 0)
        self.port = self._store.port
        self._end = threading.Event()
        self._signs: dict[int, tuple[bytes, int]] = {}  # the last of each rank, and for how many looks
        # A connection of its own: a store waits for one answer at a time.
        own = _store(host, self.port)
        own.set(self._key(rank), "0")
        self._thread = threading.Thread(target=self._live, args=(own,), daemon=True, name="roll-call")
        self._thread.start()

    @staticmethod
    def _key(rank: int) -> str:
        return f"beat/{rank}"

    def _live(self, store: Any) -> None:
        beat = 0
        try:
            while not self._end.wait(_PERIOD):
                beat += 1
                store.set(self._key(self.rank), str(beat))
                if self.rank == 0 and beat % _LOOK_EVERY == 0:
                    self._look(store)
            store.set(self._key(self.rank), _ENDED)
        except RuntimeError:  # rank 0 has ended; whatever fails because of that will say so, unless all just wait
            if self.rank and not self._end.wait(_PERIOD * _LOOK_EVERY * _LOOKS):
                log.error("[rank %d] Rank 0 has ended, and with it what this rank waits for.", self.rank)

    def _look(self, store: Any) -> None:
        """Says once of each rank that it gives no sign any more."""
        # A rank that could not reach the store has never given a sign.
        ranks = [rank for rank in range(1, self.world) if store.check([self._key(rank)])]
        for rank, sign in zip(ranks, store.multi_get([self._key(rank) for rank in ranks]), strict=True):
            before, looks = self._signs.get(rank, (b"", 0))
            # Looks, not seconds: of a pause in which all ranks stood still, this one sees one look.
            looks = looks + 1 if sign == before else 0
            self._signs[rank] = sign, looks
            if looks == _LOOKS and sign != _ENDED:
                log.error(
                    "[rank 0] No sign of life from rank %d: stopped, or its machine is gone. Others may wait.", rank
                )

    def close(self) -> None:
        """Ends the signs of life."""
        self._end.set()
        self._thread.join(timeout=2 * _PERIOD)

    def verdict(self, error: BaseException) -> str:
        """Which rank the training ended by; takes up to some seconds."""
        try:
            if self._store.add("failures", 1) == 1:
                self._store.set("verdict", self._find(error))
            return str(self._store.get("verdict").decode())
        except dist.DistNetworkError:  # the store is rank 0's
            return "Rank 0 has ended, by an error that its own output shows or because it was killed."
        except dist.DistStoreError:  # it has no answer
            return "Another rank failed first, and was ended before it could find out why; its own output may show it."

    def _find(self, error: BaseException) -> str:
        # What torch raises where ranks wait for each other is a RuntimeError.
        if isinstance(error, RuntimeError):
            # A rank that could not reach the store has never given a sign.
            signs = {rank: key for rank in range(self.world) if self._store.check([key := self._key(rank)])}
            before = self._store.multi_get([*signs.values()])
            end = time.monotonic() + _GONE
            while (left := end - time.monotonic()) > 0:
                # A launcher may end this rank meanwhile: Lightning's handler of SIGTERM talks to the ranks, and fails.
                with suppress(RuntimeError):
                    time.sleep(left)
            after = self._store.multi_get([*signs.values()])
            beats = zip(signs, before, after, strict=True)
            gone = [str(rank) for rank, then, now in beats if then == now and rank != self.rank]
            if gone:
                return f"No sign of life from rank {', '.join(gone)}: killed, hanging, or its machine is gone."
        text = "".join(f": {line}" for line in str(error).splitlines()[:1])
        return f"Rank {self.rank} was the first to fail, with {type(error).__name__}{text}"


def _store(host: str, port: int, is_master: bool = False) -> Any:
    # Public, but not in torch's stubs.
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=is_master, wait_for_workers=False, timeout=timedelta(seconds=10)
    )


def call_roll(trainer: Trainer) -> RollCall | None:
    """Starts a roll call of a trainer's ranks; None on one device, or where rank 0 cannot be reached."""
    host = os.environ.get("MASTER_ADDR")  # of the process group, whichever launcher made it
    if trainer.world_size == 1 or host is None:
        return None
    rank, world, roll = trainer.global_rank, trainer.world_size, None
    if rank == 0:
        roll = _try(host, 0, rank, world)
    port = trainer.strategy.broadcast(roll.port if roll else None)
    return _try(host, port, rank, world) if rank and port else roll


def _try(host: str, port: int, rank: int, world: int) -> RollCall | None:
    try:
        return RollCall(host, port, rank, world)
    except RuntimeError as error:  # a firewall: the training does not depend on it
        log.debug("No roll call: %s", error)
        return None

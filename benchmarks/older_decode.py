"""The other process of `benchmark_decode.py --older`: reads clips by version 0.2.0, which has indices of packets.

It answers each line of its input, in JSON: the path of a file, the frames, and the file whose index it has kept, or
null if it has none. An answer is the CPU seconds of the clip, and a digest of its frames. It begins with its version.
"""

import hashlib
import json
import sys
import time

import torch

import lightning_multigrid
from lightning_multigrid.decode import PacketIndex, VideoReader, build_index


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps(lightning_multigrid.__version__), flush=True)
    kept: dict[str, bytes] = {}
    for line in sys.stdin:
        path, indices, indexed = json.loads(line)
        if indexed is not None and indexed not in kept:
            kept[indexed] = build_index(indexed).to_bytes()
        began = time.process_time()
        index = None if indexed is None else PacketIndex.from_bytes(kept[indexed])
        with VideoReader(path, index) as video:
            frames = video.read(indices).numpy()
        seconds = time.process_time() - began
        print(json.dumps([seconds, hashlib.sha256(frames.tobytes()).hexdigest()]), flush=True)


if __name__ == "__main__":
    main()

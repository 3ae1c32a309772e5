"""Prepared folders as version 0.2.0 wrote them: their indices had a file of their own, which found them by name."""

import json
import os
import struct
import zlib
from hashlib import blake2b

import numpy as np

from lightning_multigrid.sources.packed_file import load_manifest


def index_file(entries):
    """The bytes of `packets.index`, from names (bytes) and indices (bytes): head, records, hashes and positions."""
    records, places = b"", {}
    for name, index in entries:
        places[name] = 24 + len(records)
        records += struct.pack("<II", len(name), len(index)) + name + index
    hashes = [(int.from_bytes(blake2b(name, digest_size=8).digest(), "little"), at) for name, at in places.items()]
    table = np.array(sorted(hashes), "<u8").reshape(-1, 2)
    return struct.pack("<8sQQ", b"LMGSTO\2\n", 24 + len(records), len(table)) + records + table.T.tobytes()


def manifest_file(manifest, folder):
    """The bytes of `manifest.packed`."""
    rows = manifest.rows
    header = {"rows": len(manifest), "labels": len(rows.labels), "path_bytes": len(rows.paths)}
    header |= {"spans": len(rows.starts) > 0, "root": os.path.relpath(manifest.root, folder)}
    text = json.dumps({**header, "classes": manifest.classes, "multi_label": manifest.multi_label}).encode()
    columns = (rows.path_offsets, rows.label_offsets, rows.starts, rows.ends, rows.labels, rows.paths)
    parts = [b"LMGpack1" + struct.pack("<Q", len(text)) + text, *(column.numpy().tobytes() for column in columns)]
    content = b"".join(part + bytes(-len(part) % 8) for part in parts)
    return content + struct.pack("<I", zlib.crc32(content))


def make_older(folder):
    """Turns a prepared folder into one of version 0.2.0, whose index has another order than its manifest."""
    manifest = load_manifest(folder / "manifest.packed")
    names = [os.fsencode(os.path.relpath(manifest.path(row), manifest.root)) for row in range(len(manifest))]
    entries = [(name, manifest.index[row]) for row, name in enumerate(names)]
    (folder / "packets.index").write_bytes(index_file(reversed(entries)))
    (folder / "manifest.packed").write_bytes(manifest_file(manifest, folder))

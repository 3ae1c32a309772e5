"""Ways to use data of other libraries: rows of `tests/helpers/script_styles.py`.

Libraries are imported, and their files made, where a row needs them.
"""

import importlib
import tempfile
import warnings
from functools import cache
from pathlib import Path

import torch
from torch.utils.data import DataLoader, default_collate

from tests.helpers.scripts import Rows
from tests.helpers.small_scripts import BATCH, CLIPS, FRAMES, SIZE, clip, label, loader, unpacked
from tests.helpers.videos import numbered_frames, write_video

row = Rows()


# --- Data of other libraries ---

LIBRARIES = "Data of other libraries"
MADE = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # files that rows share, until the process ends


@cache
def quietly(name):
    """Imports a library; what its import says of other libraries is not the script's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@cache
def table():
    datasets = quietly("datasets")
    kinds = {"clip": datasets.Array4D((3, FRAMES, SIZE, SIZE), "float32"), "label": datasets.Value("int64")}
    columns = {"clip": [clip(i).numpy() for i in range(CLIPS)], "label": [label(i) for i in range(CLIPS)]}
    return datasets.Dataset.from_dict(columns, datasets.Features(kinds))


def pairs(samples):
    return default_collate([(sample["clip"], sample["label"]) for sample in samples])


def brightened(rows):
    return {"clip": [torch.tensor(one) + 0.1 * torch.rand(()) for one in rows["clip"]], "label": rows["label"]}


def iterable():
    return table().to_iterable_dataset(2).with_format("torch").shuffle(seed=1, buffer_size=8)


@cache
def shards():
    urls = [f"{MADE.name}/{shard}.tar" for shard in range(2)]
    for shard, url in enumerate(urls):
        with quietly("webdataset").TarWriter(url) as writer:
            for index in range(shard, CLIPS, 2):
                writer.write({"__key__": str(index), "clip.pth": clip(index), "cls": label(index)})
    return urls


def web():
    stream = quietly("webdataset").WebDataset(shards(), shardshuffle=False)
    return stream.shuffle(8).decode().to_tuple("clip.pth", "cls")


@cache
def chunks():
    made = quietly("litdata.streaming").Cache(f"{MADE.name}/litdata", chunk_size=24)
    for index in range(CLIPS):
        made[index] = (clip(index), label(index))
    made.done()
    made.merge()
    return f"{MADE.name}/litdata"


def streamed():
    return quietly("litdata").StreamingDataset(chunks(), shuffle=True)


@cache
def videos():
    written = []
    for index in range(6):
        path = Path(MADE.name, f"{index}.mp4")
        write_video(path, numbered_frames(8, SIZE, SIZE, first=index), options={"g": "4"})
        written.append((str(path), {"label": label(index)}))
    return written


def sampled(sample):
    frames = sample["video"]  # C x T x H x W, as many as there are in the seconds of the clip
    kept = torch.linspace(0, frames.shape[1] - 1, FRAMES).long()
    return {"video": frames[:, kept] / 255, "label": sample["label"]}


def labeled_videos():
    # Its transforms can't be imported with the torchvision of today.
    samplers = quietly("pytorchvideo.data.clip_sampling")
    kind = quietly("pytorchvideo.data.labeled_video_dataset").LabeledVideoDataset
    return kind(videos(), samplers.make_clip_sampler("random", 0.2), transform=sampled, decode_audio=False)


def stateful():
    return quietly("torchdata.stateful_dataloader").StatefulDataLoader(web(), batch_size=BATCH)


# Without the callback, the Trainer has to know how long an epoch of a stream is.
STREAM = {"trainer": {"limit_train_batches": CLIPS // BATCH}, "resumes": False}
row(LIBRARIES, "Hugging Face `Dataset.with_format`", needs="datasets",
    data=lambda: loader(table().with_format("torch"), collate_fn=pairs))  # fmt: skip
row(LIBRARIES, "Hugging Face `Dataset.with_transform`", needs="datasets",
    data=lambda: loader(table().with_transform(brightened), collate_fn=pairs))  # fmt: skip
row(LIBRARIES, "Hugging Face `IterableDataset`", needs="datasets",
    data=lambda: DataLoader(iterable(), batch_size=BATCH, collate_fn=pairs), **STREAM)  # fmt: skip
row(LIBRARIES, "webdataset", needs="webdataset", data=lambda: DataLoader(web(), batch_size=BATCH), **STREAM)
row(LIBRARIES, "webdataset, by two workers", needs="webdataset",
    data=lambda: DataLoader(web(), batch_size=BATCH, num_workers=2), **STREAM)  # fmt: skip
row(LIBRARIES, "webdataset in torchdata's `StatefulDataLoader`", needs="webdataset", data=stateful, **STREAM)
row(LIBRARIES, "webdataset's `WebLoader`", needs="webdataset", refused="of the same dataset, without `.batched`",
    data=lambda: quietly("webdataset").WebLoader(web(), batch_size=BATCH), trainer=STREAM["trainer"],
    outcome="it iterates in its own way; give its dataset to a `DataLoader`")  # fmt: skip
row(LIBRARIES, "webdataset that makes mini-batches (`.batched`)", needs="webdataset", refused="batch_size=None",
    data=lambda: DataLoader(web().batched(BATCH), batch_size=None), trainer=STREAM["trainer"],
    outcome="a mini-batch can't change its number of clips; leave `.batched` out")  # fmt: skip
row(LIBRARIES, "litdata's `StreamingDataset`", needs="litdata", resumes=False,
    data=lambda: DataLoader(streamed(), batch_size=BATCH))  # fmt: skip
row(LIBRARIES, "litdata's `StreamingDataLoader`", needs="litdata", resumes=False,
    data=lambda: quietly("litdata").StreamingDataLoader(streamed(), batch_size=BATCH))  # fmt: skip
row(LIBRARIES, "pytorchvideo's `LabeledVideoDataset`", needs="pytorchvideo",
    data=lambda: DataLoader(labeled_videos(), batch_size=BATCH), **STREAM,
    module=unpacked(lambda batch: (batch["video"], batch["label"])))  # fmt: skip

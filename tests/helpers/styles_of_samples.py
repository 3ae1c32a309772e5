"""Ways to write samples of several tensors: rows of `tests/helpers/script_styles.py`."""

import torch
from torch import nn

from lightning_multigrid.schedule import BatchShape
from tests.helpers.scripts import Rows
from tests.helpers.small_scripts import BATCH, FRAMES, SIZE, Script, of, unpacked

row = Rows()


# --- Several tensors ---

SEVERAL = "Several tensors per sample"
LONG = {"shape": BatchShape(BATCH, 2 * FRAMES, SIZE)}  # so that a half of the frames is a whole number on all grids


def named(**parts):
    """Clips of 8 frames; each part is made from the clip."""
    return of(lambda x, y: {"label": y} | {name: make(x) for name, make in parts.items()}, frames=2 * FRAMES)


def trained_on(name):
    return unpacked(lambda batch: (batch[name], batch["label"]))


def itself(x):
    return x


def bright(x):
    return x.mean(dim=0) > 0.5


VIDEO = {"module": trained_on("video"), **LONG}
TWO_VIEWS = {"data": named(video=itself, other=lambda x: x.flip(-1)), **VIDEO}
PATHWAYS = {"data": named(slow=lambda x: x[:, ::2], video=itself), **VIDEO}
MASKED = {"data": named(video=itself, mask=bright), **VIDEO}
row(SEVERAL, "SlowFast's pathways", multigrid={"clips": ["slow", "video"]}, **PATHWAYS)
row(SEVERAL, "SlowFast's pathways, unnamed", refused="Say which ones are clips",
    outcome="the callback can't tell which are clips; name them: `clips=[...]`", **PATHWAYS)  # fmt: skip
row(SEVERAL, "pathways that would get a fraction of a frame", refused="can't keep this ratio", data=named(
    slow=lambda x: x[:, ::4], video=itself), multigrid={"clips": ["slow", "video"]}, **VIDEO,
    outcome="a clip needs at least one frame; use a `long_cycle` with more frames")  # fmt: skip
row(SEVERAL, "two views", multigrid={"clips": ["video", "other"]}, **TWO_VIEWS)
row(SEVERAL, "two views, unnamed", refused="Say which ones are clips",
    outcome="the callback can't tell which are clips; name them: `clips=[...]`", **TWO_VIEWS)  # fmt: skip
row(SEVERAL, "two views in a list", data=of(lambda x, y: ([x, x.flip(-1)], y)), multigrid={"clips": [0]},
    module=unpacked(lambda batch: (batch[0][1], batch[1])))  # fmt: skip
row(SEVERAL, "views in one tensor", data=named(video=lambda x: torch.stack([x, x.flip(-1)])), axes="NVCTHW",
    multigrid={"clips": {"video": "VCTHW"}}, module=unpacked(lambda b: (b["video"].mean(dim=1), b["label"])),
    **LONG)  # fmt: skip
row(SEVERAL, "optical flow", data=named(video=itself, flow=lambda x: x[:2]), **VIDEO,
    multigrid={"clips": {"video": "CTHW", "flow": "CTHW"}})  # fmt: skip
row(SEVERAL, "depth", data=named(video=itself, depth=lambda x: x[0]), **VIDEO,
    multigrid={"clips": {"video": "CTHW", "depth": "THW"}})  # fmt: skip
row(SEVERAL, "a mask of each frame", multigrid={"follow": {"mask": "THW"}}, **MASKED)
row(SEVERAL, "a mask of each frame, unnamed", refused="would have to follow it",
    outcome="it has to follow the clip; name it: `follow={...}`", **MASKED)  # fmt: skip
row(SEVERAL, "a mask of the clip", data=named(video=itself, mask=lambda x: bright(x)[0].long()), **VIDEO,
    multigrid={"follow": {"mask": "HW"}})  # fmt: skip
row(SEVERAL, "masks of several objects", data=named(video=itself, masks=lambda x: torch.stack([bright(x)] * 3)),
    **VIDEO, multigrid={"follow": {"masks": "NTHW"}})  # fmt: skip
row(SEVERAL, "boxes of each frame", data=named(video=itself, boxes=lambda x: torch.rand(x.shape[1], 3, 4)), **VIDEO,
    multigrid={"follow": {"boxes": "TNxyxy"}})  # fmt: skip
row(SEVERAL, "boxes of the clip", data=named(video=itself, boxes=lambda x: torch.rand(3, 4)), **VIDEO,
    multigrid={"follow": {"boxes": "Nxywh"}})  # fmt: skip
row(SEVERAL, "key points", data=named(video=itself, points=lambda x: torch.rand(x.shape[1], 5, 3)), **VIDEO,
    multigrid={"follow": {"points": "TNxyv"}})  # fmt: skip
FRAME_LABELS = {"data": named(video=itself, labels=lambda x: x.mean(dim=(0, 2, 3))), **VIDEO}
row(SEVERAL, "labels of frames, unnamed", refused="would have to follow it",
    outcome="they have to follow the clip; name them: `follow={...}`", **FRAME_LABELS)  # fmt: skip
row(SEVERAL, "labels of frames", multigrid={"follow": {"labels": "T"}}, **FRAME_LABELS)


class Masked(Script):
    """Looks only at the patches of 4 x 4 pixels that the sample chooses."""

    def loss(self, batch):
        patches = nn.functional.avg_pool3d(self.net[0](batch["video"]), (1, 2, 2)).mean(1).flatten(1)
        return patches[batch["hidden"]].square().mean()


row(SEVERAL, "a mask of patches, made by the dataset",
    data=named(video=itself, hidden=lambda x: torch.rand(FRAMES * (SIZE // 4) ** 2) < 0.5), module=Masked, **LONG,
    refused="also for labels and masks", outcome="coarse clips have fewer patches; make it in "
    "`training_step`, as `examples/masked_pretraining.py` does")  # fmt: skip
row(SEVERAL, "a stretch, and how many frames are no padding", data=named(
    video=itself, stretch=lambda x: torch.tensor([2, 5]), length=lambda x: 6), **VIDEO,
    multigrid={"follow": {"stretch": "tt", "length": "f"}})  # fmt: skip
row(SEVERAL, "a rate of frames", data=named(video=itself, fps=lambda x: 30.0), **VIDEO,
    multigrid={"follow": {"fps": lambda fps, change: fps * len(change.frames) / change.frames_before}})  # fmt: skip
row(SEVERAL, "sound", data=named(video=itself, sound=lambda x: torch.linspace(-1, 1, 8000)), **VIDEO,
    multigrid={"whole_span": True})  # fmt: skip
row(SEVERAL, "a matrix that looks like a mask", data=named(video=itself, kernel=lambda x: torch.eye(SIZE)), **VIDEO,
    multigrid={"follow": {"kernel": "AB"}})  # fmt: skip
row(SEVERAL, "a clip and its name in a nested dict",
    data=of(lambda x, y: {"inputs": {"rgb": x, "flow": x[:2]}, "y": y}),
    multigrid={"clips": {"inputs.rgb": "CTHW", "inputs.flow": "CTHW"}},
    module=unpacked(lambda b: (b["inputs"]["rgb"], b["y"])))  # fmt: skip

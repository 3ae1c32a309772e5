"""`VideoDataModule`: videos on disk to float clips on the device, for any LightningModule."""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import torch
from lightning_utilities.core.rank_zero import rank_zero_only, rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler
from typing_extensions import override

from lightning_multigrid.clips import (
    CENTRE,
    ClipBatch,
    ClipSampling,
    VideoBatch,
    VideoDataset,
    ViewDataset,
    Views,
    balance_sampler,
    collate_clips,
    collate_views,
    repeat_sampler,
)
from lightning_multigrid.files import quoted, require
from lightning_multigrid.host import LightningDataModule, TrainerFn, tell
from lightning_multigrid.loading import ClipRequest
from lightning_multigrid.pixels import MEAN, STD, Augmentation, YuvClip, check_normalisation, resample_clips
from lightning_multigrid.sources import (
    Manifest,
    ManifestError,
    Source,
    VideoList,
    VideoSource,
    class_sizes,
    holds_frames,
    shared_videos,
)
from lightning_multigrid.video.broken_videos import BrokenVideos
from lightning_multigrid.video.classifier import VideoClassifier
from lightning_multigrid.video.frame_tables import make_tables, with_tables

Split = Literal["train", "val", "test", "predict"]

# A stage needs the first of its splits; the others are optional.
_SPLITS: dict[str, tuple[Split, ...]] = {
    "fit": ("train", "val"),
    "validate": ("val",),
    "test": ("test",),
    "predict": ("predict",),
}


class VideoDataModule(LightningDataModule):
    """Clips of videos, decoded on the CPU and resampled on the device.

    Mini-batches are `(clips, labels)`: clips are B x 3 x T x S x S in the precision of the trainer, labels are B class
    ids (int64), or B x num_classes zeros and ones if videos may have several. Those of `predict` are `(clips, paths)`.
    Training clips are drawn as in the paper (Sec. 4). Where labels have spans, as in Charades, a training clip has the
    labels that it shows a part of; in evaluation a video has all of its labels. Validation sees the centre of each
    video, on the baseline's grid; test and prediction see `test_views`, in mini-batches that are a `VideoBatch`.

    A warning names each broken video once. In training another video takes its place; elsewhere it is left out. The
    frames of a damaged one are used as FFmpeg decodes them. The LightningModule's own `on_after_batch_transfer` gets
    the finished mini-batch, although Lightning warns that the data module's hook takes its place.

    Args:
        train: Training videos: a list of `path,label`, a folder with a folder per class, what `lightning-multigrid
            prepare` wrote, or one of `lightning_multigrid.sources`, such as `VideoList` or `Kinetics`. Its `frame_rate`
            is also that of other splits which are given as the path of folders of frames.
        val: Validation videos, given in the same ways. Class ids are those of `train`, if that is given.
        test: Test videos, given in the same ways.
        predict: Videos to predict, given in the same ways; labels are not needed.
        num_classes: Number of classes; None counts those of `train`, or without it takes that of a `VideoClassifier`.
        batch_size: Clips per device (B).
        frames: Frames per clip (T).
        size: Height and width of a clip, in pixels (S).
        stride: Temporal stride, in source frames, or in frames at `frame_rate`.
        sampling: `stride` for frames at a stride from a random start, `segments` for a frame from each of T equal
            segments of the video (Something-Something).
        short_side: Smallest and largest short side that a frame is resized to before the random crop, in pixels; None
            means the paper's 256 to 340 for 224 pixels, scaled with `size`. Evaluation takes the smallest.
        short_side_sampling: `uniform` draws the short side uniformly, as the paper does; `inverse_uniform` its inverse,
            as PySlowFast does on Something-Something V2 and Charades.
        frame_rate: Frames per second in which `stride` counts; 30 is PySlowFast's value for Kinetics. None counts each
            video's own frames, as the paper does (footnote 5). A video without a known rate counts as broken.
        flip: Mirror half of the training clips. Turn it off where left and right have a meaning.
        test_views: The views of each video in test and prediction; None means the one view of validation. A mini-batch
            holds as many videos as make `batch_size` views, and at least one.
        augment: Further augmentation of training clips, on the device: Mixup, CutMix, RandAugment, random erasing.
        mean: Mean of each channel, in units of the range 0 to 1.
        std: Standard deviation of each channel, in units of the range 0 to 1.
        antialias: Average over the source pixels between two points of the grid; the paper does not.
        pixels: What clips are on their way to the device: `rgb`, or `yuv`, the planes that videos store: half the
            bytes, and the device computes the colours, equal to RGB's within 3 of 255. `auto` means `yuv` on a CUDA
            device, else `rgb`.
        repeats: Clips to take from a training video each time it is visited (repeated augmentation). They lie in one
            span as long as a baseline clip, which is decoded once. An epoch has `repeats` times as many clips.
        balance: Draw the classes equally often, however many videos they have. An epoch has as many clips as without.
        num_workers: Processes that decode. Those of training live as long as it; evaluation starts its own.
        prefetch_factor: Mini-batches that each process of training reads ahead; None is torch's 2.
        timeout: Seconds after which a mini-batch that does not come is an error, as on a drive that hangs; 0 waits.
        drop_last: Leave out the clips of an epoch that make no whole mini-batch of the baseline.
        max_bad_fraction: Largest share of a split's videos that may be broken, in [0, 1]; not in prediction.
        index: Whether `fit` first makes the frame tables that videos lack which are not prepared; evaluation alone does
            so where a list has several stretches of a video. It takes about two decodes of each, once. They are stored
            among the user's caches, or in the folder that is given. Without a table a clip is decoded from the
            beginning of its video.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> data = VideoDataModule(train="train.csv", val="val.csv", batch_size=8, frames=16, size=112)
        >>> data.batch_size, data.frames, data.size, data.stride
        (8, 16, 112, 2)
    """

    def __init__(
        self,
        train: Source | None = None,
        val: Source | None = None,
        test: Source | None = None,
        predict: Source | None = None,
        *,
        num_classes: int | None = None,
        batch_size: int = 8,
        frames: int = 32,
        size: int = 224,
        stride: int = 2,
        sampling: Literal["stride", "segments"] = "stride",
        short_side: tuple[float, float] | None = None,
        short_side_sampling: Literal["uniform", "inverse_uniform"] = "uniform",
        frame_rate: float | None = None,
        flip: bool = True,
        test_views: Views | None = None,
        augment: Augmentation = Augmentation(),
        mean: tuple[float, float, float] = MEAN,
        std: tuple[float, float, float] = STD,
        antialias: bool = False,
        pixels: Literal["auto", "rgb", "yuv"] = "auto",
        repeats: int = 1,
        balance: bool = False,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        timeout: float = 0,
        drop_last: bool = False,
        max_bad_fraction: float = 0.25,
        index: bool | str = True,
    ) -> None:
        super().__init__()
        require(batch_size >= 1, "batch_size", batch_size, "at least 1")
        require(num_workers >= 0, "num_workers", num_workers, "at least 0", " 0 decodes in the main process.")
        ahead = prefetch_factor is None or (prefetch_factor >= 1 and num_workers > 0)
        require(ahead, "prefetch_factor", prefetch_factor, "at least 1, and with `num_workers`, or None")
        waits = timeout == 0 or (timeout > 0 and num_workers > 0)
        require(waits, "timeout", timeout, "above 0 seconds, and with `num_workers`, or 0")
        require(pixels in ("auto", "rgb", "yuv"), "pixels", pixels, "'auto', 'rgb' or 'yuv'")
        require(repeats >= 1, "repeats", repeats, "at least 1", " 1 takes one clip of a video at a time.")
        require(not (balance and repeats > 1), "repeats", repeats, "1 with `balance`", " Leave one of the two out.")
        countable = num_classes is None or num_classes >= 1
        require(countable, "num_classes", num_classes, "at least 1, or None to count them")
        check_normalisation(mean, std)
        self.sources: dict[Split, Source | None] = {"train": train, "val": val, "test": test, "predict": predict}
        self.num_classes = self._given_num_classes = num_classes
        self.batch_size, self.frames, self.size, self.stride = batch_size, frames, size, stride
        self.clip_sampling = ClipSampling(
            frames, size, stride, sampling, short_side, flip, short_side_sampling, frame_rate
        )
        self.test_views = test_views or CENTRE
        self.test_views.pixels(self.clip_sampling)  # refuses a short side below the size
        self.augment = augment
        self.mean, self.std, self.antialias = mean, std, antialias
        self.pixels, self.repeats, self.balance = pixels, repeats, balance
        self.num_workers, self.prefetch_factor, self.timeout = num_workers, prefetch_factor, timeout
        self.drop_last, self.index = drop_last, index
        self._datasets: dict[Split, VideoDataset | ViewDataset] = {}
        self._just_read: dict[str, dict[Split, Manifest]] = {}  # of a stage, by `prepare_data`, for its `setup`
        self._classes: tuple[str, ...] = ()
        self._broken = BrokenVideos(max_bad_fraction)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in the order of their labels, after `setup`; empty if they are not known.

        They are those of `train`; in prediction those of the checkpoint, if it has any.
        """
        return self._classes

    @property
    def broken(self) -> dict[str, str]:
        """The videos that this process could not read, each with the reason."""
        return self._broken.reasons

    @override
    def prepare_data(self) -> None:
        """Makes the frame tables that `fit` lacks, and evaluation alone where a video is in several rows."""
        if not self.index:
            return
        fn = TrainerFn.FITTING if self.trainer is None else self.trainer.state.fn or TrainerFn.FITTING
        read = self.manifests(*_SPLITS[fn.value])
        self._just_read = {fn.value: read}
        if fn == TrainerFn.FITTING:
            for split, manifest in read.items():
                self._num_classes_of(split, manifest, read.get("train"))  # refused before hours of decoding
            make_tables(read.values(), self.index)
        else:  # each video that is read once is decoded once without a table, too
            make_tables([read[split] for split in _SPLITS[fn.value] if _repeats(read.get(split))], self.index)

    @override
    def setup(self, stage: str) -> None:
        """Reads the manifests of a stage, and that of `train`, which says what the classes are.

        Raises:
            ValueError: If the stage has no videos, no labels, or labels beyond `num_classes`.
            ManifestError: If a manifest cannot be read.
        """
        needed = _SPLITS[stage][0]
        if self.sources[needed] is None:
            raise ValueError(
                f"`{needed}` is None, but its videos are needed. Give a list of `path label`, a folder per class, or a "
                f"source such as `Kinetics`, as `{needed}`; on the command line, `--data.{needed} FOLDER`."
            )
        read = self._just_read.pop(stage, None) or self.manifests(*_SPLITS[stage])
        train = read.get("train")
        self._classes = train.classes if train else ()
        for split, manifest in read.items():
            if split not in _SPLITS[stage]:
                continue
            if split != "predict":
                self.num_classes = self._num_classes_of(split, manifest, train)
                _tell(split, manifest, train, self.num_classes)
            manifest = with_tables(manifest, self.index)
            sampling, pixels = self.clip_sampling, self._pixels()
            if split == "train":
                self._datasets[split] = VideoDataset(manifest, sampling, pixels)
            else:
                self._datasets[split] = ViewDataset(manifest, sampling, self._views(split), pixels)

    def manifests(self, *splits: Split) -> dict[Split, Manifest]:
        """The videos of `train` and these splits, or of all splits, that have a source; no video is opened.

        Raises:
            ManifestError: If a source cannot be read.
        """
        try:
            train = self._read("train", classes=())
        except ManifestError:  # a machine that predicts need not have these videos
            if splits != ("predict",):  # else labels count the classes of the split, wrongly if it lacks one
                raise
            train = None
        read: dict[Split, Manifest | None] = {"train": train}
        classes = train.classes if train else ()
        for split in splits or self.sources:
            if split != "train":  # prediction does not use labels, so they may be of unknown classes
                read[split] = self._read(split, () if split == "predict" else classes)
        return {split: manifest for split, manifest in read.items() if manifest is not None}

    @override
    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader("train")

    @property
    def val_dataloader(self) -> Callable[[], Any]:
        """The hook that makes the loader of the validation videos; Lightning's own hook if there are none.

        A property, because Lightning validates whenever a data module overrides the hook, and asks the instance whether
        it does (`is_defined` in `data_connector.py`, 2.5.3 to 2.6.6). An empty list of loaders counts as validation.
        """
        return super().val_dataloader if self.sources["val"] is None else partial(self._loader, "val")

    @override
    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader("test")

    @override
    def predict_dataloader(self) -> DataLoader[Any]:
        return self._loader("predict")

    @override
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        trainer = self.trainer
        assert trainer is not None, "a loop of one's own calls `resample_clips`, as `ClipBatch` says"
        stage = trainer.state.stage
        split: Split = "train" if stage is None else cast("Split", stage.dataloader_prefix)
        if isinstance(batch, ClipBatch):
            self._broken.report(split, batch, len(self._datasets[split]), trainer)
            batch = self._videos(split, batch) if batch.views[0] else self._for_training(batch)
        # Of the two hooks Lightning calls the data module's only. The module's default one returns the batch.
        return trainer.lightning_module.on_after_batch_transfer(batch, dataloader_idx)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"classes": list(self._classes)} if self._classes else {}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the names of the classes for predictions; warns if labels count others than in that training."""
        counted = state_dict.get("classes", ())
        if self.trainer is not None and self.trainer.state.fn == TrainerFn.PREDICTING:
            self._classes = tuple(counted) or self._classes
            return
        for label, (before, now) in enumerate(zip(counted, self._classes, strict=False)):  # weights say if one has more
            if before != now:
                warnings.warn(
                    f"Label {label} is the class {quoted(now)}, and was {quoted(before)} in the training of the "
                    "checkpoint. Unless the class was renamed, labels count other classes now: give `train` as a "
                    "`VideoList` with `classes`, the `classes.txt` beside the `config.yaml` of that training.",
                    stacklevel=2,
                )
                return

    def _read(self, split: Split, classes: tuple[str, ...]) -> Manifest | None:
        source = self.sources[split]
        if source is not None and not isinstance(source, VideoSource):
            rate = getattr(self.sources["train"], "frame_rate", None)
            source = VideoList(source, frame_rate=rate if rate and holds_frames(source) else None)
        return None if source is None else source.read(classes)

    def _num_classes_of(self, split: Split, manifest: Manifest, train: Manifest | None) -> int:
        """The number of classes, if the labels of a split fit it and `train`; a ValueError if they don't."""
        module = None if self.trainer is None else self.trainer.lightning_module
        of_model = module.num_classes if isinstance(module, VideoClassifier) else None
        counted = train.num_classes if train else of_model or manifest.num_classes
        num_classes = self._given_num_classes or counted
        if not manifest.labelled:
            raise ValueError(
                f"The videos of `{split}` ({manifest.origin}) have no labels, which `{split}` needs. Give each line a "
                "label, or a folder per class, or use `predict`."
            )
        if manifest.num_classes > num_classes:
            raise ValueError(
                f"`{split}` ({manifest.origin}) has labels up to {manifest.num_classes - 1}, but there are "
                f"{num_classes} classes. Correct the labels, or give `num_classes`."
            )
        if split == "train" and self.balance and manifest.multi_label:
            raise ValueError(
                f"`balance` draws a class for each clip, but videos of `train` ({manifest.origin}) may have several "
                "labels. Leave `balance` out."
            )
        if not manifest.classes:
            return num_classes
        if train is None and len(manifest.classes) < num_classes:
            raise ValueError(
                f"`{split}` ({manifest.origin}) names {len(manifest.classes)} of the {num_classes} classes, so "
                f"their numbers are not known. Give `train`, too, or `{split}` as a `VideoList` with all `classes`."
            )
        if train and manifest.classes != train.classes:
            named = f"the {len(train.classes)} of `train`" if train.classes else f"named in `train` ({train.origin})"
            raise ValueError(
                f"`{split}` ({manifest.origin}) has {len(manifest.classes)} classes that are not {named}, or not in "
                "their order. Give both splits from one dataset, with the same file as `classes` of a `VideoList`."
            )
        return num_classes

    def _views(self, split: Split) -> Views:
        return self.test_views if split in ("test", "predict") else CENTRE

    def _loader(self, split: Split) -> DataLoader[Any]:
        training, data = split == "train", self._datasets[split]
        batch_size = self.batch_size if training else max(1, self.batch_size // self._views(split).per_video)
        sampler = self._sampler(split, data)
        return DataLoader(
            data,
            batch_size=batch_size,
            shuffle=training and sampler is None,
            sampler=sampler,
            drop_last=training and self.drop_last,
            collate_fn=collate_clips if training else collate_views,
            num_workers=self.num_workers,
            persistent_workers=training and self.num_workers > 0,  # else there would be twice as many, all the time
            # All views of a video take much memory; torch would keep two mini-batches ready for each worker.
            prefetch_factor=1 if self.num_workers and not training else self.prefetch_factor,
            timeout=self.timeout,
            pin_memory=self._for_gpu,
        )

    def _sampler(self, split: Split, data: VideoDataset | ViewDataset) -> DistributedSampler[Any] | None:
        """The order of the videos, cut among the ranks; None for the order that torch and Lightning choose."""
        host: Any = self.trainer
        ranks = None if host is None else host.distributed_sampler_kwargs
        if split == "train" and (self.balance or self.repeats > 1):
            # `seed_everything` leaves its seed here, and Lightning's own samplers take it from here.
            given = {**(ranks or {}), "seed": int(os.environ.get("PL_GLOBAL_SEED", 0))}
            if self.balance:
                return balance_sampler(data.manifest.rows.labels, **given)
            return repeat_sampler(len(data), self.repeats, **given)
        if split in ("train", "predict") or ranks is None:
            return None
        # Lightning would say of its own sampler that videos are evaluated twice, also where they count once.
        sampler: DistributedSampler[Any] = DistributedSampler(cast("Any", data), **ranks, shuffle=False)
        if sampler.total_size > len(data) and not isinstance(host.lightning_module, VideoClassifier):
            rank_zero_warn(
                f"{len(data):,} videos can't be cut into equally many for {sampler.num_replicas} devices, so some are "
                "evaluated twice. `VideoClassifier` counts them once, other metrics don't. Evaluate on one device."
            )
        return sampler

    def _pixels(self) -> Literal["rgb", "yuv"]:
        if self.pixels != "auto":
            return self.pixels
        # A CPU would spend on the colours what it saves in decoding; a GPU computes them beside.
        return "yuv" if self.trainer is not None and self._for_gpu else "rgb"

    @property
    def _for_gpu(self) -> bool:
        """Whether clips go to a CUDA device: the Trainer's, or any where a script has a loop of its own."""
        if self.trainer is None:
            return torch.cuda.is_available()
        return bool(self.trainer.strategy.root_device.type == "cuda")

    def _videos(self, split: Split, batch: ClipBatch) -> VideoBatch:
        labels = None if split == "predict" else self._labels(split, batch)
        manifest, rows = self._datasets[split].manifest, batch.indices
        paths, stretches = [*map(manifest.path, rows)], [*map(manifest.stretch, rows)]
        unread = [video.index for video in batch.broken if not (video.used_anyway or video.substitute)]
        left_out = {row: (manifest.path(row), manifest.stretch(row)) for row in unread}
        # Without gradients, as many views take less memory than training takes.
        return VideoBatch(batch, self._resample, labels, paths, stretches, self._classes, self.batch_size, left_out)

    def show_clip(self, request: ClipRequest) -> tuple[Tensor, str]:
        """Draws a training clip as the model gets it, T x 3 x S x S from 0 to 1, and says what it is: for `show_grids`.

        The data must be set up for `fit`. Mixup and CutMix mix it with no other one. A video that can't be read is
        named in a `BrokenVideoWarning`, and the text is of the one in its place.
        """
        dataset = self._datasets["train"]
        assert isinstance(dataset, VideoDataset)
        [clip] = dataset.read_clips([request])
        clips, _ = self._training_clips(ClipBatch([clip]))
        std, mean = (torch.tensor(values).view(3, 1, 1, 1) for values in (self.std, self.mean))
        names = ", ".join(self._classes[label] if self._classes else str(label) for label in clip.labels)
        self._broken.name(clip.broken)
        described = dataset.describe(replace(request, index=clip.index))
        return (clips[0] * std + mean).transpose(0, 1), f"{names}: {described}"

    def _for_training(self, batch: ClipBatch) -> tuple[Tensor, Tensor]:
        clips, labels = self._training_clips(batch)
        return self._converted(clips), labels

    def _training_clips(self, batch: ClipBatch) -> tuple[Tensor, Tensor]:
        assert self.num_classes is not None
        colours = {"mean": self.mean, "std": self.std}
        clips = resample_clips(batch.crops(), batch.size, flips=batch.flips, antialias=self.antialias, **colours)
        labels, classes = self._labels("train", batch), self.num_classes
        return self.augment.apply(clips, labels, batch.seeds, num_classes=classes, **colours)

    def _resample(self, crops: Sequence[Tensor | YuvClip], size: int) -> Tensor:
        return self._converted(resample_clips(crops, size, mean=self.mean, std=self.std, antialias=self.antialias))

    def _converted(self, clips: Tensor) -> Tensor:
        assert self.trainer is not None
        # Lightning converts to the Trainer's precision before the transfer, when clips are still bytes.
        converted: Tensor = self.trainer.precision_plugin.convert_input(clips)
        return converted

    def _labels(self, split: Split, batch: ClipBatch) -> Tensor:
        if not self._datasets[split].manifest.multi_label:
            return batch.class_ids()
        assert self.num_classes is not None
        return batch.multi_hot(self.num_classes)


def _repeats(manifest: Manifest | None) -> bool:
    """Whether a video is in several rows, as stretches of it are."""
    return manifest is not None and len(set(map(hash, manifest.each_path()))) < len(manifest)


@rank_zero_only
def _tell(split: Split, manifest: Manifest, train: Manifest | None, num_classes: int) -> None:
    if split == "train":
        if not manifest.multi_label:
            tell(f"Classes of `train`: {class_sizes(manifest, num_classes)}.")
    elif train is not None and (shared := shared_videos(train, manifest)):
        warnings.warn(
            f"{len(shared):,} of the {len(manifest):,} videos of `{split}` are also in `train`, such as {shared[0]}. "
            f"So metrics of `{split}` say less about new videos. Take the shared ones out of one of the two.",
            stacklevel=4,  # past `rank_zero_only`, to `setup`'s caller
        )

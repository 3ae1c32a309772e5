"""Scripts of public projects for `run.py`: their own module and data, on small clips in their own format.

Each function is given the folder of the project and one for the clips, and returns the script as the project's
documentation or its own `main` writes it, as small as its arguments allow. It says what it replaces.
"""

import ast
import importlib
import json
import os
import sys
import types
from argparse import Namespace
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch.nn.functional import interpolate
from torch.nn.utils.parametrize import register_parametrization

from lightning_multigrid.schedule import BatchShape
from tests.helpers.chosen_package import L
from tests.helpers.scripts import Style
from tests.helpers.videos import decode_all, numbered_frames, write_video

ALL_FRAMES = "long_cycle=LongCycle(((1, 0.5**0.5), (1, 1)))"
CLIPS = 32  # with mini-batches of 2, the largest mini-batch of the default cycles


@dataclass(frozen=True)
class Way:
    """A script of a project; why it is refused with the callback alone; and what a user gives or changes then."""

    repository: str
    commit: str
    kind: str
    script: Callable[[Path, Path], Style | tuple[Style, Style]]  # as it is, and if it must be changed, the changed one
    needs: tuple[str, ...] = ()
    why: str = ""  # it is refused
    given: str = ""
    changes: str = ""
    lengths: tuple[int, int] | None = None  # of the shortest and the longest clip, if they differ
    package: str = "pytorch_lightning"


SCRIPTS: dict[str, Way] = {}


def way(name: str, repository: str, commit: str, kind: str, **how: Any) -> Callable[[Any], Any]:
    def add(script: Any) -> Any:
        SCRIPTS[name] = Way(repository, commit, kind, script, **how)
        return script

    return add


def style(shape: tuple[int, int, int], epochs: int = 2, clips: int = CLIPS, **how: Any) -> Style:
    return Style(
        "projects",
        "",
        shape=BatchShape(*shape),
        epochs=epochs,
        clips=clips,
        **how | {"trainer": {"max_epochs": epochs} | how.get("trainer", {})},
    )


def stub(*names: str, **attributes: Any) -> None:
    """Puts empty modules in the place of packages, or gives names to one."""
    for name in names:
        module = sys.modules.setdefault(name, MagicMock(__path__=[], __spec__=None))
        vars(module).update(attributes)


def load(path: Path, name: str) -> Any:
    """Imports a file."""
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lightning_1() -> None:
    """Gives Lightning 2 names of Lightning 1 that projects use."""
    import pytorch_lightning as pl
    import torchmetrics

    class Accuracy(torchmetrics.Metric):
        """Of class scores or classes, as in Lightning 1."""

        def __init__(self, top_k: int = 1) -> None:
            super().__init__()
            self.top_k = top_k
            self.add_state("right", torch.tensor(0.0), dist_reduce_fx="sum")
            self.add_state("number", torch.tensor(0.0), dist_reduce_fx="sum")

        def update(self, scores: Any, labels: Any) -> None:
            self.right += (scores.topk(self.top_k, -1).indices == labels[:, None]).sum()
            self.number += len(labels)

        def compute(self) -> Any:
            return self.right / self.number

    pl.metrics = types.SimpleNamespace(Accuracy=Accuracy)
    torchmetrics.Accuracy = Accuracy
    stub("pytorch_lightning.core.lightning", LightningModule=pl.LightningModule)
    stub("pytorch_lightning.utilities.distributed", rank_zero_only=pl.utilities.rank_zero_only)
    own = pl.LightningModule.hparams
    hparams = property(lambda module: vars(module).get("_given") or own.fget(module))
    as_dict = pl.utilities.parsing.AttributeDict
    pl.LightningModule.hparams = hparams.setter(lambda module, given: vars(module).update(_given=as_dict(vars(given))))
    pl.Trainer.use_ddp = False
    pl.Trainer.training_type_plugin = property(lambda trainer: trainer.strategy)


# --- Wildlife ---


def zamba(project: Path) -> None:
    """Stand-ins: an object detector that is switched off, and a clock of no files in a cloud."""
    sys.path.append(str(project))
    detector = {"MegadetectorLiteYoloX": None, "MegadetectorLiteYoloXConfig": type(None)}
    stub("zamba.object_detection.yolox.megadetector_lite_yolox", **detector)
    stub("zamba.version", __version__="")
    stub("cloudpathlib", "pandas_path")


def zamba_data(
    folder: Path, frames: int, size: tuple[int, int], transform: Any, clips: int = CLIPS, batch_size: int = 2
) -> Callable[[], Any]:
    """Stand-in: PyAV in the place of the program `ffmpeg`."""
    import pandas as pd
    from zamba.data.video import VideoLoaderConfig
    from zamba.pytorch import dataloaders
    from zamba.pytorch_lightning.video_modules import ZambaVideoDataModule

    videos = [
        write_video(folder / f"{n}.mp4", numbered_frames(frames, *size, first=n), codec="mpeg4")
        for n in range(clips + 6)
    ]
    splits = ["train"] * clips + ["val"] * 6
    table = pd.DataFrame({"filepath": [str(video) for video in videos], "split": splits})
    for kind, name in enumerate(("antelope", "blank", "hog")):
        table[f"species_{name}"] = [int(number % 3 == kind) for number in range(len(videos))]

    def load_video_frames(filepath: str, config: Any) -> np.ndarray:
        return decode_all(filepath)

    dataloaders.load_video_frames = load_video_frames
    config = VideoLoaderConfig(total_frames=frames, model_input_height=size[0], model_input_width=size[1])
    return lambda: ZambaVideoDataModule(
        batch_size=batch_size,
        num_workers=0,
        transform=transform,
        video_loader_config=config,
        train_metadata=table.copy(),
    )


ZAMBA = "drivendataorg/zamba", "284a18945b96c2d225ed0d1995da38f2f6b0a7a5"
ZAMBA_NEEDS = ("timm", "pandas", "sklearn", "loguru", "cv2", "ffmpeg", "pytorchvideo")


@way(
    "zamba-time-distributed",
    *ZAMBA,
    "wildlife: EfficientNet of each frame",
    why="a linear layer takes all frames",
    needs=ZAMBA_NEEDS,
    given=ALL_FRAMES,
)
def zamba_time_distributed(project: Path, folder: Path) -> Style:
    """Stand-in: no weights of ImageNet."""
    import timm

    zamba(project)
    create = timm.create_model
    timm.create_model = lambda name, pretrained: create(name)
    from zamba.models.efficientnet_models import TimeDistributedEfficientNet
    from zamba.pytorch.transforms import zamba_image_model_transforms

    species = ["antelope", "blank", "hog"]
    data = zamba_data(folder, 8, (32, 48), zamba_image_model_transforms())
    scheduler = {"scheduler": "MultiStepLR", "scheduler_params": {"milestones": [1], "gamma": 0.5}}
    return style(
        (2, 8, 32),
        module=lambda: TimeDistributedEfficientNet(num_frames=8, species=species, **scheduler),
        data=data,
        axes="NTCHW",
        trainer={"logger": L.loggers.TensorBoardLogger(folder)},
    )


@way(
    "zamba-slowfast",
    *ZAMBA,
    "wildlife: SlowFast, frozen but for its head",
    why="which of the pathways are clips can't be seen",
    needs=ZAMBA_NEEDS,
    given="clips=[0]",
)
def zamba_slowfast(project: Path, folder: Path) -> Style:
    """Stand-in: no weights of Kinetics."""
    zamba(project)
    from pytorchvideo.models.hub import slowfast_r50

    torch.hub.load = lambda *_, **__: slowfast_r50()
    from zamba.models.slowfast_models import SlowFast
    from zamba.pytorch.transforms import slowfast_transforms

    data = zamba_data(folder, 32, (224, 224), slowfast_transforms(), clips=16, batch_size=1)
    scheduler = {"scheduler": "MultiStepLR", "scheduler_params": {"milestones": [1], "gamma": 0.5}}
    return style(
        (1, 32, 224),
        1,
        clips=16,
        module=lambda: SlowFast(species=["antelope", "blank", "hog"], **scheduler),
        data=data,
        trainer={"logger": L.loggers.TensorBoardLogger(folder), "limit_train_batches": 4, "limit_val_batches": 3},
    )


# --- Egocentric actions: segments of frames ---

EPIC = "epic-kitchens/C1-Action-Recognition-TSN-TRN-TSM", "e8e1a791944305c33adef09a966c51c0dfef0d38"
EPIC_NEEDS = "gulpio2", "omegaconf", "cv2", "sh", "simplejson", "pandas", "sklearn"


def epic(project: Path, folder: Path, config: str) -> Style:
    """As small as the configuration allows: ResNet-18, 64 pixels."""
    sys.path.append(str(project / "src"))
    from gulpio2 import ChunkWriter
    from gulpio2.adapters import AbstractDatasetAdapter
    from gulpio2.fileio import GulpDirectory
    from omegaconf import OmegaConf
    from systems import EpicActionRecogintionDataModule, EpicActionRecognitionSystem

    class Made(AbstractDatasetAdapter):
        def __len__(self) -> int:
            return CLIPS

        def iter_data(self, slice_element: Any = None) -> Any:
            for number in range(CLIPS):
                labels = {"verb_class": number % 5, "noun_class": number % 7, "video_id": f"P01_{number}"}
                frames = [*numbered_frames(24, 80, 100, first=number)]
                yield {"meta": labels | {"num_frames": len(frames)}, "frames": frames, "id": number}

    for split in ("rgb_train", "rgb_validation"):
        (folder / split).mkdir()
        ChunkWriter(Made()).write_chunk(next(GulpDirectory(str(folder / split)).new_chunks(1)), slice(0, CLIPS))
    small = {
        "data": {"_root_gulp_dir": str(folder), "worker_count": 0, "pin_memory": False},
        "model": {"backbone": "resnet18", "pretrained": None},
        "learning": {"batch_size": 2, "lr_scheduler": {"epochs": [1]}},
    }
    cfg = OmegaConf.merge(OmegaConf.load(project / "configs" / f"{config}.yaml"), small)
    cfg.data.preprocessing.input_size, cfg.data.test_augmentation.rescale_size = 64, 72
    return style(
        (2, cfg.data.frame_count, 64),
        module=lambda: EpicActionRecognitionSystem(cfg),
        axes="NTCHW",
        data=lambda: EpicActionRecogintionDataModule(cfg),
        trainer={"gradient_clip_val": 20},
    )


@way("epic-kitchens-tsn", *EPIC, "egocentric actions: TSN", needs=EPIC_NEEDS)
def epic_tsn(project: Path, folder: Path) -> Style:
    return epic(project, folder, "tsn_rgb")


@way(
    "epic-kitchens-trn",
    *EPIC,
    "egocentric actions: multi-scale TRN",
    why="it relates the frames by their numbers",
    needs=EPIC_NEEDS,
    given=ALL_FRAMES,
)
def epic_trn(project: Path, folder: Path) -> Style:
    return epic(project, folder, "trn_rgb")


@way(
    "epic-kitchens-tsm",
    *EPIC,
    "egocentric actions: TSM",
    why="the number of frames is a constant",
    needs=EPIC_NEEDS,
    given=ALL_FRAMES,
)
def epic_tsm(project: Path, folder: Path) -> Style:
    return epic(project, folder, "tsm_rgb")


# --- pytorchvideo ---

PYTORCHVIDEO = "facebookresearch/pytorchvideo", "f3142bb05cdb56af0704ab6f0adfb0c7bbafe4a0"


def kinetics(folder: Path, clips: int = CLIPS) -> Path:
    """Videos of a second in the format of Kinetics."""
    lines = []
    for number in range(clips):
        write_video(folder / f"{number}.mp4", numbered_frames(20, 48, 64, first=number), codec="mpeg4", rate=20)
        lines.append(f"{number}.mp4 {number % 5}\n")
    for split in ("train", "val"):
        (folder / f"{split}.csv").write_text("".join(lines if split == "train" else lines[:4]))
    return folder


@way(
    "pytorchvideo-tutorial",
    *PYTORCHVIDEO,
    "classes of videos: the tutorial's script",
    needs=("pytorchvideo", "fvcore"),
)
def pytorchvideo_tutorial(project: Path, folder: Path) -> Style:
    """Stand-ins: no SLURM, no sound, and names of Lightning 1."""
    lightning_1()
    sys.path.insert(0, str(project))
    stub("slurm", "torchaudio", "torchaudio.transforms")
    train = load(project / "tutorials" / "video_classification_example" / "train.py", "tutorial")
    args = Namespace(
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-4,
        arch="video_resnet",
        data_path=str(kinetics(folder, 64)),
        video_path_prefix=str(folder),
        workers=1,
        batch_size=1,
        clip_duration=0.9,
        data_type="video",
        video_num_subsampled=4,
        video_means=(0.45,) * 3,
        video_stds=(0.225,) * 3,
        video_crop_size=224,
        video_min_short_side_scale=256,
        video_max_short_side_scale=320,
        video_horizontal_flip_p=0.5,
        max_epochs=2,
    )
    return style(
        (1, 4, 224),
        clips=16,
        trainer={"limit_train_batches": 4, "limit_val_batches": 1},
        module=lambda: train.VideoClassificationLightningModule(args),
        data=lambda: train.KineticsDataModule(args),
    )


@way(
    "pytorchvideo-trainer",
    *PYTORCHVIDEO,
    "classes of videos: the trainer's classification",
    why="it writes the LR by the run's own count of epochs",
    needs=("pytorchvideo", "fvcore", "hydra", "omegaconf"),
    given="clips_per_epoch=32",
)
def pytorchvideo_trainer(project: Path, folder: Path) -> Style:
    """Stand-ins: the classes of a package from which only configurations derive, and names of Lightning 1."""
    lightning_1()
    sys.path[:0] = [str(project), str(project / "pytorchvideo_trainer")]
    stub("torchrecipes", "torchrecipes.core", "torchrecipes.utils")
    stub("torchrecipes.core.conf", ModuleConf=object, DataModuleConf=object)
    stub("torchrecipes.utils.config_utils", get_class_name_str=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
    from omegaconf import OmegaConf
    from pytorchvideo_trainer.datamodule.datamodule import PyTorchVideoDataModule
    from pytorchvideo_trainer.module.optimizer import OptimizerConf
    from pytorchvideo_trainer.module.video_classification import VideoClassificationModule

    conf = project / "pytorchvideo_trainer" / "pytorchvideo_trainer" / "conf"

    def read(name: str) -> Any:
        return OmegaConf.load(conf / f"{name}.yaml")

    videos = kinetics(folder)
    loaders, transforms = (
        read("datamodule/dataloader/kinetics_classification"),
        read("datamodule/transforms/kinetics_classification_slow"),
    )
    for split in ("train", "val", "test"):
        more = {
            "num_workers": 0,
            "batch_size": 2,
            "pin_memory": False,
            "drop_last": False,
            "collate_fn": None,
            "worker_init_fn": None,
        }
        loaders[split] = OmegaConf.merge(loaders[split], more)
        loaders[split].dataset.data_path = str(videos / ("train.csv" if split == "train" else "val.csv"))
        loaders[split].dataset.video_path_prefix = str(videos)
        loaders[split].dataset.clip_sampler.clip_duration = 0.9
        for one in transforms[split][0].transform:
            sizes = {"size": 32, "min_size": 36, "max_size": 40}
            one.update({name: sizes[name] for name in sizes if name in one})
    model = OmegaConf.merge(read("module/model/slow_r50"), {"model_num_class": 5, "head_pool_kernel_size": [8, 1, 1]})
    optim = OmegaConf.merge(OmegaConf.structured(OptimizerConf), read("module/optim/sgd"))
    schedule = read("module/lr_scheduler/cosine_with_warmup")
    schedule.update({"lr": optim.lr, "max_iters": 2, "warmup_iters": 1})
    metrics = [one for one in read("module/metrics/accuracy") if one.name == "accuracy_top1"]
    return style(
        (2, 8, 32),
        data=lambda: PyTorchVideoDataModule(loaders, transforms),
        module=lambda: VideoClassificationModule(
            model=model,
            loss=read("module/loss/cross_entropy"),
            optim=optim,
            metrics=metrics,
            lr_scheduler=schedule,
            num_classes=5,
        ),
    )


# --- Surgery ---


@way(
    "tecno",
    "tobiascz/TeCNO",
    "0c4313f3765348f5e42a8b7e9183639aea0bca4e",
    "surgical phases: the frames' features",
    needs=("pandas", "albumentations", "pycm"),
)
def tecno(project: Path, folder: Path) -> Style:
    """Its first stage; the second one trains on features, which have no frames or pixels.

    Stand-ins: a package that prints a summary, and names of Lightning 1.
    """
    lightning_1()
    sys.path.append(str(project))
    stub("torchsummary")
    import pandas as pd
    from datasets.cholec80_feature_extract import Cholec80FeatureExtract
    from models.cnn import TwoHeadResNet50Model
    from modules.cnn.feature_extraction import FeatureExtraction
    from PIL import Image

    tools = ("Grasper", "Bipolar", "Hook", "Scissors", "Clipper", "Irrigator", "SpecimenBag")
    rows = []
    for split in ("dataframes", "cholec_split_250px_25fps"):
        (folder / "cholec80" / split).mkdir(parents=True)
    for number, pixels in enumerate(numbered_frames(CLIPS + 6, 48, 64)):
        Image.fromarray(pixels).save(folder / "cholec80" / "cholec_split_250px_25fps" / f"{number}.png")
        video = 1 if number < CLIPS else 41 if number < CLIPS + 4 else 49
        labels = {f"tool_{tool}": number % (2 + place) == 0 for place, tool in enumerate(tools)}
        rows.append({"image_path": f"{number}.png", "class": number % 7, "video_idx": video} | labels)
    index = [*range(len(rows)), 1983913, 900090]  # the last two are those that the project leaves out
    table = pd.DataFrame(rows + rows[:2], index=index)
    table.to_pickle(folder / "cholec80" / "dataframes" / "cholec_split_250px_25fps.pkl")
    hparams = Namespace(
        data_root=str(folder),
        dataset_mode="img_multilabel",
        input_height=32,
        input_width=32,
        fps_sampling=25,
        fps_sampling_test=25,
        test_extract=False,
        out_features=7,
        pretrained=False,
        batch_size=2,
        num_workers=0,
        model_specific_batch_size_max=80,
        learning_rate=5e-4,
        num_tasks=1,
    )
    return style(
        (2, 1, 32),
        axes="NCHW",
        data=None,
        module=lambda: FeatureExtraction(hparams, TwoHeadResNet50Model(hparams), Cholec80FeatureExtract(hparams)),
    )


# --- Radar sequences ---


@way(
    "skillful-nowcasting",
    "openclimatefix/skillful_nowcasting",
    "7ded9a5440b3243ca4242aa642af525eff2650a0",
    "radar sequences: a GAN of forecasts",
    why="the frames of a forecast and the size of the latent are fixed",
    needs=("einops",),
    given="clips=[0, 1], " + ALL_FRAMES,
)
def skillful_nowcasting(project: Path, folder: Path) -> Style:
    """Stand-in: rows of random rain in the place of the network."""
    sys.path.append(str(project))

    class Rows:
        def shuffle(self, seed: int, buffer_size: int) -> Any:
            draw = np.random.default_rng(seed)
            return ({"radar_frames": draw.random((10, 128, 128, 1), np.float32)} for _ in range(1000))

    stub("wandb")
    stub("datasets", load_dataset=lambda *_, **__: Rows())
    from dgmr import DGMR

    train = load(project / "train" / "run.py", "train_run")
    train.NUM_TARGET_FRAMES = 6
    return style(
        (1, 6, 128),
        1,
        clips=16,
        axes="NTCHW",
        trainer={"limit_train_batches": 2, "limit_val_batches": 0},
        data=lambda: train.DGMRDataModule(num_workers=0, batch_size=1),
        module=lambda: DGMR(
            output_shape=128,
            forecast_steps=6,
            latent_channels=512,
            context_channels=256,
            generation_steps=1,
            num_samples=1,
        ),
    )


# --- Faces ---


@way(
    "marlin",
    "ControlNet/MARLIN",
    "c9d5698f98799828b5bcd0528e408a06e3f58502",
    "masked facial video: an adversarial autoencoder",
    why="two tables of positions, and a mask of patches from the dataset",
    needs=("einops", "cv2", "ffmpeg", "pandas"),
)
def marlin(project: Path, folder: Path) -> Style:
    """Its small model, with fewer layers."""
    sys.path[:0] = [str(project / "src"), str(project)]
    (project / "src" / "marlin_pytorch" / "version.txt").write_text("")  # as its `init.py` does
    import cv2
    import pandas as pd
    import yaml
    from dataset.youtube_face import YoutubeFaceDataModule
    from model.marlin import Marlin

    for one in ("crop_images_DB", "face_parsing_images_DB"):
        (folder / one / "face").mkdir(parents=True)
    for number, pixels in enumerate(numbered_frames(40, 224, 224)):
        cv2.imwrite(str(folder / "crop_images_DB" / "face" / f"{number:03}.jpg"), pixels)
        parts = np.random.default_rng(number).integers(0, 11, (1, 14, 14)).repeat(16, 1).repeat(16, 2)
        np.save(folder / "face_parsing_images_DB" / "face" / f"{number:03}.npy", parts)
    for split, number in (("train", 16), ("val", 2)):
        pd.DataFrame({"path": ["face"] * number}).to_csv(folder / f"{split}_set.csv")
    config = yaml.safe_load((project / "config" / "pretrain" / "marlin_vit_small.yaml").read_text())
    names = (
        "clip_frames",
        "temporal_sample_rate",
        "patch_size",
        "tubelet_size",
        "mask_percentage_target",
        "mask_strategy",
    )
    return style(
        (1, 16, 224),
        clips=16,
        data=lambda: YoutubeFaceDataModule(str(folder), batch_size=1, **{name: config[name] for name in names}),
        module=lambda: Marlin(
            encoder_embed_dim=96,
            encoder_depth=2,
            encoder_num_heads=3,
            decoder_embed_dim=48,
            decoder_depth=1,
            decoder_num_heads=3,
            learning_rate=1e-3,
            warmup_epochs=1,
            max_epochs=2,
            iter_per_epoch=16,
            d_steps=1,
            gp_weight=0.0,
        ),
    )


# --- Video transformers ---

TRANSFORMERS = "mx-mark/VideoTransformer-pytorch", "194cae69722eb5efad031c59f4ff03bc60633fa8"
TRANSFORMERS_NEED = "einops", "decord", "skimage", "timm", "pytorchvideo"


def video_transformer(project: Path, folder: Path, **configs: Any) -> Style:
    """Small models of its classes. Stand-ins: names of Lightning 1, in which its module is written."""
    lightning_1()
    sys.path.append(str(project))
    import model_trainer
    from data_trainer import KineticsDataModule

    small = {"embed_dims": 96, "num_heads": 4, "num_transformer_layers": 2}
    for name in ("TimeSformer", "ViViT"):
        setattr(model_trainer, name, partial(getattr(model_trainer, name), **small))
    own = model_trainer.VideoTransformer
    for name in ("training_epoch_end", "validation_epoch_end", "test_epoch_end"):  # they log, and save checkpoints
        delattr(own, name)

    class VideoTransformer(own):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
            super().optimizer_step(epoch, batch_idx, optimizer, 0, closure, False, False, False)

        def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
            """Lightning's own would call what the project calls `clip_gradients`."""

    labels = [*json.loads((project / "k400_classmap.json").read_text())][:5]
    videos = [
        write_video(folder / f"{n}.mp4", numbered_frames(40, 72, 96, first=n), codec="mpeg4") for n in range(CLIPS)
    ]
    (folder / "train.txt").write_text("".join(f"{video}\t{labels[n % 5]}\n" for n, video in enumerate(videos)))
    os.chdir(project)  # it looks for its list of classes there
    given = Namespace(
        **{
            "objective": "supervised",
            "eval_metrics": "finetune",
            "num_class": 5,
            "num_samples_per_cls": 10000,
            "img_size": 64,
            "num_frames": 8,
            "frame_interval": 4,
            "data_statics": "kinetics",
            "mixup": False,
            "auto_augment": None,
            "pretrain_pth": None,
            "weights_from": "imagenet",
            "optim_type": "adamw",
            "lr_schedule": "cosine",
            "lr": 1e-3,
            "layer_decay": 0.75,
            "min_lr": 1e-6,
            "weight_decay": 0.05,
            "weight_decay_end": 0.05,
            "clip_grad": 0,
            "warmup_epochs": 1,
            "batch_size": 2,
            "num_workers": 0,
            "attention_type": "divided_space_time",
        }
        | configs
    )
    return style(
        (2, given.num_frames, given.img_size),
        axes="NTCHW",
        data=lambda: KineticsDataModule(given, folder / "train.txt"),
        module=lambda: VideoTransformer(given, None, str(folder), do_eval=False, do_test=False),
        trainer={"limit_val_batches": 0},
    )


class Moments(torch.nn.Module):
    """What a user writes for a table of moments 1 x T x channels, and layers that reshape to a number of frames."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.layers = [layer for layer in model.modules() if hasattr(layer, "num_frames")]

    def set_grid(self, frames: int, size: int) -> None:
        self.frames = frames
        for layer in self.layers:
            layer.num_frames = frames

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        return interpolate(table.mT, self.frames, mode="linear").mT


@way(
    "video-transformer-timesformer",
    *TRANSFORMERS,
    "classes of videos: TimeSformer",
    why="a table of moments; the number of frames is a constant",
    needs=TRANSFORMERS_NEED,
    changes="a module with `set_grid` that sets the number of frames and interpolates the table",
)
def timesformer(project: Path, folder: Path) -> tuple[Style, Style]:
    one = video_transformer(project, folder, arch="timesformer")
    made = one.module()
    moments = Moments(made.model)
    moments.set_grid(8, 64)
    register_parametrization(made.model, "time_embed", moments, unsafe=True)
    return one, replace(one, module=lambda: deepcopy(made))


@way(
    "video-transformer-vivit",
    *TRANSFORMERS,
    "classes of videos: ViViT",
    why="two tables of positions; the number of frames is a constant",
    needs=TRANSFORMERS_NEED,
)
def vivit(project: Path, folder: Path) -> Style:
    return video_transformer(project, folder, arch="vivit", attention_type="fact_encoder")


# --- Lip reading ---


@way(
    "auto-avsr",
    "mpc001/auto_avsr",
    "182b62837773ab01052d4ac21ef1d2203ea7d267",
    "lip reading: clips of any length",
    lengths=(16, 28),
    why="mini-batches are made by the dataset, and loaders anew in each epoch",
    needs=("sentencepiece", "cv2"),
    changes="a `DataLoader` of its `AVDataset`, with `batch_size` and its `collate_pad`; its Trainer without "
    "`reload_dataloaders_every_n_epochs`",
)
def auto_avsr(project: Path, folder: Path) -> tuple[Style, Style]:
    """A shallower model. Stand-ins: no sound; PyAV's decoder, and a scheduler's argument `verbose`, which are gone."""
    stub("torchaudio", load=lambda *_, **__: (torch.zeros(1, 16000), 16000))
    sys.path.append(str(project))
    import torchvision

    torchvision.io.read_video = lambda path, **_: (torch.from_numpy(decode_all(path)),)
    scheduler = torch.optim.lr_scheduler.LRScheduler
    own = scheduler.__init__
    scheduler.__init__ = lambda self, optimizer, last_epoch=-1, verbose=None: own(self, optimizer, last_epoch)
    from datamodule import data_module
    from espnet.nets.pytorch_backend import e2e_asr_conformer as model

    data_module.random = importlib.import_module("random")
    for name, blocks in (("ConformerEncoder", 2), ("TransformerDecoder", 1)):
        full = getattr(model, name)
        setattr(model, name, lambda full=full, blocks=blocks, **how: full(**how | {"num_blocks": blocks}))
    module = load(project / "lightning.py", "auto_avsr_lightning").ModelModule
    (folder / "labels").mkdir()
    (folder / "lrs3").mkdir()
    lines = []
    for number in range(16):
        frames = (24, 20, 16, 28)[number % 4]
        write_video(
            folder / "lrs3" / f"{number}.mp4", numbered_frames(frames, 96, 96, first=number), codec="mpeg4", rate=25
        )
        lines.append(f"lrs3,{number}.mp4,{frames},{7 + number} {30 + number} 12\n")
    (folder / "labels" / "train.csv").write_text("".join(lines))
    args = Namespace(
        modality="video",
        root_dir=str(folder),
        train_file="train.csv",
        max_frames=56,
        lr=1e-3,
        weight_decay=0.03,
        warmup_epochs=1,
        max_epochs=2,
        ctc_weight=0.1,
    )
    make = partial(data_module.DataModule, args, train_num_buckets=2, num_workers=0)

    class Single(data_module.DataModule):
        def train_dataloader(self) -> Any:
            listed = data_module.AVDataset(
                args.root_dir,
                str(folder / "labels" / "train.csv"),
                "train",
                "video",
                None,
                data_module.VideoTransform("train"),
            )
            return torch.utils.data.DataLoader(listed, batch_size=1, shuffle=True, collate_fn=data_module.collate_pad)

    trainer = {
        "strategy": "ddp",
        "devices": 1,
        "gradient_clip_val": 10.0,
        "limit_val_batches": 0,
        "reload_dataloaders_every_n_epochs": 1,
    }
    one = style((1, 24, 88), clips=16, axes="NTCHW", trainer=trainer, module=lambda: module(args), data=make)
    return one, replace(
        one, data=lambda: Single(args, num_workers=0), trainer=trainer | {"reload_dataloaders_every_n_epochs": 0}
    )


# --- Behaviour of animals ---


@way(
    "deepethogram",
    "jbohnslav/deepethogram",
    "a77c77c4249b5ed027cb897f3607cdfd10d25479",
    "behaviour of animals: optical flow from stacked frames",
    why="loaders are made anew in each epoch; 11 frames are in the channels",
    needs=("vidio", "kornia", "omegaconf", "opencv_transforms"),
    given="long_cycle=LongCycle(((1, 0.5**0.5), (1, 1))), size_divisor=32",
    changes="its Trainer without `reload_dataloaders_every_n_epochs`",
)
def deepethogram(project: Path, folder: Path) -> tuple[Style, Style]:
    """Its fast models. Stand-in: no weights that were trained before."""
    sys.path.append(str(project))
    sys.modules["hydra"] = None  # it refuses to be imported where this package is installed
    import pandas as pd
    from deepethogram.data.augs import get_cpu_transforms
    from deepethogram.data.datasets import VideoDataset
    from deepethogram.feature_extractor.models.CNN import get_cnn
    from deepethogram.feature_extractor.models.hidden_two_stream import HiddenTwoStream, build_fusion_layer
    from deepethogram.feature_extractor.train import HiddenTwoStreamLightning, get_criterion, get_metrics
    from deepethogram.flow_generator.models.TinyMotionNet import TinyMotionNet
    from omegaconf import OmegaConf

    conf = project / "deepethogram" / "conf"
    small = {
        "compute": {"batch_size": 2, "num_workers": 0},
        "run": {"model": "feature_extractor"},
        "train": {
            "viz_metrics": False,
            "viz_examples": 0,
            "scheduler": "multistep",
            "milestones": [1],
            "regularization": {"style": "l2", "alpha": 1e-5},
        },
    }
    names = "config", "train", "augs", "model/feature_extractor"
    cfg = OmegaConf.merge(*(OmegaConf.load(conf / f"{name}.yaml") for name in names), small)
    video = write_video(folder / "mouse.avi", numbered_frames(CLIPS, 128, 128), codec="mpeg4")
    labels = pd.DataFrame({"background": [1, 0] * (CLIPS // 2), "rearing": [0, 1] * (CLIPS // 2)})
    labels.to_csv(folder / "mouse_labels.csv")
    transform = get_cpu_transforms(cfg.augs)["train"]
    videos = VideoDataset(
        [str(video)], [str(folder / "mouse_labels.csv")], frames_per_clip=11, reduce=False, transform=transform
    )

    def module() -> Any:
        parts = [
            get_cnn("resnet18", channels, reload_imagenet=False, num_classes=2, dropout_p=0.25) for channels in (3, 20)
        ]
        spatial, flow, fusion = build_fusion_layer(*parts, "average", 2)
        model = HiddenTwoStream(TinyMotionNet(num_images=11), spatial, flow, fusion, "resnet18")
        model.set_mode("classifier")
        metrics = get_metrics(mkdtemp(dir=folder), 2, 1, num_workers=0)
        criterion = get_criterion(cfg, model, {"pos_weight": np.ones(2)})
        return HiddenTwoStreamLightning(model, cfg.copy(), {"train": videos, "val": videos}, metrics, criterion)

    trainer = {"limit_val_batches": 0, "reload_dataloaders_every_n_epochs": 1}
    one = style((2, 11, 128), module=module, data=None, trainer=trainer)
    return one, replace(one, trainer=one.trainer | {"reload_dataloaders_every_n_epochs": 0})


@way(
    "lightning-pose",
    "paninski-lab/lightning-pose",
    "f54c4778ad1cc70af7be940919073793a70f3eef",
    "pose of animals: heat maps from frames around one",
    package="lightning.pytorch",
    why="the label is of the middle of 5 frames, heat maps follow, and a callback thaws the backbone by epochs",
    needs=("imgaug", "jaxtyping", "kornia", "omegaconf", "pandas"),
    given="clips={'images': 'TCHW', 'heatmaps': 'KHW'}, follow={'keypoints': 'xyxyxyxy'}, "
    "long_cycle=LongCycle(((1, 0.5**0.5), (1, 1))), size_divisor=32, lr_by_hand='run'",
)
def lightning_pose(project: Path, folder: Path) -> Style:
    """Its recurrent tracker, and its callback that thaws the backbone."""
    sys.path.append(str(project))
    stub("aniposelib", "aniposelib.cameras", "moviepy", "moviepy.editor", "segment_anything")
    import imgaug.augmenters as iaa
    import pandas as pd
    from lightning_pose.callbacks import UnfreezeBackbone
    from lightning_pose.data.datamodules import BaseDataModule
    from lightning_pose.data.datasets import HeatmapDataset
    from lightning_pose.losses.factory import LossFactory
    from lightning_pose.models.heatmap_tracker_mhcrnn import HeatmapTrackerMHCRNN
    from PIL import Image

    (folder / "labeled-data").mkdir()
    names = [f"labeled-data/img{number:08d}.png" for number in range(CLIPS + 20)]
    for name, pixels in zip(names, numbered_frames(len(names), 128, 128), strict=True):
        Image.fromarray(pixels).save(folder / name)
    points = pd.MultiIndex.from_product([["scorer"], ["paw", "nose", "ear", "tail"], ["x", "y"]])
    places = np.random.default_rng(0).uniform(20, 100, (len(names), 8))
    pd.DataFrame(places, names, points).to_csv(folder / "CollectedData.csv")

    def data() -> Any:
        transform = iaa.Sequential([iaa.Fliplr(0.0)])
        frames = HeatmapDataset(folder, "CollectedData.csv", 128, 128, imgaug_transform=transform, do_context=True)
        return BaseDataModule(
            frames,
            train_batch_size=2,
            val_batch_size=2,
            num_workers=0,
            train_probability=0.8,
            val_probability=0.1,
            train_frames=40,
        )

    def module() -> Any:
        losses = LossFactory({"heatmap_mse": {"log_weight": 0.0}}, None)
        return HeatmapTrackerMHCRNN(
            num_keypoints=4,
            loss_factory=losses,
            backbone="resnet18",
            pretrained=False,
            optimizer_params={"learning_rate": 1e-3},
            lr_scheduler_params={"milestones": [1], "gamma": 0.5},
        )

    return style(
        (2, 5, 128), clips=40, axes="NTCHW", module=module, data=data, callbacks=lambda: [UnfreezeBackbone(1)], lr=False
    )


# --- Self-supervision ---


@way(
    "lightly",
    "lightly-ai/lightly",
    "e8d317fc5a87f4387a85a35e689869039ec249ee",
    "self-supervision: SimCLR of the frames of videos",
    why="which of the views are clips can't be seen",
    needs=("lightly_utils", "aenum"),
    given="clips=[0]",
)
def lightly(project: Path, folder: Path) -> Style:
    """The class of its example, whose script would begin to download and to train. Stand-in: PyAV's decoder."""
    sys.path.append(str(project))
    import torchvision

    torchvision.io.read_video_timestamps = lambda path, **_: ([*range(8)], 8.0)
    torchvision.io.read_video = lambda path, start_pts, **_: (torch.from_numpy(decode_all(path)[start_pts]), None, {})
    from lightly.data import LightlyDataset
    from lightly.transforms.simclr_transform import SimCLRTransform

    text = (project / "examples" / "pytorch_lightning" / "simclr.py").read_text()
    tree = ast.parse(text)
    tree.body = [part for part in tree.body if isinstance(part, (ast.Import, ast.ImportFrom, ast.ClassDef))]
    example: dict[str, Any] = {"__name__": "simclr_example"}
    exec(compile(tree, "simclr.py", "exec"), example)
    for number in range(4):
        write_video(folder / f"{number}.mp4", numbered_frames(8, 48, 64, first=number), codec="mpeg4", rate=1)

    def data() -> Any:
        frames = LightlyDataset(str(folder), transform=SimCLRTransform(input_size=32))
        return torch.utils.data.DataLoader(frames, batch_size=2, shuffle=True, drop_last=True)

    return style((2, 1, 32), axes="NCHW", module=example["SimCLR"], data=data)

"""Models of other libraries, frame by frame or on clips: what trains right is not refused for what it computes.

A model may refuse a grid by an error of its own, as those for one size of image do.
"""

import re

import lightning as L
import pytest
import torch

from lightning_multigrid.schedule import BatchShape
from lightning_multigrid.training.rehearsal.check_grids import check_grids
from tests.helpers.tiny import trainer


class Frames(L.LightningModule):
    """A model of images, called for each frame; its scores, or what it gives in their place, are averaged."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        scores = self.model(batch.transpose(1, 2).flatten(0, 1))
        scores = getattr(scores, "logits", scores)
        return scores.unflatten(0, (len(batch), -1)).mean()


def said_of(module, frames, size, coarse):
    """The error that refuses the coarse grids; None if there is none."""

    def batches(shapes):
        generator = torch.Generator().manual_seed(0)
        return {
            shape: torch.rand(shape.clips, 3, shape.frames, *(shape.size,) * 2, generator=generator) for shape in shapes
        }

    grids = [BatchShape(2, frames, size), *(BatchShape(2, *grid) for grid in coarse)]
    try:
        check_grids(module, grids, batches, trainer())
    except ValueError as error:
        return str(error)
    return None


LARGE = 30e6  # parameters: what is larger takes minutes
SMALL = ["test_", "atto", "nano", "xxs", "zero", "tiny", "_t", "_xs", "_s", "small", "lite", "b0", "mini"]
SMALL += ["050", "18", "26"]


def small(name):
    return next((rank for rank, part in enumerate(SMALL) if part in name), len(SMALL)), len(name), name


def timm_models():
    """A small model of each module of timm."""
    timm = pytest.importorskip("timm")
    models = (timm.list_models(module=module) for module in timm.list_modules())
    return [min(names, key=small) for names in models if names]


def refused(said):
    """Whether a script is refused for what it computes, and not because it fails."""
    return said is not None and re.search("counts places|points of the plan", said)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("tenth", range(10))
def test_models_of_timm(tenth):
    names = timm_models()[tenth::10]
    import timm

    found = {}
    for name in names:
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=5)
        if sum(parameter.numel() for parameter in model.parameters()) > LARGE:
            continue
        config = timm.data.resolve_model_data_config(model)
        fixed = model.pretrained_cfg.get("fixed_input_size")
        size = config["input_size"][1] if fixed else 96
        said = said_of(Frames(model), 2, size, [(1, size)] if fixed else [(1, size), (2, 64)])
        if refused(said):
            found[name] = said
    assert not found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_models_of_transformers():
    transformers = pytest.importorskip("transformers")
    names = transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    small = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    tried, found = 0, {}
    for name in names:
        torch.manual_seed(0)
        try:
            config = transformers.AutoConfig.for_model(name, num_labels=5)
            if isinstance(getattr(config, "hidden_size", None), int):
                for key in small.keys() & vars(config).keys():
                    setattr(config, key, small[key])
            with torch.device("meta"):
                model = transformers.AutoModelForImageClassification.from_config(config)
            if sum(parameter.numel() for parameter in model.parameters()) > LARGE:
                continue
            model = transformers.AutoModelForImageClassification.from_config(config)
        except (ImportError, TypeError, ValueError):  # it needs a library, or parts that are named
            continue
        tried += 1
        size = getattr(config, "image_size", 96)
        size = size if isinstance(size, int) else 96
        said = said_of(Frames(model), 2, size, [(1, size), (2, size // 64 * 32)])
        if refused(said):
            found[name] = said
    assert not found
    assert tried >= 25

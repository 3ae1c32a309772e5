"""`PretrainedWeights`: starts training from published weights, by a config."""

from typing_extensions import override

from lightning_multigrid.files import path_argument
from lightning_multigrid.host import Callback, LightningModule, Trainer
from lightning_multigrid.models import load_weights


class PretrainedWeights(Callback):
    """Loads weights into the model when `fit` starts, unless it resumes a checkpoint; names the tensors left out.

    Only `fit` needs the file. The order of callbacks does not matter.

    Args:
        path: Weights of PySlowFast, pytorchvideo or this package, of a torchvision ImageNet ResNet (inflated over
            time), or of the Hugging Face Hub for a model of transformers; see `load_weights`.
        submodule: Where the model is in the LightningModule.

    Raises:
        ValueError: If no tensor fits, when `fit` starts.
    """

    def __init__(self, path: str, submodule: str = "model") -> None:
        self.path, self.submodule = path_argument("path", path), submodule

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path is None:
            load_weights(pl_module.get_submodule(self.submodule), self.path)

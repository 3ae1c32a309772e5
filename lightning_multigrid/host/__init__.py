"""Lightning under the name by which the script imports it: `lightning.pytorch` or `pytorch_lightning`.

The two have the same code, but different classes, and each refuses the other's modules. The sub-packages below take
Lightning's names from `package.py`; only the command line always uses `lightning`.
"""

from lightning_multigrid.host.package import (
    BasePredictionWriter,
    Callback,
    DummyLogger,
    LightningDataModule,
    LightningModule,
    LRSchedulerConfig,
    MisconfigurationException,
    ModelCheckpoint,
    OptimizerLRScheduler,
    SIGTERMException,
    TorchCheckpointIO,
    Trainer,
    TrainerFn,
    callbacks_of,
    is_a,
    is_overridden,
    tell,
    tell_above_bar,
)

__all__ = ["BasePredictionWriter", "Callback", "DummyLogger", "LRSchedulerConfig", "LightningDataModule"]
__all__ += ["LightningModule", "MisconfigurationException", "ModelCheckpoint", "OptimizerLRScheduler"]
__all__ += ["SIGTERMException", "TorchCheckpointIO", "Trainer", "TrainerFn", "callbacks_of", "is_a", "is_overridden"]
__all__ += ["tell", "tell_above_bar"]

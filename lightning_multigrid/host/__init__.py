"""Lightning under the name by which the script imports it: `lightning.pytorch` or `pytorch_lightning`.

The two have the same code, but different classes, and each refuses the other's modules. The sub-packages below take
Lightning's names from here; only the command line always uses `lightning`. A script's is `pytorch_lightning` if it has
imported that one only. The other one is not imported: that takes a second, and moves the messages of both to the logger
of the last. `package.py` has what holds for either one.
"""

import sys
from typing import TYPE_CHECKING

from lightning_multigrid.host.package import callbacks_of, is_a, is_overridden, tell, tell_above_bar

if not TYPE_CHECKING and "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
    from pytorch_lightning.callbacks import BasePredictionWriter, ModelCheckpoint
    from pytorch_lightning.loggers.logger import DummyLogger
    from pytorch_lightning.plugins.io import TorchCheckpointIO
    from pytorch_lightning.trainer.states import TrainerFn
    from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
    from pytorch_lightning.utilities.types import LRSchedulerConfig, OptimizerLRScheduler
else:
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
    from lightning.pytorch.callbacks import BasePredictionWriter, ModelCheckpoint
    from lightning.pytorch.loggers.logger import DummyLogger
    from lightning.pytorch.plugins.io import TorchCheckpointIO
    from lightning.pytorch.trainer.states import TrainerFn
    from lightning.pytorch.utilities.exceptions import SIGTERMException
    from lightning.pytorch.utilities.types import LRSchedulerConfig, OptimizerLRScheduler

__all__ = ["BasePredictionWriter", "Callback", "DummyLogger", "LRSchedulerConfig", "LightningDataModule"]
__all__ += ["LightningModule", "MisconfigurationException", "ModelCheckpoint", "OptimizerLRScheduler"]
__all__ += ["SIGTERMException", "TorchCheckpointIO", "Trainer", "TrainerFn", "callbacks_of", "is_a", "is_overridden"]
__all__ += ["tell", "tell_above_bar"]

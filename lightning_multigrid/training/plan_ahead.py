"""The plan of a script before its `fit`: made as `fit` makes it, and nothing is left changed."""

import warnings
from typing import Any

from torch.utils.data import DataLoader

from lightning_multigrid.host import LightningDataModule, LightningModule, Trainer, tell
from lightning_multigrid.schedule import Plan
from lightning_multigrid.training.arguments import Arguments
from lightning_multigrid.training.begin import plan_of
from lightning_multigrid.training.measured import measure
from lightning_multigrid.training.script.recipe import user_loader
from lightning_multigrid.training.script.refusals import refuse_unsupported
from lightning_multigrid.training.told import tell_plan
from lightning_multigrid.training.trainer.changes import Changes
from lightning_multigrid.training.trainer.lightning_internals import attach, replace_loader


def plan_ahead(
    arguments: Arguments,
    trainer: Trainer,
    module: LightningModule,
    data: DataLoader[Any] | LightningDataModule | None,
    measured: bool = False,
) -> Plan:
    """Returns the plan of `trainer.fit(module, data)`; says what it does, and if `measured`, what time it takes."""
    with Changes() as changes:
        attach(trainer, module, changes)
        trainer.datamodule = data if isinstance(data, LightningDataModule) else None  # type: ignore[attr-defined]
        refuse_unsupported(trainer, module)
        loader = _training_loader(trainer, module, data, changes)
        replace_loader(trainer, loader, changes)
        make_optimizers(trainer)
        script = user_loader(loader, trainer, arguments.clips_per_epoch)
        world = trainer.num_devices * trainer.num_nodes
        plan, dataset = plan_of(arguments, trainer, module, script, world, seed=arguments.seed or 0)
        tell_plan(arguments, trainer, plan)
        if measured:
            tell(str(measure(plan, dataset, trainer, module, script)))
        return plan


def make_optimizers(trainer: Trainer) -> None:
    """Makes the optimizers and schedulers of the module as `fit` does; it may ask for the length of an epoch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(does not have many workers|smaller than the logging interval)")
        trainer.strategy.setup_optimizers(trainer)


def _training_loader(trainer: Trainer, module: LightningModule, data: Any, changes: Changes) -> Any:
    if data is None:
        return module.train_dataloader()
    if not isinstance(data, LightningDataModule):
        return data
    changes.set_attribute(data, "trainer", trainer)
    data.prepare_data()
    data.setup("fit")
    return data.train_dataloader()

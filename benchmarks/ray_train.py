"""Compares a training under Ray Train with the same one under Lightning's own DDP. Needs `pip install "ray[train]"`.

    python benchmarks/ray_train.py --json ray_train.json

Two ranks on the CPU train a small 3D CNN with BatchNorm over both of them, dropout and noise from torch's random state:

- `ddp`: by Lightning's own launcher;
- `ray`: by `TorchTrainer` with `RayDDPStrategy`, `RayLightningEnvironment` and `prepare_trainer`. A
  `RayTrainReportCallback` stores a checkpoint after each epoch;
- `continued`: a new `TorchTrainer` that starts from one of these checkpoints;
- `killed`: a rank kills itself in the middle of an epoch, and `FailureConfig(max_failures=1)` starts both again.

Shapes and LR of the first must be those of the plan. The others must have its steps on each rank: indices of the clips,
their shape, LR and loss to the last bit, and in the end all its weights and running statistics.
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as Ray and Lightning do for their ranks
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import lightning as L
import torch
from measuring import write_json
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import Baseline, BatchShape, MultigridCallback, MultigridSchedule

CLIPS, CLASSES, EPOCHS, RANKS, MILESTONES = 203, 4, 4, 2, (2, 3)
SCHEDULE = MultigridSchedule(Baseline(BatchShape(4, 8, 32), EPOCHS, MILESTONES))


class Classifier(L.LightningModule):
    """A small 3D CNN. Each rank writes a line for each step, and its weights in the end."""

    def __init__(self, folder: Path, dies: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv3d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm3d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(8, CLASSES),
        )
        self.folder, self.dies, self.step = folder, dies, None

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y, index = batch
        loss = nn.functional.cross_entropy(self.net(x + 0.1 * torch.randn_like(x)), y)
        self.step = [self.current_epoch, batch_idx, index.tolist(), list(x.shape), loss]
        return loss

    def note_step(self, optimizer: SGD, *_: object) -> None:
        """With the LR in use, which is the group's while the optimizer steps."""
        *step, loss = self.step
        with (self.folder / f"steps-{self.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps([*step, loss.item().hex(), float(optimizer.param_groups[0]["lr"]).hex()]) + "\n")
        died = self.folder / "died"
        if self.dies and self.global_rank == 1 and step[:2] == [3, 2] and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("val", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.1, momentum=0.9)
        optimizer.register_step_post_hook(self.note_step)
        return [optimizer], [MultiStepLR(optimizer, MILESTONES)]

    def on_train_end(self) -> None:
        torch.save(self.state_dict(), self.folder / f"weights-{self.global_rank}.pt")


def clips() -> TensorDataset:
    """Noise whose class is in its mean: clips C x T x H x W, labels, and their own index."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (CLIPS,), generator=generator)
    noise = torch.randn(CLIPS, 3, 8, 32, 32, generator=generator)
    return TensorDataset(noise + labels.view(-1, 1, 1, 1, 1), labels, torch.arange(CLIPS))


def trainer(*callbacks: L.Callback, **arguments: Any) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks],
        **arguments,
    )


def fit(host: L.Trainer, folder: Path, dies: bool = False, resume: Path | None = None) -> None:
    data = clips()
    loaders = DataLoader(data, 4, shuffle=True, num_workers=1, persistent_workers=True), DataLoader(data, 4)
    host.fit(Classifier(folder, dies), *loaders, ckpt_path=resume)


class Save(L.Callback):
    """Saves when `RayTrainReportCallback` does: running statistics go on from what a checkpoint of all ranks holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.save_checkpoint(self.folder / f"{trainer.current_epoch}.ckpt")


def by_lightning(folder: Path) -> None:
    L.seed_everything(1)
    fit(trainer(MultigridCallback(), Save(folder), devices=RANKS, strategy="ddp"), folder)


def on_ray(config: dict[str, Any]) -> None:
    """What each of Ray's workers runs."""
    import ray.train
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer

    L.seed_everything(1)
    both = MultigridCallback(), RayTrainReportCallback()
    host = prepare_trainer(trainer(*both, strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()]))
    stored = ray.train.get_checkpoint()  # of this run, after a failure
    resume = config["resume"] if stored is None else Path(stored.path) / RayTrainReportCallback.CHECKPOINT_NAME
    fit(host, config["folder"], config["dies"], resume)


def by_ray(folder: Path, *, dies: bool = False, resume: Path | None = None) -> list[Path]:
    """Trains with Ray; returns the paths of all checkpoints, the first one first."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    result = TorchTrainer(
        on_ray,
        train_loop_config={"folder": folder, "dies": dies, "resume": resume},
        scaling_config=ScalingConfig(num_workers=RANKS),
        run_config=RunConfig("ray", str(folder), failure_config=FailureConfig(max_failures=int(dies))),
    ).fit()
    return [Path(checkpoint.path) / "checkpoint.ckpt" for checkpoint, _ in result.best_checkpoints]


def seen(folder: Path) -> tuple[list[dict[tuple[int, int], list[Any]]], list[dict[str, torch.Tensor]], int]:
    """Steps of each rank by their places, of which the last ones count, weights, and how many steps were repeated."""
    files = [(folder / f"steps-{rank}.jsonl").read_text().splitlines() for rank in range(RANKS)]
    steps = [{(line[0], line[1]): line[2:] for line in map(json.loads, lines)} for lines in files]
    return steps, [torch.load(folder / f"weights-{rank}.pt") for rank in range(RANKS)], len(files[0]) - len(steps[0])


def check_plan(steps: dict[tuple[int, int], list[Any]]) -> None:
    """Checks shapes and LR of a rank's steps against the schedule."""
    of_rank = CLIPS // RANKS
    planned = {
        (epoch, number): (step, SCHEDULE.baseline_epoch(epoch + step.offset / of_rank))
        for epoch in range(SCHEDULE.epochs)
        for number, step in enumerate(SCHEDULE.steps(epoch, of_rank))
    }
    assert steps.keys() == planned.keys()
    for place, (step, baseline_epoch) in planned.items():
        _, shape, _, lr = steps[place]
        assert shape == [step.shape.clips, 3, step.shape.frames, step.shape.size, step.shape.size], place
        expected = 0.1 * 0.1 ** sum(baseline_epoch >= milestone for milestone in MILESTONES) * step.lr_scale
        assert abs(float.fromhex(lr) / expected - 1) < 1e-9, (place, float.fromhex(lr), expected)


def compare(folder: Path) -> dict[str, Any]:
    for name in ("ddp", "ray", "continued", "killed"):
        (folder / name).mkdir()
    subprocess.run([sys.executable, __file__, "--ddp", str(folder / "ddp")], check=True)
    steps, weights, _ = seen(folder / "ddp")
    check_plan(steps[0])
    checkpoints = by_ray(folder / "ray")
    by_ray(folder / "continued", resume=checkpoints[len(checkpoints) // 2 - 1])
    by_ray(folder / "killed", dies=True)
    runs = {}
    for name in ("ray", "continued", "killed"):
        these, trained, repeated = seen(folder / name)
        same = all(
            torch.equal(value, expected[key])
            for expected, found in zip(weights, trained, strict=True)
            for key, value in found.items()
        )
        own = [{place: steps[rank][place] for place in these[rank]} for rank in range(RANKS)]
        first = min(these[0])
        assert (repeated > 0) == (name == "killed"), f"{name}: {repeated} steps were repeated"
        runs[name] = {"from epoch": first[0], "steps": len(these[0]), "repeated": repeated}
        runs[name]["identical"] = same and these == own and max(these[0]) == max(steps[0])
    grids = {tuple(shape[2:4]) for _, shape, _, _ in steps[0].values()}
    return {"ranks": RANKS, "steps": len(steps[0]), "grids": sorted(grids), "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--ddp", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ddp:
        by_lightning(options.ddp)
        return
    if importlib.util.find_spec("ray") is None:
        parser.error('Ray is not installed: pip install "ray[train]"')
    with tempfile.TemporaryDirectory() as folder:
        report = compare(Path(folder))
    if options.json:
        write_json(options.json, "ray", {"device": "cpu"}, report, ["ray"])
    for name, run in report["runs"].items():
        said = "identical" if run["identical"] else "DIFFERENT"
        print(f"{name}: {run['steps']} steps from epoch {run['from epoch']} on, {run['repeated']} repeated: {said}")
    if not all(run["identical"] for run in report["runs"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()

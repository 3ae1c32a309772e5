"""What each of Lightning's callbacks, loggers, tuners and Trainer arguments means under multigrid training.

`python -m tests.helpers.meanings` writes the table of `docs/differences.md`. A name that Lightning adds fails
`tests/repository/test_meanings.py` until somebody has thought about it, and has said here what it means.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import Trainer, callbacks, loggers, profilers
from lightning.pytorch.tuner import Tuner

AS_EVER = ""  # what it does has nothing to do with epochs, steps, grids or the LR
PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
BEGIN, END = "<!-- made by tests/helpers/meanings.py -->", "<!-- end -->"

_CLOCK = "counts epochs and steps of this run"
_THAWS = "thaws layers at epochs of this run; `fit` says so"
_AVERAGES = "averages over steps of this run; `fit` says so"
_STRATEGY = "DDP and FSDP; [DeepSpeed and tensor parallelism](clusters.md) are refused"
_LENGTH = "the baseline's"
_TRIES = "tries the baseline's mini-batches"
_GRIDS = "values differ from grid to grid"
_DEVICES = "[the LR is not scaled with them](clusters.md)"
_BATCHES = "mini-batches of the baseline"
_TIME = "a run that it ends lacks the fine grids; `fit` says so"
_X = "the x axis is steps of this run; `multigrid/phase` is the phase"

CALLBACKS = {
    "BackboneFinetuning": _THAWS,
    "BaseFinetuning": _THAWS,
    "BasePredictionWriter": AS_EVER,
    "BatchSizeFinder": _TRIES,
    "Callback": _CLOCK,
    "Checkpoint": _CLOCK,
    "DeviceStatsMonitor": _GRIDS,
    "EMAWeightAveraging": _AVERAGES,
    "EarlyStopping": "patience counts in the last phase, in epochs of the baseline; `fit` says so",
    "GradientAccumulationScheduler": "refused",
    "LambdaCallback": _CLOCK,
    "LearningRateFinder": _TRIES,
    "LearningRateMonitor": "the baseline's LR; `multigrid/lr` is the LR in use",
    "ModelCheckpoint": "epochs of the baseline, steps of this run; monitor a validation, as a training metric compares "
    "coarse grids with fine ones",
    "ModelPruning": "prunes at the end of each epoch of this run; `apply_pruning` may choose",
    "ModelSummary": AS_EVER,
    "OnExceptionCheckpoint": AS_EVER,
    "ProgressBar": AS_EVER,
    "RichModelSummary": AS_EVER,
    "RichProgressBar": AS_EVER,
    "SpikeDetection": "the loss may jump where a phase begins",
    "StochasticWeightAveraging": "refused",
    "TQDMProgressBar": AS_EVER,
    "ThroughputMonitor": _GRIDS,
    "Timer": _TIME,
    "WeightAveraging": _AVERAGES,
}
LOGGERS = {
    **dict.fromkeys(("CSVLogger", "CometLogger", "LitLogger", "Logger", "MLFlowLogger"), _X),
    **dict.fromkeys(("NeptuneLogger", "TensorBoardLogger", "WandbLogger"), _X),
}
PROFILERS = dict.fromkeys(("Profiler", "AdvancedProfiler", "PassThroughProfiler", "PyTorchProfiler"), AS_EVER) | {
    "SimpleProfiler": AS_EVER,
    "XLAProfiler": AS_EVER,
}
TUNERS = {"lr_find": _TRIES, "scale_batch_size": _TRIES}
ARGUMENTS = {
    "accelerator": AS_EVER,
    "accumulate_grad_batches": "mini-batches of one shape make a step",
    "barebones": AS_EVER,
    "benchmark": "cuDNN tries its kernels for each grid",
    "callbacks": AS_EVER,
    "check_val_every_n_epoch": "epochs of the baseline",
    "default_root_dir": AS_EVER,
    "detect_anomaly": AS_EVER,
    "deterministic": AS_EVER,
    "devices": _DEVICES,
    "enable_autolog_hparams": AS_EVER,
    "enable_checkpointing": AS_EVER,
    "enable_model_summary": AS_EVER,
    "enable_progress_bar": AS_EVER,
    "fast_dev_run": "one mini-batch, of the coarsest grid",
    "gradient_clip_algorithm": AS_EVER,
    "gradient_clip_val": "gradients of more clips are less noisy, so fewer are clipped",
    "inference_mode": AS_EVER,
    "limit_predict_batches": AS_EVER,
    "limit_test_batches": AS_EVER,
    "limit_train_batches": _BATCHES,
    "limit_val_batches": AS_EVER,
    "log_every_n_steps": "steps of the baseline",
    "logger": AS_EVER,
    "max_epochs": f"{_LENGTH}; training has `epoch_factor` times as many",
    "max_steps": f"{_LENGTH}; training has fewer",
    "max_time": _TIME,
    "min_epochs": "epochs of the baseline",
    "min_steps": "steps of the baseline",
    "model_registry": AS_EVER,
    "num_nodes": _DEVICES,
    "num_sanity_val_steps": AS_EVER,
    "overfit_batches": _BATCHES,
    "plugins": AS_EVER,
    "precision": AS_EVER,
    "profiler": _GRIDS,
    "reload_dataloaders_every_n_epochs": "refused",
    "strategy": _STRATEGY,
    "sync_batchnorm": "refused on several devices: those with few clips share statistics anyway",
    "use_distributed_sampler": "`False` is refused on several devices without a sampler of your own",
    "val_check_interval": "mini-batches of the baseline; a time is refused",
}
OF_OTHERS = {
    "`current_epoch`, `global_step` in your code": _CLOCK,
    "an LR that your code writes": "refused, unless [`lr_by_hand`](script.md) says that it goes by this run",
    "`ReduceLROnPlateau`": "epochs of the baseline; its metric may stand still until a coarse phase ends",
    "timm's `ModelEma`": _AVERAGES,
    "pruning callbacks of sweeps (Optuna, Ray Tune, W&B)": "epochs of this run: compare the ends of trials, unless all "
    "have one plan",
}


def lightnings() -> dict[str, tuple[Mapping[str, str], set[str]]]:
    """What is said of each kind, and the names that the installed Lightning has."""
    public = {name for name, _ in inspect.getmembers(Tuner, inspect.isfunction) if not name.startswith("_")}
    return {
        "callbacks": (CALLBACKS, set(callbacks.__all__)),
        "loggers": (LOGGERS, set(loggers.__all__)),
        "profilers": (PROFILERS, set(profilers.__all__)),
        "`Tuner`": (TUNERS, public),
        "arguments of the Trainer": (ARGUMENTS, {*inspect.signature(Trainer.__init__).parameters} - {"self"}),
    }


def table() -> str:
    """The table, as Markdown: a row for all that have one meaning, without what is as ever."""
    rows: dict[str, list[str]] = {}
    for said, _ in lightnings().values():
        for name, meaning in sorted(said.items()):
            rows.setdefault(meaning, []).append(f"`{name}`")
    for name, meaning in OF_OTHERS.items():
        rows.setdefault(meaning, []).append(name)
    told = sorted((names, meaning) for meaning, names in rows.items() if meaning != AS_EVER)
    lines = [f"| {', '.join(names)} | {meaning} |" for names, meaning in told]
    return "\n".join(["| | under multigrid |", "| --- | --- |", *lines])


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()

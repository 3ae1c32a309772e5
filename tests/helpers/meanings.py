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

_CLOCK = "epochs and steps of this run"
_THAWS = "thaws at epochs of this run; `fit` says so"
_AVERAGES = "averages over steps of this run; `fit` says so"
_STRATEGY = "DDP and FSDP; [DeepSpeed and tensor parallelism](clusters.md) are refused"
_LENGTH = "the baseline's"
_X = "the x axis is steps of this run, of which `multigrid/phase` says the phase"

CALLBACKS = {
    "BackboneFinetuning": _THAWS,
    "BaseFinetuning": _THAWS,
    "BasePredictionWriter": AS_EVER,
    "BatchSizeFinder": "tries the baseline's mini-batches; coarse grids take about as much memory (Eq. 1)",
    "Callback": f"your own: {_CLOCK}",
    "Checkpoint": f"your own: {_CLOCK}",
    "DeviceStatsMonitor": "differs from grid to grid",
    "EMAWeightAveraging": _AVERAGES,
    "EarlyStopping": "patience counts in the last phase, in epochs of the baseline; `fit` says so",
    "GradientAccumulationScheduler": "refused",
    "LambdaCallback": f"your own: {_CLOCK}",
    "LearningRateFinder": "tries the baseline's mini-batches, so it finds the baseline's LR",
    "LearningRateMonitor": "the baseline's LR; `multigrid/lr` is the LR in use",
    "ModelCheckpoint": "epochs of the baseline, steps of this run; the best by a *training* metric compares coarse "
    "grids with fine ones, so monitor a validation",
    "ModelPruning": "prunes at the end of each epoch of this run, so 1.5 times as often (`apply_pruning` may choose); "
    "`fit` says so",
    "ModelSummary": AS_EVER,
    "OnExceptionCheckpoint": AS_EVER,
    "ProgressBar": AS_EVER,
    "RichModelSummary": AS_EVER,
    "RichProgressBar": AS_EVER,
    "SpikeDetection": "the loss may jump where a phase begins",
    "StochasticWeightAveraging": "refused",
    "TQDMProgressBar": AS_EVER,
    "ThroughputMonitor": "a window mixes grids: samples per second differ, and FLOPs of a sample are not constant",
    "Timer": "time, as ever; a run that it ends lacks the fine grids, and `fit` says so",
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
TUNERS = {
    "lr_find": "as `LearningRateFinder`",
    "scale_batch_size": "as `BatchSizeFinder`",
}
ARGUMENTS = {
    "accelerator": AS_EVER,
    "accumulate_grad_batches": "mini-batches of one shape make a step; the LR grows as without",
    "barebones": AS_EVER,
    "benchmark": "cuDNN tries its kernels for each grid",
    "callbacks": "see above",
    "check_val_every_n_epoch": "epochs of the baseline",
    "default_root_dir": AS_EVER,
    "detect_anomaly": AS_EVER,
    "deterministic": AS_EVER,
    "devices": "as ever; [the LR is not scaled with them](clusters.md)",
    "enable_autolog_hparams": AS_EVER,
    "enable_checkpointing": AS_EVER,
    "enable_model_summary": AS_EVER,
    "enable_progress_bar": AS_EVER,
    "fast_dev_run": "one mini-batch, of the coarsest grid",
    "gradient_clip_algorithm": AS_EVER,
    "gradient_clip_val": "as ever; gradients of more clips are less noisy, and so are clipped less often",
    "inference_mode": AS_EVER,
    "limit_predict_batches": AS_EVER,
    "limit_test_batches": AS_EVER,
    "limit_train_batches": "batches of the baseline",
    "limit_val_batches": AS_EVER,
    "log_every_n_steps": "steps of the baseline",
    "logger": "see above",
    "max_epochs": f"{_LENGTH}; training has `epoch_factor` times as many",
    "max_steps": f"{_LENGTH}; training has fewer",
    "max_time": "time, as ever; a run that it ends lacks the fine grids, and `fit` says so",
    "min_epochs": "the baseline's, at its clock",
    "min_steps": "steps of the baseline",
    "model_registry": AS_EVER,
    "num_nodes": "as `devices`",
    "num_sanity_val_steps": AS_EVER,
    "overfit_batches": "batches of the baseline",
    "plugins": AS_EVER,
    "precision": AS_EVER,
    "profiler": "as ever; times differ from grid to grid",
    "reload_dataloaders_every_n_epochs": "refused",
    "strategy": _STRATEGY,
    "sync_batchnorm": "on several devices refused: devices with few clips share statistics anyway",
    "use_distributed_sampler": "`False` on several devices is refused without a sampler of your own",
    "val_check_interval": "batches of the baseline",
}
OF_OTHERS = {
    "pruning callbacks of sweeps (Optuna, Ray Tune, W&B)": "trials are compared at epochs of this run, where they are "
    "on the same grid only if all have one plan; else compare their ends",
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
    """The table, as Markdown: a row for all that have one meaning."""
    lines = ["| of Lightning | | under multigrid |", "| --- | --- | --- |"]
    for kind, (said, _) in lightnings().items():
        meanings: dict[str, list[str]] = {}
        for name, meaning in sorted(said.items()):
            meanings.setdefault(meaning, []).append(f"`{name}`")
        rows = sorted(meanings.items(), key=lambda row: (row[0] == AS_EVER, row[1]))
        lines += [f"| {kind} | {', '.join(names)} | {meaning or 'as ever'} |" for meaning, names in rows]
    return "\n".join([*lines, *(f"| | {name} | {meaning} |" for name, meaning in OF_OTHERS.items())])


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()

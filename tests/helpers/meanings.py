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

_STEPS = "counts steps of this run"
_STRATEGY = "DDP and FSDP; [DeepSpeed and tensor parallelism](clusters.md) are refused"
_TRIES = "tries the baseline's mini-batches"
_GRIDS = "values differ from grid to grid"
_DEVICES = "[the LR is not scaled with them](clusters.md)"
_BATCHES = "an integer counts mini-batches of the baseline"
_TIME = "if it ends the run, the fine grids are missing"

CALLBACKS = {
    **dict.fromkeys(("BackboneFinetuning", "BaseFinetuning", "ModelPruning"), AS_EVER),
    **dict.fromkeys(("BasePredictionWriter", "ProgressBar", "RichProgressBar", "TQDMProgressBar"), AS_EVER),
    **dict.fromkeys(("Callback", "Checkpoint", "LambdaCallback", "OnExceptionCheckpoint"), AS_EVER),
    **dict.fromkeys(("ModelSummary", "RichModelSummary"), AS_EVER),
    **dict.fromkeys(("BatchSizeFinder", "LearningRateFinder"), _TRIES),
    **dict.fromkeys(("DeviceStatsMonitor", "ThroughputMonitor"), _GRIDS),
    **dict.fromkeys(("EMAWeightAveraging", "WeightAveraging"), _STEPS),
    **dict.fromkeys(("GradientAccumulationScheduler", "StochasticWeightAveraging"), "refused"),
    "EarlyStopping": "patience counts in the last phase only",
    "LearningRateMonitor": "the baseline's LR; `multigrid/lr` is the LR in use",
    "ModelCheckpoint": "`every_n_train_steps` counts steps of this run; monitor a validation, not a training metric",
    "SpikeDetection": "the loss may jump where a phase begins",
    "Timer": _TIME,
}
LOGGERS = dict.fromkeys(("CSVLogger", "CometLogger", "LitLogger", "Logger", "MLFlowLogger", "NeptuneLogger"), AS_EVER)
LOGGERS |= dict.fromkeys(("TensorBoardLogger", "WandbLogger"), AS_EVER)
PROFILERS = dict.fromkeys(("Profiler", "AdvancedProfiler", "PassThroughProfiler", "PyTorchProfiler"), AS_EVER)
PROFILERS |= dict.fromkeys(("SimpleProfiler", "XLAProfiler"), AS_EVER)
TUNERS = dict.fromkeys(("lr_find", "scale_batch_size"), _TRIES)
ARGUMENTS = {
    **dict.fromkeys(("accelerator", "barebones", "callbacks", "default_root_dir", "detect_anomaly"), AS_EVER),
    **dict.fromkeys(("enable_autolog_hparams", "enable_checkpointing", "enable_model_summary", "precision"), AS_EVER),
    **dict.fromkeys(("enable_progress_bar", "gradient_clip_algorithm", "inference_mode", "logger", "plugins"), AS_EVER),
    **dict.fromkeys(("limit_predict_batches", "limit_test_batches", "limit_val_batches", "model_registry"), AS_EVER),
    **dict.fromkeys(("benchmark", "deterministic", "num_sanity_val_steps"), AS_EVER),
    **dict.fromkeys(("devices", "num_nodes"), _DEVICES),
    **dict.fromkeys(("limit_train_batches", "overfit_batches", "val_check_interval"), _BATCHES),
    **dict.fromkeys(("check_val_every_n_epoch", "max_epochs", "min_epochs"), AS_EVER),
    **dict.fromkeys(("log_every_n_steps", "max_steps", "min_steps"), "steps of the baseline"),
    "accumulate_grad_batches": "mini-batches of one shape make a step",
    "fast_dev_run": "one mini-batch, of the coarsest grid",
    "gradient_clip_val": "gradients of more clips are clipped less often",
    "max_time": _TIME,
    "profiler": _GRIDS,
    "reload_dataloaders_every_n_epochs": "refused",
    "strategy": _STRATEGY,
    "sync_batchnorm": "refused on several devices",
    "use_distributed_sampler": "`False` is refused on several devices without a sampler of your own",
}
OF_OTHERS = {
    "loggers": "the x axis is steps of this run; `multigrid/phase` is the phase, from 1",
    "`global_step` in your code": _STEPS,
    "accumulation by hand": _STEPS,
    "an LR or weight decay that your code writes within an epoch": "refused without [`lr_by_hand`](script.md#the-lr)",
    "`ReduceLROnPlateau`": "its metric may stand still in a coarse phase; by step, it counts those of this run",
    "timm's `ModelEma`": _STEPS,
    "betas of Adam and its kin": "those of a step, of which there are fewer",
    "weight decay of AdamW and its kin": "[grows as the LR does](script.md#the-lr)",
    "`warmup_steps` of an optimizer": "counts steps of this run; `fit` says which number keeps its share",
    "`set_epoch` of a stream": "gets the number of the [pass over the data](glossary.md)",
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
    """The table, as Markdown: a row for all that have one meaning, without what is as ever or refused."""
    rows: dict[str, list[str]] = {}
    for said, _ in lightnings().values():
        for name, meaning in sorted(said.items()):
            rows.setdefault(meaning, []).append(f"`{name}`")
    for name, meaning in OF_OTHERS.items():
        rows.setdefault(meaning, []).append(name)
    told = sorted(
        (names, meaning) for meaning, names in rows.items() if meaning != AS_EVER and "refused" not in meaning
    )
    lines = [f"| {', '.join(names)} | {meaning} |" for names, meaning in told]
    return "\n".join(["| | under multigrid |", "| --- | --- |", *lines])


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}")

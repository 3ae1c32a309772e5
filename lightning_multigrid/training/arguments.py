"""The arguments of `MultigridCallback`, which inherits them from here."""

from dataclasses import KW_ONLY, dataclass, fields
from typing import Literal

from lightning_multigrid.loading import Follow, SampleParts
from lightning_multigrid.schedule import (
    Baseline,
    BatchShape,
    LongCycle,
    LRScaling,
    MultigridSchedule,
    ShortCycle,
    check_kinds,
)

# The size from which clips have a short cycle by default, in pixels. With smaller ones, a training without it was as
# accurate as its baseline in less time (docs/pays.md).
SMALLEST = 64
_NOT_OF_SCHEDULE = "schedule layout clips follow whole_span clips_per_epoch precise_bn_batches seed lr_by_hand rehearse"


@dataclass(eq=False, repr=False)
class Arguments:
    """The arguments of `MultigridCallback`. Its docstring says what they mean."""

    schedule: MultigridSchedule | None = None
    _: KW_ONLY
    epoch_factor: float = 1.5
    short_cycle: ShortCycle | Literal["auto"] = "auto"
    long_cycle: LongCycle = LongCycle()
    lr_scaling: LRScaling | Literal["auto"] = "auto"
    precise_bn_batches: int | None = None
    layout: str | None = None
    clips: list[str | int] | dict[str | int, str] | None = None
    follow: dict[str | int, Follow] | None = None
    whole_span: bool = False
    clips_per_epoch: int | None = None
    milestones: list[float] | Literal["script"] | None = None
    warmup_epochs: float | None = None
    lr_by_hand: Literal["run"] | None = None
    sub_batch: int | None = None
    size_divisor: int | None = None
    frames_divisor: int | None = None
    fine_tuning: bool = True
    rehearse: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        # Refuses bad values where they are written; so does a schedule for any baseline.
        check_kinds(self)
        SampleParts(self.layout, self.clips, self.follow or {})
        for name in ("clips_per_epoch", "precise_bn_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}. Leave it out for the default.")
        if self.lr_by_hand not in ("run", None):
            raise ValueError(f"`lr_by_hand` must be 'run' or None, got {self.lr_by_hand!r}.")
        if isinstance(self.short_cycle, str) and self.short_cycle != "auto":
            raise ValueError(
                f"`short_cycle` must be a ShortCycle or 'auto', got {self.short_cycle!r}. Without a short cycle: "
                "`ShortCycle((1,))`, in a config `{factors: [1]}`."
            )
        if isinstance(self.milestones, str) and self.milestones != "script":
            raise ValueError(f"`milestones` must be a list of epochs or 'script', got {self.milestones!r}.")
        schedule_of(self, Baseline(BatchShape(1, 4, 4), epochs=1))
        shaping = [field for field in fields(self) if field.name not in _NOT_OF_SCHEDULE.split()]
        if self.schedule is not None and any(getattr(self, field.name) != field.default for field in shaping):
            raise ValueError(
                "`schedule` says everything about the schedule, but arguments that shape an inferred schedule are "
                "also given. Give either; `MultigridSchedule` takes the same arguments."
            )


# An error about an argument that there isn't names the class that a user writes.
Arguments.__init__.__qualname__ = "MultigridCallback.__init__"


def schedule_of(
    arguments: Arguments, baseline: Baseline, stepwise: bool = True, divisors: tuple[int, int] = (1, 1)
) -> MultigridSchedule:
    """Returns the schedule that arguments shape; `divisors` are those of the model, for frames and sizes."""
    frames, size = divisors
    return MultigridSchedule(
        baseline,
        arguments.long_cycle,
        _short_cycle(baseline.shape.size) if arguments.short_cycle == "auto" else arguments.short_cycle,
        epoch_factor=arguments.epoch_factor,
        sub_batch=max(8, baseline.shape.clips) if arguments.sub_batch is None else arguments.sub_batch,
        size_divisor=size if arguments.size_divisor is None else arguments.size_divisor,
        frames_divisor=frames if arguments.frames_divisor is None else arguments.frames_divisor,
        stepwise=stepwise,
        lr_scaling="linear" if arguments.lr_scaling == "auto" else arguments.lr_scaling,
        fine_tuning=arguments.fine_tuning,
    )


def _short_cycle(size: int) -> ShortCycle:
    return ShortCycle() if size >= SMALLEST else ShortCycle((1,))

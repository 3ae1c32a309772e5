"""A budget of time instead of a factor: from the times of steps to the `epoch_factor` that it holds."""

from dataclasses import replace

from lightning_multigrid.cli.forecast import Forecast
from lightning_multigrid.cli.plan import Preview
from lightning_multigrid.schedule import duration

_LEAST, _MOST, _STEP = 0.1, 10.0, 0.05  # factors


def _seconds(plan: Preview, forecast: Forecast, factor: float) -> float:
    """Seconds of all steps of the plan with another `epoch_factor`."""
    schedule = replace(plan.schedule, epoch_factor=factor)
    steps = replace(plan.plan, schedule=schedule).phase_steps
    return replace(forecast, schedule=schedule).training_seconds(steps) or 0.0


def factor_within(plan: Preview, forecast: Forecast, hours: float) -> float:
    """Returns the largest `epoch_factor`, a multiple of 0.05, whose steps take so many hours at most.

    Raises:
        ValueError: If times of steps or the number of clips are not known, or not even a tenth of the baseline's
            epochs can be trained.
    """
    if hours <= 0:
        raise ValueError(f"`--hours` must be above 0, got {hours:g}.")
    if not forecast.step_seconds or not plan.counted:
        raise ValueError(
            "`--hours` needs times of steps and the number of videos. Give `--measure` (or `--step_time`), and "
            "`--clips` if the videos are not on this machine."
        )
    least = _seconds(plan, forecast, _LEAST)
    if least > 3600 * hours:
        raise ValueError(
            f"`--hours {hours:g}` is too little: `epoch_factor` {_LEAST:g}, a tenth of the baseline's epochs, takes "
            f"{duration(least)} already. Take more devices, fewer epochs or a smaller model."
        )
    # Seconds grow with the factor, but not evenly, as phases begin and end at whole steps.
    few, many = round(_LEAST / _STEP), round(_MOST / _STEP)
    while few < many:
        middle = (few + many + 1) // 2
        fits = _seconds(plan, forecast, middle * _STEP) <= 3600 * hours
        few, many = (middle, many) if fits else (few, middle - 1)
    return round(few * _STEP, 2)


def told(plan: Preview, forecast: Forecast, hours: float) -> str:
    """Says what a plan that was made for a budget trains in it, what a baseline would, and the lines to copy."""
    schedule, factor = plan.schedule, plan.schedule.epoch_factor
    baseline = forecast.step_seconds[schedule.baseline.shape] * (plan.baseline_steps or 0)
    epochs, reached = float(schedule.baseline.epochs), 3600 * hours / baseline
    seconds = duration(forecast.training_seconds(plan.steps or []) or 0.0)
    rest = "all its epochs" if reached >= 1 else f"{reached * epochs:.1f} of its {epochs:g} epochs"
    below = "" if factor >= 1 else " Below 1, it trains less than the baseline does, and will likely end worse."
    return (
        f"{hours:g} h hold `epoch_factor` {factor:g}: {seconds} of steps; validation, start-up and waiting for data "
        f"come on top. In that time the baseline gets through {rest}.{below} In the config, under the callback:\n"
        f"    init_args:\n      epoch_factor: {factor:g}"
    )

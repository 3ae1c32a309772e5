"""Each row of the paper: what it published, what our recipe of it is, and what the README of the recipes says.

What was published is a second copy, made from the paper for this file.
"""

import math
import re
from dataclasses import dataclass

import pytest

from lightning_multigrid import Baseline, BatchShape, LongCycle, MultigridSchedule, Plan, ShortCycle
from lightning_multigrid.cli.main import main
from tests.helpers.recipe_sources import CLIPS, FOLDER, settings


@dataclass(frozen=True)
class Row:
    """A row of the paper.

    Args:
        name: As the paper has it.
        recipe: The YAML file, without its ending.
        published: Top-1 and top-5, or mAP, in percent; empty if the main text has no number.
        faster: Published speed-up in wall-clock time.
        iterations: Those that the main text states, in thousands: of the baseline, or divided by what it says.
    """

    name: str
    recipe: str
    published: str = ""
    faster: str = ""
    iterations: float | None = None


K400 = 112 / 3.4
TABLES: dict[str, list[Row]] = {
    "Table 1: cycles (SlowFast R50, Kinetics-400)": [
        Row("Baseline", "slowfast_baseline", "75.6, 91.9", "", 112),
        Row("1a, 1 shape", "slowfast_long_cycle_1", "74.0, 91.4", "4.0x", K400),
        Row("1a, 2 shapes", "slowfast_long_cycle_2", "75.5, 92.1", "4.3x", K400),
        Row("1a, 3 shapes", "slowfast_long_cycle_3", "76.2, 92.4", "4.4x", K400),
        Row("1a, 4 shapes; 1b, 3 shapes (default)", "slowfast_multigrid", "76.4, 92.4", "4.5x", K400),
        Row("1b, 1 shape", "slowfast_short_cycle_1", "74.5, 91.6", "4.2x", K400),
        Row("1b, 2 shapes", "slowfast_short_cycle_2", "75.5, 92.1", "4.3x", K400),
    ],
    "Table 2: pre-training, frames, pixels (SlowFast R50, Kinetics-400)": [
        Row("2a, pre-trained, baseline", "slowfast_pretrained_baseline", "75.4, 91.9", "", 112),
        Row("2a, pre-trained, multigrid", "slowfast_pretrained_multigrid", "76.0, 92.4", "4.5x", K400),
        Row("2b, T = 16, baseline", "slowfast_t16_baseline", "74.8, 91.4", "", 112),
        Row("2b, T = 16, multigrid", "slowfast_t16_multigrid", "75.2, 91.9", "4.0x", K400),
        Row("2b, T = 64, baseline", "slowfast_t64_baseline", "75.9, 92.1", "", 112),
        Row("2b, T = 64, multigrid", "slowfast_t64_multigrid", "77.6, 93.2", "5.5x", K400),
        Row("2c, 320 x 320, baseline", "slowfast_320_baseline", "75.1, 91.8", "", 112),
        Row("2c, 320 x 320, multigrid", "slowfast_320_multigrid", "76.8, 92.8", "6.5x", K400),
    ],
    "Table 3: I3D and I3D-NL (R50, Kinetics-400)": [
        Row("I3D, baseline", "i3d_baseline", "74.4, 91.4", "", 100),
        Row("I3D, baseline / 3.3", "i3d_baseline_3.3", "71.1, 89.9", "3.3x", 100 / 3.3),
        Row("I3D, multigrid", "i3d_multigrid", "74.8, 91.7", "3.9x", 100 / 3.3),
        Row("I3D-NL, baseline", "i3d_nl_baseline", "75.5, 92.1", "", 100),
        Row("I3D-NL, baseline / 3.3", "i3d_nl_baseline_3.3", "72.3, 90.6", "3.3x", 100 / 3.3),
        Row("I3D-NL, multigrid", "i3d_nl_multigrid", "75.5, 92.4", "3.3x", 100 / 3.3),
    ],
    "Table 4: one GPU (I3D R50, Kinetics-400)": [
        Row("Baseline", "i3d_1gpu_baseline", "72.5, 90.4", "", 1200),
        Row("Multigrid", "i3d_1gpu_multigrid", "72.5, 90.4", "6.7 to 2.0 days"),
    ],
    "Table 5: Something-Something V2 (SlowFast R50)": [
        Row("Baseline", "ssv2_baseline", "60.9, 87.2", "", 230),
        Row("Baseline / 5.2", "ssv2_baseline_5.2", "54.6, 83.0", "5.2x", 230 / 5.2),
        Row("Multigrid 1.0x", "ssv2_multigrid_1.0x", "60.0, 86.8", "8.3x", 230 / 5.2),
        Row("Baseline / 3.4", "ssv2_baseline_3.4", "57.3, 84.7", "3.4x", 230 / 3.4),
        Row("Multigrid 1.5x (default)", "ssv2_multigrid", "61.2, 87.4", "5.6x", 230 / 3.4),
        Row("Baseline / 2.6", "ssv2_baseline_2.6", "58.7, 85.8", "2.6x", 230 / 2.6),
        Row("Multigrid 2.0x", "ssv2_multigrid_2.0x", "61.7, 87.8", "4.2x", 230 / 2.6),
    ],
    "Table 6: Charades (SlowFast R50)": [
        Row("Baseline", "charades_baseline", "38.0"),
        Row("Baseline / 5.3", "charades_baseline_5.3", "27.5", "5.3x"),
        Row("Multigrid 1.0x", "charades_multigrid_1.0x", "36.8", "8.6x"),
        Row("Baseline / 3.5", "charades_baseline_3.5", "31.5", "3.5x"),
        Row("Multigrid 1.5x (default)", "charades_multigrid", "38.2", "5.7x"),
        Row("Baseline / 2.6", "charades_baseline_2.6", "33.6", "2.6x"),
        Row("Multigrid 2.0x", "charades_multigrid_2.0x", "37.4", "4.3x"),
    ],
    "Footnote 7: cosine (SlowFast R50, Kinetics-400)": [
        Row("Baseline", "slowfast_cosine_baseline"),
        Row("Multigrid", "slowfast_cosine_multigrid"),
    ],
    "The published code: 8 GPUs (SlowFast R50, Kinetics-400)": [
        Row("Baseline", "slowfast_8gpu_baseline", "76.8"),
        Row("Multigrid", "slowfast_8gpu_multigrid", "76.6"),
    ],
}


def planned(recipe: str) -> Plan:
    """The plan of a recipe."""
    values = settings(recipe)
    callback = values["trainer.callbacks"][-1]
    arguments = dict(callback["init_args"]) if isinstance(callback, dict) else {"epoch_factor": 1}
    if isinstance(callback, str):
        assert callback == "_baseline.yaml"
        arguments |= {"long_cycle": {"factors": [[1, 1]]}, "short_cycle": {"factors": [1]}}
    arguments.pop("precise_bn_batches", None)
    for name, cycle in (("long_cycle", LongCycle), ("short_cycle", ShortCycle)):
        if name in arguments:
            factors = [tuple(f) if isinstance(f, list) else f for f in arguments[name]["factors"]]
            arguments[name] = cycle(tuple(factors))
    data, model = "data.init_args.", "model.init_args."
    shape = BatchShape(*(values[data + name] for name in ("batch_size", "frames", "size")))
    world = values["trainer.devices"] * values.get("trainer.num_nodes", 1)
    clips = CLIPS[values[data + "train.class_path"].rsplit(".", 1)[1]]
    epochs, steps = values["trainer.max_epochs"], values.get("trainer.max_steps", -1)
    if epochs < 0:
        epochs = steps / math.ceil(clips / world / shape.clips)
    warmup = values.get(model + "warmup_epochs", 0)
    # Without the paper's stages, half of the training after the warm-up is the fine-tuning phase.
    stepwise = values[model + "schedule"] == "steps" and (
        isinstance(callback, str) or "paper" in callback["class_path"]
    )
    milestones = values[model + "milestones"] if stepwise else arguments.pop("milestones", [(warmup + epochs) / 2])
    baseline = Baseline(shape, epochs, tuple(milestones), warmup_epochs=warmup)
    return Plan(MultigridSchedule(baseline, stepwise=stepwise, **arguments), clips, world=world)


def iterations(recipe: str) -> int:
    """Mini-batches of the training."""
    limit = settings(recipe).get("trainer.max_steps")
    if limit:
        return int(limit)
    return sum(planned(recipe).phase_steps)


ROWS = [row for rows in TABLES.values() for row in rows]


@pytest.mark.parametrize("row", [row for row in ROWS if row.iterations], ids=lambda row: row.recipe)
def test_iterations_are_those_that_the_paper_states(row):
    assert iterations(row.recipe) == pytest.approx(1000 * row.iterations, rel=0.025)


def test_the_published_numbers_are_those_of_the_recipes():
    """Two copies, made from the paper at different times."""
    table = (FOLDER / "README.md").read_text()
    for row in (row for row in ROWS if row.published):
        (published,) = re.findall(rf"^\|[^|]*\| `{re.escape(row.recipe)}` \| (.*) \|$", table, re.MULTILINE)
        numbers = re.findall(r"(\d\d\.\d)(?: \+- [\d.]+)? % (?:top|mAP)", published)
        assert ", ".join(numbers) == row.published, row.recipe
        if row.faster.endswith("x"):
            assert f"{row.faster} faster" in published, row.recipe


def test_a_shortened_baseline_keeps_the_proportions_of_its_stages():
    for row in (row for row in ROWS if re.search(r"_baseline_\d", row.recipe)):
        short, whole = (
            planned(name).schedule.baseline for name in (row.recipe, re.sub(r"_baseline_.*", "_baseline", row.recipe))
        )
        shares = [[float(m) / float(b.epochs) for m in b.milestones] for b in (short, whole)]
        assert shares[0] == pytest.approx(shares[1], abs=0.01)


def test_iterations_are_those_of_the_command_plan(capsys):
    """Of a cosine, whose stages the callback infers."""
    recipe = "slowfast_cosine_multigrid"
    main(["plan", "--config", str(FOLDER / f"{recipe}.yaml"), "--clips=240000", "--devices=128"])
    assert f"{iterations(recipe)} steps instead of 112091" in capsys.readouterr().out

"""A budget of hours: the largest factor that it holds, and what can't be planned for."""

import json

import pytest
import yaml

from lightning_multigrid.cli.main import main
from tests.helpers.sampling import sampled

STEPS = ["--clips=800", "--step_time=0.5"]  # 100 steps of the baseline in an epoch of 50 s, 40 epochs in 33 minutes


@pytest.fixture
def config(tmp_path):
    def write(**callback):
        model = {"class_path": "lightning_multigrid.models.small_cnn", "init_args": {"num_classes": 4}}
        settings = {"model": model, "num_classes": 4, "schedule": "steps", "milestones": [20, 30]}
        values = {
            "model": {"class_path": "lightning_multigrid.VideoClassifier", "init_args": settings},
            "data": {
                "class_path": "lightning_multigrid.VideoDataModule",
                "init_args": {"batch_size": 8, "frames": 16, "size": 112},
            },
            "trainer": {
                "max_epochs": 40,
                "accelerator": "cpu",
                "callbacks": [{"class_path": "lightning_multigrid.MultigridCallback", "init_args": callback}],
            },
        }
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
        return str(tmp_path / "config.yaml")

    return write


@pytest.mark.parametrize("hours", sampled([0.05, 0.2, 1], 0.2))
def test_the_factor_is_the_largest_that_a_budget_holds(config, capsys, hours):
    def plan(*arguments, **callback):
        main(["plan", "--config", config(**callback), *STEPS, "--json", *arguments])
        return json.loads(capsys.readouterr().out)

    within = plan(f"--hours={hours}")
    assert within["seconds"] <= 3600 * hours
    assert plan(epoch_factor=within["epoch_factor"])["seconds"] == within["seconds"]
    assert plan(epoch_factor=within["epoch_factor"] + 0.05)["seconds"] > 3600 * hours


def test_it_says_what_to_copy_and_what_a_baseline_would_do(config, capsys):
    main(["plan", "--config", config(), *STEPS, "--hours=0.2"])
    told = " ".join(capsys.readouterr().out.split())
    assert "In that time the baseline gets through 14.4 of its 40 epochs." in told  # 720 s of 50 s each
    assert "In the config, under the callback: init_args: epoch_factor: " in told
    main(["plan", "--config", config(), *STEPS, "--hours=5"])
    assert "the baseline gets through all its epochs." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clips=800", "--hours=1"], "`--hours` needs times of steps and the number of videos. Give `--measure`"),
        (["--step_time=0.5", "--hours=1"], "needs times of steps and the number of videos"),
        ([*STEPS, "--hours=0"], "`--hours` must be above 0, got 0."),
        ([*STEPS, "--hours=0.001"], "`--hours 0.001` is too little: `epoch_factor` 0.1, a tenth of the baseline's"),
        (
            [*STEPS, "--hours=1", "--trainer.callbacks=[]"],
            "`--hours` chooses the `epoch_factor` of a MultigridCallback",
        ),
    ],
)
def test_what_cannot_be_planned_for(config, capsys, arguments, message):
    with pytest.raises(SystemExit):
        main(["plan", "--config", config(), *arguments])
    assert message in " ".join(capsys.readouterr().err.split())

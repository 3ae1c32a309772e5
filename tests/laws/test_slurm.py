"""`examples/slurm`: the script, with a stand-in for `srun` that starts the tasks here, and the README."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from lightning_multigrid.cli.main import main
from lightning_multigrid.schedule import Baseline, BatchShape, MultigridSchedule, Plan
from tests.helpers.launchers import free_port, shell_environment
from tests.helpers.processes import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDER = EXAMPLES / "slurm"
SCRIPT = FOLDER / "train.sbatch"

SRUN = """#!/bin/bash
# A task for each GPU of one node, as srun starts them; it ends with the worst of their exit codes.
while [[ $1 == --* ]]; do echo "srun option $1"; shift; done
tasks=()
for ((rank = 0; rank < SLURM_NTASKS; rank++)); do
    SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NODEID=0 "$@" & tasks+=($!)
done
echo "${tasks[@]}" > "$TASKS"
code=0
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit $code
"""
FEW = [f"--data.{option}" for option in ("train_per_class=8", "val_per_class=1", "batch_size=2", "num_workers=0")]
FEW += ["--model.milestones=[1.5]", "--trainer.enable_progress_bar=false"]


def write_tool(path, script='#!/bin/bash\necho "$@"\n'):
    path.write_text(script)
    path.chmod(stat.S_IRWXU)


@pytest.fixture
def cluster(tmp_path):
    """The environment of a job of two tasks on one node."""
    (tools := tmp_path / "bin").mkdir()
    write_tool(tools / "srun", SRUN)
    write_tool(tools / "scontrol", '#!/bin/bash\necho "$@" >> "$REQUEUED"\n')
    paths = {name: str(tmp_path / name.lower()) for name in ("TASKS", "REQUEUED", "RUN")}
    paths["PATH"] = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    paths["LIGHTNING_MULTIGRID_CACHE"] = str(tmp_path / "cache")
    job = {"JOB_NAME": "multigrid", "JOB_ID": "17", "JOB_NUM_NODES": "1", "NTASKS": "2", "NTASKS_PER_NODE": "2"}
    job |= {"CPUS_PER_TASK": "3", "NODELIST": "127.0.0.1"}
    told = {f"SLURM_{name}": value for name, value in job.items()}
    return shell_environment(**paths, **told, CHECKPOINT_MINUTES="0", MASTER_PORT=free_port())


def submit(cluster, *options):
    command = ["bash", str(SCRIPT), str(EXAMPLES / "quickstart.yaml"), *FEW, *options]
    return subprocess.Popen(command, env=cluster, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_script_is_bash_and_names_its_arguments():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    missing = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert "usage: sbatch [options] train.sbatch CONFIG" in missing.stderr


def test_a_job_continues_from_the_newest_checkpoint_of_its_own_folder(cluster, tmp_path):
    """Whatever folders the config names: other jobs of it write there."""
    config = EXAMPLES / "quickstart.yaml"
    write_tool(tmp_path / "bin" / "python")

    def continued():
        command = ["bash", str(SCRIPT), str(config), "--model.lr=0.1"]
        done = subprocess.run(command, env=cluster, capture_output=True, text=True, check=True)
        assert f"All jobs of {config} share the folders of these lines" in done.stderr
        assert "dirpath: quickstart_checkpoints" in done.stderr
        [line, *_] = [line for line in done.stdout.splitlines() if line.startswith("-m lightning_multigrid fit")]
        assert line.endswith("--model.lr=0.1")
        return [word for word in line.split() if word.startswith("--ckpt_path")]

    assert continued() == []
    for age, name in ((30, "checkpoints/last.ckpt"), (20, "hpc_ckpt_1.ckpt"), (10, "checkpoints/last.ckpt")):
        path = tmp_path / "run" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (time.time() - age, time.time() - age))
        assert continued() == [f"--ckpt_path={path}"]


@pytest.mark.slow  # two jobs of two tasks; the scripts' arguments and `test_launchers` are the sample
@pytest.mark.timeout(1000)
def test_a_job_trains_on_all_of_its_tasks_and_if_its_time_is_up_it_is_requeued_and_goes_on(cluster, tmp_path):
    job = submit(cluster, "--trainer.max_epochs=40")
    wait_for((tmp_path / "run" / "checkpoints" / "last.ckpt").exists, seconds=500)  # a busy machine takes minutes
    tasks = [int(task) for task in (tmp_path / "tasks").read_text().split()]
    for task in tasks:
        os.kill(task, signal.SIGUSR1)
    requeued = tmp_path / "requeued"
    wait_for(requeued.exists, seconds=500)
    for task in tasks:
        os.kill(task, signal.SIGKILL)
    output, _ = job.communicate(timeout=60)
    assert requeued.read_text() == "requeue 17\n", output[-3000:]
    assert "srun option --kill-on-bad-exit=1" in output
    assert "srun option --cpus-per-task=3" in output  # srun of SLURM 22.05 and later does not inherit it
    assert "GLOBAL_RANK: 1, MEMBER: 2/2" in output
    assert "Multigrid schedule for a baseline of 2 x 16 x 40" in output
    assert (tmp_path / "run" / "hpc_ckpt_1.ckpt").exists()
    job = submit(cluster, "--trainer.max_epochs=40", "--trainer.max_time=00:00:00:20")
    output, _ = job.communicate(timeout=280)
    assert job.returncode == 0, output[-3000:]
    # From that checkpoint, or from one that was written between the signal and the end.
    assert f"Restored all states from the checkpoint at {tmp_path / 'run'}" in " ".join(output.split())


def test_the_arguments_of_the_array_script(cluster, tmp_path):
    """Several `prepare` may share a folder: `tests/prepare/test_sharing.py`."""
    write_tool(tmp_path / "bin" / "python")
    command, task = ["bash", FOLDER / "prepare.sbatch", "--source", "a b"], {**cluster, "SLURM_ARRAY_TASK_ID": "3"}
    done = subprocess.run(command, env=task, capture_output=True, text=True, check=True)
    assert done.stdout == "-m lightning_multigrid prepare --source a b\n"
    missing = subprocess.run(["bash", FOLDER / "prepare.sbatch"], capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert "usage: sbatch [--array=1-N] prepare.sbatch --source VIDEOS" in missing.stderr


# --- The README ---


def row(title):
    """The cells of a row of the table."""
    [line] = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith(f"| {title}")]
    return [cell.strip().replace(",", "") for cell in line.split("|")[2:-1]]


def test_the_table_is_what_the_plan_says():
    for index, gpus in enumerate((1, 8, 128)):
        clips = int(row("clips per GPU, baseline")[index])
        schedule = MultigridSchedule(Baseline(BatchShape(clips, 32, 224), epochs=239, milestones=(94, 154, 196)))
        largest = max(schedule.grids, key=lambda shape: shape.clips)
        assert int(row("clips of the global mini-batch")[index]) == gpus * clips
        assert float(row("LR of the baseline")[index]) == gpus * clips * 0.8 / 512  # the LR and the clips of the recipe
        assert int(row("steps of multigrid")[index]) == sum(Plan(schedule, 240_000, world=gpus).phase_steps)
        assert int(row("ranks that share")[index]) == min(gpus, -(-schedule.sub_batch // clips))
        assert row("clips per GPU, largest")[index] == str(largest.clips)
        assert (largest.frames, largest.size) == (8, 112)
        first = [shape.clips for shape in schedule.cycle(schedule.phases[0].shape)]  # it needs the most
        assert row("clips/s that a GPU needs")[index] == f"{sum(first) / len(first) / clips:.1f}x"


def test_the_options_of_the_readme_are_those_of_the_script_and_the_command(tmp_path):
    text = (FOLDER / "README.md").read_text()
    for option in ("RUN", "CHECKPOINT_MINUTES"):
        assert f"${{{option}:-" in SCRIPT.read_text()
        assert f"${option}`" in text
    # The strategy of the README, with its time limit, is one that the command takes.
    strategy = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    (tmp_path / "limit.yaml").write_text(yaml.safe_dump(strategy))
    config = str(EXAMPLES / "quickstart.yaml")
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--config", config, "--config", str(tmp_path / "limit.yaml"), "--print_config"])

"""Six trainings whose losses are kept, by version of torch: a change of any of them is seen.

`python -m tests.helpers.golden` writes the file of the installed torch, after a change that is meant.
"""

import json
import tempfile
import warnings
from functools import partial
from pathlib import Path

import torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR
from torch.utils.data import DataLoader, TensorDataset

from lightning_multigrid import MultigridCallback, ShortCycle
from tests.helpers.processes import ddp_of_this_process
from tests.helpers.tiny import Module, clips, fit, sgd

STEPS = 30
FOLDER = Path(__file__).parents[1] / "laws" / "golden"
FILE = FOLDER / f"torch-{'.'.join(torch.__version__.split('.')[:2])}.json"


def cosine(optimizer, module):
    return CosineAnnealingLR(optimizer, 6)


def steps(optimizer, module):
    return MultiStepLR(optimizer, [2, 4])


def adamw(parameters):
    return AdamW(parameters, lr=0.01, weight_decay=0.1)


PLANS = {
    "default on cosine": (MultigridCallback, cosine, sgd, 1),
    "default on steps": (MultigridCallback, steps, sgd, 1),
    "one pass": (MultigridCallback.progressive, cosine, sgd, 1),
    "paper": (MultigridCallback.paper, steps, sgd, 1),
    "AdamW": (MultigridCallback, cosine, adamw, 1),
    # Ranks may be new processes, in which no fixture holds: the default plan, said in arguments.
    "DDP": (partial(MultigridCallback, short_cycle=ShortCycle((1,)), rehearse=False), steps, sgd, 2),
}


class Keeps(Module):
    """Writes the losses of the first rank to a file."""

    def on_train_end(self):
        if self.global_rank == 0:
            self.file.write_text(json.dumps([loss for *_, loss in self.seen]))


def losses(name, file):
    """The losses of steps of the whole training: float64, so that they do not depend on the processor."""
    callback, scheduler, optimizer, ranks = PLANS[name]
    module = Keeps(scheduler, optimizer)
    module.file = file
    noise, labels = clips(72, 8, 40).tensors
    data = DataLoader(TensorDataset(noise.double(), labels), 4 // ranks, shuffle=True)
    several = {"strategy": ddp_of_this_process(), "devices": ranks} if ranks > 1 else {}
    fit(module, callback(), train=data, max_epochs=6, precision="64-true", **several)
    found = json.loads(file.read_text())
    return [round(found[len(found) * number // STEPS], 6) for number in range(STEPS)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        golden = {name: losses(name, Path(folder, "losses")) for name in PLANS}
    FILE.write_text("{\n" + ",\n".join(f'"{name}": {values}' for name, values in golden.items()) + "\n}\n")

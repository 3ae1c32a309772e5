"""The tail of an epoch: its gradient and its part in running statistics are in proportion to its clips."""

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_multigrid import MultigridCallback
from tests.helpers.sampling import sampled
from tests.helpers.tiny import Module, fit, loader

pytestmark = pytest.mark.usefixtures("_unrehearsed")


class Gradients(Module):
    """Keeps for each optimizer step how much smaller the gradient is that the optimizer gets."""

    def __init__(self, manual=False):
        super().__init__()
        self.automatic_optimization = not manual
        self.scales, self.momenta = [], []

    def configure_gradient_clipping(self, optimizer, *_, **__):
        super().configure_gradient_clipping(optimizer, *_, **__)
        self.raw = self.net[-1].bias.grad.clone()

    def optimizer_step(self, *arguments, **named):
        super().optimizer_step(*arguments, **named)
        self.keep()

    def keep(self):
        self.scales.append(float(self.net[-1].bias.grad.norm() / self.raw.norm()))

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if isinstance(self._trainer, L.Trainer):
            self.momenta.append(self.net[1].momentum)
            if not self.automatic_optimization:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                self.raw = self.net[-1].bias.grad.clone()
                optimizer.step()
                self.keep()
        return loss


def trained(callback, number, manual=False, **arguments):
    module = Gradients(manual)
    host = fit(module, callback, train=loader(number=number), max_epochs=8, **arguments)
    return module, host


@pytest.mark.parametrize(("manual", "clipping"), sampled([(False, None), (False, 0.01), (True, None)], (False, 0.01)))
def test_the_gradient_of_a_tail_is_scaled_by_its_clips(manual, clipping):
    """After it has been clipped: a tail that is scaled first would have nothing to clip, and be longer."""
    callback = MultigridCallback()
    module, _ = trained(callback, 129, manual, gradient_clip_val=clipping)
    plan = callback.run.plan
    steps = [step for epoch in range(plan.epochs) for step in plan.epoch(epoch)]
    wanted = [step.gradient_scale for step in steps]
    assert module.scales == pytest.approx(wanted, rel=1e-4)
    assert min(wanted) == 0.125  # a single clip, in a phase at 8 times the LR
    # As much of the running statistics changes as in so many steps of the baseline.
    assert module.momenta == pytest.approx([1 - 0.9**step.baseline_batches for step in steps])
    assert module.net[1].momentum == 0.1  # given back


def test_the_tail_of_accumulated_gradients():
    callback = MultigridCallback()
    module, _ = trained(callback, 129, accumulate_grad_batches=2)
    plan = callback.run.plan
    steps = [step for epoch in range(plan.epochs) for step in plan.epoch(epoch)]
    wanted = [step.gradient_scale for step in steps if step.starts_update]
    assert module.scales == pytest.approx(wanted, rel=1e-4)
    assert min(wanted) < 1


def test_on_one_device_the_baseline_trains_to_the_bit_what_no_callback_does():
    """So a baseline without the callback, whose mini-batch has no more than 8 clips, is on equal terms."""

    def state(*callbacks):
        module = Module()
        module.net[5] = torch.nn.Identity()  # not dropout, which draws others
        fit(module, *callbacks, train=DataLoader(loader(number=129).dataset, batch_size=4), max_epochs=3)
        return module.state_dict()

    with_it = state(MultigridCallback.baseline())
    torch.testing.assert_close(with_it, state(), rtol=0, atol=0)
    assert any("running_mean" in name for name in with_it)

"""With channels_last_3d every layer up to the pool keeps that memory format."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torchvision.models.video import r3d_18

from lightning_multigrid import VideoClassifier, sub_batches
from lightning_multigrid.models import i3d_nl_r50, i3d_r50, slow_r50, slowfast_r50, small_cnn
from tests.helpers.sampling import sampled

LAST = torch.channels_last_3d


@pytest.fixture
def _two_threads():
    # With one thread, a CPU uses another convolution for kernels that span time only: it keeps no memory format.
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("make", sampled([small_cnn, r3d_18, slow_r50, i3d_r50, i3d_nl_r50, slowfast_r50], small_cnn))
def test_every_batchnorm_is_channels_last(make):
    classifier, copied = VideoClassifier(make(num_classes=3), 3, channels_last=True), {}

    def record(name, inputs, output):
        copied[name] = not all(tensor.is_contiguous(memory_format=LAST) for tensor in (*inputs, output))

    names = [name for name, layer in classifier.named_modules() if isinstance(layer, nn.BatchNorm3d)]
    for name in names:
        classifier.get_submodule(name).register_forward_hook(
            lambda layer, inputs, output, name=name: record(name, inputs, output)
        )
    with torch.no_grad(), sub_batches(2, of=4):
        classifier(torch.randn(4, 3, 4, 40, 40))
    assert copied.keys() == set(names)
    assert not [name for name in names if copied[name]]


def test_channels_last_changes_no_value():
    torch.manual_seed(0)
    clips = torch.randn(4, 3, 4, 20, 20)
    plain = VideoClassifier(small_cnn(3), 3)
    last = VideoClassifier(small_cnn(3), 3, channels_last=True)
    last.load_state_dict(plain.state_dict())
    assert last.model.stem.weight.is_contiguous(memory_format=LAST)
    assert_close(last(clips), plain(clips))


def test_an_optimizer_is_fused_by_choice():
    for fused in (False, True):
        classifier = VideoClassifier(small_cnn(3), 3, schedule="constant", fused_optimizer=fused)
        assert bool(classifier.configure_optimizers().defaults["fused"]) is fused

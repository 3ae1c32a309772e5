"""Statistics of a population, against all values at once."""

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_multigrid.norm import observed_moments, tracking_layers, write_statistics


def layers_of(number: int, device: str = "cpu") -> nn.Sequential:
    return nn.Sequential(*(nn.BatchNorm1d(2 + index, device=device) for index in range(number)))


def see(net: nn.Sequential, inputs: list[Tensor]) -> None:
    """Shows each input to the layer of its number of channels, as a forward does."""
    for x in inputs:
        net[x.shape[1] - 2](x)


def test_statistics_are_those_of_all_values_whatever_their_mini_batches_and_layers() -> None:
    net = layers_of(3).double()
    generator = torch.Generator().manual_seed(0)
    inputs = [
        # A mean of 1,000 deviations: a sum of squares in float32 would lose the variance.
        torch.randn(clips, channels, 5, generator=generator).double() + 1000
        for clips, channels in ((1, 2), (7, 3), (4, 2), (2, 3), (9, 2))
    ]
    before = [buffer.clone() for buffer in (net[2].running_mean, net[2].running_var)]
    layers = tracking_layers(net)
    with observed_moments(layers) as moments:
        see(net, inputs)
    write_statistics(layers, moments)
    for layer in net[:2]:
        seen = torch.cat([x.transpose(0, 1).flatten(1) for x in inputs if x.shape[1] == layer.num_features], dim=1)
        assert_close(layer.running_mean, seen.mean(dim=1), rtol=1e-12, atol=0)
        assert_close(layer.running_var, seen.var(dim=1, correction=0), rtol=1e-7, atol=0)
    # No value has reached the last layer.
    assert all(torch.equal(*pair) for pair in zip(before, (net[2].running_mean, net[2].running_var), strict=True))

"""An epoch of a few videos."""

import pytest

from lightning_multigrid.loading import RepeatedOrder, order_of
from lightning_multigrid.video import MovingShapesDataModule, few_videos


@pytest.fixture
def data(tmp_path):
    made = MovingShapesDataModule(tmp_path, train_per_class=1, val_per_class=1, frames=8, size=32, num_workers=2)
    made.prepare_data()
    made.setup("fit")
    return made


@pytest.mark.parametrize(("workers", "given"), [(1, 1), (8, 2)])
def test_it_loads_as_the_data_does_by_so_many_workers(data, workers, given):
    few = few_videos(data, 5, 30, workers)
    loader, like = few.train_dataloader(), data.train_dataloader()
    assert (few.num_workers, loader.num_workers, data.num_workers) == (given, given, 2)
    assert (loader.dataset, loader.batch_size, loader.collate_fn) == (like.dataset, like.batch_size, like.collate_fn)
    assert "train_dataloader" not in vars(data)


def test_its_videos_come_again_and_again(data):
    data.repeats = 2
    loader = few_videos(data, 5, 30, 1).train_dataloader()
    visits = list(loader.sampler)
    assert len(visits) == 30
    assert visits == [index for index in (0, 3, 6, 9, 12) * 3 for _ in range(2)]
    # Both clips of a visit are decoded together.
    order = order_of(loader, seed=0)
    assert isinstance(order, RepeatedOrder)
    assert order(1) == visits


def test_few_videos_are_all_there_are(data):
    assert sorted(set(few_videos(data, 100, 40, 1).train_dataloader().sampler)) == list(range(16))

"""Times of loading, on real videos."""

from lightning_multigrid.video import MovingShapesDataModule, measure_loading


def test_each_grid_is_loaded(tmp_path):
    data = MovingShapesDataModule(tmp_path, train_per_class=2, val_per_class=1, batch_size=4, frames=8, size=32)
    data.prepare_data()
    data.setup("fit")
    found = measure_loading(data, [(8, 32), (4, 23)], world=1)
    assert {*found.clip} == {*found.resampled} == {(8, 32), (4, 23)}
    assert 0 < found.clip[4, 23] < 1
    assert found.videos == 16
    assert 1 <= found.processes <= 2

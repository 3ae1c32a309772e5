"""The videos of a task as an ordinary script reads them: by a dataset that gives whole clips of the baseline alone."""

from typing import Any

from torch.utils.data import DataLoader, Dataset

from lightning_multigrid import MovingShapesDataModule, VideoDataModule, resample_clips
from lightning_multigrid.clips import VideoDataset


class WholeClips(Dataset[Any]):
    """Random clips of the baseline's frames and size, C x T x H x W and normalised, with their labels."""

    def __init__(self, videos: VideoDataset, **normalised: Any) -> None:
        self._videos, self._normalised = videos, normalised

    def __len__(self) -> int:
        return len(self._videos)

    def __getitem__(self, index: int) -> Any:
        clip = self._videos[index]
        return resample_clips([clip.crop], clip.size, flips=[clip.flip], **self._normalised)[0], clip.labels[0]


def read_whole(loader: DataLoader[Any], data: VideoDataModule) -> DataLoader[Any]:
    """Returns a loader of the same videos as a data module's, which reads whole clips."""
    clips = WholeClips(loader.dataset, mean=data.mean, std=data.std)
    return DataLoader(clips, batch_size=loader.batch_size, shuffle=True, num_workers=loader.num_workers)


class WholeVideos(VideoDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return read_whole(super().train_dataloader(), self)


class WholeShapes(MovingShapesDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return read_whole(super().train_dataloader(), self)

"""A clock that tests set, and clips that take time to read."""

from torch.utils.data import Dataset

from tests.helpers.tiny import clips


class FakeClock:
    """A device that is always `behind` seconds behind the process."""

    def __init__(self, behind=0.0):
        self.time, self.behind = 0.0, behind

    def __deepcopy__(self, _):
        return self  # copies of a module have the same time

    def passes(self, seconds):
        self.time += seconds

    def now(self):
        return self.time

    def passed(self, moment):
        return moment <= self.time - self.behind

    def seconds(self, start, end):
        return end - start

    def wait(self, moment):
        self.time = max(self.time, moment + self.behind)


class Reading(Dataset):
    """Clips that take `seconds` each, in the process that reads."""

    def __init__(self, passes, seconds=0.0):
        self.clips, self.passes, self.seconds = clips(100), passes, seconds

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.passes(self.seconds)
        return self.clips[index]

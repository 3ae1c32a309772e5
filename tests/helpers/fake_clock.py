"""A clock that tests set."""


class FakeClock:
    """A device that is always `behind` seconds behind the process."""

    def __init__(self, behind=0.0):
        self.time, self.behind = 0.0, behind

    def now(self):
        return self.time

    def passed(self, moment):
        return moment <= self.time - self.behind

    def seconds(self, start, end):
        return end - start

    def wait(self, moment):
        self.time = max(self.time, moment + self.behind)

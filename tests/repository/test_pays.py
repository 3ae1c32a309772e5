"""What `benchmarks/pays.py` makes of runs, on made-up ones."""

from pays import Pair, _seconds, soonest

BASELINES = {10: ((50.0, 52.0), 100.0), 40: ((98.0, 99.0), 400.0)}


def pair(epochs, factor, ends, seconds):
    before, time = BASELINES[epochs]
    return Pair("a task", factor, (1000, 300), (before, ends), (time, seconds), epochs)


def test_the_first_that_is_level_may_have_another_length():
    found = [
        pair(10, 1.5, (40.0, 44.0), 45.0),
        pair(10, 3.0, (60.0, 62.0), 90.0),
        pair(40, 1.0, (70.0, 90.0), 80.0),
        pair(40, 1.5, (98.0, 99.0), 200.0),  # level
        pair(40, 3.0, (99.0, 99.0), 390.0),
    ]
    rows = soonest(found).splitlines()[2:]
    assert rows == ["| a task | 10 | 51.0 | 1 x 40 | 80.0 | 80 % |", "| a task | 40 | 98.5 | 1.5 x 40 | 98.5 | 50 % |"]


def test_trainings_of_other_tasks_and_times_of_other_days_do_not_mix():
    """The second task's baseline of ten epochs took ten times as long, and so did what belongs to it."""
    slower = Pair("another", 3.0, (1000, 300), ((50.0, 52.0), (60.0, 62.0)), (1000.0, 900.0), 10)
    rows = soonest([pair(10, 1.5, (60.0, 62.0), 45.0), slower]).splitlines()[2:]
    assert rows == ["| a task | 10 | 51.0 | 1.5 x 10 | 61.0 | 45 % |", "| another | 10 | 51.0 | 3 x 10 | 61.0 | 90 % |"]


def test_where_none_is_level_it_says_so():
    assert soonest([pair(40, 1.5, (90.0, 92.0), 200.0)]).splitlines()[2:] == ["| a task | 40 | 98.5 | none |  |  |"]


def test_the_gain_is_that_of_the_means_with_two_standard_errors():
    one = pair(10, 3.0, (60.0, 64.0), 90.0)
    assert one.gained == 11
    assert abs(one.error - 2 * (2 / 2 + 8 / 2) ** 0.5) < 1e-12
    assert one.row == "| a task | 1,000 | 51.0 ± 1.4 | 3x | 300 | 62.0 ± 2.8 | 90 % |"


def test_times_are_of_the_last_day_when_both_were_trained():
    def run(day, seconds):
        return {"machine": {"date": day}, "train_seconds": seconds, "decode_seconds": 1.0}

    baselines = [run("2026-01-01", 10.0), run("2026-01-02", 20.0), run("2026-01-02", 22.0), run("2026-01-03", 90.0)]
    own = [run("2026-01-01", 5.0), run("2026-01-02", 8.0)]
    assert _seconds(baselines, own) == (22.0, 9.0)
    assert _seconds(baselines, [run("2026-01-04", 8.0)]) is None

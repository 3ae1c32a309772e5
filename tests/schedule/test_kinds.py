from fractions import Fraction

import numpy as np
import pytest

from lightning_multigrid.schedule import Baseline, BatchShape, LongCycle, MultigridSchedule, ShortCycle

SHAPE = BatchShape(8, 8, 32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LongCycle((0.5, 1)), r"`factors` of LongCycle must be tuple\[tuple\[float, float\], ...\], got \(0.5"),
        (lambda: LongCycle(((0.5,),)), r"`factors` of LongCycle must .* got \(\(0.5,\),\)"),
        (lambda: ShortCycle(0.5), r"`factors` of ShortCycle must be tuple\[float, ...\], got 0.5"),
        (lambda: Baseline((8, 8, 32), 4), r"`shape` of Baseline must be BatchShape, got \(8, 8, 32\)"),
        (lambda: Baseline(SHAPE, "4"), r"`epochs` of Baseline must be int \| float \| Fraction, got '4'"),
        (
            lambda: MultigridSchedule(Baseline(SHAPE, 4), [[1, 1]]),
            r"`long_cycle` of MultigridSchedule must be LongCycle",
        ),
    ],
)
def test_a_value_of_another_kind_is_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_kinds_that_stand_for_others_are_accepted():
    baseline = Baseline(SHAPE, np.float32(8), milestones=[Fraction(9, 2), np.int64(6)], stride=np.int64(2))
    plain = MultigridSchedule(baseline, LongCycle([[0.5, 0.5], [1, 1]]), ShortCycle([0.5, 1]), np.float64(1.5))
    assert plain.phases == MultigridSchedule(baseline, LongCycle(((0.5, 0.5), (1, 1))), ShortCycle((0.5, 1))).phases


def test_numbers_become_pythons_own_as_they_were_written():
    baseline = Baseline(SHAPE, Fraction(np.int64(8)), np.array([4, 6]), np.int64(2), np.float32(1.1))
    schedule = MultigridSchedule(baseline, LongCycle(np.array([[0.5, 1]])), ShortCycle(np.array([0.5, 1])))
    assert baseline == Baseline(SHAPE, Fraction(8), (4, 6), 2, 1.1)
    factors = *schedule.long_cycle.factors[0], *schedule.short_cycle.factors
    found = baseline.epochs.numerator, baseline.stride, *baseline.milestones, baseline.warmup_epochs, *factors
    assert [type(number) for number in found] == [int] * 4 + [float] * 5
    assert type(MultigridSchedule(baseline, fine_tuning=True).fine_tuning) is bool

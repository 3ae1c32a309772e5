"""Schedules of random recipes."""

from fractions import Fraction

from hypothesis import strategies as st

from lightning_multigrid.schedule import Baseline, BatchShape, LongCycle, MultigridSchedule, ShortCycle

LONG = LongCycle(), LongCycle(((1, 1),)), LongCycle(((0.5, 0.71), (1, 0.71))), LongCycle(((0.63, 0.9), (0.52, 0.57)))
SHORT = ShortCycle(), ShortCycle((1,)), ShortCycle((0.5, 1)), ShortCycle((0.57, 0.9, 0.7, 0.51))


@st.composite
def schedules(draw):
    """With warm-up, ends within an epoch, divisors, one frame, odd sizes, one clip, and cycles of every kind."""
    epochs = draw(st.fractions(1, 12, max_denominator=7))
    shares = sorted(draw(st.sets(st.fractions(0, 1, max_denominator=9), max_size=3)) - {0, 1})
    milestones = tuple(share * epochs for share in shares)
    frames, size = draw(st.sampled_from([1, 4, 16, 18])), draw(st.sampled_from([5, 32, 96, 100]))
    baseline = Baseline(
        BatchShape(draw(st.integers(1, 9)), frames, size),
        epochs,
        milestones,
        warmup_epochs=draw(st.fractions(0, Fraction(6, 7), max_denominator=7)) * (milestones or (epochs,))[0],
    )
    return MultigridSchedule(
        baseline,
        draw(st.sampled_from(LONG)),
        draw(st.sampled_from(SHORT)),
        epoch_factor=draw(st.sampled_from([0.5, 1, 1.5, 3])),
        sub_batch=draw(st.sampled_from([1, 8, 16])),
        size_divisor=draw(st.sampled_from([1, 16])),
        frames_divisor=draw(st.sampled_from([1, 2])),
        stepwise=draw(st.booleans()),
        lr_scaling=draw(st.sampled_from(["linear", "sqrt", "none"])),
        fine_tuning=draw(st.booleans()),
    )

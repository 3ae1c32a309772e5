from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2

from lightning_multigrid import Augmentation, LongCycle, MultigridCallback, VideoDataModule
from lightning_multigrid.pixels.augment import OPERATIONS, draw_edits, erase, rand_augment
from tests.helpers.operations import Operations
from tests.helpers.recorder import Recorder
from tests.helpers.tiny import trainer
from tests.helpers.videos import write_video

MEAN, STD = (0.4, 0.45, 0.5), (0.2, 0.225, 0.25)
LABELS = torch.tensor([0, 1, 2, 3])
SEEDS = (11, 12, 13, 14)


def clips(*, still: bool = False) -> Tensor:
    """Four normalised clips of noise between black and white, 3 x 6 x 24 x 24; if they stand still, of one image."""
    noise = torch.rand(4, 3, 1 if still else 6, 24, 24, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(values).view(3, 1, 1, 1) for values in (MEAN, STD))
    return ((noise - mean) / std).expand(4, 3, 6, 24, 24).contiguous()


def augmented(
    augmentation: Augmentation, images: Tensor, labels: Tensor = LABELS, seeds: tuple[int, ...] = SEEDS
) -> tuple[Tensor, Tensor]:
    return augmentation.apply(images, labels, seeds, num_classes=5, mean=MEAN, std=STD)


EDITS = Augmentation(rand_augment=2, magnitude=20, erasing=0.7)


@pytest.mark.parametrize("augmentation", [EDITS, Augmentation(mixup=1, cutmix=1), Augmentation(1, 1, 2, 9, 1)])
def test_it_is_a_function_of_clips_and_seeds_that_leaves_the_random_state_alone(augmentation: Augmentation) -> None:
    images = clips()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = augmented(augmentation, images)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    second = augmented(augmentation, images)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert torch.equal(images, clips())  # the argument is not written to
    other = augmented(augmentation, images, seeds=(21, 22, 23, 24))
    assert not torch.equal(first[0], other[0])


def test_edits_of_a_clip_depend_on_its_own_seed_only() -> None:
    together, _ = augmented(EDITS, clips())
    alone, _ = augmented(EDITS, clips()[2:3], LABELS[2:3], SEEDS[2:3])
    assert torch.equal(together[2:3], alone)
    assert not torch.equal(*augmented(EDITS, clips()[:1].repeat(2, 1, 1, 1, 1), LABELS[:2], SEEDS[:2])[0])


def test_edits_are_the_same_for_all_frames_of_a_clip() -> None:
    changed = 0
    for seed in range(40):
        images = clips(still=True)[:1]
        [clip], _ = augmented(EDITS, images, LABELS[:1], (seed,))
        assert torch.equal(clip, clip[:, :1].expand_as(clip))
        changed += not torch.allclose(clip, images[0], atol=1e-4)
    assert changed > 30


@pytest.mark.parametrize("magnitude", [0, 9, 17, 30])
def test_the_operations_are_those_of_torchvision(magnitude: int) -> None:
    """What torchvision makes of a clip in many draws is what ours makes of it, in either direction."""
    clip = torch.rand(3, 5, 24, 24, generator=torch.Generator().manual_seed(0))
    theirs: list[Tensor] = []
    torch.manual_seed(0)
    for _ in range(300):
        made = v2.RandAugment(num_ops=1, magnitude=magnitude, fill=list(MEAN))(clip.transpose(0, 1)).transpose(0, 1)
        if not any(torch.equal(made, other) for other in theirs):
            theirs.append(made)
    edits = [(name, sign) for name in OPERATIONS for sign in (-1, 1)]
    whole = clip.expand(len(edits), -1, -1, -1, -1).contiguous()
    ours = rand_augment(whole, [edits], magnitude, torch.tensor(MEAN))
    # Where a pixel is taken from between two, rounding decides.
    same = torch.stack([((ours - made).abs() < 1e-3).flatten(1).float().mean(dim=1) > 0.98 for made in theirs])
    assert same.any(dim=0).all(), "ours are theirs"
    assert same.any(dim=1).all(), "theirs are ours"


@pytest.mark.parametrize("probability", [1.0, 0.5, 0.0])
def test_all_operations_are_drawn_equally_often(probability: float) -> None:
    drawn = Counter(edit for seed in range(2800) for edit in draw_edits(Random(seed), 2, probability))
    names = Counter({name: drawn[name, -1] + drawn[name, 1] for name in OPERATIONS})
    assert len(OPERATIONS) == 14
    assert names.total() == 5600
    assert all(abs(names[name] - 400 * probability) < 5 * 20 for name in OPERATIONS[1:])  # 5 standard deviations
    assert all(abs(drawn[name, 1] - 200 * probability) < 5 * 15 for name in OPERATIONS[1:])


def test_a_round_follows_the_other() -> None:
    rounds = [[("rotate", 1), ("contrast", -1), ("identity", 1), ("solarize", 1)], [("equalize", 1)] * 4]
    images = clips()
    pixels = images.clamp(0, 1)
    both = rand_augment(pixels, rounds, 9, torch.tensor(MEAN))
    for place in range(4):
        expected = pixels[place : place + 1]
        for edits in rounds:
            expected = rand_augment(expected, [edits[place : place + 1]], 9, torch.tensor(MEAN))
        assert torch.equal(both[place : place + 1], expected)


def test_many_clips_take_no_more_operations_than_some_and_nothing_is_read_back() -> None:
    """On the meta device, whose tensors have no values: as on a GPU, to read one would end the step's pace."""
    numbers = []
    for number in (128, 512):
        images = torch.empty(number, 3, 4, 24, 24, device="meta")
        with Operations() as operations:
            Augmentation(rand_augment=2, erasing=0.5).apply(
                images, LABELS, range(number), num_classes=5, mean=MEAN, std=STD
            )
        numbers.append(operations.number)
    assert numbers[0] == numbers[1]
    assert numbers[0] < 250


def test_noise_is_normal() -> None:
    images = torch.zeros(8, 3, 2, 100, 100)
    erased = erase(images, [(0, 100, 0, 100)] * 8, range(8))
    noise = erased[:, :, 0].flatten(1)
    assert torch.equal(erased[:, :, 1], erased[:, :, 0])
    assert noise.mean(dim=1).abs().max() < 5 / 30_000**0.5
    assert (noise.std(dim=1) - 1).abs().max() < 5 / 60_000**0.5
    assert abs((noise.abs() > 1.96).float().mean().item() - 0.05) < 0.005
    assert (torch.corrcoef(noise) - torch.eye(8)).abs().max() < 5 / 30_000**0.5
    beside = torch.corrcoef(torch.stack([noise[:, 1:].flatten(), noise[:, :-1].flatten()]))[0, 1]
    assert beside.abs() < 5 / 240_000**0.5


def test_erasing_fills_one_rectangle_with_noise() -> None:
    images = clips()
    edited, _ = augmented(Augmentation(erasing=1.0), images)
    shares = []
    for before, after in zip(images, edited, strict=True):
        mask = (before != after).all(dim=(0, 1))
        rows, columns = mask.any(dim=1), mask.any(dim=0)
        assert torch.equal(mask, rows[:, None] & columns[None])
        assert torch.equal(after[..., ~mask], before[..., ~mask])
        noise = after[..., mask]
        assert torch.equal(noise, noise[:, :1].expand_as(noise))
        shares.append(mask.float().mean().item())
    assert all(0.01 < share < 0.34 for share in shares)
    assert len(set(shares)) > 1


def test_operations_happen_with_their_probability() -> None:
    edited, _ = augmented(Augmentation(rand_augment=2, operation_probability=0.0), clips())
    assert torch.allclose(edited, clips(), atol=1e-5)


def test_erasing_happens_with_its_probability() -> None:
    images = clips()[:1].expand(400, 3, 6, 24, 24)
    edited, _ = augmented(Augmentation(erasing=0.25), images, torch.zeros(400), tuple(range(400)))
    erased = (edited != images).flatten(1).any(dim=1).float().mean().item()
    assert abs(erased - 0.25) < 0.08  # 4 standard deviations


def weights(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Share of each clip's own label and of the other one's."""
    return probabilities[range(4), LABELS], probabilities[range(4), LABELS[OTHER]]


OTHER = [3, 2, 0, 1]  # with which each of four clips is mixed


@pytest.mark.parametrize(("videos", "repeats"), [(2, 2), (3, 2), (6, 2), (3, 3), (3, 4), (4, 4)])
def test_clips_are_mixed_with_those_of_other_videos(videos: int, repeats: int) -> None:
    """Those of one video are neighbours."""
    labels = torch.arange(videos).repeat_interleave(repeats)
    count = len(labels)
    given = torch.zeros(count, 3, 1, 2, 2), labels, range(count)
    _, soft = Augmentation(mixup=1).apply(*given, num_classes=videos, mean=MEAN, std=STD)
    assert ((soft > 0).sum(dim=1) == 2).all()
    assert torch.equal(soft.sum(dim=1), torch.ones(count))


def test_mixup_weighs_clips_as_it_weighs_labels() -> None:
    images, seen = clips(), set()
    for seed in range(10):
        mixed, probabilities = augmented(Augmentation(mixup=0.8), images, seeds=(seed, 1, 2, 3))
        assert (probabilities.shape, probabilities.dtype) == ((4, 5), torch.float32)
        own, other = weights(probabilities)
        assert torch.allclose(own + other, torch.ones(4))
        scale = (4, 1, 1, 1, 1)
        assert torch.allclose(mixed, own.view(scale) * images + other.view(scale) * images[OTHER], atol=1e-5)
        seen.add(own[0].item())
    assert len(seen) == 10


def test_cutmix_takes_the_same_rectangle_of_all_frames_and_its_share_of_the_label() -> None:
    # Pixels tell which clip, frame and channel they are from.
    images = torch.arange(4.0 * 3 * 6).view(4, 3, 6, 1, 1).expand(4, 3, 6, 24, 24).contiguous()
    partly = 0
    for seed in range(10):
        mixed, probabilities = augmented(Augmentation(cutmix=1.0), images, seeds=(seed, 1, 2, 3))
        taken = mixed == images[OTHER]
        assert torch.equal(taken, taken[:1, :1, :1].expand_as(taken))
        assert torch.equal(mixed[~taken], images[~taken])
        mask = taken[0, 0, 0]
        assert torch.equal(mask, mask.any(dim=1)[:, None] & mask.any(dim=0)[None])
        own, other = weights(probabilities)
        assert torch.allclose(other, mask.float().mean().expand(4), atol=1e-6)
        assert torch.allclose(own, 1 - other)
        partly += 0 < mask.float().mean() < 1
    assert partly > 5


def test_of_mixup_and_cutmix_each_mini_batch_gets_one() -> None:
    images, kinds = clips(), []
    for seed in range(30):
        mixed, _ = augmented(Augmentation(mixup=1, cutmix=1), images, seeds=(seed, 1, 2, 3))
        kinds.append(bool(((mixed == images) | (mixed == images[OTHER])).all()))
    assert 5 < sum(kinds) < 25


def test_several_labels_per_clip_are_mixed_too() -> None:
    labels = torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]])
    mixed, soft = Augmentation(mixup=1).apply(clips(), labels, SEEDS, num_classes=3, mean=MEAN, std=STD)
    own = soft[2, 1]  # the other one has no such label
    assert 0 < own < 1
    assert torch.allclose(soft, own * labels + (1 - own) * labels[OTHER])
    assert mixed.shape == (4, 3, 6, 24, 24)


def test_a_single_clip_is_mixed_with_itself() -> None:
    images = clips()[:1]
    mixed, probabilities = augmented(Augmentation(mixup=1, cutmix=1), images, LABELS[:1], (3,))
    assert torch.allclose(mixed, images, atol=1e-6)
    assert torch.allclose(probabilities, torch.tensor([[1.0, 0, 0, 0, 0]]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mixup": -0.1}, r"`mixup` must be at least 0, which is none, got -0\.1"),
        ({"cutmix": -1}, r"`cutmix` must be at least 0, which is none, got -1"),
        ({"rand_augment": -1}, r"`rand_augment` must be at least 0, which is none, got -1"),
        ({"magnitude": 31}, r"`magnitude` must be in \[0, 30\], got 31"),
        ({"operation_probability": -0.5}, r"`operation_probability` must be a probability in \[0, 1\], got -0\.5"),
        ({"erasing": 1.5}, r"`erasing` must be a probability in \[0, 1\], got 1\.5"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation(**arguments)


@pytest.mark.cuda
def test_a_device_gives_what_the_cpu_gives() -> None:
    everything = Augmentation(mixup=1, cutmix=1, rand_augment=2, erasing=0.5)
    before = torch.cuda.get_rng_state()
    here = augmented(everything, clips())
    there = augmented(everything, clips().cuda(), LABELS.cuda())
    assert torch.equal(torch.cuda.get_rng_state(), before)
    # Of the operations that round, a few pixels may fall to the other side.
    assert (here[0] - there[0].cpu()).abs().gt(1e-2).float().mean() < 1e-2
    assert torch.allclose(here[1], there[1].cpu())


# --- In a fit ---


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for index in range(8):
        write_video(folder / f"{index}.mp4", np.random.default_rng(index).integers(0, 256, (8, 24, 32, 3), np.uint8))
    (folder / "list.csv").write_text("".join(f"{index % 8}.mp4 {index % 3}\n" for index in range(24)))
    return folder


EVERYTHING = Augmentation(mixup=0.8, cutmix=1.0, rand_augment=2, erasing=0.5)
COARSE = LongCycle(((0.5, 0.75), (1, 1)))


def fit(videos: Path, augment: Augmentation, workers: int = 0, precision: Any = "32-true") -> Recorder:
    L.seed_everything(0, verbose=False)
    lists, small = [videos / "list.csv"] * 2, {"batch_size": 2, "frames": 4, "size": 16, "stride": 1}
    data = VideoDataModule(*lists, **small, augment=augment, num_workers=workers)
    module, callback = Recorder(), MultigridCallback(epoch_factor=1, long_cycle=COARSE)
    trainer(callback, max_epochs=2, precision=precision, num_sanity_val_steps=0).fit(module, datamodule=data)
    return module


def test_training_clips_are_augmented_and_validation_is_not(videos: Path) -> None:
    plain, edited, workers = fit(videos, Augmentation()), fit(videos, EVERYTHING), fit(videos, EVERYTHING, workers=2)
    assert len({batch[0].shape for batch in edited.seen["train"]}) > 2
    for before, after, again in zip(plain.seen["train"], edited.seen["train"], workers.seen["train"], strict=True):
        assert before[0].shape == after[0].shape
        assert not torch.equal(before[0], after[0])
        assert after[1].shape == (len(after[0]), 3)
        assert torch.allclose(after[1].sum(dim=1), torch.ones(len(after[0])))
        # Where the clips were decoded changes nothing.
        assert torch.equal(after[0], again[0])
        assert torch.equal(after[1], again[1])
    for before, after in zip(plain.seen["val"], edited.seen["val"], strict=True):
        assert torch.equal(before[0], after[0])
        assert torch.equal(before[1], after[1])


def test_augmented_clips_have_the_precision_of_the_trainer(videos: Path) -> None:
    module = fit(videos, Augmentation(rand_augment=1), precision="bf16-true")
    assert {clips.dtype for clips, _ in module.seen["train"]} == {torch.bfloat16}
    assert {labels.dtype for _, labels in module.seen["train"]} == {torch.int64}

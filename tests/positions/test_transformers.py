"""Video models of transformers in plain Lightning scripts: their places on every grid of a multigrid training."""

from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate
from torch.testing import assert_close

from lightning_multigrid.positions import Following, patch_divisors

pytest.importorskip("transformers")

FRAMES, SIZE, TUBELET, PATCH = 8, 32, 2, 8
COMMON = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}
IMAGES = {**COMMON, "num_frames": FRAMES, "image_size": SIZE, "intermediate_size": 16}
ARGUMENTS = {
    "VideoMAE": {**IMAGES, "patch_size": PATCH, "tubelet_size": TUBELET},
    "Timesformer": {**IMAGES, "patch_size": PATCH},
    "Vivit": {**IMAGES, "tubelet_size": [TUBELET, PATCH, PATCH]},
    "VJEPA2": {
        **COMMON, "frames_per_clip": FRAMES, "crop_size": SIZE, "patch_size": PATCH, "tubelet_size": TUBELET,
        "mlp_ratio": 1, "num_pooler_layers": 1, "pred_hidden_size": 24, "pred_num_hidden_layers": 1,
        "pred_num_attention_heads": 2,
    },
}  # fmt: skip


def make(name, kind="ForVideoClassification", **arguments):
    library = import_module(f"transformers.models.{name.lower()}")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(library, f"{name}{kind}")(getattr(library, f"{name}Config")(**ARGUMENTS[name] | arguments))
        for parameter in model.parameters():  # tables and biases begin as zeros
            nn.init.normal_(parameter, std=0.1)
    return model.eval()


def part_of(model, name):
    return next(part for part in model.modules() if type(part).__name__ == name)


def clips(frames=FRAMES, size=SIZE, number=2):
    return torch.randn(number, frames, 3, size, size, generator=torch.Generator().manual_seed(1))


def on_grid(model, frames, size):
    following = Following(model, FRAMES, SIZE)
    following.set_grid(frames, size)
    return following


def test_divisors_are_those_of_the_patches():
    expected = {"VideoMAE": (2, 8), "Timesformer": (1, 8), "Vivit": (2, 8), "VJEPA2": (2, 8)}
    assert {name: patch_divisors(make(name)) for name in ARGUMENTS} == expected


def resized(table, before, after):
    """A table of tokens (T x H x W) x C on other tokens: each image by bicubic interpolation, then linear in time."""
    images = table.unflatten(0, before).permute(0, 3, 1, 2)
    if before[1:] != after[1:]:
        images = interpolate(images, size=after[1:], mode="bicubic")
    # Centre k + 1/2 of n is at (k + 1/2) N / n of N.
    places = (np.arange(after[0]) + 0.5) * before[0] / after[0] - 0.5
    values = images.permute(0, 2, 3, 1).flatten(1).detach().numpy()
    tracks = [np.interp(places, np.arange(before[0]), track) for track in values.T]
    return torch.tensor(np.stack(tracks, 1), dtype=table.dtype).reshape(-1, table.shape[1])


GRIDS = [(4, 16), (2, 24), (8, 16), (4, 32)]


@pytest.mark.parametrize(("frames", "size"), GRIDS)
def test_sinusoids_of_videomae_are_resized(frames, size):
    model = make("VideoMAE", "ForPreTraining", decoder_hidden_size=24, decoder_num_hidden_layers=1,
                 decoder_num_attention_heads=2, decoder_intermediate_size=8)  # fmt: skip
    grids = (4, 4, 4), (frames // TUBELET, size // PATCH, size // PATCH)
    parts = model, part_of(model, "VideoMAEEmbeddings")
    expected = [resized(part.position_embeddings[0], *grids) for part in parts]
    on_grid(model, frames, size)
    for part, table in zip(parts, expected, strict=True):
        assert_close(part.position_embeddings[0], table)
    masked = torch.zeros(2, len(table), dtype=torch.bool)
    masked[:, ::2] = True
    assert model(clips(frames, size), bool_masked_pos=masked).loss.isfinite()


@pytest.mark.parametrize(("frames", "size"), GRIDS)
def test_the_table_of_vivit_is_resized_and_the_whole_one_learns(frames, size):
    model = make("Vivit")
    embeddings = part_of(model, "VivitEmbeddings")
    whole = embeddings.position_embeddings
    table = resized(whole[0, 1:], (4, 4, 4), (frames // TUBELET, size // PATCH, size // PATCH))
    for part in (embeddings.patch_embeddings.projection.weight, embeddings.patch_embeddings.projection.bias):
        nn.init.zeros_(part)
    following = on_grid(model, frames, size)
    out = embeddings(clips(frames, size))
    assert_close(out[0, 1:], table)
    assert_close(out[0, :1], embeddings.cls_token[0] + whole[0, :1])  # the class token has no place
    (out**2).sum().backward()
    learns = whole.grad[0, 1:].unflatten(0, (4, -1)).abs().amin(-1).all(1)
    assert learns.tolist() == [frames > 2, True, True, frames > 2]  # a single tube is between the two in the middle
    following.restore()
    assert embeddings.position_embeddings is whole


def test_in_space_vivit_is_resized_as_by_its_own_function():
    embeddings = part_of(make("Vivit", num_frames=TUBELET), "VivitEmbeddings")  # the table of a single image
    embeddings.patch_embeddings.num_patches = 9  # else transformers 5 returns the whole table for any square
    own = embeddings.interpolate_pos_encoding(torch.zeros(1, 1 + 9, 24), 24, 24)
    embeddings.patch_embeddings.num_patches = 16
    following = Following(embeddings, TUBELET, SIZE)
    following.set_grid(TUBELET, 24)
    assert_close(embeddings.position_embeddings, own)
    whole = embeddings(clips(TUBELET, 24))
    assert_close(embeddings(clips(TUBELET, 24), interpolate_pos_encoding=True), whole)  # does not resize twice


def test_timesformer_is_as_one_that_was_built_for_the_grid():
    model, small = make("Timesformer"), make("Timesformer", num_frames=4, image_size=16)
    state = model.state_dict()
    for name, value in state.items():  # the library resizes its tables to the nearest row
        if name.endswith("position_embeddings"):
            images = value[0, 1:].unflatten(0, (4, 4))
            state[name] = torch.cat((value[:, :1], images[::2, ::2].flatten(0, 1)[None]), 1)
        elif name.endswith("time_embeddings"):
            state[name] = value[:, ::2]
    small.load_state_dict(state)
    on_grid(model, 4, 16)
    assert torch.equal(model(clips(4, 16)).logits, small(clips(4, 16)).logits)
    assert model.config.num_frames == FRAMES  # what a script may save meanwhile


def ids_on(model, frames, size):
    """Frame, row and column of each token, as rotary attention gets them."""
    attention = part_of(model, "VJEPA2RopeAttention")
    seen = []

    def note(qk, pos_ids):
        seen.append(pos_ids)
        return type(attention).apply_rotary_embeddings(attention, qk, pos_ids)

    attention.apply_rotary_embeddings = note
    model(clips(frames, size))
    del attention.apply_rotary_embeddings
    return [ids.float() for ids in seen[0]]


@pytest.mark.parametrize(("frames", "size"), [*GRIDS, (8, 32)])
def test_tokens_of_vjepa2_have_the_places_of_the_full_grid(frames, size):
    model = make("VJEPA2")
    t, h = frames // TUBELET, size // PATCH
    following = on_grid(model, frames, size)
    found = ids_on(model, frames, size)
    # Token k of n is at k N / n of the N = 4 tokens of the full grid.
    every = torch.cartesian_prod(torch.arange(t) * 4 / t, torch.arange(h) * 4 / h, torch.arange(h) * 4 / h)
    assert_close(torch.stack(found, 1), every)
    following.restore()
    # On the grid that it was built for, the library numbers them itself.
    assert_close(torch.stack(ids_on(model, FRAMES, SIZE), 1), torch.cartesian_prod(*[torch.arange(4.0)] * 3))


def test_vjepa2_keeps_the_type_of_its_weights():
    model = make("VJEPA2").bfloat16()
    on_grid(model, 2, 24)
    assert model(clips(2, 24).bfloat16()).logits.dtype == torch.bfloat16

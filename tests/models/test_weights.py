"""Published weights under every naming give the logits of the library they come from; hostile files are refused."""

import codecs
import collections
import hashlib
import logging
import math
import os
import pickle
import random
import re
import struct
import zipfile
import zlib

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torchvision.models import resnet50

from lightning_multigrid.models import (
    VideoResNet,
    export_weights,
    hugging_face,
    i3d_nl_r50,
    i3d_r50,
    load_weights,
    slow_r50,
    slowfast_r50,
    small_cnn,
)
from lightning_multigrid.models.weight_files import find_tensors, read_file
from lightning_multigrid.models.weight_names import name_tables
from tests.helpers.sampling import sampled

_DRAWN = random.Random(0)  # Python guarantees the same numbers on every machine
NOISE = torch.tensor([_DRAWN.uniform(-1, 1) for _ in range(65521)])


def noise(name, shape):
    """Numbers in [-1, 1] that depend on the name only."""
    count = math.prod(shape)
    start = zlib.crc32(name.encode()) % len(NOISE)
    return NOISE.roll(-start).repeat(count // len(NOISE) + 1)[:count].reshape(shape)


def fill(name, shape):
    """Stand-ins for trained weights, of sizes that keep activations moderate; a function of the name and shape."""
    values = noise(name, shape)
    if name.endswith("num_batches_tracked"):
        return torch.tensor(0)
    if len(shape) > 1:
        return values * math.sqrt(6 / math.prod(shape[1:])) * (0.2 if "nonlocal" in name else 1)
    if name.endswith(("weight", "_s")):
        return 0.6 + 0.2 * values
    if name.endswith(("running_var", "_riv")):
        return 1 + 0.5 * values
    return 0.1 * values


def clips(frames, size):
    return noise("clip", (2, 3, frames, size, size)) * 3**0.5


def filled(table, model):
    """A state dict under the names that are the table's keys."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    return {foreign: fill(foreign, shapes[name]) for foreign, name in table.items()}


def softmax_nl():
    return i3d_nl_r50(instantiation="softmax")


# Logits of the reference implementations themselves, built from their own configurations with 400 classes, filled by
# `fill` under *their* names, in evaluation mode without softmax: the first three of the first clip and the last three
# of the second, for clips of 8 x 64 and of 16 x 45. "own names" are of PySlowFast 287ec00; "Caffe2" too, filled
# under Caffe2's names and renamed by its converter; "pytorchvideo" of pytorchvideo 0.1.5 with a global pool. Where one
# of them wants a list of pathways, the slow one was `linspace(0, T - 1, T // 4).long()`.
GOLDEN = {
    ("own names", slowfast_r50): ([0.56232, -0.39555, -0.13935, 0.38844, -0.15929, -0.25748],
        [0.50143, -0.33884, -0.24429, 0.35737, -0.15229, -0.23205]),
    ("own names", i3d_r50): ([-0.02101, -0.40920, -0.17802, -0.69110, -0.31532, -0.05389],
        [-0.02622, -0.49887, -0.15370, -0.71198, -0.12678, 0.03022]),
    ("own names", i3d_nl_r50): ([-0.13004, -0.37617, -0.09085, -0.67158, -0.32520, -0.00046],
        [-0.07375, -0.47816, -0.05834, -0.65838, -0.16654, 0.08993]),
    ("own names", softmax_nl): ([-0.06477, -0.32775, -0.12840, -0.74901, -0.42342, -0.06298],
        [-0.02274, -0.41974, -0.10133, -0.71608, -0.24825, 0.02361]),
    ("own names", slow_r50): ([-0.01836, -0.50272, -0.34166, -0.33249, -0.34595, -0.04914],
        [-0.02741, -0.47844, -0.23737, -0.36556, -0.23532, -0.08596]),
    ("pytorchvideo", slowfast_r50): ([-0.56663, 0.28110, 0.17791, -0.20930, 0.08974, 0.14389],
        [-0.67589, 0.30841, 0.18202, -0.16249, 0.01601, 0.05890]),
    ("pytorchvideo, with a pool after res2", i3d_r50): ([0.03656, -0.09176, 0.44182, -0.12636, -0.24263, 0.02034],
        [-0.00219, -0.08589, 0.43596, -0.09898, -0.20658, 0.01378]),
    ("pytorchvideo", slow_r50): ([-0.55719, 0.20784, -0.48120, 0.45055, 0.54984, 0.20072],
        [-0.64366, 0.16236, -0.40933, 0.44810, 0.57784, 0.15699]),
    ("Caffe2", slowfast_r50): ([-0.29219, 0.42722, -0.02707, -0.39032, -0.21723, 0.34347],
        [-0.27180, 0.46458, 0.01702, -0.34983, -0.27566, 0.30932]),
    ("Caffe2", softmax_nl): ([-0.44855, -0.42201, 0.60300, 0.29970, -0.86156, 0.66251],
        [-0.24536, -0.24013, 0.53055, 0.22656, -0.77411, 0.53943]),
}  # fmt: skip


SAMPLE = (("own names", i3d_nl_r50), ("pytorchvideo", slowfast_r50), ("Caffe2", softmax_nl))


@pytest.mark.parametrize(
    ("naming", "factory"), sampled(GOLDEN, *SAMPLE), ids=lambda value: getattr(value, "__name__", value)
)
def test_logits_are_those_of_the_reference(naming, factory):
    model = factory().eval()
    report = load_weights(model, filled(name_tables(model.state_dict())[naming], model))
    assert (report.complete, report.naming) == (True, naming)
    for (frames, size), expected in zip([(8, 64), (16, 45)], GOLDEN[naming, factory], strict=True):
        with torch.no_grad():
            logits = model(clips(frames, size))
        shown = logits[0, :3].tolist() + logits[1, -3:].tolist()
        assert shown == pytest.approx(expected, abs=1e-4)


# Digests of sorted lines. pytorchvideo: "name shape" of each tensor in its model's state dict. Caffe2: each name that
# PySlowFast's converter maps to a name of its model, which are all of them but the counters of batches.
@pytest.mark.parametrize(
    ("factory", "naming", "digest"),
    [
        (slowfast_r50, "pytorchvideo", "b64258d537dd0d36"),
        (i3d_r50, "pytorchvideo, with a pool after res2", "60fa99d35e662721"),
        (slow_r50, "pytorchvideo", "908b21ac4c77775a"),
        (slowfast_r50, "Caffe2", "dde1d2b700132aea"),
        (i3d_r50, "Caffe2", "658fad5e14cc2c54"),
        (i3d_nl_r50, "Caffe2", "f18377e832732dce"),
    ],
)
def test_names_are_those_of_the_other_library(factory, naming, digest):
    with torch.device("meta"):
        state = factory().state_dict()
    table = name_tables(state)[naming]
    lines = sorted(table if naming == "Caffe2" else (f"{n} {tuple(state[own].shape)}" for n, own in table.items()))
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == digest


def test_names_that_only_begin_as_ours_are_their_own():
    names = ["s2.pathway0_res0.branch2.se.fc1.weight", "s3_fuse.conv_f2s.weight"]
    assert name_tables(names)["own names"] == {name: name for name in names}
    assert name_tables(names[:1])["pytorchvideo"] == {}


def test_an_inflated_resnet_of_frames_is_the_image_resnet():
    # Without extent in time, a clip of one frame is an image: torchvision's own network is the reference.
    images = resnet50(num_classes=7).eval()
    images.load_state_dict({name: fill(name, tensor.shape) for name, tensor in images.state_dict().items()})
    model = VideoResNet(7, stem_kernel=1, temporal_kernels=((1,) * 3, (1,) * 4, (1,) * 6, (1,) * 3)).eval()
    report = load_weights(model, images.state_dict())
    assert (report.complete, report.naming) == (True, "torchvision")
    batch = clips(1, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(batch), images(batch[:, :, 0]), atol=1e-4, rtol=0)


def test_inflated_kernels_add_up_to_the_image_kernel():
    images, model = resnet50(), i3d_r50()
    report = load_weights(model, images.state_dict())
    # 1 stem, 16 blocks of 3 convolutions, 4 shortcuts
    assert len(report.inflated) == 1 + 16 * 3 + 4
    assert set(report.mismatched) == {"head.projection.weight", "head.projection.bias"}
    assert not report.missing + report.unexpected
    stem = model.get_parameter("s1.pathway0_stem.conv.weight")
    assert stem.shape == (64, 3, 5, 7, 7)
    torch.testing.assert_close(stem.sum(2), images.conv1.weight)
    torch.testing.assert_close(stem[:, :, 0], stem[:, :, 4])
    assert torch.equal(model.get_parameter("s4.pathway0_res0.branch1_bn.weight"), images.layer3[0].downsample[1].weight)


@pytest.mark.parametrize("prefix", ["model.", "module.", "model._orig_mod."])
def test_names_may_begin_with_those_of_wrappers(prefix):
    ours, other = small_cnn(num_classes=3), small_cnn(num_classes=3)
    state = {f"{prefix}{name}": tensor for name, tensor in other.state_dict().items()}
    checkpoint = {"epoch": 4, "state_dict": state, "hyper_parameters": {"lr": 0.1}}
    assert load_weights(ours, checkpoint).complete
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in other.state_dict().items())


def test_another_number_of_classes_keeps_the_body_and_says_so(caplog):
    ours, other = small_cnn(num_classes=3), small_cnn(num_classes=5)
    own_head = ours.projection.weight.clone()
    report = load_weights(ours, other.state_dict())
    assert report.mismatched == {"projection.weight": ((5, 64), (3, 64)), "projection.bias": ((5,), (3,))}
    assert torch.equal(ours.projection.weight, own_head)
    assert torch.equal(ours.stem.weight, other.stem.weight)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    caplog.clear()
    with torch.device("meta"):
        kinetics = slow_r50(num_classes=400).state_dict()
    given = {name: torch.zeros(tensor.shape) for name, tensor in kinetics.items() if name.startswith(("head", "s1"))}
    load_weights(slow_r50(num_classes=174), given)
    assert "head.projection.weight (400 x 2048, not 174 x 2048)" in caplog.text


def test_every_tensor_is_accounted_for():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    given = dict(model.state_dict())
    del given["1.bias"], given["1.num_batches_tracked"]
    given |= {"extra": torch.zeros(1), "0.weight": torch.zeros(4, 2)}
    report = load_weights(model, given)
    assert report.missing == ("1.bias",)  # counters of batches are not worth a word
    assert report.unexpected == ("extra",)
    assert report.mismatched == {"0.weight": ((4, 2), (3, 2))}
    assert set(report.loaded) == {"0.bias", "1.weight", "1.running_mean", "1.running_var", "2.weight", "2.bias"}
    assert str(report).splitlines() == [
        "6 tensors loaded (own names), 0 of them inflated over time.",
        "1 of the model keep their values, as the weights have another shape: 0.weight (4 x 2, not 3 x 2)",
        "1 of the model keep their values, as the weights lack them: 1.bias",
        "1 of the weights are left out, as the model lacks them: extra",
    ]


def test_no_kind_of_tensor_hides_behind_the_many_of_another():
    body = nn.Sequential(*(nn.Linear(2, 2) for _ in range(12)))
    model = nn.ModuleDict({"blocks": body, "z_norm": nn.LayerNorm(2)})
    report = load_weights(model, {f"blocks.{block}.weight": torch.zeros(2, 2) for block in range(11)})
    assert str(report).splitlines()[1:] == [
        "15 of the model keep their values, as the weights lack them: blocks.*.bias (12), blocks.11.weight,"
        " z_norm.weight, z_norm.bias"
    ]
    layers = {"".join(chr(ord("a") + int(digit)) for digit in str(number)): nn.Linear(2, 2) for number in range(10, 16)}
    report = load_weights(nn.ModuleDict(layers), {"ba.weight": torch.zeros(2, 2)})
    named = "ba.bias, bb.weight, bb.bias, bc.weight, bc.bias, bd.weight, bd.bias, be.weight"
    assert str(report).endswith(f": {named} and 3 more")


# --- Files of the Hugging Face Hub ---

_SETTINGS = {"hidden_size": 24, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 32}
_SETTINGS |= {"image_size": 32, "num_frames": 4}
OF_HUB = {"videomae": _SETTINGS | {"patch_size": 16}, "vivit": _SETTINGS | {"tubelet_size": [2, 16, 16]}}
# Names in transformers 5 and in the files of the Hub, which are also the names in 4.57.
HUB_NAMES = [
    (r"(videomae\..*)\.query\.bias", r"\1.q_bias"),
    (r"(videomae\..*)\.value\.bias", r"\1.v_bias"),
    (r"vivit\.layers\.", r"vivit.encoder.layer."),
    (r"(vivit\..*)\.attention\.q_proj\.", r"\1.attention.attention.query."),
    (r"(vivit\..*)\.attention\.k_proj\.", r"\1.attention.attention.key."),
    (r"(vivit\..*)\.attention\.v_proj\.", r"\1.attention.attention.value."),
    (r"(vivit\..*)\.attention\.o_proj\.", r"\1.attention.output.dense."),
    (r"(vivit\..*)\.mlp\.fc1\.", r"\1.intermediate.dense."),
    (r"(vivit\..*)\.mlp\.fc2\.", r"\1.output.dense."),
]
# Some names of `pytorch_model.bin` in MCG-NJU/videomae-base and google/vivit-b-16x2-kinetics400.
KNOWN = {
    "videomae": {"q_bias", "v_bias", "key.weight", "query.weight"},
    "vivit": {"query.weight", "query.bias", "key.bias"},
}


def hub_file(kind):
    """A classifier's file as on the Hub, with drawn values: of 7 classes, and with a tensor that no model has."""
    state, names = hugging_face(kind, 7, OF_HUB[kind]).model.state_dict(), {}
    for name in state:
        names[name] = name
        for own, hub in HUB_NAMES:
            names[name] = re.sub(own, hub, names[name])
    assert {f"{kind}.encoder.layer.0.attention.attention.{known}" for known in KNOWN[kind]} <= {*names.values()}
    given = {hub: fill(hub, state[name].shape) for name, hub in names.items()}
    return given | {"decoder.norm.weight": torch.zeros(3)}


@pytest.mark.parametrize("kind", OF_HUB)
@pytest.mark.parametrize("prefix", ["", "model.model."])
def test_weights_of_the_hub_come_as_transformers_reads_them(kind, prefix, tmp_path, capfd):
    pytest.importorskip("transformers")
    given = hub_file(kind)
    model, reference = (hugging_face(kind, 4, OF_HUB[kind]).model for _ in range(2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    reference.config.save_pretrained(tmp_path)
    safetensors.torch.save_file(given, tmp_path / "model.safetensors", metadata={"format": "pt"})
    reference = type(model).from_pretrained(tmp_path, ignore_mismatched_sizes=True).state_dict()
    capfd.readouterr()
    random_state, config = torch.get_rng_state(), model.config.to_dict()
    report = load_weights(model, {prefix + name: tensor for name, tensor in given.items()})
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model.config.to_dict() == config
    assert "LOAD REPORT" not in capfd.readouterr().err  # of transformers, on a model that nobody sees
    head = {"classifier.weight": ((7, 24), (4, 24)), "classifier.bias": ((7,), (4,))}
    assert report.mismatched == head
    assert not report.missing
    assert [name.removeprefix(prefix) for name in report.unexpected] == ["decoder.norm.weight"]
    assert {*report.loaded} == reference.keys() - head.keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name] if name in head else reference[name]), name


@pytest.mark.parametrize("kind", OF_HUB)
def test_a_body_of_the_hub_fits_a_classifier_and_a_body(kind):
    """Files of models without a head lack the first part of the names."""
    transformers = pytest.importorskip("transformers")
    given = {name.removeprefix(f"{kind}."): tensor for name, tensor in hub_file(kind).items() if name.startswith(kind)}
    classifier = hugging_face(kind, 4, OF_HUB[kind]).model
    head = [name for name in classifier.state_dict() if not name.startswith(kind)]
    report = load_weights(classifier, given)
    assert [*report.missing] == head
    assert not report.unexpected
    body = transformers.AutoModel.from_config(classifier.config)
    load_weights(body, given)
    of_body, whole = body.state_dict(), classifier.state_dict()
    for name in whole.keys() - {*head}:
        assert torch.equal(of_body[name.removeprefix(f"{kind}.")], whole[name]), name


def test_renamed_tensors_of_another_shape_keep_their_values_and_are_named():
    pytest.importorskip("transformers")
    model = hugging_face("vivit", 4, OF_HUB["vivit"] | {"intermediate_size": 16}).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = load_weights(model, hub_file("vivit"))
    narrow = re.compile(r"\.(fc1|intermediate)\.|\.(fc2|\d+\.output\.dense)\.weight")
    other = [name for name in before if narrow.search(name)]
    assert {*report.mismatched} == {*other, "classifier.weight", "classifier.bias"}
    assert not report.missing
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in report.mismatched)


@pytest.mark.parametrize("head", [lambda: nn.Linear(24, 3), lambda: nn.Sequential(nn.Dropout(), nn.Linear(24, 3))])
def test_a_head_that_was_replaced_keeps_its_values_and_the_rest_is_read(head):
    pytest.importorskip("transformers")
    model = hugging_face("videomae", 7, OF_HUB["videomae"]).model
    model.classifier = head()
    own = [name for name in model.state_dict() if name.startswith("classifier.")]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    report = load_weights(model, given := hub_file("videomae"))
    assert {*report.missing, *report.mismatched} == {*own}
    assert {"classifier.weight", "classifier.bias"} <= {*report.unexpected, *report.mismatched}
    state = model.state_dict()
    assert all(torch.equal(state[name], before[name]) for name in own)
    of_block = "videomae.encoder.layer.0.attention.attention"
    bias = next(name for name in state if name.startswith(of_block) and re.search(r"(query\.|q_)bias$", name))
    assert torch.equal(state[bias], given[f"{of_block}.q_bias"])


def test_a_model_that_is_made_in_another_way_gets_what_fits_by_its_names(caplog):
    transformers = pytest.importorskip("transformers")

    class Mine(transformers.VideoMAEForVideoClassification):
        def __init__(self, config, classes):
            super().__init__(config)

    model = Mine(hugging_face("videomae", 7, OF_HUB["videomae"]).model.config, classes=7)
    given = {name: fill(name, tensor.shape) for name, tensor in model.state_dict().items()}
    given["renamed.weight"] = given.pop(missing := "videomae.encoder.layer.0.attention.attention.query.weight")
    report = load_weights(model, given)
    assert report.missing == (missing,)
    assert "transformers can't read the weights for Mine" in caplog.text


def test_weights_without_a_fitting_tensor_are_refused():
    said = r"^The mapping has no tensor that fits SmallCNN: it has `encoder\.weight`; the model has `stem\.weight`, .*"
    with pytest.raises(ValueError, match=rf"{said}Build the model that the weights are for"):
        load_weights(small_cnn(num_classes=2), {"encoder.weight": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"it has none; the model has"):
        load_weights(small_cnn(num_classes=2), {})


def test_what_is_no_mapping_is_refused(tmp_path):
    for content, kind in (([torch.zeros(1)], "list"), (torch.zeros(1), "Tensor")):
        torch.save(content, tmp_path / "other.pyth")
        match = rf"other\.pyth holds {kind}, a mapping of names to tensors is required\. Save the state"
        with pytest.raises(TypeError, match=match):
            load_weights(small_cnn(num_classes=2), tmp_path / "other.pyth")


def test_files_of_safetensors_are_read_and_damaged_ones_named(tmp_path):
    model, other, path = small_cnn(num_classes=9), small_cnn(num_classes=9), tmp_path / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), path)
    assert load_weights(other, path).complete
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or not a file of weights: .+\. Download it"):
        load_weights(other, path)


def test_half_precision_comes_as_the_models_own():
    model = nn.Linear(2, 1)
    load_weights(model, {"weight": torch.tensor([[0.5, 2.0]], dtype=torch.float16), "bias": torch.zeros(1)})
    assert (model.weight.dtype, model.weight.tolist()) == (torch.float32, [[0.5, 2.0]])


def test_export_is_pyslowfasts_checkpoint_and_the_way_back(tmp_path):
    model = small_cnn(num_classes=9)
    export_weights(model, tmp_path / "slow.pyth")
    [(kind, state)] = torch.load(tmp_path / "slow.pyth", weights_only=True).items()
    assert (kind, state.keys()) == ("model_state", model.state_dict().keys())
    other = small_cnn(num_classes=9)
    assert load_weights(other, tmp_path / "slow.pyth").complete
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in model.state_dict().items())


class Hostile:
    """Unpickling it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (os.fspath(self.folder),)


@pytest.mark.parametrize("suffix", ["pyth", "pkl"])
@pytest.mark.parametrize("writer", ["archive", "old torch", "pickle"])
def test_a_hostile_file_is_refused_and_not_run(tmp_path, writer, suffix):
    path, folder = tmp_path / f"weights.{suffix}", tmp_path / "owned"
    content = {"model_state": {"weight": Hostile(folder)}}
    if writer == "pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=writer == "archive")
    message = r"weights\.\w+ asks for `\w+\.mkdir`\. Only tensors, arrays and plain containers are read"
    with pytest.raises(ValueError, match=message):
        load_weights(nn.Linear(2, 1), path)
    assert not folder.exists()
    # The file is what it claims to be: whoever trusts it runs it.
    if writer == "pickle":
        pickle.loads(path.read_bytes())
        assert folder.exists()


def test_a_flipped_bit_is_refused(tmp_path):
    """Of the bits of tensors, torch takes any for good: the checksums are in the file, but it does not look at them."""
    weights = small_cnn(num_classes=4).state_dict()
    torch.save({"model_state": weights}, path := tmp_path / "weights.pyth")
    data, draw, refused = path.read_bytes(), random.Random(0), 0
    for _ in range(60):
        flipped = bytearray(data)
        flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        model = small_cnn(num_classes=4)
        try:
            load_weights(model, path)
        except ValueError as error:
            refused += "weights.pyth is damaged" in str(error)
        else:  # a bit that says nothing: a date, or what fills up the space before a tensor
            assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in weights.items())
    assert refused > 50


def test_a_file_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(small_cnn(num_classes=4).state_dict(), tmp_path / "weights.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert not load_weights(small_cnn(num_classes=4), tmp_path / "weights.pt").missing


@pytest.mark.parametrize(
    "content", [b"", b"not a file of weights", b"PK\x03\x04 cut", pickle.dumps({"blobs": 1}, protocol=2)[:9]]
)
def test_a_damaged_file_is_named(tmp_path, content):
    (path := tmp_path / "weights.pkl").write_bytes(content)
    with pytest.raises(ValueError, match=r"weights\.pkl is damaged or not a file of weights: .+\. Download it again"):
        load_weights(nn.Linear(2, 1), path)


def python2_pickle(name, values):
    """The bytes that Python 2 and NumPy 1 wrote for {"blobs": {name: values as float32}}: strings are bytes there."""

    def text(value):
        return b"U" + struct.pack("B", len(value)) + value

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"f4") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    content = struct.pack(f"<{len(values)}f", *values)
    state = b"(K\x01K" + struct.pack("B", len(values)) + b"\x85" + dtype + b"\x89" + text(content) + b"tb"
    return b"\x80\x02}" + text(b"blobs") + b"}" + text(name) + array + state + b"ss."


def test_caffe2_file_of_python_2(tmp_path):
    values = [1.5, -2.25, 1e30, 0.0]  # their bytes are not all ASCII
    (path := tmp_path / "model.pkl").write_bytes(python2_pickle(b"pred_b", values))
    # NumPy agrees that this is such a file.
    assert pickle.loads(path.read_bytes(), encoding="latin1")["blobs"]["pred_b"].tolist() == pytest.approx(values)
    model = slow_r50(num_classes=4)
    report = load_weights(model, path)
    assert (report.loaded, report.naming) == (("head.projection.bias",), "Caffe2")
    assert model.head.projection.bias.tolist() == pytest.approx(values)


def test_caffe2_leaves_its_optimizer_behind_and_its_classifier_is_a_convolution(tmp_path):
    model = slow_r50(num_classes=4)
    blobs = {"pred_w": np.arange(4 * 2048, dtype=np.float32).reshape(4, 2048, 1, 1, 1)}
    blobs |= {"pred_w_momentum": np.zeros((4, 2048), np.float32), "model_iter": np.zeros(1, np.int64)}
    blobs |= dict.fromkeys(("lr", "unheard_of_w"), np.zeros(1, np.float32))
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"blobs": blobs, "cfg": "SOLVER: ..."}, protocol=2))
    report = load_weights(model, tmp_path / "model.pkl")
    assert report.unexpected == ("unheard_of_w",)
    assert model.head.projection.weight[3, 2047] == 4 * 2048 - 1


@pytest.mark.parametrize("protocol", range(5))  # those of Python 2, and of Python 3 before 3.14
def test_arrays_come_as_numpy_would_read_them(tmp_path, protocol):
    arrays = collections.OrderedDict(
        rows=np.arange(6, dtype=np.float32).reshape(2, 3),
        columns=np.asfortranarray(np.arange(24, dtype=np.float64).reshape(2, 3, 4)),
        halves=np.array([0.5, 65504], dtype=np.float16),
        counters=np.array([2**40, -1]),
        number=np.array(7, dtype=np.int32),
        nothing=np.zeros((0, 3), dtype=np.float32),
    )
    (path := tmp_path / "arrays.pkl").write_bytes(pickle.dumps(arrays, protocol=protocol))
    read = find_tensors(read_file(path), str(path))
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        assert read[name].numpy().dtype == array.dtype
        np.testing.assert_array_equal(read[name].numpy(), array)


class AsText:
    """Bytes that Python 3 would write as text, here in an encoding that can't hold them."""

    def __reduce__(self):
        return codecs.encode, ("text", "utf-16")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.array([1.0], dtype=">f4"), r"big-endian array"),
        (np.array([None], dtype=object), r"array of dtype 'O8'"),
        (np.array(["text"]), r"array of dtype 'U4'"),
        (AsText(), "text in 'utf-16'"),
    ],
)
def test_arrays_of_other_kinds_are_refused(tmp_path, content, message):
    (path := tmp_path / "arrays.pkl").write_bytes(pickle.dumps({"blobs": {"w": content}}, protocol=2))
    with pytest.raises(ValueError, match=message):
        read_file(path)


@pytest.mark.timeout(60)
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("archive/data/0", "w") as part:
        for _ in range(256):
            part.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    with pytest.raises(ValueError, match=r"bomb\.pt is damaged or not .*: its parts are larger than the file\. "):
        load_weights(nn.Linear(2, 1), path)

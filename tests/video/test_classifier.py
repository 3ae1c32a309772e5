import math

import lightning as L
import numpy as np
import pytest
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightning_multigrid.video.classifier import VideoClassifier, layer_scales
from tests.helpers.tiny import QUIET, trainer

CLASSES = 7


class TinyModel(nn.Module):
    """A convolution, a norm layer and a linear layer: one of each kind of parameter."""

    def __init__(self, num_classes=CLASSES):
        super().__init__()
        self.conv = nn.Conv3d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm3d(4)
        self.head = nn.Linear(4, num_classes)

    def forward(self, clips):
        return self.head(self.norm(self.conv(clips)).mean(dim=(2, 3, 4)))


def make_trainer(**kwargs):
    return L.Trainer(accelerator="cpu", log_every_n_steps=1, **QUIET, **kwargs)


def random_data(clips=10, multi_label=False, batch_size=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if multi_label:
        labels = torch.randint(0, 2, (clips, CLASSES), generator=generator)
    else:
        labels = torch.randint(0, CLASSES, (clips,), generator=generator)
    dataset = TensorDataset(torch.randn(clips, 3, 2, 5, 5, generator=generator), labels)
    return DataLoader(dataset, batch_size=batch_size)


def batches_of(*batches):
    return DataLoader(batches, batch_size=None)


class LearningRates(L.Callback):
    """What each mini-batch is trained with."""

    def __init__(self):
        self.used = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        (optimizer,) = trainer.optimizers
        self.used.append(optimizer.param_groups[0]["lr"])


def approx(values):
    return pytest.approx(values, abs=1e-9)


HALF = math.sqrt(0.5)
EIGHTHS = [(1 + math.cos(number * math.pi / 8)) / 2 for number in range(8)]
CONSTANT, COSINE = {"schedule": "constant"}, {"schedule": "cosine"}
ONCE, TWICE, TRIAL = {"max_epochs": 1}, {"max_epochs": 2}, {"fast_dev_run": True}
HALVED = {"max_epochs": 2, "accumulate_grad_batches": 2}


def steps(*milestones, **recipe):
    return {"schedule": "steps", "milestones": milestones, **recipe}


def warm(epochs, start=0.01):
    return {"warmup_epochs": epochs, "warmup_start_factor": start}


def until(step):
    return {"max_steps": step, "max_epochs": -1}


class TestLearningRate:
    @pytest.mark.parametrize(
        ("batches", "arguments", "recipe", "expected"),
        [
            (4, TWICE, CONSTANT | {"lr": 0.3}, [0.3] * 8),
            # Steps at the starts of epochs, and within them.
            (2, {"max_epochs": 3}, steps(1, 2, lr=0.1), [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]),
            (4, TWICE, steps(0.5, 1.25, gamma=0.5), [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
            # A cosine ends with the training, whose length may be a number of steps.
            (4, TWICE, COSINE, EIGHTHS),
            (4, until(2), COSINE, [1, 0.5]),
            # A warm-up counts steps of the optimizer (of 2, 2 and 1 mini-batches), and is one of them at least.
            (4, TWICE, CONSTANT | warm(1, 0.2), [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1]),
            (4, until(3), CONSTANT | warm(0.5, 0.5), [0.5, 0.75, 1]),
            (5, HALVED, CONSTANT | warm(1, 0.25), [0.25, 0.25, 0.5, 0.5, 0.75, 1, 1, 1, 1, 1]),
            (4, ONCE, CONSTANT | warm(0.1), [0.01, 1, 1, 1]),
            (4, TRIAL, COSINE | warm(1), [0.01]),
            # After a warm-up, milestones stay where they are, and a cosine still ends with the training.
            (4, TWICE, steps(1) | warm(0.5, 0.5), [0.5, 0.75, 1, 1, 0.1, 0.1, 0.1, 0.1]),
            (6, ONCE, COSINE | warm(1 / 3, 0.5), [0.5, 0.75, 1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2]),
        ],
    )
    def test_of_each_step(self, batches, arguments, recipe, expected):
        recorder = LearningRates()
        classifier = VideoClassifier(TinyModel(), CLASSES, **{"lr": 1.0, **recipe})
        make_trainer(callbacks=[recorder], **arguments).fit(classifier, random_data(clips=batches, batch_size=1))
        assert recorder.used == approx(expected)

    @pytest.mark.parametrize(
        ("recipe", "per_epoch"),
        [
            (steps(1, 3), [1, 0.1, 0.1, 0.01]),
            (steps(1.6, 3), [1, 1, 0.1, 0.01]),
            (steps(3) | warm(2, 0.5), [0.5, 0.75, 1, 0.1]),
            (COSINE, [1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2]),
        ],
    )
    def test_without_a_fit_the_recipe_is_in_whole_epochs(self, recipe, per_epoch):
        classifier = VideoClassifier(TinyModel(), CLASSES, lr=1.0, **recipe)
        classifier.trainer = make_trainer(max_epochs=4)
        configured = classifier.configure_optimizers()
        assert configured["lr_scheduler"]["interval"] == "epoch"
        trace = []
        for _ in per_epoch:
            trace.append(configured["optimizer"].param_groups[0]["lr"])
            configured["optimizer"].step()
            configured["lr_scheduler"]["scheduler"].step()
        assert trace == approx(per_epoch)

    def test_warmup_of_data_without_a_length(self):
        class Stream(IterableDataset):
            def __iter__(self):
                yield torch.zeros(3, 2, 5, 5), 0

        classifier = VideoClassifier(TinyModel(), CLASSES, schedule="constant", warmup_epochs=1)
        with pytest.raises(MisconfigurationException, match=r"data have no length. Set `limit_train_batches` in"):
            make_trainer(max_epochs=1).fit(classifier, DataLoader(Stream()))

    def test_cosine_needs_an_end(self):
        classifier = VideoClassifier(TinyModel(), CLASSES, schedule="cosine")
        classifier.trainer = make_trainer(max_epochs=-1)
        with pytest.raises(MisconfigurationException, match=r"`max_epochs=-1`. Set `max_epochs` in the Trainer"):
            classifier.configure_optimizers()


class TestOptimizer:
    @staticmethod
    def decays(**recipe):
        """The weight decay of each parameter, by name."""
        classifier = VideoClassifier(TinyModel(), CLASSES, schedule="constant", **recipe)
        names = {id(parameter): name for name, parameter in classifier.model.named_parameters()}
        optimizer = classifier.configure_optimizers()
        return {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}

    def test_norm_layers_and_biases_have_their_own_weight_decay(self):
        others = dict.fromkeys(("conv.bias", "norm.weight", "norm.bias", "head.bias"), 1e-5)
        expected = {"conv.weight": 1e-3, "head.weight": 1e-3, **others}
        assert self.decays(weight_decay=1e-3, norm_weight_decay=1e-5) == expected

    def test_frozen_parameters_are_left_out(self):
        model = TinyModel()
        model.conv.requires_grad_(False)
        optimizer = VideoClassifier(model, CLASSES, schedule="constant").configure_optimizers()
        assert sum(len(group["params"]) for group in optimizer.param_groups) == 2 + 2

    def test_a_step_is_that_of_nesterov_sgd_with_decay(self):
        """Two steps of one weight, written out."""
        model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2, bias=False))
        nn.init.constant_(model[1].weight, 0.5)
        recipe = {"lr": 0.2, "momentum": 0.5, "nesterov": True, "weight_decay": 0.1}
        classifier = VideoClassifier(model, 2, schedule="constant", **recipe)
        clip, label = torch.ones(1, 3, 1, 1, 1), torch.zeros(1, dtype=torch.long)
        make_trainer(max_steps=2, max_epochs=-1).fit(classifier, batches_of((clip, label), (clip, label)))
        weights, velocity = np.full((2, 3), 0.5), np.zeros((2, 3))
        for _ in range(2):
            scores = np.exp(weights.sum(axis=1))
            error = scores / scores.sum() - np.array([1, 0])
            gradient = np.outer(error, np.ones(3)) + 0.1 * weights
            velocity = 0.5 * velocity + gradient
            weights = weights - 0.2 * (gradient + 0.5 * velocity)
        np.testing.assert_allclose(model[1].weight.detach().numpy(), weights, rtol=1e-5)

    def test_any_optimizer_has_its_own_settings_and_the_weight_decays(self):
        def adamw(groups):
            return torch.optim.AdamW(groups, lr=0.02, betas=(0.8, 0.9))

        classifier = VideoClassifier(TinyModel(), CLASSES, optimizer=adamw, weight_decay=0.3, schedule="constant")
        optimizer = classifier.configure_optimizers()
        assert type(optimizer) is torch.optim.AdamW
        settings = [(group["lr"], group["betas"], group["weight_decay"]) for group in optimizer.param_groups]
        assert settings == [(0.02, (0.8, 0.9), 0.3), (0.02, (0.8, 0.9), 0.0)]
        assert optimizer.param_groups[0].keys() == adamw([nn.Parameter(torch.ones(1))]).param_groups[0].keys()


class TestLayerDecay:
    def test_the_scales_are_those_of_timm(self):
        timm = pytest.importorskip("timm")
        optim = pytest.importorskip("timm.optim")
        model = timm.create_model("vit_tiny_patch16_224", depth=3, embed_dim=12, num_heads=2, num_classes=4)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = optim.param_groups_layer_decay(model, layer_decay=0.7)
        theirs = {names[id(parameter)]: group["lr_scale"] for group in groups for parameter in group["params"]}
        # timm counts the last norm layer to the last block; here, as in BEiT and VideoMAE, it learns with the head.
        assert layer_scales(model, 0.7) == pytest.approx(theirs | {"norm.weight": 1, "norm.bias": 1})

    def test_groups_have_the_scaled_lr(self):
        model = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.Linear(3, 2))
        optimizer = VideoClassifier(model, 2, lr=0.8, layer_decay=0.5, schedule="constant").configure_optimizers()
        # The model is itself the list of blocks, and its head is the last of them.
        assert [(group["lr"], len(group["params"])) for group in optimizer.param_groups] == [
            (0.4, 1), (0.4, 1), (0.2, 1), (0.2, 1)
        ]  # fmt: skip

    def test_a_model_without_blocks_is_refused(self):
        with pytest.raises(ValueError, match=r"`layer_decay=0.5` needs a list of blocks, and TinyModel has none"):
            layer_scales(TinyModel(), 0.5)


def numpy_logits(model, loader):
    with torch.no_grad():
        pairs = [(model.eval()(clips), labels) for clips, labels in loader]
    return (np.concatenate([pair[side].numpy() for pair in pairs]).astype(np.float64) for side in (0, 1))


def numpy_top(logits, labels, k):
    """Share of the clips with fewer than k classes above the right one."""
    right = logits[np.arange(len(labels)), labels.astype(int)]
    return np.mean((logits > right[:, None]).sum(axis=1) < k)


def numpy_average_precision(scores, labels):
    """Mean over the positives of the share of positives among the clips that score at least as much."""
    positives = scores[labels == 1]
    return np.mean([labels[scores >= score].mean() for score in positives])


class TestMetrics:
    def test_accuracy_and_loss_are_those_of_all_clips(self):
        """37 clips in mini-batches of 8, the last one smaller."""
        loader, model = random_data(clips=37, batch_size=8), TinyModel()
        (logged,) = make_trainer().validate(VideoClassifier(model, CLASSES), loader, verbose=False)
        logits, labels = numpy_logits(model, loader)
        log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        losses = [-row[int(k)] for row, k in zip(log_probabilities, labels, strict=True)]
        ranks = {f"val/top{k}": pytest.approx(numpy_top(logits, labels, k)) for k in (1, 5)}
        assert logged == {"val/loss": pytest.approx(np.mean(losses), rel=1e-5)} | ranks

    def test_mean_average_precision_leaves_out_classes_without_positives(self):
        torch.manual_seed(0)  # with some weights, two logits differ by so little that rounding decides their ranks
        loader, model = random_data(clips=37, multi_label=True, batch_size=8), TinyModel()
        loader.dataset.tensors[1][:, 2] = 0
        (logged,) = make_trainer().test(VideoClassifier(model, CLASSES, loss="bce"), loader, verbose=False)
        logits, labels = numpy_logits(model, loader)
        present = [index for index in range(CLASSES) if index != 2]
        losses = np.log1p(np.exp(-logits)) * labels + np.log1p(np.exp(logits)) * (1 - labels)
        precisions = [numpy_average_precision(logits[:, index], labels[:, index]) for index in present]
        loss, mean = pytest.approx(losses.mean(), rel=1e-5), pytest.approx(np.mean(precisions))
        assert logged == {"test/loss": loss, "test/map": mean}


class TestSteps:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_mixed_clips_have_the_cross_entropy_of_their_probabilities(self, smoothing):
        clips, labels = torch.randn(2, 3, 2, 5, 5), torch.tensor([[0.3, 0, 0.7, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0]])
        classifier = VideoClassifier(TinyModel(), CLASSES, label_smoothing=smoothing)
        scores = classifier(clips).detach().numpy().astype(np.float64)
        targets = (1 - smoothing) * labels.numpy() + smoothing / CLASSES
        expected = (np.log(np.exp(scores).sum(axis=1)) - (targets * scores).sum(axis=1)).mean()
        trainer = make_trainer(max_epochs=1)
        trainer.fit(classifier, batches_of((clips, labels)))
        assert float(trainer.callback_metrics["train/loss"]) == pytest.approx(expected, rel=1e-5)

    def test_a_clip_that_is_mixed_with_nothing_counts_as_a_plain_one(self):
        clips, labels = torch.randn(4, 3, 2, 5, 5), torch.tensor([0, 6, 3, 3])
        for precision in ("32-true", "bf16-true", "bf16-mixed"):
            losses = []
            for targets in (labels, torch.eye(CLASSES)[labels]):
                torch.manual_seed(0)
                trainer = make_trainer(max_epochs=1, precision=precision)
                trainer.fit(VideoClassifier(TinyModel(), CLASSES), batches_of((clips, targets)))
                losses.append(float(trainer.callback_metrics["train/loss"]))
            assert losses[0] == pytest.approx(losses[1], rel=2e-2 if precision == "bf16-true" else 1e-5)

    def test_label_smoothing_spreads_the_target(self):
        model = nn.Flatten()
        classifier = VideoClassifier(model, 2, label_smoothing=0.2)
        logits = torch.tensor([1.0, 3.0]).reshape(1, 2, 1, 1, 1)
        (logged,) = make_trainer().validate(classifier, batches_of((logits, torch.tensor([1]))), verbose=False)
        log_total = math.log(math.exp(1) + math.exp(3))
        assert logged["val/loss"] == pytest.approx(0.9 * (log_total - 3) + 0.1 * (log_total - 1))

    @pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
    @pytest.mark.parametrize("labelled", [True, False])
    def test_prediction_returns_probabilities(self, loss, labelled):
        logits = np.array([[0.0, 1.0, -2.0], [3.0, 3.0, 0.0]])
        clips = torch.from_numpy(logits).float().reshape(2, 3, 1, 1, 1)
        classifier = VideoClassifier(nn.Flatten(), 3, loss=loss)
        batch = (clips, torch.zeros(2)) if labelled else clips
        (probabilities,) = make_trainer().predict(classifier, batches_of(batch))
        exponents = np.exp(logits)
        expected = 1 / (1 + 1 / exponents) if loss == "bce" else exponents / exponents.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(probabilities.numpy(), expected, rtol=1e-6)

    def test_a_checkpoint_brings_the_recipe(self, tmp_path):
        trainer = make_trainer(max_epochs=1)
        classifier = VideoClassifier(TinyModel(), CLASSES, lr=0.03, schedule="steps", milestones=[2, 4])
        trainer.fit(classifier, random_data())
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        loaded = VideoClassifier.load_from_checkpoint(tmp_path / "last.ckpt", model=TinyModel(), weights_only=True)
        assert (loaded.num_classes, loaded.lr, loaded.milestones) == (CLASSES, 0.03, (2, 4))
        clips = torch.randn(2, 3, 2, 5, 5)
        torch.testing.assert_close(loaded.eval()(clips), classifier.eval()(clips))


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"num_classes": 1}, "`num_classes` must be at least 2, got 1"),
            ({"loss": "hinge"}, "`loss` must be 'cross_entropy' or 'bce', got 'hinge'"),
            ({"label_smoothing": 1.0}, r"`label_smoothing` must be in \[0, 1\), got 1.0"),
            ({"lr": 0.0}, "`lr` must be above 0, got 0.0"),
            ({"momentum": 1.0}, r"`momentum` must be in \[0, 1\), got 1.0"),
            ({"weight_decay": -1e-4}, "`weight_decay` must be at least 0, got -0.0001"),
            ({"schedule": "linear"}, "`schedule` must be 'steps', 'cosine' or 'constant', got 'linear'"),
            ({"layer_decay": 0.0}, r"`layer_decay` must be in \(0, 1\], got 0.0"),
            ({"gamma": 0.0}, "`gamma` must be above 0, got 0.0"),
            ({"warmup_epochs": -1}, "`warmup_epochs` must be at least 0, got -1"),
            ({"milestones": [2, 2]}, r"`milestones` must be above 0 and increasing, got \[2, 2\]"),
            ({"loss": "bce", "label_smoothing": 0.1}, "`label_smoothing` must be 0 with `loss='bce'`, got 0.1"),
            ({"schedule": "steps"}, r"belong together, got 'steps' and \[\]"),
            ({"optimizer": torch.optim.AdamW, "lr": 0.3}, r"`lr`, .* are for SGD\. Give them"),
            ({"milestones": [2]}, r"belong together, got 'cosine' and \[2\]"),
            (
                {"schedule": "steps", "milestones": [2, 4], "warmup_epochs": 2},
                r"`warmup_epochs=2` must be below the first of `milestones=\[2, 4\]`. Shorten",
            ),
        ],
    )
    def test_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            VideoClassifier(TinyModel(), **{"num_classes": CLASSES, **arguments})

    def test_labels_that_are_wrong_in_a_later_epoch_only(self):
        class Later(L.Callback):
            def on_train_batch_start(self, trainer, module, batch, batch_idx):
                if trainer.current_epoch == 1:
                    batch[1].fill_(CLASSES)

        trainer = make_trainer(max_epochs=2, callbacks=[Later()])
        with pytest.raises(ValueError, match=rf"Labels from {CLASSES} to {CLASSES} must be in \[0, {CLASSES}\)"):
            trainer.fit(VideoClassifier(TinyModel(), CLASSES), random_data())
        assert trainer.current_epoch == 1

    @pytest.mark.parametrize(
        ("loss", "labels", "message"),
        [
            ("cross_entropy", torch.tensor([0, 7]), r"Labels from 0 to 7 must be in \[0, 7\).*Number the classes from"),
            ("cross_entropy", torch.tensor([-1, 6]), r"Labels from -1 to 6 must be in \[0, 7\)"),
            ("cross_entropy", torch.zeros(2, CLASSES), r"\(2, 7\) and torch.float32 must be 2 class indices.*'bce'"),
            ("cross_entropy", torch.zeros(2), r"torch.float32 must be 2 class indices"),
        ],
    )
    def test_labels(self, loss, labels, message):
        classifier = VideoClassifier(TinyModel(), CLASSES, loss=loss)
        batch = (torch.zeros(2, 3, 2, 5, 5), labels)
        with pytest.raises(ValueError, match=message):
            make_trainer(max_epochs=1).fit(classifier, batches_of(batch))
        with pytest.raises(ValueError, match=message):
            make_trainer().validate(classifier, batches_of(batch))

    def test_model_of_another_number_of_classes(self):
        classifier = VideoClassifier(TinyModel(num_classes=5), CLASSES)
        with pytest.raises(ValueError, match=r"TinyModel returned \(2, 5\), which must be clips x classes, \(2, 7\)"):
            classifier(torch.zeros(2, 3, 2, 5, 5))


def test_metrics_are_logged_once_an_epoch():
    # In each step, all that was kept so far would be walked through: quadratic in the number of videos.
    class Counting(VideoClassifier):
        logged = 0

        def log_dict(self, *args, **kwargs):
            self.logged += 1
            super().log_dict(*args, **kwargs)

    model = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 4))
    batches = DataLoader(TensorDataset(torch.rand(12, 3, 2, 4, 4), torch.arange(12) % 4), batch_size=2)
    classifier = Counting(model, 4)
    host = trainer()
    classifier.validation_step((torch.rand(2, 3, 2, 4, 4), torch.tensor([0, 1])), 0)  # as if one were interrupted
    (first,) = host.validate(classifier, batches, verbose=False)
    assert classifier.logged == 1
    assert host.validate(classifier, batches, verbose=False) == [first]  # nothing is kept from before

"""Loads published weights into our models, and writes our weights in PySlowFast's format."""

import logging
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from lightning_multigrid.models.weight_files import find_tensors, read_file
from lightning_multigrid.models.weight_names import name_tables

logger = logging.getLogger(__name__)

# How many names of each kind a printed report shows, those of all blocks as one; the report itself holds all.
_SHOWN = 8


@dataclass(frozen=True)
class WeightsReport:
    """What happened to each tensor.

    Args:
        naming: Whose names the weights had, such as "Caffe2".
        loaded: Tensors of the model that took their values from the weights.
        inflated: Those of `loaded` that were image kernels, repeated over time.
        missing: Tensors of the model that the weights lack; they keep their values.
        unexpected: Tensors of the weights that the model lacks, by their names in the weights, or as transformers
            renamed them.
        mismatched: Tensors of another shape, as (shape in the weights, shape in the model); they keep their values.
    """

    naming: str
    loaded: tuple[str, ...]
    inflated: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]

    @property
    def complete(self) -> bool:
        """Whether every tensor of the model was loaded, and none was left over."""
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} tensors loaded ({self.naming}), {len(self.inflated)} of them inflated over time."]
        mismatched = [f"{name} ({_shape(given)}, not {_shape(own)})" for name, (given, own) in self.mismatched.items()]
        lines += _listed("of the model keep their values, as the weights have another shape", mismatched)
        lines += _listed("of the model keep their values, as the weights lack them", self.missing)
        lines += _listed("of the weights are left out, as the model lacks them", self.unexpected)
        return "\n".join(lines)


def _listed(what: str, names: Sequence[str]) -> list[str]:
    """A line that counts the names and shows the first ones, those of all blocks as one; no line without names."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in names:
        kinds[re.sub(r"\d+(?=\S*\.)", "*", name)].append(name)
    texts = [f"{kind} ({len(those)})" if len(those) > 1 else those[0] for kind, those in kinds.items()]
    rest = sum(map(len, list(kinds.values())[_SHOWN:]))
    more = f" and {rest} more" if rest else ""
    return [f"{len(names)} {what}: {', '.join(texts[:_SHOWN])}{more}"] if names else []


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def load_weights(model: nn.Module, source: str | os.PathLike[str] | Mapping[str, Any]) -> WeightsReport:
    """Loads published weights, or our own, into a model. Tensors that don't fit are reported and keep their values.

    Reads PySlowFast's files (`.pyth`, and the Caffe2 `.pkl` of its model zoo), pytorchvideo's, ImageNet ResNets of
    torchvision (kernels are repeated over time and divided by their extent in time), files of safetensors, and
    Lightning checkpoints with any prefix of the names (`model.`). The contents decide, not the file's suffix. Code in a
    file is never run. The report is also logged, as a warning if it isn't complete.

    Args:
        model: One of our models, one of transformers for files of the Hugging Face Hub, or any other for weights under
            its own names.
        source: A file, or its content: a state dict, or a checkpoint with a state dict in it.

    Raises:
        ValueError: If no tensor fits, or the file holds more than tensors and plain containers.
        TypeError: If it holds no mapping of names to tensors.

    >>> load_weights(nn.Linear(2, 1), {"model.weight": torch.zeros(1, 2), "model.bias": torch.ones(1)}).complete
    True
    """
    where = "The mapping" if isinstance(source, Mapping) else os.fspath(source)
    given = find_tensors(source if isinstance(source, Mapping) else read_file(source), where)
    own = model.state_dict()
    fitting, report = _match(given, own)
    transformers = sys.modules.get("transformers")  # who has a model of it has imported it
    if report.missing and report.unexpected and transformers and isinstance(model, transformers.PreTrainedModel):
        fitting, report = _match(_renamed(model, given), own)
    if not fitting:
        raise ValueError(
            f"{where} has no tensor that fits {type(model).__name__}: it has {_some(given)}; the model has"
            f" {_some(own)}. Build the model that the weights are for, or map the names yourself and give the mapping."
        )
    model.load_state_dict(fitting, strict=False)
    logger.log(logging.INFO if report.complete else logging.WARNING, "%s: %s", where, report)
    return report


def export_weights(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Writes the weights of one of our models as PySlowFast does, which loads them: a `.pyth` with its names."""
    torch.save({"model_state": {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}}, path)


def _match(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], WeightsReport]:
    """The given tensors that fit, by our names and in our shapes, and a report of all tensors."""
    naming, prefix, table = _recognise(given, own)
    fitting: dict[str, Tensor] = {}
    inflated: list[str] = []
    unexpected: list[str] = []
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for foreign, tensor in given.items():
        name = table.get(foreign.removeprefix(prefix)) if foreign.startswith(prefix) else None
        if name is None:
            of_optimizer = naming == "Caffe2" and (foreign in ("lr", "model_iter") or foreign.endswith("_momentum"))
            if not of_optimizer:
                unexpected.append(foreign)
        elif (fit := _fit(tensor, own[name].shape)) is None:
            mismatched[name] = (tuple(tensor.shape), tuple(own[name].shape))
        else:
            fitting[name] = fit
            if tensor.dim() == 4 and fit.dim() == 5:
                inflated.append(name)
    # Not every library stores counters of batches, and no layer of ours reads them.
    found = fitting.keys() | mismatched.keys()
    missing = tuple(name for name in own if name not in found and not name.endswith("num_batches_tracked"))
    return fitting, WeightsReport(naming, tuple(fitting), tuple(inflated), missing, tuple(unexpected), mismatched)


def _renamed(model: Any, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by the names of a model of transformers: from 5 on, these are others than in the files of its Hub.

    `from_pretrained` knows the names that each version gave, and nothing else in public does. It makes another model.
    """
    from transformers import logging as its_logging

    _, prefix, _ = _recognise(given, model.state_dict())
    weights = {name.removeprefix(prefix): tensor for name, tensor in given.items()}
    verbosity = its_logging.get_verbosity()
    its_logging.set_verbosity_error()  # it would report on its model what we report on ours
    try:
        with torch.random.fork_rng(devices=[]):  # its model draws initial values
            read, info = type(model).from_pretrained(
                None,
                config=model.config,
                state_dict=weights,
                dtype=model.dtype,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # a subclass may be made differently: what fits by its names is still loaded
        logger.warning("transformers can't read the weights for %s (%s).", type(model).__name__, error)
        return dict(given)
    finally:
        its_logging.set_verbosity(verbosity)
    # 4.57 gives the names alone, which are those of the files. Of the others only the shape counts.
    other = [(entry, ()) if isinstance(entry, str) else entry[:2] for entry in info["mismatched_keys"]]
    other += [(name, ()) for name in info["unexpected_keys"]]
    left = {name: weights.get(name, torch.empty(shape, device="meta")) for name, shape in other}
    state = {name: tensor for name, tensor in read.state_dict().items() if name not in info["missing_keys"]}
    return state | left


def _recognise(given: Mapping[str, Tensor], own: Iterable[str]) -> tuple[str, str, dict[str, str]]:
    """The naming and the prefix with which the most names are known, and the table of that naming."""
    tables = name_tables(own)
    hits: Counter[tuple[str, str]] = Counter()
    for naming, table in tables.items():
        for name in given:
            starts = [0, *(dot.end() for dot in re.finditer(r"\.", name))]  # a prefix is `model.` of `model.fc.bias`
            hits.update((naming, name[:start]) for start in starts if name[start:] in table)
    naming, prefix = max(hits, key=hits.__getitem__, default=("own names", ""))
    return naming, prefix, tables[naming]


def _fit(tensor: Tensor, shape: torch.Size) -> Tensor | None:
    if tensor.shape == shape:
        return tensor
    if tensor.dim() == 4 and len(shape) == 5 and tensor.shape == (*shape[:2], *shape[3:]):
        return tensor.unsqueeze(2).expand(shape) / shape[2]
    # Caffe2 stores some classifiers as convolutions, and some convolutions as classifiers: only trailing ones differ.
    pairs = zip_longest(tensor.shape, shape, fillvalue=1)
    return tensor.reshape(shape) if all(given == own for given, own in pairs) else None


def _some(names: Iterable[str]) -> str:
    shown = [f"`{name}`" for name in names]
    return ", ".join(shown[:3] + ["..."] * (len(shown) > 3)) or "none"

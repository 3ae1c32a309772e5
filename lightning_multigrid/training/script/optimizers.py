"""What a script's optimizers say: how the LR grows with the clips of a mini-batch, and what it is."""

import re
from collections.abc import Iterable
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_warn
from torch.optim import Optimizer

from lightning_multigrid.host import MisconfigurationException
from lightning_multigrid.schedule import LRScaling, MultigridSchedule

# How names of classes begin whose LR grows linearly with the batch, such as timm's `SGDW`, bitsandbytes' `SGD8bit` and
# Apex's `FusedSGD`. LARS is among them by its authors (You et al. 2017).
_LINEAR = re.compile("(a|fused)?sgd|lar[sc]", re.IGNORECASE)
# Names of classes that decay the weights themselves: those with a W, such as AdamW, NAdamW and SGDW, and some others.
# The W doesn't begin a word: a `ClippingWrapper` doesn't count.
_DECOUPLED = re.compile("(?<=.)W(?![a-z])|Lion|Muon|Adafactor|Adan|LaProp|M(ars|ARS)")
# Settings by which groups say it themselves: of torch's Adam and its variants, timm, pytorch-optimizer, and Prodigy.
_SAY_DECOUPLED = "decoupled_weight_decay", "decoupled_decay", "weight_decouple", "decouple"
# Settings of optimizers that warm up by themselves, such as schedulefree's `AdamWScheduleFree`.
_OWN_WARMUP = re.compile("(num_)?warm_?up(_steps)?")


def with_held(optimizer: Any) -> list[Any]:
    """Returns an optimizer and those that it holds, which may update for it, as in `Lookahead` and SAM."""
    found = [optimizer]
    for one in found:
        for value in vars(one).values() if hasattr(one, "__dict__") else ():
            for held in value if isinstance(value, (list, tuple)) else [value]:
                steps = callable(getattr(held, "step", None)) and isinstance(getattr(held, "param_groups", None), list)
                if steps and all(held is not other for other in found):
                    found.append(held)
    return found


def decays_apart(optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether an optimizer takes the weight decay of a group from the weights themselves, in proportion to the LR.

    Where the LR grows with the square root of the clips, the decay of such a group also does: then a step with k times
    the clips decays k times as much, and the data decay the weights as they do in the baseline (Bergsma et al. 2025,
    arXiv 2505.13738).
    """
    decay = group.get("weight_decay")
    names = (kind.__name__ for kind in type(optimizer).__mro__)
    by_name = any(map(_DECOUPLED.search, names))
    apart = next((group[name] for name in _SAY_DECOUPLED if name in group), by_name)
    return bool(apart) and isinstance(decay, (int, float)) and decay != 0


def auto_lr_scaling(optimizers: Iterable[Optimizer]) -> LRScaling:
    """Returns how the LR of optimizers grows with the clips of a mini-batch; refuses optimizers of both kinds.

    Steps of SGD are as long as the gradient, so the LR grows linearly (Sec. 3.2). Adam and similar optimizers divide
    their steps by the size of past gradients. A part of that size is noise, which falls with the clips, so the LR grows
    with the square root (Malladi et al. 2022, arXiv 2205.10287; LAMB by its authors).
    """
    rules: dict[LRScaling, str] = {}
    for optimizer in with_groups(optimizers):
        rule, name = rule_of(optimizer), type(optimizer).__name__
        if rule is None:
            rank_zero_warn(
                f"MultigridCallback doesn't know how the LR of {name} grows with the clips of a mini-batch, and takes "
                "their square root. Give `MultigridCallback(lr_scaling=...)`: linear, sqrt or none."
            )
        rules.setdefault(rule or "sqrt", name)
    if len(rules) > 1:
        raise MisconfigurationException(
            f"The LR of {rules['linear']} grows linearly with the clips of a mini-batch, the LR of {rules['sqrt']} "
            "with the square root of the clips, but a plan has one scale. Give `MultigridCallback(lr_scaling=...)` for "
            "both: 'sqrt' is the careful choice."
        )
    return next(iter(rules), "linear")


def own_warmups(optimizers: Iterable[Optimizer]) -> list[tuple[str, float]]:
    """The warm-ups of optimizers that count their own steps, by name, each with its steps."""
    found = {
        (f"`{name}={value}` of {type(one).__name__}", value)
        for optimizer in with_groups(optimizers)
        for one in with_held(optimizer)
        for group in one.param_groups
        for name, value in group.items()
        if _OWN_WARMUP.fullmatch(name) and isinstance(value, (int, float)) and value > 1  # below, it is a share
    }
    return sorted(found)


def rule_of(optimizer: Optimizer) -> LRScaling | None:
    """How the LR of an optimizer grows with the clips; None if it is of no known kind."""
    for one in with_held(optimizer):
        if any(_LINEAR.match(kind.__name__) for kind in type(one).__mro__):
            return "linear"
        # Adam, LAMB, Lion, Muon, Adafactor and all others that divide their steps have one of these settings.
        if {"betas", "eps"} & getattr(one, "defaults", {}).keys():
            return "sqrt"
    return None


def with_groups(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """Leaves out the optimizer without groups that Lightning has for a script without one."""
    return [optimizer for optimizer in optimizers if optimizer.param_groups]


def refuse_hidden(schedule: MultigridSchedule, module: Any, optimizers: Iterable[Optimizer]) -> None:
    """Refuses an optimizer that the module holds and the Trainer doesn't know, as its LR can't be scaled."""
    if all(phase.lr_scale == 1 for phase in schedule.phases):
        return
    known = {id(held) for optimizer in optimizers for held in with_held(optimizer)}
    for hidden in with_held(module)[1:]:
        if not known & {id(held) for held in with_held(hidden)}:
            raise MisconfigurationException(
                "MultigridCallback scales the LR of the optimizers that `configure_optimizers` returns, and "
                f"{type(module).__name__} holds a {type(hidden).__name__} that it does not return. Return it; manual "
                "optimization gets it by `self.optimizers()`. A script that scales all LRs itself gives the callback "
                "`lr_scaling='none'`."
            )

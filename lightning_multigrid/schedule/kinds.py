"""The values of a dataclass, of the kinds that it declares: an error where they are written, by name; plain numbers."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Any, Literal, get_args, get_origin

_WIDER = {float: Real, int: Integral, bool: Integral}  # the numbers of NumPy are among them


def check_kinds(instance: Any) -> None:
    """Raises a TypeError that names a field of a dataclass whose value is of another kind than the field declares.

    Any collection, such as an array, may stand for a sequence, any whole number for a bool, and of a `Literal` only the
    kind is checked. Numbers of NumPy become Python's own: a checkpoint that holds others is not loaded.
    """
    for field in fields(instance):
        value = getattr(instance, field.name)
        if not _is(value, field.type):
            kind = re.sub(r"\w+\.(?=\w)", "", inspect.formatannotation(field.type))
            raise TypeError(f"`{field.name}` of {type(instance).__name__} must be {kind}, got {value!r}.")
        object.__setattr__(instance, field.name, _plain(value))  # also of a frozen one


def _plain(value: Any) -> Any:
    """The value with Python's own numbers, as they were written: 1.1 for a `float32(1.1)`."""
    if isinstance(value, Integral):
        return value if isinstance(value, bool) else int(value)
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    if isinstance(value, Real):
        return float(str(value))
    if isinstance(value, Collection) and not isinstance(value, (str, Mapping)):
        return (list if isinstance(value, list) else tuple)(map(_plain, value))
    return value


def _is(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return isinstance(value, tuple(map(type, inner)))
    if origin is Callable:
        return callable(value)
    if origin in (list, tuple):
        if not isinstance(value, Collection) or isinstance(value, (str, Mapping)):
            return False
        kinds = inner[:1] * len(value) if origin is list or ... in inner else inner
        return len(value) == len(kinds) and all(map(_is, value, kinds))
    if origin is dict:
        return isinstance(value, Mapping) and all(all(map(_is, pair, inner)) for pair in value.items())
    if inner:
        return any(_is(value, one) for one in inner)
    return isinstance(value, _WIDER.get(kind, kind))

"""Integers as callers write them, for operators whose schema says ``SymInt`` and ``SymInt[2]``.

torch's own functions take one integer for both axes, NumPy's integers and integral tensors of one element;
``torch.ops`` takes none of these.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Pair = int | Sequence[int]


def integer(value: Any) -> Any:
    """`value` as an ``int`` or a ``SymInt``; itself if it is neither, which the operator refuses."""
    kind = type(value)
    if kind is int or kind is torch.SymInt or kind is bool:
        return value
    if isinstance(value, Tensor):
        integral = value.numel() == 1 and not (value.is_floating_point() or value.is_complex())
        return int(value) if integral else value
    try:
        return operator.index(value)
    except TypeError:
        return value


def is_integer(value: Any) -> bool:
    """Whether `value` is what the dispatcher takes as a ``SymInt``."""
    kind = type(value)
    return kind is int or kind is torch.SymInt


def pair(value: Any) -> tuple[Any, Any] | None:
    """(height, width) of one integer or a sequence of one or two; None if it is neither, which the operator refuses."""
    kind = type(value)
    if kind is int:
        return value, value
    if kind is tuple and len(value) == 2 and type(value[0]) is int and type(value[1]) is int:
        return value
    both = [integer(one) for one in value] if isinstance(value, Sequence) else [integer(value)]
    if len(both) not in (1, 2) or not is_integer(both[0]) or not is_integer(both[-1]):
        return None
    return both[0], both[-1]


def accept_integers(packet: Any) -> None:
    """Lets ``packet``, an operator of ``torch.ops``, and its only overload take what `pair` and `integer` do."""
    overload = packet.default
    call, names = overload._op, [argument.name for argument in overload._schema.arguments]
    pairs = {argument.name for argument in overload._schema.arguments if argument.N == 2}

    def accepted(name: str, value: Any) -> Any:
        if name in pairs:
            return pair(value) or value
        return integer(value) if name == "groups" else value

    def entry(*args: Any, **kwargs: Any) -> Any:
        named = {name: accepted(name, value) for name, value in kwargs.items()}
        return call(*map(accepted, names, args), *args[len(names) :], **named)

    replace_entry(packet, entry)


def replace_entry(packet: Any, entry: Callable[..., Any]) -> None:
    """Sets what calling `packet`, or its only overload, runs in Python; TorchScript still compiles the operator."""
    name = packet.default._schema.name
    for owner in (packet, packet.default):
        owner._op = entry
    torch.jit._builtins._register_builtin(entry, name)

"""Transposed 2D convolutions that people run, as plain data, and the arithmetic on them.

A case is a dict: ``name``, ``n`` (batch), ``ci``, ``h``, ``w`` (input channels and size in pixels), ``co`` (output
channels), ``k`` (kernel), ``s`` (stride), ``p`` (padding), ``op`` (output_padding), ``d`` (dilation), each a pair
(height, width), and ``g`` (groups).

``KERNELBENCH`` holds the transposed 2D convolutions of KernelBench level 1 (``kb1_*``) and level 2 (``kb2_*``) at that
benchmark's own sizes. ``ZOO`` holds layers of well-known networks, named after them. ``SWEEP`` varies one property of
one layer at a time; a name says which, and its value: ``sweep_channels_0064``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, TypedDict

__all__ = [
    "CASES",
    "KERNELBENCH",
    "SUITES",
    "SWEEP",
    "ZOO",
    "Case",
    "case",
    "flops",
    "load_cases",
    "minimal_bytes",
    "output_size",
    "scale_down",
    "select",
    "sweep_point",
]

Pair = tuple[int, int]
IntOrPair = int | Sequence[int]


class Case(TypedDict):
    """One transposed convolution; see the module's docstring for the keys."""

    name: str
    n: int
    ci: int
    h: int
    w: int
    co: int
    k: Pair
    s: Pair
    p: Pair
    op: Pair
    d: Pair
    g: int


def case(
    name: str,
    n: int,
    ci: int,
    h: int,
    w: int,
    co: int,
    k: IntOrPair,
    s: IntOrPair = 1,
    p: IntOrPair = 0,
    op: IntOrPair = 0,
    d: IntOrPair = 1,
    g: int = 1,
) -> Case:
    """One case; ``k``, ``s``, ``p``, ``op`` and ``d`` are an int for both axes or a pair (height, width).

    Raises:
        ValueError: if a pair is no two ints in range, or the groups divide not both channel counts.
    """
    if g < 1 or ci % g or co % g:
        raise ValueError(f"case {name}: g is {g}; it must be a positive divisor of ci ({ci}) and of co ({co})")
    return Case(
        name=name, n=n, ci=ci, h=h, w=w, co=co, g=g,
        k=_pair(name, "k", k, 1), s=_pair(name, "s", s, 1), p=_pair(name, "p", p, 0), op=_pair(name, "op", op, 0),
        d=_pair(name, "d", d, 1),
    )  # fmt: skip


def _pair(name: str, key: str, value: IntOrPair, minimum: int) -> Pair:
    pair = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    if len(pair) != 2 or not all(isinstance(element, int) and element >= minimum for element in pair):
        raise ValueError(
            f"case {name}: {key} is {value!r}; it must be an int of at least {minimum} or two of them (height, width)"
        )
    return pair[0], pair[1]


KERNELBENCH: list[Case] = [
    case("kb1_57", 8, 64, 1024, 1024, 64, 3),
    case("kb1_65", 8, 64, 512, 512, 64, (3, 7)),
    case("kb1_69", 64, 64, 128, 256, 128, (3, 5)),
    case("kb1_71", 8, 32, 512, 1024, 32, 3),
    case("kb1_75", 16, 32, 128, 256, 64, (3, 5), s=(2, 3), p=(1, 2), d=(2, 1), g=4),
    case("kb1_78", 8, 32, 512, 1024, 32, (3, 7), p=(1, 3)),
    case("kb1_81", 16, 32, 64, 128, 64, 3, s=5, p=1, d=2),
    case("kb2_02", 128, 64, 128, 128, 64, 3, s=2, p=1, op=1),
    case("kb2_05", 32, 64, 256, 256, 64, 4, s=2, p=1, op=1),
    case("kb2_10", 128, 64, 256, 256, 64, 3, p=1),
    case("kb2_11", 512, 64, 32, 32, 128, 5, p=1),
    case("kb2_36", 16, 64, 128, 128, 128, 3, s=2, p=1, op=1),
    case("kb2_42", 16, 64, 512, 512, 128, 3),
    case("kb2_91", 128, 64, 64, 64, 128, 4, s=2, p=1, op=1),
]

ZOO: list[Case] = [
    case("dcgan1", 128, 100, 1, 1, 512, 4),
    case("dcgan2", 128, 512, 4, 4, 256, 4, s=2, p=1),
    case("dcgan3", 128, 256, 8, 8, 128, 4, s=2, p=1),
    case("dcgan4", 128, 128, 16, 16, 64, 4, s=2, p=1),
    case("dcgan5_rgb", 128, 64, 32, 32, 3, 4, s=2, p=1),
    case("cyclegan_up1", 8, 256, 64, 64, 128, 3, s=2, p=1, op=1),
    case("cyclegan_up2", 8, 128, 128, 128, 64, 3, s=2, p=1, op=1),
    case("pix2pix_mid", 16, 1024, 16, 16, 512, 4, s=2, p=1),
    case("pix2pix_last", 16, 128, 128, 128, 3, 4, s=2, p=1),
    case("unet_up4", 16, 1024, 32, 32, 512, 2, s=2),
    case("unet_up1", 16, 128, 256, 256, 64, 2, s=2),
    case("pose_up1", 64, 768, 16, 12, 256, 4, s=2, p=1),
    case("pose_up2", 64, 256, 32, 24, 256, 4, s=2, p=1),
    case("maskrcnn", 512, 256, 14, 14, 256, 2, s=2),
    case("sam_up2", 32, 64, 128, 128, 32, 2, s=2),
    case("dpt_x4", 16, 256, 24, 24, 256, 4, s=4),
    case("fcn32s", 4, 21, 16, 16, 21, 64, s=32, p=16),
    case("fcn8s_dw", 8, 21, 64, 64, 21, 16, s=8, p=4, g=21),
    case("dw_k4s2_512", 32, 512, 32, 32, 512, 4, s=2, p=1, g=512),
    case("dw_k3s1_256", 32, 256, 64, 64, 256, 3, p=1, g=256),
    case("fsrcnn_last", 16, 56, 270, 480, 1, 9, s=4, p=4, op=3),
    case("stylegan2_mod", 1, 16 * 256, 32, 32, 16 * 256, 3, s=2, g=16),
    case("resnext_g32", 32, 512, 28, 28, 512, 3, s=2, p=1, op=1, g=32),
    case("b1_latency", 1, 64, 32, 32, 64, 4, s=2, p=1),
]

CASES: list[Case] = KERNELBENCH + ZOO

_SWEEP_BASE = {"n": 16, "ci": 64, "h": 64, "w": 64, "co": 64, "k": 4, "s": 2, "p": 1}
_SWEEP_CHANNELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

# What varies: the keys of a case that take the value, and the values, in rising order.
_SWEEP_AXES: dict[str, tuple[Sequence[str], Sequence[int]]] = {
    "channels": (("ci", "co"), _SWEEP_CHANNELS),
    "in_channels": (("ci",), _SWEEP_CHANNELS),
    "out_channels": (("co",), _SWEEP_CHANNELS),
    "kernel": (("k",), range(1, 12)),
    "stride": (("s",), range(1, 5)),
    "groups": (("g",), (1, 2, 4, 8, 16, 32, 64)),
    "image": (("h", "w"), (15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129)),
    "dilation": (("d",), range(1, 4)),
    "output_padding": (("op",), range(2)),
}


def _sweep() -> Iterator[Case]:
    for axis, (keys, values) in _SWEEP_AXES.items():
        for value in values:
            yield case(f"sweep_{axis}_{value:04d}", **{**_SWEEP_BASE, **dict.fromkeys(keys, value)})


SWEEP: list[Case] = list(_sweep())

SUITES: dict[str, list[Case]] = {"kernelbench": KERNELBENCH, "zoo": ZOO, "all": CASES, "sweep": SWEEP}


def sweep_point(name: str) -> tuple[str, int] | None:
    """The axis and the value that the name of a sweep's case says; None for the name of another case.

    Example:
        >>> sweep_point("sweep_in_channels_0064")
        ('in_channels', 64)
    """
    found = re.fullmatch(r"sweep_(\w+)_(\d+)", name)
    return (found[1], int(found[2])) if found else None


def load_cases(path: str | PathLike[str]) -> list[Case]:
    """The cases of a JSON file: a list of objects with the keys of a case, ``s``, ``p``, ``op``, ``d``, ``g`` optional.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is no JSON, no list, or an entry has a missing, unknown or ill-typed key.
    """
    with open(path, encoding="utf-8") as file:
        entries = json.load(file)
    if not isinstance(entries, list):
        raise ValueError(f"{path}: it holds a {type(entries).__name__}; it must hold a list of cases")
    return [_parse(f"{path}, case {index}", entry) for index, entry in enumerate(entries)]


def _parse(where: str, entry: Any) -> Case:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: it is {entry!r}; it must be an object with the keys {', '.join(_KEYS)}")
    missing = [key for key in _REQUIRED if key not in entry]
    unknown = [key for key in entry if key not in _KEYS]
    if missing or unknown:
        raise ValueError(f"{where}: missing keys {missing}, unknown keys {unknown}; the keys are {', '.join(_KEYS)}")
    for key in ("n", "ci", "h", "w", "co", "g"):
        if not isinstance(entry.get(key, 1), int) or entry.get(key, 1) < 1:
            raise ValueError(f"{where}: {key} is {entry[key]!r}; it must be a positive int")
    return case(**entry)


_KEYS = tuple(Case.__annotations__)
_REQUIRED = ("name", "n", "ci", "h", "w", "co", "k")


def select(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """The cases called ``names``, in the order of ``cases``; all of them if ``names`` is empty.

    Raises:
        ValueError: if no case has one of the names.
    """
    known = [case["name"] for case in cases]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"case {', '.join(unknown)}: unknown; the names are {', '.join(known)}")
    return [case for case in cases if not names or case["name"] in names]


def output_size(case: Case) -> Pair:
    """The output's height and width in pixels (the size is not checked: it may be zero or negative)."""
    height, width = (
        (size - 1) * case["s"][axis]
        - 2 * case["p"][axis]
        + case["d"][axis] * (case["k"][axis] - 1)
        + case["op"][axis]
        + 1
        for axis, size in enumerate((case["h"], case["w"]))
    )
    return height, width


def flops(case: Case) -> int:
    """Floating-point operations of any of the three directions: two for each input element times weight it meets.

    Products that padding crops away are counted, as is the custom.
    """
    kernel = case["k"][0] * case["k"][1]
    return 2 * case["n"] * case["ci"] * case["h"] * case["w"] * (case["co"] // case["g"]) * kernel


def minimal_bytes(case: Case, itemsize: int) -> int:
    """Bytes of input, weight and output together, ``itemsize`` bytes an element.

    Every direction reads two of the three and writes the third, so none moves less.
    """
    height, width = output_size(case)
    input_elements = case["n"] * case["ci"] * case["h"] * case["w"]
    weight_elements = case["ci"] * (case["co"] // case["g"]) * case["k"][0] * case["k"][1]
    return itemsize * (input_elements + weight_elements + case["n"] * case["co"] * height * width)


def scale_down(case: Case, divisor: int) -> Case:
    """The case with batch, image size, groups and channels a group divided by ``divisor``, none below 1.

    Kernel, stride, padding, output_padding and dilation stay; so do grouping (at least two groups where there were
    several) and an output of at least one pixel.

    Raises:
        ValueError: if ``divisor`` is below 1.
    """
    if divisor < 1:
        raise ValueError(f"divisor is {divisor}; it must be at least 1")

    def divided(value: int) -> int:
        return max(1, value // divisor)

    groups = max(divided(case["g"]), min(case["g"], 2))
    small: Case = {
        **case, "n": divided(case["n"]), "h": divided(case["h"]), "w": divided(case["w"]), "g": groups,
        "ci": groups * divided(case["ci"] // case["g"]), "co": groups * divided(case["co"] // case["g"]),
    }  # fmt: skip
    while output_size(small)[0] < 1:
        small["h"] += 1
    while output_size(small)[1] < 1:
        small["w"] += 1
    return small

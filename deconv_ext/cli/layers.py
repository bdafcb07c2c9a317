"""A layer described by arguments of the command line, for the commands that take one."""

from __future__ import annotations

import argparse
from typing import Any

from deconv_ext.workloads import Case, case, output_size

# A case's key for each argument that is a pair, the argument's name, and its least value.
_PAIRS = {
    "k": ("kernel", 1),
    "s": ("stride", 1),
    "p": ("padding", 0),
    "op": ("output_padding", 0),
    "d": ("dilation", 1),
}


def add_layer_arguments(parser: argparse.ArgumentParser, source: Any) -> None:
    """Declares ``--input`` in the group ``source`` and its companions; a pair is "3" or "3,5" (height, width)."""
    source.add_argument(
        "--input", type=_ints, metavar="N,C,H,W", help="a layer by its input's shape, --out-channels and --kernel"
    )
    layer = parser.add_argument_group("the layer of --input")
    layer.add_argument("--out-channels", type=int, metavar="C")
    layer.add_argument("--kernel", type=_ints, metavar="K[,K]")
    layer.add_argument("--stride", type=_ints, default=[1], metavar="S[,S]", help="default: 1")
    layer.add_argument("--padding", type=_ints, default=[0], metavar="P[,P]", help="default: 0")
    layer.add_argument("--output-padding", type=_ints, default=[0], metavar="P[,P]", help="default: 0")
    layer.add_argument("--dilation", type=_ints, default=[1], metavar="D[,D]", help="default: 1")
    layer.add_argument("--groups", type=int, default=1, metavar="G", help="default: 1")


def layer_of(args: argparse.Namespace) -> Case:
    """The layer that the arguments describe.

    Raises:
        ValueError: if one is missing or out of range, or the output has no pixel.
    """
    if args.out_channels is None or args.kernel is None or len(args.input) != 4 or min(args.input) < 1:
        shown = ",".join(map(str, args.input))
        raise ValueError(
            f"--input is {shown}; it takes four positive numbers N,C,H,W, with --out-channels and --kernel"
        )
    pairs = {key: _pair(name, getattr(args, name), least) for key, (name, least) in _PAIRS.items()}
    batch, channels, height, width = args.input
    if args.out_channels < 1:
        raise ValueError(f"--out-channels is {args.out_channels}; it must be at least 1")
    if args.groups < 1 or channels % args.groups or args.out_channels % args.groups:
        counts = f"the input's channels ({channels}) and of --out-channels ({args.out_channels})"
        raise ValueError(f"--groups is {args.groups}; it must be a positive divisor of {counts}")
    layer = case("layer", batch, channels, height, width, args.out_channels, g=args.groups, **pairs)
    for axis in (0, 1):
        most = max(layer["s"][axis], layer["d"][axis]) - 1
        if layer["op"][axis] > most:
            raise ValueError(
                f"--output-padding is {layer['op'][axis]}; it must be below stride or dilation, at most {most}"
            )
    if min(output_size(layer)) < 1:
        raise ValueError(f"the output would have the size {output_size(layer)}; it must have at least one pixel")
    return layer


def _pair(name: str, value: list[int], least: int) -> list[int]:
    if len(value) > 2 or min(value) < least:
        option, shown = "--" + name.replace("_", "-"), ",".join(map(str, value))
        raise ValueError(f"{option} is {shown}; it must be one number of at least {least}, or two (height,width)")
    return value * 2 if len(value) == 1 else value


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]

"""``python -m deconv_ext explain``: the plan for a layer described by arguments."""

from __future__ import annotations

import argparse

import torch

from deconv_ext.cli.operands import DIRECTIONS, DTYPES, call_explain, dtype_of, make_operands, torch_in
from deconv_ext.workloads import CASES, SWEEP, Case, case, output_size, select

# A case's key for each argument that is a pair, the argument's name, and its least value.
_PAIRS = {
    "k": ("kernel", 1),
    "s": ("stride", 1),
    "p": ("padding", 0),
    "op": ("output_padding", 0),
    "d": ("dilation", 1),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments; a pair is written "3" for both axes or "3,5" for (height, width)."""
    layer = parser.add_mutually_exclusive_group(required=True)
    layer.add_argument("--case", metavar="NAME", help="a layer of the benchmark's suites")
    layer.add_argument("--input", type=_ints, metavar="N,C,H,W", help="its shape; needs --out-channels, --kernel too")
    parser.add_argument("--out-channels", type=int, metavar="C", help="of the layer that --input describes")
    parser.add_argument("--kernel", type=_ints, metavar="K[,K]", help="of the layer that --input describes")
    parser.add_argument("--stride", type=_ints, default=[1], metavar="S[,S]", help="default: 1")
    parser.add_argument("--padding", type=_ints, default=[0], metavar="P[,P]", help="default: 0")
    parser.add_argument("--output-padding", type=_ints, default=[0], metavar="P[,P]", help="default: 0")
    parser.add_argument("--dilation", type=_ints, default=[1], metavar="D[,D]", help="default: 1")
    parser.add_argument("--groups", type=int, default=1, metavar="G", help="default: 1")
    parser.add_argument("--bias", action="store_true", help="with a bias")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="default: %(default)s")
    parser.add_argument(
        "--precision", choices=("strict", "tf32"), default="strict", help="of fp32; default: %(default)s"
    )
    parser.add_argument("--layout", choices=("nchw", "channels_last"), default="nchw", help="default: %(default)s")
    parser.add_argument("--direction", choices=(*DIRECTIONS, "all"), default="all", help="default: %(default)s")
    parser.add_argument("--device", help="default: cuda where there is one, else meta")


def main(args: argparse.Namespace) -> int:
    """Prints the plan of each direction asked for; 0, or 2 if the operator refuses the arguments."""
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "meta"))
    layer = select(CASES + SWEEP, [args.case])[0] if args.case else _layer(args)
    mode = "tf32" if args.dtype == "fp32" and args.precision == "tf32" else args.dtype
    directions = DIRECTIONS if args.direction == "all" else (args.direction,)
    try:
        for direction in directions:
            print(run(layer, direction, mode, args.layout, device, bias=args.bias))
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return 0


def run(
    layer: Case,
    direction: str = "forward",
    mode: str = "fp32",
    layout: str = "nchw",
    device: torch.device | str = "meta",
    *,
    bias: bool = False,
) -> str:
    """The plan for a layer, as ``deconv_ext.explain`` tells it.

    ``mode`` is fp64, fp32 (strict), tf32, fp16 or bf16; on the device "meta" nothing is allocated.
    """
    where = torch.device(device)
    is_gradient = direction != "forward"
    operands = make_operands(layer, dtype_of(mode), where, bias=bias, grad_output=is_gradient, fill=torch.empty)
    operands = operands.laid_out(layout, where)
    with torch_in(mode):
        return call_explain(direction, operands)


def plan_line(explanation: str) -> str:
    """The line of an explanation that names the plan, without its label; the first line if none is labelled so."""
    lines = [line.strip() for line in explanation.strip().splitlines()]
    return next((line.removeprefix("plan: ") for line in lines if line.startswith("plan: ")), lines[0])


def _layer(args: argparse.Namespace) -> Case:
    if args.out_channels is None or args.kernel is None or len(args.input) != 4:
        raise ValueError(f"--input is {args.input}; it needs four numbers N,C,H,W, and --out-channels and --kernel")
    pairs = {key: _pair(name, getattr(args, name), least) for key, (name, least) in _PAIRS.items()}
    batch, channels, height, width = args.input
    if args.groups < 1 or channels % args.groups or args.out_channels % args.groups:
        counts = f"the input's channels ({channels}) and of --out-channels ({args.out_channels})"
        raise ValueError(f"--groups is {args.groups}; it must be a positive divisor of {counts}")
    layer = case("layer", batch, channels, height, width, args.out_channels, g=args.groups, **pairs)
    if min(output_size(layer)) < 1:
        raise ValueError(f"the output would have the size {output_size(layer)}; it must have a pixel at least")
    return layer


def _pair(name: str, value: list[int], least: int) -> list[int]:
    if len(value) > 2 or min(value) < least:
        option, shown = "--" + name.replace("_", "-"), ",".join(map(str, value))
        raise ValueError(f"{option} is {shown}; it must be one number of at least {least}, or two (height,width)")
    return value * 2 if len(value) == 1 else value


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]

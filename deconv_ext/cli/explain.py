"""``python -m deconv_ext explain``: the plan for a layer described by arguments."""

from __future__ import annotations

import argparse

import torch

from deconv_ext.cli.layers import add_layer_arguments, layer_of
from deconv_ext.cli.operands import DIRECTIONS, MODES, call_explain, device_of, dtype_of, make_operands, torch_in
from deconv_ext.workloads import ALL_CASES, Case, select


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--case", metavar="NAME", help="a layer of the benchmark's suites")
    add_layer_arguments(parser, source)
    parser.add_argument("--bias", action="store_true", help="with a bias")
    parser.add_argument("--dtype", choices=MODES, default="bf16", help="fp32 is strict; default: %(default)s")
    parser.add_argument("--layout", choices=("nchw", "channels_last"), default="nchw", help="default: %(default)s")
    parser.add_argument("--direction", choices=(*DIRECTIONS, "all"), default="all", help="default: %(default)s")
    parser.add_argument("--device", help="default: cuda where there is one, else meta")


def main(args: argparse.Namespace) -> int:
    """Prints the plan of each direction asked for; 0, or 2 if the operator refuses the arguments."""
    device = device_of(args.device, "meta")
    layer = select(ALL_CASES, [args.case])[0] if args.case else layer_of(args)
    directions = DIRECTIONS if args.direction == "all" else (args.direction,)
    try:
        for direction in directions:
            print(run(layer, direction, args.dtype, args.layout, device, bias=args.bias))
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


def kernel_name(explanation: str) -> str:
    """The families of an explanation's plan, outermost first ("sub_pixel, igemm_sm90"); "ATen" without a plan."""
    line = plan_line(explanation)
    return ", ".join(part.removesuffix(" family") for part in line.split(", ") if part.endswith(" family")) or "ATen"

"""``python -m deconv_ext check``: the operator on this machine's device against float64."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deconv_ext import _reference
from deconv_ext._ops import kernels_serve
from deconv_ext.cli.console import Column, print_table, progress
from deconv_ext.cli.operands import (
    BOUNDS,
    DIRECTIONS,
    DTYPES,
    MODES,
    Operands,
    call_float64,
    call_ours,
    call_torch,
    device_of,
    dtype_of,
    make_operands,
    relative_error,
    torch_in,
)
from deconv_ext.workloads import Case, case

CASES: list[Case] = [
    case("stride 1", 2, 8, 7, 9, 6, 3),
    case("stride 2, output_padding", 2, 5, 6, 7, 4, 3, s=2, p=1, op=1),
    case("stride 2, even kernel", 2, 8, 8, 8, 8, 4, s=2, p=1),
    case("all arguments in pairs", 1, 6, 5, 4, 9, (3, 5), s=(2, 3), p=(1, 2), op=(1, 2), d=(3, 2), g=3),
    case("dilation", 2, 4, 6, 5, 3, 3, p=2, d=2),
    case("dilation and stride in coprime pairs", 2, 4, 5, 6, 5, (3, 2), s=(2, 3), p=(1, 0), d=(3, 2)),
    case("dilation and stride, common factor", 2, 4, 5, 6, 5, 3, s=4, p=1, d=2),
    case("output_padding below dilation", 1, 3, 4, 5, 4, 3, p=1, op=2, d=3),
    case("sparse phases", 2, 8, 6, 7, 9, 3, s=5, p=1, d=2),
    case("kernel below stride", 2, 5, 4, 6, 4, 2, s=(5, 4)),
    case("kernel equal to stride", 2, 16, 6, 6, 8, 2, s=2),
    case("1x1", 3, 17, 5, 7, 13, 1),
    case("1x1, stride 3", 2, 6, 5, 4, 5, 1, s=3, op=2),
    case("wide kernel", 1, 3, 9, 11, 2, (1, 7), p=(0, 3)),
    case("tall kernel", 1, 3, 11, 5, 2, (7, 1), s=(2, 1), p=(3, 0), op=(1, 0)),
    case("large kernel", 1, 4, 6, 6, 3, 16, s=8, p=4),
    case("padding beyond the kernel", 1, 2, 9, 8, 3, 3, p=3),
    case("groups", 2, 12, 5, 6, 8, 3, s=2, p=1, op=1, g=4),
    case("depthwise", 2, 10, 9, 7, 10, 4, s=2, p=1, g=10),
    case("depthwise, 3 outputs a channel", 1, 6, 5, 5, 18, 3, p=1, g=6),
    case("latent vector", 3, 20, 1, 1, 12, 4),
    case("one element", 1, 1, 1, 1, 1, 1),
    case("one channel to many", 2, 1, 13, 11, 37, 5, p=2),
    case("many channels to one", 2, 37, 13, 11, 1, 5, s=2, p=2, op=1),
    case("channels past the tiles", 1, 130, 9, 10, 70, 3, p=1),
    case("tile-sized", 4, 64, 16, 16, 64, 3, p=1),
    case("deep", 2, 256, 8, 8, 128, 4, s=2, p=1),
    case("odd sizes", 3, 33, 13, 17, 65, 3, s=2, p=1, op=1),
    case("long batch", 67, 3, 4, 3, 5, 3, s=2),
    case("empty batch", 0, 4, 5, 5, 3, 3, s=2, p=1, op=1),
]
LAYOUTS = ("nchw", "channels_last", "sliced")

_ORACLE_CASES = ("stride 1", "all arguments in pairs")
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_MAX_SHOWN_FAULTS = 40


@dataclass
class Tally:
    """The results of one mode (fp64, fp32, tf32, fp16, bf16) and direction."""

    mode: str
    direction: str
    checked: int = 0
    max_error: float = 0.0
    faults: list[str] = field(default_factory=list)
    failed: int = 0

    @property
    def bound(self) -> float:
        """The highest relative error allowed."""
        return BOUNDS[self.mode]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--device", help="the device to test (default: cuda where there is one, else cpu)")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="only this dtype (repeatable; default: all)")


def main(args: argparse.Namespace) -> int:
    """Runs the test and prints its table; 0 if all passed, else 1."""
    device = device_of(args.device)
    tallies = run(device, args.dtype or tuple(DTYPES))
    _report(tallies, device)
    return 1 if any(tally.failed for tally in tallies) else 0


def run(device: torch.device, dtypes: Sequence[str] = tuple(DTYPES), cases: Sequence[Case] = CASES) -> list[Tally]:
    """Tests cases in every dtype, layout and direction on a device.

    A result passes if its shape, dtype and strides are those of torch's operator on that device, its relative error
    against float64 is within the bound, and, where the kernels serve, a second run gives the same bits. On CUDA float32
    is tested twice: strict, and with TF32 allowed.
    """
    modes = _modes(dtypes, device)
    tallies = [Tally(mode, direction) for mode in modes for direction in DIRECTIONS]
    with progress("check", len(tallies)) as advance, torch.no_grad():
        for tally in tallies:
            torch.manual_seed(0)
            with torch_in(tally.mode):
                for index, case in enumerate(cases):
                    _check_case(case, index % 2 == 0, device, tally)
            advance(f"{tally.mode} {tally.direction}: {tally.failed} of {tally.checked} failed")
    return tallies


def _modes(dtypes: Sequence[str], device: torch.device) -> list[str]:
    wanted = {DTYPES[name] for name in dtypes}
    return [mode for mode in MODES if dtype_of(mode) in wanted and (mode != "tf32" or device.type == "cuda")]


def _check_case(case: Case, bias: bool, device: torch.device, tally: Tally) -> None:
    plain = make_operands(case, dtype_of(tally.mode), torch.device("cpu"), bias=bias)
    reference = (_oracle if case["name"] in _ORACLE_CASES else call_float64)(tally.direction, plain).to(device)
    for layout in LAYOUTS:
        faults = list(_faults(plain.laid_out(layout, device), reference, tally))
        tally.checked += 1
        tally.failed += bool(faults)
        tally.faults += [f"{tally.mode} {tally.direction}, {case['name']!r}, {layout}: {fault}" for fault in faults]


def _faults(operands: Operands, reference: Tensor, tally: Tally) -> Iterator[str]:
    try:
        theirs = call_torch(tally.direction, operands)
        first, second = (_call_on_dirty_memory(tally.direction, operands, theirs) for _ in range(2))
    except Exception as raised:
        yield f"raised {type(raised).__name__}: {raised}"
        return
    if first.shape != theirs.shape or first.dtype != theirs.dtype:
        yield f"{first.dtype} {tuple(first.shape)}; torch gives {theirs.dtype} {tuple(theirs.shape)}"
        return
    if _strides(first) != _strides(theirs) and _decides_strides(tally.direction, operands):
        yield f"strides {first.stride()}; torch gives {theirs.stride()}"
    error = relative_error(first, reference)
    tally.max_error = error if math.isnan(error) else max(tally.max_error, error)
    if not error <= tally.bound:
        yield f"relative error {error:.2e}; the bound is {tally.bound:.0e}"
    bits = _INTEGERS[first.element_size()]
    # ATen promises no order of additions: its CPU kernels leave it to their threads.
    if kernels_serve(first) and not torch.equal(first.view(bits), second.view(bits)):
        yield "a second run gives other bits"


def _strides(tensor: Tensor) -> list[int]:
    """The strides that matter: of an element at all, along dimensions larger than 1."""
    along = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in along if size > 1 and tensor.numel()]


def _decides_strides(direction: str, operands: Operands) -> bool:
    """Whether the result's memory format follows from the tensors that the call reads.

    Torch's gradients follow input and weight. The gradient operators read but one of these, and it or grad_output may
    be contiguous in both formats, as a tensor of one channel is.
    """
    return direction == "forward" or not any(
        tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
        for tensor in operands.read(direction)
    )


def _call_on_dirty_memory(direction: str, operands: Operands, like: Tensor) -> Tensor:
    """The call, after leaving NaN in freed memory of the result's size: an element never written does not pass."""
    torch.full_like(like, float("nan"))
    return call_ours(direction, operands)


def _oracle(direction: str, operands: Operands) -> Tensor:
    """The result by this package's own readable reference, on the CPU."""
    case = operands.case
    order = case["s"], case["p"], case["op"], case["g"], case["d"]
    if direction == "forward":
        return _reference.forward(operands.input, operands.weight, operands.bias, *order)
    assert operands.grad_output is not None
    if direction == "grad_input":
        return _reference.grad_input(operands.grad_output, operands.weight, (case["h"], case["w"]), *order)
    return _reference.grad_weight(operands.input, operands.grad_output, case["k"], *order)


def _report(tallies: Sequence[Tally], device: torch.device) -> None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU (served by ATen)"
    columns = [Column("dtype", text=True), Column("direction", text=True), Column("passed"), Column("failed")]
    columns += [Column("max relative error"), Column("bound"), Column("", text=True)]
    rows = [
        (
            tally.mode, tally.direction, str(tally.checked - tally.failed), str(tally.failed),
            f"{tally.max_error:.1e}", f"{tally.bound:.1e}", "FAIL" if tally.failed else "ok",
        )
        for tally in tallies
    ]  # fmt: skip
    failed, checked = sum(tally.failed for tally in tallies), sum(tally.checked for tally in tallies)
    print_table(
        f"deconv_ext against float64 on {name}, torch {torch.__version__}",
        columns,
        rows,
        styles=["red" if tally.failed else "green" for tally in tallies],
        caption=f"{checked - failed} of {checked} passed",
    )
    faults = [fault for tally in tallies for fault in tally.faults]
    for fault in faults[:_MAX_SHOWN_FAULTS]:
        print(fault)
    if len(faults) > _MAX_SHOWN_FAULTS:
        print(f"… and {len(faults) - _MAX_SHOWN_FAULTS} more")

"""The kernels on the CPU: csrc/'s own code, run by the machine of tests/emulator, against float64.

Threads go on in an order that a seed decides, copies, products and kernels that may overlap happen early or late, and
all memory around the operands is NaN. What that cannot show is in CONTRIBUTING.md.
"""

import itertools
import re
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from cases import AWKWARD
from helpers import relative_error
from torch import Tensor

from deconv_ext.workloads import Case, case, flops, output_size, parse_shape

core = pytest.importorskip("_host_core", reason="the host core is not built: cmake -S . -B build/host_core")
emulator = pytest.importorskip("_emulator", reason="the emulator is not built: cmake -S . -B build/host_core")
pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from planning import FAMILIES, kinds_of, names_of, problem_of, words_of  # noqa: E402

MARGIN = 256  # elements of NaN on either side of a tensor
# Of float32: strict by default. The largest relative error of a result.
MODES = {"float64": 1e-13, "float32": 4e-6, "tf32": 2e-3, "float16": 1.5e-3, "bfloat16": 1.2e-2}
LAYOUTS = ("contiguous", "channels_last")
OPERANDS = {"forward": ("x", "w"), "grad_input": ("y", "w"), "grad_weight": ("x", "y")}
RESULTS = {"forward": "y", "grad_input": "x", "grad_weight": "w"}


@dataclass
class Call:
    """One call as the operators make it, on a GPU with so many multiprocessors."""

    one: Case
    direction: str
    mode: str = "float32"
    layout: str = "contiguous"
    family: str = ""
    multiprocessors: int = 3
    bias: bool = True
    # Where the operands lie: aligned; shifted by an element; apart: their columns as well; odd: the result, too.
    place: str = "aligned"
    plan: Any = None  # by default what the planner takes

    def __post_init__(self) -> None:
        self.dtype = getattr(torch, self.mode.replace("tf32", "float32"))
        self.problem = problem_of(self.one, self.direction, self.mode, self.layout)
        self.problem.unaligned_first = self.problem.unaligned_second = self.place != "aligned"
        if self.place == "apart":
            for name in OPERANDS[self.direction]:
                self.problem.set_strides(name, self._stride(name))
        self.device = core.Device()
        self.device.multiprocessors = self.multiprocessors
        if self.plan is None:
            self.plan = core.make_plan(self.problem, self.device, self.family)
        self.bias = self.bias and self.direction == "forward"

    def __str__(self) -> str:
        words = words_of(self.plan, self.mode)
        return f"{self.one} {self.direction} {self.mode} {self.layout} {self.place} {self.multiprocessors}: {words}"

    def with_plan(self, plan: Any) -> "Call":
        other = copy(self)
        other.plan = plan
        return other

    def is_served(self) -> bool:
        """Whether the family takes the problem; what it refuses goes to simt."""
        return words_of(self.plan).startswith(self.family)

    def candidates(self) -> list["Call"]:
        """The same call by each plan of the family."""
        plans = core.candidates(self.problem, self.device, self.family)
        return [self.with_plan(plan) for plan in plans if words_of(plan).startswith(self.family)]

    def _sizes(self) -> dict[str, tuple[int, ...]]:
        one = self.one
        return {
            "x": (one["n"], one["ci"], one["h"], one["w"]), "w": (one["ci"], one["co"] // one["g"], *one["k"]),
            "y": (one["n"], one["co"], *output_size(one)), "bias": (one["co"],),
        }  # fmt: skip

    def _stride(self, name: str) -> tuple[int, ...]:
        if name == RESULTS[self.direction]:
            return tuple(self.problem.result_strides())
        if name == "bias":
            return (1,)
        _, c, h, w = self._sizes()[name]
        if self.layout == "channels_last":
            return (c * h * w, 1, w * c, c)
        apart = self.place == "apart"
        row = 2 * w + 1 if apart else w
        return (c * h * row, h * row, row, 2 if apart else 1)

    def operands(self) -> dict[str, Tensor]:
        """Random ones, inside NaN; the result, too."""
        generator = torch.Generator().manual_seed(0)
        tensors = {}
        for name, size in self._sizes().items():
            values = torch.randn(size, generator=generator, dtype=torch.float64).to(self.dtype)
            moved = name in OPERANDS[self.direction] or self.place == "odd"
            shift = int(moved and self.place != "aligned" and name != "bias")
            tensors[name] = _inside_nan(values, self._stride(name), shift)
        return tensors

    def reference(self, operands: dict[str, Tensor]) -> Tensor:
        one = self.one
        args = {"stride": one["s"], "padding": one["p"], "output_padding": one["op"], "groups": one["g"]}
        wide = {name: tensor.double() for name, tensor in operands.items()}
        result = RESULTS[self.direction]
        wide[result] = torch.zeros_like(wide[result], requires_grad=True)
        if self.direction == "forward":
            bias = wide["bias"] if self.bias else None
            return torch.nn.functional.conv_transpose2d(wide["x"], wide["w"], bias, **args, dilation=one["d"])
        y = torch.nn.functional.conv_transpose2d(wide["x"], wide["w"], **args, dilation=one["d"])
        return torch.autograd.grad(y, wide[result], wide["y"])[0]

    def emulate(self, operands: dict[str, Tensor], seed: int = 0) -> Tensor:
        """The result; nothing around it has been written."""
        result = operands[RESULTS[self.direction]].fill_(float("nan"))
        before = {name: operands[name].clone() for name in OPERANDS[self.direction]}
        addresses = {name: operands[name].data_ptr() for name in OPERANDS[self.direction]}
        workspace = torch.full((self.plan.workspace_bytes + 512,), 255, dtype=torch.uint8)
        skipped = -workspace.data_ptr() % 256
        emulator.launch(
            self.problem,
            self.plan,
            *(addresses.get(name, 0) for name in "xwy"),
            operands["bias"].data_ptr() if self.bias else 0,
            result.data_ptr(),
            workspace.data_ptr() + skipped,
            seed,
        )
        whole = result.as_strided((result.untyped_storage().nbytes() // result.element_size(),), (1,), 0)
        outside = torch.ones_like(whole, dtype=torch.bool)
        outside.as_strided(result.shape, result.stride(), result.storage_offset()).fill_(False)
        assert whole[outside].isnan().all(), f"memory around the result was written: {self}"
        behind = workspace[skipped + self.plan.workspace_bytes :]
        assert (behind == 255).all(), f"memory behind the workspace was written: {self}"
        for name, values in before.items():
            assert torch.equal(operands[name].nan_to_num(), values.nan_to_num()), f"{name} was written: {self}"
        return result.clone()

    def check(self, orders: int = 2) -> None:
        """Right in so many orders of execution, and the same bits in all; nothing is left unwritten, which is NaN."""
        operands = self.operands()
        expected = self.reference(operands)
        try:
            results = [self.emulate(operands, seed) for seed in range(orders)]
        except RuntimeError as error:
            raise AssertionError(f"{error}: {self}") from error
        assert relative_error(results[0], expected) <= MODES[self.mode], self
        assert all(torch.equal(result, results[0]) for result in results), self

    def check_not_finite(self, random: Random) -> None:
        """Infinities and NaN of the source reach what they belong to, and no other result, although sums hold products
        with zeros that are not theirs, or of parts."""
        operands = self.operands()
        source = operands[OPERANDS[self.direction][0]]
        for value in (float("inf"), float("-inf"), float("nan")):
            source[tuple(random.randrange(size) for size in source.shape)] = value
        expected, result = self.reference(operands), self.emulate(operands)
        finite = expected.isfinite()
        assert torch.equal(result.double()[~finite].nan_to_num(), expected[~finite].nan_to_num()), self
        assert torch.equal(result.isnan(), expected.isnan()), self
        assert relative_error(result[finite], expected[finite]) <= MODES[self.mode], self


def _inside_nan(values: Tensor, stride: tuple[int, ...], shift: int) -> Tensor:
    """`values` with these strides, so many elements behind an address of 256 bytes."""
    size = values.element_size()
    span = sum((extent - 1) * step for extent, step in zip(values.shape, stride, strict=True)) + 1
    buffer = torch.full((span + 2 * MARGIN + 256 // size,), float("nan"), dtype=values.dtype)
    offset = MARGIN + -(buffer.data_ptr() // size + MARGIN) % (256 // size) + shift
    return buffer.as_strided(values.shape, stride, offset).copy_(values)


# --- the machine itself ---------------------------------------------------------------------------------------------


def _is_right(mistake: str, seed: int) -> bool:
    """Whether a product of tensor cores, of what a kernel before copied, is right in the order that a seed decides."""
    source = torch.randn(96, 32)
    expected = source[:64].double() @ source[64:].double().T + source[0].double()
    copy, result = (torch.full((rows, 32), float("nan")) for rows in (96, 64))
    addresses = (tensor.data_ptr() for tensor in (source, copy, result))
    emulator.launch_example(getattr(emulator.Mistake, mistake), *addresses, seed)
    return relative_error(result, expected) < 2e-3


def test_right_examples_are_right_in_any_order() -> None:
    assert all(_is_right("NONE", seed) for seed in range(20))


@pytest.mark.parametrize(
    "mistake", ["NO_FENCE", "NO_WAIT", "READS_BULK_EARLY", "OVERWRITES_EARLY", "RELEASES_EARLY", "READS_EARLY"]
)
def test_races_show_in_some_order(mistake: str) -> None:
    assert not all(_is_right(mistake, seed) for seed in range(20))


def test_kernels_start_early_with_odd_seeds() -> None:
    assert [_is_right("READS_EARLY", seed) for seed in range(6)] == [True, False] * 3


def test_barriers_are_missed() -> None:
    with pytest.raises(RuntimeError, match="a barrier that was not initialized"):
        assert all(_is_right("NO_SYNC", seed) for seed in range(20))


def test_arrays_of_fixed_size_begin_as_nan() -> None:
    """Also where an earlier kernel has left what was right then."""
    source = torch.randn(96, 32)
    for mistake in ("NONE", "UNWRITTEN"):
        copy, result = (torch.zeros(rows, 32) for rows in (96, 64))
        addresses = (tensor.data_ptr() for tensor in (source, copy, result))
        emulator.launch_example(getattr(emulator.Mistake, mistake), *addresses, 0)
    assert copy[0].isnan().all()
    assert torch.equal(copy[1:], source[1:])


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("BEHIND_ARRAY", r"block 0, thread 31: outside shared memory: 4 bytes at \d+"),
        ("TOO_MANY_REGISTERS", "a block wants more registers than it was launched with"),
        ("DEADLOCK", r"no thread can go on: block 0 warp 0 waits for the barrier at \d+, parity 0 \(32 lanes\)"),
        ("EXPECTS_TOO_MUCH", r"no thread can go on: block 0 warp 0 waits for the barrier at \d+, parity 0"),
        ("MISALIGNED", r"block 0, thread \d+: 4 bytes of shared memory at \d+, which is not aligned"),
        ("OUTSIDE", r"block 0, thread \d+: outside shared memory: 16 bytes at \d+"),
    ],
)
def test_what_cannot_be_is_an_error(mistake: str, text: str) -> None:
    for seed in range(3):  # and the next launch works
        with pytest.raises(RuntimeError, match=text):
            _is_right(mistake, seed)
        assert _is_right("NONE", seed)


# --- the kernels ----------------------------------------------------------------------------------------------------


AWKWARD_FEW = [one for one in AWKWARD if one["n"] * one["h"] * one["w"] < 1000]
# fmt: off
LAYERS = AWKWARD_FEW + [parse_shape(shape, shape) for shape in (
    # Whole tiles and ragged ones, several items a block, phases, planes, groups, images in a tile.
    "2x32x8x16 to 64 k3 p1", "2x40x9x12 to 33 k4 s2 p1", "1x72x11x13 to 136 k3x2 s2x1 p0x1 d1x2",
    "1x24x6x7 to 48 k4x5 s2x3 p1x2 op1x0", "2x48x7x8 to 96 k3 s2 p1 op1 g2", "1x32x8x9 to 32 k3 s2 p1 op1 g8",
    "9x64x3x4 to 32 k2 s2", "17x100x1x1 to 64 k4", "1x32x9x33 to 32 k3 p1", "2x12x9x16 to 6 k4 s2 p1",
    "1x32x8x16 to 32 k3 p1", "1x48x8x16 to 32 k3 p1", "1x48x8x19 to 32 k3 p1",
    # Few channels on one side; few pixels.
    "2x64x12x16 to 3 k4 s2 p1", "1x64x10x9 to 4 k3x5 s1x2 p2x0 g2", "1x3x12x21 to 64 k3 p1", "2x32x12x16 to 3 k4 s2 p1",
    "1x40x7x30 to 1 k9 s3 p4 op2", "1x64x8x8 to 128 k4 s2 p1", "9x70x1x1 to 96 k4", "1x200x6x8 to 40 k3 p1",
    # Few result channels: all numbers of taps a phase, none too, dilations, several chunks of channels, groups, passes.
    "3x48x13x24 to 3 k4 s2 p1", "2x56x9x40 to 1 k9 s4 p4 op3", "1x136x11x72 to 2 k5 s2 p2 op1",
    "2x24x10x16 to 4 k3 s2x3 p2 d3x2", "1x24x6x24 to 3 k2x1 s4x3 op1x2", "2x64x8x16 to 6 k3x4 s2 p1 g2",
    "1x32x9x8 to 12 k4 s2 p1", "2x40x5x16 to 6 k4 s2 p1", "2x32x7x16 to 3 k3 p1", "2x3x9x16 to 24 k3x5 p1x2",
    "2x40x9x16 to 3 k4 s2 p1", "1x56x7x40 to 1 k9 s4 p4 op3", "2x72x6x24 to 2 k4 s2", "2x32x11x8 to 5 k3 s2 p1 op1",
    "1x24x5x16 to 3 k6 s3 p1 op2", "1x136x3x104 to 4 k5 s2 p2 op1", "2x16x5x16 to 12 k4 s2 p1",
    "1x16x9x24 to 2 k2x3 s2x3 p1 d3x2", "2x32x8x28 to 32 k3 s2 p1 op1 g2", "1x24x12x14 to 3 k4 s2 p0x1 op1x0",
    "1x3x9x16 to 24 k2x3 p0x1",
    # Kernels of whole strides: units of every width, paddings beyond the stride, a stride along one axis, one pixel.
    "2x24x6x9 to 3 k4 s2 p1", "1x20x3x4 to 5 k16 s8 p4", "2x16x5x6 to 8 k4 s4",
    "1x32x5x7 to 24 k2x6 s2x3 p1x4 op1x2 g2", "2x18x7x5 to 7 k3x4 s1x4 p1x2 op0x3",
    "3x24x4x5 to 1 k6x4 s3x2 p0x3 op2x0", "1x16x3x18 to 5 k4 s2 p1", "2x3x6x1 to 1 k2x4 s1x2 p1x0",
    "2x16x1x6 to 8 k3x4 s2 p0x1", "1x16x3x5 to 70 k8 s4 p2", "3x40x5x9 to 60 k2 s2", "9x16x2x1 to 5 k4x16 s2x16 p1x7",
    "5x20x1x1 to 40 k4", "3x32x1x1 to 48 k3x5 s2x1 g2", "4x24x1x1 to 16 k4 s2 p1",
    # Kernels as large as the stride: even and odd rows, images of less than a piece and of several.
    "3x40x8x8 to 70 k2 s2", "2x72x5x8 to 24 k2 s2", "5x130x8x16 to 33 k4 s4", "2x16x4x8 to 40 k3 s3",
    "2x32x6x4 to 20 k4x2 s4x2 p1 op1", "2x32x6x4 to 20 k3x5 s3x5 p2x1 op2x1", "2x64x4x16 to 48 k2x4 s2x4 g2",
    "1x24x16x2 to 16 k1x2 s1x2", "1x16x2x4 to 3 k16 s16", "3x80x14x14 to 20 k2 s2", "3x80x7x6 to 20 k2 s2",
    "5x48x2x3 to 40 k2x4 s2x4 g2", "2x144x5x9 to 40 k2 s2", "1x24x7x5 to 20 k2 s2",
    # Strides of 2, kernels of 3 and 4: every pattern of taps, tiles that end beyond the image.
    "3x40x6x8 to 70 k4 s2 p1", "2x72x9x16 to 24 k3 s2 p1 op1", "2x16x5x24 to 40 k3 s2 op0x1",
    "2x48x7x8 to 33 k4 s2 op1x0", "5x130x10x40 to 150 k3 s2 p1 op0x1", "2x96x4x16 to 72 k4 s2 p1 g3",
    "1x24x11x8 to 16 k4 s2 p3x1 op1x0",
    # Small images, several in a tile, that end beyond the batch.
    "9x72x4x4 to 20 k4 s2 p1", "7x40x4x8 to 40 k4 s2 p1", "5x24x8x4 to 16 k4 s2 p1", "5x130x8x8 to 33 k4 s2 p1",
    "3x40x16x12 to 40 k4 s2 p1", "2x16x12x16 to 24 k4 s2 p1", "3x64x16x16 to 17 k4 s2 p1", "3x96x8x8 to 72 k4 s2 p1 g3",
    "17x16x4x4 to 70 k4 s2 p1",
    # Groups of 1 to 20 channels, more on one side than on the other.
    "2x32x6x9 to 32 k4 s2 p1 g8", "2x60x5x7 to 60 k3 p1 g20", "1x9x7x6 to 36 k3x2 s2x1 p1x0 op1x0 g3",
    "2x60x5x5 to 12 k3 s2 p1 op1 g3", "2x34x6x8 to 34 k3 p1 g34", "3x24x5x6 to 16 g8",
    # Depthwise, large strides: whole runs and halves, several segments, more output than the last block covers.
    "1x2x6x9 to 2 k6x8 s3x4 p1x2 g2", "2x5x5x33 to 5 k16 s8 p4 g5", "1x3x40x16 to 3 k4x16 s2x8 p1x0 g3",
    "1x2x3x5 to 2 k4x32 s2x16 p3x20 op1x8 g2", "1x2x3x5 to 2 k16 s8 p1x4 op2x4 g2", "1x2x2x3 to 2 k64 s32 p16 g2",
    "2x3x5x9 to 3 k4x16 s2x8 p1x3 op0x6 g3", "1x21x4x11 to 21 k16 s8 p4 g21", "2x40x3x45 to 40 k2x4 s1x2 p1x2 g40",
    "1x200x3x4 to 200 k6x4 s3x2 p4x1 op2x0 g200", "1x4x3x5 to 4 k4x8 s2x4 p3x6 op1x0 g4", "1x4x3x5 to 4 k4 s2 op1x0 g4",
    # Depthwise, strips: multipliers, dilations alone and with a stride, kernels without taps in some phases.
    "1x3x7x10 to 6 k3x4 s3x2 p1x0 op2x1 g3", "2x12x5x8 to 4 k4x3 s2 p3x1 op1x0 g4", "2x6x9x21 to 6 k5 p2 g6",
    "1x16x8x9 to 16 k3 s1x2 p2x0 d2x3 g16", "2x4x6x5 to 4 k3x5 s4x2 p1 op3x0 d2x4 g4", "2x1x6x7 to 5 k4 s2x3 p1",
    "1x24x4x3 to 24 k2x1 s5x7 op4x6 g24", "2x40x6x7 to 1 k9x3 s4x1 p4x1 op3x0",
    # Depthwise, down rows: lines in parts, paddings of the height that the width lacks, several blocks of channels.
    "2x3x19x24 to 3 k3 p0x1 g3", "1x2x6x272 to 2 k3 p2x1 g2", "3x2x9x8 to 2 k2 s2 p1x0 op1x0 g2",
    "2x2x21x12 to 2 k3 s2 p0x1 op0x1 g2", "2x70x10x8 to 70 k4 s2 p3x1 op1x0 g70", "1x2x5x136 to 2 k4 s2 p1 g2",
    "2x70x5x11 to 70 k3 p1x0 g70", "1x6x7x5 to 6 k4 s2 p2x3 op0x1 g6", "1x4x8x9 to 4 k3 s2 p1 g4",
    "1x128x6x9 to 128 k3 p1 g128", "2x24x6x5 to 24 k4 s2 p1 g24",
    # Copied and flat results: rows, images, groups, phases, planes of a strided gradient.
    "2x64x12x19 to 64 k3 p1", "9x72x3x4 to 136 k2x3", "3x40x5x6 to 72", "2x32x9x21 to 24 k3x5", "1x72x9x21 to 32 k3",
    "2x64x7x9 to 96 k3 g2", "2x72x9x17 to 136 k4 s2 p1", "1x40x7x10 to 64 k3 s2x3 p1 op1", "9x64x3x5 to 72 k2 s2",
    "1x48x7x11 to 40 k3x2 s2x3 d2x1", "2x64x7x18 to 80 k4 s2 p1", "1x40x11x10 to 64 k3 s3x1 d1x2",
    "2x64x12x24 to 64 k3 p1", "2x72x11x19 to 70 k3x4", "3x40x9x6 to 136 k2x3", "1x64x5x104 to 64 k3",
    "1x48x9x14 to 64 k3 s2x1 d1x2", "1x40x11x20 to 64 k3 s3x2 d1x2", "2x64x5x96 to 136 k3 s2 p1 op1",
    "2x40x9x16 to 64 k2 s2", "1x72x7x32 to 72 k4 s2 p1", "2x64x6x48 to 40 k3x4 s1x2 p1",
    "1x64x5x16 to 64 k3 s3x2 p1 op0x1", "1x64x6x32 to 256 k2 s2 g2", "1x48x5x32 to 64 k3x1 s2 p1x0 op1",
    # Idle phases, passes and tiles that end in one run, rows that wait for all phases, results unpacked.
    "1x8x17x70 to 12 k3 s2x3 p1x2 op1x0 d2", "2x16x2x70 to 33 k1x3 p0x1", "2x32x2x70 to 34 k1x3 p0x1 g2",
    "2x32x5x65 to 24 k1x3 p0x1 g2", "1x40x2x110 to 72 k3x4 s2x3 p1 op1", "1x24x2x110 to 72 k3x4 s2x4 p1 op1x2",
    "1x24x2x110 to 72 k3 s2x5 p1 op1x2", "1x320x2x110 to 72 k3x4 s2x3 p1 op1", "2x48x9x6 to 80 k3 s2 p1 g2",
    "2x48x7x12 to 80 k4 s5 p1 g2", "2x72x9x6 to 100 k3 s3 p1 d2", "2x72x3x4 to 100 k4 s3 p1 d2", "3x16x5x7 to 72 k3 s5",
    "3x32x9x14 to 32 k3 s5 g2", "2x32x5x14 to 80 k3 s2 p1 op1 g2",
)]
# fmt: on
LAYERS.sort(key=flops)
CHEAP = LAYERS[: 2 * len(LAYERS) // 3]


def _instances() -> list[tuple[str, str]]:
    """The kernels' plans and modes that are compiled, as the launch headers declare them; and the lowerings'."""
    csrc = Path(__file__).parent.parent / "csrc"
    found = set()
    for header in (csrc / "lowerings").glob("*/plan.h"):
        found |= set(itertools.product(re.findall(r"^struct (\w+Plan) {", header.read_text(), re.MULTILINE), MODES))
    found = {(plan, mode) for plan, mode in found if mode != "float64"}
    for header in csrc.rglob("*launch*.cuh"):
        for plan, entries in re.findall(r"^// instances: .*\((\w+)\): (.+)$", header.read_text(), re.MULTILINE):
            found |= {(plan, entry.split()[0]) for entry in entries.split(", ")}
    return sorted(found)


def _calls(layers: list[Case], mode: str, families: list[str], random: Random) -> Iterator[Call]:
    calls = list(itertools.product(layers, RESULTS, LAYOUTS, families))
    random.shuffle(calls)
    for one, direction, layout, family in calls:
        yield Call(one, direction, mode, layout, family, random.choice((3, 5, 132)))


def _by_kernel(kernel: str, mode: str, random: Random) -> Iterator[Call]:
    """Calls by one kernel, of layers with a trait that those before them lack, each by some of its plans."""
    seen: set[Any] = set()
    family, tries = "", 0
    for call in _calls(CHEAP, mode, FAMILIES, random):
        if family not in ("", call.family):
            continue
        one, direction = call.one, call.direction
        many = max(one["ci"], one["co"]) // one["g"] > 32
        traits = {(direction, call.layout), (direction, "groups", one["g"] > 1), (direction, "channels", many)}
        if not traits <= seen:
            plans = [each for each in call.candidates() if kernel in names_of(each.plan)]
            if plans:
                seen |= traits
                family = call.family
                yield from random.sample(plans, min(3, len(plans)))
        tries += family != ""
        if tries > 150:
            return


@pytest.mark.parametrize(("kernel", "mode"), _instances())
def test_every_kernel(kernel: str, mode: str) -> None:
    """Some layers, with groups and without, each by some of the plans."""
    random = Random(f"{kernel} {mode}")
    calls = list(_by_kernel(kernel, mode, random))
    assert calls
    for i, call in enumerate(calls):
        call.check(orders=2 if i == 0 else 1)
    if calls[0].direction != "grad_weight":
        calls[0].check_not_finite(random)


def _unlike(mode: str, family: str, random: Random) -> Iterator[Call]:
    """Calls that LAYERS make: 12 of different layers, then each of a kind that those before it are not."""
    seen: set[Any] = set()
    layers = 0
    for call in _calls(LAYERS, mode, [family], random):
        candidates = call.candidates()
        layers += bool(candidates)
        for i, each in enumerate(random.sample(candidates, len(candidates))):
            kinds = kinds_of(each.plan, mode)
            if not kinds <= seen or (i == 0 and layers <= 12):
                seen |= kinds
                yield each


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bfloat16", "tf32", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_plan(family: str, mode: str) -> None:
    """Of those that LAYERS may be run by, whatever the estimates."""
    random = Random(f"{family} {mode}")
    for i, call in enumerate(_unlike(mode, family, random)):
        call.check(1 + i % 2)
        if i % 4 == 0 and call.direction != "grad_weight":
            call.check_not_finite(random)


@pytest.mark.parametrize("direction", list(RESULTS))
@pytest.mark.parametrize("i", range(len(AWKWARD_FEW)), ids=lambda i: AWKWARD_FEW[i]["name"])
def test_awkward_cases_by_the_plan_of_choice(i: int, direction: str) -> None:
    """Every mode and layout now and then."""
    for k in (i, i + 2):
        Call(AWKWARD_FEW[i], direction, list(MODES)[k % 5], LAYOUTS[k // 5 % 2]).check()


@pytest.mark.parametrize("place", ["shifted", "apart"])
@pytest.mark.parametrize("family", FAMILIES)
def test_operands_anywhere(family: str, place: str) -> None:
    """The planner is told of addresses that no wide load takes and of columns apart, and the plan can run."""
    random, served = Random(family + place), 0
    while served < 5:
        mode = random.choice(list(MODES))
        settings = (random.choice(CHEAP), random.choice(list(RESULTS)), mode, random.choice(LAYOUTS), family)
        call = Call(*settings, multiprocessors=random.choice((3, 132)), place=place)
        if call.is_served():
            call.check(orders=1)
            served += 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["float32", "tf32", "bfloat16"])
def test_infinities_stay_in_their_group(mode: str, layout: str) -> None:
    """What merged groups compute for nothing may be NaN; the other groups have the same bits as without."""
    call = Call(case("fours", 2, 32, 6, 9, 32, 4, 2, 1, g=8), "grad_weight", mode, layout, "group_merge")
    assert call.is_served()
    operands = call.operands()
    finite = call.emulate(operands).clone()
    group = slice(4, 8)  # the second of eight
    operands["x"][0, 5, 2, 3], operands["y"][1, 6, 4, 4] = float("inf"), float("nan")
    result = call.emulate(operands)
    assert not result[group].isfinite().all()
    result[group] = finite[group]
    assert torch.equal(result, finite)


# Tensor cores cut float32 off: the kernels round it to the nearest TF32, where the source is rewritten and where not.
@pytest.mark.parametrize(("layout", "repacked"), [("contiguous", True), ("channels_last", False)])
def test_sources_rounded_to_tf32(layout: str, repacked: bool) -> None:
    one = case("rounded", n=2, ci=16, h=8, w=8, co=64, k=3, p=1)
    layer = Call(one, "forward", "tf32", layout, "igemm_sm80", multiprocessors=132, bias=False)
    call = next(some for some in layer.candidates() if ("source repacked" in words_of(some.plan)) == repacked)
    operands = call.operands()
    operands["x"].fill_(1 + 0.75 * 2**-10)
    operands["w"].fill_(1)
    result = call.emulate(operands)
    operands["x"].fill_(1 + 2**-10)
    assert torch.equal(result.double(), call.reference(operands))


@st.composite
def calls(draw: st.DrawFn, family: str) -> Call:
    """A layer that takes some milliseconds to emulate, by any plan of the family."""
    one: dict[str, Any] = {"name": "drawn", "n": draw(st.sampled_from([1, 2, 3, 9]))}
    extent = st.integers(1, 4) if one["n"] == 9 else st.integers(1, 14)
    one |= {"h": draw(extent), "w": draw(extent) + (draw(st.sampled_from([0, 0, 10])) if one["n"] < 9 else 0)}
    one["k"] = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    one["s"] = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 2, 2, 3, 4]))
    one["d"] = draw(st.sampled_from([1, 1, 1, 2, 3])), draw(st.sampled_from([1, 1, 1, 2, 3]))
    if family == "sub_pixel":
        one["d"], one["k"] = (1, 1), tuple(draw(st.integers(1, 2)) * s for s in one["s"])
    one["p"] = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    one["op"] = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(one["s"], one["d"], strict=True))
    if family == "depthwise":
        one["g"] = one["ci"] = draw(st.sampled_from([1, 3, 4, 8, 20, 33]))
        one["co"] = one["g"] * draw(st.sampled_from([1, 1, 2]))
    else:
        one["g"] = draw(st.sampled_from([2, 4, 6] if family == "group_merge" else [1, 1, 1, 2, 3]))
        few = family in ("small_channel", "col2im", "simt", "group_merge")
        grouped = [2, 5] if one["g"] > 1 else []
        channels = st.sampled_from([1, 3, 8, 9, 24, 40] if few else [*grouped, 8, 16, 24, 32, 33, 64, 72])
        one["ci"], one["co"] = one["g"] * draw(channels), one["g"] * draw(channels)
    assume(min(output_size(one)) >= 1)  # type: ignore[arg-type]
    call = Call(
        one,  # type: ignore[arg-type]
        draw(st.sampled_from(list(RESULTS))),
        draw(st.sampled_from(list(MODES))),
        draw(st.sampled_from(LAYOUTS)),
        family,
        draw(st.sampled_from([1, 2, 5, 132])),
        draw(st.booleans()),
    )
    assume(call.is_served())
    return draw(st.sampled_from(call.candidates())) if draw(st.booleans()) else call


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_layers(family: str) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(calls(family))
    def check(call: Call) -> None:
        call.check()

    check()

"""The kernels on the CPU: csrc/'s own code, run by the machine of tests/emulator, against float64.

Threads go on in an order that a seed decides, copies, products and kernels that may overlap happen early or late, and
all memory around the operands is NaN. What that cannot show is in CONTRIBUTING.md.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from cases import AWKWARD
from helpers import relative_error
from torch import Tensor

from deconv_ext.workloads import Case, case, output_size

core = pytest.importorskip("_host_core", reason="the host core is not built: cmake -S . -B build/host_core")
emulator = pytest.importorskip("_emulator", reason="the emulator is not built: cmake -S . -B build/host_core")
pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from planning import problem_of  # noqa: E402

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
    plan: Any = None  # by default what the planner takes

    def __post_init__(self) -> None:
        name = "float32" if self.mode == "tf32" else self.mode
        self.dtype = getattr(torch, name)
        self.problem = problem_of(self.one, self.direction, name, self.layout)
        self.problem.allow_tf32 = self.mode == "tf32"
        self.device = core.Device()
        self.device.multiprocessors = self.multiprocessors
        if self.plan is None:
            self.plan = core.make_plan(self.problem, self.device, self.family)
        self.bias = self.bias and self.direction == "forward"

    def with_plan(self, plan: Any) -> "Call":
        other = copy(self)
        other.plan = plan
        return other

    def is_served_by(self, families: str) -> bool:
        return self.plan.describe(core.DType.float32).split(" family")[0] in families.split(",")

    def sizes(self) -> dict[str, tuple[int, ...]]:
        one = self.one
        return {
            "x": (one["n"], one["ci"], one["h"], one["w"]), "w": (one["ci"], one["co"] // one["g"], *one["k"]),
            "y": (one["n"], one["co"], *output_size(one)), "bias": (one["co"],),
        }  # fmt: skip

    def operands(self) -> dict[str, Tensor]:
        """Random ones, inside NaN; the result, too."""
        generator = torch.Generator().manual_seed(0)
        tensors = {}
        for name, size in self.sizes().items():
            values = torch.randn(size, generator=generator, dtype=torch.float64).to(self.dtype)
            stride = torch.empty(size, device="meta").stride()
            if len(size) == 4 and self.layout == "channels_last":
                _, c, h, w = size
                stride = (c * h * w, 1, w * c, c)
            if name == RESULTS[self.direction]:
                stride = tuple(self.problem.result_strides())
            tensors[name] = _inside_nan(values, stride)
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

    def emulate(self, operands: dict[str, Tensor], seed: int) -> Tensor:
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
        assert whole[outside].isnan().all(), "memory around the result was written"
        assert (workspace[skipped + self.plan.workspace_bytes :] == 255).all(), (
            "memory behind the workspace was written"
        )
        for name, values in before.items():
            assert torch.equal(operands[name].nan_to_num(), values.nan_to_num()), f"{name} was written"
        return result.clone()

    def check(self) -> None:
        """Right in two orders of execution, and the same bits in both."""
        operands = self.operands()
        expected = self.reference(operands)
        results = [self.emulate(operands, seed) for seed in (0, 1)]
        assert relative_error(results[0], expected) <= MODES[self.mode]
        assert torch.equal(*results)


def _inside_nan(values: Tensor, stride: tuple[int, ...]) -> Tensor:
    """`values` with these strides, 256-byte aligned."""
    size = values.element_size()
    buffer = torch.full((values.numel() + 2 * MARGIN + 256 // size,), float("nan"), dtype=values.dtype)
    offset = MARGIN + -(buffer.data_ptr() // size + MARGIN) % (256 // size)
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


@pytest.mark.parametrize("direction", list(RESULTS))
@pytest.mark.parametrize(("i", "one"), enumerate(AWKWARD_FEW), ids=lambda v: v["name"] if isinstance(v, dict) else "")
def test_awkward_cases_by_the_plan_of_choice(i: int, one: Case, direction: str) -> None:
    """Every mode and layout now and then."""
    for k in (i, i + 2):
        Call(one, direction, list(MODES)[k % 5], LAYOUTS[k // 5 % 2]).check()


@pytest.mark.parametrize("direction", ["forward", "grad_input"])
@pytest.mark.parametrize(("i", "one"), enumerate(AWKWARD_FEW), ids=lambda v: v["name"] if isinstance(v, dict) else "")
def test_awkward_cases_by_tiles_of_the_gather_family(i: int, one: Case, direction: str) -> None:
    """Each tile now and then."""
    call = Call(one, direction, list(MODES)[i % 5], LAYOUTS[i // 5 % 2], "simt")
    plans = core.candidates(call.problem, call.device, "simt")
    call.with_plan(plans[i % len(plans)]).check()


# For tensor cores: whole tiles and ragged ones, several items a block, phases, planes, groups, images in a tile.
TILES = [
    case("whole", 2, 32, 8, 16, 64, 3, p=1),
    case("strided", 2, 40, 9, 12, 33, 4, 2, 1),
    case("ragged", 1, 72, 11, 13, 136, (3, 2), (2, 1), (0, 1), d=(1, 2)),
    case("phases_of_three", 1, 24, 6, 7, 48, (4, 5), (2, 3), (1, 2), (1, 0)),
    case("grouped", 2, 48, 7, 8, 96, 3, 2, 1, 1, g=2),
    case("few_a_group", 1, 32, 8, 9, 32, 3, 2, 1, 1, g=8),
    case("images", 9, 64, 3, 4, 32, 2, 2),
    case("one_pixel", 17, 100, 1, 1, 64, 4),
    case("odd_width", 1, 32, 9, 33, 32, 3, p=1),
    case("few", 2, 12, 9, 16, 6, 4, 2, 1),
]


@pytest.mark.parametrize(
    ("family", "modes"),
    [("igemm_sm90,wgrad_sm90", MODES), ("igemm_sm80", MODES), ("small_channel", ["tf32", "bfloat16"])],
)
@pytest.mark.parametrize("direction", list(RESULTS))
@pytest.mark.parametrize("one", TILES, ids=lambda one: one["name"])
def test_tiles(one: Case, direction: str, family: str, modes: list[str]) -> None:
    for i, mode in enumerate(modes):
        call = Call(one, direction, mode, LAYOUTS[(i + len(family)) % 2], family)
        if call.is_served_by(family):
            call.check()


def test_families_serve_their_tiles() -> None:
    calls = [
        Call(one, direction, mode, "contiguous", family)
        for family, mode in (
            ("igemm_sm90,wgrad_sm90", "bfloat16"),
            ("igemm_sm80", "float32"),
            ("small_channel", "tf32"),
        )
        for direction, one in itertools.product(RESULTS, TILES)
    ]
    served = Counter(call.family for call in calls if call.is_served_by(call.family))
    assert served["igemm_sm90,wgrad_sm90"] >= 27
    assert served["igemm_sm80"] >= 25
    assert served["small_channel"] >= 10


FEW_CHANNELS = [  # im2col, col2im, narrow
    ("grad_input", case("rgb", 2, 64, 12, 16, 3, 4, 2, 1)),
    ("grad_input", case("groups", 1, 64, 10, 9, 4, (3, 5), (1, 2), (2, 0), g=2)),
    ("forward", case("first", 1, 3, 12, 21, 64, 3, 1, 1)),
    ("forward", case("last", 2, 32, 12, 16, 3, 4, 2, 1)),
    ("forward", case("one", 1, 40, 7, 30, 1, 9, 3, 4, 2)),
    ("grad_weight", case("rgb", 2, 64, 12, 16, 3, 4, 2, 1)),
]
FEW_PIXELS = [  # clusters
    ("grad_input", case("image", 1, 64, 8, 8, 128, 4, 2, 1)),
    ("grad_input", case("latent", 9, 70, 1, 1, 96, 4)),
    ("forward", case("deep", 1, 200, 6, 8, 40, 3, 1, 1)),
]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["igemm_sm90,wgrad_sm90", "small_channel", "col2im"])
@pytest.mark.parametrize(
    ("direction", "one"), FEW_CHANNELS + FEW_PIXELS, ids=lambda v: v if isinstance(v, str) else v["name"]
)
def test_few_channels_and_few_pixels(direction: str, one: Case, family: str) -> None:
    for i, mode in enumerate(("float32", "tf32", "bfloat16")):
        call = Call(one, direction, mode, LAYOUTS[i % 2], family, multiprocessors=132)
        if call.is_served_by(family):
            call.check()


def test_families_serve_few_channels_and_few_pixels() -> None:
    served = Counter(
        family
        for family, (direction, one) in itertools.product(
            ("igemm_sm90,wgrad_sm90", "small_channel", "col2im"), FEW_CHANNELS + FEW_PIXELS
        )
        if Call(one, direction, "tf32", "contiguous", family, multiprocessors=132).is_served_by(family)
    )
    assert served == {"igemm_sm90,wgrad_sm90": 9, "small_channel": 6, "col2im": 2}


def _by_mode(layers: list[tuple[str, Case]]) -> list[tuple[str, str, Case]]:
    """In TF32 and bfloat16, and the first in float16."""
    modes = [(mode, *layer) for mode in ("tf32", "bfloat16") for layer in layers]
    return [*modes, ("float16", *layers[0])]


def _name(value: Any) -> str:
    return value if isinstance(value, str) else str(value["name"])


# Kernels that leave all numbers of taps a phase, none too, dilations, channels and taps of every size of operand B,
# several chunks of channels, groups, passes, images that end within strips and segments, results of one, two and four
# neighbours a store, grad_input.
COL2IM_COPIED = [
    ("forward", case("rgb", 3, 48, 13, 24, 3, 4, 2, 1)),
    ("forward", case("upscale", 2, 56, 9, 40, 1, 9, 4, 4, 3)),
    ("forward", case("two", 1, 136, 11, 72, 2, 5, 2, 2, 1)),
    ("forward", case("dilated", 2, 24, 10, 16, 4, 3, (2, 3), 2, 0, (3, 2))),
    ("forward", case("far", 1, 24, 6, 24, 3, (2, 1), (4, 3), 0, (1, 2))),
    ("forward", case("groups", 2, 64, 8, 16, 6, (3, 4), 2, 1, g=2)),
    ("forward", case("passes", 1, 32, 9, 8, 12, 4, 2, 1)),
    ("forward", case("six", 2, 40, 5, 16, 6, 4, 2, 1)),
    ("forward", case("same", 2, 32, 7, 16, 3, 3, 1, 1)),
    ("grad_input", case("same", 2, 3, 9, 16, 24, (3, 5), 1, (1, 2))),
]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("mode", "direction", "one"), _by_mode(COL2IM_COPIED), ids=_name)
def test_col2im_by_tensor_copies(mode: str, direction: str, one: Case, layout: str) -> None:
    """Tiles of every number of columns and rows."""
    call = Call(one, direction, mode, layout, "col2im", multiprocessors=3)
    plans = _plans_of(call, core.Col2imHopperPlan, "col2im")
    assert plans
    for plan in plans[:: max(len(plans) // 5, 1)]:
        call.with_plan(plan).check()


# Phases and channels that fill operand B and do not, odd numbers of them, shifts of one to three along an axis, dilated
# kernels, several chunks of channels, groups, ragged images, tiles beyond them, grad_input.
PICTURES = [
    ("forward", case("rgb", 2, 40, 9, 16, 3, 4, 2, 1)),
    ("forward", case("upscale", 1, 56, 7, 40, 1, 9, 4, 4, 3)),
    ("forward", case("unpadded", 2, 72, 6, 24, 2, 4, 2, 0)),
    ("forward", case("k3", 2, 32, 11, 8, 5, 3, 2, 1, 1)),
    ("forward", case("thirds", 1, 24, 5, 16, 3, 6, 3, 1, 2)),
    ("forward", case("wide", 1, 136, 3, 104, 4, 5, 2, 2, 1)),
    ("forward", case("many", 2, 16, 5, 16, 12, 4, 2, 1)),
    ("forward", case("groups", 2, 64, 8, 16, 6, (3, 4), 2, 1, g=2)),
    ("forward", case("dilated", 1, 16, 9, 24, 2, (2, 3), (2, 3), 1, 0, (3, 2))),
    ("forward", case("same", 2, 32, 7, 16, 3, 3, 1, 1)),
    ("forward", case("lines", 2, 32, 8, 28, 32, 3, 2, 1, 1, g=2)),
    ("forward", case("turning", 1, 24, 12, 14, 3, 4, 2, (0, 1), (1, 0))),
    ("grad_input", case("same", 1, 3, 9, 16, 24, (2, 3), 1, (0, 1))),
]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("mode", "direction", "one"), _by_mode(PICTURES), ids=_name)
def test_few_result_channels_on_hopper(mode: str, direction: str, one: Case, layout: str) -> None:
    """Tiles of every number of columns and rows, results that copies take out and others."""
    call = Call(one, direction, mode, layout, "igemm_sm90,wgrad_sm90", multiprocessors=3)
    plans = _plans_of(call, core.HopperPicturesPlan)
    assert plans
    for plan in plans[:: len(plans) // 4 | 1]:
        call.with_plan(plan).check()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["tf32", "bfloat16"])
@pytest.mark.parametrize(("direction", "one"), [PICTURES[0], PICTURES[4], PICTURES[9]], ids=_name)
def test_infinities_of_few_result_channels(direction: str, one: Case, mode: str, layout: str) -> None:
    """Results that have a zero for the pixel, by either kernel for Hopper, do not see it."""
    call = Call(one, direction, mode, layout, "igemm_sm90,wgrad_sm90", multiprocessors=3)
    operands = call.operands()
    operands["x"][0, 3, 0, 0], operands["x"][0, 5, -1, -1] = float("inf"), float("-inf")
    operands["x"][-1, 7, 2, 4] = float("nan")
    expected = call.reference(operands)
    assert 0 < expected.isfinite().sum() < expected.numel()
    served = Counter()
    for family, kind in (("igemm_sm90,wgrad_sm90", core.HopperPicturesPlan), ("col2im", core.Col2imHopperPlan)):
        plans = _plans_of(call, kind, family)
        for plan in plans[:: len(plans) // 4 | 1]:
            result = call.with_plan(plan).emulate(operands, 0)
            for where in (Tensor.isnan, Tensor.isposinf, Tensor.isneginf):
                assert torch.equal(where(result), where(expected))
            served[family] += 1
    assert min(served["igemm_sm90,wgrad_sm90"], served["col2im"]) >= 3


# Units of every width, whole and ragged blocks, paddings beyond the stride, groups, a stride along one axis alone.
BLOCKS = [
    case("rgb", 2, 24, 6, 9, 3, 4, 2, 1),
    case("wide_units", 1, 20, 3, 4, 5, 16, 8, 4),
    case("units_of_four", 2, 16, 5, 6, 8, 4, 4),
    case("grouped", 1, 32, 5, 7, 24, (2, 6), (2, 3), (1, 4), (1, 2), g=2),
    case("across", 2, 18, 7, 5, 7, (3, 4), (1, 4), (1, 2), (0, 3)),
    case("one_channel", 3, 24, 4, 5, 1, (6, 4), (3, 2), (0, 3), (2, 0)),
    case("narrow_units", 1, 16, 3, 18, 5, 4, 2, 1),
    case("two_in_a_block", 2, 3, 6, 1, 1, (2, 4), (1, 2), (1, 0)),
    case("one_pixel", 5, 20, 1, 1, 40, 4, 1),
    case("one_pixel_in_groups", 3, 32, 1, 1, 48, (3, 5), (2, 1), g=2),
    case("one_pixel_padded", 4, 24, 1, 1, 16, 4, 2, 1),
    case("one_row", 2, 16, 1, 6, 8, (3, 4), 2, (0, 1)),
]


@pytest.mark.parametrize("direction", list(RESULTS))
@pytest.mark.parametrize("one", BLOCKS, ids=lambda one: one["name"])
def test_blocks_of_the_subpixel_family(one: Case, direction: str) -> None:
    for mode, layout in itertools.product(("float32", "tf32", "float16"), LAYOUTS):
        call = Call(one, direction, mode, layout, "sub_pixel")
        assert call.is_served_by("sub_pixel")
        one_pixel, one_order = one["name"].startswith("one_pixel"), layout == "contiguous" or one["g"] == 1
        assert call.plan.tile.output_in_place == (one_pixel and one["p"] == (0, 0) and one_order)
        assert call.plan.tile.weight_in_place == ((one_pixel or one["k"] == one["s"]) and one_order)
        call.check()


# Rows of blocks from 2 to 16 pixels, many channels, images that end within the first block, several blocks of channels.
STORED_BLOCKS = [one for one in BLOCKS if not one["name"].startswith("one_pixel")] + [
    case("many_channels", 1, 16, 3, 5, 70, 8, 4, 2),
    case("short_rows", 3, 40, 5, 9, 60, 2, 2),
    case("within_a_block", 9, 16, 2, 1, 5, (4, 16), (2, 16), (1, 7)),
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tf32", "float16", "bfloat16"])
@pytest.mark.parametrize("one", STORED_BLOCKS, ids=lambda one: one["name"])
def test_blocks_stored_where_they_belong(one: Case, mode: str) -> None:
    """Without kernels of their own: by tiles of every order of pixels, with weights packed and in place."""
    for layout in LAYOUTS:
        call = Call(one, "forward", mode, layout, "sub_pixel")
        by_kind: dict[tuple[Any, ...], list[Any]] = {}
        for plan in core.candidates(call.problem, call.device, "sub_pixel"):
            if not getattr(plan.tile, "stores_plain", False):
                continue
            tile = plan.tile.inner.tile
            if isinstance(tile, core.HopperConvPlan):
                by_kind.setdefault((tile.inner, tile.in_turns, tile.weights), []).append(plan)
        assert bool(by_kind) == (layout == "contiguous" or (one["g"] == 1 and one["co"] < 64))
        for plans in by_kind.values():
            call.with_plan(Random(one["name"]).choice(plans)).check()
            _check_odd_addresses(call.with_plan(plans[-1]))


# Kernels as large as the stride: blocks of even and odd rows, images of less than a piece and of several, ends of
# images within a block, elements of blocks beyond it, groups, more and fewer channels than an item has.
PLANES = [
    case("squares", 3, 40, 8, 8, 70, 2, 2),
    case("one_piece_and_more", 2, 72, 5, 8, 24, 2, 2),
    case("many_items", 5, 130, 8, 16, 33, 4, 4),
    case("odd_rows", 2, 16, 4, 8, 40, 3, 3),
    case("padded", 2, 32, 6, 4, 20, (4, 2), (4, 2), (1, 1), (1, 1)),
    case("padded_odd", 2, 32, 6, 4, 20, (3, 5), (3, 5), (2, 1), (2, 1)),
    case("grouped", 2, 64, 4, 16, 48, (2, 4), (2, 4), g=2),
    case("across", 1, 24, 16, 2, 16, (1, 2), (1, 2)),
    case("long_rows", 1, 16, 2, 4, 3, 16, 16),
    case("two_classes", 3, 80, 14, 14, 20, 2, 2),
    case("four_classes", 3, 80, 7, 6, 20, 2, 2),
    case("small_planes", 5, 48, 2, 3, 40, (2, 4), (2, 4), g=2),
    case("eight_classes", 2, 144, 5, 9, 40, 2, 2),
    case("one_image_of_classes", 1, 24, 7, 5, 20, 2, 2),
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tf32", "float16", "bfloat16"])
@pytest.mark.parametrize("one", PLANES, ids=lambda one: one["name"])
def test_planes_as_they_lie(one: Case, mode: str) -> None:
    """Planes of pixels as they lie, into the blocks of a contiguous output."""
    call = Call(one, "forward", mode, "contiguous", "sub_pixel")
    plans = [
        plan
        for plan in core.candidates(call.problem, call.device, "sub_pixel")
        if isinstance(plan.tile, core.SubpixelPlan) and isinstance(plan.tile.inner.tile, core.HopperPlanesPlan)
    ]
    assert [plan.tile.inner.tile.channels for plan in plans if not plan.tile.inner.tile.resident] == [64, 128, 192, 256]
    assert any(plan.tile.inner.tile.resident for plan in plans)
    for plan in plans:
        call.with_plan(plan).check()


def _plans_of(call: Call, kind: type, family: str = "igemm_sm90,wgrad_sm90") -> list[Any]:
    """Those of the family's candidates that have such tiles."""
    return [p for p in core.candidates(call.problem, call.device, family) if isinstance(p.tile, kind)]


# Kernels of 3 and 4 with strides of 2: every pattern of taps, tiles that end beyond the image, channels that fill no
# chunk or tile, groups.
STRIDED = [
    case("k4", 3, 40, 6, 8, 70, 4, 2, 1),
    case("k3", 2, 72, 9, 16, 24, 3, 2, 1, 1),
    case("k3_unpadded", 2, 16, 5, 24, 40, 3, 2, 0, (0, 1)),
    case("k4_unpadded", 2, 48, 7, 8, 33, 4, 2, 0, (1, 0)),
    case("many_items", 5, 130, 10, 40, 150, 3, 2, 1, (0, 1)),
    case("grouped", 2, 96, 4, 16, 72, 4, 2, 1, g=3),
    case("rows_of_others", 1, 24, 11, 8, 16, 4, 2, (3, 1), (1, 0)),
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tf32", "float16", "bfloat16"])
@pytest.mark.parametrize("one", STRIDED, ids=lambda one: one["name"])
def test_strided_planes(one: Case, mode: str) -> None:
    """Octets of every shape, weights that stay and that do not."""
    call = Call(one, "forward", mode, "contiguous", "igemm_sm90,wgrad_sm90", multiprocessors=9)
    plans = _plans_of(call, core.HopperStridedPlan)
    assert {2, 4} <= {plan.tile.octets for plan in plans if not plan.tile.resident}
    random = Random(one["name"] + mode)
    for resident in (False, True):
        kind = [plan for plan in plans if plan.tile.resident == resident]
        for plan in random.sample(kind, min(2, len(kind))):
            call.with_plan(plan).check()


# Images of 4, 8, 12 and 16 columns, of one run and of several; tiles that end beyond the batch, channels that fill no
# tile.
FOLDED = [
    case("4x4", 9, 72, 4, 4, 20, 4, 2, 1),
    case("4x8", 7, 40, 4, 8, 40, 4, 2, 1),
    case("8x4", 5, 24, 8, 4, 16, 4, 2, 1),
    case("8x8", 5, 130, 8, 8, 33, 4, 2, 1),
    case("16x12", 3, 40, 16, 12, 40, 4, 2, 1),
    case("12x16", 2, 16, 12, 16, 24, 4, 2, 1),
    case("16x16", 3, 64, 16, 16, 17, 4, 2, 1),
    case("grouped", 3, 96, 8, 8, 72, 4, 2, 1, g=3),
    case("rounds", 17, 16, 4, 4, 70, 4, 2, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["float16", "bfloat16"])
@pytest.mark.parametrize("one", FOLDED, ids=lambda one: one["name"])
def test_folded_products(one: Case, mode: str) -> None:
    """Tiles of every size, some of several rounds."""
    call = Call(one, "forward", mode, "contiguous", "igemm_sm90,wgrad_sm90", multiprocessors=5)
    plans = _plans_of(call, core.HopperFoldedPlan)
    assert {plan.tile.pixels for plan in plans} == {n for n in (64, 128, 192, 256) if n >= one["h"] * one["w"]}
    for plan in plans:
        call.with_plan(plan).check()


@pytest.mark.parametrize("one", [FOLDED[0], FOLDED[4], FOLDED[6]], ids=lambda one: one["name"])
def test_infinities_of_folded_products(one: Case) -> None:
    """Products that belong to no result, or to another image's, are added to none."""
    call = Call(one, "forward", "bfloat16", "contiguous", "igemm_sm90,wgrad_sm90", multiprocessors=5)
    operands = call.operands()
    operands["x"][0, 3, 0, 0], operands["x"][1, 5, -1, -1] = float("inf"), float("-inf")
    operands["x"][2, 7, 1, 2], operands["w"][4, 1, 3, 2] = float("nan"), float("inf")
    expected = call.reference(operands)
    assert 0 < expected.isfinite().sum() < expected.numel()
    plans = _plans_of(call, core.HopperFoldedPlan)
    assert plans
    for plan in plans:
        result = call.with_plan(plan).emulate(operands, 0)
        for where in (Tensor.isnan, Tensor.isposinf, Tensor.isneginf):
            assert torch.equal(where(result), where(expected))


# Groups of 1 to 20 channels, more on one side than on the other, all of them together and a few.
GROUPS = [
    case("fours", 2, 32, 6, 9, 32, 4, 2, 1, g=8),
    case("some", 2, 60, 5, 7, 60, 3, 1, 1, g=20),
    case("out", 1, 9, 7, 6, 36, (3, 2), (2, 1), (1, 0), (1, 0), g=3),
    case("in", 2, 60, 5, 5, 12, 3, 2, 1, 1, g=3),
    case("ones", 2, 34, 6, 8, 34, 3, 1, 1, g=34),
    case("pointwise", 3, 24, 5, 6, 16, 1, 1, g=8),
]


@pytest.mark.parametrize("one", GROUPS, ids=lambda one: one["name"])
def test_groups_of_the_merged_family(one: Case) -> None:
    for mode, layout in itertools.product(("float32", "tf32", "float16", "bfloat16"), LAYOUTS):
        call = Call(one, "grad_weight", mode, layout, "group_merge")
        assert call.is_served_by("group_merge")
        call.check()
        _check_odd_addresses(_with_odd_plan(call))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["float32", "tf32", "bfloat16"])
def test_infinities_stay_in_their_group(mode: str, layout: str) -> None:
    """What merged groups compute for nothing may be NaN; the other groups have the same bits as without."""
    call = Call(GROUPS[0], "grad_weight", mode, layout, "group_merge")
    assert call.is_served_by("group_merge")
    operands = call.operands()
    finite = call.emulate(operands, 0).clone()
    group = slice(4, 8)  # the second of eight
    operands["x"][0, 5, 2, 3], operands["y"][1, 6, 4, 4] = float("inf"), float("nan")
    result = call.emulate(operands, 0)
    assert not result[group].isfinite().all()
    result[group] = finite[group]
    assert torch.equal(result, finite)


# Multipliers, dilation alone and with a stride, strides up to 16 and beyond the image, output_padding, kernels without
# taps in some phases, one channel, pixels of whole packs of channels.
STRIPS = [
    case("five", 2, 6, 9, 21, 6, 5, 1, 2, g=6),
    case("three_by_three_multiplied", 1, 3, 7, 10, 6, (3, 4), (3, 2), (1, 0), (2, 1), g=3),
    case("divided", 2, 12, 5, 8, 4, (4, 3), 2, (3, 1), (1, 0), g=4),
    case("dilated", 1, 16, 8, 9, 16, 3, 1, 2, 0, g=16, d=(2, 3)),
    case("dilated_by_four", 2, 4, 6, 5, 4, (3, 5), (4, 2), 1, (3, 0), g=4, d=(2, 4)),
    case("sixteen", 1, 3, 3, 4, 3, (16, 20), (16, 16), (0, 3), (1, 5), g=3),
    case("gaps", 1, 24, 4, 3, 24, (2, 1), (5, 7), 0, (4, 6), g=24),
    case("one_to_many", 2, 1, 6, 7, 5, 4, (2, 3), 1),
    case("many_to_one", 2, 40, 6, 7, 1, (9, 3), (4, 1), (4, 1), (3, 0)),
    case("one_pixel", 3, 8, 1, 1, 8, (4, 5), (2, 3), (1, 0), g=8),
]


@pytest.mark.parametrize("direction", list(RESULTS))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("one", STRIPS, ids=lambda one: one["name"])
def test_strips_of_the_depthwise_family(one: Case, layout: str, direction: str) -> None:
    for mode in ("float64", "float32", "float16", "bfloat16"):
        for multiprocessors in (1, 40):
            call = Call(one, direction, mode, layout, "depthwise", multiprocessors)
            plans = [
                p for p in core.candidates(call.problem, call.device, "depthwise") if hasattr(p.tile, "channel_slots")
            ]
            assert len(plans) == 1
            call.with_plan(plans[0]).check()
            _check_odd_addresses(_with_odd_plan(call))


# Kernels of once, twice and three times the stride, paddings beyond the stride, multipliers of channels.
PHASES = [
    case("by_four", 1, 2, 6, 9, 2, (6, 8), (3, 4), (1, 4), (0, 0), g=2),
    case("by_eight", 2, 5, 5, 33, 5, 16, 8, 4, g=5),
    case("by_eight_whole", 1, 3, 40, 16, 3, (4, 8), (2, 8), (1, 0), g=3),
    case("by_four_thrice", 2, 3, 5, 6, 6, (3, 12), (1, 4), (1, 4), g=3),
    case("by_sixteen", 1, 4, 3, 5, 2, (4, 32), (2, 16), (3, 20), (1, 8), g=2),
    case("gaps", 1, 2, 3, 5, 2, (3, 4), 8, (1, 0), (2, 4), g=2),
]


@pytest.mark.parametrize("direction", ["forward", "grad_input"])
@pytest.mark.parametrize("one", PHASES, ids=lambda one: one["name"])
def test_vectors_of_phases_of_the_depthwise_family(one: Case, direction: str) -> None:
    for mode in ("float64", "float32", "float16", "bfloat16"):
        call = Call(one, direction, mode, "contiguous", "depthwise")
        assert call.plan.tile.vector == (2 if mode == "float64" else 4)
        call.check()
        odd = _with_odd_plan(call)
        assert odd.plan.tile.vector == 1
        _check_odd_addresses(odd)


# Every compiled kernel and stride, several segments, lines in parts (width innermost), lanes and threads without
# columns, paddings of the height that the width has not, several blocks of channels and paddings that move them, packs
# of channels of half a warp and of two (channels innermost).
ROWS = [
    case("three", 2, 3, 19, 24, 3, 3, 1, (0, 1), g=3),
    case("three_in_parts", 1, 2, 6, 272, 2, 3, 1, (2, 1), g=2),
    case("two_by_two", 3, 2, 9, 8, 2, 2, 2, (1, 0), (1, 0), g=2),
    case("three_by_two", 2, 2, 21, 12, 2, 3, 2, (0, 1), (0, 1), g=2),
    case("four_by_two", 2, 70, 10, 8, 70, 4, 2, (3, 1), (1, 0), g=70),
    case("four_by_two_in_parts", 1, 2, 5, 136, 2, 4, 2, 1, g=2),
    case("three_channels", 2, 70, 5, 11, 70, 3, 1, (1, 0), g=70),
    case("four_by_two_channels", 1, 6, 7, 5, 6, 4, 2, (2, 3), (0, 1), g=6),
    case("three_by_two_channels", 1, 4, 8, 9, 4, 3, 2, (1, 1), (0, 0), g=4),
    case("three_of_channels_of_two_warps", 1, 128, 6, 9, 128, 3, 1, (1, 1), g=128),
    case("four_by_two_of_packs_of_channels", 2, 24, 6, 5, 24, 4, 2, (1, 1), g=24),
]


@pytest.mark.parametrize("direction", list(RESULTS))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("one", ROWS, ids=lambda one: one["name"])
def test_rows_of_the_depthwise_family(one: Case, layout: str, direction: str) -> None:
    for mode in ("float32", "float16", "bfloat16"):
        call = Call(one, direction, mode, layout, "depthwise")
        plans = [p for p in core.candidates(call.problem, call.device, "depthwise") if hasattr(p.tile, "line_runs")]
        refused = one["ci"] % 2 and mode != "float32" if layout == "channels_last" else "channels" in one["name"]
        assert len(plans) == (0 if refused else 1)
        if plans:
            call.with_plan(plans[0]).check()


def _with_odd_plan(call: Call) -> Call:
    """The same call, its plan for operands at odd addresses."""
    call.problem.unaligned_first = call.problem.unaligned_second = True
    return call.with_plan(core.make_plan(call.problem, call.device, call.family))


def _check_odd_addresses(call: Call) -> None:
    """Operands and result one element behind where they were."""
    operands = call.operands()
    expected = call.reference(operands)
    for name in (*OPERANDS[call.direction], RESULTS[call.direction]):
        values, pack = operands[name], 16 // call.dtype.itemsize
        around = torch.full((values.numel() + 2 * MARGIN,), float("nan"), dtype=call.dtype)
        offset = MARGIN + (1 - around.data_ptr() // call.dtype.itemsize - MARGIN) % pack
        operands[name] = around.as_strided(values.shape, values.stride(), offset).copy_(values)
    assert relative_error(call.emulate(operands, 0), expected) <= MODES[call.mode]


@pytest.mark.parametrize("direction", list(RESULTS))
def test_blocks_of_tensors_of_any_strides(direction: str) -> None:
    """Output and weight in unlike layouts, columns apart, and addresses at which only elements are aligned."""
    call = Call(BLOCKS[2], direction, "bfloat16", "channels_last", "sub_pixel")
    operands = call.operands()
    for name in OPERANDS[direction]:
        values = operands[name]
        apart = values.new_full((*values.shape[:3], 2 * values.shape[3] + 1), float("nan"))[..., 1::2]
        operands[name] = apart.copy_(values)
        call.problem.set_strides(name, operands[name].stride())
    call.plan = core.make_plan(call.problem, call.device, "sub_pixel")
    assert call.is_served_by("sub_pixel")
    assert relative_error(call.emulate(operands, 0), call.reference(operands)) <= MODES["bfloat16"]


@pytest.mark.parametrize("mode", ["tf32", "float16", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_wide_tiles_of_the_narrow_family(mode: str, layout: str) -> None:
    """With phases that have no tap, in passes of their own and among others."""
    one = case("idle_phases", 1, 8, 17, 70, 12, 3, (2, 3), (1, 2), (1, 0), (2, 2))
    call = Call(one, "forward", mode, layout, "small_channel")
    plans = [plan for plan in core.candidates(call.problem, call.device, "small_channel") if plan.tile.tile[2] >= 64]
    tiles = [(tuple(plan.tile.tile), plan.tile.row_tiles, plan.tile.warps_m, plan.tile.all_heights) for plan in plans]
    assert len(set(tiles)) == len(tiles)
    for all_heights in (False, True):
        of_kind = [plan for plan in plans if plan.tile.all_heights == all_heights]
        for plan in Random(mode + layout).sample(of_kind, 2):
            call.with_plan(plan).check()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("channels", "height", "width", "groups"), [(33, 2, 70, 1), (17, 2, 70, 2), (12, 5, 65, 2)])
def test_tiles_of_the_narrow_family_that_end_in_one_run(
    channels: int, height: int, width: int, groups: int, layout: str
) -> None:
    """A pass of one channel after those of 32 or 16, a tile of one column after those of 32 or 64; the first with fewer
    lines than warps, which then share the runs of a line."""
    one = case("one_run", 2, 16 * groups, height, width, channels * groups, (1, 3), 1, (0, 1), g=groups)
    call = Call(one, "forward", "float16", layout, "small_channel")
    plans = core.candidates(call.problem, call.device, "small_channel")
    ends = [p for p in plans if channels % p.tile.channels == 1 or width % p.tile.tile[2] == 1]
    for plan in Random(f"{channels} {layout}").sample(ends, min(4, len(ends))):
        call.with_plan(plan).check()
    assert ends


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tf32", "float16", "float32"])
@pytest.mark.parametrize(("kernel", "stride", "channels"), [(4, 3, 40), (4, 4, 24), (3, 5, 24), (4, 3, 320)])
def test_rows_of_all_phases(kernel: int, stride: int, channels: int, mode: str) -> None:
    """Rows that wait in shared memory: of tiles that share them and of several lines, with halos that stay or not."""
    one = case("apart", 1, channels, 2, 110, 72, (3, kernel), (2, stride), 1, (1, stride // 2))
    call = Call(one, "forward", mode, family="igemm_sm90,wgrad_sm90")
    by_kind: dict[tuple[bool, ...], list[Any]] = {}
    for plan in _convolutions(call):
        tile = plan.tile
        if tile.row_phases > tile.phases:
            assert tile.row_phases == stride
            assert tile.tiles[2] > 1
            by_kind.setdefault((tile.keep_halo, tile.in_turns, tile.pixels[1] - tile.second[1] > 1), []).append(plan)
    assert (channels < 320) in {keep_halo for keep_halo, *_ in by_kind}
    for plans in by_kind.values():
        call.with_plan(Random(mode).choice(plans)).check()


def test_clusters_and_im2col_are_among_them() -> None:
    plans = [
        Call(one, direction, "bfloat16", family="igemm_sm90,wgrad_sm90", multiprocessors=132).plan.tile
        for direction, one in FEW_CHANNELS + FEW_PIXELS
    ]
    convolutions = [plan for plan in plans if isinstance(plan, core.HopperConvPlan)]
    assert any(plan.split > 1 for plan in convolutions)
    assert any(plan.source == core.HopperSource.IM2COL for plan in convolutions)


# --- every way that the planner may take, not only what is best for so small a layer ---------------------------------

FOLDED = [
    ("forward", case("folded", 1, 32, 8, 16, 32, 3, p=1)),
    ("forward", case("wide", 1, 48, 8, 16, 32, 3, p=1)),
    ("forward", case("ragged", 1, 48, 8, 19, 32, 3, p=1)),
]
CHOICES = [(direction, one) for direction in RESULTS for one in TILES] + FEW_CHANNELS + FEW_PIXELS + FOLDED


def _choices(mode: str, families: Sequence[str]) -> list[Call]:
    """All plans for CHOICES in both layouts."""
    calls = []
    for (direction, one), layout, family in itertools.product(CHOICES, LAYOUTS, families):
        call = Call(one, direction, mode, layout, family, multiprocessors=132)
        for plan in core.candidates(call.problem, call.device, family):
            calls.append(call.with_plan(plan))
    return calls


def _instance(plan: Any) -> tuple[Any, ...]:
    """What tells the instances of the Hopper convolution's kernel apart."""
    tile = plan.groups, plan.phases, plan.fold
    return *tile, plan.row_bytes, plan.source, plan.split > 1, plan.weights == core.HopperWeights.MAJOR_M


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "instances"), [("tf32", 54), ("bfloat16", 77), ("float32", 20)])
def test_every_instance_of_the_convolution_kernel(mode: str, instances: int) -> None:
    by_instance: dict[tuple[Any, ...], list[Call]] = {}
    for call in _choices(mode, ["igemm_sm90,wgrad_sm90"]):
        if isinstance(call.plan.tile, core.HopperConvPlan):
            by_instance.setdefault(_instance(call.plan.tile), []).append(call)
    assert len(by_instance) == instances
    random = Random(0)
    for calls in by_instance.values():
        random.choice(calls).check()


def _choices_by_kind(mode: str) -> list[list[Call]]:
    """The same of families on tensor cores, by the kind of their plan."""
    by_kind: dict[str, list[Call]] = {}
    for call in _choices(mode, ["igemm_sm90,wgrad_sm90", "igemm_sm80", "small_channel,col2im"]):
        if not call.is_served_by("simt"):  # what these refuse
            by_kind.setdefault(type(call.plan.tile).__name__, []).append(call)
    assert len(by_kind) == {"tf32": 10, "float32": 7, "bfloat16": 10}[mode]
    return list(by_kind.values())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tf32", "float32", "bfloat16"])
def test_plans_that_lose(mode: str) -> None:
    random = Random(0)
    for calls in _choices_by_kind(mode):
        for call in random.sample(calls, 3):
            call.check()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tf32", "float32", "bfloat16"])
def test_inf_and_nan_of_the_source_reach_what_they_belong_to(mode: str) -> None:
    """Nothing else, although sums hold products with zeros that are not theirs, or of parts."""
    random = Random(1)
    for calls in _choices_by_kind(mode):
        convolutions = [call for call in calls if call.direction != "grad_weight"]
        for call in random.sample(convolutions, min(3, len(convolutions))):
            operands = call.operands()
            source = operands[OPERANDS[call.direction][0]]
            for value in (float("inf"), float("-inf"), float("nan")):
                source[tuple(random.randrange(size) for size in source.shape)] = value
            expected, result = call.reference(operands), call.emulate(operands, 0)
            finite = expected.isfinite()
            assert torch.equal(result.double()[~finite].nan_to_num(), expected[~finite].nan_to_num())
            assert torch.equal(result.isnan(), expected.isnan())
            assert relative_error(result[finite], expected[finite]) <= MODES[mode]


@st.composite
def calls(draw: st.DrawFn, family: str) -> Call:
    """A layer that takes some milliseconds to emulate."""
    one: dict[str, Any] = {"name": "drawn", "n": draw(st.sampled_from([1, 2, 3, 9]))}
    extent = st.integers(1, 4) if one["n"] == 9 else st.integers(1, 14)
    one |= {"h": draw(extent), "w": draw(extent) + (draw(st.sampled_from([0, 0, 10])) if one["n"] < 9 else 0)}
    one["k"] = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    one["s"] = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 2, 2, 3, 4]))
    one["d"] = draw(st.sampled_from([1, 1, 1, 2, 3])), draw(st.sampled_from([1, 1, 1, 2, 3]))
    one["p"] = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    one["op"] = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(one["s"], one["d"], strict=True))
    if family == "depthwise":
        one["g"] = one["ci"] = draw(st.sampled_from([1, 3, 4, 8, 20, 33]))
        one["co"] = one["g"] * draw(st.sampled_from([1, 1, 2]))
    else:
        one["g"] = draw(st.sampled_from([1, 1, 1, 2, 3]))
        few = family in ("small_channel", "col2im", "simt")
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
    assume(call.is_served_by(family))
    return call


@pytest.mark.slow
# Contiguous sources of strided gradients whose lines the copy engine does not take: the planes of a stride together.
@pytest.mark.parametrize(
    ("mode", "h", "w", "groups", "co", "ci", "k", "s", "d"),
    [
        ("bfloat16", 9, 6, 2, 40, 24, 3, 2, 1),
        ("float16", 7, 12, 2, 40, 24, 4, 5, 1),
        ("tf32", 5, 7, 1, 40, 24, 3, 3, 1),
        ("tf32", 9, 6, 1, 100, 72, 3, 3, 2),
        ("float32", 9, 6, 1, 100, 72, 3, 2, 1),
        ("float32", 3, 4, 1, 100, 72, 4, 3, 2),
    ],
)
def test_planes_together(mode: str, h: int, w: int, groups: int, co: int, ci: int, k: int, s: int, d: int) -> None:
    one = case("planes", n=2, ci=ci * groups, h=h, w=w, co=co * groups, g=groups, k=k, s=s, p=1, d=d)
    call = Call(one, "grad_input", mode, "contiguous", "igemm_sm90,wgrad_sm90", multiprocessors=132)
    plans = [p for p in core.candidates(call.problem, call.device, "igemm_sm90,wgrad_sm90") if p.tile.halo_planes > 1]
    assert all(plan.tile.source == core.HopperSource.WARPS for plan in plans)
    call.with_plan(min(plans, key=lambda plan: plan.estimate_ms)).check()


# Results that leave by tensor copies: several items a warpgroup, images and rows in a tile, folded columns, groups,
# channels that do not fill a tile or take several, chunks, phases and pairs of them, planes of a strided gradient.
COPIED = [
    ("forward", case("rows", 2, 64, 12, 19, 64, 3, p=1)),
    ("forward", case("images", 9, 72, 3, 4, 136, (2, 3))),
    ("forward", case("small", 3, 40, 5, 6, 72, 1)),
    ("forward", case("folded", 2, 32, 9, 21, 24, (3, 5))),
    ("forward", case("folded_wide", 1, 72, 9, 21, 32, 3)),
    ("forward", case("grouped", 2, 64, 7, 9, 96, 3, g=2)),
    ("forward", case("phases", 2, 72, 9, 17, 136, 4, 2, 1)),
    ("forward", case("unlike_phases", 1, 40, 7, 10, 64, 3, (2, 3), 1, 1)),
    ("forward", case("phases_of_images", 9, 64, 3, 5, 72, 2, 2)),
    ("forward", case("phases_without_taps", 1, 48, 7, 11, 40, (3, 2), (2, 3), d=(2, 1))),
    ("grad_input", case("planes", 2, 64, 7, 18, 80, 4, 2, 1)),
    ("grad_input", case("odd", 1, 40, 11, 10, 64, 3, (3, 1), d=(1, 2))),
]


def _check_some(random: Random, call: Call, kinds: dict[tuple[Any, ...], list[Any]]) -> None:
    """A plan each of up to three kinds."""
    for kind in random.sample(sorted(kinds, key=str), min(len(kinds), 3)):
        call.with_plan(random.choice(kinds[kind])).check()


def _convolutions(call: Call) -> list[Any]:
    """The plans of the Hopper family's general kernel."""
    plans = core.candidates(call.problem, call.device, "igemm_sm90,wgrad_sm90")
    return [plan for plan in plans if isinstance(plan.tile, core.HopperConvPlan)]


def _copied(call: Call) -> dict[tuple[Any, ...], list[Any]]:
    """The plans whose results leave by tensor copies, by what the kernels tell apart."""
    kinds: dict[tuple[Any, ...], list[Any]] = {}
    for plan in _convolutions(call):
        tile = plan.tile
        if tile.results == core.HopperResults.COPIED:
            lines = tile.pixels[0] if tile.inner == core.HopperInner.HEIGHT else tile.pixels[1]
            second = tuple(extent > 0 for extent in tile.second)
            inner = tile.inner, tile.flat
            kind = inner, second, lines > 1, tile.fold, tile.phases, tile.weights, tile.in_turns
            kinds.setdefault(kind, []).append(plan)
    return kinds


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "one"), COPIED, ids=lambda v: v if isinstance(v, str) else v["name"])
def test_results_by_tensor_copies(direction: str, one: Case) -> None:
    random = Random(0)
    for mode in ("float16", "bfloat16", "tf32"):
        call = Call(one, direction, mode, "channels_last", "igemm_sm90,wgrad_sm90")
        kinds = _copied(call)
        _check_some(random, call, kinds)


def test_kinds_of_results_by_tensor_copies() -> None:
    calls = [Call(one, direction, "bfloat16", "channels_last", "igemm_sm90,wgrad_sm90") for direction, one in COPIED]
    kinds = set().union(*(_copied(call) for call in calls))
    assert [len(set(values)) for values in zip(*kinds, strict=True)] == [4, 4, 2, 2, 2, 2, 2]


# Flat lines of contiguous results, stored from registers: lines of even and odd numbers of pixels, few lines and many,
# several images, groups, lines that do not exist, channels that do not fill a tile or take several, chunks, planes.
FLAT = [
    ("forward", case("even", 2, 64, 12, 24, 64, 3, p=1)),
    ("forward", case("odd", 2, 72, 11, 19, 70, (3, 4))),
    ("forward", case("small_channel", 3, 40, 9, 6, 136, (2, 3))),
    ("forward", case("wide", 1, 64, 5, 104, 64, 3)),
    ("forward", case("grouped", 2, 64, 7, 9, 96, 3, g=2)),
    ("forward", case("phases_of_height", 1, 48, 9, 14, 64, 3, (2, 1), d=(1, 2))),
    ("grad_input", case("planes", 2, 64, 7, 18, 80, 4, 2, 1)),
    ("grad_input", case("odd_planes", 1, 40, 11, 20, 64, 3, (3, 2), d=(1, 2))),
]


def _stored_flat(call: Call) -> dict[tuple[Any, ...], list[Any]]:
    """The plans that store flat lines, by what the kernels tell apart."""
    kinds: dict[tuple[Any, ...], list[Any]] = {}
    for plan in _convolutions(call):
        tile = plan.tile
        if tile.flat and tile.results == core.HopperResults.STORED:
            assert tile.in_turns
            even = tile.halo[2] % 2 == tile.pixels[2] % 2 == 0
            kinds.setdefault((tile.source, even, tile.item_groups, tile.resident_weights), []).append(plan)
    return kinds


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "one"), FLAT, ids=lambda v: v if isinstance(v, str) else v["name"])
def test_flat_lines_of_contiguous_results(direction: str, one: Case) -> None:
    random = Random(0)
    for mode in ("float16", "bfloat16", "tf32"):
        call = Call(one, direction, mode, "contiguous", "igemm_sm90,wgrad_sm90")
        kinds = _stored_flat(call)
        assert kinds
        _check_some(random, call, kinds)


def test_kinds_of_flat_lines_of_contiguous_results() -> None:
    calls = [Call(one, direction, "bfloat16", "contiguous", "igemm_sm90,wgrad_sm90") for direction, one in FLAT]
    kinds = set().union(*(_stored_flat(call) for call in calls))
    assert [len(set(values)) for values in zip(*kinds, strict=True)] == [3, 2, 2, 2]


def test_no_flat_lines_of_contiguous_results() -> None:
    """Of results whose columns have phases, of strict float32, of lines shorter than a group of columns."""
    for one, mode in (
        (case("phases", 2, 64, 9, 14, 64, 3, 2), "bfloat16"),
        (FLAT[0][1], "float32"),
        (case("short", 2, 64, 20, 3, 64, 3), "bfloat16"),
    ):
        call = Call(one, "forward", mode, "contiguous", "igemm_sm90,wgrad_sm90")
        assert core.candidates(call.problem, call.device, "igemm_sm90,wgrad_sm90")
        assert not _stored_flat(call)


# Results by tensor copies with columns adjacent: of pairs of phases, in whole runs of 64 bytes.
COPIED_COLUMNS = [
    case("long", 2, 64, 5, 96, 136, 3, 2, 1, 1),
    case("lines", 2, 40, 9, 16, 64, 2, 2),
    case("lines_and_halos", 1, 72, 7, 32, 72, 4, 2, 1),
    case("phases_of_width", 2, 64, 6, 48, 40, (3, 4), (1, 2), 1),
    case("three_phases_of_height", 1, 64, 5, 16, 64, 3, (3, 2), 1, (0, 1)),
    case("grouped", 1, 64, 6, 32, 256, 2, 2, g=2),
    case("without_taps", 1, 48, 5, 32, 64, (3, 1), 2, (1, 0), (1, 1)),
]


@pytest.mark.parametrize("one", COPIED_COLUMNS, ids=lambda one: one["name"])
def test_contiguous_results_by_tensor_copies(one: Case) -> None:
    random = Random(0)
    assert not _copied(Call(one, "forward", "tf32", "contiguous", "igemm_sm90,wgrad_sm90"))
    for mode in ("float16", "bfloat16"):
        call = Call(one, "forward", mode, "contiguous", "igemm_sm90,wgrad_sm90")
        kinds = _copied(call)
        assert kinds
        _check_some(random, call, kinds)


def test_no_results_by_tensor_copies() -> None:
    """Of pixels or rows that are not aligned, of strict float32."""
    for channels, mode, layout in (
        (60, "bfloat16", "channels_last"),
        (62, "tf32", "channels_last"),
        (64, "float32", "channels_last"),
        (64, "bfloat16", "contiguous"),
    ):
        call = Call(case("phases", 2, 64, 12, 19, channels, 4, 2, 1), "forward", mode, layout, "igemm_sm90,wgrad_sm90")
        assert core.candidates(call.problem, call.device, "igemm_sm90,wgrad_sm90")
        assert not _copied(call)


def _with_unaligned_first(call: Call) -> dict[str, Tensor]:
    """The operands of a forward call in 16 bits; the source begins an element behind a multiple of 16 bytes."""
    operands = call.operands()
    x = operands["x"]
    room = torch.full((x.numel() + 2 * MARGIN,), float("nan"), dtype=x.dtype)
    shift = MARGIN + 1 + -(room.data_ptr() // 2) % 8
    operands["x"] = room.as_strided(x.shape, x.stride(), shift).copy_(x)
    assert operands["x"].data_ptr() % 16 == 2
    return operands


def test_flat_lines_of_a_source_that_is_not_aligned() -> None:
    """No tensor map has it, so the planner, told so, finds another way; a flat plan by itself is refused."""
    one = case("unaligned", 1, 64, 6, 17, 64, (3, 5), p=1)
    call = Call(one, "forward", "bfloat16", "channels_last", "igemm_sm90,wgrad_sm90")
    flat = next(plan for plan in core.candidates(call.problem, call.device, "igemm_sm90,wgrad_sm90") if plan.tile.flat)
    operands = _with_unaligned_first(call)
    with pytest.raises(RuntimeError, match=r"launch returned error 1$"):
        call.with_plan(flat).emulate(operands, seed=0)
    call.problem.unaligned_first = True
    told = call.with_plan(core.make_plan(call.problem, call.device, "igemm_sm90,wgrad_sm90"))
    assert not told.plan.tile.flat
    assert relative_error(told.emulate(operands, seed=0), call.reference(operands)) <= MODES["bfloat16"]


def test_flat_lines_of_a_contiguous_result_and_a_source_that_is_not_aligned() -> None:
    """Plans for tensor maps, which the launch gives up for warps that load the source."""
    call = Call(FLAT[0][1], "forward", "bfloat16", "contiguous", "igemm_sm90,wgrad_sm90")
    plans = [p for p in itertools.chain.from_iterable(_stored_flat(call).values()) if not p.tile.repack]
    assert all(plan.tile.source == core.HopperSource.TRANSPOSED for plan in plans)
    operands = _with_unaligned_first(call)
    result = call.with_plan(Random(0).choice(plans)).emulate(operands, seed=0)
    assert relative_error(result, call.reference(operands)) <= MODES["bfloat16"]


# Results whose planes have odd and even numbers of pixels, some tiles of the unpacking kernel; groups.
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "float64"])
@pytest.mark.parametrize(("h", "w", "groups", "co"), [(5, 7, 1, 72), (9, 6, 1, 72), (9, 14, 2, 16)])
def test_results_unpacked(mode: str, h: int, w: int, groups: int, co: int) -> None:
    one = case("unpacked", n=3, ci=16 * groups, h=h, w=w, co=co * groups, g=groups, k=3, s=5)
    call = Call(one, "forward", mode, "contiguous", "igemm_sm80", multiprocessors=132)
    assert call.plan.tile.unpack
    call.check()


# Two phases along the width stored together, by every tile that may; groups, channels that do not fill one.
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "float64"])
def test_phases_together(mode: str) -> None:
    one = case("together", n=2, ci=32, h=5, w=14, co=80, g=2, k=3, s=2, p=1, op=1)
    call = Call(one, "forward", mode, "contiguous", "igemm_sm80", multiprocessors=132)
    plans = [plan for plan in core.candidates(call.problem, call.device, "igemm_sm80") if plan.tile.together == 2]
    assert {plan.tile.rows for plan in plans} == {2, 4}
    for plan in plans:
        call.with_plan(plan).check()


# Tensor cores cut float32 off: the kernels round it to the nearest TF32, where the source is rewritten and where not.
@pytest.mark.parametrize(("layout", "repacked"), [("contiguous", True), ("channels_last", False)])
def test_sources_rounded_to_tf32(layout: str, repacked: bool) -> None:
    one = case("rounded", n=2, ci=16, h=8, w=8, co=64, k=3, p=1)
    call = Call(one, "forward", "tf32", layout, "igemm_sm80", multiprocessors=132, bias=False)
    assert call.plan.tile.repack == repacked
    operands = call.operands()
    operands["x"].fill_(1 + 0.75 * 2**-10)
    operands["w"].fill_(1)
    result = call.emulate(operands, seed=0)
    operands["x"].fill_(1 + 2**-10)
    assert torch.equal(result.double(), call.reference(operands))


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["simt", "depthwise", "igemm_sm90,wgrad_sm90", "igemm_sm80", "small_channel", "col2im"]
)
def test_drawn_layers(family: str) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(calls(family))
    def check(call: Call) -> None:
        call.check()

    check()

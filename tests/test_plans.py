"""The torch-free host core, through its pybind11 module: index arithmetic against brute force, and what holds of every
plan, whichever kernel's. That a plan computes each result once is what test_emulator.py runs.
"""

import itertools
import math
import re
import time
from collections import Counter
from typing import Any

import pytest
import torch
from cases import CASES
from helpers import USES

from deconv_ext.workloads import ALL_CASES, KERNELBENCH, ZOO, Case, case, parse_shape

core = pytest.importorskip("_host_core", reason="the host core is not built: cmake -S . -B build/host_core")
from planning import FAMILIES, OPTIONS, launch_of, names_of, pieces, plans_of, problem_of, result_size, words_of  # noqa: E402

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

DIRECTIONS = ("forward", "grad_input", "grad_weight")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
MODES = ("float16", "bfloat16", "tf32", "float32", "float64")
LAYOUTS = ("contiguous", "channels_last")

many = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


# --- axes: phases and taps ------------------------------------------------------------------------------------------


@st.composite
def axes(draw: st.DrawFn, largest: int = 12) -> dict[str, int]:
    """One axis with an output of at least one pixel."""
    stride, dilation = draw(st.integers(1, 7)), draw(st.one_of(st.integers(1, 7), st.sampled_from([9, 16, 20])))
    axis = {
        "input": draw(st.integers(1, largest)), "stride": stride, "dilation": dilation,
        "kernel": draw(st.one_of(st.integers(1, 9), st.sampled_from([16, 31]))), "padding": draw(st.integers(0, 30)),
        "output_padding": draw(st.integers(0, max(stride, dilation) - 1)),
    }  # fmt: skip
    uncropped = (axis["input"] - 1) * stride + dilation * (axis["kernel"] - 1) + axis["output_padding"] + 1
    axis["output"] = uncropped - 2 * axis["padding"]
    assume(axis["output"] >= 1)
    return axis


def _geometry(axis: dict[str, int], is_forward: bool) -> Any:
    source, result = ("input", "output") if is_forward else ("output", "input")
    rest = (axis[key] for key in ("kernel", "stride", "padding", "dilation"))
    return core.AxisGeometry(axis[source], axis[result], *rest, is_forward)


@many
@given(axes())
def test_phases_partition_the_result(axis: dict[str, int]) -> None:
    for is_forward in (True, False):
        geometry = _geometry(axis, is_forward)
        step = geometry.phases()
        pixels = [q * step + phase for phase in range(step) for q in range(geometry.phase_size(phase))]
        assert sorted(pixels) == list(range(axis["output" if is_forward else "input"]))
        assert all(geometry.phase_size(phase) <= geometry.phase_size(0) for phase in range(step))


@many
@given(axes())
def test_each_tap_knows_its_place(axis: dict[str, int]) -> None:
    """What `axis_taps` lists by phase and plane, `tap_place` says by tap."""
    for is_forward in (True, False):
        geometry = _geometry(axis, is_forward)
        places = {}
        for phase, plane in itertools.product(range(geometry.phases()), range(geometry.planes())):
            taps = core.axis_taps(geometry, phase, plane)
            for t in range(taps.count):
                shift = taps.first_shift + t * taps.shift_step
                places[taps.first_tap + t * taps.tap_step] = (phase, plane, shift)
        for k in range(axis["kernel"]):
            place = core.tap_place(geometry, k)
            inside = place.phase < geometry.phases() and place.plane < geometry.planes()
            assert places.get(k) == ((place.phase, place.plane, place.shift) if inside else None)


@many
@given(axes())
def test_windows_without_phases(axis: dict[str, int]) -> None:
    """Where tap k of a result pixel reads, as `tap_place` says it of planes: plane and shift make up the window's."""
    for geometry, step in ((_geometry(axis, False), axis["stride"]), (_geometry({**axis, "stride": 1}, True), 1)):
        for k in range(axis["kernel"]):
            place = core.tap_place(geometry, k)
            assert core.window_shift(geometry, k) == place.shift * step + place.plane


@many
@given(axes(largest=2))
def test_one_input_pixel_needs_no_stride(axis: dict[str, int]) -> None:
    """The same taps meet the same pixels, and no phase or plane has two taps."""
    for is_forward in (True, False):
        geometry = _geometry(axis, is_forward)
        longer = core.without_idle_taps(geometry)
        met = []
        for one in (geometry, longer):
            step, source_step = (one.phases(), 1) if is_forward else (1, one.planes())
            source_size = axis["input" if is_forward else "output"]
            found = set()
            for phase, plane in itertools.product(range(one.phases()), range(one.planes())):
                taps = core.axis_taps(one, phase, plane)
                assert one is geometry or axis["input"] > 1 or taps.count <= 1
                for q, t in itertools.product(range(one.phase_size(phase)), range(taps.count)):
                    i = (q + taps.first_shift + t * taps.shift_step) * source_step + plane
                    if 0 <= i < source_size:
                        found.add((q * step + phase, taps.first_tap + t * taps.tap_step, i))
            met.append(found)
        assert met[0] == met[1]


@many
@given(axes())
def test_taps_meet_exactly_the_pixels_of_the_definition(axis: dict[str, int]) -> None:
    """Every (output o, tap k, input i) with o + p = i s + k d once, over phases, planes and taps."""
    expected = {
        (i * axis["stride"] + k * axis["dilation"] - axis["padding"], k, i)
        for i in range(axis["input"])
        for k in range(axis["kernel"])
    }
    expected = {triple for triple in expected if 0 <= triple[0] < axis["output"]}
    for is_forward in (True, False):
        geometry = _geometry(axis, is_forward)
        source_size = axis["input" if is_forward else "output"]
        found: Counter[tuple[int, int, int]] = Counter()
        for phase, plane in itertools.product(range(geometry.phases()), range(geometry.planes())):
            taps = core.axis_taps(geometry, phase, plane)
            for q, t in itertools.product(range(geometry.phase_size(phase)), range(taps.count)):
                k = taps.first_tap + t * taps.tap_step
                source = (q + taps.first_shift + t * taps.shift_step) * geometry.planes() + plane
                result = q * geometry.phases() + phase
                assert 0 <= k < axis["kernel"]
                if 0 <= source < source_size:
                    found[(result, k, source) if is_forward else (source, k, result)] += 1
            assert taps.count == 0 or taps.shift_step >= 1
        assert set(found) == expected
        assert set(found.values()) <= {1}


# --- problems -------------------------------------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn) -> Case:
    """A valid case, small along most dimensions and now and then long along one."""
    height, width = draw(axes(draw(st.sampled_from([1, 9, 40])))), draw(axes(draw(st.sampled_from([1, 9, 40, 150]))))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels = st.sampled_from([1, 2, 3, 5, 8, 17, 24, 33, 64, 65, 136])
    pairs = {key: (height[name], width[name]) for key, name in AXIS_KEYS.items()}
    return {
        "name": "drawn", "n": draw(st.sampled_from([0, 1, 2, 7, 40, 300])), "g": groups, "h": height["input"],
        "w": width["input"], "ci": groups * draw(channels), "co": groups * draw(channels), **pairs,
    }  # fmt: skip


FULL: list[Case] = [{**one, "name": f"full_{one['name']}"} for one in KERNELBENCH + ZOO]
AXIS_KEYS = {"k": "kernel", "s": "stride", "p": "padding", "op": "output_padding", "d": "dilation"}
kinds = st.tuples(st.sampled_from(DIRECTIONS), st.sampled_from(MODES), st.sampled_from(LAYOUTS))
devices = st.sampled_from([1, 2, 13, 80, 132, 1000])


@many
@given(problems(), kinds)
def test_result_sizes_and_strides(one: Case, kind: tuple[str, str, str]) -> None:
    """As torch has them: channels_last if an operand is taken for it, never float64 nor where cuDNN refuses."""
    direction, mode, layout = kind
    problem = problem_of(one, direction, mode, layout)
    size = result_size(one, direction)
    assert problem.result_sizes() == size
    memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    operands = (torch.empty(s, device="meta", memory_format=memory_format) for s in pieces(one, direction)[:2])
    channels_last = any(torch._prims_common.suggest_memory_format(t) == torch.channels_last for t in operands)
    cudnn_refuses = any(op >= s for op, s in zip(one["op"], one["s"], strict=True))
    channels_last &= mode != "float64" and not cudnn_refuses
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    assert tuple(problem.result_strides()) == torch.empty(size, device="meta", memory_format=memory_format).stride()


@many
@given(problems(), st.sampled_from(DIRECTIONS), st.sampled_from(list(DTYPES)))
def test_flops_and_bytes(one: Case, direction: str, dtype: str) -> None:
    problem = problem_of(one, direction, dtype)
    taps = one["k"][0] * one["k"][1]
    assert problem.flops() == 2 * one["n"] * one["ci"] * one["h"] * one["w"] * one["co"] // one["g"] * taps
    elements = sum(torch.Size(result_size(one, kind)).numel() for kind in DIRECTIONS)
    assert problem.bytes() == elements * DTYPES[dtype].itemsize


@many
@given(st.integers(0, 2**31 - 1), st.one_of(st.integers(1, 100), st.integers(1, 2**31 - 1)))
def test_division_by_multiplication_is_exact(n: int, divisor: int) -> None:
    for nearby in (n, n - n % divisor, max(n - n % divisor - 1, 0), 2**31 - 1):
        assert core.quotient(nearby, divisor) == nearby // divisor


@st.composite
def depthwise_problems(draw: st.DrawFn) -> Case:
    """Of those that kernels known at compile time, or in blocks of the stride, mostly take."""
    stride, kernel = draw(st.sampled_from([(1, 3), (2, 2), (2, 3), (2, 4), (4, 8), (8, 16)]))
    height, width = draw(st.integers(1, 300)), draw(st.integers(1, 300))
    if draw(st.booleans()):
        width = -(-width // 16) * 16
    same = (kernel - stride + 1) // 2  # of an output of stride times the input's size
    padding = (draw(st.integers(0, kernel - 1)), draw(st.sampled_from([same, same, same + stride, 0])))
    op = (draw(st.integers(0, stride - 1)), 2 * same - (kernel - stride))
    assume(all((n - 1) * stride + kernel + o > 2 * p for n, o, p in zip((height, width), op, padding, strict=True)))
    channels = draw(st.sampled_from([1, 2, 3, 8, 21, 70, 256]))
    return case("depthwise", draw(st.integers(1, 40)), channels, height, width, channels, kernel, stride, padding, op,
                g=channels)  # fmt: skip


# --- every plan -----------------------------------------------------------------------------------------------------

devices = st.builds(
    lambda multiprocessors, gpu: _device(multiprocessors, *gpu),
    st.sampled_from([1, 2, 13, 80, 132, 1000]),
    st.sampled_from([(90, 232448), (90, 232448), (80, 166912), (86, 101376), (75, 65536)]),
)


def _device(multiprocessors: int = 132, capability: int = 90, shared_bytes: int = 232448) -> Any:
    device = core.Device()
    device.multiprocessors, device.capability, device.shared_bytes_per_block = multiprocessors, capability, shared_bytes
    device.has_wgmma, device.has_mma = capability == 90, capability >= 80
    return device


def _check_plan(plan: Any, one: Case, direction: str, mode: str, device: Any) -> None:
    """A launch that the GPU takes, an estimate, and bounded memory: packed weights, copies and partial sums."""
    weights = DTYPES[mode.replace("tf32", "float32")].itemsize * math.prod(result_size(one, "grad_weight"))
    padded = 8 * max(weights, 64 * 64 * one["g"] * math.prod(one["k"]))
    most = 2 * (core.WORKSPACE_LIMIT + core.REPACK_LIMIT) + padded
    words = words_of(plan, mode)
    assert 0 <= plan.workspace_bytes <= most, words
    assert 0 <= plan.estimate_ms < math.inf, words
    blocks, shared_bytes = launch_of(plan)
    assert shared_bytes <= device.shared_bytes_per_block, words
    assert blocks < 2**31, words
    assert blocks > 0 or 0 in result_size(one, direction), words
    for each in plans_of(plan):
        if each.inner:
            assert each.inner.workspace_bytes <= each.workspace_bytes, words
            assert each.inner.estimate_ms <= each.estimate_ms, words
        if each.split:  # no step is left out, and no split is without one
            steps, a_split, splits = each.split
            assert (splits - 1) * a_split < steps <= splits * a_split, words


def _check_plans(one: Case, direction: str, mode: str, layout: str, device: Any, kernels: str = "") -> list[Any]:
    """All plans that the planners list, and the one they choose, which none has a lower estimate than."""
    problem = problem_of(one, direction, mode, layout)
    chosen, plans = core.make_plan(problem, device, kernels), core.candidates(problem, device, kernels)
    assert plans
    for plan in (chosen, *plans):
        _check_plan(plan, one, direction, mode, device)
    assert words_of(chosen) in [words_of(plan) for plan in plans]
    if direction != "grad_weight":  # of which some planners choose the tile before its splits
        assert chosen.estimate_ms == min(plan.estimate_ms for plan in plans)
    return plans


def _check_explained(one: Case, direction: str, mode: str, layout: str, device: Any, kernels: str = "") -> None:
    """Each candidate has an estimate or a reason for its refusal."""
    text = core.explain(problem_of(one, direction, mode, layout), device, kernels)
    for line in text.split("considered:\n")[1].splitlines():
        assert re.fullmatch(
            r"    \w+ family.*: (about [\d.e+-]+ ms|refused, .{5,}|\d+ more, slower|\d+ more refused)", line
        ), line


@pytest.mark.parametrize("kernels", ["", *FAMILIES])
@settings(many, max_examples=100)
@given(problems(), kinds, devices)
def test_every_plan_is_legal(kernels: str, one: Case, kind: tuple[str, str, str], device: Any) -> None:
    _check_plans(one, *kind, device, kernels)
    _check_explained(one, *kind, device, kernels)


@many
@given(depthwise_problems(), kinds, devices)
def test_every_depthwise_plan_is_legal(one: Case, kind: tuple[str, str, str], device: Any) -> None:
    _check_plans(one, *kind, device, "depthwise")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("one", FULL, ids=lambda one: one["name"])
def test_every_plan_of_the_benchmark_is_legal(one: Case, direction: str) -> None:
    """The layers at their full size."""
    for mode, layout in itertools.product(("bfloat16", "tf32", "float32"), LAYOUTS):
        _check_plans(one, direction, mode, layout, core.Device())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["float16", "bfloat16", "tf32", "float32"])
@pytest.mark.parametrize("one", KERNELBENCH, ids=lambda one: one["name"])
def test_families_of_kernelbench(one: Case, mode: str, layout: str) -> None:
    """Tensor cores of Hopper, except where few channels are read or written, or groups have few."""
    few_results = layout == "contiguous" and one["name"] in ("kb1_75", "kb1_81")
    few_a_group = one["name"] == "kb1_75" and (layout == "contiguous" or "32" in mode)
    expected = {
        "forward": "small_channel" if few_results else "igemm_sm90",
        "grad_input": "igemm_sm90",
        "grad_weight": "group_merge" if few_a_group else "wgrad_sm90",
    }
    for direction, family in expected.items():
        assert words_of(core.make_plan(problem_of(one, direction, mode, layout)), mode).split()[0] == family


# Places and offsets past 2^31 elements or bytes, tables of 16-bit shifts, a stride and taps far beyond the image.
EXTREME = [
    parse_shape(shape, shape)
    for shape in (
        "1x64x4x300 to 64 k3 d1x30", "1x64x4x300 to 64 k3 d1x250", "1x64x1x17000 to 2 k3 p1",
        "1x64x4x4 to 2 k3 p9000 d9000", "8x64x12000x12000 to 1 k3 p1", "1x64x27000x27000 to 3 k3 p1",
        "1x128x1x80100 to 128 k1 p0x40000", "4x256x4x256 to 128 k1x2 d1x40000", "128x8x2x2 to 512 k2 d63",
        "1x16x1x1 to 3 k1x3 p0x300000000 d1x300000000", "2147483640x2x1x1 to 1 k1",
        "1x64x2x268435456 to 5 k3x4 s1x2 p1", "1x1x1048576x1048576 to 1 k1", "1x1x1x1 to 1 k3 s70000",
        "1x64x1000000x100 to 3 k4 s2 p1",
        "1x64x65000x64 to 64 k3 p1 g64", "1x8192x8x8 to 8192 k128 p60 g2048", "70000x64x16x16 to 64 k4 s2 p1",
    )
]  # fmt: skip


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("one", EXTREME, ids=lambda one: one["name"])
def test_plans_of_extreme_sizes(one: Case, direction: str) -> None:
    """Legal, and found in a time that does not grow with the layer."""
    for mode, layout, kernels in itertools.product(("float16", "tf32", "float32"), LAYOUTS, ["", *FAMILIES]):
        start = time.process_time()
        _check_plans(one, direction, mode, layout, core.Device(), kernels)
        assert time.process_time() - start < 1


# What only some layers are served by: words of a plan, direction, modes, layouts, and layers with and without such a
# plan among all. Limits: taps and channels that fit an operand, shifts of 16 bits, rows of multiples of 16 bytes.
SERVED: list[tuple[str, str, str, str, str, str]] = [
    ("im2col", "grad_input", "float16 float32", "contiguous channels_last",
     "16x128x64x64 to 3 k4 s2 p1, 16x56x90x120 to 1 k9 s4 p4 op3, 16x128x60x62 to 4 k3x5 s1x2 p2x0 g2",
     "1x64x1x17000 to 2 k3 p1, 1x64x4x4 to 2 k3 p9000 d9000, 8x64x12000x12000 to 1 k3 p1, 16x64x60x60 to 8 k12 p5"),
    ("im2col", "forward", "float16 float32", "contiguous channels_last",
     "16x3x120x101 to 64 k3 p1", "16x3x60x60 to 64 k4 s2 p1"),
    ("sums of . blocks", "grad_input", "float16 float32", "contiguous channels_last",
     "1x64x16x24 to 256 k4 s2 p1, 128x100x1x1 to 512 k4", ""),
    ("all taps of grad_output as output channels", "grad_weight", "float16 tf32", "channels_last",
     "16x128x64x64 to 3 k4 s2 p1, 16x56x90x120 to 1 k9 s4 p4 op3, 16x64x120x101 to 2 k3x5 s1x2 p2x0 d2x1",
     "16x128x60x62 to 4 k4 s2 p1 g2, 16x128x60x62 to 9 k4 s2 p1, 16x64x60x60 to 8 k9 p4, 16x64x60x60 to 3 k1,"
     " 1x64x27000x27000 to 3 k3 p1"),
    ("lines of", "grad_weight", "float16 tf32", "contiguous", "8x64x60x64 to 64 k3 p1", ""),
    ("lines of", "grad_weight", "float16 tf32", "channels_last", "", "8x64x60x64 to 64 k3 p1"),
    ("all phases in", "forward", "float16 tf32", "contiguous channels_last",
     "4x64x40x64 to 3 k4 s2 p1, 4x64x40x64 to 1 k9 s4 p4, 4x64x40x64 to 16 k4 s2 p1, 4x64x40x64 to 5 k3 p1,"
     " 4x64x24x24 to 32 k3 s2 p1 op1 g4, 1x16x2x8 to 1 k4 s2 p1, 2x32x16x24 to 3 k2 s2 d3",
     "4x64x40x64 to 17 k4 s2 p1, 4x64x40x64 to 3 k7 s2 p3, 4x64x40x64 to 3 k4 s9 p1, 4x6x40x64 to 3 k4 s2 p1,"
     " 4x16384x4x8 to 3 k4 s2 p1"),
    ("all phases in", "forward", "float16 tf32", "contiguous",
     "4x64x40x33 to 3 k4 s2 p1", "4x64x41x33 to 3 k4 s2 p1"),
    ("all phases in", "forward", "float16 tf32", "channels_last", "", "4x65x40x33 to 3 k4 s2 p1"),
    ("all phases in.*, results copied", "forward", "bfloat16", "contiguous",
     "2x64x16x16 to 3 k4 s2 p1, 2x64x8x28 to 32 k3 s2 p1 op1 g2", "2x64x16x16 to 3 k4 s2 op1"),
    ("all phases in.*, results copied", "forward", "bfloat16", "channels_last",
     "2x64x16x16 to 3 k4 s2 p1", "2x64x16x16 to 3 k4 s2 op1, 2x64x8x28 to 32 k3 s2 p1 op1 g2,"
     " 1x64x2x268435456 to 5 k3x4 s1x2 p1"),
    ("^igemm_sm90 family.*groups of.*, results copied", "forward", "bfloat16 tf32", "channels_last",
     "2x64x12x19 to 64 k4 s2 p1", "2x64x12x19 to 62 k4 s2 p1"),
    ("^igemm_sm90 family.*groups of.*, results copied", "forward", "float32", "channels_last",
     "", "2x64x12x19 to 64 k4 s2 p1"),
    ("groups of columns of flat lines", "forward", "bfloat16 tf32", "contiguous",
     "2x64x12x24 to 64 k3 p1", "2x64x9x14 to 64 k3 s2, 2x64x20x3 to 64 k3"),
    ("groups of columns of flat lines", "forward", "float32", "contiguous", "", "2x64x12x24 to 64 k3 p1"),
    ("weights in place", "forward", "bfloat16", "channels_last",
     "16x256x20x20 to 128 k4 s2 p1, 16x120x20x20 to 72 k4 s2 p1, 16x256x20x20 to 128 k4 s2 p1 g2",
     "16x240x20x20 to 128 k4 s2 p1 g2, 16x256x20x20 to 132 k4 s2 p1"),
    ("weights in place", "grad_input", "bfloat16", "channels_last", "16x256x20x20 to 128 k4 s2 p1", ""),
    ("col2im .*tensor copies", "forward", "float16 tf32", "contiguous channels_last",
     "4x64x40x64 to 3 k4 s2 p1, 4x64x40x64 to 1 k11 s4 p4, 4x64x40x64 to 12 k4 s2 p1, 4x64x40x64 to 5 k3 p1,"
     " 4x64x40x64 to 2 k7 p3, 4x64x24x24 to 8 k3 s2 p1 op1 g4, 1x16x2x8 to 1 k4 s2 p1",
     "4x64x40x64 to 1 k12 s4 p1, 4x1x40x64 to 3 k4 s2 p1"),
    ("col2im .*tensor copies", "forward", "float16 tf32", "contiguous", "", "4x64x40x33 to 3 k4 s2 p1"),
    ("col2im .*tensor copies", "forward", "float16 tf32", "channels_last", "", "4x65x40x33 to 3 k4 s2 p1"),
    ("group_merge family, 8 groups", "grad_weight", "float16", "contiguous", "4x64x30x30 to 64 k3 p1 g16", ""),
    ("group_merge family, 5 groups", "grad_weight", "float16", "contiguous",
     "4x100x30x30 to 100 k3 p1 g20, 4x40x30x30 to 40 k3 p1 g5", ""),
    ("group_merge family, 2 groups", "grad_weight", "float16", "contiguous",
     "4x42x30x30 to 168 k3 p1 g14, 4x60x30x30 to 60 k3 p1 g2", ""),
    ("group_merge family, 3 groups", "grad_weight", "float16", "contiguous", "4x120x30x30 to 120 k3 p1 g6", ""),
]  # fmt: skip


@pytest.mark.parametrize(("words", "direction", "modes", "layouts", "served", "refused"), SERVED)
def test_what_a_kernel_serves(words: str, direction: str, modes: str, layouts: str, served: str, refused: str) -> None:
    shapes = [(shape, True) for shape in served.split(", ")] + [(shape, False) for shape in refused.split(", ")]
    for (shape, expected), mode, layout in itertools.product(shapes, modes.split(), layouts.split()):
        if shape:
            one = parse_shape(shape, shape)
            listed = [words_of(plan, mode) for kernels in ("", *FAMILIES) for plan in core.candidates(
                problem_of(one, direction, mode, layout), core.Device(), kernels)]  # fmt: skip
            assert any(re.search(words, each) for each in listed) == expected, (shape, mode, layout)


@pytest.mark.parametrize("words", ["all phases in", "tensor copies", "flat lines"])
def test_tensor_copies_take_aligned_sources(words: str) -> None:
    for layout in LAYOUTS:
        problem = problem_of(case("source", 4, 64, 40, 64, 3, 4, 2, 1), "forward", "bfloat16", layout)
        problem.unaligned_first = True
        for kernels in ("", "col2im", "igemm_sm90"):
            assert not any(words in words_of(plan) for plan in core.candidates(problem, core.Device(), kernels))


@pytest.mark.parametrize("direction", ["forward", "grad_input"])
def test_cases_reach_every_tile_of_simt(direction: str) -> None:
    """What the numerical tests' cases are run by without tensor cores: the channels and columns that its tiles have."""

    def tiles(plans: list[Any]) -> set[Any]:
        texts = [words_of(plan) for plan in plans if words_of(plan).startswith("simt")]
        return {tuple(re.findall(r"\d+ (?:channels|columns|input|output)", text)) for text in texts}

    problems = [problem_of(one, direction) for one in CASES]
    all_plans = [plan for problem in problems for plan in core.candidates(problem, kernels="simt")]
    assert tiles([core.make_plan(problem, kernels="simt,depthwise") for problem in problems]) == tiles(all_plans)


# --- GPUs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("capability", "shared"), [(80, 166912), (86, 101376), (120, 101376), (75, 65536)])
def test_gpus_without_sm90(capability: int, shared: int, direction: str) -> None:
    """Dense layers go to the tensor cores that there are; what needs later instructions is not planned."""
    device = _device(132, capability, shared)
    dense = [one for one in FULL if min(one["ci"], one["co"]) // one["g"] >= 64 and one["h"] > 1]
    assert len(dense) > 20
    for one in dense:
        words = words_of(core.make_plan(problem_of(one, direction, "float16", "channels_last"), device))
        assert words.split()[0] in (("simt",) if capability < 80 else ("igemm_sm80", "small_channel")), one["name"]
    for one, layout in itertools.product(FULL, LAYOUTS):
        for plan in _check_plans(one, direction, "float16", layout, device):
            assert "sm90" not in words_of(plan)
            assert capability >= 80 or not re.search("depthwise family, down|sm80|small_channel", words_of(plan))


# --- lowerings and memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (case("alone", 4, 32, 30, 30, 32, 3, 1, 1), "takes groups of which a divisor of their number has up to 64"),
        (case("prime", 4, 4 * 67, 30, 30, 4 * 67, 3, 1, 1, g=67), "takes groups of which a divisor of their number"),
        (case("wide", 4, 66, 30, 30, 66, 3, 1, 1, g=2), "takes groups of which a divisor of their number"),
        (case("long", 1, 8192, 8, 8, 8192, 128, 1, 60, g=2048), "takes merged weights up to 64 MiB"),
        (case("quick", 16, 64, 64, 64, 64, 4, 2, 1, g=64), "another family takes less than its operands' way"),
    ],
)
def test_groups_that_are_not_merged(one: Case, why: str) -> None:
    assert f"group_merge family: refused, {why}" in core.explain(problem_of(one, "grad_weight", "float16"))
    text = core.explain(problem_of(one, "grad_weight", "float64"), kernels="group_merge")
    assert "group_merge family: refused, takes float16, bfloat16 and float32" in text


@pytest.mark.parametrize(
    "kernels", ["group_merge", "group_merge,group_merge", "sub_pixel,group_merge", "sub_pixel,group_merge,group_merge"]
)
def test_plans_do_not_nest_a_family_in_itself(kernels: str) -> None:
    one = case("nested", 4, 24, 1, 16, 9, 2, 2, g=3)
    plan = core.make_plan(problem_of(one, "grad_weight", "bfloat16"), kernels=kernels)
    lowerings = names_of(plan)[:-1]
    assert lowerings
    assert len(set(lowerings)) == len(lowerings)


def test_a_bias_in_blocks_is_told() -> None:
    one = case("one_pixel", 64, 128, 1, 1, 64, 4)
    problem = problem_of(one, "forward")
    without = core.explain(problem, kernels="sub_pixel,igemm_sm90,wgrad_sm90")
    problem.has_bias = True
    text = "the bias to blocks by a kernel of its own, then "
    assert text not in without
    assert text in core.explain(problem, kernels="sub_pixel,igemm_sm90,wgrad_sm90")


def test_plans_are_remembered() -> None:
    """Each problem is planned once, and gets its own plan, not that of a problem that differs in one number."""
    memory = core.PlanMemory()
    kinds = list(itertools.product(DIRECTIONS, ("float32", "bfloat16"), ("contiguous", "channels_last")))
    one = next(each for each in CASES if each["g"] == 1 and each["co"] > 1)
    changed = [{**one, "n": one["n"] + 1}, {**one, "co": one["co"] * 2}, {**one, "h": one["h"] + 1}]
    for other in (one, *changed, *FULL[:20]):
        for kind in kinds:
            problem = problem_of(other, *kind)
            expected = core.make_plan(problem)
            before = memory.planned
            for _ in range(2):
                found = memory.find(problem)
                assert names_of(found) == names_of(expected)
                assert found.workspace_bytes == expected.workspace_bytes
                assert found.estimate_ms == expected.estimate_ms
            assert memory.planned == before + 1
    problem = problem_of(KERNELBENCH[0], "forward")
    small = core.Device()
    small.multiprocessors = 8
    large, other = memory.find(problem), memory.find(problem, 1, small)
    assert other.estimate_ms > large.estimate_ms
    problem.allow_tf32 = True
    assert memory.find(problem).estimate_ms < large.estimate_ms


def test_plans_of_a_large_model_are_remembered() -> None:
    """However many layers take turns, up to a thousand problems, each is planned once; then memory stays bounded."""
    memory = core.PlanMemory()
    problems = [problem_of({**CASES[0], "n": n}, direction) for n in range(1, 301) for direction in DIRECTIONS]
    for _ in range(3):
        for problem in problems:
            memory.find(problem)
    assert memory.planned == len(problems)
    more = [problem_of({**CASES[0], "n": n}, "forward") for n in range(301, 601)]
    for problem in more:
        memory.find(problem)
    assert memory.planned == len(problems) + len(more)
    assert memory.remembered <= 1024


# --- TF32 -----------------------------------------------------------------------------------------------------------

# 1.21e8 FLOP with 16 channels a group on both sides.
ASKS: Case = {**KERNELBENCH[0], "n": 1, "ci": 32, "co": 32, "g": 2, "h": 115, "w": 115, "k": (3, 3)}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_who_asks_for_tf32(direction: str) -> None:
    """float32 on a GPU with a family on tensor cores, enough channels a group and enough work; short of any, nobody."""
    assert core.wants_tf32_answer(problem_of(ASKS, direction))
    for dtype in ("float16", "bfloat16", "float64"):
        assert not core.wants_tf32_answer(problem_of(ASKS, direction, dtype))
    device = core.Device()
    device.has_wgmma = False
    assert core.wants_tf32_answer(problem_of(ASKS, direction), device)  # the igemm_sm80 family
    device.has_mma = False
    assert not core.wants_tf32_answer(problem_of(ASKS, direction), device)
    few = {**ASKS, "ci": 2, "co": 2 * core.TENSOR_CORE_MIN_CHANNELS, "h": 2000, "w": 2000}
    assert core.wants_tf32_answer(problem_of(few, direction))
    assert not core.wants_tf32_answer(problem_of({**few, "co": few["co"] - 2}, direction))
    for size, asks in ((104, False), (105, True)):
        problem = problem_of({**ASKS, "h": size, "w": size}, direction)
        assert asks == (problem.flops() >= core.TF32_MIN_FLOPS)
        assert core.wants_tf32_answer(problem) == asks


def test_describe_says_that_tf32_is_allowed() -> None:
    problem = problem_of(ASKS, "forward")
    strict = problem.describe()
    problem.allow_tf32 = True
    assert problem.describe() == strict.replace("forward float32 input", "forward float32 (TF32 allowed) input")
    assert core.explain(problem).startswith(problem.describe())


# --- forced families ------------------------------------------------------------------------------------------------

DEPTHWISE: Case = next(one for one in ZOO if one["ci"] == one["co"] == one["g"])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kernels", ["", *FAMILIES, "depthwise,simt", "simt,depthwise"])
def test_allowed_families(kernels: str, direction: str) -> None:
    """The cheapest of the allowed families that takes the problem, else simt; explain says which of the two."""
    for one in (DEPTHWISE, KERNELBENCH[0]):
        problem = problem_of(one, direction)
        family = words_of(core.make_plan(problem, kernels=kernels)).split()[0]
        allowed = kernels.split(",") if kernels else FAMILIES
        assert family in (*allowed, "simt")
        assert family == "depthwise" or one is not DEPTHWISE or "depthwise" not in allowed
        text = core.explain(problem, kernels=kernels)
        assert f"plan: {family} family" in text
        assert ("kernels: DECONV_KERNELS is " + kernels.replace(",", ", ") in text) == bool(kernels)
        assert ("refused, so simt serves" in text) == (family not in allowed)
        considered = {line.split()[0] for line in text.split("considered:\n")[1].splitlines()}
        assert considered <= {*allowed, "simt"}


SWITCHED_LAYERS = (
    "kb1_57", "kb1_69", "kb1_71", "kb1_75", "kb2_02", "kb2_05", "kb2_11", "kb2_36", "unet_up4", "dcgan1", "dcgan2",
    "dcgan5_rgb", "fcn8s_dw", "dw_k4s2_512", "pix2pix_last", "r_dexined_k16",
)  # fmt: skip


def _used(problem: Any, kernels: str = "") -> str:
    """What explain says of the plan."""
    return str(core.explain(problem, kernels=kernels)).partition("  considered:")[0]


@pytest.fixture(scope="module")
def switched_problems() -> list[tuple[Any, str]]:
    """Problems whose plans use every part, each with what its plan uses."""
    layers = [one for one in ALL_CASES if one["name"] in SWITCHED_LAYERS]
    settings = itertools.product(layers, DIRECTIONS, ("bfloat16", "tf32", "float32"), LAYOUTS)
    problems = [problem_of(*setting) for setting in settings]
    return [(problem, _used(problem)) for problem in problems]


@pytest.mark.parametrize("off", [name for name in OPTIONS if name != "simt"])  # which serves what all others refuse
def test_what_is_switched_off_is_not_planned(switched_problems: list[tuple[Any, str]], off: str) -> None:
    assert any(re.search(USES[off], plan) for _, plan in switched_problems)
    for problem, _ in switched_problems:
        assert not re.search(USES[off], _used(problem, f"-{off}")), problem.describe()
    assert f"kernels: DECONV_KERNELS is -{off}\n" in core.explain(problem, kernels=f"-{off}")


@pytest.mark.parametrize("kernels", ["dense", "simt, depthwise", "Simt", ",", "-dense", "igemm_sm90.ping_pong", "-"])
def test_unknown_kernels(kernels: str) -> None:
    match = rf"DECONV_KERNELS must list .*\({', '.join(OPTIONS[:3])}, .*, but got '{kernels}'"
    with pytest.raises(core.InvalidArgument, match=match):
        core.make_plan(problem_of(DEPTHWISE, "forward"), kernels=kernels)


def test_kernels_are_allowed_or_switched_off() -> None:
    match = "DECONV_KERNELS must list either names to allow or names behind a minus"
    with pytest.raises(core.InvalidArgument, match=match):
        core.make_plan(problem_of(DEPTHWISE, "forward"), kernels="simt,-depthwise")


# --- explain --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_explain_lists_the_quickest_of_each_family(direction: str) -> None:
    problem = problem_of(KERNELBENCH[0], direction)
    text = core.explain(problem)
    assert text.startswith(problem.describe())
    lines = text.split("considered:\n")[1].splitlines()
    plan = text.split("plan: ")[1].splitlines()[0]
    assert plan in [line.strip().replace(": about", ", about") for line in lines]
    estimates: dict[str, list[float]] = {}
    for each in core.candidates(problem):
        estimates.setdefault(words_of(each).split()[0], []).append(each.estimate_ms)
    assert len(estimates) > 1
    for family, costs in estimates.items():
        of_family = [line for line in lines if line.startswith(f"    {family} family, ") and "about " in line]
        shown = [float(line.split("about ")[1].split()[0]) for line in of_family]
        assert shown == pytest.approx(sorted(costs)[:5], rel=1e-3)
        assert len(costs) <= 5 or f"    {family} family: {len(costs) - 5} more, slower" in lines
    assert float(plan.split("about ")[1].split()[0]) == pytest.approx(min(map(min, estimates.values())), rel=1e-3)


@pytest.mark.parametrize("direction", ["forward", "grad_input"])
def test_explain_says_why_a_candidate_is_refused(direction: str) -> None:
    """2^40 pixels of one channel: tiles of many channels would need more blocks than a grid has."""
    one = {**KERNELBENCH[0], "n": 1, "ci": 1, "co": 1, "h": 1 << 20, "w": 1 << 20, "k": (1, 1)}
    candidates = core.explain(problem_of(one, direction)).split("considered:\n")[1].splitlines()
    refused = [line for line in candidates if "refused, needs more blocks than one grid may have" in line]
    assert 0 < len(refused) < len(candidates)


def test_errors_reach_python() -> None:
    one = {**CASES[0], "s": (0, 1)}
    first, second, extent, args = pieces(one, "forward")
    with pytest.raises(core.InvalidArgument, match=r"stride must be between 1 and 2147483647, but got \[0, 1\]"):
        core.Problem(core.Direction.forward, core.DType.float32, first, second, extent, args)


def test_bytes_of_partial_runs() -> None:
    """As fitted to an H100 and an H200, between them in proportion, and beyond them as at the nearer one."""
    h100, h200 = core.partial_run_bytes(3.35e12), core.partial_run_bytes(4.92e12)
    assert h100 > 3 * h200 > 0
    assert core.Device().partial_run_bytes == pytest.approx(h200, rel=0.01)
    assert h100 > core.partial_run_bytes(4e12) > h200
    assert core.partial_run_bytes(1e12) == h100
    assert core.partial_run_bytes(8e12) == h200

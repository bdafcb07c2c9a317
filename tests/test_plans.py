"""The torch-free host core: index arithmetic and plans against brute force, through its pybind11 module.

The plans' block decomposition is repeated here as the kernels have it (csrc/families/*).
"""

import itertools
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES

from deconv_ext.workloads import ALL_CASES, KERNELBENCH, ZOO, Case, case, output_size

core = pytest.importorskip("_host_core", reason="the host core is not built: cmake -S . -B build/host_core")
from planning import pieces, problem_of, result_size  # noqa: E402

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

DIRECTIONS = ("forward", "grad_input", "grad_weight")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
THREADS, THREAD_ROWS = 256, 8
SHARED_BYTES = core.gather_shared_bytes(core.Device())  # two blocks share a multiprocessor
DEPTHWISE_PLANS = (core.DepthwiseStripsPlan, core.DepthwiseRowsPlan)
WEIGHT_TILES, WEIGHT_TILES_DOUBLE = core.WEIGHT_TILES, core.WEIGHT_TILES_DOUBLE

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
layouts = st.sampled_from(["contiguous", "channels_last"])
kinds = st.tuples(st.sampled_from(DIRECTIONS), st.sampled_from(list(DTYPES)), layouts)
devices = st.sampled_from([1, 2, 13, 80, 132, 1000])


@many
@given(problems(), kinds)
def test_result_sizes_and_strides(one: Case, kind: tuple[str, str, str]) -> None:
    """As torch has them: channels_last if an operand is taken for it, never float64 nor where cuDNN refuses."""
    direction, dtype, layout = kind
    problem = problem_of(one, direction, dtype, layout)
    size = result_size(one, direction)
    assert problem.result_sizes() == size
    memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    operands = (torch.empty(s, device="meta", memory_format=memory_format) for s in pieces(one, direction)[:2])
    channels_last = any(torch._prims_common.suggest_memory_format(t) == torch.channels_last for t in operands)
    cudnn_refuses = any(op >= s for op, s in zip(one["op"], one["s"], strict=True))
    channels_last &= dtype != "float64" and not cudnn_refuses
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


# --- plans of forward and grad_input --------------------------------------------------------------------------------


def _exactly_once(values: Any, expected: range) -> bool:
    return sorted(values) == list(expected)


def _axis(one: Case, index: int, direction: str) -> Any:
    output = output_size(one)[index]
    axis = {name: one[key][index] for key, name in AXIS_KEYS.items()}
    return _geometry({**axis, "input": (one["h"], one["w"])[index], "output": output}, direction == "forward")


def _threads_of_conv(plan: Any, thread_m: int) -> list[tuple[int, int, int, int]]:
    """(first channel, image, first row, column) of each thread of a block."""
    places = []
    for thread in range(THREADS):
        lane, warp = thread % 32, thread // 32
        unit = warp // plan.warps_m * (32 // plan.lane_columns) + lane // plan.lane_columns
        row = unit % plan.units_h * THREAD_ROWS
        places.append((warp % plan.warps_m * thread_m, unit // plan.units_h, row, lane % plan.lane_columns))
    return places


def _check_conv_plan(plan: Any, one: Case, direction: str, dtype: str) -> None:
    accumulator = 8 if dtype == "float64" else 4
    thread_m = 4 if dtype == "float64" else 8
    block_m, block_rows = plan.warps_m * thread_m, plan.units_h * THREAD_ROWS
    source, result = ("ci", "co") if direction == "forward" else ("co", "ci")
    channels = one[result] // one["g"]
    axes_of = [_axis(one, index, direction) for index in (0, 1)]

    # A block's threads cover its tile once.
    cells = [(m, n, h + r, w) for m, n, h, w in _threads_of_conv(plan, thread_m) for r in range(THREAD_ROWS)]
    tile = itertools.product(
        range(0, block_m, thread_m), range(plan.units_n), range(block_rows), range(plan.lane_columns)
    )
    assert sorted(cells) == sorted(tile)

    # The blocks' tiles cover the result once: the block index counts the product of these, so each on its own.
    phases = axes_of[0].phases() * axes_of[1].phases()
    assert plan.blocks == phases * plan.blocks_m * plan.blocks_w * plan.blocks_h * plan.blocks_n * one["g"]
    tiles_m = [b * block_m + m for b in range(plan.blocks_m) for m in range(block_m)]
    assert _exactly_once([m for m in tiles_m if m < channels], range(channels))
    tiles_n = [b * plan.units_n + n for b in range(plan.blocks_n) for n in range(plan.units_n)]
    assert _exactly_once([n for n in tiles_n if n < one["n"]], range(one["n"]))
    size = result_size(one, direction)[2:]
    covered = (plan.blocks_h * block_rows, plan.blocks_w * plan.lane_columns)
    for axis, tiles, extent in zip(axes_of, covered, size, strict=True):
        pixels = [
            q * axis.phases() + phase
            for phase in range(axis.phases())
            for q in range(tiles)
            if q < axis.phase_size(phase)
        ]
        assert _exactly_once(pixels, range(extent))

    # Each tap group's halo lies inside the tile's rows and columns.
    pitch = core.gather_pitch(plan.lane_columns)
    extents = []
    for axis, group in zip(axes_of, (plan.taps_h, plan.taps_w), strict=True):
        reach = 0
        for phase, plane in itertools.product(range(axis.phases()), range(axis.planes())):
            taps = core.axis_taps(axis, phase, plane)
            if taps.count > 0:
                reach = max(reach, (min(group, taps.count) - 1) * taps.shift_step)
        extents.append(reach)
    assert plan.lane_columns + extents[1] <= pitch
    assert (block_rows + extents[0]) * pitch <= plan.image_pitch
    assert plan.positions == plan.units_n * plan.image_pitch

    # The parts of shared memory do not overlap, and packs of 16 bytes lie on 16 bytes.
    assert plan.channel_pitch >= plan.positions
    assert plan.weight_pitch >= block_m
    assert plan.weights_at >= 8 * plan.positions
    weights = plan.chunk * plan.taps_h * plan.taps_w * plan.weight_pitch * accumulator
    assert plan.tile_at >= plan.weights_at + weights
    assert plan.shared_bytes >= plan.tile_at + plan.chunk * plan.channel_pitch * accumulator
    assert plan.weights_at % 16 == plan.tile_at % 16 == plan.weight_pitch * accumulator % 16 == 0
    assert plan.shared_bytes <= core.SHARED_BYTES_LIMIT
    if plan.vector_source:
        assert one[source] // one["g"] % (16 // DTYPES[dtype].itemsize) == 0
        assert plan.chunk % (16 // DTYPES[dtype].itemsize) == 0


# --- plans of grad_weight -------------------------------------------------------------------------------------------


def _check_weight_plan(plan: Any, one: Case, dtype: str, workspace: int) -> None:
    thread_m, thread_n, lanes_m, lanes_n = (WEIGHT_TILES_DOUBLE if dtype == "float64" else WEIGHT_TILES)[plan.tile]
    accumulator = 8 if dtype == "float64" else 4
    pack = 16 // accumulator
    channels = (one["ci"] // one["g"], one["co"] // one["g"])
    kernel_h, kernel_w = one["k"]
    assert plan.warps_m * plan.warps_n * plan.warps_tap <= THREADS // 32

    # Lanes and registers cover a warp's channels once; warps and blocks cover the group's.
    lanes_k = 32 // (lanes_m * lanes_n)
    for thread, lanes, warps, blocks, count in (
        (thread_m, lanes_m, plan.warps_m, plan.blocks_m, channels[0]),
        (thread_n, lanes_n, plan.warps_n, plan.blocks_n, channels[1]),
    ):
        size = min(thread, pack)
        of_warp = [(i // size * lanes + lane) * size + i % size for i in range(thread) for lane in range(lanes)]
        assert _exactly_once(of_warp, range(thread * lanes))
        everything = [w * thread * lanes + c for w in range(blocks * warps) for c in of_warp]
        assert _exactly_once([c for c in everything if c < count], range(count))
    taps = [b * plan.warps_tap + w for b in range(plan.blocks_tap) for w in range(plan.warps_tap)]
    assert _exactly_once([tap for tap in taps if tap < kernel_w], range(kernel_w))
    counts = (plan.blocks_tap, kernel_h, plan.blocks_n, plan.blocks_m, one["g"], plan.splits)
    assert plan.blocks == torch.Size(counts).numel()

    # The splits cover the stages, the stages the pixels, the lanes a stage's pixels: each once, none empty.
    per_split = plan.segments_per_split
    ranges = [range(s * per_split, min((s + 1) * per_split, plan.segments)) for s in range(plan.splits)]
    assert _exactly_once(itertools.chain(*ranges), range(plan.segments))
    assert all(ranges) or plan.segments == 0
    chunks = -(-one["w"] // plan.pixels)
    of_lanes = [i for k in range(lanes_k) for i in range(k, plan.pixels, lanes_k)]
    columns = [c * plan.pixels + i for c in range(chunks) for i in of_lanes]
    assert _exactly_once([c for c in columns if c < one["w"]], range(one["w"]))
    rows = [s // chunks * plan.rows + r for s in range(0, plan.segments, chunks) for r in range(plan.rows)]
    assert plan.segments % chunks == 0
    assert _exactly_once([r for r in rows if r < one["n"] * one["h"]], range(one["n"] * one["h"]))

    # Packs of a thread's channels lie on 16 bytes.
    for thread, pitch in ((thread_m, plan.x_pitch), (thread_n, plan.y_pitch)):
        assert thread == 1 or (pitch % pack == 0 and plan.y_at % 16 == 0)

    # A tap finds the grad_output column of each pixel where it is staged.
    stride, dilation = one["s"][1], one["d"][1]
    for t, i in itertools.product(range(plan.warps_tap), range(plan.pixels)):
        staged = i * plan.pixel_step + t * plan.tap_step
        assert 0 <= staged < plan.span
        column = staged if plan.shared_span else staged % plan.pixels * stride + staged // plan.pixels * dilation
        assert column == i * stride + t * dilation

    pixels_bytes = plan.rows * plan.pixels * plan.warps_m * thread_m * lanes_m * accumulator
    assert pixels_bytes + plan.rows * plan.span * plan.warps_n * thread_n * lanes_n * accumulator <= plan.shared_bytes
    assert plan.shared_bytes <= SHARED_BYTES
    weights = torch.Size(result_size(one, "grad_weight")).numel()
    assert workspace == (plan.splits * weights * accumulator if plan.splits > 1 else 0)


@many
@given(st.integers(0, 2**31 - 1), st.one_of(st.integers(1, 100), st.integers(1, 2**31 - 1)))
def test_division_by_multiplication_is_exact(n: int, divisor: int) -> None:
    for nearby in (n, n - n % divisor, max(n - n % divisor - 1, 0), 2**31 - 1):
        assert core.quotient(nearby, divisor) == nearby // divisor


def _blocks_cover(count: int, size: int, extent: int) -> None:
    """`count` parts of `size` reach `extent`, and none is empty."""
    assert (count - 1) * size < extent <= count * size


def _check_depthwise_passes(plan: Any, one: Case, axis: int, of_kernel: int) -> None:
    """Each tap of the weight belongs to one pass: source phases in order, chunks of each one's taps."""
    geometry = core.AxisGeometry(
        one["h" if axis == 0 else "w"], 1, one["k"][axis], one["s"][axis], one["p"][axis], one["d"][axis], False
    )
    chunk, chunks = plan.chunk[of_kernel], plan.chunks[of_kernel]
    lanes_are_phases = not plan.channels_inner and of_kernel == 0
    assert plan.passes[of_kernel] == chunks * (1 if lanes_are_phases else one["s"][axis])
    assert not lanes_are_phases or plan.lanes == one["s"][axis]
    taps = []
    for index in range(one["s"][axis] * chunks):
        of_phase = core.axis_taps(geometry, 0, index // chunks)
        first = index % chunks * chunk
        some = range(first, min(first + chunk, of_phase.count))
        taps += [of_phase.first_tap + i * of_phase.tap_step for i in some]
        assert len(some) < 2 or of_phase.shift_step == 1
    assert _exactly_once(taps, range(one["k"][axis]))


def _check_depthwise_strips(plan: Any, one: Case, direction: str) -> None:
    """Lanes, slots and blocks hold every strip of the result (grad_weight: of the input) once."""
    weight_gradient = direction == "grad_weight"
    size = (one["h"], one["w"]) if weight_gradient else result_size(one, direction)[2:]
    step = one["s"] if direction == "forward" else (1, 1)
    pairs = one["ci"] * one["co"] // one["g"]
    channels = pairs if weight_gradient else result_size(one, direction)[1]
    vector = plan.vector if plan.channels_inner else 1
    assert channels % vector == 0
    axes = (0, 1) if plan.channels_inner else (1, 0)  # of the image: the kernel's axis 0, and that of the strips
    rows, columns = (-(-size[axis] // step[axis]) for axis in axes)
    phases = [min(step[axis], size[axis]) for axis in axes]
    strips = -(-columns // core.depthwise_strip(vector))
    first, second = (strips, rows) if plan.channels_inner else (rows, strips)
    slots = core.DEPTHWISE_THREADS // plan.lanes
    if weight_gradient:
        assert plan.first_slots == slots > 0
        assert plan.units == one["n"] * first * second
        _blocks_cover(plan.splits, plan.units_per_split, plan.units)
        for of_kernel, axis in enumerate(axes):
            _check_depthwise_passes(plan, one, axis, of_kernel)
        if plan.channels_inner:
            _blocks_cover(plan.blocks_inner, plan.lanes * plan.vector, pairs)
        else:
            assert plan.blocks_inner == pairs
        assert plan.blocks == plan.blocks_inner * plan.passes[0] * plan.passes[1] * plan.splits
        return
    assert 0 < plan.first_slots * plan.second_slots * plan.channel_slots <= slots
    _blocks_cover(plan.blocks_first, plan.first_slots, first)
    _blocks_cover(plan.blocks_second, plan.second_slots * plan.rows, second)
    if plan.channels_inner:
        _blocks_cover(plan.blocks_inner, plan.lanes, channels * phases[1] // plan.vector)
        assert (plan.channel_slots, plan.block_phases) == (1, phases[0])
    else:
        _blocks_cover(plan.blocks_inner, plan.channel_slots, channels)
        assert plan.lanes * (plan.vector if direction == "forward" else 1) == phases[0]
        assert plan.block_phases == phases[1]
        if plan.vector > 1:  # phases
            whole = one["k"][1], one["s"][1], one["p"][1], output_size(one)[1]
            assert [extent % plan.vector for extent in whole] == [0] * 4
            assert one["d"][1] == 1
    blocks = plan.blocks_inner * plan.blocks_first * plan.blocks_second * plan.block_phases * one["n"]
    assert plan.blocks == blocks
    assert plan.shared_bytes <= 44 << 10


def _check_depthwise_rows(plan: Any, one: Case, direction: str, dtype: str) -> None:
    """Parts of lines and segments of rows hold every pixel of the result once."""
    size, forward, (stride, _), (kernel, _) = 4 if dtype == "float32" else 2, direction == "forward", one["s"], one["k"]
    assert one["g"] == one["ci"] == one["co"]
    assert one["s"] == (plan.stride, plan.stride)
    assert one["k"] == (plan.kernel, plan.kernel)
    assert one["d"] == (1, 1)
    width = output_size(one)[1] if forward else one["w"]
    columns = core.depthwise_rows_columns(size, plan) * (stride if forward else 1)
    assert plan.lanes in (1, 2, 4, 8, 16, 32, *((64,) if plan.channels_inner and direction != "grad_weight" else ()))
    assert one["p"][1] == core.depthwise_rows_padding(kernel, stride) + plan.shift * stride
    if plan.channels_inner:
        _blocks_cover(plan.channel_blocks, plan.lanes * 4 // size, one["g"])
        _blocks_cover(plan.parts, columns, width)
    else:
        assert plan.channel_blocks == one["g"]
        assert plan.line_runs * columns == width
        assert output_size(one)[1] == stride * one["w"]
        assert plan.shift == 0
        _blocks_cover(plan.parts, plan.part_runs, plan.line_runs)
        assert plan.part_runs + (2 if plan.parts > 1 else 0) <= plan.lanes
    rows = one["h"]
    if forward:  # a step completes the rows from first * stride - padding on
        first, last = plan.first_row, (output_size(one)[0] - 1 + one["p"][0]) // stride
        assert first * stride <= one["p"][0] < (first + 1) * stride
        rows = last - first + 1
    _blocks_cover(plan.segments, plan.segment_rows, rows)
    assert plan.units == plan.parts * plan.segments * one["n"]
    assert plan.threads % 32 == 0 <= core.DEPTHWISE_THREADS - plan.threads
    _blocks_cover(plan.unit_blocks, plan.threads, plan.units * plan.lanes)
    assert plan.blocks == plan.unit_blocks * plan.channel_blocks
    assert plan.splits == (plan.unit_blocks if direction == "grad_weight" else 1)
    # All blocks for which registers suffice have their rings, and some are left for the L1.
    blocks = (2 if plan.channels_inner else 4) * core.DEPTHWISE_THREADS // plan.threads
    assert 0 < blocks * plan.shared_bytes <= 160 << 10


def _check_depthwise_plan(plan: Any, one: Case, direction: str, dtype: str, workspace: int) -> None:
    """One source or result channel a group; threads, blocks and splits cover each pixel and each tap once."""
    assert one["g"] in (one["ci"], one["co"])
    assert plan.weight_gradient == (direction == "grad_weight")
    accumulator = 8 if dtype == "float64" else 4
    if isinstance(plan, core.DepthwiseRowsPlan):
        _check_depthwise_rows(plan, one, direction, dtype)
    else:
        _check_depthwise_strips(plan, one, direction)
    weights = torch.Size(result_size(one, "grad_weight")).numel()
    assert workspace == (plan.splits * weights * accumulator if plan.splits > 1 else 0)


def _check_hopper_taps(plan: Any, one: Case, direction: str) -> None:
    """Every tap of a (phase, plane) with pixels is used once, in its own slot, and reads its source pixel."""
    for along_w in (False, True):
        geometry = _axis(one, int(along_w), direction)
        taps = core.hopper_taps(geometry, plan, along_w)
        places = {k: core.tap_place(geometry, k) for k in range(one["k"][int(along_w)])}
        exist = {
            k for k, place in places.items() if place.phase < geometry.phases() and place.plane < geometry.planes()
        }
        assert sorted(tap.k for tap in taps) == sorted(exist)
        pairs: dict[tuple[int, int], list[Any]] = {}
        for tap in taps:
            pairs.setdefault((tap.phase, tap.plane), []).append(tap)
        for pair in pairs.values():
            assert [tap.slot for tap in pair] == list(range(len(pair)))
            assert {tap.slots for tap in pair} == {len(pair)}
            if not along_w or plan.halo_planes == 1:
                steps = {b.k - a.k for a, b in itertools.pairwise(pair)}
                assert steps <= {core.hopper_tap_step(geometry)}
        starts = sorted({places[k].plane for k in exist})
        together = along_w and plan.halo_planes > 1
        for tap in taps:
            place = places[tap.k]
            rank = starts.index(place.plane)
            assert tap.phase == place.phase
            assert tap.plane == (0 if together else rank)
            shift = (tap.row - (rank * plan.plane_rows if together else 0)) / plan.row[2 if along_w else 1]
            assert shift + plan.origin[int(along_w)] == place.shift
            assert 0 <= shift <= plan.halo[2 if along_w else 1] - plan.pixels[2 if along_w else 1]


def _check_hopper_rows(plan: Any, result: Sequence[int], phases: int, element: int) -> None:
    """Rows of results are divided between tiles where sectors begin, and no tile stores what it does not compute."""
    sector, width = 32 // element, result[3]
    columns, window = plan.pixels[2] * phases, plan.tile_step * phases
    lines = plan.pixels[1] - plan.second[1]
    assert plan.row_phases == phases
    assert plan.phases == 2
    waits = phases > plan.phases
    assert plan.staged_line_bytes % 16 == 0
    assert columns * element + 20 <= plan.staged_line_bytes
    assert plan.staged_bytes == (16 if waits else 16 // element) * lines * plan.staged_line_bytes
    assert plan.item_groups % (-(-phases // plan.phases)) == 0  # all of a row's
    strides = (result[1] * result[2] * width, result[2] * width, width)  # a result is dense
    for offset in {sum(i * s for i, s in zip(at, strides, strict=True)) % sector for at in np.ndindex(16, 16, 16)}:
        stored = 0
        for tile in range(plan.tiles[2]):
            first = tile * window
            begin = first + (-(offset + first) % sector if tile > 0 else 0)
            end = first + window + -(offset + first + window) % sector
            assert begin == stored
            stored = width if tile == plan.tiles[2] - 1 else end
            assert first <= begin < stored <= first + columns


def _check_copied_results(plan: Any, one: Case, direction: str, element: int) -> None:
    """Staged rows of each warpgroup are its own, and boxes hold just its lines' pixels."""
    assert plan.parts == 1
    assert plan.split == 1
    assert plan.staging_at + 8 * plan.staged_bytes <= plan.table_at
    if not plan.channels_adjacent:
        _check_copied_columns(plan, one, direction, element)
        return
    assert plan.source == core.HopperSource.TENSOR
    assert (result_size(one, direction)[1] // one["g"] * plan.merge) * element % 16 == 0 or one["g"] == 1
    groups_of_columns = plan.inner == core.HopperInner.WIDTH
    lines = plan.pixels[0] if plan.inner == core.HopperInner.HEIGHT else plan.pixels[1]
    assert plan.copied_lines == lines - (plan.second[1] if groups_of_columns else 0)
    assert plan.second[2] == 0 or (plan.copied_lines == 1 and plan.pixels[2] == 2 * plan.second[2])
    columns = plan.second[2] or plan.pixels[2]
    assert columns * plan.phases <= 256
    group_bytes = 8 * plan.phases * plan.fold * min(128, 64 // plan.fold * element)  # of all folded columns
    line_pixels = plan.row[1] if plan.flat else 8 * plan.line_groups * plan.fold
    assert plan.staged_line_bytes * 8 * plan.fold == line_pixels * group_bytes
    pixels = (plan.copied_lines - 1) * line_pixels + columns * (1 if groups_of_columns else 8)
    assert plan.copied_groups == -(-pixels // (8 * plan.fold)) <= plan.groups
    assert 4 * plan.staged_bytes == (plan.copied_groups + plan.copied_groups % 2) * group_bytes
    assert plan.staging_at % 1024 == plan.staged_bytes * 4 % 1024 == 0


def _check_copied_columns(plan: Any, one: Case, direction: str, element: int) -> None:
    """Runs of 64 bytes, whole within a tile, that no tile's last one reaches over the result's end."""
    assert plan.source in (core.HopperSource.TENSOR, core.HopperSource.TRANSPOSED)
    assert plan.inner == core.HopperInner.WIDTH
    assert plan.phases == 2
    assert plan.second[2] == 0
    assert element == 2
    result, run = result_size(one, direction), 32
    assert result[3] % run == 0
    assert plan.pixels[2] * plan.phases % run == 0
    assert one["g"] == plan.merge or result[1] // (one["g"] // plan.merge) % plan.tile_m == 0
    lines = plan.pixels[1] - plan.second[1]
    assert plan.copied_lines == lines
    assert lines == 1 or plan.staged_line_bytes == plan.line_groups * 8 * plan.phases * element * 64
    assert plan.copied_groups == (lines - 1) * plan.line_groups + plan.pixels[2] // 8 <= plan.groups
    assert 4 * plan.staged_bytes == plan.copied_groups // 2 * 64 * 64
    assert plan.staging_at % 128 == plan.staged_bytes * 4 % 128 == 0


def _im2col(one: Case, direction: str) -> Case:
    """The layer that im2col makes of `one`: all taps of all source channels as channels, one tap."""
    taps = one["k"][0] * one["k"][1]
    _, _, height, width = result_size(one, direction)
    seen = {**one, "h": height, "w": width, "k": (1, 1), "s": (1, 1), "p": (0, 0), "op": (0, 0), "d": (1, 1)}
    source = "ci" if direction == "forward" else "co"
    return case(**{**seen, source: taps * one[source]})


def _check_hopper_plan(plan: Any, one: Case, direction: str, dtype: str, multiprocessors: int) -> None:
    """Tiles cover each pixel, every row that wgmma reads lies in shared memory, and no ring can stand still."""
    if plan.source == core.HopperSource.IM2COL:
        assert one["s"] == (1, 1) or direction == "grad_input"
        assert plan.merge == 1
        assert plan.weights == core.HopperWeights.PACKED
        one = _im2col(one, direction)
        assert plan.barriers_at - plan.table_at == plan.chunks * plan.row_bytes // (4 if dtype == "float32" else 2) * 8
    assert direction != "grad_weight"
    assert dtype != "float64"
    assert plan.parts == (2 if dtype == "float32" else 1)
    result = result_size(one, direction)
    step = one["s"] if direction == "forward" else (1, 1)
    extents = (plan.slice, -(-result[2] // step[0]), -(-result[3] // step[1]))  # in q
    element = 4 if dtype == "float32" else 2
    for tiles, pixels, extent in zip(plan.tiles[:2], plan.pixels[:2], extents[:2], strict=True):
        _blocks_cover(tiles, pixels, extent)
    overlap = plan.pixels[2] - plan.tile_step
    _blocks_cover(plan.tiles[2], plan.tile_step, max(1, extents[2] - overlap))
    if plan.whole_sectors:
        assert plan.inner == core.HopperInner.WIDTH
        _check_hopper_rows(plan, result, step[1], element)
    else:
        assert overlap == 0
    assert 1 <= plan.slice <= one["n"]
    assert plan.slice == one["n"] or plan.repack
    assert one["g"] % plan.merge == 0
    groups = one["g"] // plan.merge
    channels, source_channels = result[1] // groups, (one["ci"] if direction == "forward" else one["co"]) // groups
    takes_few = one["g"] == 1 and plan.parts == 1
    assert takes_few or channels >= 16
    assert takes_few or source_channels >= 16 or plan.source == core.HopperSource.IM2COL
    assert plan.merge == 1 or max(channels, source_channels) <= 128
    rows_m = plan.tile_m * plan.fold
    assert rows_m == 64 or (rows_m == 128 and plan.second == [0, 0, 0] and channels > 64)
    assert plan.fold == 1 or (plan.fold == 2 and plan.phases == 1 and one["s"][1] == one["d"][1] == 1)
    _blocks_cover(plan.m_tiles, plan.tile_m, channels)
    assert plan.row_bytes == 128 or (plan.row_bytes == 64 and source_channels * element <= 64)
    _blocks_cover(plan.chunks, plan.row_bytes // element, source_channels)
    assert plan.stage_bytes == rows_m * plan.row_bytes * plan.parts
    assert plan.phase_groups % plan.item_groups == 0
    assert plan.columns == groups * plan.m_tiles * plan.phase_groups // plan.item_groups
    assert plan.item_groups == plan.phase_groups or not plan.keep_halo
    groups_of_columns = plan.inner == core.HopperInner.WIDTH
    # The two warpgroups' groups: `groups` each, over lines of line_groups, the first pixel of each group in q.
    reached = set()
    for warpgroup in range(2):
        second = plan.second if warpgroup else (0, 0, 0)
        for group in range(plan.groups):
            at = group + (0 if groups_of_columns else second[2] // plan.fold)
            line, column = divmod(at, plan.line_groups)
            for inner, folded in itertools.product(range(8), range(plan.fold)):
                if plan.flat:
                    reached.add((0, *divmod(8 * at + inner, plan.row[1])))
                elif groups_of_columns:
                    reached.add((0, second[1] + line, 8 * column + inner))
                elif plan.inner == core.HopperInner.HEIGHT:
                    reached.add((second[0] + line, second[1] + inner, plan.fold * column + folded))
                else:
                    reached.add((second[0] + inner, second[1] + line, plan.fold * column + folded))
    assert set(itertools.product(*map(range, plan.pixels))) <= reached
    if plan.results == core.HopperResults.COPIED:
        _check_copied_results(plan, one, direction, element)
    elif plan.flat:
        assert not plan.channels_adjacent
        assert plan.parts == plan.phases == plan.fold == step[1] == 1
        assert plan.halo[2] == plan.row[1] >= 8
    # Rows of shared memory: different ones for different pixels of the halo.
    n, h, w = plan.halo
    rows = {
        r * plan.plane_rows + i * plan.row[0] + j * plan.row[1] + k * plan.row[2]
        for r in range(plan.halo_planes) for i in range(n) for j in range(h) for k in range(w)
    }  # fmt: skip
    assert len(rows) == plan.halo_planes * n * h * w
    assert max(rows) < plan.halo_bytes // plan.row_bytes
    last = (plan.halo_planes - 1) * plan.plane_rows
    last += max(sum(s * r for s, r in zip(plan.second, plan.row, strict=True)), 0) + plan.groups * plan.group_rows
    last += sum((a - b) * r for a, b, r in zip(plan.halo, plan.pixels, plan.row, strict=True))
    assert plan.weights_at - plan.halo_bytes * plan.parts + last * plan.row_bytes <= plan.shared_bytes
    _check_hopper_taps(plan, one, direction)
    assert plan.shared_bytes <= core.SHARED_BYTES_LIMIT
    assert plan.halo_slots >= (2 if plan.in_turns else 1) * (plan.chunks if plan.keep_halo else 1)
    if plan.weights == core.HopperWeights.MAJOR_M:
        assert direction == "forward"
        assert element == 2
        assert plan.source == core.HopperSource.TENSOR
        assert plan.fold == plan.merge == 1
        assert groups == 1 or source_channels % 64 == 0
        assert channels % 8 == 0
    if plan.source == core.HopperSource.TRANSPOSED:
        assert plan.raw_row_bytes in ((32, 64) if element == 4 else (32,))
        assert plan.row_bytes % plan.raw_row_bytes == 0
        assert plan.raw_slots >= 2
        assert plan.raw_boxes * plan.raw_row_bytes >= min(source_channels * element, plan.row_bytes)
    if plan.in_turns:
        assert rows_m == 64
        assert plan.second == [0, 0, 0]
        assert plan.resident_weights or not plan.keep_halo
        assert plan.item_groups == 1 or plan.keep_halo
    assert plan.parts == 2 or plan.halo_slots >= 2
    assert plan.weight_slots >= 1
    assert plan.items == plan.tiles[0] * plan.tiles[1] * plan.tiles[2] * plan.columns
    assert 0 < plan.blocks <= min(plan.items * plan.split, multiprocessors)
    assert not plan.resident_weights or plan.items <= multiprocessors or plan.blocks % plan.columns == 0
    if plan.resident_weights and plan.phase_groups == 1:  # a slot for each tap, of whichever plane
        assert plan.weight_slots == one["k"][0] * (one["k"][1] + plan.fold - 1) * plan.chunks
    if plan.split > 1:
        assert plan.blocks == plan.items * plan.split
        assert plan.split <= plan.chunks * plan.planes
        assert not plan.in_turns
        assert not plan.keep_halo
        assert plan.groups * plan.phases * 4 * 4 * 256 <= plan.staging_at


def _check_weight_reach(plan: Any, one: Case, plane: int, tap: int, reach: list[int]) -> None:
    """A tap's first pixel, `reach` pixels of a plane from the tile's along plan.axes, is the one that it meets."""
    kernel = dict(zip("hw", divmod(tap, one["k"][1]), strict=True))
    for axis, pixels in zip(plan.axes, reach, strict=True):
        if axis == "n":
            assert pixels == 0
            continue
        at = "hw".index(axis)
        step = plan.plane_step[at]
        assert step == one["s"][at] or one[axis] == 1
        assert plan.planes[plane][at] + pixels * step == kernel[axis] * one["d"][at] - one["p"][at]


def _check_weight_runs(plan: Any, one: Case) -> None:
    """Every tap and tile of output channels is in one run, whose rows in shared memory are the pixels that it reads."""
    row = (1, plan.halo[0], plan.halo[0] * plan.halo[1])
    pixels = list(itertools.product(*(range(extent) for extent in reversed(plan.pixels))))  # the innermost axis last
    for k, first in enumerate(plan.instruction_rows):
        for half in range(2):
            start = 16 * k + 8 * half
            for i, at in enumerate(pixels[start : start + 8]):
                assert first + half * plan.octet_step + i == sum(p * r for p, r in zip(reversed(at), row, strict=True))
    found: Counter[tuple[int, int]] = Counter()
    assert len(plan.runs) == len(plan.boxes)
    for runs, boxes in zip(plan.runs, plan.boxes, strict=True):
        takers = 1 if plan.share == "input channels" else plan.warpgroups
        assert len(runs) == takers * len(plan.run_blocks)
        for slot, (first, row_step, tap, tap_step, chunk, chunk_step, count) in enumerate(runs):
            assert count <= plan.run_blocks[slot % len(plan.run_blocks)]
            for i in range(count):
                box, inside = divmod(first + i * row_step, plan.y_box_bytes // 128)
                plane, box_chunk, *shift = boxes[box]
                places = (inside % plan.halo[0], inside // plan.halo[0] % plan.halo[1], inside // row[2])
                assert all(a + b <= c for a, b, c in zip(places, plan.pixels, plan.halo, strict=True))
                reach = [a + b for a, b in zip(shift, places, strict=True)]
                _check_weight_reach(plan, one, plane, tap + i * tap_step, reach)
                assert box_chunk == chunk + i * chunk_step
                found[(tap + i * tap_step, box_chunk)] += 1
    expected = set(itertools.product(range(one["k"][0] * one["k"][1]), range(plan.y_chunks)))
    assert set(found) == expected
    assert set(found.values()) <= {1}


def _check_weight_copies(plan: Any, one: Case, size: int, parts: int, most_pixels: int, workspace: int) -> None:
    """Blocks cover channels and pixels once; stages fit, and start where the swizzle does; sums keep their limits."""
    chunk = 128 // size
    m, n = one["ci"] // one["g"], one["co"] // one["g"]
    assert plan.fold == 1 or max(m, n) * plan.fold <= chunk
    assert plan.fold == 1 or plan.x_boxes == plan.y_chunks == 1
    assert one["g"] == 1 or m * size % 16 == n * size % 16 == 0
    _blocks_cover(plan.blocks_group, plan.fold, one["g"])
    if plan.fold == 1:
        _blocks_cover(plan.blocks_m, chunk * plan.x_boxes, m)
        _blocks_cover(plan.blocks_n, chunk * plan.y_chunks, n)
        padded = (plan.blocks_m * chunk * plan.x_boxes, plan.blocks_n * chunk * plan.y_chunks)
        assert (plan.padded_m, plan.padded_n) == padded
    else:
        assert (plan.blocks_m, plan.blocks_n, plan.padded_m, plan.padded_n) == (1, 1, m, n)
    steps = 1
    for axis, tiles, pixels, halo in zip(plan.axes, plan.tiles, plan.pixels, plan.halo, strict=True):
        _blocks_cover(tiles, pixels, plan.slice if axis == "n" else one[axis])
        assert pixels <= halo <= 256
        steps *= tiles
    rows = plan.pixels[0] * plan.pixels[1] * plan.pixels[2]
    assert plan.steps == steps
    _blocks_cover(plan.splits, plan.steps_per_split, plan.steps)
    assert plan.items == len(plan.boxes) * plan.blocks_m * plan.blocks_n * plan.blocks_group * plan.splits
    assert 0 < plan.blocks <= plan.items
    assert (plan.steps_per_split - 1) * rows < most_pixels  # the sums of tensor cores stay short
    partial = 4 * one["g"] * one["k"][0] * one["k"][1] * plan.padded_m * plan.padded_n
    out = result_size(one, "forward")
    x_bytes, y_bytes = (
        size * one["g"] * -(-channels // pack) * pack * plan.slice * h * w if rewrites else 0
        for rewrites, channels, pack, h, w in (
            (plan.repack_x, m, 16 // size, one["h"], one["w"]),
            (plan.repack_y or plan.im2col, n, (32 if plan.im2col else 16) // size, *out[2:]),
        )
    )
    assert not (plan.im2col and plan.repack_y)
    assert x_bytes + y_bytes <= core.REPACK_LIMIT
    assert 1 <= plan.slice <= one["n"]
    assert plan.slice == one["n"] or plan.repack_x or plan.repack_y or plan.im2col
    assert plan.sums or (plan.splits == 1 and plan.slice == one["n"])
    sums = plan.splits * partial if plan.sums else 0
    assert sums <= core.WORKSPACE_LIMIT
    assert plan.x_at >= sums
    assert plan.y_at >= plan.x_at + x_bytes
    assert workspace >= plan.y_at + y_bytes
    assert plan.x_at % 256 == plan.y_at % 256 == 0
    assert plan.x_box_bytes == 128 * rows
    assert plan.y_box_bytes >= 128 * plan.halo[0] * plan.halo[1] * plan.halo[2]
    assert all(at % 1024 == 0 for at in (plan.x_box_bytes, plan.y_box_bytes, plan.y_boxes_at, plan.slot_bytes))
    boxes = max(len(group) for group in plan.boxes) * plan.box_chunks
    assert parts * plan.x_boxes * plan.x_box_bytes <= plan.y_boxes_at
    assert plan.y_boxes_at + boxes * plan.y_box_bytes <= plan.slot_bytes
    assert plan.slots >= 2
    assert plan.slots * plan.slot_bytes <= plan.barriers_at
    assert plan.barriers_at + 24 * plan.slots <= plan.shared_bytes <= core.SHARED_BYTES_LIMIT


def _check_hopper_weight_tensor_plan(plan: Any, one: Case, dtype: str, workspace: int) -> None:
    """Every tap and pixel is met once, in the order of the instructions."""
    assert dtype in ("float16", "bfloat16")
    one = _im2col(one, "grad_input") if plan.im2col else one
    _check_weight_copies(plan, one, 2, 1, 1 << 16, workspace)
    assert plan.box_chunks == 1
    assert plan.pixels[0] * plan.pixels[1] * plan.pixels[2] == 16 * len(plan.instruction_rows)
    _check_weight_runs(plan, one)


def _check_hopper_weight_turned_plan(plan: Any, one: Case, dtype: str, allow_tf32: bool, workspace: int) -> None:
    """Every tap is met once, by rows of grad_output that lie in the tap's box; octets of pixels are where they lie."""
    assert dtype == "float32"
    assert plan.parts == (1 if allow_tf32 else 2)
    one = _im2col(one, "grad_input") if plan.im2col else one
    _check_weight_copies(plan, one, 4, plan.parts, 1 << 15 if allow_tf32 else 1 << 40, workspace)
    assert plan.fold == 1
    assert plan.x_boxes * 32 == plan.n
    rows = 64 // plan.tap_fold  # output channels of a tap
    assert rows * (plan.warpgroups if plan.spread else 1) <= 32 * plan.y_chunks
    assert plan.tap_fold == 1 or not plan.spread or one["co"] // one["g"] <= rows
    assert plan.y_chunks == plan.box_chunks
    assert plan.block_taps == plan.warp_taps * plan.tap_fold * (1 if plan.spread else plan.warpgroups)
    step = (1, plan.halo[0], plan.halo[0] * plan.halo[1])
    pixels = list(itertools.product(*(range(extent) for extent in reversed(plan.pixels))))  # the innermost axis last
    assert len(pixels) == 8 * len(plan.octet_row) == 32
    for i, at in enumerate(pixels):
        place = sum(p * r for p, r in zip(reversed(at), step, strict=True))
        assert plan.octet_row[i // 8] + i % 8 == place
    found: Counter[int] = Counter()
    for taps, boxes in zip(plan.taps, plan.boxes, strict=True):
        assert len(taps) == plan.block_taps
        for row, tap in taps:
            if tap < 0:
                continue
            found[tap] += 1
            box, inside = divmod(row, plan.box_chunks * (plan.y_box_bytes // 128))
            plane, chunk, *shift = boxes[box]
            assert chunk == 0
            places = (inside % plan.halo[0], inside // plan.halo[0] % plan.halo[1], inside // step[2])
            _check_weight_reach(plan, one, plane, tap, [a + b for a, b in zip(shift, places, strict=True)])
            assert all(a + b <= c for a, b, c in zip(places, plan.pixels, plan.halo, strict=True))
    assert set(found) == set(range(one["k"][0] * one["k"][1]))
    assert set(found.values()) == {1}


def _check_lines_rows(plan: Any, one: Case) -> None:
    """Every row of the kernel is in one group, and meets its pixels in the rows that a tile brings of both operands."""
    kernel, stride, padding, dilation = (one[key][0] for key in "kspd")
    found: Counter[int] = Counter()
    for plane, first, rows in plan.groups:
        assert len(rows) == plan.block_rows
        for number, kh in enumerate(rows):
            if kh < 0:
                continue
            found[kh] += 1
            reached = set()
            for row in range(plan.tiles_h * plan.rows):
                result, source = (row + first) * stride + plane, row - number * plan.row_step
                assert result + padding == source * stride + kh * dilation
                reached.add(source)
            assert reached >= set(range(one["h"]))
    assert set(found) == set(range(kernel))
    assert set(found.values()) == {1}


def _check_hopper_weight_lines_plan(plan: Any, one: Case, dtype: str, allow_tf32: bool, workspace: int) -> None:
    """Taps, channels and pixels are covered once; stages fit, and hold what is read there; sums keep their limits."""
    size = 4 if dtype == "float32" else 2
    assert dtype in ("float32", "float16", "bfloat16")
    assert plan.parts == (2 if dtype == "float32" and not allow_tf32 else 1)
    m, n = one["ci"] // one["g"], one["co"] // one["g"]
    (_, stride), (_, dilation) = (one[key] for key in "sd")
    _check_lines_rows(plan, one)
    takers = plan.warpgroups // plan.spread
    assert plan.spread in (1, plan.warpgroups)
    assert plan.block_taps <= takers * plan.warp_taps * plan.fold
    _blocks_cover(plan.tap_groups, plan.block_taps, one["k"][1])
    assert plan.block_rows * plan.block_m <= plan.n
    assert plan.block_m % 8 == 0
    assert plan.y_channels == plan.spread * 64 // plan.fold
    assert plan.spread == 1 or plan.fold == 1
    _blocks_cover(plan.blocks_m, plan.block_m, m)
    _blocks_cover(plan.blocks_n, plan.y_channels, n)
    assert (plan.padded_m, plan.padded_n) == (plan.blocks_m * plan.block_m, plan.blocks_n * plan.y_channels)
    # Runs of tiles: all pixels once.
    assert plan.rows * plan.columns * size == 128
    assert plan.rows in (1, 2)
    _blocks_cover(plan.tiles_w, plan.columns, one["w"])
    _blocks_cover(plan.runs, plan.run, plan.tiles_h)
    assert plan.all_runs == plan.runs * plan.tiles_w * one["n"]
    assert 1 <= plan.splits <= plan.all_runs
    steps = -(-plan.all_runs // plan.splits) * plan.run
    if plan.parts == 1:  # the sums of tensor cores stay short
        assert steps * plan.rows * plan.columns <= (1 << 15 if size == 4 else 1 << 16)
    tiles = plan.tap_groups * len(plan.groups) * plan.blocks_m * plan.blocks_n * one["g"]
    assert plan.blocks == tiles * plan.splits < 2**31
    partial = 4 * one["g"] * one["k"][0] * one["k"][1] * plan.padded_m * plan.padded_n
    assert plan.splits * partial <= min(workspace, core.WORKSPACE_LIMIT)
    # A row of grad_output in shared memory, from up to 16 bytes before its first element on.
    out = result_size(one, "forward")
    plane_bytes = size * out[2] * out[3]
    assert plan.channel_kinds * plane_bytes % 16 == 0 or one["co"] == 1
    assert n % plan.channel_kinds == 0
    last = (plan.columns - 1) * stride + (takers * plan.warp_taps * plan.fold - 1) * dilation
    assert (16 // size - 1 + last + 1) * size <= plan.y_pitch <= 256 * size
    assert plan.y_pitch % 32 == 16
    assert plan.y_channels % plan.channel_kinds == plan.y_box_bytes % 128 == 0
    assert plan.y_channels // plan.channel_kinds * plan.y_pitch <= plan.y_box_bytes
    assert plan.channel_kinds * plan.y_box_bytes <= plan.y_row_bytes
    part = 128 * plan.block_rows * plan.block_m
    assert plan.y_at == plan.parts * part
    assert max(plan.y_at + plan.rows * plan.y_row_bytes, (plan.parts - 1) * part + 128 * plan.n) <= plan.stage_bytes
    assert plan.stage_bytes % 1024 == 0
    assert plan.stages >= 2
    assert plan.stages * plan.stage_bytes <= plan.barriers_at
    assert plan.barriers_at + 24 * plan.stages <= plan.shared_bytes <= core.SHARED_BYTES_LIMIT


def _check_mma_plan(plan: Any, one: Case, direction: str, dtype: str, multiprocessors: int) -> None:
    """Tiles and runs cover each pixel in each phase, the parts of shared memory lie apart, halos come in time."""
    assert direction != "grad_weight"
    assert dtype != "float64"
    assert plan.split == (dtype == "float32")
    size = 2 if dtype in ("float16", "bfloat16") else 4
    result, source = result_size(one, direction), (one["ci"] if direction == "forward" else one["co"]) // one["g"]
    step = one["s"] if direction == "forward" else (1, 1)
    extents = (plan.slice, -(-result[2] // step[0]), -(-result[3] // step[1]))  # in q
    for tiles, pixels, extent in zip(plan.tiles, plan.pixels, extents, strict=True):
        _blocks_cover(tiles, pixels, extent)
    assert 1 <= plan.slice <= one["n"]
    assert plan.slice == one["n"] or plan.repack or plan.unpack
    assert plan.slice == -(-one["n"] // -(-one["n"] // plan.slice))  # slices of equal size
    channels, pixels = 16 * plan.rows * plan.warps_m, 64 * 4 // plan.warps_m
    assert torch.Size(plan.pixels).numel() <= pixels
    assert plan.row_bytes in (64, 128)
    assert plan.bands == -(-source * size // 64)
    assert plan.chunks == -(-source * size // plan.row_bytes)
    assert plan.bands >= plan.row_bytes // 64  # else half of each row is empty
    assert plan.m_tiles == -(-(result[1] // one["g"]) // channels)
    phases = [min(s, extent) for s, extent in zip(step, result[2:], strict=True)]
    assert plan.items == torch.Size(plan.tiles).numel() * phases[0] * phases[1]
    _blocks_cover(plan.runs, plan.items_per_block, plan.items)
    assert plan.blocks == plan.runs * plan.m_tiles * one["g"]
    by_registers = 2 if plan.rows == 4 or plan.split else 3
    at_once = max(1, min(by_registers, core.SHARED_BYTES_LIMIT // (plan.shared_bytes + 1024)))
    assert plan.starts_early == (plan.blocks > (at_once - 1) * multiprocessors)  # wherever blocks are put
    halo = torch.Size(plan.halo).numel()
    assert all(a >= b for a, b in zip(plan.halo, plan.pixels, strict=True))
    assert -(-halo // 32) * 32 * (plan.row_bytes + 16) <= plan.halo_bytes  # threads bring 32 pixels at once
    assert plan.table_planes == 1 if direction == "forward" else plan.table_planes <= 16
    of_chunk = plan.row_bytes // 64
    turns = _fewest_taps(one, direction) * (of_chunk if plan.bands % of_chunk == 0 else 1)
    assert plan.halos_ahead * turns >= core.MMA_STAGES - 1  # asked for at its predecessor's first turn, in time
    if plan.keep_halos:
        assert direction == "forward"  # the result has phases, the source one plane
        assert plan.halos_ahead == plan.chunks <= 2
        assert plan.halo_slots == 2 * plan.halos_ahead
    else:
        assert plan.halo_slots == plan.halos_ahead + 1
    assert plan.halo_slots * plan.halo_bytes <= plan.weights_at
    assert plan.weights_at + core.MMA_STAGES * channels * 64 <= plan.staging_at
    assert plan.staging_at + 4 * plan.staged_bytes <= plan.table_at
    assert plan.table_at % 16 == 0
    assert plan.table_at + 4 * plan.table_planes * -(-halo // 128) * 128 <= plan.places_at
    assert plan.places_at + 16 * pixels <= plan.kept_at
    assert plan.kept_at + (plan.together - 1) * channels * pixels * size <= plan.shared_bytes <= core.SHARED_BYTES_LIMIT
    assert plan.kept_at % 16 == plan.staging_at % 16 == plan.staged_bytes % 16 == 0
    assert plan.staged_bytes in (0, 8 * 64 * size * 9 // 8)
    assert plan.unpacked_bytes == (plan.slice * torch.Size(result[1:]).numel() * size if plan.unpack else 0)
    if plan.unpack:  # whole pieces of channels, nothing that waits
        assert result[1] // one["g"] * size % 16 == 0
        assert plan.staged_bytes == 0
        assert plan.together == 1
    assert plan.together in (1, phases[1])
    assert plan.together < 3
    assert plan.items_per_block % plan.together == 0  # what waits for its neighbours waits in its own block
    assert plan.packed_bytes % (channels * 64) == 0


def _weight_tap_groups(one: Case, axis: int, most: int, pixels: int) -> list[list[tuple[int, int, int, int]]]:
    rest = (one[key][axis] for key in "kspd")  # type: ignore[literal-required]
    geometry = core.AxisGeometry(output_size(one)[axis], (one["h"], one["w"])[axis], *rest, False)
    taps, _ = core.mma_weight_taps(geometry, most, pixels)
    return [taps[first : first + most] for first in range(0, len(taps), most)]


def _check_mma_weight_plan(plan: Any, one: Case, dtype: str, workspace: int) -> None:
    """Blocks, steps and units cover channels, taps and pixels once; the parts of shared memory and workspace lie
    apart."""
    assert dtype != "float64"
    assert plan.split == (dtype == "float32")
    size = 2 if dtype in ("float16", "bfloat16") else 4
    m, n = one["ci"] // one["g"], one["co"] // one["g"]
    assert m >= (2 if one["g"] > 1 else 8)
    warps = plan.warps_m * plan.warps_n
    assert 0 < warps <= plan.most_warps
    assert plan.channels_m == 16 * plan.rows * plan.warps_m
    _blocks_cover(plan.warps_n, plan.units, plan.taps_h * plan.taps_w * plan.channels_n // 16)
    _blocks_cover(plan.blocks_m, plan.channels_m, m)
    _blocks_cover(plan.blocks_n, plan.channels_n, n)
    _blocks_cover(plan.groups_h, plan.taps_h, one["k"][0])
    _blocks_cover(plan.groups_w, plan.taps_w, one["k"][1])
    for tiles, pixels, extent in zip(plan.tiles, plan.pixels, (one["n"], one["h"], one["w"]), strict=True):
        _blocks_cover(tiles, pixels, extent)
    assert plan.pixels[0] == 1 or plan.pixels[1] == one["h"]
    assert plan.steps == torch.Size(plan.tiles).numel()
    _blocks_cover(plan.splits, plan.steps_per_split, plan.steps)
    assert plan.blocks == plan.blocks_m * plan.blocks_n * plan.groups_h * plan.groups_w * one["g"] * plan.splits
    pixels = torch.Size(plan.pixels).numel()
    assert plan.step_pixels == -(-pixels * size // 32) * 32 // size
    if not plan.split:  # the sums of tensor cores stay short
        assert (plan.steps_per_split - 1) * plan.step_pixels < (1 << 16 if size == 2 else 1 << 15)
    # Threads enough for a piece of each row; rows that begin in different banks.
    assert 32 * warps * 16 >= size * max(plan.channels_m, plan.channels_n)
    assert plan.x_pitch >= plan.channels_m * size
    assert plan.y_pitch >= plan.channels_n * size
    assert plan.y_pitch // (8 * size) % 2 == plan.x_pitch // (8 * size) % 2 == 1
    lines = []
    for axis, most in enumerate((plan.taps_h, plan.taps_w)):
        groups = _weight_tap_groups(one, axis, most, plan.pixels[1 + axis])
        lines.append(max(group[-1][2] for group in groups) + plan.pixels[1 + axis])
    assert plan.y_rows == plan.pixels[0] * lines[0] * lines[1]
    assert plan.y_at == plan.step_pixels * plan.x_pitch
    assert plan.slot_bytes == plan.y_at + plan.y_rows * plan.y_pitch
    assert plan.x_places_at == 2 * plan.slot_bytes
    assert plan.y_places_at == plan.x_places_at + 16 * plan.step_pixels
    assert plan.rows_at == plan.y_places_at + 16 * plan.y_rows
    assert plan.rows_at + 4 * plan.step_pixels == plan.shared_bytes <= core.SHARED_BYTES_LIMIT
    assert all(at % 16 == 0 for at in (plan.y_at, plan.slot_bytes, plan.x_pitch, plan.y_pitch))
    # The workspace: partial sums, rewritten operands.
    taps = one["k"][0] * one["k"][1]
    partial = 4 * one["g"] * taps * plan.blocks_m * plan.channels_m * plan.blocks_n * plan.channels_n
    sums = plan.splits * partial if plan.splits > 1 else 0
    assert sums <= core.WORKSPACE_LIMIT
    if not (plan.repack_x or plan.repack_y):
        assert workspace == sums
        return
    out, pack = result_size(one, "forward"), 16 // size
    x_bytes, y_bytes = (
        size * one["g"] * -(-channels // pack) * pack * one["n"] * h * w if repack else 0
        for repack, channels, h, w in ((plan.repack_x, m, one["h"], one["w"]), (plan.repack_y, n, *out[2:]))
    )
    assert x_bytes + y_bytes <= core.REPACK_LIMIT
    assert plan.repacked_x_at >= sums
    assert plan.repacked_y_at >= plan.repacked_x_at + x_bytes
    assert workspace == plan.repacked_y_at + y_bytes
    assert plan.repacked_x_at % 256 == plan.repacked_y_at % 256 == 0


@many
@given(axes(), st.integers(1, 12), st.integers(1, 40))
def test_staged_lines_are_those_that_taps_meet(axis: dict[str, int], most: int, pixels: int) -> None:
    """Each tap once; its line for each pixel is staged, and the segments say which line of grad_output that is."""
    geometry = _geometry(axis, False)
    taps, most_lines = core.mma_weight_taps(geometry, most, pixels)
    assert sorted(tap for _, tap, _, _ in taps) == list(range(axis["kernel"]))
    lengths = []
    for first in range(0, len(taps), most):
        group = taps[first : first + most]
        lengths.append(group[-1][2] + pixels)
        needed = set()
        for _, tap, line, _ in group:
            for pixel in range(pixels):
                # As the kernel finds it: the last segment that begins at the line or before.
                reach, _, _, segment = [other for other in group if other[3] <= line + pixel][-1]
                met = pixel * axis["stride"] - axis["padding"] + tap * axis["dilation"]
                assert reach + (line + pixel - segment) * axis["stride"] == met
                needed.add(met)
        assert lengths[-1] == len(needed)  # nothing staged twice, nothing in vain
    assert max(lengths) == most_lines


def _fewest_taps(one: Case, direction: str) -> int:
    """Of the phases and planes that have any."""
    fewest = 1
    for axis in (0, 1):
        size = {"input": (one["h"], one["w"])[axis], "output": output_size(one)[axis]}
        rest = {name: one[key][axis] for key, name in AXIS_KEYS.items()}  # type: ignore[literal-required]
        geometry = _geometry({**size, **rest}, direction == "forward")
        pairs = itertools.product(range(geometry.phases()), range(geometry.planes()))
        counts = [core.axis_taps(geometry, phase, plane).count for phase, plane in pairs]
        fewest *= min((count for count in counts if count > 0), default=1)
    return fewest


def _walked(one: Case, direction: str) -> tuple[Sequence[int], Sequence[int], list[Any]]:
    """Sizes of source and result, and the axes as the narrow and col2im families walk them."""
    source, result = result_size(one, "grad_input"), result_size(one, "forward")
    if direction == "grad_input":
        source, result = result, source
    axes = []
    for axis in (0, 1):
        rest = (one["k"][axis], one["s"][axis], one["p"][axis], one["d"][axis])
        geometry = core.AxisGeometry(source[2 + axis], result[2 + axis], *rest, direction == "forward")
        axes.append(core.without_idle_taps(geometry))
    return source, result, axes


def _check_narrow_plan(plan: Any, one: Case, direction: str, dtype: str) -> None:
    """Tiles, passes and blocks cover each result once; regions of shared memory hold what the kernel puts there."""
    assert direction != "grad_weight"
    assert dtype != "float64"
    assert plan.parts == (2 if dtype == "float32" else 1)
    size = 4 if dtype == "float32" else 2
    source, result, axes = _walked(one, direction)
    assert plan.tile[0] * plan.tile[1] * plan.tile[2] == 8 // plan.warps_m * 8 * (8 if plan.row_tiles == 1 else 4)
    extents = (one["n"], axes[0].phase_size(0), axes[1].phase_size(0))
    for tiles, pixels, extent in zip(plan.tiles, plan.tile, extents, strict=True):
        _blocks_cover(tiles, pixels, extent)
    _blocks_cover(plan.passes_m, plan.channels, result[1] // one["g"])
    heights = axes[0].phases() if plan.all_heights else 1
    assert plan.passes_h * heights == axes[0].phases()
    tiles = plan.tiles[0] * plan.tiles[1] * plan.tiles[2]
    assert 0 < plan.tile_blocks <= tiles
    assert plan.blocks == plan.passes_h * plan.passes_m * one["g"] * plan.tile_blocks
    # Units of 16 bytes of channels; steps of two units at all positions.
    units = -(-(source[1] // one["g"]) * size // 16)
    assert plan.units * (plan.chunks - 1) < units <= plan.units * plan.chunks
    assert 2 * plan.steps >= plan.positions * plan.units
    assert plan.source_at >= plan.row_groups * plan.chunks * plan.steps * plan.row_tiles * 512
    assert plan.buffers in (1, 2)
    assert plan.stage_at >= plan.source_at + plan.buffers * plan.units * plan.source_pitch * 16
    assert plan.source_pitch >= plan.source_pixels
    if plan.quads:  # lie inside the image or outside, and as many columns before the staged rows everywhere
        assert source[3] % 4 == plan.tile[2] % 4 == 0
        assert axes[1].planes() == 1
    images, lines = plan.tile[0], plan.tile[1] * heights
    line = plan.tile[2] * axes[1].phases()
    if plan.columns_adjacent:
        assert plan.stage_channel >= lines * line
        staged = images * plan.channels * plan.stage_channel
    else:
        assert plan.stage_channel == plan.channels
        staged = images * lines * line * plan.channels
    assert plan.stage_at + staged * size <= plan.tables_at < plan.shared_bytes <= core.SHARED_BYTES_LIMIT
    assert all(at % 16 == 0 for at in (plan.source_at, plan.stage_at, plan.tables_at))


def _check_col2im_plan(plan: Any, one: Case, direction: str, dtype: str, layout: str) -> None:
    """Segments cover each result once, the ring of products holds what two steps make and need, regions of shared
    memory hold what the kernel puts there."""
    assert direction == "forward" or (direction == "grad_input" and one["s"] == (1, 1))
    assert dtype != "float64"
    assert plan.parts == (2 if dtype == "float32" else 1)
    size = 4 if dtype == "float32" else 2
    source, result, axes = _walked(one, direction)
    _blocks_cover(plan.strips, plan.columns, axes[1].phase_size(0))
    _blocks_cover(plan.segments, plan.segment_rows, axes[0].phase_size(0))
    assert plan.steps * plan.rows >= plan.segment_rows + plan.shifts_h - 1 > (plan.steps - 1) * plan.rows
    assert plan.passes * plan.channels == result[1] // one["g"]
    assert plan.segment_blocks <= one["n"] * plan.strips * plan.segments
    assert plan.blocks == plan.passes * one["g"] * plan.segment_blocks
    # A step's pixels fit the warps, and its copies begin at multiples of what one brings.
    assert plan.rows * plan.pitch <= plan.pixels == 8 // plan.warps_m * 32
    assert plan.pitch >= plan.lead + plan.columns + plan.shifts_w - 1
    assert plan.pitch % 2 == 0
    piece = max(plan.column_bytes // size, 1)
    assert (plan.origin_w - plan.lead) % piece == plan.columns % piece == plan.pitch % piece == 0
    if plan.column_bytes:  # lie inside the image or outside
        assert layout == "contiguous" or source[1] == 1 or source[3] == 1
        assert source[3] % piece == 0
    products = plan.channels * one["k"][0] * one["k"][1]
    assert products <= 16 * plan.row_tiles * plan.warps_m
    assert plan.ring_rows >= 2 * plan.rows + plan.shifts_h - 1
    assert plan.product_pitch >= plan.ring_rows * plan.pitch
    assert plan.product_pitch % 32 == 8
    depth = 32 // size  # channels of one product
    assert (plan.all_depth_steps - 1) * depth < source[1] // one["g"] <= plan.all_depth_steps * depth
    assert (plan.chunks - 1) * plan.depth_steps < plan.all_depth_steps <= plan.chunks * plan.depth_steps
    assert plan.slots >= 2
    assert plan.slot_bytes >= plan.depth_steps * 32 * (plan.pixels + (8 if plan.column_bytes else 0))
    assert plan.source_at >= plan.all_depth_steps * plan.parts * plan.row_tiles * plan.warps_m * 512
    assert plan.products_at >= plan.source_at + plan.slots * plan.slot_bytes
    assert plan.tables_at >= plan.products_at + products * plan.product_pitch * 4
    tables = 16 * (14 + axes[0].phases() + axes[1].phases()) + 4 * plan.pixels
    assert plan.tables_at + tables <= plan.shared_bytes <= core.SHARED_BYTES_LIMIT
    assert all(at % 16 == 0 for at in (plan.source_at, plan.slot_bytes, plan.products_at, plan.tables_at))


def _check_col2im_hopper_plan(
    plan: Any, one: Case, direction: str, dtype: str, layout: str, multiprocessors: int
) -> None:
    """The same by tensor copies: boxes begin at multiples of 16 bytes, and what the tensor cores read is there."""
    assert direction == "forward" or (direction == "grad_input" and one["s"] == (1, 1))
    assert dtype != "float64"
    size = 4 if dtype == "float32" else 2
    source, result, axes = _walked(one, direction)
    _blocks_cover(plan.strips, plan.columns, axes[1].phase_size(0))
    _blocks_cover(plan.segments, plan.segment_rows, axes[0].phase_size(0))
    assert plan.steps * plan.rows >= plan.segment_rows + plan.shifts_h - 1
    assert plan.passes * plan.channels == result[1] // one["g"]
    assert plan.blocks == plan.passes * one["g"] * plan.segment_blocks
    assert plan.segment_blocks <= max(multiprocessors // (plan.passes * one["g"]), 1)
    products = plan.channels * one["k"][0] * one["k"][1]
    assert products <= plan.operand_rows
    assert plan.operand_rows in (16, 32, 48, 64, 96, 128)
    tiles = 4 if plan.operand_rows == 16 else 2 if plan.operand_rows <= 64 else 1
    assert plan.rows * plan.staged_pitch <= 128 * tiles
    assert plan.pitch == plan.columns + plan.shifts_w - 1
    assert plan.staged_lead + plan.pitch <= plan.staged_pitch <= 256
    if plan.planes:
        assert layout == "contiguous" or source[1] == 1
        assert plan.staged_pitch % 16 == 8
        assert plan.columns * size % 16 == 0
    else:
        assert plan.staged_lead == 0
    assert plan.ring_rows >= 2 * plan.rows + plan.shifts_h - 1
    assert plan.product_pitch >= plan.ring_rows * plan.pitch
    assert plan.product_pitch % 16 == 4
    assert plan.units in (1, 2)
    _blocks_cover(plan.chunks, 128, source[1] // one["g"] * size)
    assert plan.slots >= 2
    assert plan.slot_bytes >= plan.stage_bytes == plan.rows * plan.staged_pitch * 128
    assert plan.slot_bytes % (128 if plan.planes else 1024) == plan.weights_at % 1024 == 0
    assert plan.weights_at >= plan.slots * plan.slot_bytes
    assert plan.products_at == plan.weights_at + plan.chunks * plan.operand_rows * 128
    assert plan.tables_at >= plan.products_at + (products + 1) * plan.product_pitch * 4
    tables = 16 * (plan.slots + 2 + axes[0].phases() + axes[1].phases())
    assert plan.tables_at + tables <= plan.shared_bytes <= core.SHARED_BYTES_LIMIT
    assert plan.planes or (plan.slots - 1) * plan.slot_bytes + 128 * tiles * 128 <= plan.shared_bytes


def _check_pictures_plan(plan: Any, one: Case, direction: str, dtype: str, layout: str, multiprocessors: int) -> None:
    """Tiles of strips cover each result once, and nothing lies where something else does."""
    assert direction == "forward" or (direction == "grad_input" and one["s"] == (1, 1))
    size = 4 if dtype == "float32" else 2
    source, result, axes = _walked(one, direction)
    rows = result[1] // one["g"] * axes[0].phases() * axes[1].phases()
    assert rows <= plan.operand_rows <= max(16, 2 * rows)
    assert plan.operand_rows in (16, 32, 64)
    assert plan.shifts in (2, 3)
    strip_rows = {16: 6, 32: 4, 64: 2}[plan.operand_rows]
    assert plan.tile_rows == 12 // plan.strips_w * strip_rows
    assert 0 < plan.tile_columns <= plan.strips_w * (9 - plan.shifts)
    assert plan.halo_rows == plan.tile_rows + plan.shifts - 1
    _blocks_cover(plan.tiles_h, plan.tile_rows, axes[0].phase_size(0))
    _blocks_cover(plan.tiles_w, plan.tile_columns, axes[1].phase_size(0))
    assert plan.tiles == one["n"] * plan.tiles_h * plan.tiles_w
    assert plan.blocks == one["g"] * plan.tile_blocks
    assert plan.tile_blocks <= max(multiprocessors // one["g"], 1)
    if plan.planes:  # the last strip's two octets are there
        assert layout == "contiguous" or source[1] == 1
        assert plan.pitch % 16 == 8
        row = source[3] if plan.lines else 0
        assert plan.lines == (source[3] * size % 16 != 0)
        leads = set()
        for h, w in itertools.product(range(plan.tiles_h), range(plan.tiles_w)):
            for r in range(plan.halo_rows):
                first = (h * plan.tile_rows + r + plan.origin_h) * row + w * plan.tile_columns + plan.origin_w
                lead = plan.lead + (h * plan.tile_rows + r) * plan.lead_step
                lead = (lead + w * plan.tile_columns) % (16 // size) if plan.lines else lead
                assert (first - lead) * size % 16 == 0
                leads.add(lead)
        assert plan.pitch >= (max(leads) + (plan.strips_w - 1) * (9 - plan.shifts)) // 8 * 8 + 16
    else:
        assert plan.pitch == plan.strips_w * (9 - plan.shifts) + plan.shifts - 1
    channels = source[1] // one["g"] * size
    assert channels >= 32
    _blocks_cover(plan.chunks, 128, channels)
    _blocks_cover(plan.stages, 32 if plan.planes else 64, channels)
    assert plan.slots >= 2
    assert plan.slot_bytes >= plan.stage_bytes == plan.halo_rows * plan.pitch * (32 if plan.planes else 64)
    assert plan.slot_bytes % (128 if plan.planes else 512) == plan.weights_at % 1024 == 0
    assert plan.weights_at >= plan.slots * plan.slot_bytes
    assert plan.rows_at == plan.weights_at + plan.chunks * plan.shifts**2 * plan.operand_rows * 128
    taps = result[1] // one["g"] * one["k"][0] * one["k"][1]
    assert plan.staged_at >= plan.rows_at + 16 * plan.operand_rows + 4 * taps
    assert plan.barriers_at == plan.staged_at + 2 * 12 // plan.strips_w * plan.staged_bytes
    assert plan.barriers_at + 16 * plan.slots == plan.shared_bytes <= core.SHARED_BYTES_LIMIT
    if plan.copied:  # lines of strips, dense, that begin and end where copies may
        steps = one["s"] if direction == "forward" else (1, 1)
        pixel = 1 if layout == "contiguous" else result[1]
        channels = result[1] // one["g"] // pixel
        assert (plan.staged_phase, plan.staged_column) == (pixel, steps[1] * pixel)
        columns = plan.tile_columns * plan.staged_column
        assert max(columns, strip_rows * steps[0]) <= 256
        assert columns * size % 16 == result[3] * pixel * size % 16 == 0
        assert plan.staged_channel == (columns if pixel == 1 else 1)
        assert plan.staged_row == channels * columns
        assert plan.staged_at % 128 == plan.staged_bytes % 128 == 0
        assert plan.staged_bytes >= strip_rows * steps[0] * plan.staged_row * size


def _check_plan(one: Case, direction: str, dtype: str, layout: str, multiprocessors: int, families: str = "") -> None:
    device = core.Device()
    device.multiprocessors = multiprocessors
    plan = core.make_plan(problem_of(one, direction, dtype, layout), device, families)
    if isinstance(plan.tile, core.MergedPlan):
        _check_merged_plan(plan, one, direction, dtype)
        one, plan = {**one, "g": one["g"] // plan.tile.merge}, plan.tile.inner
    if isinstance(plan.tile, core.HopperConvPlan):
        assert plan.tile.repacked_bytes <= core.REPACK_LIMIT
        assert plan.workspace_bytes == plan.tile.packed_bytes + plan.tile.repacked_bytes + 16
        _check_hopper_plan(plan.tile, one, direction, dtype, multiprocessors)
        return
    if isinstance(plan.tile, core.HopperStridedPlan):
        assert (direction, layout) == ("forward", "contiguous")
        assert dtype in ("float16", "bfloat16")
        _check_strided_plan(plan, one, 2, multiprocessors)
        return
    if isinstance(plan.tile, core.HopperFoldedPlan):
        assert (direction, layout) == ("forward", "contiguous")
        _check_folded_plan(plan, one, dtype, multiprocessors)
        return
    if isinstance(plan.tile, core.HopperPicturesPlan):
        assert plan.workspace_bytes == 0
        _check_pictures_plan(plan.tile, one, direction, dtype, layout, multiprocessors)
        return
    if isinstance(plan.tile, core.MmaConvPlan):
        rewritten = plan.tile.repacked_bytes + plan.tile.unpacked_bytes
        assert rewritten <= core.REPACK_LIMIT
        assert plan.workspace_bytes == plan.tile.packed_bytes + rewritten
        _check_mma_plan(plan.tile, one, direction, dtype, multiprocessors)
        return
    if isinstance(plan.tile, core.HopperWeightTensorPlan):
        assert plan.workspace_bytes <= core.WORKSPACE_LIMIT + core.REPACK_LIMIT + 512
        _check_hopper_weight_tensor_plan(plan.tile, one, dtype, plan.workspace_bytes)
        return
    if isinstance(plan.tile, core.HopperWeightLinesPlan):
        assert plan.workspace_bytes <= core.WORKSPACE_LIMIT
        _check_hopper_weight_lines_plan(plan.tile, one, dtype, False, plan.workspace_bytes)
        return
    if isinstance(plan.tile, core.HopperWeightTurnedPlan):
        assert plan.workspace_bytes <= core.WORKSPACE_LIMIT + core.REPACK_LIMIT + 512
        _check_hopper_weight_turned_plan(plan.tile, one, dtype, False, plan.workspace_bytes)
        return
    if isinstance(plan.tile, core.MmaWeightPlan):
        assert direction == "grad_weight"
        _check_mma_weight_plan(plan.tile, one, dtype, plan.workspace_bytes)
        return
    if isinstance(plan.tile, core.SubpixelPlan):
        _check_subpixel_plan(plan, one, direction, dtype, multiprocessors)
        return
    assert 0 <= plan.workspace_bytes <= core.WORKSPACE_LIMIT
    assert plan.tile.blocks < 2**31
    assert plan.estimate_ms >= 0
    if isinstance(plan.tile, core.NarrowConvPlan):
        assert plan.workspace_bytes == 0
        _check_narrow_plan(plan.tile, one, direction, dtype)
    elif isinstance(plan.tile, core.Col2imConvPlan):
        assert plan.workspace_bytes == 0
        _check_col2im_plan(plan.tile, one, direction, dtype, layout)
    elif isinstance(plan.tile, core.Col2imHopperPlan):
        assert plan.workspace_bytes == 0
        _check_col2im_hopper_plan(plan.tile, one, direction, dtype, layout, multiprocessors)
    elif isinstance(plan.tile, DEPTHWISE_PLANS):
        _check_depthwise_plan(plan.tile, one, direction, dtype, plan.workspace_bytes)
    elif direction == "grad_weight":
        _check_weight_plan(plan.tile, one, dtype, plan.workspace_bytes)
    else:
        assert plan.workspace_bytes == 0
        _check_conv_plan(plan.tile, one, direction, dtype)


def _check_merged_plan(plan: Any, one: Case, direction: str, dtype: str) -> None:
    """The workspace begins with grad_weight of the merged groups, which are whole ones and of few channels."""
    tile, size = plan.tile, {"float32": 4}.get(dtype, 2)
    assert direction == "grad_weight"
    assert dtype != "float64"
    assert tile.merge > 1
    assert one["g"] % tile.merge == 0
    assert max(one["ci"], one["co"]) // one["g"] * tile.merge <= 64
    merged = one["ci"] * (one["co"] // one["g"]) * tile.merge * one["k"][0] * one["k"][1] * size
    assert merged <= core.WORKSPACE_LIMIT
    assert 0 <= tile.inner_at - merged < 256
    assert tile.inner_at % 256 == 0
    assert plan.workspace_bytes == tile.inner_at + tile.inner.workspace_bytes
    assert plan.estimate_ms > tile.inner.estimate_ms > 0
    assert not isinstance(tile.inner.tile, core.MergedPlan)


def _block(one: Case) -> tuple[int, int]:
    """The stride, or where the input has one pixel, the whole kernel."""
    return (one["k"][0] if one["h"] == 1 else one["s"][0], one["k"][1] if one["w"] == 1 else one["s"][1])


def _in_blocks(one: Case) -> Case:
    """The layer without stride on blocks of the output. What it lacks of the blocks' extent is output padding."""
    block, output, pixels = _block(one), output_size(one), (one["h"], one["w"])
    assert one["d"] == (1, 1)
    kernel, padding, missing = [], [], []
    for axis in (0, 1):
        assert one["k"][axis] % block[axis] == 0
        kernel.append(one["k"][axis] // block[axis])
        padding.append(one["p"][axis] // block[axis])
        blocks = -(-(output[axis] + one["p"][axis] % block[axis]) // block[axis])
        missing.append(blocks - (pixels[axis] - 1 - 2 * padding[axis] + kernel[axis]))
    return {
        **one, "co": one["co"] * block[0] * block[1], "k": tuple(kernel), "s": (1, 1), "p": tuple(padding),
        "op": tuple(missing),
    }  # fmt: skip


def _check_subpixel_plan(plan: Any, one: Case, direction: str, dtype: str, multiprocessors: int) -> None:
    """Parts of the workspace hold whole blocks, and the layer within is planned as one of its own."""
    size, inner = {"float32": 4}.get(dtype, 2), plan.tile.inner
    blocks = _in_blocks(one)
    across, pitch = output_size(blocks), -(-(one["co"] // one["g"] * blocks["co"] // one["co"]) * size // 16) * 16
    pixel = -(-blocks["co"] * size // 16) * 16
    for axis in (0, 1):
        overlap = one["p"][axis] % _block(one)[axis]
        assert across[axis] == -(-(output_size(one)[axis] + overlap) // _block(one)[axis])
    tile = plan.tile
    assert not tile.output_in_place or (across == (1, 1) and output_size(one) == _block(one))
    output = 0 if tile.output_in_place or tile.stores_plain else one["n"] * across[0] * across[1] * pixel
    weight = 0 if tile.weight_in_place or tile.stores_plain else one["ci"] * blocks["k"][0] * blocks["k"][1] * pitch
    assert tile.output_at == 0
    assert 0 <= tile.weight_at - output < 256
    assert 0 <= tile.bias_at - tile.weight_at - weight < 256
    assert 0 <= tile.inner_at - tile.bias_at - (pixel if direction == "forward" and not tile.stores_plain else 0) < 256
    assert plan.workspace_bytes == tile.inner_at + inner.workspace_bytes
    assert plan.estimate_ms >= inner.estimate_ms > 0
    assert not isinstance(inner.tile, core.SubpixelPlan)
    is_planes = isinstance(inner.tile, core.HopperPlanesPlan)
    assert tile.stores_plain == (is_planes or getattr(inner.tile, "to_blocks", False))
    assert not tile.stores_plain or direction == "forward"
    if is_planes:
        _check_planes_plan(inner, blocks, size, multiprocessors)
    elif tile.stores_plain:
        assert inner.workspace_bytes == inner.tile.packed_bytes + inner.tile.repacked_bytes + 16
        assert inner.tile.channels_adjacent
        assert (inner.tile.merge, inner.tile.parts, inner.tile.fold) == (1, 1, 1)
        _check_hopper_plan(inner.tile, blocks, direction, dtype, multiprocessors)


def _check_planes_plan(plan: Any, one: Case, size: int, multiprocessors: int) -> None:
    """Every piece of every image has one item of each column; the stages of all rings, weights and tables have room."""
    tile, pixels = plan.tile, one["h"] * one["w"]
    source, elements = one["ci"] // one["g"], one["co"] // one["g"]
    assert (one["k"], one["s"], one["p"]) == ((1, 1), (1, 1), (0, 0))
    assert min(source, elements) >= 16
    assert tile.channels in (64, 128, 192, 256)
    assert tile.m_tiles == -(-elements // tile.channels)
    assert tile.chunks == -(-source * size // 128)
    assert tile.packed_bytes == one["g"] * tile.m_tiles * tile.chunks * 128 * tile.channels
    assert plan.workspace_bytes == tile.packed_bytes + 16
    assert tile.warpgroups == (3 if tile.resident and tile.channels <= 128 else 2)
    assert tile.pieces == 2 * (1 if tile.resident else tile.warpgroups)
    assert tile.image_pieces == -(-pixels // 32)
    assert tile.columns == one["g"] * tile.m_tiles
    assert tile.items == -(-one["n"] * tile.image_pieces // tile.pieces) * tile.columns
    assert 0 < tile.blocks <= min(tile.items, multiprocessors)
    assert not tile.resident or tile.blocks % tile.columns == 0
    assert tile.classes * pixels * size % 16 == 0
    assert tile.classes == 1 or tile.classes // 2 * pixels * size % 16 != 0
    assert source % tile.classes == 0
    assert one["n"] == 1 or one["ci"] * pixels * size % 16 == 0
    stage, piece = 128 * tile.channels, 128 * (32 if tile.classes == 1 else 40)
    assert tile.rings == (tile.warpgroups if tile.resident else 1)
    assert tile.stage_bytes == tile.pieces * piece + (0 if tile.resident else stage)
    assert tile.stage_bytes % 1024 == 0
    assert 3 <= tile.slots <= 8
    assert tile.weights_at == tile.rings * tile.slots * tile.stage_bytes
    assert tile.tables_at == tile.weights_at + (tile.chunks * stage if tile.resident else 0)
    assert tile.barriers_at == tile.tables_at + 2 * tile.warpgroups * tile.channels * 16
    assert tile.shared_bytes == tile.barriers_at + 16 * tile.rings * tile.slots + 8
    assert tile.shared_bytes <= core.SHARED_BYTES_LIMIT


def _hopper_plans(problem: Any, kind: type) -> list[Any]:
    """Those of the family's candidates that have such tiles, on an H200."""
    return [
        plan for plan in core.candidates(problem, core.Device(), "igemm_sm90,wgrad_sm90") if isinstance(plan.tile, kind)
    ]


def _check_strided_plan(plan: Any, one: Case, size: int, multiprocessors: int) -> None:
    """Halos hold what their pixels' taps read, each pixel is in one tile, and rings have room for what is under way."""
    tile, result = plan.tile, output_size(one)
    assert (one["s"], one["d"]) == ((2, 2), (1, 1))
    for axis, origin, extent in (
        (0, tile.origin_h, tile.halo_rows - tile.tile_rows),
        (1, tile.origin_w, 8 * (tile.halo_octets - tile.octets)),
    ):
        reads = [(phase + one["p"][axis] - k) / 2 for phase in (0, 1) for k in range(one["k"][axis])]
        shifts = [int(shift) for shift in reads if shift == int(shift)]
        assert len(set(shifts)) == tile.lines
        assert len(shifts) == 2 * one["k"][axis] // 2 == tile.taps
        assert origin <= min(shifts)
        assert max(shifts) <= origin + extent
        assert origin == min(shifts) - (7 if axis == 1 and tile.before else 0)
    assert tile.origin_w % 8 == 0
    assert one["w"] * size % 16 == 0
    assert tile.octets * tile.tile_rows == 8
    assert tile.halo_octets % 2 == 1
    _blocks_cover(tile.tiles_h, tile.tile_rows, -(-result[0] // 2))
    _blocks_cover(tile.tiles_w, 8 * tile.octets, -(-result[1] // 2))
    assert tile.tiles == one["n"] * tile.tiles_h * tile.tiles_w
    assert tile.m_tiles == -(-(one["co"] // one["g"]) // 64)
    assert tile.columns == one["g"] * tile.m_tiles
    assert tile.chunks == -(-(one["ci"] // one["g"]) * size // 128)
    tiles = tile.tiles if tile.resident else -(-tile.tiles // 2)
    assert tile.items == tiles * tile.columns
    assert 0 < tile.blocks <= min(tile.items, multiprocessors)
    assert not tile.resident or tile.blocks % tile.columns == 0
    slots = -(-one["k"][0] // 2) * -(-one["k"][1] // 2)
    assert tile.packed_bytes == tile.columns * 4 * tile.chunks * slots * 8192
    assert plan.workspace_bytes == tile.packed_bytes + 16
    assert tile.stage_bytes == tile.taps * 8192
    assert tile.halo_bytes == tile.halo_rows * tile.halo_octets * 1024
    assert tile.rings == (2 if tile.resident else 1)
    assert 2 <= tile.slots <= 6
    assert tile.weight_slots == tile.chunks * tile.taps if tile.resident else 3 <= tile.weight_slots <= 8
    assert tile.weights_at == 2 * tile.slots * tile.halo_bytes
    assert tile.bias_at == tile.weights_at + tile.weight_slots * tile.stage_bytes
    assert tile.barriers_at == tile.bias_at + 2 * 64 * 4
    assert tile.shared_bytes == tile.barriers_at + 16 * (tile.rings * tile.slots + tile.weight_slots)
    assert tile.shared_bytes <= core.SHARED_BYTES_LIMIT


def test_strided_planes_that_are_taken_as_they_lie() -> None:
    """Contiguous inputs with rows of whole 16 bytes, results of even width, strides of 2, kernels of 3 and 4 along both
    axes; all candidates hold.
    """

    def serves(one: Case, dtype: str = "float16", unaligned: bool = False, layout: str = "contiguous") -> bool:
        problem = problem_of(one, "forward", dtype, layout)
        problem.allow_tf32 = True
        problem.unaligned_first = unaligned
        plans = _hopper_plans(problem, core.HopperStridedPlan)
        for plan in plans:
            _check_strided_plan(plan, one, 4 if dtype == "float32" else 2, core.Device().multiprocessors)
        return bool(plans)

    for kernel, padding in itertools.product((3, 4), (0, 1)):
        even = kernel % 2  # more, to an even width
        assert serves(case("served", 4, 64, 16, 16, 64, kernel, 2, padding, (0, even)))
        assert serves(case("served", 4, 64, 5, 12, 64, kernel, 2, padding, (1, even)), "float32")
        assert not serves(case("odd_width", 4, 64, 16, 16, 64, kernel, 2, padding, (0, 1 - even)))
    assert serves(case("odd_rows", 4, 64, 16, 16, 64, 4, 2, (3, 1)))
    assert serves(case("grouped", 4, 64, 16, 16, 64, 4, 2, 1, g=4))
    assert not serves(case("channels_last", 4, 64, 16, 16, 64, 4, 2, 1), layout="channels_last")
    assert not serves(case("unaligned", 4, 64, 16, 16, 64, 4, 2, 1), unaligned=True)
    assert not serves(case("narrow_rows", 4, 64, 16, 12, 64, 4, 2, 1))
    assert not serves(case("few_channels", 4, 64, 16, 16, 8, 4, 2, 1))
    assert not serves(case("other_paddings", 4, 64, 16, 16, 64, 4, 2, (1, 0)))
    assert not serves(case("large", 4, 64, 16, 16, 64, 5, 2, 1))
    assert not serves(case("dilated", 4, 64, 16, 16, 64, 3, 2, 1, d=2))
    assert not serves(case("stride", 4, 64, 16, 16, 64, 4, (1, 2), 1))
    strict = problem_of(case("strict", 4, 64, 16, 16, 64, 4, 2, 1), "forward", "float32")
    plans = core.candidates(strict, core.Device(), "igemm_sm90,wgrad_sm90")
    assert not any(isinstance(plan.tile, core.HopperStridedPlan) for plan in plans)


def _check_folded_plan(plan: Any, one: Case, dtype: str, multiprocessors: int) -> None:
    """Tiles hold whole images, clusters all channels, and nothing lies where something else does."""
    tile = plan.tile
    assert dtype in ("float16", "bfloat16")
    assert (one["k"], one["s"], one["p"], one["op"], one["d"]) == ((4, 4), (2, 2), (1, 1), (0, 0), (1, 1))
    assert tile.pixels in (64, 128, 192, 256)
    assert tile.image_pixels == one["h"] * one["w"]
    assert tile.image_pixels % tile.run == 0
    assert tile.run in (16, 32, 64)
    assert tile.run == 64 or tile.run == tile.image_pixels
    assert one["w"] == 4 * tile.quads <= 16
    assert tile.images == tile.pixels // tile.image_pixels > 0
    _blocks_cover(tile.tiles, tile.images, one["n"])
    _blocks_cover(tile.m_tiles, 16, one["co"] // one["g"])
    _blocks_cover(tile.chunks, 64, one["ci"] // one["g"])
    assert tile.columns == one["g"] * tile.m_tiles
    assert tile.items == tile.tiles * tile.columns
    assert 2 <= tile.blocks == 2 * min(tile.items, multiprocessors // 2)
    assert tile.stage_bytes == 64 * (128 + tile.pixels) * 2
    assert tile.plane_bytes == 8 * tile.image_pixels
    assert 2 <= tile.slots <= 6
    assert tile.sums_at == tile.slots * tile.stage_bytes
    assert tile.results_at == tile.sums_at + 8 * 8 * (tile.pixels + 8) * 4
    assert tile.barriers_at == tile.results_at + 6 * tile.images * tile.plane_bytes
    assert tile.shared_bytes == tile.barriers_at + 16 * tile.slots + 24 * 8
    assert tile.shared_bytes <= core.SHARED_BYTES_LIMIT
    assert plan.workspace_bytes == 0


def test_products_that_are_folded() -> None:
    """Contiguous operands of 16 bits, kernels of 4 that double images of few columns; all candidates hold."""

    def serves(one: Case, dtype: str = "float16", layout: str = "contiguous", **properties: bool) -> bool:
        problem = problem_of(one, "forward", dtype, layout)
        problem.allow_tf32 = True
        for name, value in properties.items():
            setattr(problem, name, value)
        plans = _hopper_plans(problem, core.HopperFoldedPlan)
        for plan in plans:
            _check_folded_plan(plan, one, dtype, core.Device().multiprocessors)
        return bool(plans)

    for height, width in ((4, 4), (8, 4), (4, 8), (8, 8), (24, 8), (16, 12), (12, 16), (16, 16), (32, 4)):
        assert serves(case("served", 9, 70, height, width, 40, 4, 2, 1))
    assert serves(case("grouped", 4, 64, 8, 8, 64, 4, 2, 1, g=4), "bfloat16")
    assert not serves(case("float32", 4, 64, 8, 8, 64, 4, 2, 1), "float32")
    assert not serves(case("channels_last", 4, 64, 8, 8, 64, 4, 2, 1), layout="channels_last")
    assert not serves(case("source", 4, 64, 8, 8, 64, 4, 2, 1), unaligned_first=True)
    assert not serves(case("weight", 4, 64, 8, 8, 64, 4, 2, 1), unaligned_second=True)
    assert not serves(case("large", 4, 64, 32, 16, 64, 4, 2, 1))
    assert not serves(case("wide", 4, 64, 4, 20, 64, 4, 2, 1))
    assert not serves(case("odd", 4, 64, 8, 6, 64, 4, 2, 1))
    assert not serves(case("parts", 4, 64, 10, 8, 64, 4, 2, 1))
    assert not serves(case("padding", 4, 64, 8, 8, 64, 4, 2, 0))
    assert not serves(case("more", 4, 64, 8, 8, 64, 4, 2, 1, 1))
    assert not serves(case("kernel", 4, 64, 8, 8, 64, 2, 2, 0))
    assert not serves(case("stride", 4, 64, 8, 8, 64, 4, 1, 1))
    assert not serves(case("few_channels", 4, 64, 8, 8, 8, 4, 2, 1))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_blocks_are_stored_where_they_belong(dtype: str, layout: str) -> None:
    """By the Hopper family alone, not in strict float32, of many channels only in contiguous results: with long
    rows, or from planes as they lie.
    """
    (fcn32s,) = (one for one in ZOO if one["name"] == "fcn32s")
    problem = problem_of(fcn32s, "forward", dtype, layout)
    ways = {False} if dtype == "float32" else {False, True}
    assert {plan.tile.stores_plain for plan in core.candidates(problem, core.Device(), "sub_pixel")} == ways
    problem.allow_tf32 = True
    plan = core.make_plan(problem, core.Device())
    assert plan.tile.stores_plain
    assert plan.workspace_bytes == plan.tile.inner.workspace_bytes
    text = core.explain(problem, core.Device())
    assert "blocks stored where they belong" in text
    assert "to blocks" not in text.split("considered:")[0]
    ampere = core.Device()
    ampere.has_wgmma = False
    assert not any(plan.tile.stores_plain for plan in core.candidates(problem, ampere, "sub_pixel"))
    for stride in (2, 4):
        many = case("many", 4, 64, 30, 30, 128, stride, stride)
        problem = problem_of(many, "forward", dtype, layout)
        problem.allow_tf32 = True
        plans = core.candidates(problem, core.Device(), "sub_pixel")
        stored = {type(plan.tile.inner.tile) for plan in plans if getattr(plan.tile, "stores_plain", False)}
        contiguous = {core.HopperPlanesPlan} | ({core.HopperConvPlan} if stride == 4 else set())
        assert stored == (contiguous if layout == "contiguous" else set())


def test_planes_that_are_taken_as_they_lie() -> None:
    """Contiguous inputs, kernels as large as the stride, unless paddings leave other blocks than pixels; and whole
    classes of channels where planes begin at no multiples of 16 bytes.
    """

    def serves(one: Case, dtype: str = "float16", unaligned: bool = False, layout: str = "contiguous") -> bool:
        problem = problem_of(one, "forward", dtype, layout)
        problem.allow_tf32 = True
        problem.unaligned_first = unaligned
        plans = core.candidates(problem, core.Device(), "sub_pixel")
        inner = [plan.tile.inner.tile for plan in plans if isinstance(plan.tile, core.SubpixelPlan)]
        return any(isinstance(tile, core.HopperPlanesPlan) for tile in inner)

    assert serves(case("served", 4, 64, 14, 14, 64, 2, 2))
    assert not serves(case("channels_last", 4, 64, 14, 14, 64, 2, 2), layout="channels_last")
    assert not serves(case("unaligned", 4, 64, 14, 14, 64, 2, 2), unaligned=True)
    for dtype in ("float16", "float32"):
        assert serves(case("odd_planes", 4, 64, 7, 7, 64, 2, 2), dtype)
        assert not serves(case("half_a_class", 4, 66, 7, 7, 64, 2, 2), dtype)
        assert serves(case("half_a_class", 4, 66, 7, 8, 64, 2, 2), dtype)
    assert not serves(case("several_taps", 4, 64, 16, 16, 64, 4, 2, 1))
    assert not serves(case("few_channels", 4, 8, 16, 16, 64, 2, 2))
    assert serves(case("few_but_many_elements", 4, 64, 16, 16, 4, 2, 2))
    assert serves(case("padded", 4, 64, 16, 16, 64, 4, 4, 1))
    assert not serves(case("a_block_more", 4, 64, 16, 16, 64, 4, 4, 1, 3))


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


@many
@given(depthwise_problems(), kinds, devices)
def test_depthwise_plans_cover_the_result_exactly_once(
    one: Case, kind: tuple[str, str, str], multiprocessors: int
) -> None:
    _check_plan(one, *kind, multiprocessors, "depthwise")


@many
@given(problems(), kinds, devices)
def test_plans_cover_the_result_exactly_once(one: Case, kind: tuple[str, str, str], multiprocessors: int) -> None:
    _check_plan(one, *kind, multiprocessors)


def test_flat_lines_that_no_tile_holds_two_of() -> None:
    """Taps further apart than a tile has rows: refused, and the planner ends."""
    for span in (30, 60, 250):
        _check_plan(case("far", 1, 64, 4, 300, 64, 3, d=(1, span)), "forward", "bfloat16", "channels_last", 132)


# Few source channels and no phases: what im2col is for.
FEW_CHANNELS = [
    ("grad_input", case("rgb", 16, 128, 64, 64, 3, 4, 2, 1)),
    ("grad_input", case("one", 16, 56, 90, 120, 1, 9, 4, 4, 3)),
    ("grad_input", case("groups", 16, 128, 60, 62, 4, (3, 5), (1, 2), (2, 0), g=2)),
    ("forward", case("first", 16, 3, 120, 101, 64, 3, 1, 1)),
]
# Many source channels, few pixels: what clusters are for.
FEW_PIXELS = [
    ("grad_input", case("image", 1, 64, 16, 24, 256, 4, 2, 1)),
    ("grad_input", case("latent", 128, 100, 1, 1, 512, 4)),
    ("grad_input", case("long", 4, 21, 16, 16, 21, 64, 32, 16)),
    ("forward", case("deep", 1, 600, 8, 8, 40, 3, 1, 1)),
]


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_few_channels_and_few_pixels(dtype: str, layout: str) -> None:
    """Rows of taps, and items of clusters, are planned where they are for, and for other layers they are not."""
    for multiprocessors in (132, 114, 60, 16):
        for direction, one in (*FEW_CHANNELS, *FEW_PIXELS):
            _check_plan(one, direction, dtype, layout, multiprocessors, "igemm_sm90,wgrad_sm90")
    for direction, one in FEW_CHANNELS:
        plan = core.make_plan(problem_of(one, direction, dtype, layout), kernels="igemm_sm90,wgrad_sm90").tile
        assert plan.source == core.HopperSource.IM2COL, one["name"]
        assert plan.split == 1
    for direction, one in FEW_PIXELS:
        plan = core.make_plan(problem_of(one, direction, dtype, layout), kernels="igemm_sm90,wgrad_sm90").tile
        assert plan.source != core.HopperSource.IM2COL
        assert plan.split > 1, one["name"]
    plan = core.make_plan(problem_of(KERNELBENCH[0], "grad_input", dtype, layout)).tile
    assert plan.source != core.HopperSource.IM2COL
    assert plan.split == 1


# What im2col counts in few bits: images of 2^14 pixels a side, taps further away than that, more than 2^31 bytes from
# the first image of a tile to the last. And phases, and more than 1,024 taps of all channels.
@pytest.mark.parametrize(
    ("one", "direction"),
    [
        (case("wide", 1, 64, 1, 17000, 2, 3, 1, 1), "grad_input"),
        (case("far", 1, 64, 4, 4, 2, 3, 1, 9000, d=9000), "grad_input"),
        (case("large", 8, 64, 12000, 12000, 1, 3, 1, 1), "grad_input"),
        (case("phases", 16, 3, 60, 60, 64, 4, 2, 1), "forward"),
        (case("taps", 16, 64, 60, 60, 8, 12, 1, 5), "grad_input"),
    ],
)
def test_what_im2col_refuses(one: Case, direction: str) -> None:
    for layout in ("contiguous", "channels_last"):
        plan = core.make_plan(problem_of(one, direction, "float16", layout), kernels="igemm_sm90,wgrad_sm90").tile
        assert not isinstance(plan, core.HopperConvPlan) or plan.source != core.HopperSource.IM2COL


# What im2col of grad_output is for in grad_weight, and what it does not take: groups, more channels, more than 512 taps
# of all channels, one tap, offsets within an image of 2^31 elements or more.
FEW_OUTPUTS = [
    case("rgb", 16, 128, 64, 64, 3, 4, 2, 1),
    case("one", 16, 56, 90, 120, 1, 9, 4, 4, 3),
    case("dilated", 16, 64, 120, 101, 2, (3, 5), (1, 2), (2, 0), 0, (2, 1)),
]
NOT_FEW_OUTPUTS = [
    case("groups", 16, 128, 60, 62, 4, 4, 2, 1, g=2),
    case("nine", 16, 128, 60, 62, 9, 4, 2, 1),
    case("taps", 16, 64, 60, 60, 8, 9, 1, 4),
    case("one_tap", 16, 64, 60, 60, 3, 1),
    case("large", 1, 64, 27000, 27000, 3, 3, 1, 1),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_few_output_channels(dtype: str) -> None:
    for multiprocessors in (132, 114, 60, 16):
        for one in FEW_OUTPUTS:
            for layout in ("contiguous", "channels_last"):
                _check_plan(one, "grad_weight", dtype, layout, multiprocessors, "igemm_sm90,wgrad_sm90")
    for one in FEW_OUTPUTS:
        plan = core.make_plan(problem_of(one, "grad_weight", dtype, "channels_last"), kernels="igemm_sm90,wgrad_sm90")
        assert plan.tile.im2col, one["name"]
    for layout in ("contiguous", "channels_last"):
        for fits, ones in ((True, FEW_OUTPUTS), (False, NOT_FEW_OUTPUTS)):
            for one in ones:
                problem = problem_of(one, "grad_weight", dtype, layout)
                assert core.fits_weight_im2col(problem) == fits, one["name"]


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
                assert type(found.tile) is type(expected.tile)
                assert found.workspace_bytes == expected.workspace_bytes
                assert found.estimate_ms == expected.estimate_ms
            assert memory.planned == before + 1
    problem = problem_of(KERNELBENCH[0], "forward")
    small = core.Device()
    small.multiprocessors = 8
    large, other = memory.find(problem), memory.find(problem, 1, small)
    assert other.tile.blocks <= 8 < large.tile.blocks
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


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("one", CASES + FULL, ids=lambda one: one["name"])
def test_plans_of_cases(one: Case, direction: str) -> None:
    """The cases of the numerical tests, and the benchmark's layers at their full size."""
    for dtype, layout, families in itertools.product(
        ("float32", "float64", "bfloat16"),
        ("contiguous", "channels_last"),
        ("", "simt,depthwise", "igemm_sm90,wgrad_sm90", "igemm_sm80", "small_channel", "col2im"),
    ):
        _check_plan(one, direction, dtype, layout, 132, families)


@many
@given(problems(), kinds, devices)
def test_mma_weight_plans_cover_the_result_exactly_once(
    one: Case, kind: tuple[str, str, str], multiprocessors: int
) -> None:
    _check_plan(one, "grad_weight", *kind[1:], multiprocessors, "igemm_sm80")


@many
@given(problems(), layouts, st.booleans(), devices)
def test_turned_plans_cover_the_result_exactly_once(
    one: Case, layout: str, allow_tf32: bool, multiprocessors: int
) -> None:
    """Whether another kernel would be taken or not."""
    device = core.Device()
    device.multiprocessors = multiprocessors
    problem = problem_of(one, "grad_weight", "float32", layout)
    problem.allow_tf32 = allow_tf32
    plan = core.plan_hopper_weight_turned(problem, device)
    if plan is not None:
        _check_hopper_weight_turned_plan(plan.tile, one, "float32", allow_tf32, plan.workspace_bytes)


@many
@given(problems(), st.sampled_from(("float32", "float16", "bfloat16")), st.booleans(), devices)
def test_lines_plans_cover_the_result_exactly_once(
    one: Case, dtype: str, allow_tf32: bool, multiprocessors: int
) -> None:
    """Whether another kernel would be taken or not."""
    device = core.Device()
    device.multiprocessors = multiprocessors
    problem = problem_of(one, "grad_weight", dtype, "contiguous")
    problem.allow_tf32 = allow_tf32
    plan = core.plan_hopper_weight_lines(problem, device)
    if plan is not None:
        _check_hopper_weight_lines_plan(plan.tile, one, dtype, allow_tf32, plan.workspace_bytes)


@pytest.mark.parametrize("one", CASES + FULL, ids=lambda one: one["name"])
def test_lines_plans_of_cases(one: Case) -> None:
    for dtype in ("float32", "bfloat16"):
        problem = problem_of(one, "grad_weight", dtype, "contiguous")
        problem.allow_tf32 = True
        plan = core.plan_hopper_weight_lines(problem, core.Device())
        assert plan is not None or one["name"] not in {f"full_{each['name']}" for each in KERNELBENCH}
        if plan is not None:
            _check_hopper_weight_lines_plan(plan.tile, one, dtype, True, plan.workspace_bytes)
    problem = problem_of(one, "grad_weight", "float32", "channels_last")
    problem.allow_tf32 = True
    if one["ci"] > 1 and one["w"] > 1:
        assert core.plan_hopper_weight_lines(problem, core.Device()) is None


@pytest.mark.parametrize(
    "one",
    [
        case("padded", 1, 128, 1, 80100, 128, 1, 1, (0, 40000)),
        case("dilated", 4, 256, 4, 256, 128, (1, 2), 1, 0, 0, (1, 40000)),
    ],
    ids=lambda one: one["name"],
)
def test_weight_plans_of_taps_far_apart(one: Case) -> None:
    """Further than the tables of tensor copies hold."""
    for dtype in ("float32", "bfloat16"):
        _check_plan(one, "grad_weight", dtype, "channels_last", 132)
    problem = problem_of(one, "grad_weight", "float32", "channels_last")
    for problem.allow_tf32 in (False, True):
        assert core.plan_hopper_weight_turned(problem, core.Device()) is None


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("channels", [2, 3, 4, 7])
def test_grad_weight_of_groups_of_few_channels(channels: int, layout: str, capability: int) -> None:
    """On tensor cores: nothing else serves them well. Few input channels without groups are not what that is for."""
    device = core.Device()
    device.capability = capability
    device.has_wgmma = capability == 90
    grouped = case("grouped", 16, 16 * channels, 64, 64, 16 * channels, 4, 2, 1, g=16)
    plan = core.make_plan(problem_of(grouped, "grad_weight", "bfloat16", layout), device)
    assert isinstance(plan.tile, core.MergedPlan)
    assert 16 < plan.tile.merge * channels <= 32
    inner = plan.tile.inner
    inner = inner.tile.inner if isinstance(inner.tile, core.SubpixelPlan) else inner
    assert type(inner.tile).__name__.startswith(("HopperWeight", "MmaWeight") if capability == 90 else "MmaWeight")
    one = case("few", 16, channels, 64, 64, 64, 4, 2, 1)
    text = core.explain(problem_of(one, "grad_weight", "bfloat16", layout), kernels="igemm_sm80")
    assert "igemm_sm80 family: refused, takes at least 8 input channels" in text


@pytest.mark.parametrize(
    ("channels", "groups", "merge"),
    [((4, 4), 16, 8), ((5, 5), 20, 5), ((3, 12), 14, 2), ((8, 8), 5, 5), ((20, 20), 6, 3), ((30, 30), 2, 2)],
)
def test_merged_groups(channels: tuple[int, int], groups: int, merge: int) -> None:
    """The most that divide their number, up to 32 channels together, or to 64 where that leaves none."""
    one = case("group_merge", 4, channels[0] * groups, 30, 30, channels[1] * groups, 3, 1, 1, g=groups)
    plan = core.make_plan(problem_of(one, "grad_weight", "float16"), kernels="group_merge")
    assert isinstance(plan.tile, core.MergedPlan)
    assert plan.tile.merge == merge


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
    kinds = []
    while isinstance(plan.tile, (core.SubpixelPlan, core.MergedPlan)):
        kinds.append(type(plan.tile))
        plan = plan.tile.inner
    assert kinds
    assert kinds in ([core.MergedPlan], [core.SubpixelPlan], [core.MergedPlan, core.SubpixelPlan])


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_gradients_of_one_channel_without_groups(layout: str) -> None:
    """Not by the depthwise family where another reads many channels together."""
    one = case("one_output", 16, 64, 64, 64, 1, 4, 2, 1)
    for direction, dtype in (("grad_weight", "bfloat16"), ("grad_input", "float32")):
        plan = core.make_plan(problem_of(one, direction, dtype, layout))
        assert not isinstance(plan.tile, DEPTHWISE_PLANS)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 2), (7, 2), (4, 3), (5, 3), (7, 4)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_the_hopper_family_have_their_share_of_taps(kernel: int, stride: int, dtype: str) -> None:
    """Also where phases have unlike numbers of them, whatever plan is taken."""
    one = case("uneven", 60, 640, 30, 28, 256, kernel, stride)
    geometry = core.AxisGeometry(30, result_size(one, "forward")[2], kernel, stride, 0, 1, True)
    taps = [core.axis_taps(geometry, phase, 0).count for phase in range(stride)]
    assert len(set(taps)) > 1
    checked: Counter[bool] = Counter()
    for plan in core.candidates(problem_of(one, "forward", dtype), kernels="igemm_sm90,wgrad_sm90"):
        tile = plan.tile
        parts = tile.phase_groups // tile.item_groups
        if parts == 1 or tile.items < 6 * tile.blocks:
            continue
        across = -(-stride // tile.phases)
        of_group = [h * sum(taps[w * tile.phases : (w + 1) * tile.phases]) for h in taps for w in range(across)]
        assert len(of_group) == tile.phase_groups
        items = np.arange(tile.items)
        of_part = np.array(of_group).reshape(parts, tile.item_groups).sum(axis=1)
        of_block = np.bincount(items % tile.blocks, weights=of_part[items % tile.columns % parts])
        assert of_block.max() <= 1.2 * of_block.mean() + of_part.max()
        checked[tile.item_groups > 1] += 1
    assert checked[False] > 10
    assert bool(checked[True]) == (stride > 2)  # of rows that wait for all phases


def test_depthwise_rows_plans_of_tall_images_are_quick() -> None:
    """65 times the rows, but not so many numbers of segments tried."""

    def seconds(rows: int) -> float:
        problem = problem_of(case("tall", 1, 64, rows, 64, 64, 3, 1, 1, g=64), "grad_weight")
        assert isinstance(core.make_plan(problem, kernels="depthwise").tile, core.DepthwiseRowsPlan)
        times = []
        for _ in range(20):
            start = time.process_time()
            for _ in range(10):
                core.make_plan(problem, kernels="depthwise")
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(65_000) < 4 * seconds(1000)


def test_a_bias_in_blocks_is_told() -> None:
    one = case("one_pixel", 64, 128, 1, 1, 64, 4)
    problem = problem_of(one, "forward")
    without = core.explain(problem, kernels="sub_pixel,igemm_sm90,wgrad_sm90")
    problem.has_bias = True
    text = "the bias to blocks by a kernel of its own, then "
    assert text not in without
    assert text in core.explain(problem, kernels="sub_pixel,igemm_sm90,wgrad_sm90")


def test_narrow_plans_keep_within_shared_memory() -> None:
    """Of a staged source so large that its size in bytes is no 32-bit integer."""
    one = case("large", 128, 8, 2, 2, 512, 2, 1, 0, 0, 63)
    _check_plan(one, "grad_input", "float32", "channels_last", 132, "small_channel")


def _few_channels_serve(
    kind: type, family: str, check: Any, one: Case, dtype: str, layout: str, **properties: Any
) -> bool:
    """Whether there are such candidates; all of them hold."""
    problem = problem_of(one, "forward", dtype, layout)
    problem.allow_tf32 = True
    for name, value in properties.items():
        setattr(problem, name, value)
    device = core.Device()
    plans = [plan for plan in core.candidates(problem, device, family) if isinstance(plan.tile, kind)]
    for plan in plans:
        check(plan.tile, one, "forward", dtype, layout, device.multiprocessors)
    return bool(plans)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_few_result_channels_that_hopper_serves(dtype: str, layout: str) -> None:
    """Phases and channels that fit operand B, few shifts, sources that tensor copies take."""

    def serves(one: Case, **properties: Any) -> bool:
        return _few_channels_serve(
            core.HopperPicturesPlan, "igemm_sm90,wgrad_sm90", _check_pictures_plan, one, dtype, layout, **properties
        )

    for out_channels, kernel, stride, padding in (
        (3, 4, 2, 1),
        (1, 9, 4, 4),
        (16, 4, 2, 1),
        (5, 3, 1, 1),
        (2, 5, 2, 2),
    ):
        assert serves(case("served", 4, 64, 40, 64, out_channels, kernel, stride, padding))
    assert serves(case("groups", 4, 64, 24, 24, 32, 3, 2, 1, 1, g=4))
    assert serves(case("tiny", 1, 16, 2, 8, 1, 4, 2, 1))
    assert serves(case("dilated", 2, 32, 16, 24, 3, 2, 2, 0, 0, 3))
    assert not serves(case("source", 4, 64, 40, 64, 3, 4, 2, 1), unaligned_first=True)
    assert not serves(case("many", 4, 64, 40, 64, 17, 4, 2, 1))
    assert not serves(case("shifts", 4, 64, 40, 64, 3, 7, 2, 3))
    assert not serves(case("long", 4, 64, 40, 64, 3, 4, 9, 1))
    assert not serves(case("few", 4, 6, 40, 64, 3, 4, 2, 1))
    assert not serves(case("deep", 4, 16384, 4, 8, 3, 4, 2, 1))
    if layout == "contiguous":
        assert serves(case("lines", 4, 64, 40, 33, 3, 4, 2, 1))
        assert not serves(case("lines", 4, 64, 41, 33, 3, 4, 2, 1))
    else:
        assert not serves(case("pixels", 4, 65, 40, 33, 3, 4, 2, 1))


def test_few_result_channels_that_copies_take() -> None:
    """Rows of all columns, or of all channels, of multiples of 16 bytes."""

    def copied(one: Case, layout: str, direction: str = "forward", dtype: str = "bfloat16") -> set[bool]:
        plans = core.candidates(problem_of(one, direction, dtype, layout), core.Device(), "igemm_sm90,wgrad_sm90")
        return {plan.tile.copied for plan in plans if isinstance(plan.tile, core.HopperPicturesPlan)}

    rgb, ragged = case("rgb", 2, 64, 16, 16, 3, 4, 2, 1), case("ragged", 2, 64, 16, 16, 3, 4, 2, 0, 1)  # 32, 35 columns
    assert copied(rgb, "contiguous") == copied(rgb, "channels_last") == {False, True}
    assert copied(ragged, "contiguous") == copied(ragged, "channels_last") == {False}
    groups = case("groups", 2, 64, 8, 28, 32, 3, 2, 1, 1, g=2)
    assert copied(groups, "contiguous") == {False, True}
    assert copied(groups, "channels_last") == {False}  # a group's channels lie apart
    same = case("same", 2, 3, 16, 16, 64, 3, 1, 1)
    assert copied(same, "contiguous", "grad_input") == copied(same, "channels_last", "grad_input") == {False, True}
    wide = case("wide", 1, 64, 2, 1 << 28, 5, (3, 4), (1, 2), 1)  # a row of pixels has more elements than 32 bits count
    assert copied(wide, "channels_last") == {False}


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_col2im_that_hopper_serves(dtype: str, layout: str) -> None:
    """Taps of all channels of a pass that fit operand B, products and stages that fit shared memory."""

    def serves(one: Case, **properties: Any) -> bool:
        return _few_channels_serve(
            core.Col2imHopperPlan, "col2im", _check_col2im_hopper_plan, one, dtype, layout, **properties
        )

    for out_channels, kernel, stride, padding in (
        (3, 4, 2, 1),
        (1, 11, 4, 4),
        (12, 4, 2, 1),
        (5, 3, 1, 1),
        (2, 7, 1, 3),
    ):
        assert serves(case("served", 4, 64, 40, 64, out_channels, kernel, stride, padding))
    assert serves(case("groups", 4, 64, 24, 24, 8, 3, 2, 1, 1, g=4))
    assert serves(case("tiny", 1, 16, 2, 8, 1, 4, 2, 1))
    assert not serves(case("source", 4, 64, 40, 64, 3, 4, 2, 1), unaligned_first=True)
    assert not serves(case("taps", 4, 64, 40, 64, 1, 12, 4, 1))
    assert not serves(case("one", 4, 1, 40, 64, 3, 4, 2, 1))
    if layout == "contiguous":
        assert not serves(case("rows", 4, 64, 40, 33, 3, 4, 2, 1))
    else:
        assert not serves(case("pixels", 4, 65, 40, 33, 3, 4, 2, 1))


def test_col2im_plans_of_far_results() -> None:
    """Columns beyond the result whose place is no 32-bit integer, and of more segments than a counter has."""
    one = case("far", 1, 16, 1, 1, 3, (1, 3), 1, (0, 300_000_000), 0, (1, 300_000_000))
    assert "col2im family: refused, a stride this long" in core.explain(problem_of(one, "forward"), kernels="col2im")
    one = case("many", 2**31 - 8, 2, 1, 1, 1, 1, 1, 0)
    assert not isinstance(core.make_plan(problem_of(one, "forward"), kernels="col2im").tile, core.Col2imConvPlan)


def test_col2im_plans_of_tall_images_are_quick() -> None:
    problem = problem_of(case("tall", 1, 64, 1_000_000, 100, 3, 4, 2, 1), "forward")
    start = time.perf_counter()
    plan = core.make_plan(problem, kernels="col2im")
    assert time.perf_counter() - start < 0.1
    assert isinstance(plan.tile, core.Col2imConvPlan)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("capability", "shared"), [(80, 166912), (86, 101376), (120, 101376)])
def test_tensor_cores_without_hopper(capability: int, shared: int, direction: str) -> None:
    """On other GPUs dense layers in float16 go to tensor cores, within the shared memory that a block may have."""
    device = core.Device()
    device.capability, device.shared_bytes_per_block, device.has_wgmma = capability, shared, False
    dense = [one for one in FULL if min(one["ci"], one["co"]) // one["g"] >= 64 and one["h"] > 1]
    assert len(dense) > 20
    for one in dense:
        tile = core.make_plan(problem_of(one, direction, "float16", "channels_last"), device).tile
        assert isinstance(tile, (core.MmaConvPlan, core.MmaWeightPlan, core.NarrowConvPlan)), one["name"]
        assert tile.shared_bytes <= shared
    device.has_mma = False
    assert isinstance(core.make_plan(problem_of(dense[0], direction), device).tile, FAMILIES["simt"])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_depthwise_rows_need_asynchronous_copies(layout: str, direction: str) -> None:
    """Earlier GPUs than those of compute capability 8.0 have the family's other kernels."""
    one = next(one for one in ZOO if one["name"] == "dw_k3s1_256")
    problem = problem_of(one, direction, "float16", "contiguous" if layout == "nchw" else layout)
    device = core.Device()
    assert isinstance(core.make_plan(problem, device).tile, core.DepthwiseRowsPlan)
    device.capability, device.has_wgmma, device.has_mma = 75, False, False
    tile = core.make_plan(problem, device).tile
    assert isinstance(tile, FAMILIES["depthwise"])
    assert not isinstance(tile, core.DepthwiseRowsPlan)


@pytest.mark.parametrize(
    ("name", "direction", "raw_row_bytes"), [("unet_up1", "grad_input", 64), ("kb2_42", "forward", 32)]
)
def test_raw_boxes_are_wide_where_items_wait_for_them(name: str, direction: str, raw_row_bytes: int) -> None:
    """Where few taps read a halo, the warps that transpose it are waited for; where many do, the products."""
    one = next(one for one in (*KERNELBENCH, *ZOO) if one["name"] == name)
    problem = problem_of(one, direction)
    problem.allow_tf32 = True
    plan = core.make_plan(problem, core.Device()).tile
    assert plan.source == core.HopperSource.TRANSPOSED
    assert plan.raw_row_bytes == raw_row_bytes


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("direction", "channels"), [("grad_input", (3, 64)), ("grad_input", (64, 12)), ("forward", (12, 64))]
)
def test_few_channels_on_one_side(direction: str, channels: tuple[int, int], dtype: str) -> None:
    """The Hopper family takes them although its tiles stay mostly empty; no box without channels is brought."""
    one = case("layer", 16, channels[0], 64, 64, channels[1], 4, 2, 1)
    problem = problem_of(one, direction, dtype)
    problem.allow_tf32 = True
    plan = core.make_plan(problem, core.Device(), "igemm_sm90,wgrad_sm90").tile
    assert isinstance(plan, core.HopperConvPlan)
    source_bytes = (channels[0] if direction == "forward" else channels[1]) * (4 if dtype == "float32" else 2)
    if plan.source == core.HopperSource.TRANSPOSED and plan.chunks == 1:
        assert plan.raw_boxes == -(-source_bytes // plan.raw_row_bytes)


@pytest.mark.parametrize(
    ("direction", "dtype", "layout", "channels", "groups", "weights"),
    [
        ("forward", "bfloat16", "channels_last", (256, 128), 1, "MAJOR_M"),
        ("forward", "float16", "channels_last", (120, 72), 1, "MAJOR_M"),
        ("forward", "bfloat16", "channels_last", (256, 128), 2, "MAJOR_M"),
        ("forward", "bfloat16", "channels_last", (240, 128), 2, "PACKED"),  # a chunk would reach into the next group
        ("forward", "bfloat16", "channels_last", (256, 132), 1, "PACKED"),  # taps begin off 16 bytes
        ("forward", "bfloat16", "contiguous", (256, 128), 1, "PACKED"),
        ("forward", "float32", "channels_last", (256, 128), 1, "PACKED"),
        ("grad_input", "bfloat16", "channels_last", (256, 128), 1, "MAJOR_K"),
        ("grad_input", "bfloat16", "contiguous", (256, 128), 1, "PACKED"),
    ],
)
def test_how_weights_come(
    direction: str, dtype: str, layout: str, channels: tuple[int, int], groups: int, weights: str
) -> None:
    """TMA takes them from where they lie if whole boxes of them do."""
    one = case("layer", 16, channels[0], 20, 20, channels[1], 4, 2, 1, g=groups)
    problem = problem_of(one, direction, dtype, layout)
    problem.allow_tf32 = True
    assert core.make_plan(problem, core.Device()).tile.weights == getattr(core.HopperWeights, weights)


def test_cases_reach_every_tile() -> None:
    """What the numerical tests' cases reach without tensor cores: every width of unit, number of
    channel warps, and weight tile."""
    tiles: dict[str, list[Any]] = {}
    for direction in DIRECTIONS:
        plans = [core.make_plan(problem_of(one, direction), kernels="simt,depthwise").tile for one in CASES]
        tiles[direction] = [plan for plan in plans if not isinstance(plan, DEPTHWISE_PLANS)]
        assert len(tiles[direction]) < len(plans)
    for direction in ("forward", "grad_input"):
        reached = {(plan.lane_columns, plan.warps_m) for plan in tiles[direction]}
        assert reached == set(itertools.product((8, 16, 32), (1, 2, 4, 8)))
    assert {plan.tile for plan in tiles["grad_weight"]} == set(range(5))
    assert {plan.splits > 1 for plan in tiles["grad_weight"]} == {False, True}
    assert {plan.shared_span for plan in tiles["grad_weight"]} == {False, True}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_plan_of_a_stride_far_beyond_the_image(direction: str) -> None:
    """Torch takes any stride; the phases without pixels must not count as work."""
    one = {**CASES[0], "n": 1, "ci": 1, "co": 1, "g": 1, "h": 1, "w": 1, "k": (3, 3), "s": (70000, 70000)}
    one = {**one, "p": (0, 0), "op": (0, 0), "d": (1, 1)}
    plan = core.make_plan(problem_of(one, direction))
    assert getattr(plan.tile, "inner", plan).tile.blocks < 2**31


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
FAMILIES = {
    "simt": (core.GatherConvPlan, core.GatherWeightPlan),
    "depthwise": DEPTHWISE_PLANS,
    "igemm_sm90": (core.HopperConvPlan, core.HopperStridedPlan, core.HopperFoldedPlan, core.HopperPicturesPlan),
    "wgrad_sm90": (core.HopperWeightLinesPlan, core.HopperWeightTensorPlan, core.HopperWeightTurnedPlan),
    "igemm_sm80": (core.MmaConvPlan, core.MmaWeightPlan),
    "small_channel": (core.NarrowConvPlan,),
    "col2im": (core.Col2imConvPlan, core.Col2imHopperPlan),
    "sub_pixel": (core.SubpixelPlan,),
    "group_merge": (core.MergedPlan,),
}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kernels", ["", *FAMILIES, "depthwise,simt", "simt,depthwise"])
def test_allowed_families(kernels: str, direction: str) -> None:
    """The cheapest of the allowed families that takes the problem, else simt; explain says which of the two."""
    is_weight = direction == "grad_weight"
    dense = "wgrad_sm90" if is_weight else "igemm_sm90"
    takes_dense = ("", dense, "igemm_sm80")
    takes_depthwise = (
        "sub_pixel",
        "group_merge" if is_weight else "igemm_sm90",
    )  # others' blocks, several groups as one
    for one in (DEPTHWISE, KERNELBENCH[0]):
        problem = problem_of(one, direction)
        if one is DEPTHWISE:
            family = (
                kernels
                if kernels in takes_depthwise
                else "depthwise"
                if "depthwise" in (kernels or "depthwise")
                else ""
            )
        else:
            family = (kernels or dense) if kernels in takes_dense else ""
        plan = core.make_plan(problem, kernels=kernels)
        assert isinstance(plan.tile, FAMILIES[family or "simt"])
        text = core.explain(problem, kernels=kernels)
        assert f"plan: {family or 'simt'} family" in text
        assert ("kernels: DECONV_KERNELS is " + kernels.replace(",", ", ") in text) == bool(kernels)
        assert ("refused, so simt serves" in text) == (not family and "simt" not in kernels)


def test_only_an_allowed_family_is_considered() -> None:
    considered = {
        kernels: core.explain(problem_of(DEPTHWISE, "forward"), kernels=kernels).split("considered:\n")[1]
        for kernels in FAMILIES
    }
    assert considered["depthwise"].startswith("    depthwise family")
    assert considered["depthwise"].count("\n") == considered["depthwise"].count("    depthwise family, ")
    assert "depthwise" not in considered["simt"]


# What a plan's description says where it uses a part; of raw boxes the source, behind it.
USES = {
    "depthwise": "depthwise family",
    "depthwise.row_stream": "depthwise family, down",
    "igemm_sm90": "igemm_sm90 family",
    "igemm_sm90.1tap": "igemm_sm90 family, .* of planes as they lie",
    "igemm_sm90.stride2": "strided planes as they lie",
    "igemm_sm90.all_phases": "igemm_sm90 family, all phases",
    "igemm_sm90.whole_images": "products folded",
    "igemm_sm90.ping_pong": "warpgroups in turns",
    "igemm_sm90.cluster_split": "sums of . blocks",
    "igemm_sm90.tma_store": "groups of .*results copied",
    "igemm_sm90.merged_groups": "groups merged",
    "igemm_sm90.repack": "igemm_sm90 family, .*source repacked",
    "igemm_sm90.source_phases_together": "planes together",
    "igemm_sm90.im2col": "igemm_sm90 family, .*, im2col",
    "igemm_sm90.flat_lines": "flat lines",
    "igemm_sm90.folded_columns": "2x[0-9]+ pixels, groups of",
    "igemm_sm90.whole_sectors": "whole sectors|rows of all phases",
    "igemm_sm90.two_phases": "igemm_sm90 family, .*, 2 phases. in",
    "igemm_sm90.image_groups": "groups of images",
    "igemm_sm90.raw_boxes": "TRANSPOSED",
    "igemm_sm90.wide_tiles": r"igemm_sm90 family, 128 channels x \(",
    "igemm_sm90.odd_tiles": "(96|144|160|192|208|224) pixels, groups of",
    "igemm_sm90.weights_in_place": "weights in place",
    "wgrad_sm90": "wgrad_sm90 family",
    "wgrad_sm90.ss": "wgrad_sm90 family, . warpgroups of [0-9]+ input x",
    "wgrad_sm90.rs_nhwc": "wgrad_sm90 family, . warpgroups of [0-9]+ taps x [0-9]+ output x",
    "wgrad_sm90.rs_nchw": "wgrad_sm90 family, .* lines of",
    "igemm_sm80": "igemm_sm80 family",
    "small_channel": "small_channel family",
    "col2im": "col2im family",
    "col2im.sm80": "col2im family, .* depths",
    "col2im.sm90": "col2im family, .* tensor copies",
    "sub_pixel": "sub_pixel family",
    "group_merge": "group_merge family",
}
SWITCHED_LAYERS = (
    "kb1_57", "kb1_69", "kb1_71", "kb1_75", "kb2_02", "kb2_05", "kb2_11", "kb2_36", "unet_up4", "dcgan1", "dcgan2",
    "dcgan5_rgb", "fcn8s_dw", "dw_k4s2_512", "pix2pix_last", "r_dexined_k16",
)  # fmt: skip


def _used(problem: Any, dtype: Any, kernels: str = "") -> str:
    plan = core.make_plan(problem, kernels=kernels)
    inner = plan.tile
    while isinstance(inner, (core.SubpixelPlan, core.MergedPlan)):
        inner = inner.inner.tile
    return f"{plan.describe(dtype)} {getattr(inner, 'source', '')}"


@pytest.fixture(scope="module")
def switched_problems() -> list[tuple[Any, Any, str]]:
    """Problems whose plans use every part, each with its dtype and what its plan uses."""
    problems = []
    layers = [one for one in ALL_CASES if one["name"] in SWITCHED_LAYERS]
    for one, direction, mode, layout in itertools.product(
        layers, DIRECTIONS, ("bfloat16", "tf32", "float32"), ("contiguous", "channels_last")
    ):
        name = mode.replace("tf32", "float32")
        problem, dtype = problem_of(one, direction, name, layout), getattr(core.DType, name)
        problem.allow_tf32 = mode == "tf32"
        problems.append((problem, dtype, _used(problem, dtype)))
    return problems


@pytest.mark.parametrize("off", USES)
def test_what_is_switched_off_is_not_planned(switched_problems: list[tuple[Any, Any, str]], off: str) -> None:
    assert any(re.search(USES[off], plan) for *_, plan in switched_problems)
    for problem, dtype, _ in switched_problems:
        assert not re.search(USES[off], _used(problem, dtype, f"-{off}")), problem.describe()
    assert f"kernels: DECONV_KERNELS is -{off}\n" in core.explain(problem, kernels=f"-{off}")


def test_every_switch_is_tested() -> None:
    with pytest.raises(core.InvalidArgument) as error:
        core.make_plan(problem_of(DEPTHWISE, "forward"), kernels="-")
    names = str(error.value).split("(")[1].split(")")[0].split(", ")
    assert {"simt", *USES} == set(names)  # simt serves what all others refuse, switched off or not


@pytest.mark.parametrize("kernels", ["dense", "simt, depthwise", "Simt", ",", "-dense", "igemm_sm90.ping_pong", "-"])
def test_unknown_kernels(kernels: str) -> None:
    match = rf"DECONV_KERNELS must list .*\(depthwise, depthwise.row_stream, .*, but got '{kernels}'"
    with pytest.raises(core.InvalidArgument, match=match):
        core.make_plan(problem_of(DEPTHWISE, "forward"), kernels=kernels)


def test_kernels_are_allowed_or_switched_off() -> None:
    match = "DECONV_KERNELS must list either names to allow or names behind a minus"
    with pytest.raises(core.InvalidArgument, match=match):
        core.make_plan(problem_of(DEPTHWISE, "forward"), kernels="simt,-depthwise")


# --- explain --------------------------------------------------------------------------------------------------------


def _explained(one: Case, direction: str) -> tuple[str, list[str]]:
    """The text, and its lines on the candidates."""
    text = core.explain(problem_of(one, direction))
    return text, text.split("considered:\n")[1].splitlines()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_explain_names_the_cheapest_candidate(direction: str) -> None:
    text, candidates = _explained(KERNELBENCH[0], direction)
    assert text.startswith(problem_of(KERNELBENCH[0], direction).describe())
    plan = text.split("plan: ")[1].splitlines()[0]
    assert plan in [line.strip().replace(": about", ", about") for line in candidates]
    costs = [float(line.split("about ")[1].split()[0]) for line in candidates if "about" in line]
    assert float(plan.split("about ")[1].split()[0]) == min(costs)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_explain_lists_the_quickest_of_each_family(direction: str) -> None:
    problem = problem_of(KERNELBENCH[0], direction)
    _, lines = _explained(KERNELBENCH[0], direction)
    estimates: dict[str, list[float]] = {}
    for plan in core.candidates(problem):
        family = next(name for name, kinds in FAMILIES.items() if isinstance(plan.tile, kinds))
        estimates.setdefault(family, []).append(plan.estimate_ms)
    assert ("wgrad_sm90" if direction == "grad_weight" else "igemm_sm90") in estimates
    for family, costs in estimates.items():
        of_family = [line for line in lines if line.startswith(f"    {family} family, ") and "about " in line]
        shown = [float(line.split("about ")[1].split()[0]) for line in of_family]
        assert shown == pytest.approx(sorted(costs)[:5], rel=1e-3)
        assert len(costs) <= 5 or f"    {family} family: {len(costs) - 5} more, slower" in lines


@pytest.mark.parametrize("direction", ["forward", "grad_input"])
def test_explain_says_why_a_candidate_is_refused(direction: str) -> None:
    """2^40 pixels of one channel: tiles of many channels would need more blocks than a grid has."""
    one = {**KERNELBENCH[0], "n": 1, "ci": 1, "co": 1, "h": 1 << 20, "w": 1 << 20, "k": (1, 1)}
    _, candidates = _explained(one, direction)
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

"""Times of calls, and the roofline of the device they run on."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch

from deconv_ext.cli.operands import Operands, call_ours, call_torch

# Calls shorter than this (ms, launch included) are replayed as CUDA graphs, which leave no gaps for the launches.
_GRAPH_BELOW_MS = 0.5
_GRAPH_MIN_CALLS = 10
_MAX_INPUT_SETS = 256
_ROUND_MS = 40.0
_MIN_SAMPLES, _MAX_SAMPLES = 5, 100
_COPIED_BYTES = {"cuda": 2 << 30, "cpu": 64 << 20}
_MATMUL_SIZE = {"cuda": 8192, "cpu": 512}

Call = Callable[[], object]


class Timing(NamedTuple):
    """Median time of a call in milliseconds, and the samples' range from 10% to 90% relative to it."""

    median: float
    spread: float


class Roofline(NamedTuple):
    """What the device reached on the spot: copying, GB/s read plus written; a large matrix product, TFLOP/s."""

    copy_gbps: float
    matmul_tflops: float

    def floor_ms(self, minimal_bytes: int, flops: int) -> float:
        """The least time of a computation in milliseconds, by its bytes and its operations."""
        return max(minimal_bytes / self.copy_gbps / 1e6, flops / self.matmul_tflops / 1e9)


def input_sets(read_bytes: int, device: torch.device) -> int:
    """How many copies of inputs of this size to rotate among so that no call finds its own in the L2 cache.

    As many as fill the cache twice, from 1 to 256.
    """
    if device.type != "cuda":
        return 1
    cache: int = torch.cuda.get_device_properties(device).L2_cache_size
    return min(_MAX_INPUT_SETS, max(1, math.ceil(2 * cache / max(1, read_bytes))))


def time_operators(
    direction: str, first: Operands, make_another: Callable[[], Operands], device: torch.device
) -> dict[str, Timing]:
    """Times this package's operator, ``ours``, and ``torch``'s on the same operands.

    ``first`` is one set of operands; ``make_another`` makes as many more as it takes to rotate past the L2 cache.
    """
    read_bytes = sum(tensor.numel() * tensor.element_size() for tensor in first.read(direction))
    sets = [first, *(make_another() for _ in range(input_sets(read_bytes, device) - 1))]
    return time_interleaved(
        {
            "ours": [functools.partial(call_ours, direction, one) for one in sets],
            "torch": [functools.partial(call_torch, direction, one) for one in sets],
        },
        device,
    )


def time_interleaved(
    contestants: Mapping[str, Sequence[Call]], device: torch.device, *, graphs: bool = True, rounds: int = 2
) -> dict[str, Timing]:
    """Times each contestant in turn, ``rounds`` times over, so that a drift of the clock meets all alike.

    A contestant is its calls, one an input set; they are taken in rotation. On CUDA the times are the device's, between
    events, and short calls are replayed as CUDA graphs, unless ``graphs`` is False: for calls that cannot be captured,
    whose times then hold the gaps that the host leaves.
    """
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        units = {name: _unit(calls, device, graphs) for name, calls in contestants.items()}
        samples: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, unit in units.items():
                samples[name] += [milliseconds / unit.calls for milliseconds in _sample(unit.run, unit.samples, device)]
    return {name: _summary(values) for name, values in samples.items()}


@contextmanager
def cudnn_search() -> Iterator[None]:
    """cuDNN's benchmark mode in this block: the fastest of the algorithms it tries, not its first guess."""
    saved = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = saved


def measure_copy(device: torch.device) -> float:
    """Bytes read plus bytes written by a copy of a buffer far larger than the caches, GB/s."""
    size = _COPIED_BYTES[device.type]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = time_interleaved({"copy": [lambda: target.copy_(source)]}, device)["copy"]
    return 2 * size / timing.median / 1e6


def measure_matmul(dtype: torch.dtype, device: torch.device) -> float:
    """Rate of a large square matrix product of random elements, TFLOP/s; float32 follows torch's TF32 switch."""
    size = _MATMUL_SIZE[device.type]
    left, right = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    timing = time_interleaved({"matmul": [lambda: left @ right]}, device)["matmul"]
    return 2 * size**3 / timing.median / 1e9


class _Unit(NamedTuple):
    """What is timed at once: one call or a graph of several; and how many samples a round takes of it."""

    run: Call
    calls: int
    samples: int


def _unit(calls: Sequence[Call], device: torch.device, graphs: bool) -> _Unit:
    """Warms up, estimates the time of a call, and chooses."""
    rotation = _rotation(calls)
    estimate = max(1e-3, statistics.median(_sample(rotation, 3, device)))
    run, count = rotation, 1
    if graphs and device.type == "cuda" and estimate < _GRAPH_BELOW_MS:
        run, count = _capture(calls)
    return _Unit(run, count, min(_MAX_SAMPLES, max(_MIN_SAMPLES, round(_ROUND_MS / (estimate * count)))))


def _rotation(calls: Sequence[Call]) -> Call:
    turn = itertools.cycle(calls)
    return lambda: next(turn)()


def _capture(calls: Sequence[Call]) -> tuple[Call, int]:
    """A CUDA graph of all calls, repeated up to a useful length; its replay, and the number of calls in it."""
    graph = torch.cuda.CUDAGraph()
    count = len(calls) * math.ceil(_GRAPH_MIN_CALLS / len(calls))
    unit = _rotation(calls)
    with torch.cuda.graph(graph):
        for _ in range(count):
            unit()
    return graph.replay, count


def _sample(unit: Call, count: int, device: torch.device) -> list[float]:
    """Times of ``count`` runs of ``unit`` in milliseconds, after one that is not timed."""
    unit()
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(count):
            unit()
            marks.append(time.perf_counter())
        return [1e3 * (end - start) for start, end in itertools.pairwise(marks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        unit()
        event.record()
    torch.cuda.synchronize(device)
    return [start.elapsed_time(end) for start, end in itertools.pairwise(events)]


def _summary(samples: Sequence[float]) -> Timing:
    median = statistics.median(samples)
    deciles = statistics.quantiles(samples, n=10, method="inclusive")
    return Timing(median, (deciles[-1] - deciles[0]) / median)

"""Error measures, memory layouts, dirty memory and the text of explain, for the tests."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def relative_error(result: Tensor, reference: Tensor) -> float:
    """‖result − reference‖ / ‖reference‖ in float64; NaN where the result holds one."""
    reference = reference.double().cpu()
    difference = (result.detach().double().cpu() - reference).norm()
    norm = reference.norm()
    return float(difference / norm) if norm > 0 else float(difference)


def bound(dtype: torch.dtype, length: int) -> float:
    """The largest relative error of sums of `length` products, accumulated in float32 (float64) and rounded once."""
    root = max(length, 1) ** 0.5
    return {
        torch.float64: 3e-16 + 6e-17 * root,
        torch.float32: 2e-7 + 3e-8 * root,
        torch.float16: 1e-3,
        torch.bfloat16: 8e-3,
    }[dtype]


def assert_close(result: Tensor, reference: Tensor, length: int = 1, slack: float = 1) -> None:
    """`result` has the reference's shape and is within its dtype's bound; NaN never passes."""
    assert result.shape == reference.shape
    error = relative_error(result, reference)
    limit = slack * bound(result.dtype, length)
    assert error <= limit, f"relative error {error:.3e}, the bound is {limit:.3e}"


def assert_plan_is_the_quickest(text: str) -> None:
    """`explain`'s plan is one of those considered, and no other family's has a lower estimate."""
    plan, considered = text.split("  considered:\n")
    listed = re.findall(r"^    (\w+ family), .*: about ([\d.e+-]+) ms$", considered, re.MULTILINE)
    found = re.search(r"^  plan: (\w+ family), .*, about ([\d.e+-]+) ms$", plan, re.MULTILINE)
    assert found is not None, text
    assert found.groups() in listed, text
    assert all(float(found[2]) <= float(ms) for family, ms in listed if family != found[1]), text


def operators_called(function: Callable[[], Any]) -> set[str]:
    """Names of the operators that a profiler sees."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return {event.name for event in profile.events()}


def poison(device: str, *sizes: int) -> None:
    """Leaves NaN in memory that the next allocations of these sizes (in bytes) get, where an allocator caches."""
    blocks = [torch.full((max(size, 8) // 8 + 1,), float("nan"), dtype=torch.float64, device=device) for size in sizes]
    del blocks


def _embedded(tensor: Tensor, before: list[int], after: list[int]) -> Tensor:
    """`tensor` as the inner part of a larger contiguous tensor of NaN."""
    size = [extent + b + a for extent, b, a in zip(tensor.shape, before, after, strict=True)]
    whole = tensor.new_full(size, float("nan"))
    inner = whole[tuple(slice(b, b + extent) for extent, b in zip(tensor.shape, before, strict=True))]
    return inner.copy_(tensor)


def _offset(tensor: Tensor, memory_format: torch.memory_format) -> Tensor:
    """`tensor` one element past an aligned address."""
    stride = torch.empty(tensor.shape, memory_format=memory_format, device="meta").stride()
    buffer = tensor.new_full((tensor.numel() + 1,), float("nan"))
    return buffer.as_strided(tensor.shape, stride, 1).copy_(tensor)


def _interleaved(tensor: Tensor) -> Tensor:
    """`tensor` as every second column of rows that hold NaN between."""
    whole = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1]), float("nan"))
    whole[..., ::2] = tensor
    return whole[..., ::2]


LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "batch_inside": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "reversed_order": lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "every_second_column": _interleaved,
    "inside_larger": lambda t: _embedded(t, [1, 1, 1, 2], [0, 2, 2, 1]),
    "later_channels": lambda t: _embedded(t, [0, t.shape[1], 0, 0], [0, 0, 0, 0]),
    "later_channels_last": lambda t: _embedded(t.permute(0, 2, 3, 1), [0, 0, 0, 8], [0] * 4).permute(0, 3, 1, 2),
    "odd_channels_last": lambda t: _embedded(t.permute(0, 2, 3, 1), [0, 0, 1, 3], [0, 1, 0, 2]).permute(0, 3, 1, 2),
    "offset": lambda t: _offset(t, torch.contiguous_format),
    "offset_channels_last": lambda t: _offset(t, torch.channels_last),
}

FEW_LAYOUTS = ("contiguous", "channels_last", "transposed", "later_channels_last")


def arrange(tensor: Tensor, layout: str) -> Tensor:
    """The 4-D `tensor` with other strides: a name of LAYOUTS."""
    arranged = LAYOUTS[layout](tensor)
    assert torch.equal(arranged, tensor)
    return arranged

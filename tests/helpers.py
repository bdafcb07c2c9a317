"""Error measures, one training step, both operators, memory layouts, dirty memory."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deconv_ext
from deconv_ext.workloads import case

OPERATOR = "deconv::conv_transpose2d"


class Kind(NamedTuple):
    """Ours and torch's of one number of dimensions, and the sizes of an input and of a weight."""

    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    layer: type[nn.Module]
    torchs: type[nn.Module]
    lazy: type[nn.Module]
    torchs_lazy: type[nn.Module]
    x: tuple[int, ...]
    w: tuple[int, ...]

    def operands(self, device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Random input, weight and bias."""
        return [torch.randn(size, device=device, dtype=dtype) for size in (self.x, self.w, self.w[1:2])]


# The names as imported: tests replace those of torch.
KINDS = {
    "1d": Kind(
        deconv_ext.conv_transpose1d, F.conv_transpose1d, deconv_ext.ConvTranspose1d, nn.ConvTranspose1d,
        deconv_ext.LazyConvTranspose1d, nn.LazyConvTranspose1d, (2, 4, 5), (4, 3, 3),
    ),
    "2d": Kind(
        deconv_ext.conv_transpose2d, F.conv_transpose2d, deconv_ext.ConvTranspose2d, nn.ConvTranspose2d,
        deconv_ext.LazyConvTranspose2d, nn.LazyConvTranspose2d, (2, 4, 5, 6), (4, 3, 3, 3),
    ),
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def step(function: Callable[..., Tensor], *operands: Tensor) -> list[Tensor]:
    """The result on fresh copies of `operands`, and their gradients for a grad_output of the result's layout."""
    leaves = [one.detach().clone().requires_grad_() for one in operands]
    result = function(*leaves)
    grad_output = torch.linspace(-1, 1, result.numel()).view(result.shape)
    return [result.detach(), *torch.autograd.grad(result, leaves, torch.empty_like(result).copy_(grad_output))]


def assert_same_step(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *operands: Tensor, **tolerance: float
) -> None:
    """Equal results and gradients of two functions of the same operands."""
    torch.testing.assert_close(step(ours, *operands), step(theirs, *operands), **tolerance)


def load_script(path: Path) -> ModuleType:
    """A Python file outside of the package as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def operators_called(function: Callable[[], Any]) -> list[str]:
    """Names of the operators that a profiler sees."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function()
    return [event.name for event in profile.events()]


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


# One channel, image or pixel: sizes where both formats fit the same strides.
SHAPES = [
    case("plain", 2, 4, 5, 6, 3, 3, s=2, p=1),
    case("one_image", 1, 4, 5, 6, 3, 3),
    case("one_input_channel", 2, 1, 5, 6, 3, 3),
    case("one_output_channel", 2, 4, 5, 6, 1, 3),
    case("one_channel", 1, 1, 5, 6, 1, 3),
    case("one_pixel", 2, 4, 1, 1, 3, 3),
    case("one_pixel_to_one", 2, 4, 1, 1, 3, 1),
    case("kernel_1x1", 2, 4, 5, 6, 3, 1),
    case("one_of_all", 1, 1, 1, 1, 1, 1),
    case("one_row", 2, 4, 1, 6, 3, 3, p=(1, 0)),
    case("depthwise", 2, 4, 5, 6, 4, 3, g=4),
    case("one_group_each", 2, 4, 5, 6, 8, 1, g=4),
    case("output_padding_below_dilation", 2, 4, 5, 6, 3, 3, s=(2, 1), op=(1, 2), d=3),
]


# What explain says of a plan that uses a family or an option.
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
    "igemm_sm90.raw_boxes": "tensor copies that producer warps transpose",
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

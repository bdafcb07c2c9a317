"""Transposed convolutions as data: the benchmark's suites scaled down, and sizes that are awkward for the kernels."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

import deconv_ext
from deconv_ext import _reference
from deconv_ext.workloads import KERNELBENCH, ZOO, Case, case, output_size

CALLS = ("forward", "forward_bias", "grad_input", "grad_weight")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def shrink(big: Case) -> Case:
    """`big` with few channels, images and pixels; kernel, stride, padding, dilation and kind of grouping stay."""
    groups = min(big["g"], 3)
    depthwise = big["g"] == big["ci"] == big["co"]
    ci, co = (1, 1) if depthwise else (min(big["ci"] // big["g"], 9), min(big["co"] // big["g"], 6))
    most_h, most_w = (3, 4) if max(big["k"]) > 16 else (7, 9)
    h, w = min(big["h"], most_h), min(big["w"], most_w)
    return {**big, "n": min(big["n"], 2), "ci": groups * ci, "co": groups * co, "g": groups, "h": h, "w": w}


SUITES = [shrink(big) for big in KERNELBENCH + ZOO]

CHANNELS = (1, 3, 5, 7, 17, 33, 65)

AWKWARD = [
    case("one_element", 1, 1, 1, 1, 1, 1),
    case("one_pixel", 2, 5, 1, 1, 7, 3),
    case("one_pixel_padded", 2, 5, 1, 1, 7, 3, p=1),
    case("kernel_beyond_image", 2, 3, 2, 3, 4, (5, 7), p=(2, 3)),
    case("kernel_1x1_strided", 2, 6, 5, 4, 5, 1, s=3, op=2),
    case("stride_beyond_kernel", 2, 5, 4, 3, 3, 2, s=(5, 4), op=(4, 3)),
    case("stride_beyond_image", 1, 3, 1, 2, 4, 3, s=17, op=16),
    case("stride_dilation_factor", 2, 4, 5, 6, 5, 3, s=4, p=1, d=2, op=3),
    case("stride_dilation_factors", 1, 4, 5, 4, 3, (3, 4), s=(6, 4), p=(2, 5), d=(4, 6)),
    case("stride_dilation_coprime", 2, 4, 5, 6, 5, (3, 2), s=(2, 3), p=(1, 0), d=(3, 2)),
    case("stride_divides_dilation", 1, 4, 6, 7, 5, 3, s=2, p=3, d=4),
    case("stride_equals_dilation", 1, 4, 6, 7, 5, 3, s=3, p=2, d=3),
    case("output_padding_below_dilation", 1, 3, 4, 5, 4, 3, p=1, op=2, d=3),
    case("output_padding_beyond_stride", 1, 3, 4, 5, 4, 2, s=2, p=1, op=4, d=5),
    case("rectangular_all", 1, 6, 5, 4, 9, (3, 5), s=(2, 3), p=(1, 2), op=(1, 2), d=(3, 2), g=3),
    case("kernel_one_row", 2, 3, 9, 11, 2, (1, 7), p=(0, 3)),
    case("kernel_one_column", 2, 3, 11, 5, 2, (7, 1), s=(2, 1), p=(3, 0), op=(1, 0)),
    case("odd_sizes", 3, 33, 13, 17, 65, 3, s=2, p=1, op=1),
    *(case(f"channels_{a}_{b}", 2, a, 5, 6, b, 3, s=2, p=1) for a, b in zip(CHANNELS, CHANNELS[::-1], strict=True)),
    *(case(f"channels_{c}_s1", 1, c, 9, 8, c, 3, p=1) for c in CHANNELS),
    case("packed_channels", 2, 32, 9, 10, 64, 3, p=1),
    case("packed_channels_s2", 3, 64, 6, 7, 32, 4, s=2, p=1),
    case("deep_input", 1, 300, 4, 5, 8, 3, p=1),
    case("deep_output", 1, 8, 4, 5, 300, 3, p=1),
    case("groups_ragged", 2, 15, 5, 6, 21, 3, s=2, p=1, op=1, g=3),
    case("groups_ragged_wide", 1, 34, 6, 5, 66, 3, p=1, g=2),
    case("groups_packed", 2, 32, 6, 5, 48, 3, s=2, p=1, op=1, g=2),
    case("depthwise", 2, 10, 9, 7, 10, 4, s=2, p=1, g=10),
    case("depthwise_multiplier", 1, 6, 5, 5, 18, 3, p=1, g=6),
    case("depthwise_divisor", 1, 18, 5, 5, 6, 3, s=2, p=1, g=6),
    case("kernel_11", 1, 3, 14, 13, 4, 11, p=5),
    case("kernel_11_s2", 1, 3, 9, 8, 4, 11, s=2, p=5, op=1),
    case("kernel_16", 1, 4, 6, 6, 3, 16, s=8, p=4),
    case("kernel_16_s1", 1, 2, 17, 20, 3, 16, p=7),
    case("kernel_31", 1, 2, 10, 37, 3, 31, p=15),
    case("kernel_1x31", 1, 3, 5, 40, 4, (1, 31), p=(0, 15)),
    case("kernel_31x1", 1, 3, 40, 5, 4, (31, 1), p=(15, 0)),
    case("dilation_9", 1, 4, 13, 12, 3, 3, p=9, d=9),
    case("dilation_20", 1, 4, 25, 23, 3, 3, p=20, d=20),
    case("dilation_20x9", 1, 4, 8, 9, 3, (4, 5), p=(10, 4), d=(20, 9)),
    case("dilation_20_s3", 1, 4, 8, 9, 3, 5, s=3, p=30, d=20),
    case("dilation_9_k7", 2, 2, 7, 40, 3, (3, 7), p=(9, 27), d=9),
    case("padding_beyond_kernel", 1, 2, 9, 8, 3, 3, p=3),
    case("padding_far_beyond_kernel", 1, 2, 11, 10, 3, (1, 3), s=2, p=(6, 5)),
    case("wide_100", 1, 3, 2, 100, 5, 3, p=1),
    case("wide_131_s2", 2, 5, 3, 131, 4, 4, s=2, p=1),
    case("wide_300", 1, 3, 1, 300, 4, (1, 5), s=(1, 3), p=(0, 2)),
    case("tall_257", 1, 3, 257, 2, 5, 3, p=1),
    case("tall_140_s2", 2, 4, 140, 3, 3, 4, s=2, p=1),
    case("many_small_images", 40, 5, 3, 5, 7, 3),
    case("many_small_images_s2", 33, 6, 4, 3, 5, 3, s=2, p=1, op=1),
    case("many_pixels", 67, 17, 1, 1, 9, 2, s=2),
    case("long_sum", 4, 3, 60, 61, 5, 3, p=1),
    case("long_sum_s2", 2, 3, 64, 50, 2, 4, s=2, p=1),
    case("long_sum_row", 1, 2, 1, 5000, 3, (1, 3)),
    case("long_sum_depthwise", 3, 4, 50, 33, 4, 3, p=1, g=4),
]  # fmt: skip

# Enough blocks for an H200's planner to choose, forward and grad_input together, every tile of the simt family. One
# channel on either side would be the depthwise family's.
TILES = [
    case(f"tiles_{n}x{ci}x{h}x{w}_{co}_k{k}_s{s}", n, ci, h, w, co, k, s=s, p=1)
    for n, ci, h, w, co, k, s in (
        (150, 2, 1, 3, 2, 3, 2), (90, 2, 1, 40, 2, 4, 3), (150, 2, 1, 64, 2, 3, 1), (50, 2, 1, 100, 3, 3, 1),
        (150, 2, 17, 3, 2, 3, 2), (150, 2, 12, 12, 2, 3, 1), (16, 2, 1, 5, 2, 4, 3), (33, 2, 1, 3, 3, 3, 3),
        (150, 2, 17, 9, 2, 3, 2), (150, 2, 1, 3, 2, 3, 3), (90, 2, 1, 12, 2, 3, 3), (150, 2, 1, 100, 2, 3, 2),
        (150, 2, 100, 3, 2, 3, 3), (150, 2, 17, 40, 2, 3, 1), (150, 2, 9, 64, 2, 4, 1), (8, 16, 24, 25, 72, 3, 1),
        (9, 24, 13, 14, 40, 4, 2), (4, 40, 26, 35, 33, 3, 1), (50, 2, 40, 3, 2, 2, 2), (50, 2, 9, 7, 16, 3, 3),
        (50, 8, 9, 12, 2, 3, 3), (16, 16, 17, 40, 3, 4, 3), (150, 2, 1, 64, 8, 3, 2), (16, 24, 1, 9, 2, 2, 1),
        (50, 8, 40, 7, 40, 4, 1), (150, 8, 17, 12, 2, 2, 1), (150, 2, 17, 40, 2, 3, 1), (90, 2, 40, 40, 2, 2, 1),
    )
]  # fmt: skip

CASES = SUITES + AWKWARD + TILES
BY_NAME = {one["name"]: one for one in CASES}


def conv_args(one: Case) -> tuple[Sequence[int], Sequence[int], Sequence[int], int, Sequence[int]]:
    """(stride, padding, output_padding, groups, dilation), in the operators' order."""
    return one["s"], one["p"], one["op"], one["g"], one["d"]


@dataclass(frozen=True)
class Operands:
    """The tensors of a case: input, weight, bias and grad_output."""

    x: Tensor
    w: Tensor
    b: Tensor
    gy: Tensor

    def to(self, device: str, dtype: torch.dtype, layout: str = "contiguous") -> "Operands":
        """The same values elsewhere; `layout` is contiguous or channels_last."""
        memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
        x, w, gy = (t.to(device, dtype).contiguous(memory_format=memory_format) for t in (self.x, self.w, self.gy))
        return Operands(x, w, self.b.to(device, dtype), gy)


@cache
def operands(name: str, narrow: bool = False) -> Operands:
    """float64 operands of a case, exact in float32, and in bfloat16 and float16 if `narrow`."""
    one = BY_NAME[name]
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def make(*size: int) -> Tensor:
        values = torch.randn(size, generator=generator)
        if narrow:  # no float16 subnormals
            values = torch.where(values.abs() < 2**-10, 0.5, values).to(torch.bfloat16)
        return values.double()

    return Operands(
        x=make(one["n"], one["ci"], one["h"], one["w"]),
        w=make(one["ci"], one["co"] // one["g"], *one["k"]),
        b=make(one["co"]),
        gy=make(one["n"], one["co"], *output_size(one)),
    )


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether the values of this dtype's tests are those of bfloat16."""
    return dtype in (torch.float16, torch.bfloat16)


@cache
def reference(name: str, call: str, narrow: bool = False) -> Tensor:
    """The float64 oracle's result of a call."""
    values, one = operands(name, narrow), BY_NAME[name]
    args = conv_args(one)
    if call == "grad_input":
        return _reference.grad_input(values.gy, values.w, (one["h"], one["w"]), *args)
    if call == "grad_weight":
        return _reference.grad_weight(values.x, values.gy, one["k"], *args)
    return _reference.forward(values.x, values.w, values.b if call == "forward_bias" else None, *args)


def run(one: Case, call: str, values: Operands) -> Tensor:
    """The operator's result of a call."""
    args = conv_args(one)
    if call == "grad_input":
        return torch.ops.deconv.conv_transpose2d_grad_input(values.gy, values.w, (one["h"], one["w"]), *args)
    if call == "grad_weight":
        return torch.ops.deconv.conv_transpose2d_grad_weight(values.x, values.gy, one["k"], *args)
    return deconv_ext.conv_transpose2d(values.x, values.w, values.b if call == "forward_bias" else None, *args)


def sum_length(one: Case, call: str) -> int:
    """Products in one element of a call's result, at most."""
    taps = one["k"][0] * one["k"][1]
    if call == "grad_weight":
        return one["n"] * one["h"] * one["w"]
    return taps * one["co" if call == "grad_input" else "ci"] // one["g"]

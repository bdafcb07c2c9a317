"""A readable oracle: the three directions written as their definition says, in float64 on the CPU, no convolution call.

y[n, co, i * stride - padding + k * dilation] += x[n, ci, i] * w[ci, co, k]
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Pair = int | Sequence[int]


class _Tap(NamedTuple):
    """Where one tap meets: pixels of x and pixels of y, as slices of the same length on both axes."""

    kh: int
    kw: int
    x: tuple[slice, slice]
    y: tuple[slice, slice]


def _at(where: tuple[slice, slice]) -> tuple[Any, ...]:
    """An index on the last two dimensions."""
    return (Ellipsis, *where)


def _pair(value: Pair) -> tuple[int, int]:
    return (value[0], value[-1]) if isinstance(value, Sequence) else (value, value)


def _meeting(size: int, out_size: int, stride: int, shift: int) -> tuple[slice, slice]:
    """Pixels i of x with 0 <= i * stride + shift < out_size, and the pixels of y that they meet."""
    first = max(0, -(shift // stride))
    last = min(size, (out_size - 1 - shift) // stride + 1)
    if last <= first:
        return slice(0, 0), slice(0, 0)
    return slice(first, last), slice(first * stride + shift, (last - 1) * stride + shift + 1, stride)


def _taps(
    kernel: tuple[int, int], size: Sequence[int], out: Sequence[int], stride: Pair, padding: Pair, dilation: Pair
) -> Iterator[_Tap]:
    (sh, sw), (ph, pw), (dh, dw) = _pair(stride), _pair(padding), _pair(dilation)
    for kh in range(kernel[0]):
        for kw in range(kernel[1]):
            xh, yh = _meeting(size[0], out[0], sh, kh * dh - ph)
            xw, yw = _meeting(size[1], out[1], sw, kw * dw - pw)
            yield _Tap(kh, kw, (xh, xw), (yh, yw))


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float64)


def _grouped(channels: Tensor, groups: int) -> Tensor:
    """(n, groups * c, h, w) to (n, groups, c, h, w)."""
    return channels.unflatten(1, (groups, -1))


def forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
) -> Tensor:
    """conv_transpose2d of a 4-D `input`, float64."""
    x = _grouped(_double(input), groups)
    w = _double(weight).unflatten(0, (groups, -1))  # (groups, ci, co, kh, kw)
    axes = zip(input.shape[2:], weight.shape[2:], *map(_pair, (stride, padding, output_padding, dilation)), strict=True)
    out = [(size - 1) * s - 2 * p + d * (k - 1) + op + 1 for size, k, s, p, op, d in axes]
    y = torch.zeros(x.shape[0], groups, w.shape[2], *out, dtype=torch.float64)
    for tap in _taps((w.shape[3], w.shape[4]), input.shape[2:], out, stride, padding, dilation):
        y[_at(tap.y)] += torch.einsum("ngchw,gcd->ngdhw", x[_at(tap.x)], w[..., tap.kh, tap.kw])
    y = y.flatten(1, 2)
    return y if bias is None else y + _double(bias).reshape(-1, 1, 1)


def grad_input(
    grad_output: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
) -> Tensor:
    """Gradient by the input of size (height, width) `input_size`, float64; grad_output's size tells output_padding."""
    gy = _grouped(_double(grad_output), groups)
    w = _double(weight).unflatten(0, (groups, -1))
    gx = torch.zeros(gy.shape[0], groups, w.shape[1], *input_size, dtype=torch.float64)
    for tap in _taps((w.shape[3], w.shape[4]), input_size, grad_output.shape[2:], stride, padding, dilation):
        gx[_at(tap.x)] += torch.einsum("ngdhw,gcd->ngchw", gy[_at(tap.y)], w[..., tap.kh, tap.kw])
    return gx.flatten(1, 2)


def grad_weight(
    input: Tensor,
    grad_output: Tensor,
    kernel_size: Sequence[int],
    stride: Pair = 1,
    padding: Pair = 0,
    output_padding: Pair = 0,
    groups: int = 1,
    dilation: Pair = 1,
) -> Tensor:
    """Gradient by the weight of kernel size (height, width) `kernel_size`, float64."""
    x, gy = _grouped(_double(input), groups), _grouped(_double(grad_output), groups)
    kernel = (kernel_size[0], kernel_size[1])
    gw = torch.zeros(groups, x.shape[2], gy.shape[2], *kernel, dtype=torch.float64)
    for tap in _taps(kernel, input.shape[2:], grad_output.shape[2:], stride, padding, dilation):
        gw[..., tap.kh, tap.kw] = torch.einsum("ngchw,ngdhw->gcd", x[_at(tap.x)], gy[_at(tap.y)])
    return gw.flatten(0, 1)

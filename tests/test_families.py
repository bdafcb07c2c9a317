"""Each kernel family by itself, and what only tensor cores could get wrong: TF32, split float32, values not finite."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import poison
from torch import Tensor

import deconv_ext

pytestmark = pytest.mark.gpu

OPERATOR = torch.ops.deconv.conv_transpose2d
GRAD_WEIGHT = torch.ops.deconv.conv_transpose2d_grad_weight
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.fixture
def allow_tf32(request: pytest.FixtureRequest) -> Iterator[bool]:
    saved = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = request.param
    yield request.param
    torch.backends.cudnn.allow_tf32 = saved


strict = pytest.mark.parametrize("allow_tf32", [False], indirect=True)


def _explained(x: Tensor, weight: Tensor, **arguments: Any) -> str:
    return deconv_ext.explain(x, weight, **arguments)


def _relative_error(result: Tensor, expected: Tensor) -> float:
    return ((result.double() - expected).norm() / expected.norm()).item()


def _weight_problem(
    case: Sequence[Any], batch: int, dtype: torch.dtype, layout: torch.memory_format, device: str = "cuda"
) -> tuple[Tensor, Tensor, tuple[Any, ...], Tensor]:
    """Input, grad_output, the operator's other arguments, and the gradient in float64, of random operands.

    ``case``: input channels, output channels, groups, size, kernel, stride, padding, dilation.
    """
    ci, co, groups, size, kernel, stride, padding, dilation = case
    x = torch.randn(batch, ci, *size, device=device, dtype=dtype).to(memory_format=layout)
    weight = torch.zeros(ci, co // groups, *kernel, device=device, dtype=torch.float64)
    rest = (stride, padding, (0, 0), groups, dilation)
    shape = F.conv_transpose2d(x.double(), weight, None, *rest).shape
    grad = torch.randn(shape, device=device, dtype=dtype).to(memory_format=layout)
    expected = torch.ops.aten.convolution_backward(
        grad.double(), x.double(), weight, None, stride, padding, dilation, True, (0, 0), groups, [False, True, False]
    )[1]
    return x, grad, (kernel, *rest), expected


def _weight_plan(x: Tensor, grad: Tensor, arguments: tuple[Any, ...]) -> str:
    kernel, *rest = arguments
    return str(torch.ops.deconv.explain(x, grad, None, *rest, "grad_weight", kernel))


def _plan_line(text: str) -> str:
    return next(line for line in text.splitlines() if "plan:" in line)


def _off_16_bytes(x: Tensor) -> Tensor:
    """A copy at an address that tensor copies refuse."""
    shifted = torch.empty(x.numel() + 1, device=x.device, dtype=x.dtype)[1:].as_strided(x.shape, x.stride()).copy_(x)
    assert shifted.data_ptr() % 16 != 0
    return shifted


def _check_infinity(x: Tensor, grad: Tensor, arguments: tuple[Any, ...]) -> None:
    """Where every tap meets every pixel: an infinite pixel reaches all of its channel's results and no others."""
    x[0, 2, x.shape[2] // 2, x.shape[3] // 2] = float("inf")
    reached = GRAD_WEIGHT(x, grad, *arguments).isfinite()
    others = torch.arange(x.shape[1], device=x.device) != 2
    assert torch.equal(reached.any(dim=(1, 2, 3)), others)
    assert reached[others].all()


# Input channels, output channels, groups, size, kernel, stride: one, two and four taps that share operand A, warpgroups
# on taps and on output channels, several small images in a step, odd widths, strips with a ragged end.
WEIGHTS = [
    (64, 64, 1, (40, 130), (3, 3), (1, 1)),
    (64, 24, 1, (20, 33), (3, 5), (2, 1)),
    (40, 5, 1, (17, 48), (9, 9), (4, 4)),
    (96, 200, 2, (12, 12), (1, 1), (1, 1)),
    (128, 256, 1, (4, 4), (4, 4), (2, 2)),
    (130, 72, 1, (7, 9), (5, 2), (3, 2)),
]


@strict
@pytest.mark.usefixtures("allow_tf32")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", WEIGHTS)
def test_grad_weight_on_tensor_cores(case: tuple[Any, ...], dtype: torch.dtype, layout: torch.memory_format) -> None:
    """Against float64, and the same bits in 20 calls."""
    torch.manual_seed(2)
    x, grad, arguments, expected = _weight_problem((*case, (0, 0), (1, 1)), 6, dtype, layout)
    result = GRAD_WEIGHT(x, grad, *arguments)
    limit = {torch.float32: 1e-6, torch.float16: 8e-4, torch.bfloat16: 6e-3}[dtype]
    assert _relative_error(result, expected) < limit
    for _ in range(20):
        assert torch.equal(GRAD_WEIGHT(x, grad, *arguments), result)


# Input channels, output channels, groups, batch, size, kernel, stride, padding, dilation: taps of one plane along the
# width and along the height, a plane for each tap, one tap and tiles of output channels; ragged channels, groups that
# share a tile and groups beyond it; ragged ends of the width, the height and the batch; one pixel; splits and none;
# three warpgroups.
TENSOR_COPIES = [
    (64, 64, 1, 3, (40, 130), (3, 3), (1, 1), (1, 1), (1, 1)),
    (72, 136, 1, 2, (33, 17), (7, 3), (1, 1), (2, 0), (1, 2)),
    (64, 128, 1, 5, (24, 31), (5, 5), (1, 1), (2, 3), (3, 1)),
    (128, 64, 1, 9, (8, 8), (4, 4), (2, 2), (1, 1), (1, 1)),
    (256, 192, 1, 30, (4, 4), (4, 4), (2, 2), (1, 1), (1, 1)),
    (200, 72, 1, 7, (13, 11), (3, 3), (2, 2), (1, 1), (1, 1)),
    (128, 256, 1, 20, (14, 14), (2, 2), (2, 2), (0, 0), (1, 1)),
    (40, 24, 1, 2, (19, 23), (4, 4), (4, 4), (0, 0), (1, 1)),
    (32, 64, 1, 4, (21, 30), (3, 3), (5, 5), (1, 1), (2, 2)),
    (64, 320, 1, 2, (50, 30), (1, 1), (1, 1), (0, 0), (1, 1)),
    (64, 64, 1, 2, (30, 20), (3, 2), (3, 2), (4, 1), (2, 3)),
    (128, 512, 1, 100, (1, 1), (4, 4), (1, 1), (0, 0), (1, 1)),
    (128, 128, 8, 5, (20, 20), (3, 3), (2, 2), (1, 1), (1, 1)),
    (72, 120, 3, 5, (20, 28), (3, 5), (1, 2), (1, 1), (1, 1)),
    (32, 64, 4, 3, (40, 64), (3, 5), (2, 3), (1, 2), (2, 1)),
    (64, 64, 1, 16, (130, 128), (3, 3), (1, 1), (1, 1), (1, 1)),
    (384, 256, 1, 16, (30, 30), (4, 4), (2, 2), (1, 1), (1, 1)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", TENSOR_COPIES)
def test_grad_weight_by_tensor_copies(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Against float64, the same bits in 20 calls, any layout of the result, and a pointer that TMA refuses."""
    torch.manual_seed(3)
    x, grad, arguments, expected = _weight_problem(case[:3] + case[4:], case[3], dtype, torch.channels_last)
    text = _weight_plan(x, grad, arguments)
    assert "x 64 columns" in _plan_line(text), text
    result = GRAD_WEIGHT(x, grad, *arguments)
    limit = 8e-4 if dtype == torch.float16 else 6e-3
    assert _relative_error(result, expected) < limit
    for _ in range(20):
        assert torch.equal(GRAD_WEIGHT(x, grad, *arguments), result)
    assert _relative_error(GRAD_WEIGHT(_off_16_bytes(x), grad, *arguments), expected) < limit


# The same for float32, where some warps turn the input around: taps of one plane and a plane for each, few output
# channels whose taps share operand A, warpgroups on taps and on output channels, all widths of wgmma's N; ragged
# channels, groups, ragged ends of every axis, one pixel, a stride beyond the kernel.
TURNED_COPIES = [
    (64, 64, 1, 3, (40, 130), (3, 3), (1, 1), (1, 1), (1, 1)),
    (72, 136, 1, 2, (33, 17), (7, 3), (1, 1), (2, 0), (1, 2)),
    (128, 64, 1, 9, (8, 8), (4, 4), (2, 2), (1, 1), (1, 1)),
    (256, 192, 1, 30, (4, 4), (4, 4), (2, 2), (1, 1), (1, 1)),
    (200, 72, 1, 7, (13, 11), (3, 3), (2, 2), (1, 1), (1, 1)),
    (256, 256, 1, 20, (14, 14), (2, 2), (2, 2), (0, 0), (1, 1)),
    (384, 192, 1, 12, (14, 14), (2, 2), (2, 2), (0, 0), (1, 1)),
    (64, 24, 1, 2, (39, 43), (4, 4), (4, 4), (0, 0), (1, 1)),
    (64, 16, 1, 20, (41, 40), (5, 5), (2, 2), (1, 1), (1, 1)),
    (32, 64, 1, 4, (21, 30), (3, 3), (5, 5), (1, 1), (2, 2)),
    (128, 512, 1, 100, (1, 1), (4, 4), (1, 1), (0, 0), (1, 1)),
    (256, 128, 2, 5, (20, 20), (3, 3), (2, 2), (1, 1), (1, 1)),
    (128, 128, 1, 16, (130, 128), (3, 3), (1, 1), (1, 1), (1, 1)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("allow_tf32", [False, True], indirect=True)
@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("case", TURNED_COPIES)
def test_grad_weight_of_float32_by_tensor_copies(case: tuple[Any, ...], rewritten: bool, allow_tf32: bool) -> None:
    """Against float64, the same bits in 20 calls, a pointer that TMA refuses, infinities; contiguous operands too,
    which are rewritten first where that pays."""
    layout = torch.contiguous_format if rewritten else torch.channels_last
    torch.manual_seed(7)
    x, grad, arguments, expected = _weight_problem(case[:3] + case[4:], case[3], torch.float32, layout)
    text = _weight_plan(x, grad, arguments)
    if not rewritten:
        assert " pixels (" in _plan_line(text), text
    limit = 6e-4 if allow_tf32 else 1e-6
    result = GRAD_WEIGHT(x, grad, *arguments)
    assert _relative_error(result, expected) < limit, text
    for _ in range(20):
        assert torch.equal(GRAD_WEIGHT(x, grad, *arguments), result)
    assert _relative_error(GRAD_WEIGHT(_off_16_bytes(x), grad, *arguments), expected) < limit
    if case[7] == (0, 0) and case[2] == 1:
        _check_infinity(x, grad, arguments)


# Input channels, output channels, groups, batch, size, kernel, stride, padding, dilation, whether 16 bits and whether
# strict float32 are planned so, as TF32 is: rows of the kernel that share an instruction, in planes of the stride;
# widths at which rows and channels begin in one and in all ways; one and two rows of pixels a tile, ragged ends of all
# axes; taps that share operand A, idle taps and rows of the kernel; tiles of output channels side by side; groups;
# kernels of one row and of one column.
LINES = [
    (64, 64, 1, 3, (140, 256), (3, 3), (1, 1), (0, 0), (1, 1), True, True),
    (64, 64, 1, 12, (65, 128), (4, 4), (2, 2), (1, 1), (1, 1), True, True),
    (64, 64, 1, 16, (65, 128), (3, 4), (2, 2), (1, 0), (1, 1), True, True),
    (64, 64, 1, 16, (65, 128), (3, 3), (2, 2), (1, 1), (1, 1), True, True),
    (64, 48, 1, 8, (40, 160), (3, 7), (1, 1), (2, 3), (1, 1), False, True),
    (32, 32, 1, 8, (60, 96), (3, 5), (1, 1), (1, 0), (2, 3), True, True),
    (32, 32, 1, 8, (60, 104), (3, 3), (1, 1), (1, 0), (1, 1), True, True),
    (128, 72, 1, 16, (50, 64), (3, 3), (2, 2), (1, 1), (1, 1), True, True),
    (64, 136, 1, 16, (33, 32), (5, 3), (1, 1), (1, 1), (1, 1), False, False),
    (256, 128, 1, 8, (64, 64), (2, 2), (2, 2), (0, 0), (1, 1), True, True),
    (72, 128, 2, 8, (48, 64), (3, 3), (3, 2), (1, 1), (1, 1), True, True),
    (64, 64, 1, 40, (30, 16), (4, 4), (2, 2), (1, 1), (1, 1), False, True),
    (64, 32, 1, 40, (61, 32), (3, 2), (1, 2), (1, 1), (1, 1), True, False),
    (24, 64, 1, 32, (60, 64), (1, 9), (1, 1), (0, 4), (1, 1), True, False),
    (64, 64, 1, 16, (60, 72), (7, 1), (2, 1), (3, 0), (2, 1), True, False),
    (64, 128, 1, 8, (60, 264), (3, 3), (1, 1), (0, 0), (1, 1), True, False),
    (32, 64, 4, 16, (64, 128), (3, 5), (2, 3), (1, 2), (2, 1), True, True),
    (64, 32, 1, 16, (64, 128), (3, 3), (2, 2), (1, 1), (1, 1), True, True),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(
    ("dtype", "allow_tf32"),
    [(torch.float32, False), (torch.float32, True), (torch.float16, True), (torch.bfloat16, True)],
    indirect=["allow_tf32"],
)
@pytest.mark.parametrize("case", LINES)
def test_grad_weight_by_lines(case: tuple[Any, ...], dtype: torch.dtype, allow_tf32: bool) -> None:
    """Against float64, the same bits in 20 calls; slices of larger tensors, a pointer that TMA refuses, infinities."""
    torch.manual_seed(8)
    x, grad, arguments, expected = _weight_problem(case[:3] + case[4:9], case[3], dtype, torch.contiguous_format)
    text = _weight_plan(x, grad, arguments)
    if case[9] if dtype != torch.float32 else allow_tf32 or case[10]:
        assert "lines of" in _plan_line(text), text
    limit = {torch.float32: 6e-4 if allow_tf32 else 1e-6, torch.float16: 8e-4, torch.bfloat16: 6e-3}[dtype]
    result = GRAD_WEIGHT(x, grad, *arguments)
    assert _relative_error(result, expected) < limit, text
    for _ in range(20):
        assert torch.equal(GRAD_WEIGHT(x, grad, *arguments), result)
    # What lies between rows and channels, and behind the last, is not to be read into the sums.
    wide_x = F.pad(x, (8, 8), value=float("nan"))[..., 8:-8]
    wide_grad = F.pad(grad, (8, 8), value=float("nan"))[..., 8:-8]
    tall_grad = F.pad(grad, (0, 0, 8, 2), value=float("nan"))[:, :, 8:-2]
    for operands in (
        (wide_x, grad),
        (x, wide_grad),
        (x, tall_grad),
        (_off_16_bytes(x), grad),
        (x, _off_16_bytes(grad)),
    ):
        assert _relative_error(GRAD_WEIGHT(*operands, *arguments), expected) < limit
    if case[2] == 1:
        _check_infinity(x, grad, arguments)


# Input channels, output channels, groups, batch, size, kernel, stride, padding: layers whose operands are rewritten
# first, for they are contiguous, or their channels are no multiple of 16 bytes.
REWRITTEN = [
    (256, 128, 1, 32, (8, 8), (4, 4), (2, 2), (1, 1)),
    (100, 512, 1, 64, (1, 1), (4, 4), (1, 1), (0, 0)),
    (64, 3, 1, 16, (32, 32), (4, 4), (2, 2), (1, 1)),
    (21, 21, 1, 4, (16, 16), (16, 16), (8, 8), (4, 4)),
    (96, 80, 1, 5, (31, 17), (3, 5), (2, 1), (1, 2)),
    (128, 192, 2, 3, (20, 23), (3, 3), (1, 1), (1, 1)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("case", REWRITTEN)
def test_grad_weight_of_rewritten_operands(case: tuple[Any, ...], memory_format: torch.memory_format) -> None:
    """Against float64, the same bits again, also of operands that are slices of larger tensors."""
    torch.manual_seed(4)
    of_case = (*case[:3], *case[4:], (1, 1))
    x, grad, arguments, expected = _weight_problem(of_case, case[3], torch.bfloat16, memory_format)
    result = GRAD_WEIGHT(x, grad, *arguments)
    assert _relative_error(result, expected) < 6e-3
    assert torch.equal(GRAD_WEIGHT(x, grad, *arguments), result)
    wide = F.pad(grad, (1, 2))[..., 1:-2]
    assert _relative_error(GRAD_WEIGHT(x, wide, *arguments), expected) < 6e-3


# Input channels, output channels, batch, size, kernel, stride, padding, dilation: few output channels, whose taps count
# as channels. Rows of less than a sector, of several chunks and of the most elements, pixels that fill no block,
# strides that differ, taps that no pixel has, one pixel, slices of the images. Not all are planned so in every mode.
IM2COL = [
    (64, 3, 16, (32, 32), (4, 4), (2, 2), (1, 1), (1, 1)),
    (128, 1, 4, (60, 70), (9, 9), (4, 4), (4, 4), (1, 1)),
    (40, 2, 40, (17, 13), (3, 5), (1, 2), (2, 0), (2, 1)),
    (200, 5, 9, (33, 40), (5, 3), (3, 2), (0, 3), (1, 1)),
    (64, 8, 30, (14, 13), (8, 8), (2, 2), (3, 3), (1, 1)),
    (72, 7, 64, (9, 9), (1, 13), (1, 2), (0, 6), (1, 1)),
    (64, 2, 20, (9, 40), (3, 3), (1, 1), (30, 1), (30, 1)),
    (64, 3, 256, (1, 1), (4, 4), (1, 1), (0, 0), (1, 1)),
    (56, 1, 12, (270, 480), (9, 9), (4, 4), (4, 4), (1, 1)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(
    ("dtype", "allow_tf32"),
    [(torch.float32, False), (torch.float32, True), (torch.float16, True), (torch.bfloat16, True)],
    indirect=["allow_tf32"],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("case", IM2COL)
def test_grad_weight_by_im2col(
    case: tuple[Any, ...], layout: torch.memory_format, dtype: torch.dtype, allow_tf32: bool
) -> None:
    """Against float64, the same bits in 20 calls; operands of mixed layouts, slices, a pointer that TMA refuses."""
    torch.manual_seed(9)
    x, grad, arguments, expected = _weight_problem((*case[:2], 1, *case[3:]), case[2], dtype, layout)
    text = _weight_plan(x, grad, arguments)
    if case in (IM2COL[0], IM2COL[1], IM2COL[-1]) and layout == torch.channels_last:
        assert "all taps of grad_output as output channels" in _plan_line(text), text
        assert case is not IM2COL[-1] or f"{case[2]} images at a time" not in text, text
    limit = {torch.float32: 6e-4 if allow_tf32 else 1e-6, torch.float16: 8e-4, torch.bfloat16: 6e-3}[dtype]
    result = GRAD_WEIGHT(x, grad, *arguments)
    assert _relative_error(result, expected) < limit, text
    for _ in range(20):
        assert torch.equal(GRAD_WEIGHT(x, grad, *arguments), result)
    wide = F.pad(grad, (1, 2), value=float("nan"))[..., 1:-2]
    for operands in ((x.contiguous(), grad), (x, grad.contiguous()), (x, wide), (_off_16_bytes(x), grad)):
        assert _relative_error(GRAD_WEIGHT(*operands, *arguments), expected) < limit


# Input channels, output channels, groups, batch, size, kernel, stride, padding, dilation. Groups whose channels TMA
# loads only after a repack, small widths and one pixel, ragged channels, large strides and dilations.
RAGGED_GROUPS = [
    (512, 510, 2, 64, (7, 5), (4, 4), (2, 2), (1, 1), (1, 1)),
    (260, 150, 2, 64, (17, 19), (5, 2), (3, 2), (0, 0), (1, 1)),
    (1024, 1022, 2, 256, (1, 2), (4, 4), (1, 1), (0, 0), (1, 1)),
    (192, 382, 2, 301, (5, 3), (3, 3), (1, 1), (1, 1), (1, 1)),
    (512, 254, 2, 64, (9, 9), (5, 5), (2, 2), (2, 2), (1, 1)),
    (640, 398, 2, 16, (21, 30), (3, 3), (5, 5), (1, 1), (2, 2)),
    (512, 510, 2, 8, (5, 203), (7, 3), (1, 1), (3, 1), (1, 1)),
    (520, 330, 2, 64, (7, 5), (4, 4), (2, 2), (1, 1), (1, 1)),
    (80, 40, 5, 16, (64, 70), (3, 3), (1, 1), (1, 1), (1, 1)),
    (138, 274, 2, 12, (65, 37), (7, 3), (1, 1), (2, 0), (1, 2)),
    (768, 510, 2, 64, (16, 14), (2, 2), (2, 2), (0, 0), (1, 1)),
    (402, 402, 2, 16, (31, 43), (3, 3), (4, 4), (1, 1), (1, 1)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("allow_tf32", [False, True], indirect=True)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("case", RAGGED_GROUPS)
def test_grad_weight_of_ragged_groups(case: tuple[Any, ...], layout: torch.memory_format, allow_tf32: bool) -> None:
    """Against float64, the same bits in 20 calls, odd addresses and strides of a slice, infinities."""
    torch.manual_seed(6)
    x, grad, arguments, expected = _weight_problem(case[:3] + case[4:9], case[3], torch.float32, layout)
    text = _weight_plan(x, grad, arguments)
    limit = 6e-4 if allow_tf32 else 1e-6
    result = GRAD_WEIGHT(x, grad, *arguments)
    assert _relative_error(result, expected) < limit, text
    for _ in range(20):
        assert torch.equal(GRAD_WEIGHT(x, grad, *arguments), result)
    wide = F.pad(grad, (1, 2))[..., 1:-2]
    assert _relative_error(GRAD_WEIGHT(_off_16_bytes(x), wide, *arguments), expected) < limit
    if case[7] == (0, 0):
        _check_infinity(x, grad, arguments)


MMA_WEIGHTS = """
import torch, torch.nn.functional as F, deconv_ext
torch.manual_seed(5)
# Input channels, output channels, groups, batch, size, kernel, stride, padding, dilation: one, some and all taps of a
# block, planes of the stride together and apart, few and ragged channels, tiles of one row, of columns, of several
# images, groups beyond a tile, one pixel, splits and none.
for ci, co, g, n, size, k, s, p, d in [
    (64, 64, 1, 3, (40, 130), (3, 3), (1, 1), (1, 1), (1, 1)),
    (64, 24, 1, 6, (20, 33), (3, 5), (2, 1), (0, 0), (1, 1)),
    (40, 5, 1, 6, (17, 48), (9, 9), (4, 4), (0, 0), (1, 1)),
    (96, 200, 2, 6, (12, 12), (1, 1), (1, 1), (0, 0), (1, 1)),
    (128, 256, 1, 6, (4, 4), (4, 4), (2, 2), (1, 1), (1, 1)),
    (130, 72, 1, 6, (7, 9), (5, 2), (3, 2), (0, 0), (1, 1)),
    (72, 136, 1, 2, (33, 17), (7, 3), (1, 1), (2, 0), (1, 2)),
    (32, 64, 1, 4, (21, 30), (3, 3), (5, 5), (1, 1), (2, 2)),
    (21, 21, 1, 4, (16, 16), (16, 16), (8, 8), (4, 4), (1, 1)),
    (64, 3, 1, 16, (32, 32), (4, 4), (2, 2), (1, 1), (1, 1)),
    (128, 512, 1, 100, (1, 1), (4, 4), (1, 1), (0, 0), (1, 1)),
    (72, 120, 3, 5, (20, 28), (3, 5), (1, 2), (1, 1), (1, 1)),
    (64, 64, 1, 2, (30, 20), (3, 2), (3, 2), (4, 1), (2, 3)),
    (8, 16, 1, 40, (64, 64), (3, 3), (1, 1), (1, 1), (1, 1)),
]:
    for kind, most in (("strict", 1e-6), ("tf32", 6e-4), ("float16", 8e-4), ("bfloat16", 6e-3)):
        torch.backends.cudnn.allow_tf32 = kind == "tf32"
        dtype = getattr(torch, kind, torch.float32)
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(n, ci, *size, device="cuda", dtype=dtype).to(memory_format=layout)
            weight = torch.zeros(ci, co // g, *k, device="cuda", dtype=torch.float64)
            rest = (s, p, (0, 0), g, d)
            shape = F.conv_transpose2d(x.double(), weight, None, *rest).shape
            grad = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=layout)
            text = torch.ops.deconv.explain(x, grad, None, *rest, "grad_weight", k)
            assert "plan: igemm_sm80" in text, text
            expected = torch.ops.aten.convolution_backward(
                grad.double(), x.double(), weight, None, s, p, d, True, (0, 0), g, [False, True, False])[1]
            run = lambda x, grad: torch.ops.deconv.conv_transpose2d_grad_weight(x, grad, k, *rest)
            error = lambda result: ((result.double() - expected).norm() / expected.norm()).item()
            result = run(x, grad)
            assert error(result) < most, (error(result), kind, text)
            assert all(torch.equal(run(x, grad), result) for _ in range(5)), text
            # Bases that no wide load takes, and strides of a slice.
            shifted = torch.empty(x.numel() + 1, device="cuda", dtype=dtype)[1:].as_strided(x.shape, x.stride())
            assert error(run(shifted.copy_(x), F.pad(grad, (1, 2))[..., 1:-2])) < most, (kind, text)
            if p == (0, 0):  # a value that is not finite reaches the channel that it belongs to, and no other
                x[0, 2, size[0] // 2, size[1] // 2] = float("inf")
                assert torch.equal(run(x, grad).isfinite().any(dim=(1, 2, 3)), torch.arange(ci, device="cuda") != 2)
"""


def test_grad_weight_of_the_mma_family() -> None:
    """Against float64 in all ways of computing, equal bits, odd addresses, infinities."""
    env = {**os.environ, "DECONV_KERNELS": "igemm_sm80"}
    done = subprocess.run([sys.executable, "-c", MMA_WEIGHTS], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


MMA_CONV = """
import torch, torch.nn.functional as F, deconv_ext
torch.manual_seed(6)
# Input channels, output channels, batch, size, kernel, stride, padding, output_padding, dilation: results of even and
# odd widths whose phases are stored together or apart, tiles of one line and of many, phases without taps, ragged
# channels, one tap and many of a halo, several images of a tile, a stride along the height alone, planes (more than a
# table takes at once); halos that stay for all phases, bands of channels even and odd, one turn in all.
least = {"phases together": 8, "halos kept": 8, "256 channels": 4, "rows of 128 bytes": 8, "result unpacked": 8}
plans = dict.fromkeys(least, 0)
for ci, co, n, size, k, s, p, op, d in [
    (64, 64, 2, (40, 64), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1)),
    (48, 70, 2, (40, 65), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    (64, 144, 4, (64, 96), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
    (36, 60, 4, (60, 62), (5, 5), (2, 2), (2, 2), (1, 1), (1, 1)),
    (64, 136, 2, (33, 40), (5, 3), (2, 2), (0, 1), (0, 0), (1, 1)),
    (32, 32, 3, (20, 130), (2, 2), (2, 2), (0, 0), (0, 1), (1, 1)),
    (40, 20, 2, (17, 90), (1, 1), (2, 2), (0, 0), (1, 1), (1, 1)),
    (72, 64, 9, (4, 4), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1)),
    (64, 64, 2, (30, 70), (3, 3), (1, 1), (1, 0), (0, 0), (1, 1)),
    (64, 130, 2, (24, 31), (3, 5), (3, 1), (1, 2), (1, 0), (1, 2)),
    (24, 40, 2, (20, 33), (4, 4), (4, 4), (0, 0), (0, 0), (1, 1)),
    (33, 64, 2, (26, 50), (3, 4), (1, 2), (1, 1), (0, 0), (2, 1)),
    (96, 512, 8, (40, 48), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
    (200, 264, 4, (30, 40), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
    (48, 40, 2, (12, 14), (6, 6), (5, 5), (1, 1), (2, 2), (1, 1)),
    (16, 24, 1, (9, 11), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
]:
    for kind, most in (("strict", 1e-6), ("tf32", 6e-4), ("float16", 8e-4), ("bfloat16", 6e-3)):
        torch.backends.cudnn.allow_tf32 = kind == "tf32"
        dtype = getattr(torch, kind, torch.float32)
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(n, ci, *size, device="cuda", dtype=dtype).to(memory_format=layout)
            weight = torch.randn(ci, co, *k, device="cuda", dtype=dtype)
            bias = torch.randn(co, device="cuda", dtype=dtype)
            rest = (s, p, op, 1, d)
            text = deconv_ext.explain(x, weight, bias, *rest)
            assert "plan: igemm_sm80" in text, text
            for words in plans:
                plans[words] += words in text.partition("launch:")[0]
            expected = F.conv_transpose2d(x.double(), weight.double(), bias.double(), *rest)
            torch.full((2 * expected.numel(),), float("nan"), device="cuda")  # where the result will lie
            run = lambda: torch.ops.deconv.conv_transpose2d(x, weight, bias, *rest)
            result = run()
            error = ((result.double() - expected).norm() / expected.norm()).item()
            assert error < most, (error, kind, text)
            assert all(torch.equal(run(), result) for _ in range(5)), text
            grad = torch.randn_like(result)
            input_grad = torch.ops.deconv.conv_transpose2d_grad_input(grad, weight, size, *rest)
            expected = F.conv2d(grad.double(), weight.double(), None, s, p, d)
            assert ((input_grad.double() - expected).norm() / expected.norm()).item() < most, (kind, text)
            x[0, 2, size[0] // 2, size[1] // 2] = float("inf")
            reached = F.conv_transpose2d((~x.isfinite()).double(), torch.ones_like(weight).double(), None, *rest) > 0
            assert torch.equal(~run().isfinite(), reached), (kind, text)
assert all(plans[words] >= least[words] for words in least), plans
# Groups, and a source that begins off 16 bytes: copies of 4 bytes, or through registers, where 16 were planned.
torch.backends.cudnn.allow_tf32 = False
for dtype, most in ((torch.float32, 1e-6), (torch.bfloat16, 6e-3)):
    for channels_last in (False, True):
        elements = torch.randn(2 * 144 * 21 * 30 + 1, device="cuda", dtype=dtype)[1:]
        x = elements.view(2, 21, 30, 144).permute(0, 3, 1, 2) if channels_last else elements.view(2, 144, 21, 30)
        weight = torch.randn(144, 40, 4, 4, device="cuda", dtype=dtype)
        rest = (2, 1, 0, 2)
        assert "plan: igemm_sm80" in deconv_ext.explain(x, weight, None, *rest)
        result = torch.ops.deconv.conv_transpose2d(x, weight, None, *rest)
        expected = F.conv_transpose2d(x.double(), weight.double(), None, *rest)
        assert (result.double() - expected).norm() < most * expected.norm(), (dtype, channels_last)
# More images than the workspace takes at a time, of the result and then of both.
for ci, n, size in ((16, 5, (234, 235)), (64, 4, (200, 301))):
    x = torch.randn(n, ci, *size, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(ci, 64, 3, 3, device="cuda", dtype=torch.bfloat16)
    text = deconv_ext.explain(x, weight, None, 3)
    assert "result unpacked" in text, text
    result = torch.ops.deconv.conv_transpose2d(x, weight, None, 3)
    expected = F.conv_transpose2d(x.float(), weight.float(), None, 3)
    assert (result - expected).norm() < 6e-3 * expected.norm(), text
"""


def test_convolutions_of_the_mma_family() -> None:
    """Forward and grad_input against float64 in all ways of computing, equal bits, infinities."""
    env = {**os.environ, "DECONV_KERNELS": "igemm_sm80"}
    done = subprocess.run([sys.executable, "-c", MMA_CONV], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ["simt", "depthwise", "igemm_sm90,wgrad_sm90", "igemm_sm80", "small_channel", "col2im", "sub_pixel", "group_merge"],
)
def test_self_test_with_one_family(family: str) -> None:
    """What a family refuses goes to gather; what it takes must be right without the others' help."""
    env = {**os.environ, "DECONV_KERNELS": family}
    done = subprocess.run([sys.executable, "-m", "deconv_ext", "check"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


# 24 MiB an image, 264 MiB in all: more than the 256 MiB that are repacked at once, so six images are, and then five.
SLICES = """
import torch, torch.nn.functional as F, deconv_ext
x = torch.randn(11, 48, 512, 512, device="cuda", dtype=torch.bfloat16)
weight = torch.randn(48, 40, 3, 3, device="cuda", dtype=torch.bfloat16)
text = deconv_ext.explain(x, weight, padding=1)
plan = text.partition("launch:")[0]
assert "plan: igemm_sm80" in plan and "source repacked" in plan and "result unpacked" not in plan, text
workspace = int(text.partition("workspace: ")[2].partition(" ")[0])
assert 6 * 24 << 20 <= workspace < 7 * 24 << 20, text
result = torch.ops.deconv.conv_transpose2d(x, weight, None, 1, 1)
for image in range(11):
    expected = F.conv_transpose2d(x[image].double(), weight.double(), padding=1)
    assert (result[image].double() - expected).norm() < 6e-3 * expected.norm(), image
"""


@pytest.mark.slow
def test_source_repacked_in_slices() -> None:
    env = {**os.environ, "DECONV_KERNELS": "igemm_sm80"}
    done = subprocess.run([sys.executable, "-c", SLICES], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("allow_tf32", [False, True], indirect=True)
def test_float32_follows_the_tf32_switch(allow_tf32: bool, layout: torch.memory_format) -> None:
    """256 channels, 3x3: 2,304 products a sum. Strict float32 stays below 1e-6, TF32 near 3e-4."""
    torch.manual_seed(0)
    x = torch.randn(4, 256, 32, 32, device="cuda").to(memory_format=layout)
    weight = torch.randn(256, 128, 3, 3, device="cuda")
    expected = F.conv_transpose2d(x.double(), weight.double())
    error = _relative_error(OPERATOR(x, weight), expected)
    text = _explained(x, weight)
    assert ("TF32 allowed" in text) == (allow_tf32 and torch.cuda.get_device_capability() >= (8, 0))
    if ("plan: igemm_sm90" in text or "plan: igemm_sm80" in text) and allow_tf32:
        assert 1e-5 < error < 6e-4
    else:
        assert error < 1e-6


@strict
@pytest.mark.usefixtures("allow_tf32")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("where", ["input", "weight"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3.4e38, 1e-40])
def test_extreme_values_go_where_they_belong(value: float, where: str, layout: torch.memory_format) -> None:
    """One value among ordinary ones: the outputs it reaches are what float64 says, the others stay exact.

    A weight that is not finite meets the zeros around the image as well, in every kernel that pads with them; so for
    weights the outputs that all taps reach are compared.
    """
    torch.manual_seed(1)
    x, weight = torch.randn(2, 64, 24, 24), torch.randn(64, 64, 3, 3)
    (x if where == "input" else weight).view(-1)[4321] = value
    expected = F.conv_transpose2d(x.double(), weight.double()).to(torch.float32)
    result = OPERATOR(x.cuda().to(memory_format=layout), weight.cuda()).cpu()
    if where == "weight":
        expected, result = expected[..., 2:-2, 2:-2], result[..., 2:-2, 2:-2]
    # Close to the largest float32 the order of additions decides about overflow.
    ordinary = expected.isfinite() & (expected.abs() < 1e30)
    assert torch.equal(result.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert (result[infinite].abs() > 1e30).all()
    assert torch.equal(result[infinite].sign(), expected[infinite].sign())
    torch.testing.assert_close(result[ordinary], expected[ordinary], rtol=1e-5, atol=2e-4)


# Input channels, output channels, kernel, stride, image, contiguous, what the plan says in bfloat16: tiles side by side
# that overlap, even and odd widths; warpgroups that take turns; and lines of contiguous results that are flat.
SIDE_BY_SIDE = [
    (64, 64, 3, 2, (64, 129), True, "whole sectors"),
    (128, 64, 4, 2, (64, 129), True, "2 phases) in 128 pixels, groups of rows, warpgroups in turns"),
    (128, 40, 3, 2, (8, 33), True, "whole sectors, warpgroups in turns"),
    (64, 48, 3, 2, (70, 64), True, "64 columns, 2 phases) in 64 pixels, groups of columns, whole sectors"),
    (64, 128, 3, 1, (70, 130), True, "warpgroups in turns"),
    (32, 128, 3, 1, (70, 200), False, "warpgroups in turns"),
    (32, 64, 3, 1, (70, 129), False, "warpgroups in turns"),
    (128, 64, 7, 1, (40, 40), True, "groups of columns of flat lines, warpgroups in turns, source repacked"),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("allow_tf32", [False, True], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", SIDE_BY_SIDE)
def test_tiles_side_by_side(case: tuple[Any, ...], dtype: torch.dtype, allow_tf32: bool) -> None:
    """Against float64, every result written, the same bits in 10 calls, and a tile with fewer channels."""
    channels_in, channels_out, kernel, stride, image, is_contiguous, expected_plan = case
    torch.manual_seed(1)
    layout = torch.contiguous_format if is_contiguous else torch.channels_last
    x = torch.randn(8, channels_in, *image, device="cuda").to(dtype).to(memory_format=layout)
    weight = torch.randn(channels_in, channels_out, kernel, kernel, device="cuda").to(dtype)
    bias = torch.randn(channels_out, device="cuda").to(dtype)
    options = ([stride] * 2, [1, 1], [0, 0], 1, [1, 1])
    text = torch.ops.deconv.explain(x, weight, bias, *options)
    (plan,) = (line for line in text.splitlines() if line.startswith("  plan: "))
    assert dtype == torch.float32 or expected_plan in plan, text
    expected = F.conv_transpose2d(x.double(), weight.double(), bias.double(), *options[:3])
    poison("cuda", expected.numel() * dtype.itemsize)
    result = OPERATOR(x, weight, bias, *options)
    most = {torch.float16: 8e-4, torch.bfloat16: 6e-3, torch.float32: 1e-3 if allow_tf32 else 1e-6}[dtype]
    assert _relative_error(result, expected) < most
    for _ in range(10):
        assert torch.equal(OPERATOR(x, weight, bias, *options), result)
    fewer = channels_out - 11
    part = OPERATOR(x, weight[:, :fewer].contiguous(), bias[:fewer], *options)
    assert _relative_error(part, expected[:, :fewer]) < most


# Batch, input channels, output channels, groups, kernel, padding, image, what the plan says in bfloat16: kernels as
# large as the stride; channels of one class and of several, weights that stay and that do not.
PLANES = [
    (16, 1000, 500, 1, (2, 2), (0, 0), (16, 32), "256 channels x 128 pixels of planes as they lie, blocks"),
    (16, 128, 64, 1, (2, 2), (0, 0), (64, 76), "planes as they lie, weights that stay"),
    (64, 256, 128, 1, (2, 2), (0, 0), (14, 14), "planes as they lie in 2 classes"),
    (512, 96, 40, 1, (4, 4), (0, 0), (7, 6), "planes as they lie in 4 classes, weights that stay"),
    (64, 128, 32, 1, (2, 2), (0, 0), (25, 25), "planes as they lie in 8 classes"),
    (8, 192, 66, 3, (3, 4), (1, 2), (40, 48), "planes as they lie, weights that stay"),
    (16, 80, 40, 1, (2, 5), (0, 0), (48, 80), "planes as they lie, weights that stay"),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("allow_tf32", [True], indirect=True)
@pytest.mark.usefixtures("allow_tf32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", PLANES)
def test_planes_as_they_lie(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Against float64, every result written, the same bits in 10 calls, and of an input that no tensor copy takes."""
    batch, channels_in, channels_out, groups, kernel, padding, image, expected_plan = case
    torch.manual_seed(3)
    x = torch.randn(batch, channels_in, *image, device="cuda").to(dtype)
    weight = torch.randn(channels_in, channels_out // groups, *kernel, device="cuda").to(dtype)
    bias = torch.randn(channels_out, device="cuda").to(dtype)
    options = (kernel, padding, [0, 0], groups, [1, 1])
    _check_planned(x, weight, bias, options, "" if dtype == torch.float32 else expected_plan)


# Batch, input channels, output channels, groups, kernel, padding, output padding, image: kernels of 3 and 4 with
# strides of 2, every pattern of taps, weights that stay and that do not, tiles that end beyond the image.
STRIDED = [
    (64, 96, 64, 1, 3, 1, 1, (24, 24)),
    (256, 64, 64, 1, 3, 1, 1, (8, 8)),
    (1, 64, 64, 1, 3, 1, 1, (200, 304)),
    (16, 192, 192, 3, 3, 1, 1, (32, 32)),
    (32, 64, 64, 1, 3, 0, 1, (48, 48)),
    (64, 64, 64, 1, 4, 1, 0, (16, 16)),
    (16, 128, 60, 1, 4, 1, 0, (32, 32)),
    (32, 64, 40, 1, 4, 0, 0, (32, 32)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("allow_tf32", [True], indirect=True)
@pytest.mark.usefixtures("allow_tf32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", STRIDED)
def test_strided_planes(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Against float64, every result written, the same bits in 10 calls, and of an input that no tensor copy takes."""
    batch, channels_in, channels_out, groups, kernel, padding, output_padding, image = case
    torch.manual_seed(4)
    x = torch.randn(batch, channels_in, *image, device="cuda").to(dtype)
    weight = torch.randn(channels_in, channels_out // groups, kernel, kernel, device="cuda").to(dtype)
    bias = torch.randn(channels_out, device="cuda").to(dtype)
    options = ([2, 2], [padding] * 2, [output_padding] * 2, groups, [1, 1])
    _check_planned(x, weight, bias, options, "strided planes as they lie")


# Batch, input channels, output channels, groups, image: kernels of 4 that double images of 4, 8, 12 and 16 columns,
# batches and channels that fill no tile.
FOLDED = [
    (131, 512, 250, 1, (4, 4)),
    (100, 256, 128, 1, (4, 8)),
    (130, 256, 128, 1, (8, 4)),
    (127, 256, 128, 1, (8, 8)),
    (65, 768, 250, 1, (16, 12)),
    (61, 512, 256, 1, (12, 16)),
    (64, 512, 256, 1, (16, 16)),
    (128, 390, 384, 3, (8, 8)),
    (51, 160, 140, 2, (16, 12)),
    (600, 64, 70, 1, (4, 4)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", FOLDED)
def test_folded_products(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Against float64, every result written, the same bits in 10 calls, and of operands that no tensor copy takes."""
    batch, channels_in, channels_out, groups, image = case
    torch.manual_seed(5)
    x = torch.randn(batch, channels_in, *image, device="cuda").to(dtype)
    weight = torch.randn(channels_in, channels_out // groups, 4, 4, device="cuda").to(dtype)
    bias = torch.randn(channels_out, device="cuda").to(dtype)
    options = ([2, 2], [1, 1], [0, 0], groups, [1, 1])
    _check_planned(x, weight, bias, options, "products folded")


# Batch, input channels, output channels, groups, kernel, stride, padding, image: shifts of two and three, phases and
# channels that fill operand B and do not, images that end within tiles.
PICTURES = [
    (128, 64, 3, 1, 4, 2, 1, (32, 32)),
    (4, 56, 1, 1, 9, 4, 4, (90, 160)),
    (16, 64, 16, 1, 4, 2, 1, (64, 64)),
    (8, 64, 3, 1, 3, 2, 1, (96, 96)),
    (16, 64, 4, 1, 3, 1, 1, (63, 136)),
    (32, 96, 8, 2, 4, 2, 1, (40, 56)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("allow_tf32", [True], indirect=True)
@pytest.mark.usefixtures("allow_tf32")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", PICTURES)
def test_few_result_channels(case: tuple[Any, ...], dtype: torch.dtype, layout: torch.memory_format) -> None:
    """Against float64, by the plan of choice and by the quickest of the likeliest, kernels for Hopper among them; the
    same bits in 3 calls, an infinity where it belongs."""
    batch, channels_in, channels_out, groups, kernel, stride, padding, image = case
    torch.manual_seed(6)
    x = torch.randn(batch, channels_in, *image, device="cuda").to(dtype).to(memory_format=layout)
    weight = torch.randn(channels_in, channels_out // groups, kernel, kernel, device="cuda").to(dtype)
    bias = torch.randn(channels_out, device="cuda").to(dtype)
    options = ([stride] * 2, [padding] * 2, [0, 0], groups, [1, 1])
    expected = F.conv_transpose2d(x.double(), weight.double(), bias.double(), stride, padding, 0, groups)
    most = {torch.float32: 6e-4, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    result = OPERATOR(x, weight, bias, *options)
    assert _relative_error(result, expected) < most
    with deconv_ext.autotune(64):
        tuned = OPERATOR(x, weight, bias, *options)
        text = torch.ops.deconv.explain(x, weight, bias, *options)
    timed = text.partition("  timed:\n")[2]
    assert "all phases in" in timed or "by tensor copies" in timed, text
    assert _relative_error(tuned, expected) < most
    for _ in range(3):
        assert torch.equal(OPERATOR(x, weight, bias, *options), result)
    x[1, 2, image[0] // 2, image[1] // 2] = float("inf")
    expected = F.conv_transpose2d(x.double(), weight.double(), bias.double(), stride, padding, 0, groups)
    assert torch.equal(OPERATOR(x, weight, bias, *options).isfinite(), expected.to(dtype).isfinite())


def _check_planned(x: Tensor, weight: Tensor, bias: Tensor, options: tuple[Any, ...], words: str) -> None:
    """Forward by a plan with these words: every result written, the same bits in 10 calls, and of an input and a weight
    that no tensor copy takes."""
    text = torch.ops.deconv.explain(x, weight, bias, *options)
    (plan,) = (line for line in text.splitlines() if line.startswith("  plan: "))
    assert words in plan, text
    expected = F.conv_transpose2d(x.double(), weight.double(), bias.double(), *options[:4])
    poison(x.device.type, expected.numel() * x.dtype.itemsize)
    result = OPERATOR(x, weight, bias, *options)
    most = {torch.float16: 8e-4, torch.bfloat16: 6e-3, torch.float32: 1e-3}[x.dtype]
    assert _relative_error(result, expected) < most
    for _ in range(10):
        assert torch.equal(OPERATOR(x, weight, bias, *options), result)
    assert _relative_error(OPERATOR(_moved(x), weight, bias, *options), expected) < most
    assert _relative_error(OPERATOR(x, _moved(weight), bias, *options), expected) < most


def _moved(tensor: Tensor) -> Tensor:
    """The same values and strides, one element off a multiple of 16 bytes."""
    return tensor.new_empty(tensor.numel() + 1)[1:].as_strided(tensor.size(), tensor.stride()).copy_(tensor)


# Input channels, output channels, groups, kernel, stride, image: weights that TMA takes from where they lie in
# grad_input, in whole chunks and blocks of channels and in blocks that reach into the next group.
IN_PLACE = [
    (128, 64, 1, (4, 4), 2, (24, 40)),
    (192, 256, 2, (3, 5), 2, (15, 22)),
    (80, 64, 1, (1, 3), 1, (33, 45)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("allow_tf32", [True], indirect=True)
@pytest.mark.usefixtures("allow_tf32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", IN_PLACE)
def test_weights_in_place(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Against float64, the same bits in 10 calls, and of a weight that no tensor copy takes."""
    channels_in, channels_out, groups, kernel, stride, image = case
    torch.manual_seed(2)
    one = torch.randn(4, channels_in, *image, dtype=torch.float64, device="cuda")
    weight = torch.randn(channels_in, channels_out // groups, *kernel, dtype=torch.float64, device="cuda").to(dtype)
    weight = weight.to(memory_format=torch.channels_last)
    options = {"stride": [stride] * 2, "padding": [1, 1], "groups": groups}
    output = F.conv_transpose2d(one, weight.double(), **options)
    grad_output = torch.randn_like(output).to(dtype).to(memory_format=torch.channels_last)
    arguments = ([stride] * 2, [1, 1], [0, 0], groups, [1, 1])
    text = torch.ops.deconv.explain(grad_output, weight, None, *arguments, "grad_input", image)
    assert "weights in place" in text, text
    # grad_input is the convolution with the same weight.
    expected = F.conv2d(grad_output.double(), weight.double(), **options)
    poison("cuda", expected.numel() * dtype.itemsize)
    result = torch.ops.deconv.conv_transpose2d_grad_input(grad_output, weight, image, *arguments)
    most = {torch.float16: 8e-4, torch.bfloat16: 6e-3, torch.float32: 1e-3}[dtype]
    assert _relative_error(result, expected) < most
    for _ in range(10):
        again = torch.ops.deconv.conv_transpose2d_grad_input(grad_output, weight, image, *arguments)
        assert torch.equal(again, result)
    packed = torch.ops.deconv.conv_transpose2d_grad_input(grad_output, _moved(weight), image, *arguments)
    assert _relative_error(packed, expected) < most


# The same in forward, where result channels are adjacent: ragged chunks and blocks of channels, groups, one tap, few
# pixels.
IN_PLACE_FORWARD = [
    (128, 64, 1, (4, 4), 2, (24, 40)),
    (200, 136, 1, (3, 5), 2, (15, 22)),
    (256, 144, 2, (3, 3), 1, (33, 45)),
    (72, 24, 1, (1, 1), 1, (33, 45)),
    (640, 264, 1, (3, 3), 1, (7, 9)),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("result", ["channels_last", "contiguous"])
@pytest.mark.parametrize("case", IN_PLACE_FORWARD)
def test_weights_in_place_in_forward(case: tuple[Any, ...], result: str, dtype: torch.dtype) -> None:
    """Against float64, the same bits in 10 calls, and of operands that no tensor copy takes. An input in both formats,
    of which a kernel rewrites the contiguous one."""
    channels_in, channels_out, groups, kernel, stride, image = case
    torch.manual_seed(2)
    x = torch.randn(4, channels_in, *image, device="cuda").to(dtype)
    if result == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    weight = torch.randn(channels_in, channels_out // groups, *kernel, device="cuda").to(dtype)
    weight = weight.to(memory_format=torch.channels_last)
    bias = torch.randn(channels_out, device="cuda").to(dtype)
    arguments = ([stride] * 2, [1 if min(kernel) > 1 else 0] * 2, [0, 0], groups, [1, 1])
    if result == "channels_last":
        text = torch.ops.deconv.explain(x, weight, bias, *arguments)
        assert "weights in place" in text, text
    expected = F.conv_transpose2d(x.double(), weight.double(), bias.double(), *arguments)
    poison("cuda", expected.numel() * dtype.itemsize)
    first = OPERATOR(x, weight, bias, *arguments)
    most = {torch.float16: 8e-4, torch.bfloat16: 6e-3}[dtype]
    assert _relative_error(first, expected) < most
    for _ in range(10):
        assert torch.equal(OPERATOR(x, weight, bias, *arguments), first)
    for operands in ((x, _moved(weight)), (_moved(x), weight), (_moved(x), _moved(weight))):
        assert _relative_error(OPERATOR(*operands, bias, *arguments), expected) < most


# Layers whose tiles multiply zeros: columns that share rows, groups that share a tile; and two phases side by side.
# (input channels, output channels, groups, kernel, stride, image), and what the plan says in bfloat16; float32 may go
# elsewhere.
MIXING = [
    (32, 32, 1, 3, 1, (65, 130), "in 2x"),
    (256, 256, 32, 3, 1, (33, 45), "groups merged"),
    (512, 512, 16, 4, 2, (33, 45), "groups merged"),
    (160, 200, 8, 4, 2, (33, 45), "groups merged"),
    (64, 64, 1, 4, 2, (65, 62), "2 phases"),
    (64, 64, 1, 4, 2, (65, 64), " phases"),
]


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("allow_tf32", [False, True], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("direction", ["forward", "grad_input"])
@pytest.mark.parametrize("case", MIXING)
def test_infinities_reach_no_other_result(
    case: tuple[Any, ...], direction: str, layout: torch.memory_format, dtype: torch.dtype, allow_tf32: bool
) -> None:
    torch.manual_seed(0)
    channels_in, channels_out, groups, kernel, stride, image, expected_plan = case
    x = torch.randn(8, channels_in, *image, dtype=dtype)
    weight = torch.randn(channels_in, channels_out // groups, kernel, kernel, dtype=dtype)
    output = F.conv_transpose2d(x.double(), weight.double(), None, stride, 1, 0, groups)
    source = x if direction == "forward" else torch.randn_like(output, dtype=dtype)
    for n, (channel, value) in enumerate([(0, "inf"), (-1, "-inf"), (17, "nan"), (20, "inf")]):
        source[n, channel, 16, 20 + n] = float(value)
    source[5] = float("nan")
    options = ([stride] * 2, [1, 1], [0, 0], groups, [1, 1])
    on_gpu, weight_on_gpu = source.cuda().to(memory_format=layout), weight.cuda()
    if direction == "forward":
        expected = F.conv_transpose2d(source.double(), weight.double(), None, stride, 1, 0, groups)
        text = torch.ops.deconv.explain(on_gpu, weight_on_gpu, None, *options)
        result = OPERATOR(on_gpu, weight_on_gpu, None, *options).cpu()
    else:
        expected = F.conv2d(source.double(), weight.double(), None, stride, 1, 1, groups)
        size = list(x.shape[2:])
        text = torch.ops.deconv.explain(on_gpu, weight_on_gpu, None, *options, direction, size)
        result = torch.ops.deconv.conv_transpose2d_grad_input(on_gpu, weight_on_gpu, size, *options).cpu()
    (plan,) = (line for line in text.splitlines() if line.startswith("  plan: "))
    if dtype == torch.bfloat16 and (direction == "forward" or "phases" not in expected_plan):
        assert "igemm_sm90 family" in plan and expected_plan in plan, text  # noqa: PT018
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isposinf(), expected.isposinf())
    assert torch.equal(result.isneginf(), expected.isneginf())
    finite = expected.isfinite()
    assert finite.any()
    assert _relative_error(result[finite], expected[finite]) < (6e-3 if dtype == torch.bfloat16 else 1e-3)


NARROW = """
import torch, torch.nn.functional as F
torch.backends.cudnn.allow_tf32 = False
torch.manual_seed(3)
# channels, image, result channels a group, kernel, stride, padding, dilation, groups
for ci, h, w, co, k, s, p, d, g in [
    (64, 9, 33, 3, 4, 2, 1, 1, 1), (7, 5, 6, 1, 9, 4, 4, 1, 1), (12, 10, 7, 5, (3, 5), (2, 3), (1, 2), (2, 1), 3),
    (24, 6, 40, 19, 3, 5, 1, 2, 1), (20, 1, 1, 40, 4, 1, 0, 1, 1), (33, 1, 5, 9, 3, 2, 1, 1, 1),
    (3, 17, 17, 8, 7, 1, 3, 2, 1), (16, 6, 24, 33, (1, 5), (2, 1), 0, 1, 1), (16, 10, 21, 17, (2, 3), (2, 5), 0, 2, 2),
]:
    for dtype, most in ((torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(3, ci, h, w, device="cuda").to(dtype).to(memory_format=layout)
            weight, bias = torch.randn(ci, co, *(k if isinstance(k, tuple) else (k, k)), device="cuda").to(dtype), None
            bias = torch.randn(co * g, device="cuda").to(dtype)
            run = lambda x: torch.ops.deconv.conv_transpose2d(x, weight, bias, s, p, 0, g, d)
            text = deconv_ext.explain(x, weight, bias, stride=s, padding=p, groups=g, dilation=d)
            assert "plan: small_channel" in text, text
            double = [tensor.double().cpu() for tensor in (weight, bias)]
            oracle = lambda x: F.conv_transpose2d(x.double().cpu(), *double, s, p, 0, g, d).cuda()
            y = run(x)
            assert ((y.double() - oracle(x)).norm() / oracle(x).norm()).item() < most
            assert torch.equal(y, run(x))
            # A value that is not finite reaches the results that it belongs to, and no neighbour.
            x[1, 2, h // 2, w // 2] = float("inf")
            assert torch.equal(run(x).isfinite(), oracle(x).to(dtype).isfinite())
"""


def test_narrow_layers() -> None:
    """Sizes around the tile, phases without taps, one pixel; float64 as the oracle, equal bits, infinities."""
    env = {**os.environ, "DECONV_KERNELS": "small_channel"}
    done = subprocess.run([sys.executable, "-c", "import deconv_ext" + NARROW], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


COL2IM = """
import torch, torch.nn.functional as F
torch.manual_seed(3)
# Channels, image, result channels a group, kernel, stride, padding, dilation, groups: widths that wide, narrow and no
# copies take, one to three products' tiles a warp, several warps along them, phases with different numbers of taps and
# with none, segments with a ragged end, ragged channels, blocks with several channels, groups, stores of 1, 2 and 4.
for ci, h, w, co, k, s, p, d, g in [
    (64, 9, 64, 3, 4, 2, 1, 1, 1), (64, 9, 33, 3, 4, 2, 1, 1, 1), (40, 70, 34, 2, 5, 2, 2, 1, 1),
    (56, 40, 120, 1, 9, 4, 4, 1, 1), (12, 10, 7, 5, (3, 5), (2, 3), (1, 2), (2, 1), 3), (33, 21, 48, 8, 3, 2, 1, 1, 1),
    (24, 6, 40, 6, 3, 5, 1, 2, 1), (20, 1, 1, 3, 4, 1, 0, 1, 1), (33, 1, 5, 4, 3, 2, 1, 1, 2),
    (19, 30, 24, 1, 2, 2, 0, 1, 4), (3, 17, 17, 3, 5, 1, 2, 2, 1), (16, 33, 130, 1, (1, 12), (1, 4), 0, 1, 1),
]:
    for kind, most in (("strict", 1e-6), ("tf32", 6e-4), ("float16", 1e-3), ("bfloat16", 8e-3)):
        torch.backends.cudnn.allow_tf32 = kind == "tf32"
        dtype = getattr(torch, kind, torch.float32)
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(3, ci * g, h, w, device="cuda").to(dtype).to(memory_format=layout)
            weight = torch.randn(ci * g, co, *(k if isinstance(k, tuple) else (k, k)), device="cuda").to(dtype)
            bias = torch.randn(co * g, device="cuda").to(dtype)
            run = lambda x: torch.ops.deconv.conv_transpose2d(x, weight, bias, s, p, 0, g, d)
            text = deconv_ext.explain(x, weight, bias, stride=s, padding=p, groups=g, dilation=d)
            assert "plan: col2im" in text, text
            double = [tensor.double().cpu() for tensor in (weight, bias)]
            oracle = lambda x: F.conv_transpose2d(x.double().cpu(), *double, s, p, 0, g, d).cuda()
            error = lambda y, x: ((y.double() - oracle(x)).norm() / oracle(x).norm()).item()
            y = run(x)
            assert error(y, x) < most, (error(y, x), kind, text)
            assert all(torch.equal(run(x), y) for _ in range(5)), text
            # Bases that no wide copy takes, and strides of a slice.
            shifted = torch.empty(x.numel() + 1, device="cuda", dtype=dtype)[1:].as_strided(x.shape, x.stride())
            assert error(run(shifted.copy_(x)), x) < most, (kind, text)
            assert error(run(F.pad(x, (1, 2))[..., 1:-2]), x) < most, (kind, text)
            # A value that is not finite reaches the results that it belongs to, and no neighbour.
            x[1, 2, h // 2, w // 2] = float("inf")
            assert torch.equal(run(x).isfinite(), oracle(x).to(dtype).isfinite()), (kind, text)
"""


def test_col2im_layers() -> None:
    """Against float64 in all ways of computing, equal bits, odd addresses, infinities."""
    env = {**os.environ, "DECONV_KERNELS": "col2im"}
    done = subprocess.run([sys.executable, "-c", "import deconv_ext" + COL2IM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@strict
@pytest.mark.usefixtures("allow_tf32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [1, 3])
def test_operands_at_odd_addresses(offset: int, dtype: torch.dtype) -> None:
    """A base that no tensor map takes: producer warps bring the same halos."""
    torch.manual_seed(2)
    shape = (2, 64, 33, 32)
    storage = torch.randn(offset + torch.Size(shape).numel(), device="cuda", dtype=dtype)
    x, weight = storage[offset:].view(shape), torch.randn(64, 72, 4, 4, device="cuda", dtype=dtype)
    for source in (x, torch.as_strided(storage, shape, (64 * 33 * 32, 1, 64 * 32, 64), offset)):
        expected = F.conv_transpose2d(source.double(), weight.double(), stride=2, padding=1)
        error = _relative_error(OPERATOR(source, weight, None, 2, 1), expected)
        assert error < {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]


# Images, input channels, image, output channels, kernel, stride, padding, output_padding, groups.
LAYERS = {
    # Units of every width, blocks that begin before the image and end behind it, paddings beyond a block, a stride
    # along one axis alone, images of one pixel.
    "sub_pixel": [
        (3, 21, 16, 16, 21, (64, 64), (32, 32), (16, 16), (0, 0), 1),
        (3, 64, 33, 40, 3, (4, 4), (2, 2), (1, 1), (0, 0), 1), (3, 40, 20, 17, 12, (4, 4), (4, 4), (0, 0), (1, 3), 1),
        (3, 32, 15, 70, 24, (2, 6), (2, 3), (1, 4), (1, 2), 2), (3, 18, 30, 9, 7, (3, 8), (1, 8), (2, 5), (0, 4), 1),
        (3, 64, 40, 40, 48, (2, 2), (2, 2), (0, 0), (0, 0), 1), (3, 16, 5, 6, 1, (6, 4), (3, 2), (5, 3), (2, 1), 1),
        (40, 100, 1, 1, 512, (4, 4), (1, 1), (0, 0), (0, 0), 1), (3, 64, 1, 1, 96, (4, 3), (2, 1), (0, 0), (0, 0), 2),
        (17, 128, 1, 1, 70, (4, 4), (2, 2), (1, 1), (0, 0), 1),
    ],
    # Every kernel that walks down rows, several segments, lines in parts, a padding of the height that the width lacks.
    "depthwise": [
        (40, 66, 70, 48, 66, (3, 3), (1, 1), (0, 1), (0, 0), 66),
        (8, 64, 40, 544, 64, (3, 3), (1, 1), (1, 1), (0, 0), 64),
        (40, 64, 30, 40, 64, (2, 2), (2, 2), (1, 0), (1, 0), 64),
        (40, 64, 45, 24, 64, (3, 3), (2, 2), (0, 1), (0, 1), 64),
        (8, 66, 33, 272, 66, (4, 4), (2, 2), (3, 1), (1, 0), 66),
    ],
    # Groups of 1 to 30 channels, more on one side than on the other, all of them together and a few.
    "group_merge": [
        (16, 64, 32, 32, 64, (4, 4), (2, 2), (1, 1), (0, 0), 16),
        (9, 60, 19, 24, 60, (3, 3), (1, 1), (1, 1), (0, 0), 20),
        (8, 21, 17, 15, 42, (5, 3), (2, 1), (2, 0), (1, 0), 7),
        (5, 96, 14, 14, 32, (3, 3), (2, 2), (1, 1), (1, 1), 16),
        (5, 60, 13, 16, 56, (2, 2), (2, 2), (0, 0), (0, 0), 2),
        (7, 40, 20, 9, 40, (1, 1), (1, 1), (0, 0), (0, 0), 10),
        (4, 66, 30, 40, 66, (7, 7), (1, 1), (3, 3), (0, 0), 66),
        (3, 24, 1, 1, 72, (4, 4), (1, 1), (0, 0), (0, 0), 6),
    ],
}  # fmt: skip
# By the direction, if it is not the same for all.
LAYER_PLANS = {
    "sub_pixel": "'plan: sub_pixel'",
    "depthwise": "'plan: depthwise family, down '",
    "group_merge": "{'grad_weight': 'plan: group_merge'}.get(direction, 'plan: simt')",
}

FORCED = """
import torch, torch.nn.functional as F
torch.manual_seed(4)
for n, ci, h, w, co, k, s, p, op, g in LAYERS:
    for kind, most in (("strict", 1e-6), ("tf32", 6e-4), ("float16", 1e-3), ("bfloat16", 8e-3)):
        torch.backends.cudnn.allow_tf32 = kind == "tf32"
        dtype = getattr(torch, kind, torch.float32)
        for layout in (torch.contiguous_format, torch.channels_last):
            place = lambda *size: torch.randn(*size, device="cuda").to(dtype).to(memory_format=layout)
            x, weight, bias = place(n, ci, h, w), place(ci, co // g, *k), torch.randn(co, device="cuda").to(dtype)
            wide = [tensor.double().requires_grad_() for tensor in (x, weight)]
            y64 = F.conv_transpose2d(*wide, bias.double(), s, p, op, g)
            grad = place(*y64.shape)
            x64, w64 = torch.autograd.grad(y64, wide, grad.double())
            ops = torch.ops.deconv
            calls = [
                (lambda: ops.conv_transpose2d(x, weight, bias, s, p, op, g), y64, "forward", (x, weight, bias), ()),
                (lambda: ops.conv_transpose2d_grad_input(grad, weight, (h, w), s, p, op, g), x64, "grad_input",
                 (grad, weight, None), (h, w)),
                (lambda: ops.conv_transpose2d_grad_weight(x, grad, k, s, p, op, g), w64, "grad_weight",
                 (x, grad, None), k),
            ]
            for run, expected, direction, operands, size in calls:
                text = ops.explain(*operands, s, p, op, g, (1, 1), direction, size)
                assert PLAN in text, text
                result = run()
                error = ((result.double() - expected).norm() / expected.norm()).item()
                assert error < most, (error, kind, text)
                assert all(torch.equal(run(), result) for _ in range(5)), text
            # A base that no wide access takes.
            shifted = torch.empty(grad.numel() + 1, device="cuda", dtype=dtype)[1:]
            shifted = shifted.as_strided(grad.shape, grad.stride()).copy_(grad)
            of_shifted = ops.conv_transpose2d_grad_weight(x, shifted, k, s, p, op, g)
            if SAME_BITS and h * w > 1:  # else grad_output may come by other loads, and sums have another order
                assert torch.equal(of_shifted, result), kind
            assert ((of_shifted.double() - w64).norm() / w64.norm()).item() < most, kind
            # A pixel that is not finite reaches the blocks that it meets, and no others.
            x[1, 2, h // 2, w // 2] = float("inf")
            y64 = F.conv_transpose2d(x.double(), weight.double(), bias.double(), s, p, op, g)
            assert torch.equal(ops.conv_transpose2d(x, weight, bias, s, p, op, g).isfinite(), y64.isfinite()), kind
"""


@pytest.mark.parametrize("family", list(LAYERS))
def test_layers_of_a_family(family: str) -> None:
    """Against float64 in all directions and ways of computing, equal bits, odd addresses, infinities."""
    script = FORCED.replace("LAYERS", repr(LAYERS[family])).replace("PLAN", LAYER_PLANS[family])
    script = script.replace("SAME_BITS", repr(family not in ("group_merge", "depthwise")))
    env = {**os.environ, "DECONV_KERNELS": family}
    done = subprocess.run([sys.executable, "-c", "import deconv_ext" + script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

"""Forward and grad_input of the Hopper family where channels or pixels are few: im2col sources, items of clusters."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import poison, relative_error
from torch import Tensor

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")]

MODES = {
    "float16": (torch.float16, False),
    "bfloat16": (torch.bfloat16, False),
    "tf32": (torch.float32, True),
    "strict": (torch.float32, False),
}
LAYOUTS = [torch.contiguous_format, torch.channels_last]

# Direction, batch, input channels, output channels, groups, input size, kernel, stride, padding, dilation.
Layer = tuple[str, int, int, int, int, tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int], Any]
# Places of a row: less than a chunk, one and a half, one chunk or two and one place. Several images, rows, columns a
# group; images narrower than a tile; taps that no pixel has; strides that differ; groups; two tiles of
# result channels.
IM2COL: list[Layer] = [
    ("grad_input", 20, 64, 3, 1, (48, 66), (4, 4), (2, 2), (1, 1), (1, 1)),
    ("grad_input", 9, 56, 1, 1, (74, 140), (9, 9), (4, 4), (4, 4), (1, 1)),
    ("grad_input", 12, 200, 3, 1, (33, 40), (5, 5), (3, 2), (0, 3), (1, 1)),
    ("grad_input", 400, 96, 2, 1, (14, 13), (4, 4), (2, 2), (1, 1), (2, 1)),
    ("grad_input", 16, 128, 4, 2, (60, 62), (3, 5), (1, 2), (2, 0), (1, 2)),
    ("grad_input", 16, 64, 3, 1, (60, 62), (1, 43), (1, 2), (0, 21), (1, 1)),
    ("grad_input", 400, 64, 5, 1, (13, 12), (5, 3), (1, 1), (40, 20), (20, 20)),
    ("grad_input", 16, 64, 2, 1, (90, 94), (9, 1), (2, 3), (4, 0), (1, 1)),
    ("forward", 16, 3, 64, 1, (120, 101), (3, 3), (1, 1), (1, 1), (1, 1)),
    ("forward", 16, 5, 80, 1, (121, 128), (7, 3), (1, 1), (3, 0), (1, 2)),
]
# One image of few pixels, many images of one pixel, ragged channels, planes of which each block has a part, phases,
# groups, groups merged into one.
CLUSTERS: list[Layer] = [
    ("grad_input", 1, 64, 256, 1, (16, 24), (4, 4), (2, 2), (1, 1), (1, 1)),
    ("grad_input", 128, 100, 512, 1, (1, 1), (4, 4), (1, 1), (0, 0), (1, 1)),
    ("grad_input", 1, 72, 520, 1, (7, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    ("grad_input", 1, 128, 1024, 2, (8, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    ("grad_input", 1, 144, 288, 8, (8, 12), (8, 8), (4, 4), (2, 2), (1, 1)),
    ("forward", 1, 600, 40, 1, (8, 8), (3, 3), (1, 1), (1, 1), (1, 1)),
    ("forward", 1, 1600, 40, 1, (7, 7), (4, 4), (2, 2), (1, 1), (1, 1)),
    ("forward", 2, 584, 64, 1, (4, 5), (5, 5), (1, 1), (2, 2), (1, 1)),
]


@pytest.fixture(params=MODES)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """Each type; float32 with TF32 and without."""
    saved = torch.backends.cudnn.allow_tf32
    mode, torch.backends.cudnn.allow_tf32 = MODES[request.param]
    yield mode
    torch.backends.cudnn.allow_tf32 = saved


class Call:
    """One layer with random operands, in one dtype and layout."""

    def __init__(self, layer: Layer, dtype: torch.dtype, layout: torch.memory_format, device: str = "cuda") -> None:
        direction, batch, ci, co, groups, size, kernel, stride, padding, dilation = layer
        self.forward = direction == "forward"
        self.size = list(size)
        self.weight = torch.randn(ci, co // groups, *kernel, device=device).to(dtype)
        self.options = (list(stride), list(padding), [0, 0], groups, list(dilation))
        x = torch.randn(batch, ci, *size, device=device).to(dtype)
        y = F.conv_transpose2d(x.double(), self.weight.double(), None, *self.options)
        source = x if self.forward else torch.randn_like(y).to(dtype)
        self.source = source.to(memory_format=layout)
        self.bias = torch.randn(co, device=device).to(dtype) if self.forward else None

    def plan(self, source: Tensor | None = None) -> str:
        source = self.source if source is None else source
        size = () if self.forward else ("grad_input", self.size)
        text = str(torch.ops.deconv.explain(source, self.weight, self.bias, *self.options, *size))
        (plan,) = (line for line in text.splitlines() if line.startswith("  plan: "))
        return plan

    def run(self, source: Tensor | None = None) -> Tensor:
        source = self.source if source is None else source
        if self.forward:
            return torch.ops.deconv.conv_transpose2d(source, self.weight, self.bias, *self.options)
        return torch.ops.deconv.conv_transpose2d_grad_input(source, self.weight, self.size, *self.options)

    def expected(self, source: Tensor | None = None) -> Tensor:
        source = (self.source if source is None else source).double()
        stride, padding, _, groups, dilation = self.options
        if self.forward:
            bias = None if self.bias is None else self.bias.double()
            return F.conv_transpose2d(source, self.weight.double(), bias, *self.options)
        return F.conv2d(source, self.weight.double(), None, stride, padding, dilation, groups)[
            :, :, : self.size[0], : self.size[1]
        ]

    def limit(self) -> float:
        if self.source.dtype == torch.float32:
            return 1e-3 if torch.backends.cudnn.allow_tf32 else 1e-6
        return 8e-4 if self.source.dtype == torch.float16 else 6e-3


def _check(call: Call, expected_plan: str) -> None:
    """The plan; float64; every result written; the same bits in 10 calls; and where infinities go."""
    plan = call.plan()
    assert "igemm_sm90 family" in plan
    assert expected_plan in plan
    expected = call.expected()
    poison("cuda", expected.numel() * call.source.element_size())
    result = call.run()
    assert result.shape == expected.shape
    assert relative_error(result, expected) < call.limit()
    for _ in range(10):
        assert torch.equal(call.run(), result)
    h, w = (size // 2 for size in call.source.shape[2:])
    call.source[-1, -1, h : h + 2, w : w + 2] = float("inf")  # a stride may leave out one of two neighbours
    expected = call.expected()
    result = call.run()
    assert torch.equal(result.isposinf(), expected.isposinf())
    assert torch.equal(result.isneginf(), expected.isneginf())
    assert torch.equal(result.isnan(), expected.isnan())
    assert expected.isinf().any()
    assert expected.isfinite().any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layer", IM2COL)
def test_im2col(layer: Layer, layout: torch.memory_format, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    _check(Call(layer, dtype, layout), "im2col")


@pytest.mark.parametrize("layer", IM2COL)
def test_im2col_of_any_strides(layer: Layer, dtype: torch.dtype) -> None:
    """Every second column of an image at an odd address, and one value seen as a whole image."""
    torch.manual_seed(1)
    call = Call(layer, dtype, torch.contiguous_format)
    apart = torch.empty(2 * call.source.numel() + 1, dtype=dtype, device="cuda")[1::2].view_as(call.source)
    apart.copy_(call.source)
    assert "im2col" in call.plan()
    assert "im2col" in call.plan(apart)
    assert torch.equal(call.run(apart), call.run())
    single = call.source[:1, :1, :1, :1].expand_as(call.source)
    assert "im2col" in call.plan(single)
    assert relative_error(call.run(single), call.expected(single)) < call.limit()


@pytest.mark.parametrize("layer", IM2COL)
def test_im2col_of_weights_that_lie_otherwise(layer: Layer, dtype: torch.dtype) -> None:
    """Channels adjacent, channels far apart, and taps that are not evenly spaced, which another way serves."""
    torch.manual_seed(3)
    call = Call(layer, dtype, torch.contiguous_format)
    weight, result = call.weight, call.run()
    kernel_h, kernel_w = weight.shape[2:]
    call.weight = weight.to(memory_format=torch.channels_last)
    assert "im2col" in call.plan()
    assert torch.equal(call.run(), result)
    call.weight = weight.new_empty(weight.shape[0], 2 * weight.shape[1], kernel_h, kernel_w)[:, 1::2].copy_(weight)
    assert "im2col" in call.plan()
    assert torch.equal(call.run(), result)
    call.weight = weight.new_empty(*weight.shape[:3], kernel_w + 1)[..., 1:].copy_(weight)
    assert ("im2col" in call.plan()) == (kernel_h == 1 or kernel_w == 1)
    assert relative_error(call.run(), result.double()) < 2 * call.limit()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layer", CLUSTERS)
def test_items_of_clusters(layer: Layer, layout: torch.memory_format, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    _check(Call(layer, dtype, layout), "sums of")

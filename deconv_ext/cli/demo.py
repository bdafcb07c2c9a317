"""``python -m deconv_ext demo``: a photograph upsampled and coloured by transposed convolutions.

As a video codec does, it keeps the photograph as luminance and two chroma planes of a quarter of its height and width.
Three transposed convolutions make a coloured picture of twice the photograph's height and width from them: luminance by
2 and chroma by 8 with bicubic kernels, the chroma planes as two groups, then 1x1 with a bias from YCbCr to RGB.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import deconv_ext
from deconv_ext.cli.console import Column, print_table, require
from deconv_ext.cli.measure import cudnn_search, time_interleaved
from deconv_ext.cli.operands import device_of, torch_in

LUMA_SCALE, CHROMA_SUBSAMPLING = 2, 4
CHROMA_SCALE = LUMA_SCALE * CHROMA_SUBSAMPLING

# The bicubic kernel reaches two pixels to each side; borders are repeated that far.
_REACH = 2
# BT.601, full range: the weights of R, G and B in Y; Cb and Cr are (B - Y) / 1.772 and (R - Y) / 1.402.
_LUMA = (0.299, 0.587, 0.114)

Convolution = Callable[..., Tensor]


@dataclass(frozen=True)
class Layer:
    """A transposed convolution with its parameters."""

    name: str
    weight: Tensor
    bias: Tensor | None = None
    stride: int = 1
    padding: int = 0
    groups: int = 1

    def __call__(self, convolution: Convolution, image: Tensor) -> Tensor:
        """Applies ``convolution``, which has the signature of ``torch.nn.functional.conv_transpose2d``."""
        arguments = {"stride": self.stride, "padding": self.padding, "groups": self.groups}
        return convolution(image, self.weight, self.bias, **arguments)

    def exact(self) -> Layer:
        """The layer in float64 on the CPU."""
        bias = None if self.bias is None else self.bias.cpu().double()
        return Layer(self.name, self.weight.cpu().double(), bias, self.stride, self.padding, self.groups)


@dataclass(frozen=True)
class StageResult:
    """One layer on one input through both: its output's shape, medians in ms, and the largest difference."""

    name: str
    shape: tuple[int, ...]
    ours_ms: float
    torch_ms: float
    difference: float


@dataclass(frozen=True)
class Result:
    """The demo's findings: the inputs and both pictures, (C, H, W) on the CPU in [0, 1], the stages, the errors.

    The errors are the largest differences from the picture made in float64.
    """

    luma: Tensor
    chroma: Tensor
    ours: Tensor
    torch: Tensor
    stages: list[StageResult]
    ours_error: float
    torch_error: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("--output", default="demo.png", metavar="FILE", help="default: %(default)s")
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")


def main(args: argparse.Namespace) -> int:
    """Runs the demo, prints differences and times, draws the pictures; 0."""
    require("matplotlib", "demo")
    device = device_of(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, where ATen serves both"
    result = run(load_photograph(), device)
    _report(result, name)
    draw(result, args.output, name)
    print(f"wrote {args.output}")
    return 0


def load_photograph() -> Tensor:
    """A photograph that scikit-learn ships, RGB in [0, 1]: (3, 424, 640), cropped to multiples of 8 pixels.

    Raises:
        ModuleNotFoundError: if scikit-learn or pillow is not installed.
    """
    require("PIL", "demo")
    pixels = require("sklearn.datasets", "demo").load_sample_image("china.jpg")
    image = torch.tensor(pixels).movedim(-1, 0) / 255
    height, width = (size // CHROMA_SCALE * CHROMA_SCALE for size in image.shape[1:])
    return image[:, :height, :width]


def run(photograph: Tensor, device: torch.device) -> Result:
    """Makes the picture through the operator and through torch, in strict float32, and times each layer.

    ``photograph`` is (3, H, W), RGB in [0, 1], H and W multiples of 8; the pictures are (3, 2H, 2W).
    """
    luma, chroma = (plane.to(device) for plane in split(photograph))
    layers = make_layers(device)
    with torch_in("fp32"), cudnn_search(), torch.inference_mode():
        ours = paint(deconv_ext.conv_transpose2d, layers, luma, chroma)
        torchs = paint(F.conv_transpose2d, layers, luma, chroma)
        exact_inputs = luma.cpu().double(), chroma.cpu().double()
        exact = paint(F.conv_transpose2d, [layer.exact() for layer in layers], *exact_inputs)
        inputs = [_extend(luma), _extend(chroma), torch.rand(1, 3, *ours.shape[1:], device=device)]
        stages = [_time_layer(layer, image, device) for layer, image in zip(layers, inputs, strict=True)]
    return Result(
        luma[0].cpu(), chroma[0].cpu(), ours.cpu(), torchs.cpu(), stages,
        ours_error=_max_difference(ours.cpu(), exact), torch_error=_max_difference(torchs.cpu(), exact),
    )  # fmt: skip


def split(photograph: Tensor) -> tuple[Tensor, Tensor]:
    """Luminance (1, 1, H, W) and subsampled chroma (1, 2, H / 4, W / 4) of a photograph (3, H, W); chroma about 0.5."""
    luma = (photograph * photograph.new_tensor(_LUMA).view(3, 1, 1)).sum(0, keepdim=True)
    chroma = torch.cat([(photograph[2:] - luma) / 1.772, (photograph[:1] - luma) / 1.402]) + 0.5
    return luma[None], F.avg_pool2d(chroma[None], CHROMA_SUBSAMPLING)


def make_layers(device: torch.device) -> list[Layer]:
    """The three layers in float32: luminance by 2, chroma by 8, YCbCr to RGB."""
    _, green, _ = _LUMA
    to_rgb = torch.tensor(  # rows Y, Cb, Cr; columns R, G, B
        [[1, 1, 1], [0, -1.772 * _LUMA[2] / green, 1.772], [1.402, -1.402 * _LUMA[0] / green, 0]], device=device
    )
    offset = -0.5 * (to_rgb[1] + to_rgb[2])
    return [
        _upsampling("luminance, bicubic, stride 2", 1, LUMA_SCALE, device),
        _upsampling("chroma, bicubic, stride 8, 2 groups", 2, CHROMA_SCALE, device),
        Layer("YCbCr to RGB, 1x1 with bias", to_rgb.view(3, 3, 1, 1), offset),
    ]


def paint(convolution: Convolution, layers: list[Layer], luma: Tensor, chroma: Tensor) -> Tensor:
    """The coloured picture (3, 2H, 2W) in [0, 1] of luminance (1, 1, H, W) and chroma (1, 2, H / 4, W / 4)."""
    upsample_luma, upsample_chroma, colour = layers
    planes = [upsample_luma(convolution, _extend(luma)), upsample_chroma(convolution, _extend(chroma))]
    return colour(convolution, torch.cat(planes, 1))[0].clamp(0, 1)


def _upsampling(name: str, channels: int, scale: int, device: torch.device) -> Layer:
    """Cubic convolution (Keys, a = -1/2) of each channel by an even factor, for an image extended by its reach."""
    taps = torch.arange(4 * scale, dtype=torch.float64)
    x = ((taps - (4 * scale - 1) / 2) / scale).abs()
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    kernel = torch.where(x < 1, near, far).float().to(device)
    weight = torch.outer(kernel, kernel).repeat(channels, 1, 1, 1)
    return Layer(name, weight, stride=scale, padding=3 * scale // 2 + _REACH * scale, groups=channels)


def _extend(image: Tensor) -> Tensor:
    return F.pad(image, [_REACH] * 4, mode="replicate")


def _time_layer(layer: Layer, image: Tensor, device: torch.device) -> StageResult:
    ours, torchs = layer(deconv_ext.conv_transpose2d, image), layer(F.conv_transpose2d, image)
    timings = time_interleaved(
        {
            "ours": [functools.partial(layer, deconv_ext.conv_transpose2d, image)],
            "torch": [functools.partial(layer, F.conv_transpose2d, image)],
        },
        device,
    )
    medians = timings["ours"].median, timings["torch"].median
    return StageResult(layer.name, tuple(ours.shape), *medians, _max_difference(ours, torchs))


def _max_difference(left: Tensor, right: Tensor) -> float:
    return (left - right).abs().max().item()


def _total(result: Result) -> tuple[float, float]:
    return sum(stage.ours_ms for stage in result.stages), sum(stage.torch_ms for stage in result.stages)


def _report(result: Result, device: str) -> None:
    columns = [Column("transposed convolution", text=True), Column("output", text=True)]
    columns += [Column(title) for title in ("ours ms", "torch ms", "speedup", "max difference")]
    ours_ms, torch_ms = _total(result)
    whole = StageResult("together", (), ours_ms, torch_ms, _max_difference(result.ours, result.torch))
    rows = [
        (
            stage.name, " x ".join(map(str, stage.shape)), f"{stage.ours_ms:.3f}", f"{stage.torch_ms:.3f}",
            f"{stage.torch_ms / stage.ours_ms:.2f}x", f"{stage.difference:.1e}",
        )
        for stage in [*result.stages, whole]
    ]  # fmt: skip
    caption = f"the picture against float64: ours {result.ours_error:.1e}, torch {result.torch_error:.1e}"
    print_table(f"deconv_ext against torch, float32, on {device}", columns, rows, caption=caption)


def draw(result: Result, path: str, device: str) -> None:
    """Draws input, both pictures and their amplified difference to a PNG.

    Raises:
        ModuleNotFoundError: if matplotlib is not installed.
    """
    require("matplotlib", "demo")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 9.6), layout="constrained")
    FigureCanvasAgg(figure)
    (input_axis, ours_axis), (difference_axis, torch_axis) = figure.subplots(2, 2)
    ours_ms, torch_ms = _total(result)
    height, width = result.ours.shape[1:]
    _draw_input(input_axis, result)
    ours_axis.imshow(_pixels(result.ours))
    ours_axis.set_title(f"deconv_ext: {width} × {height}, {ours_ms:.3g} ms")
    torch_axis.imshow(_pixels(result.torch))
    torch_axis.set_title(f"torch: {width} × {height}, {torch_ms:.3g} ms")
    _draw_difference(difference_axis, result)
    for axis in (input_axis, ours_axis, difference_axis, torch_axis):
        axis.set_axis_off()
    figure.suptitle(
        f"A photograph upsampled and coloured by three transposed convolutions ({device})", fontweight="bold"
    )
    figure.savefig(path, dpi=130)


def _draw_input(axis: Any, result: Result) -> None:
    """The luminance, with the chroma planes in its corner to scale."""
    height, width = result.luma.shape[1:]
    chroma_height, chroma_width = result.chroma.shape[1:]
    axis.imshow(_pixels(result.luma.expand(3, -1, -1)))
    to_rgb = make_layers(torch.device("cpu"))[2]
    for index, name in enumerate(("Cb", "Cr")):
        planes = torch.full((1, 3, chroma_height, chroma_width), 0.5)
        planes[0, 1 + index] = result.chroma[index]
        left, top = width - (2 - index) * (chroma_width + 8), 8
        inset = axis.inset_axes((left, top, chroma_width, chroma_height), transform=axis.transData)
        inset.imshow(_pixels(to_rgb(F.conv_transpose2d, planes)[0].clamp(0, 1)))
        inset.text(5, 17, name, color="white", fontweight="bold")
        inset.set(xticks=[], yticks=[])
        inset.spines[:].set(color="white", linewidth=1.5)
    axis.set_title(f"input: luminance {width} × {height}, chroma 2 × {chroma_width} × {chroma_height} (to scale)")


def _draw_difference(axis: Any, result: Result) -> None:
    difference = (result.ours - result.torch).abs()
    largest = difference.max().item()
    axis.imshow(_pixels(difference / largest if largest > 0 else difference))
    amplified = f"difference, amplified {1 / largest:.1e} times: white is {largest:.1e}" if largest > 0 else ""
    axis.set_title(amplified or "difference: none, all pixels are equal")


def _pixels(image: Tensor) -> Any:
    return image.movedim(0, -1).numpy()

"""Every kernel on the GPU, at sizes that take many blocks; and what only tensor cores could get wrong."""

import os
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from helpers import USES, poison
from torch import Tensor

import deconv_ext
from deconv_ext.workloads import Case, case, output_size, parse_shape

pytestmark = pytest.mark.gpu

OPS = torch.ops.deconv
DEVICE = "cuda"
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
# Of float32: strict by default. The largest relative error of a result.
MODES = {"float32": 2e-6, "tf32": 1e-3, "float16": 1e-3, "bfloat16": 8e-3}
DIRECTIONS = "forward grad_input grad_weight"
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


class Group(NamedTuple):
    """Layers, what DECONV_KERNELS holds, and in which layouts all of them are planned with which of its options."""

    kernels: str
    part: str
    directions: str
    layouts: str
    shapes: tuple[str, ...]
    mode: str = "bfloat16"


GROUPS = {
    # One, two and four taps that share operand A, warpgroups on taps and on output channels, several small images in a
    # step, odd widths, strips with a ragged end.
    "weights": Group("", "wgrad_sm90", "grad_weight", "contiguous channels_last", (
        "6x64x40x130 to 64 k3", "6x64x20x33 to 24 k3x5 s2x1", "6x40x17x48 to 5 k9 s4", "6x96x12x12 to 200 g2",
        "6x128x4x4 to 256 k4 s2", "6x130x7x9 to 72 k5x2 s3x2",
    )),
    # Taps of one plane along the width and along the height, a plane for each tap, one tap; tiles of output channels,
    # ragged channels, groups that share a tile and groups beyond it; ragged ends of every axis; one pixel; splits and
    # none; operands that are repacked.
    "ss": Group("", "wgrad_sm90.ss", "grad_weight", "channels_last", (
        "3x64x40x130 to 64 k3 p1", "2x72x33x17 to 136 k7x3 p2x0 d1x2", "5x64x24x31 to 128 k5 p2x3 d3x1",
        "9x128x8x8 to 64 k4 s2 p1", "30x256x4x4 to 192 k4 s2 p1", "7x200x13x11 to 72 k3 s2 p1",
        "20x128x14x14 to 256 k2 s2", "2x40x19x23 to 24 k4 s4", "4x32x21x30 to 64 k3 s5 p1 d2", "2x64x50x30 to 320",
        "2x64x30x20 to 64 k3x2 s3x2 p4x1 d2x3", "100x128x1x1 to 512 k4", "5x128x20x20 to 128 k3 s2 p1 g8",
        "5x72x20x28 to 120 k3x5 s1x2 p1 g3", "3x32x40x64 to 64 k3x5 s2x3 p1x2 d2x1 g4", "16x64x130x128 to 64 k3 p1",
        "16x384x30x30 to 256 k4 s2 p1", "32x256x8x8 to 128 k4 s2 p1", "64x100x1x1 to 512 k4",
        "16x64x32x32 to 3 k4 s2 p1", "4x21x16x16 to 21 k16 s8 p4", "5x96x31x17 to 80 k3x5 s2x1 p1x2",
        "3x128x20x23 to 192 k3 p1 g2",
    )),
    # float32, where warps turn the input around: few output channels whose taps share operand A, all widths of N.
    "rs_nhwc": Group("", "wgrad_sm90.rs_nhwc", "grad_weight", "channels_last", (
        "3x64x40x130 to 64 k3 p1", "2x72x33x17 to 136 k7x3 p2x0 d1x2", "9x128x8x8 to 64 k4 s2 p1",
        "30x256x4x4 to 192 k4 s2 p1", "7x200x13x11 to 72 k3 s2 p1", "20x256x14x14 to 256 k2 s2",
        "12x384x14x14 to 192 k2 s2", "2x64x39x43 to 24 k4 s4", "20x64x41x40 to 16 k5 s2 p1",
        "4x32x21x30 to 64 k3 s5 p1 d2", "100x128x1x1 to 512 k4", "5x256x20x20 to 128 k3 s2 p1 g2",
        "16x128x130x128 to 128 k3 p1",
    ), mode="float32"),
    # Rows of the kernel that share an instruction, in planes of the stride; widths at which rows begin in all ways;
    # one and two rows of pixels a tile, idle taps, tiles of output channels side by side.
    "rs_nchw": Group("", "wgrad_sm90.rs_nchw", "grad_weight", "contiguous", (
        "3x64x140x256 to 64 k3", "12x64x65x128 to 64 k4 s2 p1", "16x64x65x128 to 64 k3x4 s2 p1x0",
        "16x64x65x128 to 64 k3 s2 p1", "8x32x60x96 to 32 k3x5 p1x0 d2x3", "8x32x60x104 to 32 k3 p1x0",
        "16x128x50x64 to 72 k3 s2 p1", "8x256x64x64 to 128 k2 s2", "8x72x48x64 to 128 k3 s3x2 p1 g2",
        "40x64x61x32 to 32 k3x2 s1x2 p1", "32x24x60x64 to 64 k1x9 p0x4", "16x64x60x72 to 64 k7x1 s2x1 p3x0 d2x1",
        "8x64x60x264 to 128 k3", "16x32x64x128 to 64 k3x5 s2x3 p1x2 d2x1 g4", "16x64x64x128 to 32 k3 s2 p1",
    )),
    # Few output channels, whose taps count as channels: rows of less than a sector, of several chunks and of the most
    # elements, taps that no pixel has, slices of the images.
    "wgrad_im2col": Group("", "wgrad_sm90", "grad_weight", "channels_last", (
        "16x64x32x32 to 3 k4 s2 p1", "4x128x60x70 to 1 k9 s4 p4", "40x40x17x13 to 2 k3x5 s1x2 p2x0 d2x1",
        "9x200x33x40 to 5 k5x3 s3x2 p0x3", "30x64x14x13 to 8 k8 s2 p3", "64x72x9x9 to 7 k1x13 s1x2 p0x6",
        "20x64x9x40 to 2 k3 p30x1 d30x1", "256x64x1x1 to 3 k4", "12x56x270x480 to 1 k9 s4 p4",
    )),
    # Groups whose channels TMA loads only after a repack; lines that other kernels take.
    "ragged_groups": Group("", "", "grad_weight", "", (
        "64x512x7x5 to 510 k4 s2 p1 g2", "64x260x17x19 to 150 k5x2 s3x2 g2", "256x1024x1x2 to 1022 k4 g2",
        "301x192x5x3 to 382 k3 p1 g2", "64x512x9x9 to 254 k5 s2 p2 g2", "16x640x21x30 to 398 k3 s5 p1 d2 g2",
        "8x512x5x203 to 510 k7x3 p3x1 g2", "64x520x7x5 to 330 k4 s2 p1 g2", "16x80x64x70 to 40 k3 p1 g5",
        "12x138x65x37 to 274 k7x3 p2x0 d1x2 g2", "64x768x16x14 to 510 k2 s2 g2", "16x402x31x43 to 402 k3 s4 p1 g2",
        "8x64x40x160 to 48 k3x7 p2x3", "16x64x33x32 to 136 k5x3 p1", "40x64x30x16 to 64 k4 s2 p1",
    )),
    # Places of a row: less than a chunk, one and a half, one chunk or two and one place; images narrower than a tile,
    # taps that no pixel has, two tiles of result channels.
    "im2col_forward": Group("", "igemm_sm90.im2col", "forward", "contiguous channels_last", (
        "16x3x120x101 to 64 k3 p1", "16x5x121x128 to 80 k7x3 p3x0 d1x2",
    )),
    "im2col_grad_input": Group("", "igemm_sm90.im2col", "grad_input", "contiguous channels_last", (
        "20x64x48x66 to 3 k4 s2 p1", "9x56x74x140 to 1 k9 s4 p4", "12x200x33x40 to 3 k5 s3x2 p0x3",
        "400x96x14x13 to 2 k4 s2 p1 d2x1", "16x128x60x62 to 4 k3x5 s1x2 p2x0 d1x2 g2",
        "16x64x60x62 to 3 k1x43 s1x2 p0x21", "400x64x13x12 to 5 k5x3 p40x20 d20", "16x64x90x94 to 2 k9x1 s2x3 p4x0",
    )),
    # One image of few pixels, many images of one pixel, ragged channels, planes of which each block has a part.
    "clusters_forward": Group("", "igemm_sm90.cluster_split", "forward", "contiguous channels_last", (
        "1x600x8x8 to 40 k3 p1", "1x1600x7x7 to 40 k4 s2 p1", "2x584x4x5 to 64 k5 p2",
    )),
    "clusters_grad_input": Group("", "igemm_sm90.cluster_split", "grad_input", "contiguous channels_last", (
        "1x64x16x24 to 256 k4 s2 p1", "128x100x1x1 to 512 k4", "1x72x7x9 to 520 k3 p1",
        "1x128x8x9 to 1024 k3 p1 g2", "1x144x8x12 to 288 k8 s4 p2 g8",
    )),
    # Tiles side by side that overlap, even and odd widths; warpgroups in turns; flat lines of contiguous results.
    "side_by_side": Group("", "igemm_sm90", "forward", "contiguous channels_last", (
        "8x64x64x129 to 64 k3 s2 p1", "8x128x64x129 to 64 k4 s2 p1", "8x128x8x33 to 40 k3 s2 p1",
        "8x64x70x64 to 48 k3 s2 p1", "8x64x70x130 to 128 k3 p1", "8x32x70x200 to 128 k3 p1",
        "8x32x70x129 to 64 k3 p1", "8x128x40x40 to 64 k7 p1",
    )),
    # Kernels as large as the stride: channels of one class and of several, weights that stay and that do not.
    "1tap": Group("", "igemm_sm90.1tap", "forward", "contiguous", (
        "16x1000x16x32 to 500 k2 s2", "16x128x64x76 to 64 k2 s2", "64x256x14x14 to 128 k2 s2",
        "512x96x7x6 to 40 k4 s4", "64x128x25x25 to 32 k2 s2", "8x192x40x48 to 66 k3x4 s3x4 p1x2 g3",
        "16x80x48x80 to 40 k2x5 s2x5",
    )),
    # Every pattern of taps, tiles that end beyond the image.
    "stride2": Group("", "igemm_sm90.stride2", "forward", "contiguous", (
        "64x96x24x24 to 64 k3 s2 p1 op1", "256x64x8x8 to 64 k3 s2 p1 op1", "1x64x200x304 to 64 k3 s2 p1 op1",
        "16x192x32x32 to 192 k3 s2 p1 op1 g3", "32x64x48x48 to 64 k3 s2 op1", "64x64x16x16 to 64 k4 s2 p1",
        "16x128x32x32 to 60 k4 s2 p1", "32x64x32x32 to 40 k4 s2",
    )),
    # Images of 4, 8, 12 and 16 columns that a kernel of 4 doubles; batches and channels that fill no tile.
    "whole_images": Group("", "igemm_sm90.whole_images", "forward", "contiguous", (
        "131x512x4x4 to 250 k4 s2 p1", "100x256x4x8 to 128 k4 s2 p1", "130x256x8x4 to 128 k4 s2 p1",
        "127x256x8x8 to 128 k4 s2 p1", "65x768x16x12 to 250 k4 s2 p1", "61x512x12x16 to 256 k4 s2 p1",
        "64x512x16x16 to 256 k4 s2 p1", "128x390x8x8 to 384 k4 s2 p1 g3", "51x160x16x12 to 140 k4 s2 p1 g2",
        "600x64x4x4 to 70 k4 s2 p1",
    )),
    # Shifts of two and three, phases and channels that fill operand B and do not, images that end within tiles.
    "all_phases": Group("", "igemm_sm90.all_phases", "forward", "contiguous", (
        "128x64x32x32 to 3 k4 s2 p1", "4x56x90x160 to 1 k9 s4 p4", "16x64x64x64 to 16 k4 s2 p1",
        "8x64x96x96 to 3 k3 s2 p1", "16x64x63x136 to 4 k3 p1", "32x96x40x56 to 8 k4 s2 p1 g2",
    )),
    # Weights that TMA takes from where they lie: ragged chunks and blocks of channels, blocks that reach into the next
    # group.
    "in_place_grad_input": Group("", "igemm_sm90.weights_in_place", "grad_input", "channels_last", (
        "4x128x24x40 to 64 k4 s2 p1", "4x192x15x22 to 256 k3x5 s2 p1 g2", "4x80x33x45 to 64 k1x3 p1",
    )),
    "in_place_forward": Group("", "igemm_sm90.weights_in_place", "forward", "channels_last", (
        "4x128x24x40 to 64 k4 s2 p1", "4x200x15x22 to 136 k3x5 s2 p1", "4x256x33x45 to 144 k3 p1 g2",
        "4x72x33x45 to 24", "4x640x7x9 to 264 k3 p1",
    )),
    # Tiles that multiply zeros: columns that share rows, groups that share a tile, two phases side by side.
    "mixing": Group("", "igemm_sm90", "forward grad_input", "contiguous channels_last", (
        "8x32x65x130 to 32 k3 p1", "8x256x33x45 to 256 k3 p1 g32", "8x512x33x45 to 512 k4 s2 p1 g16",
        "8x160x33x45 to 200 k4 s2 p1 g8", "8x64x65x62 to 64 k4 s2 p1", "8x64x65x64 to 64 k4 s2 p1",
    )),
    # Results of even and odd widths whose phases are stored together or apart, tiles of one line and of many, phases
    # without taps, several images of a tile, halos that stay for all phases, one turn in all, groups.
    "sm80_conv": Group("igemm_sm80", "igemm_sm80", "forward grad_input", "contiguous channels_last", (
        "2x64x40x64 to 64 k4 s2 p1", "2x48x40x65 to 70 k3 s2 p1 op1", "4x64x64x96 to 144 k2 s2",
        "4x36x60x62 to 60 k5 s2 p2 op1", "2x64x33x40 to 136 k5x3 s2 p0x1", "3x32x20x130 to 32 k2 s2 op0x1",
        "2x40x17x90 to 20 s2 op1", "9x72x4x4 to 64 k4 s2 p1", "2x64x30x70 to 64 k3 p1x0",
        "2x64x24x31 to 130 k3x5 s3x1 p1x2 op1x0 d1x2", "2x24x20x33 to 40 k4 s4",
        "2x33x26x50 to 64 k3x4 s1x2 p1 d2x1", "8x96x40x48 to 512", "4x200x30x40 to 264 k2 s2",
        "2x48x12x14 to 40 k6 s5 p1 op2", "1x16x9x11 to 24", "2x144x21x30 to 80 k4 s2 p1 g2",
    )),
    # One, some and all taps of a block, planes of the stride together and apart, groups beyond a tile, splits and none.
    "sm80_weight": Group("igemm_sm80", "igemm_sm80", "grad_weight", "contiguous channels_last", (
        "3x64x40x130 to 64 k3 p1", "6x64x20x33 to 24 k3x5 s2x1", "6x40x17x48 to 5 k9 s4", "6x96x12x12 to 200 g2",
        "6x128x4x4 to 256 k4 s2 p1", "6x130x7x9 to 72 k5x2 s3x2", "2x72x33x17 to 136 k7x3 p2x0 d1x2",
        "4x32x21x30 to 64 k3 s5 p1 d2", "4x21x16x16 to 21 k16 s8 p4", "16x64x32x32 to 3 k4 s2 p1",
        "100x128x1x1 to 512 k4", "5x72x20x28 to 120 k3x5 s1x2 p1 g3", "2x64x30x20 to 64 k3x2 s3x2 p4x1 d2x3",
        "40x8x64x64 to 16 k3 p1",
    )),
    # Sizes around the tile, phases without taps, one pixel.
    "small_channel": Group("small_channel", "small_channel", "forward", "contiguous channels_last", (
        "3x64x9x33 to 3 k4 s2 p1", "3x7x5x6 to 1 k9 s4 p4", "3x12x10x7 to 15 k3x5 s2x3 p1x2 d2x1 g3",
        "3x24x6x40 to 19 k3 s5 p1 d2", "3x20x1x1 to 40 k4", "3x33x1x5 to 9 k3 s2 p1", "3x3x17x17 to 8 k7 p3 d2",
        "3x16x6x24 to 33 k1x5 s2x1", "3x16x10x21 to 34 k2x3 s2x5 d2 g2",
    )),
    # Widths that wide, narrow and no copies take, one to three products' tiles a warp, phases with different numbers of
    # taps and with none, segments with a ragged end, stores of 1, 2 and 4.
    "col2im": Group("col2im", "col2im", "forward", "contiguous channels_last", (
        "3x64x9x64 to 3 k4 s2 p1", "3x64x9x33 to 3 k4 s2 p1", "3x40x70x34 to 2 k5 s2 p2",
        "3x56x40x120 to 1 k9 s4 p4", "3x36x10x7 to 15 k3x5 s2x3 p1x2 d2x1 g3", "3x33x21x48 to 8 k3 s2 p1",
        "3x24x6x40 to 6 k3 s5 p1 d2", "3x20x1x1 to 3 k4", "3x66x1x5 to 8 k3 s2 p1 g2", "3x76x30x24 to 4 k2 s2 g4",
        "3x3x17x17 to 3 k5 p2 d2", "3x16x33x130 to 1 k1x12 s1x4",
    )),
    # Units of every width, blocks that begin before the image and end behind it, paddings beyond a block, one pixel.
    "sub_pixel": Group("sub_pixel", "sub_pixel", DIRECTIONS, "contiguous channels_last", (
        "3x21x16x16 to 21 k64 s32 p16", "3x64x33x40 to 3 k4 s2 p1", "3x40x20x17 to 12 k4 s4 op1x3",
        "3x32x15x70 to 24 k2x6 s2x3 p1x4 op1x2 g2", "3x18x30x9 to 7 k3x8 s1x8 p2x5 op0x4", "3x64x40x40 to 48 k2 s2",
        "3x16x5x6 to 1 k6x4 s3x2 p5x3 op2x1", "40x100x1x1 to 512 k4", "3x64x1x1 to 96 k4x3 s2x1 g2",
        "17x128x1x1 to 70 k4 s2 p1",
    )),
    # Every kernel that walks down rows, several segments, lines in parts, a padding of the height that the width lacks.
    "depthwise": Group("depthwise", "depthwise.row_stream", DIRECTIONS, "contiguous channels_last", (
        "40x66x70x48 to 66 k3 p0x1 g66", "8x64x40x544 to 64 k3 p1 g64", "40x64x30x40 to 64 k2 s2 p1x0 op1x0 g64",
        "40x64x45x24 to 64 k3 s2 p0x1 op0x1 g64", "8x66x33x272 to 66 k4 s2 p3x1 op1x0 g66",
    )),
    # Groups of 1 to 30 channels, more on one side than on the other, all of them together and a few.
    "group_merge": Group("group_merge", "group_merge", "grad_weight", "contiguous channels_last", (
        "16x64x32x32 to 64 k4 s2 p1 g16", "9x60x19x24 to 60 k3 p1 g20", "8x21x17x15 to 42 k5x3 s2x1 p2x0 op1x0 g7",
        "5x96x14x14 to 32 k3 s2 p1 op1 g16", "5x60x13x16 to 56 k2 s2 g2", "7x40x20x9 to 40 g10",
        "4x66x30x40 to 66 k7 p3 g66", "3x24x1x1 to 72 k4 g6",
    )),
}  # fmt: skip


class Call:
    """One call of an operator, of random operands."""

    def __init__(self, one: Case, direction: str, mode: str, layout: str) -> None:
        self.direction, self.mode = direction, mode
        self.name = f"{one['name']} {direction} {mode} {layout}"
        torch.backends.cudnn.allow_tf32 = mode == "tf32"
        dtype = getattr(torch, mode.replace("tf32", "float32"))
        self.sizes = {
            "x": (one["n"], one["ci"], one["h"], one["w"]), "w": (one["ci"], one["co"] // one["g"], *one["k"]),
            "y": (one["n"], one["co"], *output_size(one)),
        }  # fmt: skip
        self.names = {"forward": "xw", "grad_input": "yw", "grad_weight": "xy"}[direction]
        random = [torch.randn(self.sizes[name], device=DEVICE) for name in self.names]
        self.operands = [tensor.to(dtype).to(memory_format=LAYOUTS[layout]) for tensor in random]
        self.bias = torch.randn(one["co"], device=DEVICE).to(dtype) if direction == "forward" else None
        self.extent = {"forward": (), "grad_input": self.sizes["x"][2:], "grad_weight": one["k"]}[direction]
        self.arguments = (one["s"], one["p"], one["op"], one["g"], one["d"])

    def run(self, operands: list[Tensor] | None = None) -> Tensor:
        first, second = operands or self.operands
        if self.direction == "forward":
            return OPS.conv_transpose2d(first, second, self.bias, *self.arguments)
        function = getattr(OPS, f"conv_transpose2d_{self.direction}")
        return function(first, second, self.extent, *self.arguments)

    def plan(self) -> str:
        text = OPS.explain(*self.operands, self.bias, *self.arguments, self.direction, self.extent)
        return next(str(line) for line in text.splitlines() if line.startswith("  plan: "))

    def reference(self, first: Tensor, second: Tensor, bias: Tensor | None = None) -> Tensor:
        """In float64."""
        stride, padding, output_padding, groups, dilation = self.arguments
        wide = {name: tensor.double() for name, tensor in zip(self.names, (first, second), strict=True)}
        if self.direction == "forward":
            bias = None if bias is None else bias.double()
            return F.conv_transpose2d(wide["x"], wide["w"], bias, *self.arguments)
        (result,) = {"x", "w"} - wide.keys()
        wide[result] = first.new_zeros(self.sizes[result], dtype=torch.float64)
        rest = (None, stride, padding, dilation, True, output_padding, groups, [result == "x", result == "w", False])
        gradients = torch.ops.aten.convolution_backward(wide["y"], wide["x"], wide["w"], *rest)
        return gradients["xw".index(result)]

    def check(self) -> None:
        """Float64, every result written, the same bits in 10 calls, operands that lie otherwise."""
        expected = self.reference(*self.operands, self.bias)
        poison(DEVICE, expected.numel() * self.operands[0].element_size())
        result = self.run()
        self.check_close(result, expected)
        for _ in range(10):
            assert torch.equal(self.run(), result), self.name
        for i, tensor in enumerate(self.operands):
            for other in _arranged(tensor):
                operands = [*self.operands]
                operands[i] = other
                self.check_close(self.run(operands), expected)
        self._check_not_finite(expected)

    def check_close(self, result: Tensor, expected: Tensor) -> None:
        assert result.shape == expected.shape, self.name
        error = ((result.double() - expected).norm() / expected.norm()).item()
        assert error <= MODES[self.mode], (error, self.name)

    def _check_not_finite(self, expected: Tensor) -> None:
        """One infinity: where it goes, and that it goes nowhere else."""
        source = self.operands[0]
        n, c, h, w = (size // 2 for size in source.shape)
        source[n, c, h, w] = float("inf")
        alone = torch.zeros_like(source)
        alone[n, c, h, w] = 1
        reached = self.reference(alone, self.operands[1])
        result = self.run()
        if self.direction != "grad_weight":
            assert torch.equal(result == float("inf"), reached > 0), self.name
            assert torch.equal(result == float("-inf"), reached < 0), self.name
            others = reached == 0
        else:  # taps beyond the image may meet it, times zero
            assert not result[reached != 0].isfinite().any(), self.name
            others = torch.ones_like(result, dtype=torch.bool)
            others[c] = False
        self.check_close(result[others], expected[others])


def _arranged(tensor: Tensor) -> list[Tensor]:
    """The same values off 16 bytes, in rows and in columns apart, NaN between them, and in the other format."""
    off = tensor.new_empty(tensor.numel() + 1)[1:].as_strided(tensor.size(), tensor.stride()).copy_(tensor)
    nan = float("nan")
    apart = tensor.new_full((*tensor.shape[:3], 2 * tensor.shape[3] + 1), nan)[..., 1::2].copy_(tensor)
    is_contiguous = tensor.is_contiguous()
    other = tensor.to(memory_format=torch.channels_last if is_contiguous else torch.contiguous_format)
    return [off, F.pad(tensor, (8, 8), value=nan)[..., 8:-8], apart, other]


def _check_group(group: Group) -> None:
    torch.manual_seed(0)
    for shape in group.shapes:
        for direction in group.directions.split():
            for mode in MODES:
                for layout in LAYOUTS:
                    call = Call(parse_shape(shape, shape), direction, mode, layout)
                    if mode == group.mode and layout in group.layouts:
                        assert re.search(USES[group.part], call.plan()), (call.plan(), call.name)
                    if mode == "bfloat16" and not group.kernels:
                        with deconv_ext.autotune(16):  # by the quickest of the likeliest
                            call.check_close(call.run(), call.reference(*call.operands, call.bias))
                    call.check()


def _run(kernels: str, *command: str) -> None:
    """In a process of its own, as DECONV_KERNELS is read once."""
    env = {**os.environ, "DECONV_KERNELS": kernels, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", GROUPS)
def test_layers(name: str) -> None:
    if not (HOPPER or GROUPS[name].kernels):
        pytest.skip("needs a Hopper GPU")
    _run(GROUPS[name].kernels, __file__, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernels",
    ["simt", "depthwise", "igemm_sm90,wgrad_sm90", "igemm_sm80", "small_channel", "col2im", "sub_pixel", "group_merge"],
)
def test_self_test_with_one_family(kernels: str) -> None:
    """What a family refuses goes to simt; what it takes must be right without the others' help."""
    _run(kernels, "-m", "deconv_ext", "check")


def _check_slices() -> None:
    """More images than the workspace takes at a time: of the result, of both, and of the source, six and then five."""
    for shape, words in (
        ("5x16x234x235 to 64 k3 s3", "result unpacked"), ("4x64x200x301 to 64 k3 s3", "result unpacked"),
        ("11x48x512x512 to 40 k3 p1", "source repacked"),
    ):  # fmt: skip
        call = Call(parse_shape(shape, shape), "forward", "bfloat16", "contiguous")
        assert words in call.plan(), call.plan()
        result = call.run()
        x, weight = call.operands
        for i in range(len(x)):
            call.check_close(result[i : i + 1], call.reference(x[i : i + 1], weight, call.bias))


@pytest.mark.slow
def test_operands_rewritten_in_slices() -> None:
    _run("igemm_sm80", __file__, "slices")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["float32", "tf32"])
def test_float32_follows_the_tf32_switch(mode: str, layout: str) -> None:
    """2,304 products a sum: strict float32 stays below 1e-6, TF32 near 3e-4."""
    call = Call(case("switch", 4, 256, 32, 32, 128, 3), "forward", mode, layout)
    expected = call.reference(*call.operands, call.bias)
    error = ((call.run().double() - expected).norm() / expected.norm()).item()
    if mode == "tf32" and "igemm" in call.plan():
        assert 1e-5 < error < 6e-4
    else:
        assert error < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("where", ["input", "weight"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3.4e38, 1e-40])
def test_extreme_values_go_where_they_belong(value: float, where: str, layout: str) -> None:
    """One value among ordinary ones: the outputs it reaches are what float64 says, the others stay exact.

    A weight that is not finite meets the zeros around the image as well, in every kernel that pads with them; so for
    weights the outputs that all taps reach are compared.
    """
    x, weight = torch.randn(2, 64, 24, 24), torch.randn(64, 64, 3, 3)
    (x if where == "input" else weight).view(-1)[4321] = value
    expected = F.conv_transpose2d(x.double(), weight.double()).to(torch.float32)
    result = OPS.conv_transpose2d(x.to(DEVICE, memory_format=LAYOUTS[layout]), weight.to(DEVICE)).cpu()
    if where == "weight":
        expected, result = expected[..., 2:-2, 2:-2], result[..., 2:-2, 2:-2]
    # Close to the largest float32 the order of additions decides about overflow.
    ordinary = expected.isfinite() & (expected.abs() < 1e30)
    assert torch.equal(result.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert (result[infinite].abs() > 1e30).all()
    assert torch.equal(result[infinite].sign(), expected[infinite].sign())
    torch.testing.assert_close(result[ordinary], expected[ordinary], rtol=1e-5, atol=2e-4)


if __name__ == "__main__":
    if sys.argv[1] == "slices":
        _check_slices()
    else:
        _check_group(GROUPS[sys.argv[1]])

"""Draws the pictures of docs/kernels/ into docs/images: phases.svg, taps.svg and tiles.svg.

python tools/draw_mathematics.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

IMAGES = Path(__file__).parent.parent / "docs/images"
PHASES = ["#4477aa", "#ee6677", "#228833", "#a58a00"]
GREY, LIGHT = "#555555", "#eeeeee"


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A white figure whose unit is one cell."""
    figure, axes = plt.subplots(figsize=(width * 0.5, height * 0.5), facecolor="white")
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    return figure, axes


def cell(axes: Axes, x: float, y: float, color: str, text: str = "", size: float = 1) -> None:
    axes.add_patch(Rectangle((x, y), size, size, facecolor=color, edgecolor="white", linewidth=1.5))
    axes.text(x + size / 2, y + size / 2, text, ha="center", va="center", color="white" if color != LIGHT else GREY)


def save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / name, metadata={"Date": None})
    plt.close(figure)


def draw_phases() -> None:
    """One axis: which output pixel meets which input pixel through which tap."""
    inputs, kernel, stride, padding, outputs = 4, 3, 2, 1, 8
    figure, axes = canvas(18, 6.4)
    axes.text(0.3, 1.0, "input", va="center")
    axes.text(0.3, 5.0, "output", va="center")
    left, pitch = 2.6, 2 * stride - 0.4
    for i in range(inputs):
        cell(axes, left + i * pitch + 0.5, 0.5, GREY, f"x{i}")
    for o in range(outputs):
        cell(axes, left + o * pitch / stride, 4.5, PHASES[o % stride], f"y{o}")
        for i in range(inputs):
            tap = o + padding - i * stride
            if 0 <= tap < kernel:
                start, end = (left + i * pitch + 1, 1.55), (left + o * pitch / stride + 0.5, 4.45)
                axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": PHASES[o % stride]})
                x, y = (start[0] + 2 * end[0]) / 3, (start[1] + 2 * end[1]) / 3
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                axes.text(x, y, f"w{tap}", ha="center", va="center", color=PHASES[o % stride], bbox=box, fontsize=9)
    axes.text(left, 6.05, "phase 0: one tap", color=PHASES[0], va="center")
    axes.text(left + 5, 6.05, "phase 1: two taps (fewer at the border)", color=PHASES[1], va="center")
    save(figure, "phases.svg")


def draw_taps() -> None:
    """Two axes: the phases of the output, and the taps of a 3x3 kernel that each of them reads."""
    stride, kernel, padding, extent = 2, 3, 1, 6
    figure, axes = canvas(24, 8.6)
    axes.text(0.5, 0.8, "output pixels, coloured by phase", va="center")
    for y in range(extent):
        for x in range(extent):
            phase = (y % stride) * stride + x % stride
            cell(axes, 0.5 + x, 1.5 + y, PHASES[phase], f"{y % stride},{x % stride}")
    axes.text(8.5, 0.8, "taps of the kernel that the pixels of a phase meet", va="center")
    for phase in range(stride * stride):
        row, column = divmod(phase, stride)
        left = 8.5 + 3.9 * phase
        count = 0
        for y in range(kernel):
            for x in range(kernel):
                meets = (row + padding - y) % stride == 0 and (column + padding - x) % stride == 0
                count += meets
                cell(axes, left + x, 1.5 + y, PHASES[phase] if meets else LIGHT, f"w{y}{x}")
        axes.text(left, 5.1, f"phase {row},{column}", va="center", color=PHASES[phase])
        axes.text(left, 5.8, f"{count} tap{'s' if count > 1 else ''}", va="center", color=PHASES[phase])
    axes.text(8.5, 7.2, "1 + 2 + 2 + 4 = 9: each tap belongs to one phase, so no product is", va="center")
    axes.text(8.5, 7.9, "computed twice and none is a product with an inserted zero.", va="center")
    save(figure, "taps.svg")


def draw_tiles() -> None:
    """The gather family's block: from one phase's pixels to a block, a unit of 8 rows by 32 columns, and a thread."""
    figure, axes = canvas(27, 8.9)
    axes.text(0.5, 0.8, "pixels of one phase, cut into blocks", va="center")
    for row in range(5):
        for column in range(3):
            own = (row, column) == (1, 1)
            shade = PHASES[0] if own else LIGHT
            axes.add_patch(Rectangle((0.5 + 2.2 * column, 1.5 + 1.1 * row), 2.1, 1.0, facecolor=shade))
    axes.text(0.5, 7.6, "the same pixels again for\nevery group of 64 channels", va="center", color=GREY, fontsize=9)

    axes.text(9, 0.8, "a block: 8 warps, 8 channels each, the same pixels", va="center")
    for warp in reversed(range(8)):
        x, y = 9 + 0.32 * warp, 4.6 - 0.32 * warp
        shade = PHASES[0] if warp == 0 else "#a8c0d8"
        axes.add_patch(Rectangle((x, y), 5.2, 2.0, facecolor=shade, edgecolor="white"))
    axes.text(11.6, 5.6, "warp 0\nchannels 0..7", ha="center", va="center", color="white", fontsize=9)
    axes.text(13.4, 7.2, "warps 1..7 behind it", ha="center", va="center", color=GREY, fontsize=9)
    axes.text(9, 8.2, "the input tile and the weights of all of them\nlie in shared memory", va="center", color=GREY,
              fontsize=9)  # fmt: skip

    axes.text(18.6, 0.8, "a warp: 8 rows, a lane a column", va="center")
    for row in range(8):
        for lane in range(32):
            shade = PHASES[1] if lane == 9 else "#a8c0d8"
            axes.add_patch(Rectangle((18.6 + 0.21 * lane, 1.5 + 0.42 * row), 0.18, 0.38, facecolor=shade))
    axes.text(18.6, 5.3, "32 lanes: neighbouring lanes, neighbouring pixels", va="center", color=GREY, fontsize=9)
    axes.text(18.6, 6.4, "one thread: 8 rows x 8 channels", va="center", color=PHASES[1])
    axes.text(18.6, 7.1, "= 64 sums in registers", va="center", color=PHASES[1])
    save(figure, "tiles.svg")


if __name__ == "__main__":
    plt.rcParams.update({"svg.hashsalt": "deconv_ext", "font.size": 11})
    draw_phases()
    draw_taps()
    draw_tiles()

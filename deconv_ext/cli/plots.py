"""Charts of a benchmark report: speedups and the roofline, or a sweep's axes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from deconv_ext.cli.console import require
from deconv_ext.cli.sweep import Point, points_of

# Okabe and Ito's colours, which the colour-blind tell apart.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
_OURS, _RIVAL, _INK, _GRID = "#0072B2", "#D55E00", "#333333", "#E0E0E0"
_MARKERS = "osD^vPX*"
_LINE_STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_MAX_LABELLED_BARS = 48
_MAX_LABELLED_POINTS = 16
_PANELS_A_ROW = 3
_MAX_LEVEL_TICKS = 11
_DPI = 160

Row = dict[str, Any]
Series = tuple[str, str]


def require_matplotlib() -> None:
    """Raises ModuleNotFoundError, naming the extra that brings it, where matplotlib is not installed."""
    require("matplotlib", "bench")


def draw(report: dict[str, Any], path: str | Path) -> None:
    """Draws a report of ``bench.run`` to a PNG: for each direction the speedup of every case, and a roofline chart.

    Raises:
        ValueError: if the report holds no timed row.
        ModuleNotFoundError: if matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in report["rows"] if "speedup" in row]
    if not rows:
        raise ValueError("the report has no timed row; a chart needs at least one")
    directions = _distinct(row["direction"] for row in rows)
    cases = _distinct(row["case"] for row in rows)
    series = _distinct(_series(row) for row in rows)

    width = min(20.0, max(4.6 * len(directions), 8.5, len(cases) * (0.16 + 0.09 * len(series)))) + 2.7
    heights = [2.7 * len(directions) + 1.2, 4.9]
    figure: Any = Figure(figsize=(width, sum(heights) + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subfigures(2, 1, height_ratios=heights)
    speedup_axes = upper.subplots(len(directions), 1, sharex=True, squeeze=False)[:, 0]
    roofline_axes = lower.subplots(1, len(directions), sharey=True, squeeze=False)[0]
    for direction, speedup_axis, roofline_axis in zip(directions, speedup_axes, roofline_axes, strict=True):
        chosen = [row for row in rows if row["direction"] == direction]
        _draw_speedups(speedup_axis, chosen, cases, series)
        _draw_roofline(roofline_axis, chosen, series, report)
        speedup_axis.set_title(f"{direction}: speedup over {report['rival']}", loc="left", color=_INK)
        roofline_axis.set_title(f"{direction}: roofline", loc="left", color=_INK)
    speedup_axes[-1].set_xticks(range(len(cases)), cases, rotation=40, ha="right", rotation_mode="anchor")
    roofline_axes[0].set_ylabel("achieved TFLOP/s")
    _add_roofline_legend(roofline_axes[-1], series, report)
    figure.suptitle(_heading(report), fontsize=13, fontweight="bold", color=_INK)
    figure.savefig(path, dpi=_DPI)


def draw_sweep(report: dict[str, Any], path: str | Path) -> None:
    """Draws a sweep's report to a PNG: a panel an axis, time over floor of both against the axis' values.

    Raises:
        ValueError: if the report holds no timed row.
        ModuleNotFoundError: if matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = [point for point in points_of(report) if point.over_floor is not None]
    if not points:
        raise ValueError("the report has no timed row; a chart needs at least one")
    names = _distinct(point.axis for point in points)
    lines = _distinct(_sweep_line(point) for point in points)
    columns = min(_PANELS_A_ROW, len(names))
    rows = math.ceil(len(names) / columns)
    figure: Any = Figure(figsize=(max(8.5, 4.6 * columns), 3.1 * rows + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        _draw_axis_of_sweep(panel, name, [point for point in points if point.axis == name], lines)
    for panel in list(panels)[len(names) :]:
        panel.remove()
    _add_sweep_legend(figure, lines, report["rival"])
    figure.suptitle(f"{_heading(report)}\ntime over floor", fontsize=13, fontweight="bold", color=_INK)
    figure.savefig(path, dpi=_DPI)


def _sweep_line(point: Point) -> tuple[str, str, str]:
    return point.row["mode"], point.row["layout"], point.row["direction"]


def _sweep_style(index: int) -> dict[str, Any]:
    line_style, marker = _LINE_STYLES[index % len(_LINE_STYLES)], _MARKERS[index % len(_MARKERS)]
    return {"linestyle": line_style, "marker": marker, "markersize": 4, "linewidth": 1.3}


def _draw_axis_of_sweep(panel: Any, name: str, points: Sequence[Point], lines: Sequence[tuple[str, str, str]]) -> None:
    """Both contestants over the values of one axis, evenly spaced."""
    values = sorted(_distinct(point.value for point in points))
    for index, line in enumerate(lines):
        mine = [point for point in points if _sweep_line(point) == line]
        places = [values.index(point.value) for point in mine]
        style = _sweep_style(index)
        panel.plot(places, [point.rival_over_floor for point in mine], color=_RIVAL, zorder=2, **style)
        panel.plot(places, [point.over_floor for point in mine], color=_OURS, zorder=3, **style)
    panel.axhline(1, color=_INK, linewidth=1.0, zorder=1)
    panel.set_yscale("log")
    _set_plain_ticks(panel.yaxis, "×")
    panel.set_xticks(range(len(values)), values, rotation=90 if len(values) > _MAX_LEVEL_TICKS else 0, fontsize=8)
    panel.set_title(name, loc="left", color=_INK)
    panel.grid(color=_GRID, zorder=0)
    panel.spines[["top", "right"]].set_visible(False)


def _add_sweep_legend(figure: Any, lines: Sequence[tuple[str, str, str]], rival: str) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=_OURS, label="deconv_ext"), Line2D([], [], color=_RIVAL, label=rival)]
    for index, line in enumerate(lines):
        handles.append(Line2D([], [], color="#888888", label=" ".join(line), **_sweep_style(index)))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=9)


def _series(row: Row) -> Series:
    return row["mode"], row["layout"]


def _heading(report: dict[str, Any]) -> str:
    versions = f"torch {report['torch']}" + (f", cuDNN {report['cudnn']} in benchmark mode" if report["cudnn"] else "")
    return f"deconv_ext against {report['rival']} through torch\n{report['device']}, {versions}, {report['date']}"


def _draw_speedups(axis: Any, rows: Sequence[Row], cases: Sequence[str], series: Sequence[Series]) -> None:
    """Bars from the 1x line: up where the operator is faster, down where it is slower."""
    width = 0.8 / len(series)
    for index, one in enumerate(series):
        mine = [row for row in rows if _series(row) == one]
        if not mine:
            continue
        places = [cases.index(row["case"]) + (index - (len(series) - 1) / 2) * width for row in mine]
        speedups = [row["speedup"] for row in mine]
        mean = statistics.geometric_mean(speedups)
        colour = _COLOURS[index % len(_COLOURS)]
        label = f"{' '.join(one)}: {mean:.2f}×"
        axis.bar(places, [speedup - 1 for speedup in speedups], 0.92 * width, 1, color=colour, label=label, zorder=2)
        if len(series) * len(cases) <= _MAX_LABELLED_BARS:
            _label_bars(axis, places, speedups)
    axis.axhline(1, color=_INK, linewidth=1.3, zorder=3)
    axis.set_yscale("log")
    lowest, highest = (extreme(row["speedup"] for row in rows) for extreme in (min, max))
    axis.set_ylim(min(0.65, 0.8 * lowest), max(1.6, 1.3 * highest))
    _set_plain_ticks(axis.yaxis, "×", dense=highest / lowest < 4)
    axis.set_xlim(-0.6, len(cases) - 0.4)
    axis.grid(axis="y", color=_GRID, zorder=0)
    _put_legend_beside(axis, title="geometric mean")
    axis.spines[["top", "right"]].set_visible(False)


def _label_bars(axis: Any, places: Sequence[float], speedups: Sequence[float]) -> None:
    for place, speedup in zip(places, speedups, strict=True):
        up = speedup >= 1
        axis.annotate(
            f"{speedup:.2f}" if speedup < 9.95 else f"{speedup:.0f}", (place, speedup), (0, 3 if up else -3),
            textcoords="offset points", ha="center", va="bottom" if up else "top", fontsize=7, color=_INK,
        )  # fmt: skip


def _draw_roofline(axis: Any, rows: Sequence[Row], series: Sequence[Series], report: dict[str, Any]) -> None:
    """Both contestants of each case, joined by a line, under what the device reached on the spot."""
    points = [(row["gflop"] / row["gb"], row["tflops"], row["gflop"] / row["cudnn_ms"]) for row in rows]
    size = 6 if len(rows) <= 40 else 4.5
    for row, (intensity, ours, rival) in zip(rows, points, strict=True):
        marker = _MARKERS[series.index(_series(row)) % len(_MARKERS)]
        axis.plot([intensity] * 2, [ours, rival], color="#BBBBBB", linewidth=0.8, zorder=1)
        axis.plot(intensity, rival, marker, markersize=size, markeredgecolor=_RIVAL, markerfacecolor="white", zorder=2)
        axis.plot(intensity, ours, marker, markersize=size, color=_OURS, zorder=3)
        if len(rows) <= _MAX_LABELLED_POINTS:
            axis.annotate(
                row["case"], (intensity, max(ours, rival)), (0, 5),
                textcoords="offset points", ha="center", va="bottom", fontsize=7, color=_INK,
            )  # fmt: skip
    ceilings = _ceilings(series, report)
    intensities, ours, rival = zip(*points, strict=True)
    left, right = 0.6 * min(intensities), 2.5 * max(intensities)
    _draw_ceilings(axis, ceilings, report["copy_GBps"] / 1e3, left, right)
    axis.set(xscale="log", yscale="log", xlim=(left, right))
    axis.set_ylim(0.5 * min(*ours, *rival), 2.5 * max(*ours, *rival, *ceilings.values()))
    _set_plain_ticks(axis.xaxis)
    _set_plain_ticks(axis.yaxis)
    axis.set_xlabel("arithmetic intensity, FLOP/byte")
    axis.grid(color=_GRID, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_ceilings(axis: Any, ceilings: dict[str, float], copy_tbps: float, left: float, right: float) -> None:
    """The slope of the copy rate, up to the matrix product rate of each mode."""
    for rate, style in zip(ceilings.values(), _LINE_STYLES, strict=False):
        xs = [left, min(max(rate / copy_tbps, left), right), right]
        axis.plot(xs, [min(rate, x * copy_tbps) for x in xs], linestyle=style, color=_INK, linewidth=1.3, zorder=2)


def _add_roofline_legend(axis: Any, series: Sequence[Series], report: dict[str, Any]) -> None:
    from matplotlib.lines import Line2D

    marks: dict[str, Any] = {"marker": "o", "linestyle": ""}
    handles = [
        Line2D([], [], color=_OURS, label="deconv_ext", **marks),
        Line2D([], [], markeredgecolor=_RIVAL, markerfacecolor="white", label=report["rival"], **marks),
    ]
    if len(series) > 1:
        for one, marker in zip(series, _MARKERS, strict=False):
            handles.append(Line2D([], [], marker=marker, linestyle="", color="#888888", label=" ".join(one)))
    handles.append(Line2D([], [], linestyle="", label=f"measured ceilings:\ncopy {report['copy_GBps']:.0f} GB/s"))
    for (mode, rate), style in zip(_ceilings(series, report).items(), _LINE_STYLES, strict=False):
        label = f"{mode} matmul {rate:.3g} TFLOP/s"
        handles.append(Line2D([], [], linestyle=style, color=_INK, linewidth=1.3, label=label))
    _put_legend_beside(axis, handles=handles)


def _ceilings(series: Sequence[Series], report: dict[str, Any]) -> dict[str, float]:
    return {mode: report["matmul_TFLOPs"][mode] for mode, _ in series}


def _put_legend_beside(axis: Any, **arguments: Any) -> None:
    legend = axis.legend(
        loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=9, alignment="left", **arguments
    )
    legend.get_title().set_fontsize(9)


def _set_plain_ticks(axis: Any, unit: str = "", dense: bool = False) -> None:
    """Marks 1, 2 and 5 of each decade, or more of them, written without exponents."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if dense else (1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{unit}"))


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))

"""Charts of a report: a heat map of speedups by layer, bars of named layers, and speedup along the axes of a sweep."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deconv_ext.cli.console import require
from deconv_ext.cli.reports import TRAINING, Report, Row
from deconv_ext.workloads import KINDS, kind_of, sweep_point

# Okabe and Ito's colours, which the colour-blind tell apart.
_COLOURS = {"forward": "#0072B2", "grad_input": "#E69F00", "grad_weight": "#009E73"}
_LAYOUT_COLOURS = {"nchw": "#0072B2", "channels_last": "#E69F00"}
_LINES = {"nchw": "-", "channels_last": "--"}
_INK, _GRID = "#333333", "#E0E0E0"
_COLUMNS = ("forward", "grad_input", "grad_weight", "sum")
_LIMIT = 4.0  # colours are full at this speedup, and at its reciprocal
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "deconv_ext", "font.size": 8, "text.color": _INK}
_DPI = 160

Times = Mapping[tuple[str, str, str], Row]


def require_matplotlib() -> None:
    """Raises ModuleNotFoundError, naming the extra that brings it, where matplotlib is not installed."""
    require("matplotlib", "bench")


def draw(report: Report, path: str | Path) -> None:
    """Draws a report to a PNG or SVG: its sweep if it holds no other layers, else a heat map for each dtype.

    Raises:
        ValueError: if the report holds no timed layer.
        ModuleNotFoundError: if matplotlib is not installed.
    """
    layers = [row for row in report.rows if row.suite not in (TRAINING, "sweep")]
    if any(row.measured for row in layers):
        draw_heat_maps(layers, heading(report), path)
    else:
        draw_sweep([row for row in report.rows if row.suite == "sweep"], heading(report), path)


def heading(report: Report) -> str:
    """Who is compared, on what, with which versions, when."""
    cudnn = f", cuDNN {report.head['cudnn']}" if report.has_gpu else ""
    where = f"{report.device}, torch {report.head['torch']}{cudnn}, {report.head['date']}"
    return f"deconv_ext against {report.rival}: {where}"


def total_speedup(rows: Iterable[Row]) -> float:
    """How many times as fast all of these rows together are; NaN if one has no times."""
    chosen = list(rows)
    if not chosen or not all(row.measured for row in chosen):
        return float("nan")
    return sum(row.cudnn_ms or 0 for row in chosen) / sum(row.ours_ms or 0 for row in chosen)


def draw_heat_maps(rows: Sequence[Row], title: str, path: str | Path, note: str = "") -> None:
    """One panel a dtype: layers by kind, speedup of each direction and of their sum, in each layout.

    ``note`` is kept in the file's description.
    """
    dtypes = _distinct(row.dtype for row in rows if row.measured)
    layers = {row.case: row for row in rows if row.measured}
    kinds = {name: kind_of(row.layer) for name, row in layers.items()}
    names = sorted(layers, key=lambda name: (KINDS.index(kinds[name]), list(layers).index(name)))
    layouts = _distinct(row.layout for row in rows if row.measured)
    columns = [(layout, column) for layout in layouts for column in _COLUMNS]

    def paint(figure: Any) -> None:
        for index, (axis, dtype) in enumerate(
            zip(figure.subplots(1, len(dtypes), squeeze=False)[0], dtypes, strict=True)
        ):
            cells = {(row.case, row.layout, row.direction): row for row in rows if row.dtype == dtype}
            _paint_heat_map(axis, names, columns, cells)
            axis.set_title(dtype, loc="left", fontsize=10, fontweight="bold")
            labels = [f"{name.removeprefix('r_')}   {layers[name].shape}" for name in names]
            axis.set_yticks(range(len(names)), labels if index == 0 else [""] * len(names))
            _mark_kinds(axis, [kinds[name] for name in names], len(columns))
        figure.suptitle(title, fontsize=9)

    _save(paint, (4.6 + 4.8 * len(dtypes), 1.6 + 0.19 * len(names)), path, note)


def _paint_heat_map(axis: Any, names: Sequence[str], columns: Sequence[tuple[str, str]], cells: Times) -> None:
    from matplotlib.colors import LogNorm

    def speedup(name: str, layout: str, column: str) -> float:
        directions = _COLUMNS[:-1] if column == "sum" else (column,)
        found = [cells[key] for one in directions if (key := (name, layout, one)) in cells]
        return total_speedup(found) if len(found) == len(directions) else float("nan")

    values = [[speedup(name, *column) for column in columns] for name in names]
    axis.imshow(values, aspect="auto", cmap="RdBu", norm=LogNorm(1 / _LIMIT, _LIMIT), interpolation="nearest")
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            if value == value:  # not NaN
                ink = "white" if not 1 / 2.6 < value < 2.6 else _INK
                text = f"{value:.2f}" if value < 9.95 else f"{value:.0f}"
                axis.text(x, y, text, ha="center", va="center", fontsize=6.5, color=ink)
    titles = [f"{layout}\n{column}" if column == "forward" else f"\n{column}" for layout, column in columns]
    axis.set_xticks(range(len(columns)), titles, rotation=30, ha="left", rotation_mode="anchor", fontsize=7)
    axis.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axis.spines[:].set_visible(False)
    for x in range(len(_COLUMNS), len(columns), len(_COLUMNS)):
        axis.axvline(x - 0.5, color="white", linewidth=3)


def _mark_kinds(axis: Any, kinds: Sequence[str], right: int) -> None:
    """A line above each kind, and its name beside the right edge."""
    for y, kind in enumerate(kinds):
        if y == 0 or kind != kinds[y - 1]:
            axis.axhline(y - 0.5, color=_INK, linewidth=0.8)
            axis.text(right - 0.4, y, kind, va="center", fontsize=7, fontweight="bold")


def draw_bars(rows: Sequence[Row], labels: Mapping[str, str], title: str, path: str | Path, note: str = "") -> None:
    """Bars of the layers that ``labels`` names: all directions together, one bar a layout, from the line at 1x."""
    layouts = _distinct(row.layout for row in rows)

    def paint(figure: Any) -> None:
        axis = figure.subplots()
        height = 0.8 / len(layouts)
        for index, layout in enumerate(layouts):
            values = [
                total_speedup(row for row in rows if row.case == name and row.layout == layout) for name in labels
            ]
            places = [y + (index - (len(layouts) - 1) / 2) * height for y in range(len(labels))]
            bars = axis.barh(
                places, [value - 1 for value in values], 0.9 * height, 1, color=_LAYOUT_COLOURS[layout], label=layout
            )
            axis.bar_label(bars, [f"{value:.2f}x" for value in values], padding=3, fontsize=7)
        axis.axvline(1, color=_INK, linewidth=1.3)
        axis.set_yticks(range(len(labels)), labels.values())
        axis.invert_yaxis()
        axis.set_xlim(left=min(0.9, axis.get_xlim()[0]))
        axis.set_xlabel(title, fontsize=8)
        axis.legend(frameon=False, loc="lower right")
        axis.grid(axis="x", color=_GRID, zorder=0)
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)

    _save(paint, (8.0, 0.8 + 0.34 * len(labels)), path, note)


def draw_sweep(
    rows: Sequence[Row], title: str, path: str | Path, note: str = "", axes: Sequence[str] | None = None
) -> None:
    """A panel an axis of the sweep (``axes``: only these): speedup against its value, a line a direction and layout.

    Raises:
        ValueError: if no row is a timed point of a sweep.
    """
    points = [(*place, row) for row in rows if row.measured and (place := sweep_point(row.case))]
    names = [name for name in _distinct(name for name, _, _ in points) if axes is None or name in axes]
    if not names:
        raise ValueError("the report has no timed row; a chart needs at least one")
    lines = _distinct((row.dtype, row.direction, row.layout) for _, _, row in points)

    def paint(figure: Any) -> None:
        wide = min(2, len(names))
        panels = list(figure.subplots(-(-len(names) // wide), wide, sharey=True, squeeze=False).flat)
        for panel, name in zip(panels, names, strict=False):
            values = sorted({value for axis, value, _ in points if axis == name})
            for line in lines:
                mine = sorted(
                    (values.index(value), row.speedup)
                    for axis, value, row in points
                    if axis == name and (row.dtype, row.direction, row.layout) == line
                )
                panel.plot(
                    *zip(*mine, strict=True), marker="o", markersize=3, linewidth=1.2, label=" ".join(line),
                    color=_COLOURS[line[1]], linestyle=_LINES[line[2]],
                )  # fmt: skip
            panel.axhline(1, color=_INK, linewidth=1)
            panel.set_yscale("log")
            _plain_ticks(panel.yaxis)
            panel.set_xticks(range(len(values)), values, rotation=90 if len(values) > 12 else 0)
            panel.set_title(name.replace("_", " "), loc="left")
            panel.grid(color=_GRID)
            panel.spines[["top", "right"]].set_visible(False)
        for panel in panels[len(names) :]:
            panel.remove()
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(3, len(lines)), frameon=False
        )
        figure.suptitle(title, fontsize=9)

    _save(paint, (8.5, 1.4 + 2.3 * -(-len(names) // 2)), path, note)


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def _save(paint: Callable[[Any], None], size: tuple[float, float], path: str | Path, note: str) -> None:
    """A figure of ``size`` inches, painted and written; the same bytes for the same data in SVG."""
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure: Any = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure)
        is_svg = Path(path).suffix == ".svg"
        figure.savefig(
            path, dpi=_DPI, metadata={"Date": None, "Description": note} if is_svg else {"Description": note}
        )


def median_speedup(rows: Iterable[Row]) -> float:
    """The median of the layers' :func:`total_speedup`; NaN without any."""
    layers: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        layers.setdefault((row.case, row.dtype, row.layout), []).append(row)
    values = [value for one in layers.values() if (value := total_speedup(one)) == value]
    return statistics.median(values) if values else float("nan")


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))

"""The view of a sweep: each layer beside its neighbour on the same axis, so that speed cliffs show.

Shapes of different size are compared by their time over their floor, the least time by bytes and operations at the
rates measured in the same run. A point's place is in its name (``workloads.sweep_point``), also where ``--scale``
shrank the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from deconv_ext.cli.console import Column, print_table
from deconv_ext.cli.reports import Report, Row, ceilings_of, mean_speedups, style_of, title_of
from deconv_ext.workloads import sweep_point

_CLIFF = 3.0  # neighbours whose times over floor differ by more
_SLOWER = 1.05  # of cuDNN's time


class Point(NamedTuple):
    """One row on its axis.

    ``to_previous`` is the time over the floor relative to that of the next smaller value that was timed, None where
    there is none. ``verdict`` is "" where nothing stands out.
    """

    axis: str
    value: int
    row: Row
    to_previous: float | None
    verdict: str


def points_of(rows: Sequence[Row], rival: str) -> list[Point]:
    """The points of a sweep, by dtype, layout, direction, axis and rising value."""
    placed = [(*place, row) for row in rows if (place := sweep_point(row.case))]
    axes = list(dict.fromkeys(axis for axis, _, _ in placed))
    placed.sort(key=lambda one: (_series(one[2]), axes.index(one[0]), one[1]))
    points = []
    previous: dict[tuple[str, ...], float] = {}
    for axis, value, row in placed:
        if not row.measured:
            points.append(Point(axis, value, row, None, row.note))
            continue
        line = (*_series(row), axis)
        to_previous = row.over_floor / previous[line] if line in previous else None
        previous[line] = row.over_floor
        points.append(Point(axis, value, row, to_previous, _verdict(row, to_previous, rival)))
    return points


def print_points(report: Report, rows: Sequence[Row]) -> None:
    """Prints the points of a sweep as a table, with counts of cliffs and of points behind torch's operator."""
    points = points_of(rows, report.rival)
    columns = [Column("axis", text=True), Column("value")]
    columns += [Column(title, text=True) for title in ("dtype", "layout", "direction")]
    columns += [Column(title) for title in ("ours ms", f"{report.rival} ms", "speedup", "over floor")]
    columns += [Column("to previous"), Column("verdict", text=True), Column("kernel", text=True)]
    styles = [style_of(point.row) or ("yellow" if point.verdict else "") for point in points]
    cliffs = sum(_is_cliff(point.to_previous) for point in points)
    slower = sum(_is_slower(point.row) for point in points)
    counts = (
        f"{len(points)} points: {cliffs} cliffs (time over floor beyond {_CLIFF:g}x of the neighbour's, up or down), "
        f"{slower} slower than {report.rival} by more than {_SLOWER - 1:.0%}"
    )
    caption = "\n".join([ceilings_of(report), counts, *mean_speedups(rows)])
    print_table(title_of(report), columns, [*map(_cells, points)], styles, caption)


def _series(row: Row) -> tuple[str, str, str]:
    return row.dtype, row.layout, row.direction


def _is_cliff(to_previous: float | None) -> bool:
    return to_previous is not None and not 1 / _CLIFF <= to_previous <= _CLIFF


def _is_slower(row: Row) -> bool:
    return row.measured and row.speedup < 1 / _SLOWER


def _verdict(row: Row, to_previous: float | None, rival: str) -> str:
    remarks = [row.note.upper()] if row.failed else []
    if to_previous is not None and _is_cliff(to_previous):
        up = to_previous > 1
        remarks.append(f"cliff: {to_previous:.1f}x the previous" if up else f"cliff: previous {1 / to_previous:.1f}x")
    if _is_slower(row):
        remarks.append(f"{1 / row.speedup:.2f}x {rival}'s time")
    return ", ".join(remarks)


def _cells(point: Point) -> list[str]:
    row = point.row
    names = [point.axis, str(point.value), *_series(row)]
    if not row.measured:
        return [*names, *[""] * 5, point.verdict, ""]
    return [
        *names, f"{row.ours_ms:.4g}", f"{row.cudnn_ms:.4g}", f"{row.speedup:.2f}x", f"{row.over_floor:.2f}",
        "" if point.to_previous is None else f"{point.to_previous:.2f}x", point.verdict, row.kernel,
    ]  # fmt: skip

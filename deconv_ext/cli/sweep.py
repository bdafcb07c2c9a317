"""The view of a sweep: each layer beside its neighbour on the same axis, so that speed cliffs show.

Shapes of different size are compared by their time over their floor, the least time by bytes and operations at the
rates measured in the same run. A point's place is in its name (``workloads.sweep_point``), also where ``--scale``
shrank the layer.
"""

from __future__ import annotations

from typing import NamedTuple

from deconv_ext.cli.console import Column, print_table
from deconv_ext.cli.reports import Report, Row, mean_speedups, roofline_of, style_of, title_of, unmeasured
from deconv_ext.workloads import sweep_point

_CLIFF = 3.0  # neighbours whose times over floor differ by more
_SLOWER = 1.05  # of cuDNN's time


class Point(NamedTuple):
    """One row of the report on its axis.

    ``over_floor`` and ``rival_over_floor`` are times relative to the floor; ``to_previous`` is ``over_floor`` relative
    to that of the next smaller value that was timed. They are None where there is none. ``verdict`` is "" where nothing
    stands out.
    """

    axis: str
    value: int
    row: Row
    over_floor: float | None
    rival_over_floor: float | None
    to_previous: float | None
    verdict: str


def is_sweep(report: Report) -> bool:
    """Whether every row of a report is a point of a sweep."""
    return bool(report["rows"]) and all(sweep_point(row["case"]) for row in report["rows"])


def points_of(report: Report) -> list[Point]:
    """The points of a sweep's report, by mode, layout, direction, axis and rising value."""
    placed = [(*place, row) for row in report["rows"] if (place := sweep_point(row["case"]))]
    axes = list(dict.fromkeys(axis for axis, _, _ in placed))
    placed.sort(key=lambda one: (_series(one[2]), axes.index(one[0]), one[1]))
    points = []
    previous: dict[tuple[str, ...], float] = {}
    for axis, value, row in placed:
        if "speedup" not in row:
            points.append(Point(axis, value, row, None, None, None, "not timed"))
            continue
        over_floor, rival_over_floor = row["ours_ms"] / row["floor_ms"], row["cudnn_ms"] / row["floor_ms"]
        line = (*_series(row), axis)
        to_previous = over_floor / previous[line] if line in previous else None
        previous[line] = over_floor
        verdict = _verdict(row, to_previous, report["rival"])
        points.append(Point(axis, value, row, over_floor, rival_over_floor, to_previous, verdict))
    return points


def print_report(report: Report) -> None:
    """Prints a sweep's report as a table, with a count of the cliffs and of what is slower than the rival."""
    rival = report["rival"]
    columns = [Column("axis", text=True), Column("value")]
    columns += [Column(title, text=True) for title in ("mode", "layout", "direction")]
    columns += [Column(title) for title in ("ours ms", f"{rival} ms", "speedup", "ours / floor", f"{rival} / floor")]
    columns += [Column("to previous"), Column("verdict", text=True), Column("plan", text=True)]
    points = points_of(report)
    styles = [style_of(point.row) or ("yellow" if point.verdict else "") for point in points]
    print_table(title_of(report), columns, [*map(_cells, points)], styles, _caption(report, points))


def _series(row: Row) -> tuple[str, str, str]:
    return row["mode"], row["layout"], row["direction"]


def _is_cliff(to_previous: float | None) -> bool:
    return to_previous is not None and not 1 / _CLIFF <= to_previous <= _CLIFF


def _is_slower(row: Row) -> bool:
    return "speedup" in row and row["ours_ms"] > _SLOWER * row["cudnn_ms"]


def _verdict(row: Row, to_previous: float | None, rival: str) -> str:
    remarks = ["WRONG"] if row["wrong"] else []
    if to_previous is not None and _is_cliff(to_previous):
        up = to_previous > 1
        remarks.append(f"cliff: {to_previous:.1f}x the previous" if up else f"cliff: previous {1 / to_previous:.1f}x")
    if _is_slower(row):
        remarks.append(f"{row['ours_ms'] / row['cudnn_ms']:.2f}x {rival}'s time")
    return ", ".join(remarks)


def _cells(point: Point) -> list[str]:
    row = point.row
    names = [point.axis, str(point.value), *_series(row)]
    if state := unmeasured(row):
        return [*names, *[""] * 6, point.verdict, f"{state}: {row[state]}"]
    return [
        *names, f"{row['ours_ms']:.4f}", f"{row['cudnn_ms']:.4f}", f"{row['speedup']:.2f}x",
        f"{point.over_floor:.2f}", f"{point.rival_over_floor:.2f}",
        "" if point.to_previous is None else f"{point.to_previous:.2f}x", point.verdict, row["plan"],
    ]  # fmt: skip


def _caption(report: Report, points: list[Point]) -> str:
    cliffs = sum(_is_cliff(point.to_previous) for point in points)
    slower = sum(_is_slower(point.row) for point in points)
    counts = (
        f"{len(points)} points: {cliffs} cliffs (time over floor beyond {_CLIFF:g}x of the neighbour's, up or down), "
        f"{slower} slower than {report['rival']} by more than {_SLOWER - 1:.0%}"
    )
    return "\n".join([roofline_of(report), counts, *mean_speedups(report, "mode", "layout", "direction")])

"""Charts and tables of README.md and docs/performance.md, from the newest results in results/.

    python docs/generate.py            # writes docs/generated/*.svg and the places between <!-- results:NAME --> marks
    python docs/generate.py --check    # exit code 1 if one of them is older than the results

`make docs` runs it. Each chart names the results that it was drawn from in its description.
"""

import hashlib
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from deconv_ext.cli import plots, sweep
from deconv_ext.cli.operands import DIRECTIONS
from deconv_ext.cli.reports import TRAINING, Report, Row, read_csv
from deconv_ext.workloads import KINDS, kind_of

ROOT = Path(__file__).resolve().parent.parent
CHARTS = Path("docs/generated")
PAGES = ("README.md", "docs/performance.md")
DTYPES = {"bf16": "bfloat16", "tf32": "TF32", "fp32": "strict float32"}
LAYOUTS = {"nchw": "NCHW", "channels_last": "channels_last"}
MODELS = {
    "dcgan": "DCGAN, 64x64, batch 128",
    "pix2pix": "pix2pix U-Net, 256x256, batch 16",
    "pose": "pose head, batch 64",
}
BEHIND = 0.95
_SLOWEST = 12  # rows of the table of what is behind
# The twelve layers of the README's chart: from networks of every kind, GEMM-like layers included.
SHOWN = {
    "dcgan3": "DCGAN",
    "cyclegan_up1": "CycleGAN",
    "r_sg2ada_fused": "StyleGAN2-ADA",
    "unet_up1": "U-Net",
    "pose_up2": "SimpleBaseline pose",
    "maskrcnn": "Mask R-CNN",
    "r_sam_up1": "SAM 2 mask decoder",
    "r_dav2_l_x4": "Depth Anything V2",
    "r_yolo_proto_l": "YOLOv8 Proto",
    "r_compressai_rgb": "CompressAI, to RGB",
    "fsrcnn_last": "FSRCNN, last",
    "r_dla_ida_f2": "CenterNet DLA, depthwise",
}
_MARKS = re.compile(r"(<!-- results:([\w-]+) -->\n)(.*?)(<!-- /results:\2 -->)", re.DOTALL)


class Results:
    """The report of one GPU, and what the pages ask of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report: Report = read_csv(path)
        self.digest = f"results {path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
        self.layers = [row for row in self.report.rows if row.suite in ("kernelbench", "zoo", "real") and row.measured]
        self.points = [row for row in self.report.rows if row.suite == "sweep"]
        self.steps = [row for row in self.report.rows if row.suite == TRAINING and row.measured]

    def of(self, dtype: str, layout: str, **fields: str) -> list[Row]:
        """Rows of the layers in a dtype and layout, and with these other fields."""
        return [
            row
            for row in self.layers
            if (row.dtype, row.layout) == (dtype, layout)
            and all(getattr(row, key) == value for key, value in fields.items())
        ]

    # --- charts -----------------------------------------------------------------------------------------------------

    def draw(self, folder: Path) -> None:
        """Writes every chart."""
        title = plots.heading(self.report)
        bf16 = [row for row in self.layers if row.dtype == "bf16"]
        axis = f"speedup over cuDNN, forward and backward together, bfloat16 ({self.versions()})"
        plots.draw_bars(bf16, SHOWN, axis, folder / "speedup.svg", self.digest)
        for dtype in DTYPES:
            rows = [row for row in self.layers if row.dtype == dtype]
            plots.draw_heat_maps(rows, title, folder / f"heatmap_{dtype}.svg", self.digest)
        axes = ("channels", "kernel", "stride", "groups")
        plots.draw_sweep(self.points, title, folder / "sweep.svg", self.digest, axes)

    def versions(self) -> str:
        """GPU, torch, cuDNN and date in one phrase."""
        head = self.report.head
        return f"{head['gpu']}, torch {head['torch']}, cuDNN {head['cudnn'].partition(',')[0]}, {head['date']}"

    # --- README -----------------------------------------------------------------------------------------------------

    def medians(self) -> str:
        """One sentence."""
        values = {
            dtype: " and ".join(f"{plots.median_speedup(self.of(dtype, layout)):.2f}x" for layout in LAYOUTS)
            for dtype in DTYPES
        }
        layers = len({row.case for row in self.layers})
        listed = ", ".join(f"{value} in {DTYPES[dtype]}" for dtype, value in values.items())
        return (
            f"Median speedup over cuDNN on {layers} layers, forward and backward, NCHW and channels_last: **{listed}**."
        )

    def command(self) -> str:
        """What was measured where, and how to do it again."""
        head = self.report.head
        return (
            f"{self.versions()}, driver {head['driver']}, commit `{head['commit']}`. Again: "
            f"`deconv-ext bench --resume --csv results/{self.path.name} --suite all --dtype bf16 --dtype tf32 "
            "--dtype fp32`, also with `--suite sweep` and `--training`, then `python docs/generate.py`."
        )

    def kinds(self) -> str:
        """Medians and the slowest layer of each kind."""
        lines = []
        for kind in KINDS:
            chosen = [row for row in self.layers if kind_of(row.layer) == kind]
            line = [kind, str(len({row.case for row in chosen}))]
            for dtype in ("bf16", "tf32"):
                for layout in LAYOUTS:
                    rows = [row for row in chosen if (row.dtype, row.layout) == (dtype, layout)]
                    slowest = min((value for value, _ in _totals(rows)), default=float("nan"))
                    line.append(f"{plots.median_speedup(rows):.2f}x ({slowest:.2f}x)")
            lines.append(line)
        heads = [f"{name} {LAYOUTS[layout]}" for name in ("bf16", "TF32") for layout in LAYOUTS]
        return _table(["kind of layer", "layers", *heads], lines)

    def losses(self) -> str:
        """The layers that are behind in their sum, the slowest first."""
        slow = sorted(
            (value, name, dtype, layout)
            for dtype in ("bf16", "tf32")
            for layout in LAYOUTS
            for value, name in _totals(self.of(dtype, layout))
            if value < BEHIND
        )
        if not slow:
            return f"No layer is behind cuDNN by more than {1 - BEHIND:.0%}, forward and backward together."
        worst = "; ".join(
            f"{_plain(name)} {dtype} {LAYOUTS[layout]} {value:.2f}x" for value, name, dtype, layout in slow[:6]
        )
        settings = sum(len(_totals(self.of(dtype, layout))) for dtype in ("bf16", "tf32") for layout in LAYOUTS)
        single = [row.speedup for row in self.layers]
        behind = sum(speedup < BEHIND for speedup in single)
        return (
            f"Median (slowest). Below {BEHIND}x: {len(slow)} of {settings}, {worst}; by direction "
            f"[{behind} of {len(single)}](docs/performance.md#layers-behind-cudnn), down to {min(single):.2f}x."
        )

    def networks(self) -> str:
        """Speedups of whole training steps in eager mode."""
        return self._steps(("eager",), lambda row: f"{row.speedup:.2f}x")

    def _steps(self, executions: Sequence[str], cell: Callable[[Row], str]) -> str:
        lines = []
        for model, title in MODELS.items():
            for execution in executions:
                rows = {
                    (row.dtype, row.layout): cell(row)
                    for row in self.steps
                    if row.case == model and row.direction == f"step, {execution}"
                }
                cells = [rows.get((dtype, layout), "–") for dtype in ("bf16", "tf32") for layout in LAYOUTS]
                if rows:
                    lines.append([title, "compiled" if execution == "compile" else execution, *cells])
        heads = [f"{name} {LAYOUTS[layout]}" for name in ("bf16", "TF32") for layout in LAYOUTS]
        return _table(["training step", "", *heads], lines)

    # --- performance.md ---------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """Medians of each direction and of the sum, and the range of the sum."""
        lines = []
        for dtype, name in DTYPES.items():
            for layout, title in LAYOUTS.items():
                rows = self.of(dtype, layout)
                totals = [value for value, _ in _totals(rows)]
                parts = [plots.median_speedup(self.of(dtype, layout, direction=one)) for one in DIRECTIONS]
                lines.append([
                    f"{name}, {title}", *(f"{part:.2f}x" for part in parts), f"{statistics.median(totals):.2f}x",
                    f"{statistics.geometric_mean(totals):.2f}x", f"{min(totals):.2f}x to {max(totals):.1f}x",
                ])  # fmt: skip
        return _table(["median speedup over cuDNN", *DIRECTIONS, "together", "geomean", "range"], lines)

    def float16(self) -> str:
        """How the check's times compare with those of bfloat16."""
        bf16 = {(row.case, row.layout, row.direction): row for row in self.layers if row.dtype == "bf16"}
        pairs = [
            (row.ours_ms / other.ours_ms, row.speedup)
            for row in self.layers
            if row.dtype == "fp16" and (other := bf16.get((row.case, row.layout, row.direction)))
            if row.ours_ms and other.ours_ms
        ]
        if not pairs:
            return ""
        ratio, speedup = (statistics.median(values) for values in zip(*pairs, strict=True))
        return (
            f"{len(pairs)} settings in float16 take {ratio:.2f} of the time of bfloat16 (median), {speedup:.2f}x cuDNN."
        )

    def cliffs(self) -> str:
        """How many neighbours of the sweep differ by too much, and how many points are behind."""
        points = sweep.points_of(self.points, "cuDNN")
        cliffs = [point for point in points if "cliff" in point.verdict]
        behind = [point for point in points if point.row.measured and point.row.speedup < BEHIND]
        named = ", ".join(
            f"{point.row.direction} {point.row.layout} {point.axis} {point.value}" for point in cliffs[:6]
        )
        return (
            f"Of {len(points)} points in bfloat16 on these axes, {len(cliffs)} lie beyond 3x of their neighbour's time "
            f"over the floor{f' ({named})' if cliffs else ''}, and {len(behind)} are below {BEHIND}x of cuDNN."
        )

    def training(self) -> str:
        """Speedups, and the share of our step that transposed convolution takes."""
        return self._steps(
            ("eager", "compile"), lambda row: f"{row.speedup:.2f}x, {1 - (row.floor_ms or 0) / (row.ours_ms or 1):.0%}"
        )

    def behind(self) -> str:
        """How many settings are behind, by direction, and the slowest."""
        slow = [row for row in self.layers if row.speedup < BEHIND]
        counts = ", ".join(f"{sum(row.direction == one for row in slow)} in {one}" for one in DIRECTIONS)
        slowest = sorted(slow, key=lambda row: row.speedup)[:_SLOWEST]
        lines = [
            [_plain(row.case), row.direction, row.dtype, LAYOUTS[row.layout], f"{row.speedup:.2f}x"] for row in slowest
        ]
        table = _table(["slowest", "direction", "dtype", "layout", "speedup"], lines)
        return f"{len(slow)} of {len(self.layers)}: {counts}.\n\n{table}"

    def errors(self) -> str:
        """The largest error of each dtype."""
        lines = []
        for dtype, name in {**DTYPES, "fp16": "float16"}.items():
            rows = [row for row in self.layers if row.dtype == dtype and row.error is not None]
            if rows:
                largest = max(rows, key=lambda row: row.error or 0)
                where = f"{_plain(largest.case)}, {largest.direction}"
                lines.append([name, str(len(rows)), f"{largest.error:.1e}", where])
        return _table(["dtype", "rows", "largest error", "where"], lines)


def _totals(rows: Iterable[Row]) -> list[tuple[float, str]]:
    """Speedup of all three directions together, and the layer's name."""
    layers: dict[str, list[Row]] = {}
    for row in rows:
        layers.setdefault(row.case, []).append(row)
    return [(plots.total_speedup(one), name) for name, one in layers.items() if len(one) == len(DIRECTIONS)]


def _plain(name: str) -> str:
    return name.removeprefix("r_")


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" if cell[:1].isdigit() else "---" for cell in next(iter(lines), head)[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def newest() -> Path:
    """The file in results/ with the latest date."""
    return max((ROOT / "results").glob("*.csv"), key=lambda path: read_csv(path).head["date"])


def filled(page: str, results: Results) -> str:
    """The text of a page with its places filled."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return _MARKS.sub(lambda found: f"{found[1]}{getattr(results, found[2])()}\n{found[4]}", text)


def stale(results: Results) -> list[str]:
    """The pages and charts in the tree that are not of these results."""
    pages = [page for page in PAGES if filled(page, results) != (ROOT / page).read_text(encoding="utf-8")]
    names = ["speedup", *(f"heatmap_{dtype}" for dtype in DTYPES), "sweep"]
    charts = [str(CHARTS / f"{name}.svg") for name in names]
    return pages + [
        chart
        for chart in charts
        if not (ROOT / chart).exists() or results.digest not in (ROOT / chart).read_text(encoding="utf-8")
    ]


def main(arguments: Sequence[str]) -> int:
    """Writes, or checks with ``--check``, what is not of the newest results."""
    results = Results(newest())
    old = stale(results)
    if "--check" in arguments:
        print("\n".join(f"{name} is not of {results.path.name}: run python docs/generate.py" for name in old))
        return 1 if old else 0
    if any(name.endswith(".svg") for name in old) or "--force" in arguments:
        (ROOT / CHARTS).mkdir(exist_ok=True)
        results.draw(ROOT / CHARTS)
    for page in PAGES:
        (ROOT / page).write_text(filled(page, results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The report of ``bench``: rows of times, what they were measured with, and the CSV file that holds both.

The file begins with lines ``# key: value`` (commit, date, GPU, driver, versions, measured ceilings); then a header and
one line a row. Times are milliseconds, numbers have four significant digits.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import deconv_ext
from deconv_ext.workloads import Case, flops, minimal_bytes, parse_shape

TRAINING = "training"  # the suite of rows that are training steps


@dataclass
class Row:
    """One measurement: a layer in one direction, or a training step.

    ``dtype`` is fp64, fp32 (strict), tf32, fp16 or bf16. ``cudnn_ms`` is the time of torch's own operator.
    ``floor_ms`` is the time of its bytes and operations at the measured ceilings; of a training step, its time without
    the transposed layers. ``error`` is relative, against float64 (training: of the gradients, against strict float32).
    ``spread`` is the range of the middle 80% of the samples over their median, the larger of both sides. A row without
    times says why in ``note``.
    """

    suite: str
    case: str
    shape: str
    direction: str
    dtype: str
    layout: str
    ours_ms: float | None = None
    cudnn_ms: float | None = None
    floor_ms: float | None = None
    error: float | None = None
    spread: float | None = None
    kernel: str = ""
    note: str = ""

    @property
    def measured(self) -> bool:
        """Whether the row has times."""
        return self.ours_ms is not None and self.cudnn_ms is not None

    @property
    def failed(self) -> bool:
        """Whether a result was wrong, or the call raised something else than lack of memory."""
        return self.note.startswith(("wrong", "failed"))

    @property
    def speedup(self) -> float:
        """How many times as fast as torch's operator; NaN without times."""
        return self.cudnn_ms / self.ours_ms if self.cudnn_ms and self.ours_ms else float("nan")

    @property
    def over_floor(self) -> float:
        """The time over the floor; NaN without both."""
        return self.ours_ms / self.floor_ms if self.ours_ms and self.floor_ms else float("nan")

    @property
    def layer(self) -> Case:
        """The layer, from ``case`` and ``shape``."""
        return parse_shape(self.case, self.shape)

    @property
    def tflops(self) -> float:
        """Rate of the layer's operations, TFLOP/s."""
        return flops(self.layer) / self.ours_ms / 1e9 if self.ours_ms else float("nan")

    @property
    def gbps(self) -> float:
        """Rate of the layer's bytes, each moved once, GB/s."""
        itemsize = {"fp64": 8, "fp16": 2, "bf16": 2}.get(self.dtype, 4)
        return minimal_bytes(self.layer, itemsize) / self.ours_ms / 1e6 if self.ours_ms else float("nan")

    @property
    def setting(self) -> tuple[str, ...]:
        """What tells rows of one report apart."""
        return self.suite, self.case, self.shape, self.direction, self.dtype, self.layout


OnRow = Callable[["Report"], None]
_TEXTS = ("suite", "case", "shape", "direction", "dtype", "layout", "kernel", "note")


@dataclass
class Report:
    """Rows, and the head: what they were measured with, by name."""

    head: dict[str, str]
    rows: list[Row] = field(default_factory=list)

    @property
    def has_gpu(self) -> bool:
        """Whether the rows were measured on a GPU."""
        return "gpu" in self.head

    @property
    def rival(self) -> str:
        """Who is behind torch's operator."""
        return "cuDNN" if self.has_gpu else "ATen"

    @property
    def device(self) -> str:
        """The GPU's name, or the CPU's threads."""
        return self.head["gpu"] if self.has_gpu else self.head["cpu"]

    def ceiling(self, name: str) -> float:
        """A measured ceiling: "copy GB/s", or the matrix product's rate of a dtype, as "bf16 TFLOP/s"."""
        return float(self.head[name])

    def add(self, row: Row, on_row: OnRow | None = None) -> None:
        """Adds a row, its numbers rounded as in a file, and tells ``on_row``."""
        self.rows.append(_parsed({one.name: _cell(getattr(row, one.name)) for one in dataclasses.fields(row)}))
        if on_row:
            on_row(self)


def new_report(device: torch.device, autotune: int = 0, scale: int = 1) -> Report:
    """A report without rows, its head filled except for the ceilings."""
    has_gpu = device.type == "cuda"
    head = {"deconv_ext": deconv_ext.__version__, "commit": _commit(), "date": datetime.date.today().isoformat()}
    if has_gpu:
        head |= {"gpu": torch.cuda.get_device_name(device), "driver": _driver(), "cuda": str(torch.version.cuda)}
        cudnn = torch.backends.cudnn.version() or 0
        head["cudnn"] = f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}, benchmark mode"
    else:
        head["cpu"] = f"CPU, {torch.get_num_threads()} threads"
    head |= {"torch": torch.__version__, "python": platform.python_version()}
    head |= {"autotune": str(autotune)} if autotune else {}
    return Report(head | ({"scale": str(scale)} if scale != 1 else {}))


def _commit() -> str:
    """The commit of the clone that the package runs from, or DECONV_COMMIT; "unknown" without either."""
    if named := os.environ.get("DECONV_COMMIT"):
        return named
    return _output("git", "-C", str(Path(deconv_ext.__file__).parent), "describe", "--always", "--dirty", "--exclude=*")


def _driver() -> str:
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def write_csv(report: Report, path: str | Path) -> None:
    """Writes a report, whole or not at all."""
    target = Path(path)
    partial = target.with_name(target.name + ".part")
    with partial.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in report.head.items())
        names = [one.name for one in dataclasses.fields(Row)]
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(getattr(row, name)) for name in names] for row in report.rows)
    partial.replace(target)


def _cell(value: str | float | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def read_csv(path: str | Path) -> Report:
    """The report that :func:`write_csv` wrote.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is no such report.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    head_lines = [line for line in lines if line.startswith("# ")]
    head = {key: value for key, _, value in (line[2:].partition(": ") for line in head_lines)}
    reader = csv.DictReader(lines[len(head_lines) :])
    if reader.fieldnames != [one.name for one in dataclasses.fields(Row)] or not {"gpu", "cpu"} & head.keys():
        raise ValueError(f"{path} is no report of bench: its columns are {reader.fieldnames}")
    return Report(head, [_parsed(entry) for entry in reader])


def _parsed(entry: dict[str, str]) -> Row:
    numbers = {key: float(value) if value else None for key, value in entry.items() if key not in _TEXTS}
    return Row(**{key: entry[key] for key in _TEXTS}, **numbers)  # type: ignore[arg-type]


def merge(reports: Sequence[Report]) -> Report:
    """Reports of one commit, GPU and versions as one; of a row that several hold, the last counts.

    Raises:
        ValueError: if their heads differ in more than date and ceilings.
    """
    first, *others = reports
    for other in others:
        for key in first.head.keys() | other.head.keys():
            if key not in ("date",) and not key.endswith("/s") and first.head.get(key) != other.head.get(key):
                raise ValueError(f"{key} is {first.head.get(key)} in one report and {other.head.get(key)} in another")
    head = {key: value for report in reversed(reports) for key, value in report.head.items()}
    return Report(head, list({row.setting: row for report in reports for row in report.rows}.values()))


def reason_of(error: RuntimeError) -> str:
    """The note of a row without times: "out of memory", or "failed" with the reason."""
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return "not measured: out of memory"
    return "failed: " + str(error).partition("\n")[0]


def title_of(report: Report) -> str:
    """Who is measured against whom, and where."""
    if not report.has_gpu:
        return f"no GPU: deconv_ext forwards to ATen here, so both sides run the same code ({report.device})"
    tuned = f"deconv_ext, autotuned among {count} plans," if (count := report.head.get("autotune")) else "deconv_ext"
    return f"{tuned} against {report.rival} on {report.device}, torch {report.head['torch']}"


def ceilings_of(report: Report) -> str:
    """The measured ceilings in one line."""
    return "measured ceilings: " + ", ".join(
        f"{key.partition(' ')[0]} {float(value):.4g} {key.partition(' ')[2]}"
        for key, value in report.head.items()
        if key.endswith("/s")
    )


def mean_speedups(rows: Iterable[Row]) -> list[str]:
    """A line on the median and the geometric mean of the speedups for each dtype, layout and direction."""
    speedups: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row.measured:
            speedups.setdefault((row.dtype, row.layout, row.direction), []).append(row.speedup)
    return [
        f"{' '.join(names)}: median {statistics.median(values):.2f}x, geomean {statistics.geometric_mean(values):.2f}x"
        for names, values in speedups.items()
    ]


def style_of(row: Row) -> str:
    """The rich style of a table's row: red where something is wrong, yellow where nothing was measured."""
    return "red" if row.failed else "" if row.measured else "yellow"

"""What the reports of ``bench`` share: where and with what they were measured, the file, title and caption."""

from __future__ import annotations

import datetime
import json
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import deconv_ext

Row = dict[str, Any]
Report = dict[str, Any]
OnRow = Callable[[Report], None]


def new_report(device: torch.device, **fields: Any) -> Report:
    """A report without rows: the device, the date and the versions, then ``fields``."""
    has_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if has_gpu else f"CPU, {torch.get_num_threads()} threads",
        "has_gpu": has_gpu,
        "date": datetime.date.today().isoformat(),
        "deconv_ext": deconv_ext.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if has_gpu else None,
        "python": platform.python_version(),
        "rival": "cuDNN" if has_gpu else "ATen",
        "cudnn_benchmark_limit": torch.backends.cudnn.benchmark_limit if has_gpu else None,
        **fields,
        "rows": [],
    }


def write_json(report: Report, path: str | Path) -> None:
    """Writes a report, whole or not at all."""
    target = Path(path)
    partial = target.with_name(target.name + ".part")
    partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    partial.replace(target)


def reason_of(error: RuntimeError) -> Row:
    """What a row says instead of times: ``skipped`` where memory was short, ``failed`` otherwise, with the reason."""
    out_of_memory = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
    return {"skipped" if out_of_memory else "failed": str(error).partition("\n")[0]}


def unmeasured(row: Row) -> str | None:
    """ "skipped" or "failed" for a row without times; None for a measured one."""
    return None if "speedup" in row else "skipped" if "skipped" in row else "failed"


def title_of(report: Report) -> str:
    """Who is measured against whom, and where."""
    if report["has_gpu"]:
        tuned = f"deconv_ext, autotuned among {n} plans," if (n := report.get("autotune")) else "deconv_ext"
        return f"{tuned} against {report['rival']} on {report['device']}, torch {report['torch']}"
    return f"no GPU: deconv_ext forwards to ATen here, so both sides run the same code ({report['device']})"


def roofline_of(report: Report) -> str:
    """The measured ceilings of a report on operators."""
    rates = ", ".join(f"{mode} matmul {rate:.3g} TFLOP/s" for mode, rate in report["matmul_TFLOPs"].items())
    return f"measured roofline: copy {report['copy_GBps']:.0f} GB/s, {rates}"


def mean_speedups(report: Report, *keys: str) -> list[str]:
    """A line on the geometric mean of the speedups for each combination of the values under ``keys``."""
    speedups: dict[str, list[float]] = {}
    for row in report["rows"]:
        if "speedup" in row:
            speedups.setdefault(" ".join(row[key] for key in keys), []).append(row["speedup"])
    return [f"{name}: geometric mean {statistics.geometric_mean(values):.2f}x" for name, values in speedups.items()]


def style_of(row: Row) -> str:
    """The rich style of a table's row: red where something is wrong, yellow where nothing was measured."""
    if "skipped" in row:
        return "yellow"
    return "red" if "failed" in row or row["wrong"] else ""

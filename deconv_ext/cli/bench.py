"""``python -m deconv_ext bench``: times against torch's own operator, which is cuDNN on a GPU."""

from __future__ import annotations

import argparse
import datetime
import functools
import gc
import itertools
import json
import math
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import deconv_ext
from deconv_ext.cli import explain, plots
from deconv_ext.cli.console import Column, print_table, progress
from deconv_ext.cli.measure import (
    Roofline,
    cudnn_search,
    input_sets,
    measure_copy,
    measure_matmul,
    time_interleaved,
)
from deconv_ext.cli.operands import (
    BOUNDS,
    DIRECTIONS,
    DTYPES,
    Operands,
    call_explain,
    call_ours,
    call_torch,
    dtype_of,
    make_operands,
    sampled_errors,
    torch_in,
)
from deconv_ext.workloads import SUITES, Case, flops, load_cases, minimal_bytes, scale_down, select

LAYOUTS = ("nchw", "channels_last")

_FIGURES = """\
The figures of docs/performance.md, on a machine with a GPU:
  python -m deconv_ext bench --suite all --layout both --dtype bf16 --json report.json --plot report.png
  python -m deconv_ext bench --from-json report.json --plot report.png    shows and draws them again
  python docs/figures/train_dcgan.py --json dcgan.json --plot dcgan.png   the training curves; in a clone
"""

Row = dict[str, Any]
Report = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.epilog, parser.formatter_class = _FIGURES, argparse.RawDescriptionHelpFormatter
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--suite", choices=SUITES, default="kernelbench", help="the cases (default: %(default)s)")
    source.add_argument("--json-cases", metavar="FILE", help="the cases from a JSON file instead of a suite")
    source.add_argument("--from-json", metavar="FILE", help="show and plot an earlier report; measure nothing")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only this case (repeatable)")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default: fp32 (repeatable)")
    parser.add_argument("--layout", choices=(*LAYOUTS, "both"), default="nchw", help="default: %(default)s")
    parser.add_argument("--direction", choices=(*DIRECTIONS, "all"), default="forward", help="default: %(default)s")
    parser.add_argument(
        "--precision",
        choices=("strict", "tf32", "both"),
        default="strict",
        help="of fp32, for both sides; default: %(default)s",
    )
    parser.add_argument("--scale", type=int, default=1, metavar="N", help="divide batch, channels and size by N")
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")
    parser.add_argument("--json", metavar="FILE", help="write everything measured; renewed after each row")
    parser.add_argument("--plot", metavar="FILE", help="draw speedup and roofline charts to a PNG")


def main(args: argparse.Namespace) -> int:
    """Measures or loads a report and shows it; 0, or 1 if a case failed or gave a wrong result."""
    if args.plot:
        plots.require_matplotlib()
    if args.from_json:
        report = json.loads(Path(args.from_json).read_text(encoding="utf-8"))
        report["rows"] = [row for row in report["rows"] if not args.case or row["case"] in args.case]
    else:
        cases = load_cases(args.json_cases) if args.json_cases else SUITES[args.suite]
        report = run(
            [scale_down(case, args.scale) if args.scale != 1 else case for case in select(cases, args.case)],
            dtypes=args.dtype or ("fp32",),
            layouts=LAYOUTS if args.layout == "both" else (args.layout,),
            directions=DIRECTIONS if args.direction == "all" else (args.direction,),
            precision=args.precision,
            device=args.device,
            on_row=functools.partial(write_json, path=args.json) if args.json else None,
        )
    print_report(report)
    if args.plot:
        plots.draw(report, args.plot)
    return 1 if any(row.get("wrong") or "failed" in row for row in report["rows"]) else 0


def run(
    cases: Sequence[Case],
    *,
    dtypes: Sequence[str] = ("fp32",),
    layouts: Sequence[str] = ("nchw",),
    directions: Sequence[str] = ("forward",),
    precision: str = "strict",
    device: str | torch.device | None = None,
    on_row: Callable[[Report], None] | None = None,
) -> Report:
    """Measures the operator and torch's own in one run, at equal precision and layout.

    Args:
        cases: what to measure.
        dtypes: names from fp64, fp32, fp16, bf16.
        layouts: "nchw", "channels_last".
        directions: "forward", "grad_input", "grad_weight".
        precision: of fp32, "strict", "tf32" (TF32 tensor cores allowed to both sides), or "both", one after the other.
        device: default: cuda where there is one, else cpu.
        on_row: called with the report so far after each row.

    Returns:
        A dict that JSON can hold: ``device``, ``date``, versions, ``cases``, ``copy_GBps``, ``matmul_TFLOPs`` by mode,
        ``rows``.
        A row has ``case``, ``dtype``, ``precision``, ``mode`` (the dtype's name, or tf32), ``layout``, ``direction``,
        ``gflop``, ``gb``; ``ours_ms``, ``cudnn_ms`` (torch's own operator's, also where it is not cuDNN), ``speedup``,
        ``spread`` (10% to 90% of the samples relative to the median, the larger of both), ``floor_ms``, ``fraction``
        (floor / ours), ``tflops``, ``gbps``, ``error``, ``cudnn_error`` (relative, against float64), ``wrong``,
        ``plan``; or, instead of the times, ``skipped`` or ``failed`` with the reason.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    modes = [mode for dtype in dtypes for mode in _modes(dtype, precision)]
    report = _new_report(cases, where)
    total = math.prod(map(len, (modes, cases, layouts, directions)))
    with cudnn_search(), torch.inference_mode(), progress("bench", total) as advance:
        report["copy_GBps"] = measure_copy(where)
        for mode in modes:
            with torch_in(mode):
                report["matmul_TFLOPs"][mode] = measure_matmul(dtype_of(mode), where)
                roofline = Roofline(report["copy_GBps"], report["matmul_TFLOPs"][mode])
                for case, layout, direction in itertools.product(cases, layouts, directions):
                    row = _measure(case, mode, layout, direction, roofline, where)
                    report["rows"].append(row)
                    if on_row:
                        on_row(report)
                    advance(_line(row))
    return report


def _modes(dtype: str, precision: str) -> tuple[str, ...]:
    if dtype != "fp32":
        return (dtype,)
    return {"strict": ("fp32",), "tf32": ("tf32",), "both": ("fp32", "tf32")}[precision]


def write_json(report: Report, path: str | Path) -> None:
    """Writes a report, whole or not at all."""
    target = Path(path)
    partial = target.with_name(target.name + ".part")
    partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    partial.replace(target)


def print_report(report: Report) -> None:
    """Prints a report as a table, with the geometric mean of the speedups of each mode, layout and direction."""
    columns = [Column(title, text=True) for title in ("case", "mode", "layout", "direction")]
    columns += [Column(title) for title in ("ours ms", f"{report['rival']} ms", "speedup", "spread", "TFLOP/s", "GB/s")]
    columns += [Column("of roofline"), Column("error"), Column("plan", text=True)]
    rows = report["rows"]
    print_table(_title(report), columns, [*map(_cells, rows)], [*map(_style, rows)], _caption(report))


def _style(row: Row) -> str:
    if "skipped" in row:
        return "yellow"
    return "red" if "failed" in row or row["wrong"] else ""


def _cells(row: Row) -> list[str]:
    names = [row["case"], row["mode"], row["layout"], row["direction"]]
    if "speedup" not in row:
        state = "skipped" if "skipped" in row else "failed"
        return [*names, *[""] * 8, f"{state}: {row[state]}"]
    return [
        *names, f"{row['ours_ms']:.4f}", f"{row['cudnn_ms']:.4f}", f"{row['speedup']:.2f}x", f"{row['spread']:.0%}",
        f"{row['tflops']:.3g}", f"{row['gbps']:.0f}", f"{row['fraction']:.0%}",
        f"{row['error']:.1e}" + (" WRONG" if row["wrong"] else ""), row["plan"],
    ]  # fmt: skip


def _title(report: Report) -> str:
    if report["has_gpu"]:
        return f"deconv_ext against {report['rival']} on {report['device']}, torch {report['torch']}"
    return f"no GPU: deconv_ext forwards to ATen here, so both sides run the same code ({report['device']})"


def _caption(report: Report) -> str:
    rates = ", ".join(f"{mode} matmul {rate:.3g} TFLOP/s" for mode, rate in report["matmul_TFLOPs"].items())
    lines = [f"measured roofline: copy {report['copy_GBps']:.0f} GB/s, {rates}"]
    speedups: dict[str, list[float]] = {}
    for row in report["rows"]:
        if "speedup" in row:
            speedups.setdefault(f"{row['mode']} {row['layout']} {row['direction']}", []).append(row["speedup"])
    lines += [f"{name}: geometric mean {statistics.geometric_mean(values):.2f}x" for name, values in speedups.items()]
    return "\n".join(lines)


def _line(row: Row) -> str:
    names = f"{row['case']} {row['mode']} {row['layout']} {row['direction']}"
    if "speedup" not in row:
        return f"{names}: {'skipped' if 'skipped' in row else 'failed'}"
    return f"{names}: {row['ours_ms']:.4g} ms, torch {row['cudnn_ms']:.4g} ms, {row['speedup']:.2f}x"


def _new_report(cases: Sequence[Case], device: torch.device) -> Report:
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
        "cases": {case["name"]: case for case in cases},
        "copy_GBps": None,
        "matmul_TFLOPs": {},
        "rows": [],
    }


def _measure(case: Case, mode: str, layout: str, direction: str, roofline: Roofline, device: torch.device) -> Row:
    """One row: what was measured, or why nothing was."""
    size = minimal_bytes(case, dtype_of(mode).itemsize)
    row: Row = {
        "case": case["name"], "dtype": "fp32" if mode == "tf32" else mode, "mode": mode,
        "precision": {"fp32": "strict", "tf32": "tf32"}.get(mode, "native"),
        "layout": layout, "direction": direction, "gflop": flops(case) / 1e9, "gb": size / 1e9,
    }  # fmt: skip
    try:
        _check_and_time(row, case, device)
    except RuntimeError as error:
        out_of_memory = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
        row["skipped" if out_of_memory else "failed"] = str(error).partition("\n")[0]
        return row
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    floor = roofline.floor_ms(size, flops(case))
    row.update(
        speedup=row["cudnn_ms"] / row["ours_ms"], floor_ms=floor, fraction=floor / row["ours_ms"],
        tflops=row["gflop"] / row["ours_ms"], gbps=1e3 * row["gb"] / row["ours_ms"],
    )  # fmt: skip
    return row


def _check_and_time(row: Row, case: Case, device: torch.device) -> None:
    """Adds plan, errors and times to a row that names what to measure."""
    direction = row["direction"]

    def operands() -> Operands:
        made = make_operands(case, dtype_of(row["mode"]), device, grad_output=direction != "forward")
        return made.laid_out(row["layout"], device)

    torch.manual_seed(0)
    first = operands()
    row["plan"] = explain.plan_line(call_explain(direction, first))
    row["error"], row["cudnn_error"] = sampled_errors(
        direction, first, call_ours(direction, first), call_torch(direction, first)
    )
    row["wrong"] = not row["error"] <= max(BOUNDS[row["mode"]], 2 * row["cudnn_error"])
    read_bytes = sum(tensor.numel() * tensor.element_size() for tensor in first.read(direction))
    sets = [first, *(operands() for _ in range(input_sets(read_bytes, device) - 1))]
    timings = time_interleaved(
        {
            "ours": [functools.partial(call_ours, direction, one) for one in sets],
            "cudnn": [functools.partial(call_torch, direction, one) for one in sets],
        },
        device,
    )
    row["spread"] = max(timing.spread for timing in timings.values())
    row["ours_ms"], row["cudnn_ms"] = timings["ours"].median, timings["cudnn"].median

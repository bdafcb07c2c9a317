"""``python -m deconv_ext bench``: times against torch's own operator, which is cuDNN on a GPU."""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch

import deconv_ext
from deconv_ext.cli import explain, plots, sweep, training
from deconv_ext.cli.console import Column, print_table, progress
from deconv_ext.cli.measure import Roofline, cudnn_search, measure_copy, measure_matmul, time_operators
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
from deconv_ext.cli.reports import (
    OnRow,
    Report,
    Row,
    mean_speedups,
    new_report,
    reason_of,
    roofline_of,
    style_of,
    title_of,
    unmeasured,
    write_json,
)
from deconv_ext.workloads import SUITES, Case, flops, load_cases, minimal_bytes, scale_down, select

LAYOUTS = ("nchw", "channels_last")

_FIGURES = """\
The figures of docs/performance.md, on a machine with a GPU:
  python -m deconv_ext bench --suite all --layout both --dtype bf16 --json report.json --plot report.png
  python -m deconv_ext bench --from-json report.json --plot report.png    shows and draws them again
  python docs/figures/train_dcgan.py --json dcgan.json --plot dcgan.png   the training curves; in a clone

Speed cliffs between neighbouring shapes, and whole training steps:
  python -m deconv_ext bench --sweep --dtype bf16 --json sweep.json --plot sweep.png
  python -m deconv_ext bench --training --execution eager --json training.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.epilog, parser.formatter_class = _FIGURES, argparse.RawDescriptionHelpFormatter
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--suite", choices=SUITES, default="kernelbench", help="the cases (default: %(default)s)")
    source.add_argument(
        "--sweep", dest="suite", action="store_const", const="sweep",
        help="short for --suite sweep: one layer, one property varied at a time, to find speed cliffs",
    )  # fmt: skip
    source.add_argument(
        "--training", action="store_true", help=f"time training steps of whole models: {', '.join(training.MODELS)}"
    )
    source.add_argument("--json-cases", metavar="FILE", help="the cases from a JSON file instead of a suite")
    source.add_argument("--from-json", metavar="FILE", help="show and plot an earlier report; measure nothing")
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="only this case or model (repeatable)"
    )
    parser.add_argument(
        "--dtype", action="append", choices=DTYPES, help="default: fp32, of --training tf32 and bf16 (repeatable)"
    )
    parser.add_argument("--layout", choices=(*LAYOUTS, "both"), help="default: nchw, of --training both")
    parser.add_argument("--direction", choices=(*DIRECTIONS, "all"), help="default: forward; not for --training")
    parser.add_argument(
        "--precision", choices=("strict", "tf32", "both"), help="of fp32, for both sides; default: strict"
    )
    parser.add_argument("--execution", choices=(*training.EXECUTIONS, "both"), help="of --training only; default: both")
    parser.add_argument(
        "--scale", type=int, default=1, metavar="N", help="divide batch, channels and size by N; size not of --training"
    )
    parser.add_argument(
        "--autotune", nargs="?", type=int, const=16, default=0, metavar="N",
        help="choose this package's plans by timing N candidates (16 without a number); default: by arithmetic",
    )  # fmt: skip
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")
    parser.add_argument("--json", metavar="FILE", help="write everything measured; renewed after each row")
    parser.add_argument("--plot", metavar="FILE", help="draw charts to a PNG; not of --training")


def main(args: argparse.Namespace) -> int:
    """Measures or loads a report and shows it; 0, or 1 if a case failed or gave a wrong result."""
    if args.plot:
        plots.require_matplotlib()
    if args.from_json:
        report = json.loads(Path(args.from_json).read_text(encoding="utf-8"))
        report["rows"] = [row for row in report["rows"] if not args.case or row["case"] in args.case]
    else:
        report = _run_training(args) if args.training else _run_cases(args)
    _show(report, args.plot)
    return 1 if any(row.get("wrong") or "failed" in row for row in report["rows"]) else 0


def _run_cases(args: argparse.Namespace) -> Report:
    if args.execution:
        raise ValueError(f"--execution is {args.execution}; it is for --training only")
    cases = load_cases(args.json_cases) if args.json_cases else SUITES[args.suite]
    return run(
        [scale_down(case, args.scale) if args.scale != 1 else case for case in select(cases, args.case)],
        dtypes=args.dtype or ("fp32",),
        layouts=_one_or_all(args.layout or "nchw", "both", LAYOUTS),
        directions=_one_or_all(args.direction or "forward", "all", DIRECTIONS),
        precision=args.precision or "strict",
        autotune=args.autotune,
        device=args.device,
        on_row=_writer(args),
    )


def _run_training(args: argparse.Namespace) -> Report:
    if args.plot:
        raise ValueError(f"--plot is {args.plot}; a training report has no chart")
    if args.direction:
        raise ValueError(f"--direction is {args.direction}; a training step has all three")
    modes = [mode for dtype in args.dtype or ("fp32",) for mode in _modes(dtype, args.precision or "strict")]
    return training.run(
        args.case or tuple(training.MODELS),
        modes=modes if args.dtype or args.precision else ("tf32", "bf16"),
        layouts=_one_or_all(args.layout or "both", "both", LAYOUTS),
        executions=_one_or_all(args.execution or "both", "both", training.EXECUTIONS),
        scale=args.scale,
        autotune=args.autotune,
        device=args.device,
        on_row=_writer(args),
    )


def _one_or_all(chosen: str, all_of_them: str, values: tuple[str, ...]) -> tuple[str, ...]:
    return values if chosen == all_of_them else (chosen,)


def _writer(args: argparse.Namespace) -> OnRow | None:
    return functools.partial(write_json, path=args.json) if args.json else None


def _show(report: Report, chart: str | None) -> None:
    """Prints a report of any kind, and draws it where a path for the chart is given."""
    if report.get("kind") == "training":
        if chart:
            raise ValueError(f"--plot is {chart}; a training report has no chart")
        training.print_report(report)
        return
    is_sweep = sweep.is_sweep(report)
    (sweep.print_report if is_sweep else print_report)(report)
    if chart:
        (plots.draw_sweep if is_sweep else plots.draw)(report, chart)


def run(
    cases: Sequence[Case],
    *,
    dtypes: Sequence[str] = ("fp32",),
    layouts: Sequence[str] = ("nchw",),
    directions: Sequence[str] = ("forward",),
    precision: str = "strict",
    autotune: int = 0,
    device: str | torch.device | None = None,
    on_row: OnRow | None = None,
) -> Report:
    """Measures the operator and torch's own in one run, at equal precision and layout.

    Args:
        cases: what to measure.
        dtypes: names from fp64, fp32, fp16, bf16.
        layouts: "nchw", "channels_last".
        directions: "forward", "grad_input", "grad_weight".
        precision: of fp32, "strict", "tf32" (TF32 tensor cores allowed to both sides), or "both", one after the other.
        autotune: how many candidates are timed to choose this package's plans; default 0, chosen by arithmetic.
        device: default: cuda where there is one, else cpu.
        on_row: called with the report so far after each row.

    Returns:
        A dict that JSON can hold: ``device``, ``date``, versions, ``cases``, ``copy_GBps``, ``matmul_TFLOPs`` by mode,
        ``autotune``, ``rows``.
        A row has ``case``, ``dtype``, ``precision``, ``mode`` (the dtype's name, or tf32), ``layout``, ``direction``,
        ``gflop``, ``gb``; ``ours_ms``, ``cudnn_ms`` (torch's own operator's, also where it is not cuDNN), ``speedup``,
        ``spread`` (10% to 90% of the samples relative to the median, the larger of both), ``floor_ms``, ``fraction``
        (floor / ours), ``tflops``, ``gbps``, ``error``, ``cudnn_error`` (relative, against float64), ``wrong``,
        ``plan``; or, instead of the times, ``skipped`` or ``failed`` with the reason.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    modes = [mode for dtype in dtypes for mode in _modes(dtype, precision)]
    cases_by_name = {case["name"]: case for case in cases}
    report = new_report(where, autotune=autotune, cases=cases_by_name, copy_GBps=None, matmul_TFLOPs={})
    total = math.prod(map(len, (modes, cases, layouts, directions)))
    with cudnn_search(), deconv_ext.autotune(autotune), torch.inference_mode(), progress("bench", total) as advance:
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


def print_report(report: Report) -> None:
    """Prints a report as a table, with the geometric mean of the speedups of each mode, layout and direction."""
    columns = [Column(title, text=True) for title in ("case", "mode", "layout", "direction")]
    columns += [Column(title) for title in ("ours ms", f"{report['rival']} ms", "speedup", "spread", "TFLOP/s", "GB/s")]
    columns += [Column("of roofline"), Column("error"), Column("plan", text=True)]
    rows = report["rows"]
    caption = "\n".join([roofline_of(report), *mean_speedups(report, "mode", "layout", "direction")])
    print_table(title_of(report), columns, [*map(_cells, rows)], [*map(style_of, rows)], caption)


def _cells(row: Row) -> list[str]:
    names = [row["case"], row["mode"], row["layout"], row["direction"]]
    if state := unmeasured(row):
        return [*names, *[""] * 8, f"{state}: {row[state]}"]
    return [
        *names, f"{row['ours_ms']:.4f}", f"{row['cudnn_ms']:.4f}", f"{row['speedup']:.2f}x", f"{row['spread']:.0%}",
        f"{row['tflops']:.3g}", f"{row['gbps']:.0f}", f"{row['fraction']:.0%}",
        f"{row['error']:.1e}" + (" WRONG" if row["wrong"] else ""), row["plan"],
    ]  # fmt: skip


def _line(row: Row) -> str:
    names = f"{row['case']} {row['mode']} {row['layout']} {row['direction']}"
    if state := unmeasured(row):
        return f"{names}: {state}"
    return f"{names}: {row['ours_ms']:.4g} ms, torch {row['cudnn_ms']:.4g} ms, {row['speedup']:.2f}x"


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
        row.update(reason_of(error))
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
    row["error"], row["cudnn_error"] = sampled_errors(
        direction, first, call_ours(direction, first), call_torch(direction, first)
    )
    row["plan"] = explain.plan_line(call_explain(direction, first))
    row["wrong"] = not row["error"] <= max(BOUNDS[row["mode"]], 2 * row["cudnn_error"])
    timings = time_operators(direction, first, operands, device)
    row["spread"] = max(timing.spread for timing in timings.values())
    row["ours_ms"], row["cudnn_ms"] = timings["ours"].median, timings["torch"].median

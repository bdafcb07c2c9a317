"""``python -m deconv_ext bench``: times against torch's own operator, which is cuDNN on a GPU."""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

import deconv_ext
from deconv_ext.cli import explain, plots, sweep, training
from deconv_ext.cli.console import Column, print_table, progress
from deconv_ext.cli.layers import add_layer_arguments, layer_of
from deconv_ext.cli.measure import Roofline, cudnn_search, measure_copy, measure_matmul, time_operators
from deconv_ext.cli.operands import (
    BOUNDS,
    DIRECTIONS,
    MODES,
    Operands,
    call_explain,
    call_ours,
    call_torch,
    device_of,
    dtype_of,
    make_operands,
    sampled_errors,
    torch_in,
)
from deconv_ext.cli.reports import (
    TRAINING,
    OnRow,
    Report,
    Row,
    ceilings_of,
    mean_speedups,
    merge,
    new_report,
    read_csv,
    reason_of,
    style_of,
    title_of,
    write_csv,
)
from deconv_ext.workloads import (
    ALL_CASES,
    SUITES,
    Case,
    flops,
    load_cases,
    minimal_bytes,
    scale_down,
    select,
    shape_of,
    suite_of,
)

LAYOUTS = ("nchw", "channels_last")

_EXAMPLES = """\
examples:
  deconv-ext bench --input 16,256,64,64 --out-channels 128 --kernel 4 --stride 2 --padding 1     one layer of yours
  deconv-ext bench --suite all --csv report.csv --plot report.png       every layer of the benchmark
  deconv-ext bench --from-csv report.csv --plot report.png              shows and draws a report again
  deconv-ext bench --suite sweep --direction forward                    one property of a layer varied: speed cliffs
  deconv-ext bench --training --dtype bf16                              whole training steps
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--suite", choices=SUITES, help="the layers (default: kernelbench, or all for --case)")
    add_layer_arguments(parser, source)
    source.add_argument(
        "--training", action="store_true", help=f"time training steps of whole models: {', '.join(training.MODELS)}"
    )
    source.add_argument("--json-cases", metavar="FILE", help="the layers from a JSON file")
    source.add_argument("--from-csv", nargs="+", metavar="FILE", help="show reports of one commit and GPU as one")
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="only this layer or model (repeatable)"
    )
    parser.add_argument("--dtype", action="append", choices=MODES, help="fp32 is strict; default: bf16 (repeatable)")
    parser.add_argument("--layout", choices=(*LAYOUTS, "both"), default="both", help="default: %(default)s")
    parser.add_argument("--direction", choices=(*DIRECTIONS, "all"), help="default: all; not for --training")
    parser.add_argument("--execution", choices=(*training.EXECUTIONS, "both"), help="of --training only; default: both")
    parser.add_argument(
        "--scale", type=int, default=1, metavar="N", help="divide batch, channels and size by N; size not of --training"
    )
    parser.add_argument(
        "--autotune", nargs="?", type=int, const=16, default=0, metavar="N",
        help="choose this package's plans by timing N candidates (16 without a number); default: by arithmetic",
    )  # fmt: skip
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")
    parser.add_argument("--csv", metavar="FILE", help="write everything measured; renewed after each row")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the --csv FILE already holds")
    parser.add_argument("--plot", metavar="FILE", help="draw a chart, PNG or SVG by the name's ending")


def main(args: argparse.Namespace) -> int:
    """Measures or loads a report and shows it; 0, or 1 if a layer failed or gave a wrong result."""
    _refuse_combinations(args)
    if args.from_csv:
        report = merge([read_csv(path) for path in args.from_csv])
        if unknown := set(args.case) - {row.case for row in report.rows}:
            raise ValueError(f"--case is {', '.join(sorted(unknown))}; the report has no such row")
        report.rows = [row for row in report.rows if not args.case or row.case in args.case]
        if args.csv:
            write_csv(report, args.csv)
    else:
        earlier = read_csv(args.csv) if args.resume and args.csv and Path(args.csv).exists() else None
        report = (_run_training if args.training else _run_cases)(args, earlier)
    print_report(report)
    if args.plot:
        plots.draw(report, args.plot)
    return 1 if any(row.failed for row in report.rows) else 0


def _refuse_combinations(args: argparse.Namespace) -> None:
    """Raises ValueError for arguments that would be ignored, or fail only after the measurement."""
    if args.input and args.case:
        raise ValueError(f"--case is {args.case[0]}; with --input the layer is given by arguments")
    if args.resume and not args.csv:
        raise ValueError("--resume needs --csv FILE, the report to add to")
    if args.csv and not Path(args.csv).absolute().parent.is_dir():
        raise ValueError(f"--csv is {args.csv}; its folder does not exist")
    if args.plot:
        plots.require_matplotlib()
        if args.training:
            raise ValueError(f"--plot is {args.plot}; training steps have no chart")
        if Path(args.plot).suffix not in (".png", ".svg"):
            raise ValueError(f"--plot is {args.plot}; its name must end in .png or .svg")


def _run_cases(args: argparse.Namespace, earlier: Report | None) -> Report:
    if args.execution:
        raise ValueError(f"--execution is {args.execution}; it is for --training only")
    if args.input:
        cases = [layer_of(args)]
    else:
        default = ALL_CASES if args.case else SUITES["kernelbench"]
        listed = SUITES[args.suite] if args.suite else default
        cases = select(load_cases(args.json_cases) if args.json_cases else listed, args.case)
    return run(
        [scale_down(case, args.scale) if args.scale != 1 else case for case in cases],
        dtypes=args.dtype or ("bf16",),
        layouts=_one_or_all(args.layout, "both", LAYOUTS),
        directions=_one_or_all(args.direction or "all", "all", DIRECTIONS),
        autotune=args.autotune,
        device=args.device,
        earlier=earlier,
        on_row=_writer(args),
    )


def _run_training(args: argparse.Namespace, earlier: Report | None) -> Report:
    if args.direction:
        raise ValueError(f"--direction is {args.direction}; a training step has all three")
    return training.run(
        args.case or tuple(training.MODELS),
        modes=args.dtype or ("tf32", "bf16"),
        layouts=_one_or_all(args.layout, "both", LAYOUTS),
        executions=_one_or_all(args.execution or "both", "both", training.EXECUTIONS),
        scale=args.scale,
        autotune=args.autotune,
        device=args.device,
        earlier=earlier,
        on_row=_writer(args),
    )


def _one_or_all(chosen: str, all_of_them: str, values: tuple[str, ...]) -> tuple[str, ...]:
    return values if chosen == all_of_them else (chosen,)


def _writer(args: argparse.Namespace) -> OnRow | None:
    return functools.partial(write_csv, path=args.csv) if args.csv else None


def run(
    cases: Sequence[Case],
    *,
    dtypes: Sequence[str] = ("bf16",),
    layouts: Sequence[str] = LAYOUTS,
    directions: Sequence[str] = DIRECTIONS,
    autotune: int = 0,
    device: str | torch.device | None = None,
    earlier: Report | None = None,
    on_row: OnRow | None = None,
) -> Report:
    """Measures the operator and torch's own in one run, at equal precision and layout.

    Args:
        cases: what to measure.
        dtypes: names from fp64, fp32 (strict), tf32 (TF32 tensor cores allowed to both sides), fp16, bf16.
        layouts: "nchw", "channels_last".
        directions: "forward", "grad_input", "grad_weight".
        autotune: how many candidates are timed to choose this package's plans; default 0, chosen by arithmetic.
        device: default: cuda where there is one, else cpu.
        earlier: a report to add to; what it holds is not measured again.
        on_row: called with the report so far after each row.

    Returns:
        The report; its head holds the measured ceilings "copy GB/s" and, for each dtype, as "bf16 TFLOP/s", the rate of
        a large matrix product.

    Raises:
        ValueError: if ``earlier`` is of another commit, GPU or version.
    """
    where = device_of(device)
    report = new_report(where, autotune)
    report = merge([earlier, report]) if earlier else report
    settings = list(itertools.product(dtypes, cases, layouts, directions))
    known = {row.setting for row in report.rows}
    rows = [_row(*setting) for setting in settings]
    todo = [(row, case) for row, (_, case, _, _) in zip(rows, settings, strict=True) if row.setting not in known]
    with cudnn_search(), deconv_ext.autotune(autotune), torch.inference_mode(), progress("bench", len(todo)) as advance:
        _measure_ceilings(report, dtypes, where)
        for row, case in todo:
            with torch_in(row.dtype):
                _measure(row, case, report, where)
            report.add(row, on_row)
            advance(_line(row))
    return report


def _measure_ceilings(report: Report, dtypes: Collection[str], device: torch.device) -> None:
    report.head["copy GB/s"] = f"{measure_copy(device):.4g}"
    for dtype in dtypes:
        with torch_in(dtype):
            rate = measure_matmul(dtype_of(dtype), device)
        if dtype == "fp32" and device.type == "cuda":  # strict float32 may be three TF32 products
            with torch_in("tf32"):
                rate = max(rate, measure_matmul(torch.float32, device) / 3)
        report.head[f"{dtype} TFLOP/s"] = f"{rate:.4g}"


def print_report(report: Report) -> None:
    """Prints a table a suite kind: layers, sweeps, training steps; each with its medians and geometric means."""
    steps = [row for row in report.rows if row.suite == TRAINING]
    points = [row for row in report.rows if row.suite == "sweep"]
    layers = [row for row in report.rows if row.suite not in (TRAINING, "sweep")]
    if layers or not report.rows:
        _print_layers(report, layers)
    if points:
        sweep.print_points(report, points)
    if steps:
        training.print_steps(report, steps)


def _print_layers(report: Report, rows: Sequence[Row]) -> None:
    columns = [Column(title, text=True) for title in ("layer", "dtype", "layout", "direction")]
    columns += [Column(title) for title in ("ours ms", f"{report.rival} ms", "speedup", "spread", "TFLOP/s", "GB/s")]
    columns += [Column("of roofline"), Column("error"), Column("kernel", text=True)]
    caption = "\n".join([ceilings_of(report), *mean_speedups(rows)])
    print_table(title_of(report), columns, [*map(_cells, rows)], [*map(style_of, rows)], caption)


def _cells(row: Row) -> list[str]:
    names = [row.case, row.dtype, row.layout, row.direction]
    if not row.measured:
        return [*names, *[""] * 8, row.note]
    return [
        *names, f"{row.ours_ms:.4g}", f"{row.cudnn_ms:.4g}", f"{row.speedup:.2f}x", f"{row.spread:.0%}",
        f"{row.tflops:.3g}", f"{row.gbps:.0f}", f"{1 / row.over_floor:.0%}", f"{row.error:.1e}",
        f"{row.kernel} {row.note.upper()}".strip(),
    ]  # fmt: skip


def _line(row: Row) -> str:
    names = f"{row.case} {row.dtype} {row.layout} {row.direction}"
    if not row.measured:
        return f"{names}: {row.note}"
    return f"{names}: {row.ours_ms:.4g} ms, torch {row.cudnn_ms:.4g} ms, {row.speedup:.2f}x {row.note}"


def _row(dtype: str, case: Case, layout: str, direction: str) -> Row:
    return Row(suite_of(case["name"]), case["name"], shape_of(case), direction, dtype, layout)


def _measure(row: Row, case: Case, report: Report, device: torch.device) -> None:
    """Adds times, or why there are none, to a row that names what to measure."""
    try:
        _check_and_time(row, case, device)
    except RuntimeError as error:
        row.note = row.note or reason_of(error)  # a wrong result stays one
        return
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    roofline = Roofline(report.ceiling("copy GB/s"), report.ceiling(f"{row.dtype} TFLOP/s"))
    row.floor_ms = roofline.floor_ms(minimal_bytes(case, dtype_of(row.dtype).itemsize), flops(case))


def _check_and_time(row: Row, case: Case, device: torch.device) -> None:
    direction = row.direction

    def operands() -> Operands:
        made = make_operands(case, dtype_of(row.dtype), device, grad_output=direction != "forward")
        return made.laid_out(row.layout, device)

    torch.manual_seed(0)
    first = operands()
    row.error, torchs_error = sampled_errors(
        direction, first, call_ours(direction, first), call_torch(direction, first)
    )
    row.kernel = explain.kernel_name(call_explain(direction, first))
    bound = max(BOUNDS[row.dtype], 2 * torchs_error)
    row.note = "" if row.error <= bound else f"wrong: its error must be at most {bound:.1e}"
    timings = time_operators(direction, first, operands, device)
    row.spread = max(timing.spread for timing in timings.values())
    row.ours_ms, row.cudnn_ms = timings["ours"].median, timings["torch"].median

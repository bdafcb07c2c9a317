"""Times the candidates that the planner considers, layer by layer: how good its estimates and choices are.

    python tools/time_plans.py --suite all --dtype bf16 --json plans.json
    python tools/time_plans.py --from-json plans.json

Needs a GPU. Each candidate runs by :class:`deconv_ext.autotune`, which says how it is timed; a row of the JSON holds
``case``, ``mode``, ``layout``, ``direction`` and ``plans``: [tile, estimate ms, ms], quickest first. The table counts
what choosing by the estimates costs, and what remains of that if the first few candidates are timed.
"""

import argparse
import itertools
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

import deconv_ext
from deconv_ext.cli.bench import LAYOUTS
from deconv_ext.cli.console import Column, print_table, progress
from deconv_ext.cli.operands import (
    BOUNDS,
    DIRECTIONS,
    call_explain,
    call_ours,
    dtype_of,
    make_operands,
    torch_in,
)
from deconv_ext.cli.reports import new_report
from deconv_ext.workloads import SUITES, Case, load_cases, select

_TIMED = re.compile(r"^    (.+): ([\d.e+-]+) ms, about ([\d.e+-]+) ms$", re.MULTILINE)
_SHORTLISTS = (1, 4, 8, 16, 32, 64)


def main() -> int:
    """Times or loads, and prints the table."""
    args = _arguments()
    if args.from_json:
        report = json.loads(Path(args.from_json).read_text(encoding="utf-8"))
    else:
        cases = load_cases(args.json_cases) if args.json_cases else SUITES[args.suite]
        report = time_plans(select(cases, args.case), args)
    print_report(report)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--suite", choices=SUITES, default="all", help="the layers (default: %(default)s)")
    source.add_argument("--json-cases", metavar="FILE", help="the layers from a JSON file")
    source.add_argument("--from-json", metavar="FILE", help="show an earlier run; time nothing")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only this layer (repeatable)")
    parser.add_argument("--dtype", action="append", choices=tuple(BOUNDS), help="default: bf16 (repeatable)")
    parser.add_argument("--layout", choices=(*LAYOUTS, "both"), default="both", help="default: %(default)s")
    parser.add_argument("--direction", choices=(*DIRECTIONS, "all"), default="all", help="default: %(default)s")
    parser.add_argument("--candidates", type=int, default=64, metavar="N", help="of each; default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write everything timed; renewed after each layer")
    args = parser.parse_args()
    if not args.from_json and not torch.cuda.is_available():
        parser.error("there is no CUDA device to time plans on; --from-json shows an earlier run")
    return args


def time_plans(cases: list[Case], args: argparse.Namespace) -> dict[str, Any]:
    """The report: of each setting the candidates with their estimates and times, ms, quickest first."""
    device = torch.device("cuda")
    modes = args.dtype or ["bf16"]
    layouts = LAYOUTS if args.layout == "both" else (args.layout,)
    directions = DIRECTIONS if args.direction == "all" else (args.direction,)
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(device), **new_report(device).head}
    report |= {"candidates": args.candidates, "cases": {case["name"]: case for case in cases}, "rows": []}
    total = len(modes) * len(cases) * len(layouts) * len(directions)
    with deconv_ext.autotune(args.candidates), torch.inference_mode(), progress("plans", total) as advance:
        for mode, case, layout, direction in itertools.product(modes, cases, layouts, directions):
            with torch_in(mode):
                operands = make_operands(case, dtype_of(mode), device, grad_output=direction != "forward")
                operands = operands.laid_out(layout, device)
                call_ours(direction, operands)
                text = call_explain(direction, operands)
            plans = timed_plans(text)
            report["rows"].append(
                {"case": case["name"], "mode": mode, "layout": layout, "direction": direction, "plans": plans}
            )
            torch.cuda.empty_cache()
            if args.json:
                Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            advance(f"{case['name']} {mode} {layout} {direction}: {len(plans)} plans")
    return report


def timed_plans(explanation: str) -> list[list[Any]]:
    """What an explanation says was timed: [tile, estimate ms, ms], quickest first; empty if nothing was."""
    return [[tile, float(estimate), float(ms)] for tile, ms, estimate in _TIMED.findall(explanation)]


def print_report(report: dict[str, Any]) -> None:
    """Geometric means over the layers: the time of the quickest of the first N by estimate over the quickest of all."""
    groups: dict[tuple[str, str, str], list[list[list[Any]]]] = {}
    for row in report["rows"]:
        if row["plans"]:
            groups.setdefault((row["direction"], row["mode"], row["layout"]), []).append(row["plans"])
    columns = [Column(title, text=True) for title in ("direction", "mode", "layout")]
    columns += [Column("layers"), *(Column(f"first {count}") for count in _SHORTLISTS)]
    rows = []
    for key, settings in groups.items():
        means = [statistics.geometric_mean(_loss(plans, count) for plans in settings) for count in _SHORTLISTS]
        rows.append([*key, str(len(settings)), *(f"{mean:.3f}" for mean in means)])
    caption = "the quickest of the first N candidates by estimate over the quickest of all timed, geometric means"
    print_table(f"plans on {report['device']}", columns, rows, [""] * len(rows), caption)


def _loss(plans: list[list[Any]], count: int) -> float:
    first = sorted(plans, key=lambda plan: plan[1])[:count]
    quickest: float = min(plan[2] for plan in first) / min(plan[2] for plan in plans)
    return quickest


if __name__ == "__main__":
    sys.exit(main())

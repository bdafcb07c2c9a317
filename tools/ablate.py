"""Measures what each kernel and planner option is worth: time without it over time with it.

    python tools/ablate.py --dtype bf16 --kernels sub_pixel,igemm_sm90.ping_pong,col2im+small_channel --csv worth.csv
    python tools/ablate.py --plans-only

DECONV_KERNELS is read once a process, so a process lists the plans without each part. Settings whose plan changes are
timed, with and without the part, by CUDA-graph replays. A cell is the geometric mean over all settings, an unchanged
plan counting as 1, and in brackets the number of changed plans. Parts joined by + are switched off together. Needs a
GPU, except for --plans-only, which counts the changes alone.
"""

import argparse
import csv
import functools
import itertools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from deconv_ext.cli import operands
from deconv_ext.cli.bench import LAYOUTS
from deconv_ext.cli.console import Column, print_table, progress
from deconv_ext.cli.measure import input_sets, time_interleaved
from deconv_ext.cli.operands import BOUNDS, DIRECTIONS, Operands
from deconv_ext.workloads import SUITES, select

CASES = {case["name"]: case for case in SUITES["all"]}
MODES = ("bf16", "tf32", "fp32")
_PLAN = re.compile(r"^  plan: (.+), about .+$|^  (launch: .+)$|^  (workspace: .+)$", re.MULTILINE)

FIELDS = ("ms_with", "ms_without", "plan_with", "plan_without")

Setting = tuple[str, str, str, str]  # case, mode, layout, direction
Row = dict[str, Any]  # part, setting, and FIELDS


def work() -> int:
    """Answers each setting on stdin by a line of JSON: its plan, or its time in milliseconds."""
    job = json.load(sys.stdin)
    for name, mode, layout, direction in job["settings"]:
        make = functools.partial(_operands, name, mode, layout, direction, "cuda:0" if job["timed"] else "meta")
        with operands.torch_in(mode), torch.inference_mode():
            print(json.dumps(time_ms(direction, make) if job["timed"] else plan_of(direction, make())), flush=True)
    return 0


def plan_of(direction: str, tensors: Operands) -> str:
    """The kernel, its launch and its workspace."""
    return "; ".join(next(filter(None, one)) for one in _PLAN.findall(operands.call_explain(direction, tensors)))


def time_ms(direction: str, make: Callable[[], Operands]) -> float:
    """Median time of a call, over as many operands as exceed the L2 cache."""
    first = make()
    read_bytes = sum(tensor.numel() * tensor.element_size() for tensor in first.read(direction))
    sets = [first, *(make() for _ in range(input_sets(read_bytes, first.input.device) - 1))]
    calls = [functools.partial(operands.call_ours, direction, one) for one in sets]
    torch.cuda.empty_cache()
    return time_interleaved({"ours": calls}, first.input.device)["ours"].median


def _operands(name: str, mode: str, layout: str, direction: str, device: str) -> Operands:
    on, case, dtype = torch.device(device), CASES[name], operands.dtype_of(mode)
    return operands.make_operands(case, dtype, on, grad_output=direction != "forward").laid_out(layout, on)


def ask(off: tuple[str, ...], settings: list[Setting], timed: bool) -> list[Any]:
    """Answers of a process without the parts ``off``, one a setting."""
    command = [sys.executable, "-W", "ignore", __file__, "--work"]
    job = json.dumps({"settings": settings, "timed": timed})
    environment = _environment(",".join(f"-{name}" for name in off))
    done = subprocess.run(command, input=job, stdout=subprocess.PIPE, text=True, env=environment)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(answers) < len(settings):
        raise SystemExit(f"ablate: without {off} only {len(answers)} of {len(settings)} settings answered")
    return answers


def switchable_names() -> list[str]:
    """What DECONV_KERNELS takes, from the message that refuses another name."""
    code = "import deconv_ext, torch; deconv_ext.explain(*[torch.empty(1, 1, 2, 2, device='meta')] * 2)"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_environment("-?"))
    if names := re.search(r"DECONV_KERNELS must list [^(]*\(([^)]+)\)", refused.stderr):
        return names.group(1).split(", ")
    raise SystemExit(f"ablate: the library does not name its parts:\n{refused.stderr}")


def _ratio(row: Row) -> float:
    return float(row["ms_without"] / row["ms_with"])


def _environment(kernels: str) -> dict[str, str]:
    return {**os.environ, "DECONV_KERNELS": kernels, "DECONV_FAMILY": ""}


def compare_plans(parts: list[str], without: tuple[str, ...], settings: list[Setting]) -> list[Row]:
    """A row for each setting and part without which its plan is another."""
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool, progress("plans", len(parts) + 1) as advance:

        def list_plans(part: str) -> list[str]:
            plans = ask((*without, *filter(None, part.split("+"))), settings, False)
            advance(f"without {part or 'nothing'}")
            return plans

        base, *others = pool.map(list_plans, ["", *parts])
    return [
        {"part": part, "setting": setting, "plan_with": old, "plan_without": new, "ms_with": None, "ms_without": None}
        for part, plans in zip(parts, others, strict=True)
        for setting, old, new in zip(settings, base, plans, strict=True)
        if old != new
    ]


def time_plans(rows: list[Row], without: tuple[str, ...], save: Callable[[], None]) -> None:
    """Fills in the times: all with the parts first, then part by part, calling ``save`` after each."""
    groups = [(part, list(own)) for part, own in itertools.groupby(rows, key=lambda row: row["part"])]
    with progress("timings", len(groups) + 1) as advance:
        changed = list(dict.fromkeys(row["setting"] for row in rows))
        with_part = dict(zip(changed, ask(without, changed, True), strict=True))
        advance(f"{len(changed)} settings with all parts")
        for part, own in groups:
            times = ask((*without, *part.split("+")), [row["setting"] for row in own], True)
            for row, ms in zip(own, times, strict=True):
                row |= {"ms_with": with_part[row["setting"]], "ms_without": ms}
            save()
            advance(f"{len(own)} settings without {part}")


def _save(path: str, rows: list[Row]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["part", "case", "dtype", "layout", "direction", *FIELDS])
        writer.writerows([row["part"], *row["setting"], *(row[field] for field in FIELDS)] for row in rows)


def print_report(rows: list[Row], parts: list[str], settings: list[Setting]) -> None:
    """A table of forward and grad_input, and one of grad_weight; parts that change nothing there are left out."""
    kinds = list(dict.fromkeys((direction, mode) for _, mode, _, direction in settings))
    for directions in (DIRECTIONS[:2], DIRECTIONS[2:]):
        columns = [kind for direction in directions for kind in kinds if kind[0] == direction]
        table = []
        for part in parts:
            own = [row for row in rows if row["part"] == part and row["setting"][3] in directions]
            worst = max((row for row in own if row["ms_with"]), key=_ratio, default=None)
            text = f"{' '.join(worst['setting'][:3])} {_ratio(worst):.2f}" if worst else ""
            if own:
                table.append([part, *(_cell(own, settings, kind) for kind in columns), text])
        heads = [Column("part", text=True), *(Column(" ".join(kind)) for kind in columns), Column("worst", text=True)]
        caption = "time without the part over time with it, geometric mean of all settings (changed plans)"
        print_table("what a part is worth", heads, table, [""] * len(table), caption)


def _cell(own: list[Row], settings: list[Setting], kind: tuple[str, str]) -> str:
    changed = [row for row in own if (row["setting"][3], row["setting"][1]) == kind]
    if not changed or not changed[0]["ms_with"]:
        return f"({len(changed)})" if changed else "0"
    count = sum((direction, mode) == kind for _, mode, _, direction in settings)
    gain = math.prod(map(_ratio, changed)) ** (1 / count) - 1
    return f"{gain:+.1%} ({len(changed)})"


def main() -> int:
    """Parses the command line, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", metavar="NAMES", help="parts, separated by commas; default: all")
    parser.add_argument("--without", metavar="NAMES", default="", help="parts that are off on both sides")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only this layer (repeatable)")
    parser.add_argument("--dtype", action="append", choices=tuple(BOUNDS), help=f"default: {', '.join(MODES)}")
    parser.add_argument("--csv", metavar="FILE", help="write a row for each changed plan, renewed after each part")
    parser.add_argument("--plans-only", action="store_true", help="count changed plans, time nothing")
    args = parser.parse_args()
    if not args.plans_only and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --plans-only counts changed plans without one")
    names, without = switchable_names(), tuple(filter(None, args.without.split(",")))
    parts = args.kernels.split(",") if args.kernels else [name for name in names if name not in without]
    if unknown := {*"+".join([*parts, *without]).split("+")} - {*names}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; DECONV_KERNELS takes {', '.join(names)}")
    cases = [case["name"] for case in select(SUITES["all"], args.case)]
    settings = list(itertools.product(cases, args.dtype or MODES, LAYOUTS, DIRECTIONS))
    rows = compare_plans(parts, without, settings)
    save = functools.partial(_save, args.csv, rows) if args.csv else (lambda: None)
    save()
    if rows and not args.plans_only:
        time_plans(rows, without, save)
    print_report(rows, parts, settings)
    return 0


if __name__ == "__main__":
    sys.exit(work() if sys.argv[1:] == ["--work"] else main())

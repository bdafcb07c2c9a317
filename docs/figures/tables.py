"""Writes the tables of docs/performance.md and docs/performance_notes.md, between their markers, from the JSON files
beside this script. A table whose report is not there says so.

python docs/figures/tables.py
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = [HERE.parent / "performance.md", HERE.parent / "performance_notes.md"]
GRADIENTS = ("grad_input", "grad_weight")
LAYOUTS = ("nchw", "channels_last")
MODES = {"tf32": "TF32", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32, strict"}
FAMILIES = ("hopper", "narrow", "col2im", "rows", "depthwise", "direct", "subpixel", "merged", "gather", "mma")
# The reports of the first version, which had no tensor cores.
FIRST = {
    ("bf16", "nchw"): "h200_first_bf16",
    ("bf16", "channels_last"): "h200_first_bf16",
    ("fp32", "nchw"): "h200_first_fp32_nchw",
    ("fp32", "channels_last"): "h200_first_fp32_channels_last",
}
# Depthwise, narrow, sparse and tiny cases: bound by memory, the business of other families.
MEMORY_BOUND = {
    "kb1_75", "kb1_81", "dcgan1", "dcgan5_rgb", "pix2pix_last", "fsrcnn_last", "fcn32s", "fcn8s_dw", "dw_k4s2_512",
    "dw_k3s1_256", "resnext_g32", "b1_latency",
}  # fmt: skip
# Depthwise and grouped cases, whose gradients have aims of their own.
GROUPED = {"kb1_75", "fcn8s_dw", "dw_k4s2_512", "dw_k3s1_256", "resnext_g32"}
# What the means of the gradients' other cases must reach, and what every dense case must.
AIMS = {
    ("grad_input", "tf32", "nchw"): 1.8, ("grad_input", "bf16", "nchw"): 2.0,
    ("grad_input", "tf32", "channels_last"): 1.15, ("grad_input", "bf16", "channels_last"): 1.15,
    ("grad_weight", "tf32", "nchw"): 2.2, ("grad_weight", "bf16", "nchw"): 2.0,
    ("grad_weight", "tf32", "channels_last"): 1.8, ("grad_weight", "bf16", "channels_last"): 1.15,
}  # fmt: skip
WORST = 0.95
# What cases bound by memory must reach in forward, ms (float32, 16 bits), in both layouts.
MEMORY_BOUND_AIMS = {
    "dw_k4s2_512": (0.12, 0.07), "dw_k3s1_256": (0.09, 0.05), "fcn8s_dw": (0.08, 0.06),
    "kb1_75": (0.35, 0.20), "kb1_81": (0.30, 0.17), "resnext_g32": (0.12, 0.07), "fsrcnn_last": (0.40, 0.25),
    "pix2pix_last": (0.07, 0.05), "dcgan5_rgb": (0.025, 0.018), "fcn32s": (0.10, 0.08), "sam_up2": (0.15, 0.09),
    "dcgan1": (0.018, 0.015), "b1_latency": (0.010, 0.009),
}  # fmt: skip

Row = dict[str, Any]
# What a planner's table is made of: line, group, the plan before and after, the quickest ones, each [plan, ms].
Entry = tuple[str, str, list[Any], list[Any], list[list[Any]]]
PLANNED = ("forward", "grad_input")


def rows_of(name: str, **wanted: str) -> list[Row]:
    """The rows of a report that were measured; none if the report is not there."""
    path = HERE / f"{name}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return [row for row in rows if "speedup" in row and all(row[key] == value for key, value in wanted.items())]


def direction_rows(direction: str, mode: str, gpu: str = "h200", **wanted: str) -> list[Row]:
    """The rows of a direction, of all reports of the mode on that GPU, the newest of each case."""
    found: dict[tuple[str, str], Row] = {}
    paths = sorted(HERE.glob(f"{gpu}_{mode}*.json"))
    for path in sorted(paths, key=lambda path: json.loads(path.read_text())["date"], reverse=True):
        for row in rows_of(path.stem, direction=direction, **wanted):
            found.setdefault((row["case"], row["layout"]), row)
    return list(found.values())


def settings(directions: Iterable[str], gpu: str = "h200") -> Iterable[tuple[str, str, str, list[Row]]]:
    """Direction, mode, layout and rows of everything measured on that GPU."""
    for direction, mode, layout in product(directions, MODES, LAYOUTS):
        if rows := direction_rows(direction, mode, gpu, layout=layout):
            yield direction, mode, layout, rows


def behind(rows: Iterable[Row]) -> str:
    """The cases where cuDNN is faster by more than is allowed, the slowest first."""
    slow = sorted((row for row in rows if row["speedup"] < WORST), key=lambda row: row["speedup"])
    return ", ".join(f"{row['case']} {row['speedup']:.2f}" for row in slow) or "–"


def is_kernelbench(row: Row) -> bool:
    return row["case"].startswith("kb")


def number(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def times(value: float) -> str:
    return f"{value:.2f}×"


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def speedup(rows: Iterable[Row]) -> str:
    return times(mean(row["speedup"] for row in rows))


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """In Markdown, columns of numbers to the right; empty without lines."""
    head, lines = list(head), [list(line) for line in lines]
    is_number = [all(cell[0].isdigit() or cell == "–" for cell in column) for column in zip(*lines, strict=True)]
    every = [head, ["---:" if right else "---" for right in is_number], *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in every) if lines else ""


def reports(pattern: str) -> str:
    """What was measured: the reports behind this page, and the ceilings of the device in the same run."""
    lines = []
    for path in sorted(HERE.glob(pattern)):
        report = json.loads(path.read_text())
        if "copy_GBps" not in report or "first" in path.stem or path.stem.startswith("sweep"):
            continue
        ceilings = ", ".join(f"{MODES[mode]} {value:.0f}" for mode, value in report["matmul_TFLOPs"].items())
        cudnn = report["cudnn"]
        lines.append([
            f"`{path.name}`", report["date"], report["torch"], f"{cudnn // 10000}.{cudnn // 100 % 100}",
            str(len(report["rows"])), f"{report['copy_GBps']:,.0f}", ceilings,
        ])  # fmt: skip
    return table(["report", "date", "torch", "cuDNN", "rows", "copy GB/s", "matrix products TFLOP/s"], lines)


def mean_columns(mode: str, rows: list[Row]) -> list[str]:
    """Geometric means of the speedup, the slowest dense case, the time over the floor of the dense cases."""
    dense = [row for row in rows if row["case"] not in MEMORY_BOUND]
    slowest = min(dense, key=lambda row: row["speedup"])
    return [
        speedup(row for row in rows if is_kernelbench(row)),
        speedup(row for row in dense if not is_kernelbench(row)),
        f"{times(slowest['speedup'])} ({slowest['case']})",
        speedup(rows),
        times(mean(row["ours_ms"] / row["floor_ms"] for row in dense)) if mode != "fp32" else "–",
    ]


MEAN_HEAD = ["KernelBench", "zoo, dense", "slowest dense case", "all cases", "over floor"]


def forward_means() -> str:
    lines = []
    for _, mode, layout, rows in settings(["forward"]):
        first = rows_of(FIRST[mode, layout], layout=layout, direction="forward") if (mode, layout) in FIRST else []
        line = [f"{MODES[mode]}, {layout}", *mean_columns(mode, rows), speedup(first) if first else "–"]
        lines.append(line)
    return table(["forward", *MEAN_HEAD, "first version, all"], lines)


def gradient_means() -> str:
    lines = [
        [
            f"{direction}, {MODES[mode]}, {layout}",
            times(AIMS[direction, mode, layout]) if (direction, mode, layout) in AIMS else "–",
            speedup(row for row in rows if row["case"] not in GROUPED),
            *mean_columns(mode, rows),
        ]
        for direction, mode, layout, rows in settings(GRADIENTS)
    ]
    return table(["gradients", "aim", "both, without groups", *MEAN_HEAD], lines)


def h100_means() -> str:
    """Means of all directions on an H100, and the cases that are behind cuDNN there."""
    lines = [
        [f"{direction}, {MODES[mode]}, {layout}", *mean_columns(mode, rows), behind(rows)]
        for direction, mode, layout, rows in settings(("forward", *GRADIENTS), "h100")
    ]
    return table(["H100", *MEAN_HEAD, f"below {times(WORST)}"], lines)


def autotuned() -> str:
    """What choosing plans by time brings on an H100: means beside those of plans by arithmetic, of the same version."""
    lines = []
    for direction, mode, layout, rows in settings(("forward", *GRADIENTS), "autotuned_h100"):
        by_arithmetic = direction_rows(direction, mode, "arithmetic_h100", layout=layout)
        by_arithmetic = by_arithmetic or direction_rows(direction, mode, "h100", layout=layout)
        ours = {row["case"]: row["ours_ms"] for row in by_arithmetic}
        faster = {row["case"]: ours[row["case"]] / row["ours_ms"] for row in rows}
        most = max(faster, key=lambda case: faster[case])
        lines.append([
            f"{direction}, {MODES[mode]}, {layout}",
            *(column for both in zip(mean_columns(mode, by_arithmetic)[:2], mean_columns(mode, rows)[:2], strict=True)
              for column in both),
            times(mean(faster.values())), f"{times(faster[most])} ({most})", behind(rows),
        ])  # fmt: skip
    head = ["autotuned, H100", "KernelBench before", "after", "zoo, dense before", "after", "time, all cases", "most"]
    return table([*head, f"below {times(WORST)}"], lines)


def families(directions: Iterable[str]) -> str:
    """Who served: how many cases, the mean of their speedups, and which of them are behind cuDNN."""
    lines = []
    for direction, mode, layout, rows in settings(directions):
        for family in FAMILIES:
            served = [row for row in rows if row["plan"].startswith(family)]
            if served:
                which = f"{direction}, {MODES[mode]}, {layout}"
                lines.append([which, family, str(len(served)), speedup(served), behind(served)])
    return table(["", "family", "cases", "mean", f"below {times(WORST)}"], lines)


def cases(direction: str, modes: Iterable[str]) -> str:
    """A line a case: ours, cuDNN's and the speedup, in both layouts."""
    found = {
        (row["case"], row["mode"], row["layout"]): row for mode in modes for row in direction_rows(direction, mode)
    }
    columns = [(mode, layout) for mode in modes for layout in LAYOUTS]
    head = ["case"]
    for mode, layout in columns:
        head += [f"{MODES[mode]} {layout} ms", "cuDNN", "speedup"]
    lines = []
    for name in dict.fromkeys(case for case, _, _ in found):
        line = [name]
        for mode, layout in columns:
            row = found.get((name, mode, layout))
            line += [number(row["ours_ms"]), number(row["cudnn_ms"]), times(row["speedup"])] if row else ["–"] * 3
        lines.append(line)
    return table(head, lines)


def strict_gradients() -> str:
    """A line a case: strict float32, both gradients in both layouts, ms and speedup."""
    found = {
        (row["case"], direction, row["layout"]): row
        for direction in GRADIENTS
        for row in direction_rows(direction, "fp32")
    }
    columns = [(direction, layout) for direction in GRADIENTS for layout in LAYOUTS]
    lines = []
    for name in dict.fromkeys(case for case, _, _ in found):
        line = [name]
        for key in columns:
            row = found.get((name, *key))
            line += [number(row["ours_ms"]), times(row["speedup"])] if row else ["–"] * 2
        lines.append(line)
    head = [text for direction, layout in columns for text in (f"{direction} {layout} ms", "speedup")]
    return table(["case", *head], lines)


def training(pattern: str) -> str:
    """A line a training step, eager and compiled: ours, torch's, and the share that is transposed convolution."""
    rows = [row for path in sorted(HERE.glob(pattern)) for row in json.loads(path.read_text())["rows"]]
    lines = [
        [
            f"{row['case']}, {MODES[row['mode']]}, {row['layout']}, {row['execution']}",
            *(number(row[f"{side}_ms"]) for side in ("ours", "torch")),
            times(row["speedup"]),
            f"{row['spread']:.0%}",
            *(f"{row[f'{side}_share']:.0%}" for side in ("ours", "torch")),
        ]
        for row in rows
        if "speedup" in row
    ]
    return table(["step", "ours ms", "torch ms", "speedup", "spread", "share, ours", "share, torch"], lines)


def first_gradients() -> str:
    """A line a case: the first version's gradients, float32, strict, NCHW."""
    found = {(row["case"], row["direction"]): row for row in rows_of("h200_first_fp32_nchw")}
    head = ["case"] + [f"{d} ms" if k == 0 else k for d in GRADIENTS for k in (0, "cuDNN", "speedup")]
    lines = []
    for name in dict.fromkeys(case for case, _ in found):
        line = [name]
        for direction in GRADIENTS:
            row = found[name, direction]
            line += [number(row["ours_ms"]), number(row["cudnn_ms"]), times(row["speedup"])]
        lines.append(line)
    return table(head, lines)


def forward_rows(modes: Iterable[str]) -> dict[tuple[str, str, str], Row]:
    """Of forward, by mode, case and layout."""
    return {(mode, row["case"], row["layout"]): row for mode in modes for row in direction_rows("forward", mode)}


def memory_bound() -> str:
    """The cases of forward that memory bounds, beside what they must reach."""
    modes = ("tf32", "bf16")
    found = forward_rows(modes)
    head = ["case"]
    for mode in modes:
        head += [f"{MODES[mode]} aim ms", *(f"{layout}: ms, speedup" for layout in LAYOUTS)]
    lines = []
    for case, aims in MEMORY_BOUND_AIMS.items():
        line = [case]
        for mode, aim in zip(modes, aims, strict=True):
            line.append(number(aim))
            for layout in LAYOUTS:
                row = found[mode, case, layout]
                line.append(f"{number(row['ours_ms'])}, {times(row['speedup'])}")
        lines.append(line)
    return table(head, lines)


def over_floor() -> str:
    """Of these cases the times over the floor, where one is above 1.5."""
    modes = ("tf32", "bf16")
    found = forward_rows(modes)
    head = ["over floor", *(f"{MODES[mode]} {layout}" for mode in modes for layout in LAYOUTS)]
    lines = []
    for case in MEMORY_BOUND_AIMS:
        rows = [found[mode, case, layout] for mode in modes for layout in LAYOUTS]
        ratios = [row["ours_ms"] / row["floor_ms"] for row in rows]
        if max(ratios) > 1.5:
            lines.append([case, *map(times, ratios)])
    return table(head, lines)


def forced_mma() -> str:
    """Forward of the dense cases by the mma family, against the Hopper family's time and against cuDNN."""
    lines = []
    for mode in ("bf16", "tf32"):
        for layout in LAYOUTS:
            hopper = {row["case"]: row["ours_ms"] for row in direction_rows("forward", mode, layout=layout)}
            rows = [
                row
                for row in rows_of(f"h200_mma_{mode}", layout=layout)
                if row["case"] not in MEMORY_BOUND and row["plan"].startswith("mma")
            ]
            ratios = sorted((row["ours_ms"] / hopper[row["case"]], row["case"]) for row in rows)
            least, most = (f"{times(ratio)} ({case})" for ratio, case in (ratios[0], ratios[-1]))
            over = times(mean(ratio for ratio, _ in ratios))
            lines.append([f"{MODES[mode]}, {layout}", str(len(rows)), over, least, most, speedup(rows)])
    return table(["forced mma", "cases", "over Hopper's time", "least", "most", "speedup over cuDNN"], lines)


def errors() -> str:
    """Largest relative error against float64 over the suites, ours and cuDNN's."""
    lines = []
    for direction, mode, layout, rows in settings(("forward", *GRADIENTS)):
        largest = [max(row[key] for row in rows) for key in ("error", "cudnn_error")]
        lines.append([f"{direction}, {MODES[mode]}, {layout}", *(f"{value:.1e}" for value in largest)])
    return table(["", "deconv_ext", "cuDNN"], lines)


def overhead() -> str:
    measured = json.loads((HERE / "eager_overhead_h200.json").read_text())["us"]
    lines = [
        [mode, f"{row['torch']:.1f}", f"{row['deconv_ext']:.1f}", times(row["deconv_ext"] / row["torch"])]
        for mode, row in measured.items()
    ]
    return table(["eager call, 1x1 tensor", "torch µs", "deconv_ext µs", "ratio"], lines)


def chosen_over_quickest(title: str, lines: Iterable[str], groups: Iterable[str], entries: Iterable[Entry]) -> str:
    """Means over settings of the time of the plan that is chosen, over that of the quickest timed, before and after."""
    groups = list(groups)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for line, group, before, after, quickest in entries:
        if before[1] is not None and after[1] is not None:
            found.setdefault((line, group), []).append((before[1] / quickest[0][1], after[1] / quickest[0][1]))

    def cell(line: str, group: str) -> str:
        return " to ".join(f"{mean(ratios):.2f}" for ratios in zip(*found[line, group], strict=True))

    kept = [line for line in lines if (line, groups[0]) in found]
    return table([title, *groups], [[line, *(cell(line, group) for group in groups)] for line in kept])


def planner() -> str:
    """What the planner chooses on an H100, in either layout."""
    rows = json.loads((HERE / "h100_hopper_tiles.json").read_text())["rows"]
    groups = {"suites": "suites", "sweep": "sweep", "random": "at random"}
    return chosen_over_quickest(
        "chosen over quickest, before to after",
        (f"{way}, {MODES[mode]}, {layout}" for way, mode, layout in product(PLANNED, MODES, LAYOUTS)),
        groups.values(),
        (
            (f"{way}, {MODES[mode]}, {layout}", groups.get(case.split("_")[0], "suites"), before, after, quickest)
            for case, mode, layout, way, before, after, quickest, _ in rows
        ),
    )


def contiguous_planner() -> str:
    """The same of contiguous tensors, on two GPUs."""
    rows = json.loads((HERE / "hopper_contiguous_plans.json").read_text())["rows"]

    def group_of(case: str) -> str:
        return "the same, of other sizes" if case.endswith("_s") else "sweep" if case.startswith("sweep_") else "suites"

    return chosen_over_quickest(
        "chosen over quickest, NCHW, before to after",
        (f"{way}, {MODES[m]}, {gpu}" for way, m, gpu in product(PLANNED, MODES, ("H100", "H200"))),
        ("suites", "the same, of other sizes", "sweep"),
        (
            (f"{way}, {MODES[mode]}, {gpu}", group_of(case), before, after, quickest)
            for gpu, case, mode, way, before, after, quickest, _ in rows
        ),
    )


def copies() -> str:
    """What results by tensor copies bring in channels_last: the Hopper family's times before over those after."""
    lines = []
    for direction, mode in product(("forward", "grad_input"), ("tf32", "bf16", "fp16")):
        before = {row["case"]: row for row in rows_of(f"h200_{mode}_{direction}_fitted", layout="channels_last")}
        after = rows_of(f"h200_{mode}_{direction}_copied", layout="channels_last")
        rows = [row for row in after if "hopper" in row["plan"]]
        faster = sorted((before[row["case"]]["ours_ms"] / row["ours_ms"], row["case"]) for row in rows)
        cudnn = mean(before[row["case"]]["cudnn_ms"] / row["cudnn_ms"] for row in rows)
        least, most = (f"{times(ratio)} ({case})" for ratio, case in (faster[0], faster[-1]))
        copied = sum("results copied" in row["plan"] for row in rows)
        flat = sum("flat lines" in row["plan"] for row in rows)
        which = f"{direction}, {MODES[mode]}"
        over = times(mean(ratio for ratio, _ in faster))
        lines.append([which, str(len(rows)), str(copied), str(flat), over, least, most, times(cudnn)])
    head = ["channels_last, before over after", "layers", "copied", "flat", "mean", "least", "most", "cuDNN's own"]
    return table(head, lines)


TABLES: dict[str, Callable[[], str]] = {
    "reports": lambda: reports("h200_*.json"),
    "h100 reports": lambda: reports("*h100_*_[fg]*.json"),
    "h100 means": h100_means,
    "autotuned": autotuned,
    "training h100": lambda: training("training_h100*.json"),
    "means": forward_means,
    "gradient means": gradient_means,
    "forward families": lambda: families(["forward"]),
    "gradient families": lambda: families(GRADIENTS),
    "tensor": lambda: cases("forward", ["tf32", "bf16"]),
    "strict": lambda: cases("forward", ["fp32"]),
    "strict gradients": strict_gradients,
    "training": lambda: training("training_h200*.json"),
    "grad_input": lambda: cases("grad_input", ["tf32", "bf16"]),
    "grad_weight": lambda: cases("grad_weight", ["tf32", "bf16"]),
    "memory bound": memory_bound,
    "over floor": over_floor,
    "forced mma": forced_mma,
    "errors": errors,
    "overhead": overhead,
    "planner": planner,
    "contiguous planner": contiguous_planner,
    "copies": copies,
    "first gradients": first_gradients,
}


def main() -> None:
    texts = {page: page.read_text() for page in PAGES}
    for name, make in TABLES.items():
        content = make() or "No report is committed yet."
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        count = 0
        for page in PAGES:
            texts[page], found = marked.subn(
                lambda match, content=content: f"{match[1]}{content}\n{match[2]}", texts[page]
            )
            count += found
        if count != 1:
            raise SystemExit(f"the pages must have the marker {name!r} once, but have it {count} times")
    for page, text in texts.items():
        page.write_text(text)


if __name__ == "__main__":
    main()

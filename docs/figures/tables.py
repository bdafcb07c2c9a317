"""Writes the tables of docs/performance.md, between their markers, from the JSON files beside this script.

python docs/figures/tables.py
"""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "performance.md"
GRADIENTS = ("grad_input", "grad_weight")
LAYOUTS = ("nchw", "channels_last")
MODES = {"tf32": "TF32", "bf16": "bfloat16", "fp32": "float32, strict"}
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

# What the narrow cases must reach, ms (float32, 16 bits), in both layouts.
NARROW_AIMS = {
    "kb1_75": (0.35, 0.20), "kb1_81": (0.30, 0.17), "resnext_g32": (0.12, 0.07), "fsrcnn_last": (0.40, 0.25),
    "pix2pix_last": (0.07, 0.05), "dcgan5_rgb": (0.025, 0.018), "fcn32s": (0.10, 0.08), "sam_up2": (0.15, 0.09),
    "dcgan1": (0.018, 0.015), "b1_latency": (0.010, 0.009),
}  # fmt: skip

Row = dict[str, Any]


def rows_of(name: str, **wanted: str) -> list[Row]:
    rows = json.loads((HERE / f"{name}.json").read_text())["rows"]
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def forward_rows(mode: str, **wanted: str) -> list[Row]:
    """The report of forward, with the narrow cases from their own, later one."""
    later = {(row["case"], row["layout"]): row for row in rows_of(f"h200_narrow_{mode}")} if mode != "fp32" else {}
    return [later.get((row["case"], row["layout"]), row) for row in rows_of(f"h200_forward_{mode}", **wanted)]


def number(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = list(head)
    every = [head, ["---"] + ["---:"] * (len(head) - 1), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in every)


def means() -> str:
    """Forward: geometric means of the speedup, the slowest dense case, the time over the floor."""
    lines = []
    for mode, label in MODES.items():
        for layout in LAYOUTS:
            rows = forward_rows(mode, layout=layout)
            dense = [row for row in rows if row["case"] not in MEMORY_BOUND]
            zoo = [row["speedup"] for row in dense if not row["case"].startswith("kb")]
            first = rows_of(FIRST[mode, layout], layout=layout, direction="forward") if (mode, layout) in FIRST else []
            slowest = min(dense, key=lambda row: row["speedup"])
            lines.append([
                f"{label}, {layout}",
                f"{mean(row['speedup'] for row in rows if row['case'].startswith('kb')):.2f}×",
                f"{mean(zoo):.2f}×",
                f"{slowest['speedup']:.2f}× ({slowest['case']})",
                f"{mean(row['speedup'] for row in rows):.2f}×",
                f"{mean(row['speedup'] for row in first):.2f}×" if first else "–",
                f"{mean(row['ours_ms'] / row['floor_ms'] for row in dense):.2f}×" if mode != "fp32" else "–",
            ])  # fmt: skip
    head = [
        "forward",
        "KernelBench",
        "zoo, dense",
        "slowest dense case",
        "all cases",
        "first version, all",
        "over floor",
    ]
    return table(head, lines)


def forward(modes: Iterable[str]) -> str:
    """A line a case: ours, cuDNN's and the speedup, in both layouts."""
    modes = list(modes)
    found = {(row["case"], mode, row["layout"]): row for mode in modes for row in forward_rows(mode)}
    head = ["case"]
    for mode in modes:
        for layout in LAYOUTS:
            head += [f"{MODES[mode]} {layout} ms", "cuDNN", "speedup"]
    lines = []
    for name in dict.fromkeys(case for case, _, _ in found):
        line = [name]
        for mode in modes:
            for layout in LAYOUTS:
                row = found.get((name, mode, layout))
                line += (
                    [number(row["ours_ms"]), number(row["cudnn_ms"]), f"{row['speedup']:.2f}×"] if row else ["–"] * 3
                )
        lines.append(line)
    return table(head, lines)


def gradients() -> str:
    """A line a case: the first version's gradients, float32, strict, NCHW."""
    found = {(row["case"], row["direction"]): row for row in rows_of("h200_first_fp32_nchw")}
    head = ["case"] + [f"{d} ms" if k == 0 else k for d in GRADIENTS for k in (0, "cuDNN", "speedup")]
    lines = []
    for name in dict.fromkeys(case for case, _ in found):
        line = [name]
        for direction in GRADIENTS:
            row = found[name, direction]
            line += [number(row["ours_ms"]), number(row["cudnn_ms"]), f"{row['speedup']:.2f}×"]
        lines.append(line)
    return table(head, lines)


def narrow() -> str:
    """The narrow cases before and after the narrow family, beside what they must reach."""
    head = ["case"]
    for mode in ("tf32", "bf16"):
        head += [f"{MODES[mode]} aim ms", *(f"{layout}: before, now, speedup" for layout in LAYOUTS)]
    found = {
        (name, mode, row["case"], row["layout"]): row
        for name in ("forward", "narrow")
        for mode in ("tf32", "bf16")
        for row in rows_of(f"h200_{name}_{mode}")
    }
    lines = []
    for case, aims in NARROW_AIMS.items():
        line = [case]
        for mode, aim in zip(("tf32", "bf16"), aims, strict=True):
            line.append(number(aim))
            for layout in LAYOUTS:
                before, now = found["forward", mode, case, layout], found["narrow", mode, case, layout]
                line.append(f"{number(before['ours_ms'])}, {number(now['ours_ms'])}, {now['speedup']:.2f}×")
        lines.append(line)
    return table(head, lines)


def weight() -> str:
    """grad_weight on tensor cores: a line a case."""
    found = {(row["case"], row["mode"], row["layout"]): row for row in rows_of("h200_grad_weight")}
    head = ["case"]
    for mode in ("tf32", "bf16"):
        for layout in LAYOUTS:
            head += [f"{MODES[mode]} {layout} ms", "cuDNN, earlier", "ratio"]
    lines = []
    for name in dict.fromkeys(case for case, _, _ in found):
        line = [name]
        for mode in ("tf32", "bf16"):
            for layout in LAYOUTS:
                row = found[name, mode, layout]
                line += [number(row["ours_ms"]), number(row["cudnn_ms"]), f"{row['speedup']:.2f}×"]
        lines.append(line)
    return table(head, lines)


def weight_means() -> str:
    lines = []
    for mode in ("tf32", "bf16"):
        for layout in LAYOUTS:
            rows = rows_of("h200_grad_weight", mode=mode, layout=layout)
            dense = [row for row in rows if row["case"] not in MEMORY_BOUND]
            kernelbench = [row["speedup"] for row in dense if row["case"].startswith("kb")]
            zoo = [row["speedup"] for row in dense if not row["case"].startswith("kb")]
            slowest = min(dense, key=lambda row: row["speedup"])
            lines.append([
                f"{MODES[mode]}, {layout}",
                f"{mean(kernelbench):.2f}×",
                f"{mean(zoo):.2f}×",
                f"{slowest['speedup']:.2f}× ({slowest['case']})",
                f"{mean(row['ours_ms'] / row['floor_ms'] for row in dense):.2f}×",
            ])  # fmt: skip
    return table(["grad_weight", "KernelBench, dense", "zoo, dense", "slowest dense case", "over floor"], lines)


def errors() -> str:
    """Largest relative error against float64 over the suites, ours and cuDNN's."""
    lines = []
    for mode, label in MODES.items():
        for layout in LAYOUTS:
            rows = forward_rows(mode, layout=layout)
            largest = [max(row[key] for row in rows) for key in ("error", "cudnn_error")]
            lines.append([f"{label}, {layout}", *(f"{value:.1e}" for value in largest)])
    return table(["forward", "deconv_ext", "cuDNN"], lines)


def overhead() -> str:
    measured = json.loads((HERE / "eager_overhead_h200.json").read_text())["us"]
    lines = [
        [mode, f"{row['torch']:.1f}", f"{row['deconv_ext']:.1f}", f"{row['deconv_ext'] / row['torch']:.2f}×"]
        for mode, row in measured.items()
    ]
    return table(["eager call, 1x1 tensor", "torch µs", "deconv_ext µs", "ratio"], lines)


def main() -> None:
    tables = {
        "means": means(),
        "tensor": forward(["tf32", "bf16"]),
        "strict": forward(["fp32"]),
        "errors": errors(),
        "gradients": gradients(),
        "narrow": narrow(),
        "weight": weight(),
        "weight means": weight_means(),
        "overhead": overhead(),
    }
    text = PAGE.read_text()
    for name, content in tables.items():
        marked = re.compile(rf"(<!-- {name} -->\n)(?:\|[^\n]*\n)*(<!-- end -->)")
        text, count = marked.subn(lambda match, content=content: match[1] + content + "\n" + match[2], text)
        if count != 1:
            raise SystemExit(f"{PAGE.name} must have the marker {name!r} once, but has it {count} times")
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

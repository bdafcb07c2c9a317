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
DIRECTIONS = ("forward", "grad_input", "grad_weight")
SEVEN = ("kb1_57", "kb1_65", "kb1_69", "kb1_71", "kb1_75", "kb1_78", "kb1_81")

Row = dict[str, Any]


def rows_of(name: str, **wanted: str) -> list[Row]:
    rows = json.loads((HERE / f"{name}.json").read_text())["rows"]
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def number(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = list(head)
    every = [head, ["---"] + ["---:"] * (len(head) - 1), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in every)


def by_direction(cases: Iterable[str] | None) -> str:
    """A line a case: ours, cuDNN's and the speedup in each direction, float32, strict, NCHW."""
    found = {(row["case"], row["direction"]): row for row in rows_of("h200_fp32_strict_nchw")}
    names = cases or dict.fromkeys(case for case, _ in found)
    head = ["case"] + [f"{d} ms" if k == 0 else k for d in DIRECTIONS for k in (0, "cuDNN", "speedup")]
    lines = []
    for name in names:
        line = [name]
        for direction in DIRECTIONS:
            row = found[name, direction]
            line += [number(row["ours_ms"]), number(row["cudnn_ms"]), f"{row['speedup']:.2f}×"]
        lines.append(line)
    return table(head, lines)


def errors() -> str:
    """Largest relative error against float64 over the suites, ours and cuDNN's."""
    lines = []
    for direction in DIRECTIONS:
        rows = rows_of("h200_fp32_strict_nchw", direction=direction)
        largest = [max(row[key] for row in rows) for key in ("error", "cudnn_error")]
        lines.append([direction, *(f"{value:.1e}" for value in largest)])
    return table(["float32, strict", "deconv_ext", "cuDNN"], lines)


def means() -> str:
    """Geometric means of the speedup over both suites."""
    lines = []
    for name, layout in (
        ("h200_fp32_strict_nchw", "nchw"),
        ("h200_fp32_strict_channels_last", "channels_last"),
        ("h200_bf16", "nchw"),
        ("h200_bf16", "channels_last"),
    ):
        for direction in DIRECTIONS:
            rows = rows_of(name, layout=layout, direction=direction)
            if rows:
                speedups = [row["speedup"] for row in rows]
                mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
                ahead = sum(speedup >= 1 for speedup in speedups)
                mode = "float32, strict" if "fp32" in name else "bfloat16"
                lines.append([f"{mode}, {layout}, {direction}", f"{mean:.2f}×", f"{ahead} of {len(rows)}"])
    return table(["mode", "geometric mean", "cases no slower than cuDNN"], lines)


def overhead() -> str:
    measured = json.loads((HERE / "eager_overhead_h200.json").read_text())["us"]
    lines = [
        [mode, f"{row['torch']:.1f}", f"{row['deconv_ext']:.1f}", f"{row['deconv_ext'] / row['torch']:.2f}×"]
        for mode, row in measured.items()
    ]
    return table(["eager call, 1x1 tensor", "torch µs", "deconv_ext µs", "ratio"], lines)


def main() -> None:
    tables = {
        "seven": by_direction(SEVEN),
        "all": by_direction(None),
        "errors": errors(),
        "means": means(),
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

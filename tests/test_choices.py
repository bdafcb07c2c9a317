"""The planner's choices against timings of an H100 and an H200 in tests/data: the plan taken is near the quickest.

A change of an estimate fails here if it takes slower plans, or plans that nobody timed: time those
(tools/time_plans.py) and add them.

tests/data/GPU_NAME.json has ``layers`` beside those of the suites, ``words``, ``plans`` (each a list of words) and
``rows``: [layer, mode, layout, direction, [plan, ms, plan, ms, ...]].
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from deconv_ext.workloads import KERNELBENCH, SWEEP, ZOO, Case

core = pytest.importorskip("_host_core", reason="the host core is not built: cmake -S . -B build/host_core")
from planning import FAMILIES, problem_of, words_of  # noqa: E402

DATA = Path(__file__).parent / "data"
PEAK_BANDWIDTH = {"h100": 3.35e12, "h200": 4.92e12}  # of memory, bytes/s


class Row(NamedTuple):
    """One setting, and the ms of its plans as explain names them."""

    layer: Case
    mode: str
    layout: str
    direction: str
    known: dict[str, float]

    def chosen(self, families: str = "", gpu: str = "") -> str:
        """The plan that the planner takes; by default for the host core's own device, an H200."""
        mode = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tf32"}.get(self.mode, "float32")
        problem = problem_of(self.layer, self.direction, mode, "contiguous" if self.layout == "nchw" else self.layout)
        device = core.Device()
        if gpu:
            device.partial_run_bytes = core.partial_run_bytes(PEAK_BANDWIDTH[gpu])
        return words_of(core.make_plan(problem, device, families), mode)


def _rows(name: str) -> list[Row]:
    data = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    layers = {one["name"]: one for one in (*KERNELBENCH, *ZOO, *SWEEP, *data["layers"])}
    plans = [", ".join(data["words"][word] for word in plan) for plan in data["plans"]]
    return [
        Row(layers[layer], *setting, dict(zip((plans[i] for i in known[::2]), known[1::2], strict=True)))
        for layer, *setting, known in data["rows"]
    ]


def _geomean(ratios: list[float]) -> float:
    return float(np.exp(np.log(ratios).mean()))


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_merged_groups(layout: str) -> None:
    """Random grouped layers, each with two plans."""
    rows = [row for row in _rows("h200_merged") if row.layout == layout]
    assert len(rows) > 20
    chosen = [(row.known.get(row.chosen()), row.known) for row in rows]
    ratios = [ms / min(known.values()) for ms, known in chosen if ms is not None]
    assert len(ratios) > 0.9 * len(rows)
    assert _geomean(ratios) < 1.03


def test_strict_float32() -> None:
    rows = _rows("h100_float32")
    assert len(rows) > 500
    ratios: dict[str, list[float]] = {"nchw": [], "channels_last": []}
    for row in rows:
        ms = row.known.get(row.chosen(gpu="h100"))
        if ms is not None:
            ratios[row.layout].append(ms / min(row.known.values()))
    assert sum(map(len, ratios.values())) > 0.95 * len(rows)
    assert 1 < _geomean(ratios["nchw"]) < 1.05
    assert 1 < _geomean(ratios["channels_last"]) < 1.035


@pytest.mark.parametrize("gpu", list(PEAK_BANDWIDTH))
def test_contiguous(gpu: str) -> None:
    """bfloat16 and TF32 in NCHW. The 1-tap kernel and two others are newer than these timings."""
    rows, newer = _rows(f"{gpu}_contiguous"), 0
    ratios: dict[str, list[float]] = {"bf16": [], "tf32": []}
    for row in rows:
        chosen = row.chosen(gpu=gpu)
        newer += "planes as they lie" in chosen or "all phases in" in chosen or "by tensor copies" in chosen
        if chosen in row.known:
            ratios[row.mode].append(row.known[chosen] / min(row.known.values()))
    assert sum(map(len, ratios.values())) + newer > 0.94 * len(rows)
    assert all(1 < _geomean(of_mode) < 1.05 for of_mode in ratios.values())


@pytest.mark.parametrize(
    ("name", "most", "known_part"),
    [
        ("h200_planes", 1.05, 0.95),
        ("h200_strided", 1.06, 0.95),
        ("h200_classes", 1.05, 0.95),
        ("h200_folded", 1.03, 0.95),
        ("h200_pictures", 1.08, 0.94),
        ("h100_pictures", 1.12, 0.95),  # col2im's times scatter on that H100
    ],
)
def test_planes_and_pictures(name: str, most: float, known_part: float) -> None:
    """Layers of one kernel each. Kernels that are newer than a file's timings may be taken instead."""
    rows, newer = _rows(name), 0
    ratios = []
    for row in rows:
        chosen = row.chosen()
        newer += name == "h200_planes" and " classes" in chosen
        newer += name != "h200_folded" and "products folded" in chosen
        if name == "h200_pictures":
            is_newer = "of lines" in chosen or ", results copied" in chosen
            chosen = chosen.removesuffix(", results copied")
            newer += is_newer and chosen not in row.known
        if chosen in row.known:
            ratios.append(row.known[chosen] / min(row.known.values()))
    assert len(ratios) + newer > known_part * len(rows)
    assert 1 < _geomean(ratios) < most


def test_copied_results() -> None:
    """bfloat16 and TF32 in channels_last, without the sub_pixel family, which is newer in part."""
    rows, newer = _rows("h200_copied"), 0
    families = ",".join(family for family in FAMILIES if family != "sub_pixel")
    ratios: dict[str, list[float]] = {"bf16": [], "tf32": []}
    for row in rows:
        chosen = row.chosen(families)
        newer += "all phases in" in chosen or "by tensor copies" in chosen
        if chosen in row.known:
            ratios[row.mode].append(row.known[chosen] / min(row.known.values()))
    assert sum(map(len, ratios.values())) + newer > 0.94 * len(rows)
    assert 1 < _geomean(ratios["bf16"]) < 1.05
    assert 1 < _geomean(ratios["tf32"]) < 1.045


def test_narrow_family() -> None:
    """Its tiles, forward; nearer than on average for kb1_75 and kb1_81, which it serves."""
    losses: dict[tuple[str, str, str], float] = {}
    for row in (*_rows("h100_few_channels"), *_rows("h100_narrow")):
        ms = row.known.get(row.chosen("small_channel"))
        if ms is not None:
            losses[row.layer["name"], row.mode, row.layout] = ms / min(row.known.values())
    assert len(losses) > 80
    assert 1 < _geomean([*losses.values()]) < 1.07
    assert losses["kb1_75", "bf16", "nchw"] < 1.02
    assert losses["kb1_75", "tf32", "nchw"] < 1.11
    assert max(losses["kb1_81", mode, "nchw"] for mode in ("bf16", "tf32")) < 1.02

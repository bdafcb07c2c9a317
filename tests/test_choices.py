"""The planner's estimates against timings of an H100 and an H200 in tests/data: of the plans that were timed, the one
with the least estimate is near the quickest.

Plans that nobody timed are not judged: time those that a change of an estimate takes (tools/time_plans.py) and add
them.

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

    def loss(self, families: str = "", gpu: str = "") -> float | None:
        """The time of the timed plan that the planner likes best, over the least; none if it lists none of them.

        By default for the host core's own device, an H200.
        """
        mode = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tf32"}.get(self.mode, "float32")
        problem = problem_of(self.layer, self.direction, mode, "contiguous" if self.layout == "nchw" else self.layout)
        device = core.Device()
        if gpu:
            device.partial_run_bytes = core.partial_run_bytes(PEAK_BANDWIDTH[gpu])
        estimates: dict[str, float] = {}
        for plan in core.candidates(problem, device, families):
            name = words_of(plan, mode)
            if name in self.known:
                estimates[name] = min(plan.estimate_ms, estimates.get(name, plan.estimate_ms))
        if not estimates:
            return None
        return self.known[min(estimates, key=estimates.__getitem__)] / min(self.known[name] for name in estimates)


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


def _loss(rows: list[Row], families: str = "", gpu: str = "") -> float:
    """The mean loss of rows nearly all of which have a timed plan."""
    losses = [loss for row in rows if (loss := row.loss(families, gpu)) is not None]
    assert len(losses) > 0.95 * len(rows)
    return _geomean(losses)


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_merged_groups(layout: str) -> None:
    """Random grouped layers, each with two plans."""
    rows = [row for row in _rows("h200_merged") if row.layout == layout]
    assert len(rows) > 20
    assert _loss(rows) < 1.03


@pytest.mark.parametrize(("layout", "most"), [("nchw", 1.05), ("channels_last", 1.035)])
def test_strict_float32(layout: str, most: float) -> None:
    rows = [row for row in _rows("h100_float32") if row.layout == layout]
    assert len(rows) > 250
    assert 1 < _loss(rows, gpu="h100") < most


@pytest.mark.parametrize("mode", ["bf16", "tf32"])
@pytest.mark.parametrize("gpu", list(PEAK_BANDWIDTH))
def test_contiguous(gpu: str, mode: str) -> None:
    assert 1 < _loss([row for row in _rows(f"{gpu}_contiguous") if row.mode == mode], gpu=gpu) < 1.05


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("h200_planes", 1.05),
        ("h200_strided", 1.06),
        ("h200_classes", 1.05),
        ("h200_folded", 1.03),
        ("h200_pictures", 1.08),
        ("h100_pictures", 1.12),  # col2im's times scatter on that H100
    ],
)
def test_planes_and_pictures(name: str, most: float) -> None:
    """Layers of one kernel each."""
    assert 1 < _loss(_rows(name)) < most


@pytest.mark.parametrize(("mode", "most"), [("bf16", 1.05), ("tf32", 1.06)])
def test_copied_results(mode: str, most: float) -> None:
    """channels_last, without the sub_pixel family, which is newer in part."""
    families = ",".join(family for family in FAMILIES if family != "sub_pixel")
    assert 1 < _loss([row for row in _rows("h200_copied") if row.mode == mode], families) < most


def test_narrow_family() -> None:
    """Its tiles, forward; nearer than on average for kb1_75 and kb1_81, which it serves."""
    losses: dict[tuple[str, str, str], float] = {}
    for row in (*_rows("h100_few_channels"), *_rows("h100_narrow")):
        loss = row.loss("small_channel")
        if loss is not None:
            losses[row.layer["name"], row.mode, row.layout] = loss
    assert len(losses) > 80
    assert 1 < _geomean([*losses.values()]) < 1.07
    assert losses["kb1_75", "bf16", "nchw"] < 1.02
    assert losses["kb1_75", "tf32", "nchw"] < 1.11
    assert max(losses["kb1_81", mode, "nchw"] for mode in ("bf16", "tf32")) < 1.02

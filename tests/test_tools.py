"""The programs of tools/ that measure: ablate.py, compare.py, time_plans.py."""

import csv
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import load_script

import deconv_ext
from deconv_ext import _ops
from deconv_ext.workloads import case

TOOLS = Path(__file__).resolve().parent.parent / "tools"
LIBRARY = str(_ops._LIBRARY)
pytestmark = pytest.mark.skipif(not TOOLS.exists(), reason="no sources beside these tests")


def _run(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = str(Path(deconv_ext.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": path, "DECONV_FAMILY": "gather"}  # which ablate.py sets aside
    command = [sys.executable, str(TOOLS / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("ablate --kernels hopper --plans-only", "unknown: hopper; DECONV_KERNELS takes depthwise, "),
        ("ablate --without igemm_sm90.x --plans-only", "unknown: igemm_sm90.x; "),
        (f"compare {TOOLS}", f"LIBRARY is {TOOLS}; there is no such file"),
        (f"compare {LIBRARY} --rounds 0", "--rounds is 0; it must be at least 1"),
        (f"compare {LIBRARY} --scale 0", "--scale is 0; it must be at least 1"),
        (f"compare {LIBRARY} --case nothing", "nothing"),
        pytest.param(
            "time_plans --case kb1_57", "there is no CUDA device to time plans on",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)  # fmt: skip
def test_unusable_arguments_are_named(command: str, message: str) -> None:
    result = _run(*command.split())
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]


def test_ablate_plans_only(tmp_path: Path) -> None:
    """A part is in the table of its directions; the CSV has both plans of each changed setting."""
    path = tmp_path / "plans.csv"
    parts = ["--kernels", "igemm_sm90.ping_pong,wgrad_sm90+igemm_sm80"]
    cases = ["--case", "kb1_78", "--case", "dcgan2", "--dtype", "bf16"]
    result = _run("ablate", "--plans-only", *cases, *parts, "--csv", str(path))
    assert result.returncode == 0, result.stderr
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    turns, weights = ([row for row in rows if row["part"].startswith(part)] for part in ("igemm", "wgrad"))
    assert turns
    for row in turns:
        assert row["direction"] != "grad_weight"
        assert "warpgroups in turns" in row["plan_with"]
        assert "warpgroups in turns" not in row["plan_without"]
    assert [row["direction"] for row in weights] == ["grad_weight"] * 4
    assert not any(row["plan_without"].startswith(("wgrad_sm90", "igemm_sm80")) for row in weights)
    assert result.stdout.count("ping_pong") == 1
    assert any("wgrad_sm90+igemm_sm80" in line and "(4)" in line for line in result.stdout.splitlines())


def test_ablate_times_what_changes_and_averages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Twice as slow in one of four settings: 2 ** (1 / 4). Settings whose plan stays are not timed."""
    program = load_script(TOOLS / "ablate.py")
    layouts, directions = ("nchw", "channels_last"), ("forward", "grad_weight")
    settings = [(name, "bf16", layout, way) for name in "ab" for layout in layouts for way in directions]
    timed: list[tuple[Any, ...]] = []

    def ask(off: tuple[str, ...], of: list[Any], is_timed: bool) -> list[Any]:
        changed = [off == ("base", "part") and setting == settings[0] for setting in of]
        if not is_timed:
            return ["other" if one else "same" for one in changed]
        timed.append((off, *of))
        return [2.0 if one else 1.0 for one in changed]

    monkeypatch.setattr(program, "ask", ask)
    rows = program.compare_plans(["part", "idle"], ("base",), settings)
    path = tmp_path / "worth.csv"
    program.time_plans(rows, ("base",), functools.partial(program._save, path, rows))
    assert timed == [(("base",), settings[0]), (("base", "part"), settings[0])]
    assert path.read_text(encoding="utf-8").splitlines()[1] == "part,a,bf16,nchw,forward,1.0,2.0,same,other"
    program.print_report(rows, ["part", "idle"], settings)
    text = capsys.readouterr().out
    assert "+18.9% (1)" in text
    assert "a bf16 nchw 2.00" in text
    assert "idle" not in text


def test_ablate_plans_and_times_a_setting() -> None:
    program = load_script(TOOLS / "ablate.py")
    plan = program.plan_of("grad_input", program._operands("kb2_02", "fp32", "channels_last", "grad_input", "meta"))
    assert "; launch: " in plan
    assert "; workspace: " in plan
    one = {**program.CASES["kb2_02"], "n": 1, "ci": 2, "co": 2}
    small = program.operands.make_operands(one, torch.float32, torch.device("cpu"))
    assert program.time_ms("grad_input", lambda: small) > 0


def test_compare_a_library_with_itself() -> None:
    layer = ["--case", "dcgan4", "--dtype", "fp32", "--scale", "16", "--rounds", "3"]
    result = _run("compare", LIBRARY, LIBRARY, *layer)
    assert result.returncode == 0, result.stderr
    names, row, mean = result.stdout.splitlines()
    assert names.split()[:4] == ["1:", "_C.abi3", "2:", "_C.abi3"]
    assert row.split()[:4] == ["dcgan4", "fp32", "nchw", "forward"]
    assert all(float(number) > 0 for number in row.split()[4:7])
    assert mean.split()[:2] == ["geometric", "mean"]
    assert float(mean.split()[2]) == float(row.split()[6])


def test_compare_names_a_library_that_does_not_load(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    result = _run("compare", LIBRARY, str(broken), "--case", "dcgan4", "--scale", "16")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == f"compare: {broken} failed to load"


def test_time_plans_reads_what_explain_writes() -> None:
    core = pytest.importorskip("_host_core", reason="the host core is not built: cmake -S . -B build/host_core")
    from planning import problem_of

    program = load_script(TOOLS / "time_plans.py")
    problem = problem_of(case("dense", 4, 64, 24, 20, 48, 4, s=2, p=1), "forward", "bfloat16")
    tuned = core.autotune(problem, 9, lambda plan: 1 / plan.estimate_ms)
    found = program.timed_plans(core.explain(problem, tuned=tuned))
    assert [plan[0] for plan in found] == [tile for tile, _, _ in tuned.timings]
    for plan, (_, estimate, ms) in zip(found, tuned.timings, strict=True):
        assert plan[1:] == pytest.approx([estimate, ms], rel=1e-3)
    assert program.timed_plans(core.explain(problem)) == []


def test_time_plans_averages_over_layers(tmp_path: Path) -> None:
    """Geometric means over the layers of a setting: 2 and 8 for the first by estimate, 1 and 2 for the first four."""
    near = [["b", 2.0, 1.0], ["a", 1.0, 2.0]]
    far = [["e", 5.0, 1.0], ["d", 4.0, 2.0], ["c", 3.0, 4.0], ["b", 2.0, 8.0], ["a", 1.0, 8.0]]
    setting = {"mode": "bf16", "layout": "nchw", "direction": "forward"}
    rows = [{"case": name, **setting, "plans": plans} for name, plans in (("near", near), ("far", far), ("none", []))]
    path = tmp_path / "plans.json"
    path.write_text(json.dumps({"device": "a GPU", "rows": rows}))
    result = _run("time_plans", "--from-json", str(path))
    assert result.returncode == 0, result.stderr
    (line,) = (line for line in result.stdout.splitlines() if "bf16" in line)
    assert line.replace("│", " ").split() == ["forward", "bf16", "nchw", "2", "4.000", "1.414", *["1.000"] * 4]

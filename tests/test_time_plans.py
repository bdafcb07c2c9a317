"""tools/time_plans.py, which times the planner's candidates: what it reads, and what it makes of that."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import deconv_ext
from deconv_ext.workloads import case

PROGRAM = Path(__file__).resolve().parent.parent / "tools" / "time_plans.py"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no sources beside these tests")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("time_plans", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(PROGRAM), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(deconv_ext.__file__).parent.parent)}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def test_it_reads_what_explain_writes(program: ModuleType) -> None:
    core = pytest.importorskip("_host_core", reason="the host core is not built: cmake -S . -B build/host_core")
    from planning import problem_of

    problem = problem_of(case("dense", 4, 64, 24, 20, 48, 4, s=2, p=1), "forward", "bfloat16")
    tuned = core.autotune(problem, 9, lambda plan: 1 / plan.estimate_ms)
    found = program.timed_plans(core.explain(problem, tuned=tuned))
    assert [plan[0] for plan in found] == [tile for tile, _, _ in tuned.timings]
    for plan, (_, estimate, ms) in zip(found, tuned.timings, strict=True):
        assert plan[1:] == pytest.approx([estimate, ms], rel=1e-3)
    assert program.timed_plans(core.explain(problem)) == []


def test_the_table(tmp_path: Path) -> None:
    """Geometric means over the layers of a setting: 2 and 8 for the first by estimate, 1 and 2 for the first four."""
    near = [["b", 2.0, 1.0], ["a", 1.0, 2.0]]
    far = [["e", 5.0, 1.0], ["d", 4.0, 2.0], ["c", 3.0, 4.0], ["b", 2.0, 8.0], ["a", 1.0, 8.0]]
    setting = {"mode": "bf16", "layout": "nchw", "direction": "forward"}
    rows = [{"case": name, **setting, "plans": plans} for name, plans in (("near", near), ("far", far), ("none", []))]
    path = tmp_path / "plans.json"
    path.write_text(json.dumps({"device": "a GPU", "rows": rows}))
    result = _run("--from-json", str(path))
    assert result.returncode == 0, result.stderr
    (line,) = (line for line in result.stdout.splitlines() if "bf16" in line)
    assert line.replace("│", " ").split() == ["forward", "bf16", "nchw", "2", "4.000", "1.414", *["1.000"] * 4]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu() -> None:
    result = _run("--case", "kb1_57")
    assert result.returncode == 2
    assert "there is no CUDA device to time plans on" in result.stderr

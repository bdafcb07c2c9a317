"""tools/ablate.py, which measures what each kernel and planner option is worth."""

import csv
import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import deconv_ext

PROGRAM = Path(__file__).resolve().parent.parent / "tools" / "ablate.py"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no sources beside these tests")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("ablate", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    path = str(Path(deconv_ext.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": path, "DECONV_FAMILY": "gather"}  # which it sets aside
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def test_plans_only(tmp_path: Path) -> None:
    """A part is in the table of its directions; the CSV has both plans of each changed setting."""
    path = tmp_path / "plans.csv"
    cases = ["--case", "kb1_78", "--case", "dcgan2", "--dtype", "bf16"]
    result = _run("--plans-only", *cases, "--kernels", "igemm_sm90.ping_pong,wgrad_sm90+igemm_sm80", "--csv", str(path))
    assert result.returncode == 0, result.stderr
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    turns, weights = ([row for row in rows if row["part"].startswith(part)] for part in ("igemm", "wgrad"))
    assert turns
    for row in turns:
        assert row["direction"] != "grad_weight"
        assert "warpgroups in turns" in row["plan_with"]
        assert "warpgroups in turns" not in row["plan_without"]
    assert {row["direction"] for row in weights} == {"grad_weight"}
    assert len(weights) == 4
    assert not any(row["plan_without"].startswith(("wgrad_sm90", "igemm_sm80")) for row in weights)
    lines = result.stdout.splitlines()
    assert len([line for line in lines if "ping_pong" in line]) == 1
    assert any("wgrad_sm90+igemm_sm80" in line and "(4)" in line for line in lines)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--kernels", "hopper", "--plans-only"], "unknown: hopper; DECONV_KERNELS takes simt, "),
    (["--without", "igemm_sm90.x", "--plans-only"], "unknown: igemm_sm90.x; "),
])  # fmt: skip
def test_unknown_part(arguments: list[str], message: str) -> None:
    result = _run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr


def test_the_tables(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Twice as slow in one of four settings: 2 ** (1 / 4). Settings whose plan stays are not timed."""
    settings = [("a", "bf16", layout, d) for layout in ("nchw", "channels_last") for d in ("forward", "grad_weight")]
    settings += [("b", *setting[1:]) for setting in settings]
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


def test_times_and_plans_of_a_setting(program: ModuleType) -> None:
    setting = ("kb2_02", "fp32", "channels_last", "grad_input")
    operands = program._operands(*setting, "meta")
    assert "; launch: " in program.plan_of("grad_input", operands)
    assert "; workspace: " in program.plan_of("grad_input", operands)
    one = {**program.CASES["kb2_02"], "n": 1, "ci": 2, "co": 2}
    small = program.operands.make_operands(one, torch.float32, torch.device("cpu"))
    assert program.time_ms("grad_input", lambda: small) > 0

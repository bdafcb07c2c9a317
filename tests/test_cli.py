"""The command line: what each command prints and writes, and its exit code."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("deconv_ext.cli.main", reason="no command line in this installation")
from torch import Tensor

import deconv_ext
from deconv_ext.cli import check, operands
from deconv_ext.cli.main import main
from deconv_ext.workloads import KERNELBENCH, ZOO, case, load_cases, output_size, scale_down, select


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command depends on the folder it runs in, or litters the project."""
    monkeypatch.chdir(tmp_path)


# --- info and explain -----------------------------------------------------------------------------------------------


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert deconv_ext.__version__ in text
    assert torch.__version__ in text


def test_runs_as_a_module(tmp_path: Path) -> None:
    """`python -m deconv_ext`, from any folder in which the package is importable."""
    package = Path(deconv_ext.__file__).parent.parent
    command = [sys.executable, "-m", "deconv_ext", "info"]
    result = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert deconv_ext.__version__ in result.stdout


@pytest.mark.parametrize("direction", ["forward", "grad_input", "grad_weight"])
def test_explain_of_a_layer(direction: str, capsys: pytest.CaptureFixture[str]) -> None:
    layer = "--input 2,4,5,6 --out-channels 6 --kernel 3,2 --stride 2 --padding 1,0 --groups 2 --device meta"
    assert main(["explain", *layer.split(), "--direction", direction]) == 0
    text = capsys.readouterr().out
    assert f"{direction} float32 input (2, 4, 5, 6) -> output (2, 6, 9, 12), kernel 3x2, stride 2x2" in text
    assert "plan: gather family" in text


def test_explain_of_a_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--case", "kb1_57", "--device", "meta"]) == 0
    text = capsys.readouterr().out
    assert all(f"{direction} float32" in text for direction in ("forward", "grad_input", "grad_weight"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("explain --case no_such_case", "no_such_case"),
        ("explain --input 2,4,5,6 --out-channels 6 --kernel 3 --stride 0", "--stride is 0"),
        ("explain --input 2,4,5,6 --out-channels 6 --kernel 3 --output-padding 1,-2", "--output-padding is 1,-2"),
        ("explain --input 2,4,5,6 --out-channels 6 --kernel 3,3,3", "--kernel is 3,3,3"),
        ("explain --input 2,4,5,6 --out-channels 6 --kernel 3 --groups 4 --device meta", "--groups is 4"),
        ("bench --json-cases missing.json", "missing.json"),
        ("bench --from-json missing.json", "missing.json"),
        ("bench --case no_such_case", "no_such_case"),
    ],
)
def test_unusable_arguments(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line that names the value; no traceback."""
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert "error:" in error
    assert message in error


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["bench", "--dtype", "int8"], ["explain"]])
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["info", "check", "explain", "bench", "demo"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([command, "--help"])
    assert raised.value.code == 0
    assert f"deconv_ext {command}" in capsys.readouterr().out


def test_bench_help_tells_how_to_make_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    text = capsys.readouterr().out
    assert "  python -m deconv_ext bench --from-json report.json" in text
    assert "docs/figures/train_dcgan.py" in text


# --- check ----------------------------------------------------------------------------------------------------------


def test_check_passes(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    if device == "cpu" and torch.__version__.startswith("2.11."):
        pytest.skip("torch 2.11's own convolution_backward corrupts the heap on one of these cases on some CPUs")
    assert main(["check", "--device", device, "--dtype", "fp32"]) == 0
    text = capsys.readouterr().out
    assert "passed" in text
    assert "FAIL" not in text


def _wrong_value(result: Tensor) -> Tensor:
    return torch.where(torch.arange(result.numel(), device=result.device).view(result.shape) == 0, result + 10, result)


def _not_a_number(result: Tensor) -> Tensor:
    return result.masked_fill(torch.arange(result.numel(), device=result.device).view(result.shape) == 0, float("nan"))


@pytest.mark.parametrize("spoil", [_wrong_value, _not_a_number, lambda r: r[..., :-1], lambda r: r.double()])
def test_check_notices_wrong_results(
    spoil: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One wrong element, a NaN, a wrong shape, a wrong dtype: every result counts as failed, and so does the run."""
    right = operands.call_ours
    monkeypatch.setattr(check, "call_ours", lambda *arguments: spoil(right(*arguments)))
    tallies = check.run(torch.device("cpu"), ("fp32",), check.CASES[:2])
    assert all(tally.failed == tally.checked > 0 for tally in tallies)
    monkeypatch.setattr(check, "run", lambda *_: tallies)
    assert main(["check", "--device", "cpu", "--dtype", "fp32"]) == 1
    assert "FAIL" in capsys.readouterr().out


# --- bench ----------------------------------------------------------------------------------------------------------


def test_bench(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scaled-down layer measured, written as JSON, and shown again from it."""
    report = tmp_path / "report.json"
    arguments = f"bench --case kb1_81 --scale 16 --direction all --device {device} --json {report}"
    assert main(arguments.split()) == 0
    assert "kb1_81" in capsys.readouterr().out
    rows = json.loads(report.read_text())["rows"]
    assert len(rows) == 3
    assert {row["case"] for row in rows} == {"kb1_81"}
    assert main(["bench", "--from-json", str(report)]) == 0
    assert "kb1_81" in capsys.readouterr().out


def test_bench_of_own_cases_with_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    mine = {"name": "mine", "n": 1, "ci": 2, "h": 3, "w": 4, "co": 2, "k": 3, "s": 2}
    (tmp_path / "cases.json").write_text(json.dumps([mine]))
    assert main(["bench", "--json-cases", "cases.json", "--device", "cpu", "--plot", "chart.png"]) == 0
    assert "mine" in capsys.readouterr().out
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "content",
    ["{", "{}", '[{"name": "short"}]', '[{"name": "x", "n": 0, "ci": 1, "h": 1, "w": 1, "co": 1, "k": 1}]',
     '[{"name": "x", "n": 1, "ci": 3, "h": 1, "w": 1, "co": 2, "k": 1, "g": 2}]',
     '[{"name": "x", "n": 1, "ci": 1, "h": 1, "w": 1, "co": 1, "k": 1, "colour": 2}]'],
)  # fmt: skip
def test_bench_refuses_malformed_cases(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cases.json").write_text(content)
    assert main(["bench", "--json-cases", "cases.json", "--device", "cpu"]) == 2
    assert "error:" in capsys.readouterr().err


# --- demo -----------------------------------------------------------------------------------------------------------


def test_demo(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    pytest.importorskip("PIL")
    picture = tmp_path / "picture.png"
    assert main(["demo", "--output", str(picture), "--device", device]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in capsys.readouterr().out


# --- workloads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("divisor", [1, 2, 7, 64, 10_000])
def test_scaled_down_cases_stay_valid(divisor: int) -> None:
    for one in KERNELBENCH + ZOO:
        small = scale_down(one, divisor)
        assert small["ci"] % small["g"] == small["co"] % small["g"] == 0
        assert min(output_size(small)) >= 1
        assert all(small[key] == one[key] for key in ("k", "s", "p", "op", "d"))
        assert (small["g"] > 1) == (one["g"] > 1)
        if divisor == 1:
            assert small == one


def test_cases_by_name_and_from_a_file(tmp_path: Path) -> None:
    assert [one["name"] for one in select(ZOO, ["dcgan2", "dcgan1"])] == ["dcgan1", "dcgan2"]
    (tmp_path / "cases.json").write_text(json.dumps(ZOO))
    assert load_cases(tmp_path / "cases.json") == ZOO
    with pytest.raises(ValueError, match="g is 2"):
        case("odd", 1, 3, 1, 1, 2, 1, g=2)

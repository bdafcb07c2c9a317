"""The command line: what each command prints and writes, and its exit code."""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("deconv_ext.cli.main", reason="no command line in this installation")
from torch import Tensor, nn

import deconv_ext
from deconv_ext.cli import bench, check, operands, reports, sweep, training
from deconv_ext.cli.main import main
from deconv_ext.workloads import (
    ALL_CASES,
    KERNELBENCH,
    KINDS,
    SWEEP,
    ZOO,
    case,
    kind_of,
    load_cases,
    output_size,
    parse_shape,
    scale_down,
    select,
    shape_of,
    suite_of,
    sweep_point,
)

MODELS = """
import torch
make = lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.ConvTranspose2d(4, 3, 2, stride=2))
plain = lambda: torch.nn.Linear(4, 4)
nothing = lambda: None
number = 3
"""


@pytest.fixture(autouse=True)
def in_a_folder_with_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command depends on the folder it runs in, or litters the project; `made_here.py` is there."""
    (tmp_path / "made_here.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "made_here", raising=False)


# --- info, explain, profile -----------------------------------------------------------------------------------------


def test_runs_as_a_module(tmp_path: Path) -> None:
    """`python -m deconv_ext`, from any folder in which the package is importable."""
    package = Path(deconv_ext.__file__).parent.parent
    command = [sys.executable, "-m", "deconv_ext", "info"]
    result = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert deconv_ext.__version__ in result.stdout


@pytest.mark.parametrize("direction", ["", *operands.DIRECTIONS])
def test_explain(direction: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a layer by arguments or by name; in one direction or all."""
    layer = "--input 2,4,5,6 --out-channels 6 --kernel 3,2 --stride 2 --padding 1,0 --groups 2 --dtype fp32"
    chosen = ["--direction", direction] if direction else []
    assert main(["explain", *layer.split(), "--device", "meta", *chosen]) == 0
    text = capsys.readouterr().out
    for one in [direction] if direction else operands.DIRECTIONS:
        assert f"{one} float32 input (2, 4, 5, 6) -> output (2, 6, 9, 12), kernel 3x2, stride 2x2" in text
    assert text.count("  plan: ") == (1 if direction else 3)
    assert main(["explain", "--case", "kb1_57", "--device", "meta", *chosen]) == 0


@pytest.mark.parametrize("options", ["", "--forward", "--dtype fp32 --layout channels_last"])
def test_profile(options: str, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "made_here:make", "--input", "2,3,4,5", "--device", device, *options.split()]) == 0
    text = capsys.readouterr().out
    assert "(2, 4, 4, 5) -> (2, 3, 8, 10), kernel 2x2, stride 2x2" in text
    assert ("float32" if "fp32" in options else "bfloat16") in text
    assert ("forward and backward" in text) == ("--forward" not in options)


CASE_FILES = [
    "{", "{}", '[{"name": "short"}]', '[{"name": "x", "n": 0, "ci": 1, "h": 1, "w": 1, "co": 1, "k": 1}]',
    '[{"name": "x", "n": 1, "ci": 3, "h": 1, "w": 1, "co": 2, "k": 1, "g": 2}]',
    '[{"name": "x", "n": 1, "ci": 1, "h": 1, "w": 1, "co": 1, "k": 1, "colour": 2}]',
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("explain --case no_such_case", "no_such_case"),
        ("explain --input 2,4,5,6 --out-channels 6 --kernel 3 --stride 0", "--stride is 0"),
        ("explain --input 2,4,5,6 --out-channels 6 --kernel 3 --output-padding 1,-2", "--output-padding is 1,-2"),
        ("explain --input 2,4,5,6 --out-channels 6 --kernel 3,3,3", "--kernel is 3,3,3"),
        ("explain --input 2,4,5,6 --out-channels 6 --kernel 3 --groups 4 --device meta", "--groups is 4"),
        ("bench --json-cases missing.json", "missing.json"),
        ("bench --from-csv missing.csv", "missing.csv"),
        ("bench --case no_such_case", "no_such_case"),
        ("bench --input 1,4,1,1 --out-channels 4 --kernel 3 --padding 3", "(-3, -3)"),
        ("bench --input 1,4,1,1 --out-channels 4", "--input is 1,4,1,1"),
        ("bench --input 1,0,1,1 --out-channels 4 --kernel 1", "--input is 1,0,1,1"),
        ("bench --input 1,4,1,1 --out-channels 0 --kernel 1", "--out-channels is 0"),
        ("bench --input 1,4,8,8 --out-channels 4 --kernel 2 --output-padding 3", "--output-padding is 3"),
        ("bench --input 1,4,8,8 --out-channels 4 --kernel 2 --case kb1_57", "--case is kb1_57"),
        ("bench --device meta", "--device is meta"),
        ("bench --device cuda:99", "--device is cuda:99"),
        ("bench --resume", "--resume needs --csv"),
        ("bench --csv no_such_folder/report.csv", "no_such_folder"),
        ("bench --plot chart.bmp", ".png or .svg"),
        ("bench --training --plot chart.svg", "training steps have no chart"),
        ("bench --execution eager", "--execution is eager"),
        ("bench --training --case no_such_model", "no_such_model"),
        ("bench --training --direction forward", "--direction is forward"),
        ("bench --training --dtype fp16", "fp16"),
        ("bench --training --scale 0", "scale is 0"),
        *((f"bench --json-cases {number}.json --device cpu", "") for number in range(len(CASE_FILES))),
        ("profile made_here:plain --input 2,4", "there is nothing to profile"),
        ("profile made_here --input 1,3,4,4", "it must be MODULE:CALLABLE"),
        ("profile no_such_module:make --input 1,3,4,4", "no_such_module"),
        ("profile made_here:absent --input 1,3,4,4", "made_here has no callable absent"),
        ("profile made_here:number --input 1,3,4,4", "made_here has no callable number"),
        ("profile made_here:nothing --input 1,3,4,4", "it must return a torch.nn.Module, but gave NoneType"),
        ("profile made_here:make --input 1,5,4,4", "made_here:make does not run on --input: "),
    ],
)
def test_unusable_arguments(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line that names the value; no traceback."""
    for number, content in enumerate(CASE_FILES):
        Path(f"{number}.json").write_text(content)
    assert main([*arguments.split(), *(["--device", "cpu"] if arguments.startswith("profile") else [])]) == 2
    captured = capsys.readouterr()
    assert message in captured.err + captured.out
    assert "plain" in arguments or "error:" in captured.err


@pytest.mark.parametrize("script", ["/usr/bin/deconv-ext", "/site-packages/deconv_ext/__main__.py"])
@pytest.mark.parametrize("command", ["", "info", "check", "explain", "bench", "profile", "demo"])
def test_help(command: str, script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the program; the examples of bench parse."""
    monkeypatch.setattr(sys, "argv", [script])
    with pytest.raises(SystemExit) as raised:
        main([*command.split(), "--help"])
    assert raised.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: {'deconv-ext' if 'bin' in script else 'python -m deconv_ext'} {command or '[-h]'}" in text
    if command == "bench":
        parser = argparse.ArgumentParser()
        bench.add_arguments(parser)
        examples = re.findall(r"^  deconv-ext (bench .+?)(?:   .*)?$", text, re.MULTILINE)
        assert [parser.parse_args(example.split()[1:]) for example in examples][3:]


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
    """A scaled-down layer measured, written as CSV, and shown again from it."""
    arguments = f"bench --case kb1_81 --scale 16 --layout nchw --dtype fp32 --device {device} --csv report.csv"
    assert main(arguments.split()) == 0
    shown = capsys.readouterr().out
    assert "kb1_81" in shown
    report = reports.read_csv("report.csv")
    assert [(row.suite, row.case, row.direction) for row in report.rows] == [
        ("kernelbench", "kb1_81", direction) for direction in operands.DIRECTIONS
    ]
    assert all(row.measured and row.floor_ms and row.error is not None and row.kernel for row in report.rows)
    assert {"commit", "date", "torch", "copy GB/s", "fp32 TFLOP/s"} <= report.head.keys()
    assert main(["bench", "--from-csv", "report.csv", "--csv", "again.csv"]) == 0
    assert capsys.readouterr().out == shown
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "report.csv").read_bytes()


def test_bench_of_a_layer_by_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """By default bfloat16, every direction and both layouts."""
    layer = "--input 2,8,5,6 --out-channels 4 --kernel 4 --stride 2 --padding 1"
    assert main(f"bench {layer} --device cpu --csv mine.csv".split()) == 0
    rows = reports.read_csv("mine.csv").rows
    assert {row.shape for row in rows} == {"2x8x5x6 to 4 k4 s2 p1"}
    assert {(row.dtype, row.layout, row.direction) for row in rows} == {
        ("bf16", layout, direction) for layout in bench.LAYOUTS for direction in operands.DIRECTIONS
    }
    assert main(f"bench {layer} --device cpu --dtype tf32 --direction forward".split()) == 0
    assert "tf32" in capsys.readouterr().out


_ONE_LAYER = [
    "bench", "--case", "kb1_81", "--scale", "16", "--layout", "nchw", "--dtype", "fp32", "--device", "cpu",
    "--csv", "report.csv",
]  # fmt: skip


def test_bench_resumes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the file holds is not measured again; a file of another commit is refused, and stays."""
    arguments = [*_ONE_LAYER, "--resume"]
    assert main([*arguments, "--direction", "forward"]) == 0
    (first,) = reports.read_csv("report.csv").rows
    assert main(arguments) == 0
    rows = reports.read_csv("report.csv").rows
    assert (rows[0], len(rows)) == (first, 3)
    monkeypatch.setenv("DECONV_COMMIT", "another")
    assert main(arguments) == 2
    assert "commit is" in capsys.readouterr().err
    assert len(reports.read_csv("report.csv").rows) == 3


def test_bench_keeps_the_rest_where_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row without memory is marked, the others are measured, and the exit code is 0; any other error is 1."""
    right = bench.call_ours

    def short(direction: str, given: operands.Operands) -> Tensor:
        if direction == "grad_input":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return right(direction, given)

    monkeypatch.setattr(bench, "call_ours", short)
    assert main(_ONE_LAYER) == 0
    notes = {row.direction: (row.measured, row.note) for row in reports.read_csv("report.csv").rows}
    assert notes == {
        "forward": (True, ""), "grad_input": (False, "not measured: out of memory"), "grad_weight": (True, "")
    }  # fmt: skip
    monkeypatch.setattr(bench, "call_ours", lambda direction, given: right(direction, given) + 1)
    assert main([*_ONE_LAYER, "--direction", "forward"]) == 1
    assert reports.read_csv("report.csv").rows[0].note.startswith("wrong")


def test_reports_of_several_runs_become_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of files with equal heads, the later one's where both have one; other files are refused."""
    head = {"commit": "a", "gpu": "G", "torch": "2"}
    row = reports.Row("zoo", "dcgan4", shape_of(ZOO[3]), "forward", "bf16", "nchw", 1.0, 2.0, 0.5, 1e-3, 0.1, "hopper")
    first = reports.Report(head, [row, dataclasses.replace(row, layout="channels_last")])
    second = reports.Report({**head, "bf16 TFLOP/s": "700"}, [dataclasses.replace(row, ours_ms=0.5)])
    merged = reports.merge([first, second])
    assert [(one.layout, one.speedup) for one in merged.rows] == [("nchw", 4.0), ("channels_last", 2.0)]
    assert merged.head["bf16 TFLOP/s"] == "700"
    with pytest.raises(ValueError, match="commit is a in one report and b"):
        reports.merge([first, reports.Report({**head, "commit": "b"})])
    (tmp_path / "table.csv").write_text("name,value\n1,2\n")
    assert main(["bench", "--from-csv", "table.csv"]) == 2
    assert "table.csv is no report" in capsys.readouterr().err


def test_bench_of_own_cases_with_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    mine = {"name": "mine", "n": 1, "ci": 2, "h": 3, "w": 4, "co": 2, "k": 3, "s": 2}
    (tmp_path / "cases.json").write_text(json.dumps([mine]))
    chart = ["--device", "cpu", "--dtype", "fp32", "--plot", "chart.png"]
    assert main(["bench", "--json-cases", "cases.json", *chart]) == 0
    assert "mine" in capsys.readouterr().out
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


# --- bench --suite sweep --------------------------------------------------------------------------------------------


def test_bench_sweep(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neighbours measured, charted, and shown again from CSV with the same columns."""
    pytest.importorskip("matplotlib")
    names = ["sweep_stride_0001", "sweep_stride_0002", "sweep_kernel_0003"]
    chosen = [argument for name in names for argument in ("--case", name)]
    measure = f"--scale 16 --dtype fp32 --layout nchw --direction forward --device {device}"
    assert main(["bench", *chosen, *measure.split(), "--csv", "sweep.csv", "--plot", "sweep.png"]) == 0
    shown = capsys.readouterr().out
    assert {row.case for row in reports.read_csv("sweep.csv").rows} == set(names)
    assert "3 points" in shown
    assert "to previous" in shown
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert main(["bench", "--from-csv", "sweep.csv", "--plot", "again.svg"]) == 0
    assert capsys.readouterr().out == shown
    assert "<svg" in (tmp_path / "again.svg").read_text()


def test_sweep_finds_cliffs() -> None:
    """In order of the values; each axis and direction has neighbours of its own; a row without times is passed over."""
    # ours over the floor, the speedup, the verdict, the ratio to the previous
    table: dict[str, tuple[Any, ...]] = {
        "kernel_0005": (9.0, 1, "cliff: 3.1x the previous", 9 / 2.9),
        "kernel_0001": (1.0, 1, "", None),
        "kernel_0002": (2.9, 1, "", 2.9),
        "kernel_0004": (None, 1, "not measured: why", None),
        "kernel_0010": (2.5, 0.9, "cliff: previous 3.6x, 1.11x cuDNN's time", 2.5 / 9),
        "kernel_0011": (2.5, 0.96, "", 1),
        "stride_0001": (50.0, 1, "", None),
        "stride_0002": (50.0, 1, "", None),
    }
    rows = []
    for name, (over, speedup, *_) in table.items():
        times = () if over is None else (0.1 * over, 0.1 * over * speedup, 0.1)
        direction = "grad_input" if name == "stride_0002" else "forward"
        note = "" if times else "not measured: why"
        rows.append(reports.Row("sweep", f"sweep_{name}", "", direction, "bf16", "nchw", *times, note=note))
    points = {f"{one.axis}_{one.value:04}": (one.verdict, one.to_previous) for one in sweep.points_of(rows, "cuDNN")}
    expected = {name: (verdict, ratio and pytest.approx(ratio)) for name, (_, _, verdict, ratio) in table.items()}
    assert points == expected
    assert [name for name in points if "kernel" in name] == sorted(name for name in table if "kernel" in name)


# --- bench --training -----------------------------------------------------------------------------------------------

_TRAINING = ["bench", "--training", "--case", "pose", "--scale", "64", "--layout", "nchw", "--csv", "training.csv"]


def test_bench_training(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Scaled-down steps in both precisions, written as CSV, and shown again from it."""
    assert main([*_TRAINING, "--execution", "eager", "--device", device]) == 0
    shown = capsys.readouterr().out
    rows = reports.read_csv("training.csv").rows
    assert [(row.case, row.direction, row.dtype, row.note) for row in rows] == [
        ("pose", "step, eager", "tf32", ""),
        ("pose", "step, eager", "bf16", ""),
    ]
    assert all(row.measured and row.floor_ms < row.ours_ms for row in rows)
    assert main(["bench", "--from-csv", "training.csv"]) == 0
    assert capsys.readouterr().out == shown
    assert main(["bench", "--from-csv", "training.csv", "--plot", "chart.png"]) == 2


def test_bench_training_notices_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of right size and wrong place; BatchNorm would hide a wrong factor."""
    right = deconv_ext.ConvTranspose2d.forward
    monkeypatch.setattr(deconv_ext.ConvTranspose2d, "forward", lambda self, x: right(self, x).roll(1, -1))
    assert main([*_TRAINING, "--execution", "eager", "--dtype", "fp32", "--device", "cpu"]) == 1
    (row,) = reports.read_csv("training.csv").rows
    assert row.failed
    assert row.error > 0.01


@pytest.mark.parametrize(("only_ours", "state", "code"), [(False, "not measured", 0), (True, "failed", 1)])
def test_bench_training_notes_what_does_not_compile(
    only_ours: bool, state: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where torch's own model does not compile, the row is passed over; where only ours does not, that is a fault."""

    def refuse(network: nn.Module) -> nn.Module:
        if not only_ours or any(isinstance(module, deconv_ext.ConvTranspose2d) for module in network.modules()):
            raise OSError("no compiler here")
        return network

    monkeypatch.setattr(torch, "compile", refuse)
    assert main([*_TRAINING, "--execution", "compile", "--dtype", "fp32", "--device", "cpu"]) == code
    (row,) = reports.read_csv("training.csv").rows
    assert not row.measured
    assert row.note.startswith(state)
    assert "no compiler here" in row.note
    assert ("model (ours)" in row.note) == only_ours


def test_training_takes_the_layers_of_the_zoo() -> None:
    """The DCGAN's transposed layers at full size, and those of a small step: the noise needs no gradient."""
    (generator, _), (noise, _) = training.MODELS["dcgan"].make(1)
    layers = [layer for layer in generator.modules() if isinstance(layer, nn.ConvTranspose2d)]
    zoo = [one for one in ZOO if one["name"].startswith("dcgan")]
    assert noise.shape == (zoo[0]["n"], zoo[0]["ci"], zoo[0]["h"], zoo[0]["w"])
    made = [(one.in_channels, one.out_channels, one.kernel_size, one.stride, one.padding) for one in layers]
    assert made == [(one["ci"], one["co"], one["k"], one["s"], one["p"]) for one in zoo]
    variant = training.Variant("fp32", "nchw", "eager")
    small = training.Trainer(training.MODELS["dcgan"], variant, torch.device("cpu"), 64, ours=True)
    calls = training._transposed_calls(small)
    assert [needs_grad_input for _, needs_grad_input in calls] == [False, True, True, True, True]
    sizes = [(one["h"], one["k"], one["s"], one["p"]) for one, _ in calls]
    assert sizes == [(one["h"], one["k"], one["s"], one["p"]) for one in zoo]


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
    for one in ALL_CASES:
        small = scale_down(one, divisor)
        assert small["ci"] % small["g"] == small["co"] % small["g"] == 0
        assert min(output_size(small)) >= 1
        assert all(small[key] == one[key] for key in ("k", "s", "p", "op", "d"))
        assert (small["g"] > 1) == (one["g"] > 1)
        assert small == one or divisor > 1


def test_shapes_tell_the_whole_case() -> None:
    assert [parse_shape(one["name"], shape_of(one)) for one in ALL_CASES] == ALL_CASES
    assert {kind_of(one) for one in ALL_CASES} == set(KINDS)
    assert len({one["name"] for one in ALL_CASES}) == len(ALL_CASES)
    assert [suite_of(name) for name in ("kb1_57", "dcgan1", "r_sam_up1", "r1_dac_1", "mine")] == [
        "kernelbench", "zoo", "real", "real1d", ""
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'1x2x3'"):
        parse_shape("mine", "1x2x3")


def test_cases_by_name_and_from_a_file(tmp_path: Path) -> None:
    assert [one["name"] for one in select(ZOO, ["dcgan2", "dcgan1"])] == ["dcgan1", "dcgan2"]
    (tmp_path / "cases.json").write_text(json.dumps(ZOO))
    assert load_cases(tmp_path / "cases.json") == ZOO
    with pytest.raises(ValueError, match="g is 2"):
        case("odd", 1, 3, 1, 1, 2, 1, g=2)


def test_sweep_varies_one_property_at_a_time() -> None:
    """A name says the property and its value; all else is the base layer's."""
    keys = {
        "channels": ("ci", "co"), "in_channels": ("ci",), "out_channels": ("co",), "kernel": ("k",), "stride": ("s",),
        "groups": ("g",), "image": ("h", "w"), "dilation": ("d",), "output_padding": ("op",),
    }  # fmt: skip
    (base,) = select(SWEEP, ["sweep_channels_0064"])
    seen = set()
    for one in SWEEP:
        point = sweep_point(one["name"])
        assert point is not None
        assert point not in seen
        seen.add(point)
        axis, value = point
        varied = {key: (value, value) if isinstance(base[key], tuple) else value for key in keys[axis]}
        assert one == {**base, **varied, "name": one["name"]}
        assert min(output_size(one)) >= 1
    assert {axis for axis, _ in seen} == set(keys)
    assert not any(sweep_point(one["name"]) for one in KERNELBENCH + ZOO)

"""`deconv-ext`: its version and its name, and the command `profile`."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("deconv_ext.cli.main", reason="no command line in this installation")
import deconv_ext
from deconv_ext.cli.main import main

MODELS = """
import torch
make = lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.ConvTranspose2d(4, 3, 2, stride=2))
plain = lambda: torch.nn.Linear(4, 4)
nothing = lambda: None
number = 3
"""


@pytest.fixture(autouse=True)
def in_a_folder_with_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`made_here.py` in the current folder."""
    (tmp_path / "made_here.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "made_here", raising=False)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"deconv_ext {deconv_ext.__version__}\n"


@pytest.mark.parametrize(
    ("script", "program"),
    [("/usr/bin/deconv-ext", "deconv-ext"), ("/site-packages/deconv_ext/__main__.py", "python -m deconv_ext")],
)
def test_usage_names_the_program(
    script: str, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script])
    with pytest.raises(SystemExit):
        main(["--help"])
    assert f"usage: {program} [-h]" in capsys.readouterr().out


@pytest.mark.parametrize("options", ["", "--forward", "--dtype fp32 --layout channels_last"])
def test_profile(options: str, device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "made_here:make", "--input", "2,3,4,5", "--device", device, *options.split()]) == 0
    text = capsys.readouterr().out
    assert "(2, 4, 4, 5) -> (2, 3, 8, 10), kernel 2x2, stride 2x2" in text
    assert ("float32" if "fp32" in options else "bfloat16") in text
    assert ("forward and backward" in text) == ("--forward" not in options)


def test_profile_of_a_model_without_transposed_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "made_here:plain", "--input", "2,4", "--device", "cpu"]) == 2
    assert "there is nothing to profile" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("made_here --input 1,3,4,4", "it must be MODULE:CALLABLE"),
        ("no_such_module:make --input 1,3,4,4", "no_such_module"),
        ("made_here:absent --input 1,3,4,4", "made_here has no callable absent"),
        ("made_here:number --input 1,3,4,4", "made_here has no callable number"),
        ("made_here:nothing --input 1,3,4,4", "it must return a torch.nn.Module, but gave NoneType"),
        ("made_here:make --input 1,5,4,4", "made_here:make does not run on --input: "),
    ],
)
def test_unusable_arguments(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line that names the value; no traceback."""
    assert main(["profile", *arguments.split(), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error

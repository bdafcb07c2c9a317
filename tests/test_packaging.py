"""The build's answers to what it lacks, when make builds kernels, and the one version."""

import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import deconv_ext.cli.main

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("setuptools")
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="no sources beside these tests")


BUILD = ["build_ext", "--build-temp", "{folder}/temp", "--build-lib", "{folder}"]


def _refusal(tmp_path: Path, command: list[str] = BUILD, **environment: str) -> str:
    """What a build prints that has to end before anything is compiled."""
    command = [sys.executable, "setup.py", *(word.format(folder=tmp_path) for word in command)]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 1
    assert not list(tmp_path.rglob("*.o"))
    return result.stderr.strip().splitlines()[-1]


def _programs(tmp_path: Path, *names: str, **answers: str) -> dict[str, str]:
    """An environment with programs that do nothing, or print their answer as an error, in `tmp_path`/bin alone."""
    folder = tmp_path / "bin"
    folder.mkdir()
    failing = {name: f'echo "{text}" >&2; exit 1' for name, text in answers.items()}
    for name, script in (dict.fromkeys(names, "exit 0") | failing).items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder), "CXX": "c++"}


def test_build_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('torch')\n")
    assert "needs torch >= 2.10, but this Python has no torch" in _refusal(tmp_path, PYTHONPATH=str(tmp_path))


def test_build_without_compiler_or_ninja(tmp_path: Path) -> None:
    assert "needs a C++ compiler, but there is no no-such-compiler" in _refusal(tmp_path, CXX="no-such-compiler")
    assert "needs ninja, but there is none" in _refusal(tmp_path, **_programs(tmp_path, "c++"), USE_CUDA="0")


@pytest.mark.parametrize("switch", ["FORCE_CUDA", "USE_CUDA"])
def test_build_without_nvcc(switch: str, tmp_path: Path) -> None:
    if Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("the CUDA toolkit is in its usual place")
    found = {**_programs(tmp_path, "c++"), "CUDA_HOME": "", "CUDA_PATH": "", "FORCE_CUDA": "", "USE_CUDA": ""}
    message = _refusal(tmp_path, **{**found, switch: "1"})
    assert message.endswith("no CUDA toolkit (nvcc) was found; install one, or set USE_CUDA=0 to do without kernels")
    assert (f"torch {torch.__version__} is built for CUDA" in message) == (torch.version.cuda is not None)


def test_build_with_an_nvcc_that_is_too_old(tmp_path: Path) -> None:
    programs = _programs(tmp_path, "c++", "ninja", nvcc="nvcc fatal   : Unsupported gpu architecture 'compute_120'")
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_runtime_api.h").touch()
    kernels = {"CUDA_HOME": str(tmp_path), "FORCE_CUDA": "1", "USE_CUDA": "", "TORCH_CUDA_ARCH_LIST": "9.0a;12.0+PTX"}
    assert _refusal(tmp_path, **programs, **kernels) == (
        f"deconv_ext: {tmp_path}/bin/nvcc does not compile for 9.0a 12.0+PTX (Unsupported gpu architecture "
        "'compute_120'); install another CUDA toolkit, or set TORCH_CUDA_ARCH_LIST to what this one compiles for"
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("gpus", "environment", "kernels", "reason"),
    [
        ("", {}, "USE_CUDA=0", "no GPU is visible"),
        ("", {"FORCE_CUDA": "1"}, "", ""),
        ("", {"TORCH_CUDA_ARCH_LIST": "8.0;9.0a"}, "FORCE_CUDA=1", ""),
        ("1", {}, "", ""),
    ],
)
def test_make_builds_kernels(gpus: str, environment: dict[str, str], kernels: str, reason: str, tmp_path: Path) -> None:
    """For a GPU that is visible or where the environment asks; else not, and one line says so."""
    path = _programs(tmp_path, "nvcc")["PATH"]
    names = ("MAKEFLAGS", "MAKELEVEL", "FORCE_CUDA", "USE_CUDA", "TORCH_CUDA_ARCH_LIST", "TORCH", "CUDA_HOME")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    result = subprocess.run(
        ["make", "--dry-run", "build", f"GPUS={gpus}", f"VENV={tmp_path}"], cwd=ROOT, capture_output=True, text=True,
        timeout=60, check=True, env={**clean, "PATH": f"{path}:{os.environ['PATH']}", **environment},
    )  # fmt: skip
    (build,) = re.findall(r"^(?:(\w+=\d) )?/\S+/python setup.py build_ext --inplace", result.stdout, re.MULTILINE)
    assert build == kernels
    assert re.findall(r"^echo 'Building without CUDA kernels: (.+?)\.", result.stdout, re.MULTILINE) == (
        [reason] if reason else []
    )
    assert ("'torch==2.14.1'" in result.stdout) == bool(gpus)


def test_wheel_of_free_threaded_python(tmp_path: Path) -> None:
    """setuptools refuses the tag abi3 there before anything runs; so the build must come as far as its own checks."""
    free_threaded = "import sysconfig\nsysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\n"
    (tmp_path / "sitecustomize.py").write_text(free_threaded)
    wheel = ["build", "--build-base", "{folder}", "bdist_wheel", "--dist-dir", "{folder}"]
    message = _refusal(tmp_path, wheel, PYTHONPATH=str(tmp_path), CXX="no-such-compiler")
    assert "the build needs a C++ compiler" in message


def _found_in(name: str, pattern: str) -> list[str]:
    return re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)


def test_one_version_and_one_command_line() -> None:
    assert _found_in("pyproject.toml", r'^version = "(.+)"$') == [deconv_ext.__version__]
    assert _found_in("CITATION.cff", r"^version: (.+)$") == [deconv_ext.__version__]
    (entry,) = _found_in("pyproject.toml", r'^deconv-ext = "(.+)"$')
    module, _, function = entry.partition(":")
    assert getattr(importlib.import_module(module), function) is deconv_ext.cli.main.main


def test_one_address() -> None:
    """Every link to the repository is to the one that pyproject.toml names."""
    (address,) = _found_in("pyproject.toml", r'^Repository = "(.+)"$')
    hidden = (ROOT / ".github").rglob("*")  # not in a source archive
    pages = [*ROOT.glob("*.md"), ROOT / "CITATION.cff", ROOT / "pyproject.toml", *hidden]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages if page.is_file())
    ours = [link for link in re.findall(r"https://github\.com/\S+", text) if "deconv" in link]
    assert ours
    assert all(link.startswith(address) for link in ours)


@pytest.mark.skipif(not (ROOT / ".github").exists(), reason="no .github beside these tests")
@pytest.mark.parametrize("form", ["bug", "performance"])
def test_issue_forms_ask_for_commands_that_exist(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml").read_text(encoding="utf-8")
    commands = set(re.findall(r"`deconv-ext (\w+)", text))
    assert "info" in commands
    with pytest.raises(SystemExit):
        deconv_ext.cli.main.main(["--help"])
    assert commands <= set(re.findall(r"\w+", capsys.readouterr().out))


def test_architectures_share_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    """One translation for those that the sources do not tell apart, which nvcc takes longest for; the code of each."""
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    monkeypatch.setenv("USE_CUDA", "0")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5 8.0+PTX 8.6 8.9 9.0a 10.0 12.0+PTX")
    build = runpy.run_path(str(ROOT / "setup.py"))
    sources = "".join(path.read_text() for path in (ROOT / "csrc").rglob("*.*"))
    assert {int(first) for first in re.findall(r"__CUDA_ARCH__ >= (\d+)0\b", sources)} == set(build["TOLD_APART"])
    assert len(re.findall(r"__CUDA_ARCH__\b", sources)) == len(re.findall(r"__CUDA_ARCH__ >= ", sources))
    flags = build["architecture_flags"]()
    assert sorted(flag.removeprefix("-gencode=arch=compute_") for flag in flags) == [
        "100,code=compute_100", "100,code=sm_100", "100,code=sm_120", "75,code=sm_75", "80,code=compute_80",
        "80,code=sm_80", "80,code=sm_86", "80,code=sm_89", "90a,code=sm_90a",
    ]  # fmt: skip

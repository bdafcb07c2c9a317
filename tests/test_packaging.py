"""The build's answers to what it lacks, and the one version."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import deconv_ext

ROOT = Path(__file__).resolve().parent.parent
pytest.importorskip("setuptools")
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="no sources beside these tests")


def _refusal(tmp_path: Path, **environment: str) -> str:
    """What a build prints that has to end before anything is compiled."""
    command = [sys.executable, "setup.py", "build_ext", "--build-temp", tmp_path / "temp", "--build-lib", tmp_path]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 1
    assert not list(tmp_path.rglob("*.o"))
    return result.stderr.strip().splitlines()[-1]


def test_build_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('torch')\n")
    expected = "deconv_ext: the build needs torch >= 2.10, but this Python has no torch"
    assert _refusal(tmp_path, PYTHONPATH=str(tmp_path)) == expected


def test_build_without_compiler(tmp_path: Path) -> None:
    expected = (
        "deconv_ext: the build needs a C++ compiler, but there is no no-such-compiler; install one or name it in CXX"
    )
    assert _refusal(tmp_path, CXX="no-such-compiler") == expected


@pytest.mark.parametrize("switch", ["FORCE_CUDA", "USE_CUDA"])
def test_build_without_nvcc(switch: str, tmp_path: Path) -> None:
    if Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("the CUDA toolkit is in its usual place")
    compiler = tmp_path / "bin" / "c++"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    found = {
        "PATH": str(compiler.parent),
        "CUDA_HOME": "",
        "CUDA_PATH": "",
        "CXX": "c++",
        "FORCE_CUDA": "",
        "USE_CUDA": "",
    }
    message = _refusal(tmp_path, **{**found, switch: "1"})
    assert message.endswith("no CUDA toolkit (nvcc) was found; install one, or set USE_CUDA=0 to do without kernels")
    assert (f"torch {torch.__version__} is built for CUDA" in message) == (torch.version.cuda is not None)


def test_one_version() -> None:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    assert found[1] == deconv_ext.__version__

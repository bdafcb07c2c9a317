"""tools/compare.py, which times builds side by side."""

import subprocess
import sys
from pathlib import Path

import pytest

from deconv_ext import _ops

PROGRAM = Path(__file__).resolve().parent.parent / "tools" / "compare.py"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no sources beside these tests")


def _compare(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_library_beside_itself() -> None:
    library = str(_ops._LIBRARY)
    result = _compare(library, library, "--case", "dcgan4", "--dtype", "fp32", "--scale", "16", "--rounds", "3")
    assert result.returncode == 0, result.stderr
    row, mean = result.stdout.splitlines()[1:]
    assert row.split()[:4] == ["dcgan4", "fp32", "nchw", "forward"]
    assert all(float(ms) > 0 for ms in row.split()[4:6])
    assert mean.split()[:2] == ["geometric", "mean"]
    assert float(mean.split()[2]) > 0


def test_what_cannot_be_compared_is_named(tmp_path: Path) -> None:
    assert f"LIBRARY is {tmp_path}; there is no such file" in _compare(str(tmp_path)).stderr
    assert "--rounds is 0; it must be at least 1" in _compare(str(_ops._LIBRARY), "--rounds", "0").stderr

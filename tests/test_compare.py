"""tools/compare.py, which times builds side by side."""

import subprocess
import sys
from pathlib import Path

import pytest

from deconv_ext import _ops

PROGRAM = Path(__file__).resolve().parent.parent / "tools" / "compare.py"
LIBRARY = str(_ops._LIBRARY)
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="no sources beside these tests")


def _compare(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_library_beside_itself() -> None:
    result = _compare(LIBRARY, LIBRARY, "--case", "dcgan4", "--dtype", "fp32", "--scale", "16", "--rounds", "3")
    assert result.returncode == 0, result.stderr
    names, row, mean = result.stdout.splitlines()
    assert names.split()[:4] == ["1:", "_C.abi3", "2:", "_C.abi3"]
    assert row.split()[:4] == ["dcgan4", "fp32", "nchw", "forward"]
    assert all(float(number) > 0 for number in row.split()[4:7])
    assert mean.split()[:2] == ["geometric", "mean"]
    assert float(mean.split()[2]) == float(row.split()[6])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((str(PROGRAM.parent),), f"LIBRARY is {PROGRAM.parent}; there is no such file"),
        ((LIBRARY, "--rounds", "0"), "--rounds is 0; it must be at least 1"),
        ((LIBRARY, "--scale", "0"), "--scale is 0; it must be at least 1"),
        ((LIBRARY, "--case", "nothing"), "nothing"),
    ],
)
def test_what_cannot_be_compared_is_named(arguments: tuple[str, ...], text: str) -> None:
    result = _compare(*arguments)
    assert result.returncode == 2
    assert text in result.stderr.splitlines()[-1]


def test_a_library_that_does_not_load_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    result = _compare(LIBRARY, str(broken), "--case", "dcgan4", "--scale", "16")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == f"compare: {broken} failed to load"

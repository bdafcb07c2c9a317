"""What the documents show: their Python blocks run, and so do the examples of the docstrings."""

import doctest
import importlib
import re
import socket
from pathlib import Path

import pytest
import torch
from torch import nn

import deconv_ext

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("docs/**/*.md"))
_NAMES = (
    "conversion", "functional", "functional1d", "inspection", "modules", "override", "profiling", "workloads"
)  # fmt: skip
MODULES = [f"deconv_ext.{name}" for name in _NAMES]

# ```python, or ```python gpu for what needs a GPU; the code up to the closing fence.
_BLOCK = re.compile(r"^```python( gpu)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: Path) -> list[tuple[str, bool]]:
    """(code, needs a GPU) of each block; leading lines keep the page's line numbers for tracebacks."""
    text = page.read_text(encoding="utf-8")
    found = _BLOCK.finditer(text)
    return [("\n" * text.count("\n", 0, block.start(2)) + block[2], bool(block[1])) for block in found]


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that torchrun sets for a single process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.slow
@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page)], ids=lambda page: page.stem)
def test_page(page: Path) -> None:
    """A page's blocks run from top to bottom, as a reader would run them."""
    torch._dynamo.reset()
    namespace = {"__name__": page.stem}
    for code, needs_gpu in _blocks(page):
        if torch.cuda.is_available() or not needs_gpu:
            exec(compile(code, str(page), "exec"), namespace)


@pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="no README beside these tests")
def test_readme() -> None:
    """The README's blocks, for tensors and a model that a reader has."""
    x, weight, bias = torch.randn(1, 8, 4, 4), torch.randn(8, 2, 4, 4), torch.randn(2)
    namespace = {"x": x, "weight": weight, "bias": bias, "model": nn.Sequential(nn.ConvTranspose2d(8, 2, 3))}
    for code, _ in _blocks(ROOT / "README.md"):
        exec(compile(code, "README.md", "exec"), namespace)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    """The examples in a module's docstrings."""
    namespace = {"torch": torch, "deconv_ext": deconv_ext}
    assert doctest.testmod(importlib.import_module(name), extraglobs=namespace).failed == 0

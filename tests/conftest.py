"""Devices, seeds, strict float32, and the host core's folder for every test."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import deconv_ext  # noqa: F401

_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, os.environ.get("DECONV_HOST_CORE", str(_ROOT / "build" / "host_core")))


def has_gpu() -> bool:
    """Whether there is a CUDA device that this build has kernels for."""
    return torch.cuda.is_available() and torch.ops.deconv.has_kernels(0)


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers, for runs without this project's pyproject.toml."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device that this build has kernels for")
    config.addinivalue_line("markers", "slow: takes more than a few seconds")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips the GPU tests without a GPU, and has one of xdist's processes run them all with one (--dist loadgroup)."""
    if not has_gpu():
        mark = pytest.mark.skip(reason="no CUDA device that this build has kernels for")
    elif config.pluginmanager.hasplugin("xdist"):
        mark = pytest.mark.xdist_group("gpu")
    else:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(mark)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """The device of a test: the CPU always, CUDA where there is one."""
    return request.param


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random numbers in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def strict_float32() -> Iterator[None]:
    """No TF32 anywhere: float32 is compared as float32."""
    saved = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = saved

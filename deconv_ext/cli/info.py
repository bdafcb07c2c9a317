"""``python -m deconv_ext info``: versions, the device, and what serves which layer."""

from __future__ import annotations

import argparse
import platform

import torch

import deconv_ext
from deconv_ext._ops import has_kernels
from deconv_ext.cli import explain
from deconv_ext.cli.console import Column, print_table
from deconv_ext.cli.operands import DIRECTIONS, DTYPES
from deconv_ext.workloads import CASES, select

# One layer of each kind: stride 1, stride 2, grouped, depthwise.
_LAYERS = ("kb1_57", "kb2_91", "kb1_75", "dw_k4s2_512")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no arguments."""


def main(args: argparse.Namespace) -> int:
    """Prints the environment, the extension's configuration and the plans of some layers; 0."""
    print_table("environment", [Column("what", text=True), Column("which", text=True)], environment())
    print(deconv_ext.show_config().rstrip() + "\n")
    columns = [Column(title, text=True) for title in ("layer", "direction", "dtypes", "served by")]
    served = torch.cuda.is_available() and has_kernels(0)
    title = "what serves what" if served else "what would serve on an H200; here every call goes to ATen"
    print_table(f"{title} (float32 strict, contiguous)", columns, services())
    return 0


def environment() -> list[tuple[str, str]]:
    """Names and values: versions of the software, and the device."""
    rows = [
        ("deconv_ext", deconv_ext.__version__),
        ("Python", f"{platform.python_version()} on {platform.platform()}"),
        ("torch", torch.__version__),
    ]
    if not torch.cuda.is_available():
        return [*rows, ("device", "no CUDA device")]
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return [
        *rows,
        ("CUDA of torch", str(torch.version.cuda)),
        ("cuDNN of torch", str(torch.backends.cudnn.version())),
        ("device", f"{properties.name}, compute capability {properties.major}.{properties.minor}"),
        ("", f"{properties.multi_processor_count} multiprocessors, {properties.total_memory / 2**30:.0f} GiB, "
             f"L2 {properties.L2_cache_size / 2**20:.0f} MiB"),
    ]  # fmt: skip


def services() -> list[tuple[str, str, str, str]]:
    """Layer, direction, dtypes and their common plan on GPU 0 (on an H200 without one), for layers of each kind."""
    rows = []
    for layer in select(CASES, _LAYERS):
        for direction in DIRECTIONS:
            dtypes_of: dict[str, list[str]] = {}
            for dtype in DTYPES:
                plan = explain.plan_line(explain.run(layer, direction, dtype))
                dtypes_of.setdefault(plan, []).append(dtype)
            rows += [(layer["name"], direction, " ".join(dtypes), plan) for plan, dtypes in dtypes_of.items()]
    return rows

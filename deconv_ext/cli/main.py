"""The dispatcher of ``deconv-ext`` and ``python -m deconv_ext``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import deconv_ext
from deconv_ext.cli import bench, check, demo, explain, info, profile

_COMMANDS = {
    "info": (info, "versions, the device, and what serves which layer"),
    "check": (check, "self-test on this machine's device against float64; exit code 0 if all passes"),
    "explain": (explain, "the plan for a layer described by arguments"),
    "bench": (bench, "times against torch's own operator (cuDNN): tables, CSV, charts"),
    "profile": (profile, "a model's transposed convolutions, layer by layer, against torch's operator"),
    "demo": (demo, "upsample and colour a photograph through the operator and through torch"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; ``arguments`` defaults to the process's. Returns the exit code: 2 for unusable arguments."""
    description = "Transposed 2D convolution for PyTorch: what serves it, whether it is right, how fast it is."
    script = Path(sys.argv[0]).name
    program = script if script.startswith("deconv-ext") else "python -m deconv_ext"
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--version", action="version", version=f"deconv_ext {deconv_ext.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (module, summary) in _COMMANDS.items():
        subparser = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.main)
    args = parser.parse_args(arguments)
    try:
        code: int = args.run(args)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"{parser.prog} {args.command}: error: {error}", file=sys.stderr)
        code = 2
    return code

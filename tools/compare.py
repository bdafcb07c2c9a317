"""Times builds of the shared object side by side: a change to a kernel or a plan, against the build before it.

    python tools/compare.py OLD.so NEW.so --case kb1_75 --dtype bf16 --dtype tf32 --direction forward
    DECONV_FAMILY=narrow python tools/compare.py OLD.so NEW.so --suite zoo --layout channels_last

Each library has a process of its own, with this folder's Python package around it. They are timed in turn, some rounds
over, and the least of a library's medians counts: numbers of different runs, and of different machines, are not
comparable. A result that float64 does not confirm is marked, and ends the program with 1.
"""

import argparse
import contextlib
import functools
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SUITES = ("kernelbench", "zoo", "all", "sweep")
MODES = ("fp64", "fp32", "tf32", "fp16", "bf16")
LAYOUTS = ("nchw", "channels_last")
DIRECTIONS = ("forward", "grad_input", "grad_weight")


# --- the process of one library -------------------------------------------------------------------------------------


def serve() -> None:
    """Answers each setting on stdin, a line of JSON, by a line with its time in milliseconds and its error."""
    import torch

    from deconv_ext.cli import measure, operands
    from deconv_ext.workloads import SUITES as CASES_OF
    from deconv_ext.workloads import scale_down

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = {case["name"]: case for suite in CASES_OF.values() for case in suite}
    present: dict[str, Any] = {}
    sets: list[operands.Operands] = []
    error = 0.0
    for line in sys.stdin:
        setting = json.loads(line)
        direction = setting["direction"]
        case = scale_down(cases[setting["case"]], setting["scale"])
        with operands.torch_in(setting["mode"]):
            if setting != present:
                present, sets = setting, []
                gc.collect()
                torch.cuda.empty_cache()
                torch.manual_seed(0)

                def make(case: Any = case, setting: Any = setting) -> operands.Operands:
                    one = operands.make_operands(case, operands.dtype_of(setting["mode"]), device)
                    return one.laid_out(setting["layout"], device)

                first = make()
                read_bytes = sum(tensor.numel() * tensor.element_size() for tensor in first.read(direction))
                sets = [first, *(make() for _ in range(measure.input_sets(read_bytes, device) - 1))]
                (error,) = operands.sampled_errors(direction, first, operands.call_ours(direction, first))
            calls = [functools.partial(operands.call_ours, direction, one) for one in sets]
            ms = measure.time_interleaved({"ours": calls}, device)["ours"].median
        print(json.dumps({"ms": ms, "wrong": not error <= operands.BOUNDS[setting["mode"]]}), flush=True)


# --- the program ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def worker_of(library: Path) -> Iterator[subprocess.Popen[str]]:
    """The process of a library."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "deconv_ext"
        shutil.copytree(ROOT / "deconv_ext", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        shutil.copy(library, package / "_C.abi3.so")
        command = [sys.executable, "-W", "ignore", __file__, "--serve"]
        environment = {**os.environ, "PYTHONPATH": folder}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as worker:
            yield worker
            assert worker.stdin is not None
            worker.stdin.close()


def ask(worker: subprocess.Popen[str], setting: dict[str, Any]) -> dict[str, Any]:
    """The answer of a library to a setting; it failed, if there is none."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(setting) + "\n")
        worker.stdin.flush()
        if answer := worker.stdout.readline():
            return json.loads(answer)
    raise SystemExit(f"compare: a library failed on {setting['case']} ({setting['mode']}, {setting['layout']})")


def settings_of(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    sys.path.insert(0, str(ROOT / "deconv_ext"))
    import workloads  # without the package, which would want a library

    names = [case["name"] for case in workloads.select(workloads.SUITES[arguments.suite], arguments.case)]
    for mode in arguments.dtype:
        for direction in arguments.direction or ["forward"]:
            for layout in arguments.layout or ["nchw"]:
                for name in names:
                    yield {
                        "case": name, "mode": mode, "layout": layout, "direction": direction, "scale": arguments.scale
                    }  # fmt: skip


def compare(arguments: argparse.Namespace) -> int:
    names = [library.stem for library in arguments.library]
    width = max(12, *map(len, names))
    print(f"{'':54s}" + "".join(f"{name:>{width}s}" for name in names) + "   times as fast as the first, ms")
    ratios: list[list[float]] = []
    any_wrong = False
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(worker_of(library)) for library in arguments.library]
        for setting in settings_of(arguments):
            rounds = [[ask(worker, setting) for worker in workers] for _ in range(arguments.rounds)]
            best = [min(answer["ms"] for answer in answers) for answers in zip(*rounds, strict=True)]
            wrong = [name for name, answer in zip(names, rounds[0], strict=True) if answer["wrong"]]
            any_wrong |= bool(wrong)
            ratios.append([best[0] / ms for ms in best[1:]])
            print(
                f"{setting['case']:22s}{setting['mode']:6s}{setting['layout']:14s}{setting['direction']:12s}"
                + "".join(f"{ms:{width}.4f}" for ms in best)
                + "".join(f"{ratio:7.2f}" for ratio in ratios[-1])
                + (f"   wrong: {', '.join(wrong)}" if wrong else ""),
                flush=True,
            )
    means = [math.exp(sum(map(math.log, column)) / len(column)) for column in zip(*ratios, strict=True)]
    print(f"{'geometric mean':54s}{'':{width * len(names)}s}" + "".join(f"{mean:7.2f}" for mean in means))
    return 1 if any_wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="+", type=Path, metavar="LIBRARY", help="the first is what others are held to")
    parser.add_argument("--suite", choices=SUITES, default="all")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only this one (repeatable)")
    parser.add_argument("--dtype", action="append", choices=MODES, help="repeatable; default: tf32 and bf16")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="repeatable; default: nchw")
    parser.add_argument("--direction", action="append", choices=DIRECTIONS, help="repeatable; default: forward")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--scale", type=int, default=1, metavar="N", help="divide batch, channels and size by N")
    arguments = parser.parse_args()
    arguments.dtype = arguments.dtype or ["tf32", "bf16"]
    for library in arguments.library:
        if not library.is_file():
            parser.error(f"LIBRARY is {library}; there is no such file")
    if arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}; it must be at least 1")
    return arguments


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        sys.exit(compare(parse()))

"""Times builds of the shared object side by side: a change to a kernel or a plan, against the build before it.

    python tools/compare.py OLD.so NEW.so --case kb1_75 --dtype bf16 --dtype tf32 --direction forward
    DECONV_KERNELS=small_channel python tools/compare.py OLD.so NEW.so --case sam_up2 --layout channels_last

Each library has a process of its own, with this folder's Python package around it. They are timed in turn, some rounds
over, every second one from the last to the first, for a GPU is quicker after a rest; the least of a library's medians
counts: numbers of different runs, and of different machines, are not comparable. A row names the family that serves the
last library's call. A result that float64 does not confirm is marked, and ends the program with 1.
"""

import argparse
import contextlib
import functools
import gc
import json
import math
import os
import re
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
READY = "ready"


# --- the process of one library -------------------------------------------------------------------------------------


class Bench:
    """One setting's calls."""

    def __init__(self, setting: dict[str, Any]) -> None:
        import torch

        from deconv_ext.cli import measure, operands
        from deconv_ext.workloads import SUITES as CASES_OF
        from deconv_ext.workloads import scale_down

        cases = {case["name"]: case for suite in CASES_OF.values() for case in suite}
        case, direction, mode = (
            scale_down(cases[setting["case"]], setting["scale"]),
            setting["direction"],
            setting["mode"],
        )
        self.setting = setting
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(0)

        def make() -> operands.Operands:
            one = operands.make_operands(case, operands.dtype_of(mode), self.device)
            return one.laid_out(setting["layout"], self.device)

        first = make()
        read_bytes = sum(tensor.numel() * tensor.element_size() for tensor in first.read(direction))
        sets = [first, *(make() for _ in range(measure.input_sets(read_bytes, self.device) - 1))]
        self.calls = [functools.partial(operands.call_ours, direction, one) for one in sets]
        (error,) = operands.sampled_errors(direction, first, self.calls[0]())
        self.wrong = not error <= operands.BOUNDS[mode]
        family = re.search(r"plan: (\w+)", operands.call_explain(direction, first))
        self.family = family.group(1) if family else "ATen"

    def answer(self) -> dict[str, Any]:
        from deconv_ext.cli import measure

        ms = measure.time_interleaved({"ours": self.calls}, self.device)["ours"].median
        return {"ms": ms, "wrong": self.wrong, "family": self.family}


def serve() -> None:
    """Answers each setting on stdin, a line of JSON, by a line with its time in milliseconds."""
    import torch

    from deconv_ext.cli import operands

    print(READY, flush=True)
    bench: Bench | None = None
    for line in sys.stdin:
        setting = json.loads(line)
        with operands.torch_in(setting["mode"]):
            if bench is None or bench.setting != setting:
                bench = None
                gc.collect()
                torch.cuda.empty_cache()
                bench = Bench(setting)
            print(json.dumps(bench.answer()), flush=True)


# --- the program ----------------------------------------------------------------------------------------------------


class Worker:
    """The process of a library."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = library
        package = folder / "deconv_ext"
        shutil.copytree(ROOT / "deconv_ext", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        shutil.copy(library, package / "_C.abi3.so")
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-W", "ignore", __file__, "--serve"]
        environment = {**os.environ, "PYTHONPATH": path}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def read(self, asked: str) -> str:
        assert self.process.stdout is not None
        if answer := self.process.stdout.readline():
            return answer
        raise SystemExit(f"compare: {self.library} failed {asked}")

    def ask(self, setting: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(setting) + "\n")
            self.process.stdin.flush()
        names = (str(setting[key]) for key in ("case", "mode", "layout", "direction"))
        return json.loads(self.read("on " + " ".join(names)))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def workers_of(libraries: list[Path]) -> Iterator[list[Worker]]:
    """The processes of the libraries, once all are ready."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        workers = []
        for i, library in enumerate(libraries):
            workers.append(Worker(library, Path(folder) / str(i)))
            stack.callback(workers[-1].end)
        for worker in workers:
            worker.read("to load")
        yield workers


def ask_all(workers: list[Worker], setting: dict[str, Any], from_the_last: bool) -> list[dict[str, Any]]:
    """The answers in the order of the libraries."""
    if from_the_last:
        return ask_all(workers[::-1], setting, False)[::-1]
    return [worker.ask(setting) for worker in workers]


def compare(arguments: argparse.Namespace) -> int:
    names = [library.stem for library in arguments.library]
    if len(set(names)) < len(names):
        names = [f"{i}: {name}" for i, name in enumerate(names, 1)]
    width = max(12, *(len(name) + 2 for name in names))
    print(f"{'':58s}" + "".join(f"{name:>{width}s}" for name in names) + "   ms; times as fast as the first")
    ratios: list[list[float]] = []
    any_wrong = False
    with workers_of(arguments.library) as workers:
        for setting in arguments.settings:
            rounds = [ask_all(workers, setting, i % 2 == 1) for i in range(arguments.rounds)]
            best = [min(answer["ms"] for answer in answers) for answers in zip(*rounds, strict=True)]
            wrong = [name for name, answer in zip(names, rounds[0], strict=True) if answer["wrong"]]
            any_wrong |= bool(wrong)
            ratios.append([best[0] / ms for ms in best[1:]])
            print(
                f"{setting['case']:26s}{setting['mode']:6s}{setting['layout']:14s}{setting['direction']:12s}"
                + "".join(f"{ms:{width}.4f}" for ms in best)
                + "".join(f"{ratio:7.2f}" for ratio in ratios[-1])
                + f"   {rounds[0][-1]['family']}"
                + (f"   wrong: {', '.join(wrong)}" if wrong else ""),
                flush=True,
            )
    means = [math.exp(sum(map(math.log, column)) / len(column)) for column in zip(*ratios, strict=True)]
    print(f"{'geometric mean':58s}{'':{width * len(names)}s}" + "".join(f"{mean:7.2f}" for mean in means))
    return 1 if any_wrong else 0


def settings_of(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    sys.path.insert(0, str(ROOT / "deconv_ext"))
    import workloads  # without the package, which would want a library

    return [
        {"case": case["name"], "mode": mode, "layout": layout, "direction": direction, "scale": arguments.scale}
        for mode in arguments.dtype or ["tf32", "bf16"]
        for direction in arguments.direction or ["forward"]
        for layout in arguments.layout or ["nchw"]
        for case in workloads.select(workloads.SUITES[arguments.suite], arguments.case)
    ]


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
    for library in arguments.library:
        if not library.is_file():
            parser.error(f"LIBRARY is {library}; there is no such file")
    for name in ("rounds", "scale"):
        if (value := getattr(arguments, name)) < 1:
            parser.error(f"--{name} is {value}; it must be at least 1")
    try:
        arguments.settings = settings_of(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        sys.exit(compare(parse()))

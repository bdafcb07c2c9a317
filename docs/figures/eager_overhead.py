"""What one eager call costs on the host: the operator against torch's, on a 1x1 tensor, in one process.

python docs/figures/eager_overhead.py [--device cuda] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import deconv_ext


def microseconds(call: Callable[[], object], device: torch.device, calls: int = 1000, repeats: int = 9) -> list[float]:
    """Time of one call in µs, `repeats` times over `calls` calls; the device finishes inside the measured time."""
    for _ in range(calls // 4):
        call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return times


def measure(device: torch.device) -> dict[str, dict[str, float]]:
    """Medians in µs: mode to {"torch", "deconv_ext"}, each mode's two measured in turn."""
    x, w, grad = (torch.randn(1, 1, 1, 1, device=device) for _ in range(3))
    trained = [t.clone().requires_grad_() for t in (x, w)]
    operators = {"torch": torch.nn.functional.conv_transpose2d, "deconv_ext": deconv_ext.conv_transpose2d}

    def step(operator: Callable[..., torch.Tensor]) -> None:
        for parameter in trained:
            parameter.grad = None
        operator(*trained).backward(grad)

    rows: dict[str, dict[str, float]] = {}
    for mode, context, call in (
        ("inference_mode", torch.inference_mode(), lambda operator: operator(x, w)),
        ("no_grad", torch.no_grad(), lambda operator: operator(x, w)),
        ("autocast", torch.autocast(device.type, torch.bfloat16), lambda operator: operator(x, w)),
        ("forward + backward", torch.enable_grad(), step),
    ):
        times: dict[str, list[float]] = {name: [] for name in operators}
        with context:
            for _ in range(3):
                for name, operator in operators.items():
                    times[name] += microseconds(lambda: call(operator), device)  # noqa: B023
        rows[mode] = {name: round(statistics.median(measured), 2) for name, measured in times.items()}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    rows = measure(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}; µs a call, median")
    for mode, row in rows.items():
        ours, theirs = row["deconv_ext"], row["torch"]
        print(f"{mode:20} torch {theirs:7.2f}   deconv_ext {ours:7.2f}   {ours - theirs:+.2f}   {ours / theirs:.2f}x")
    if args.json:
        args.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "us": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

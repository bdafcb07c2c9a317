"""Trains a small DCGAN on scikit-learn's digits, with torch's transposed convolution and with deconv_ext's.

    python docs/figures/train_dcgan.py --device cuda --json docs/figures/dcgan.json --plot docs/figures/dcgan.png
    python docs/figures/train_dcgan.py --from-json docs/figures/dcgan.json --plot docs/figures/dcgan.png

Seven runs in one process, at equal precision (strict float32) and with the same order of the images. A run's seed
decides the initial weights and the noise that the generator gets. The question is whether deconv_ext's losses differ
from torch's by more than torch's own runs differ from one another: for each loss, its mean over the last 100 steps is
taken; the runs of deconv_ext and torch with seed 0 may differ by at most what torch's five runs span, from the least
mean to the greatest.
"""

import argparse
import base64
import copy
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deconv_ext

RUNS = (  # name, seed, whether deconv_ext computes the generator's transposed convolutions
    ("torch, seed 0", 0, False),
    ("torch, seed 0 again", 0, False),
    ("torch, seed 1", 1, False),
    ("torch, seed 2", 2, False),
    ("torch, seed 3", 3, False),
    ("deconv_ext, seed 0", 0, True),
    ("deconv_ext, seed 0 again", 0, True),
)
ALL_TORCH = tuple(name for name, _, ours in RUNS if not ours)
TORCH, TORCH_AGAIN = ALL_TORCH[:2]
OURS, OURS_AGAIN = (name for name, _, ours in RUNS if ours)
LOSSES = ("generator", "discriminator")
BATCH, SIZE, NOISE, WIDTH = 64, 32, 64, 32
LAST = 100  # steps that the comparison takes
SAMPLES = 16  # generated digits that the figure shows


def load_images() -> Tensor:
    """(1797, 1, SIZE, SIZE), in [-1, 1]: the 8x8 digits, enlarged."""
    from sklearn.datasets import load_digits

    digits = torch.from_numpy(load_digits().images).float()[:, None] / 8 - 1
    return nn.functional.interpolate(digits, size=(SIZE, SIZE), mode="bilinear", align_corners=False)


def make_generator() -> nn.Sequential:
    """(batch, NOISE, 1, 1) to (batch, 1, SIZE, SIZE)."""

    def up(inputs: int, outputs: int, stride: int, padding: int) -> list[nn.Module]:
        layer = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *up(NOISE, 4 * WIDTH, 1, 0),
        *up(4 * WIDTH, 2 * WIDTH, 2, 1),
        *up(2 * WIDTH, WIDTH, 2, 1),
        nn.ConvTranspose2d(WIDTH, 1, 4, 2, 1),
        nn.Tanh(),
    )


def make_discriminator() -> nn.Sequential:
    """(batch, 1, SIZE, SIZE) to (batch,)."""

    def down(inputs: int, outputs: int) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True)]

    return nn.Sequential(
        nn.Conv2d(1, WIDTH, 4, 2, 1),
        nn.LeakyReLU(0.2, inplace=True),
        *down(WIDTH, 2 * WIDTH),
        *down(2 * WIDTH, 4 * WIDTH),
        nn.Conv2d(4 * WIDTH, 1, 4),
        nn.Flatten(0),
    )


def initialise(module: nn.Module) -> None:
    """The weights of the DCGAN paper."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)


def make_models(seed: int, ours: bool, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """Generator and discriminator; the weights depend on the seed alone."""
    torch.manual_seed(seed)
    generator, discriminator = make_generator().apply(initialise), make_discriminator().apply(initialise)
    if ours:
        generator = deconv_ext.convert(copy.deepcopy(generator))
    return generator.to(device), discriminator.to(device)


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))


def train(models: tuple[nn.Module, nn.Module], images: Tensor, seed: int, steps: int) -> Tensor:
    """(steps, 2): the losses of generator and discriminator."""
    generator, discriminator = models
    optimise_generator, optimise_discriminator = adam(generator), adam(discriminator)
    order = torch.Generator().manual_seed(1234)  # the same images in every run
    noise = torch.Generator().manual_seed(seed)  # on the host: the same numbers on every device
    real, fake = (torch.full((BATCH,), label, device=images.device) for label in (1.0, 0.0))
    loss_of = nn.BCEWithLogitsLoss()
    losses = []
    for _ in range(steps):
        batch = images[torch.randint(len(images), (BATCH,), generator=order).to(images.device)]
        made = generator(torch.randn(BATCH, NOISE, 1, 1, generator=noise).to(images.device))

        optimise_discriminator.zero_grad(set_to_none=True)
        loss_d = loss_of(discriminator(batch), real) + loss_of(discriminator(made.detach()), fake)
        loss_d.backward()
        optimise_discriminator.step()

        optimise_generator.zero_grad(set_to_none=True)
        loss_g = loss_of(discriminator(made), real)
        loss_g.backward()
        optimise_generator.step()
        losses.append(torch.stack([loss_g.detach(), loss_d.detach()]))
    return torch.stack(losses).cpu()


def sample(generator: nn.Module, device: torch.device) -> str:
    """SAMPLES digits side by side, (SIZE, SAMPLES * SIZE) bytes in base64."""
    noise = torch.randn(SAMPLES, NOISE, 1, 1, generator=torch.Generator().manual_seed(99))
    with torch.inference_mode():
        digits = generator(noise.to(device)).cpu()
    strip = digits[:, 0].transpose(0, 1).reshape(SIZE, SAMPLES * SIZE)
    return base64.b64encode(((strip + 1) * 127.5).round().byte().numpy().tobytes()).decode()


def operator_repeats(generator: nn.Module, device: torch.device) -> bool:
    """Whether every transposed convolution gives the same bits twice: its result and both gradients."""

    def once(layer: nn.Module, x: Tensor) -> list[Tensor]:
        x = x.detach().clone().requires_grad_()
        y = layer(x)
        parameters = list(layer.parameters())
        return [y, *torch.autograd.grad(y, [x, *parameters], y.detach().cos())]

    noise = torch.Generator().manual_seed(7)
    x = torch.randn(BATCH, NOISE, 1, 1, generator=noise).to(device)
    equal = True
    for layer in generator.children():
        if isinstance(layer, deconv_ext.ConvTranspose2d):
            equal &= all(torch.equal(a, b) for a, b in zip(once(layer, x), once(layer, x), strict=True))
        x = layer(x).detach()
    return equal


def describe(device: torch.device) -> dict[str, str]:
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"CPU, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "cudnn": str(torch.backends.cudnn.version()) if cuda else "",
        "deconv_ext": deconv_ext.__version__,
        "python": platform.python_version(),
    }


def run_all(device: torch.device, steps: int) -> dict[str, Any]:
    """The report: everything that the table and the figure show."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    images = load_images().to(device)
    begin = time.perf_counter()
    for ours in (False, True):  # loads what the libraries load at first use
        train(make_models(0, ours, device), images, 0, 3)
    runs, repeats = {}, False
    for name, seed, ours in RUNS:
        models = make_models(seed, ours, device)
        start = time.perf_counter()
        losses = train(models, images, seed, steps)
        seconds = time.perf_counter() - start
        columns = {loss: losses[:, i].tolist() for i, loss in enumerate(LOSSES)}
        runs[name] = {"seed": seed, "seconds": round(seconds, 3), **columns}
        if name in (TORCH, OURS):
            runs[name]["samples"] = sample(models[0], device)
        if ours:
            repeats = operator_repeats(models[0], device)
    return {
        **describe(device),
        "steps": steps,
        "seconds": round(time.perf_counter() - begin, 1),
        "operator_repeats": repeats,
        "runs": runs,
    }


def last_mean(report: dict[str, Any], name: str, loss: str) -> float:
    return statistics.fmean(report["runs"][name][loss][-LAST:])


def compare_bits(report: dict[str, Any], name: str, again: str) -> str:
    """In words, from the losses of a run and its repetition."""
    runs = ([*zip(*(report["runs"][run][loss] for loss in LOSSES), strict=True)] for run in (name, again))
    differs = [step for step, (a, b) in enumerate(zip(*runs, strict=True)) if a != b]
    return f"their losses differ from step {differs[0]} on" if differs else "the same losses, bit for bit"


def print_table(report: dict[str, Any]) -> bool:
    """Returns whether deconv_ext is within torch's noise in both losses."""
    last = min(LAST, report["steps"])
    print(f"{report['device']}, torch {report['torch']}, {report['steps']} steps; mean ± deviation of the last {last}")
    print(f"{'run':26}{'generator':>18}{'discriminator':>18}{'seconds':>10}")
    for name, run in report["runs"].items():
        cells = [f"{statistics.fmean(run[x][-LAST:]):.3f} ± {statistics.pstdev(run[x][-LAST:]):.3f}" for x in LOSSES]
        print(f"{name:26}{cells[0]:>18}{cells[1]:>18}{run['seconds']:>10.2f}")
    print(f"torch, seed 0 and again: {compare_bits(report, TORCH, TORCH_AGAIN)}")
    print(f"deconv_ext, seed 0 and again: {compare_bits(report, OURS, OURS_AGAIN)} (other layers take part)")
    print(f"deconv_ext's operator alone, results and gradients twice: equal bits: {report['operator_repeats']}")
    within = True
    for loss in LOSSES:
        means = [last_mean(report, name, loss) for name in ALL_TORCH]
        difference, spread = abs(last_mean(report, OURS, loss) - means[0]), max(means) - min(means)
        within &= difference <= spread
        word = "within" if difference <= spread else "OUTSIDE"
        print(f"{loss}: deconv_ext is {difference:.4f} from torch; torch's five runs span {spread:.4f}: {word}")
    return within


def smooth(values: list[float], window: int = 7) -> list[float]:
    """The mean of each value and those around it."""
    half = window // 2
    return [statistics.fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def plot(report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = {
        TORCH: ("#5b5b5b", "-"),
        TORCH_AGAIN: ("#5b5b5b", ":"),
        OURS: ("#c2410c", "-"),
        OURS_AGAIN: ("#c2410c", ":"),
    }
    figure = plt.figure(figsize=(10, 5.6), layout="constrained")
    grid = figure.add_gridspec(3, 2, height_ratios=(4, 0.8, 0.8))
    for column, loss in enumerate(LOSSES):
        axes = figure.add_subplot(grid[0, column])
        for name, run in report["runs"].items():
            color, line = styles.get(name, ("#c4c4c4", "-"))
            axes.plot(smooth(run[loss]), color=color, linestyle=line, linewidth=1.2, label=name)
        axes.set(title=f"{loss} loss", xlabel="step", ylim=(0, None), xlim=(0, report["steps"]))
        axes.spines[["top", "right"]].set_visible(False)
        if column == 0:
            axes.legend(frameon=False, fontsize=8)
    for row, name in enumerate((TORCH, OURS), start=1):
        axes = figure.add_subplot(grid[row, :])
        strip = torch.frombuffer(bytearray(base64.b64decode(report["runs"][name]["samples"])), dtype=torch.uint8)
        axes.imshow(strip.reshape(SIZE, -1).numpy(), cmap="gray", vmin=0, vmax=255)
        axes.set_title(f"generated after {report['steps']} steps: {name}", fontsize=9)
        axes.axis("off")
    figure.suptitle(f"DCGAN on 32x32 digits, float32, {report['device']}, torch {report['torch']}", fontsize=11)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path, help="where to write the report")
    parser.add_argument("--plot", type=Path, help="where to draw the figure")
    parser.add_argument("--from-json", type=Path, help="a report to show again, instead of training")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps must be at least 1, not {args.steps}")

    if args.from_json:
        report = json.loads(args.from_json.read_text())
    else:
        report = run_all(torch.device(args.device), args.steps)
    if args.json:
        args.json.write_text(json.dumps(report) + "\n")
    print("within torch's own noise" if print_table(report) else "NOT within torch's own noise")
    if args.plot:
        plot(report, args.plot)


if __name__ == "__main__":
    main()

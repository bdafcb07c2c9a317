"""``bench --training``: whole training steps of three models, with torch's transposed convolutions and with ours.

A step is forward, backward and Adam. Both runs live in one process and differ in ``deconv_ext.convert`` alone: the same
seed gives the same weights and the same batch of random data. The models have no dropout, so that their losses compare.

A step's time holds what the host leaves idle: it is what a user waits for, and it hides part of the difference where
the host is the slower of the two. The share of a step that is transposed convolution comes from timing each layer's
forward and gradients alone, at the shapes that a step met, on inputs that rotate past the L2 cache, and dividing their
sum by the step's time. That needs no profiler and no names of kernels; it leaves out the bias's gradient and autocast's
casts, and takes the layout that was asked for also where ``torch.compile`` chose another.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deconv_ext
from deconv_ext.cli.console import Column, print_table, progress
from deconv_ext.cli.measure import cudnn_search, time_interleaved, time_operators
from deconv_ext.cli.operands import DIRECTIONS, Operands, device_of, dtype_of, make_operands, relative_error, torch_in
from deconv_ext.cli.reports import (
    TRAINING,
    OnRow,
    Report,
    Row,
    mean_speedups,
    merge,
    new_report,
    reason_of,
    style_of,
    title_of,
)
from deconv_ext.workloads import Case
from deconv_ext.workloads import case as make_case

MODES = ("fp32", "tf32", "bf16")
EXECUTIONS = ("eager", "compile")

# Highest relative error, by mode, of the losses after the first updates and of the first step's gradients; or three
# times torch's own, where that is more.
_BOUNDS = {"fp32": 1e-2, "tf32": 3e-2, "bf16": 1e-1}
_OVER_TORCH = 3
_UPDATES = 3
_ROUNDS = 16  # of at least 5 steps of either side: what the host takes drifts
_LONGEST_NOTE = 200  # characters
_STEP = "step, "  # before the execution, as a row's direction

_MEMORY_FORMATS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}


class Variant(NamedTuple):
    """How a model trains: "fp32" (strict), "tf32" or "bf16" (autocast); the layout; "eager" or "compile"."""

    mode: str
    layout: str
    execution: str


class Trainer:
    """Networks in training on one batch, with an Adam optimiser each; the seed decides the weights and the batch."""

    def __init__(self, model: Model, variant: Variant, device: torch.device, scale: int, *, ours: bool) -> None:
        torch.manual_seed(0)
        networks, batch = model.make(scale)
        # By keywords: torch's annotation of a module's `to` does not know the memory format.
        place: dict[str, Any] = {"device": device, "memory_format": _MEMORY_FORMATS[variant.layout]}
        networks = [(deconv_ext.convert(network) if ours else network).to(**place) for network in networks]
        self.batch = [tensor.to(**place) for tensor in batch]
        self.layers = [
            layer for network in networks for layer in network.modules() if isinstance(layer, nn.ConvTranspose2d)
        ]
        self.optimisers = [torch.optim.Adam(network.parameters(), lr=2e-4, betas=(0.5, 0.999)) for network in networks]
        # Not `network.compile()`: of a bare nn.Sequential that compiles nothing, and of ours each layer by itself.
        self.networks = [torch.compile(network) for network in networks] if variant.execution == "compile" else networks
        self._autocast_device = device.type
        self._in_bfloat16 = variant.mode == "bf16"
        self._step = model.step

    def step(self) -> Tensor:
        """Trains every network once; returns the losses before that, on the device."""
        return self._step(self)

    def autocast(self) -> torch.autocast:
        """bfloat16 where the variant asks for it."""
        return torch.autocast(self._autocast_device, torch.bfloat16, enabled=self._in_bfloat16)

    def descend(self, index: int, loss: Tensor) -> None:
        """One update of the network ``index``."""
        self.optimisers[index].zero_grad(set_to_none=True)
        loss.backward()
        self.optimisers[index].step()


class Model(NamedTuple):
    """A model in training.

    ``make`` returns its networks and a batch, on the CPU from torch's default generator, batch and channels divided by
    its argument. ``step`` is one step of a trainer and returns the losses.
    """

    make: Callable[[int], tuple[list[nn.Module], list[Tensor]]]
    step: Callable[[Trainer], Tensor]


class StepStart(NamedTuple):
    """How a training starts: the losses before and after the first updates, and the first gradients of the layers."""

    first_losses: Tensor
    losses: Tensor
    gradients: list[Tensor]


def _divided(value: int, scale: int) -> int:
    return max(2, value // scale)  # BatchNorm needs two images


def _make_dcgan(scale: int) -> tuple[list[nn.Module], list[Tensor]]:
    noise, *widths = (_divided(width, scale) for width in (100, 512, 256, 128, 64))

    def up(inputs: int, outputs: int, stride: int, padding: int) -> list[nn.Module]:
        layer = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]

    def down(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2)]

    growing = [module for pair in itertools.pairwise(widths) for module in up(*pair, 2, 1)]
    shrinking = [module for pair in itertools.pairwise(widths[::-1]) for module in down(*pair)]
    generator = nn.Sequential(
        *up(noise, widths[0], 1, 0), *growing, nn.ConvTranspose2d(widths[-1], 3, 4, 2, 1), nn.Tanh()
    )
    discriminator = nn.Sequential(
        nn.Conv2d(3, widths[-1], 4, 2, 1), nn.LeakyReLU(0.2), *shrinking, nn.Conv2d(widths[0], 1, 4), nn.Flatten(0)
    )
    images = _divided(128, scale)
    return [generator, discriminator], [torch.randn(images, noise, 1, 1), torch.rand(images, 3, 64, 64) * 2 - 1]


def _step_dcgan(trainer: Trainer) -> Tensor:
    generator, discriminator = trainer.networks
    noise, real = trainer.batch
    with trainer.autocast():
        fake = generator(noise)
        loss_d = _label_loss(discriminator(real), 1) + _label_loss(discriminator(fake.detach()), 0)
    trainer.descend(1, loss_d)
    with trainer.autocast():
        loss_g = _label_loss(discriminator(fake), 1)
    trainer.descend(0, loss_g)
    return torch.stack([loss_g.detach(), loss_d.detach()])


def _label_loss(logits: Tensor, label: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))


class _UNetLevel(nn.Module):
    """Halves the image, has the level below work on it, doubles it again, and puts the input beside the result."""

    def __init__(self, outer: int, inner: int, below: nn.Module | None) -> None:
        super().__init__()
        down: list[nn.Module] = [nn.LeakyReLU(0.2), nn.Conv2d(outer, inner, 4, 2, 1, bias=False)]
        if below is not None:  # a single pixel has nothing to normalise
            down += [nn.BatchNorm2d(inner), below]
            inner *= 2
        up = [nn.ReLU(), nn.ConvTranspose2d(inner, outer, 4, 2, 1, bias=False), nn.BatchNorm2d(outer)]
        self.body = nn.Sequential(*down, *up)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def _make_pix2pix(scale: int) -> tuple[list[nn.Module], list[Tensor]]:
    widths = [_divided(width, scale) for width in (64, 128, 256, 512, 512, 512, 512, 512)]
    levels: nn.Module | None = None
    for inner, outer in itertools.pairwise(widths[::-1]):
        levels = _UNetLevel(outer, inner, levels)
    assert levels is not None
    first, last = nn.Conv2d(3, widths[0], 4, 2, 1), nn.ConvTranspose2d(2 * widths[0], 3, 4, 2, 1)
    images = _divided(16, scale)
    batch = [torch.rand(images, 3, 256, 256) * 2 - 1 for _ in range(2)]
    return [nn.Sequential(first, levels, nn.ReLU(), last, nn.Tanh())], batch


def _step_pix2pix(trainer: Trainer) -> Tensor:
    source, target = trainer.batch
    with trainer.autocast():
        loss = F.l1_loss(trainer.networks[0](source), target)
    trainer.descend(0, loss)
    return loss.detach()[None]


def _make_pose(scale: int) -> tuple[list[nn.Module], list[Tensor]]:
    inputs, width, images = (_divided(size, scale) for size in (2048, 256, 64))
    joints = 17
    modules: list[nn.Module] = []
    for before, after in itertools.pairwise([inputs, width, width, width]):
        modules += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    head = nn.Sequential(*modules, nn.Conv2d(width, joints, 1))
    return [head], [torch.randn(images, inputs, 8, 6), torch.rand(images, joints, 64, 48)]


def _step_pose(trainer: Trainer) -> Tensor:
    features, heatmaps = trainer.batch
    with trainer.autocast():
        loss = F.mse_loss(trainer.networks[0](features), heatmaps)
    trainer.descend(0, loss)
    return loss.detach()[None]


MODELS = {
    "dcgan": Model(_make_dcgan, _step_dcgan),  # 64x64 images, batch 128, generator and discriminator
    "pix2pix": Model(_make_pix2pix, _step_pix2pix),  # the U-Net generator, 256x256 images, batch 16
    "pose": Model(_make_pose, _step_pose),  # a head of three transposed layers on ResNet features, batch 64
}


def run(
    models: Sequence[str] = tuple(MODELS),
    *,
    modes: Sequence[str] = ("tf32", "bf16"),
    layouts: Sequence[str] = ("nchw", "channels_last"),
    executions: Sequence[str] = EXECUTIONS,
    scale: int = 1,
    autotune: int = 0,
    device: str | torch.device | None = None,
    earlier: Report | None = None,
    on_row: OnRow | None = None,
) -> Report:
    """Measures training steps with torch's transposed convolutions and with this package's, in turn, in one process.

    Args:
        models: names from MODELS.
        modes: "fp32" (strict), "tf32" (allowed to convolutions and matrix products), "bf16" (autocast).
        layouts: of weights and batches, "nchw", "channels_last".
        executions: "eager", "compile" (each network under ``torch.compile``).
        scale: divides batch and channels, none below 2; images keep their size.
        autotune: how many candidates are timed to choose this package's plans; default 0, chosen by arithmetic.
        device: default: cuda where there is one, else cpu.
        earlier: a report to add to; what it holds is not measured again.
        on_row: called with the report so far after each row.

    Returns:
        A report of rows whose ``direction`` is "step, eager" or "step, compile", ``shape`` that of the batch,
        ``floor_ms`` this package's step without its transposed layers, ``error`` that of the first step's weight
        gradients against torch in strict float32, of the layer where it is largest.

    Raises:
        ValueError: if a model or mode is unknown, ``scale`` is below 1, or ``earlier`` is of another commit, GPU or
            version.
    """
    _require_known("model", models, MODELS)
    _require_known("dtype", modes, MODES)
    if scale < 1:
        raise ValueError(f"scale is {scale}; it must be at least 1")
    where = device_of(device)
    report = new_report(where, autotune, scale)
    report = merge([earlier, report]) if earlier else report
    known = {row.setting for row in report.rows}
    total = math.prod(map(len, (models, modes, layouts, executions)))
    with cudnn_search(), deconv_ext.autotune(autotune), progress("training", total) as advance:
        for name in models:
            bench = _ModelBench(name, where, scale)
            for variant in itertools.starmap(Variant, itertools.product(modes, layouts, executions)):
                row = Row(TRAINING, name, bench.shape, _STEP + variant.execution, variant.mode, variant.layout)
                if row.setting not in known:
                    bench.measure(row, variant)
                    report.add(row, on_row)
                advance(_line(row))
    return report


def print_steps(report: Report, rows: Sequence[Row]) -> None:
    """Prints training steps as a table, with the means of the speedups of each variant."""
    columns = [Column(title, text=True) for title in ("model", "dtype", "layout", "step")]
    columns += [Column(title) for title in ("ours ms", "torch ms", "speedup", "spread", "transposed", "error")]
    columns += [Column("note", text=True)]
    shares = "transposed: the share of our step that is transposed convolution, its layers timed alone"
    caption = "\n".join([shares, *mean_speedups(rows)])
    cells, styles = [*map(_cells, rows)], [*map(style_of, rows)]
    print_table(f"training steps, {title_of(report)}", columns, cells, styles, caption)


class _ModelBench:
    """One model's measurements: what all of its variants share is done once."""

    def __init__(self, name: str, device: torch.device, scale: int) -> None:
        self.name, self.device, self.scale = name, device, scale
        self.model = MODELS[name]
        self._reference: StepStart | None = None
        self._calls: list[tuple[Case, bool]] = []
        self._transposed_ms: dict[tuple[str, str], float] = {}

    @property
    def shape(self) -> str:
        """The shape of the batch's first tensor."""
        return "x".join(map(str, self.model.make(self.scale)[1][0].shape))

    def measure(self, row: Row, variant: Variant) -> None:
        """Adds times, or why there are none, to a row that names what to measure."""
        try:
            self._train_in_float32()
            self._compare(row, variant)
        except RuntimeError as error:
            row.note = reason_of(error)
        finally:
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _train_in_float32(self) -> None:
        """torch's strict float32 start, to which all variants are compared, and the layers' calls in a step."""
        if self._reference is None:
            with torch_in("fp32"):
                trainer = self._trainer(Variant("fp32", "nchw", "eager"), ours=False)
                self._reference = _start(trainer)
                self._calls = _transposed_calls(trainer)

    def _trainer(self, variant: Variant, *, ours: bool) -> Trainer:
        return Trainer(self.model, variant, self.device, self.scale, ours=ours)

    def _compare(self, row: Row, variant: Variant) -> None:
        assert self._reference is not None
        torch.compiler.reset()  # no variant meets the guards and the recompilation limit of another
        trainers: dict[str, Trainer] = {}
        errors: dict[str, tuple[float, float]] = {}
        with torch_in(variant.mode):
            for side in ("torch", "ours"):
                try:
                    trainers[side] = self._trainer(variant, ours=side == "ours")
                    errors[side] = _errors(_start(trainers[side]), self._reference)
                except Exception as error:  # the compiler raises many kinds
                    if variant.execution == "compile" and not isinstance(error, torch.OutOfMemoryError):
                        row.note = _compile_note(side, error)
                        return
                    raise
            timings = time_interleaved(
                {side: [trainer.step] for side, trainer in trainers.items()}, self.device, graphs=False, rounds=_ROUNDS
            )
            trainers.clear()
            transposed = self._time_transposed(variant)
        row.ours_ms, row.cudnn_ms = timings["ours"].median, timings["torch"].median
        row.floor_ms = max(0.0, row.ours_ms - transposed)
        row.spread = max(timing.spread for timing in timings.values())
        row.error = errors["ours"][1]
        for what, ours, torchs in zip(("losses", "gradients"), errors["ours"], errors["torch"], strict=True):
            bound = max(_BOUNDS[variant.mode], _OVER_TORCH * torchs)
            if not ours <= bound:
                row.note = f"wrong: the error of the {what} is {ours:.1e}, it must be at most {bound:.1e}"

    def _time_transposed(self, variant: Variant) -> float:
        """The time of a step's transposed convolutions alone on this package's kernels, ms."""
        key = variant.mode, variant.layout
        if key not in self._transposed_ms:
            self._transposed_ms[key] = _time_calls(self._calls, *key, self.device)
        return self._transposed_ms[key]


def _start(trainer: Trainer) -> StepStart:
    first = trainer.step()
    gradients = [_gradient(layer).to("cpu", torch.float32, copy=True) for layer in trainer.layers]
    for _ in range(_UPDATES):
        losses = trainer.step()
    return StepStart(first.float().cpu(), losses.float().cpu(), gradients)


def _gradient(layer: nn.ConvTranspose2d) -> Tensor:
    assert layer.weight.grad is not None
    return layer.weight.grad


def _errors(start: StepStart, reference: StepStart) -> tuple[float, float]:
    """Relative errors of the losses after the first updates and of the gradients; the largest of each, NaN if any is.

    Losses are related to the first ones, for a discriminator's soon come close to zero.
    """
    losses = (start.losses - reference.losses).abs() / reference.first_losses.abs()
    gradients = [relative_error(*pair) for pair in zip(start.gradients, reference.gradients, strict=True)]
    return losses.max().item(), torch.tensor(gradients).max().item()


def _transposed_calls(trainer: Trainer) -> list[tuple[Case, bool]]:
    """The transposed convolutions of a step, and of each whether its input needs a gradient."""
    calls: list[tuple[Case, bool]] = []

    def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.ConvTranspose2d)
        (x,) = inputs
        n, ci, h, w = x.shape
        made = make_case(
            f"layer{len(calls) + 1}", n, ci, h, w, layer.out_channels, layer.kernel_size, layer.stride,
            layer.padding, layer.output_padding, layer.dilation, layer.groups,  # type: ignore[arg-type]
        )  # fmt: skip
        calls.append((made, x.requires_grad))

    handles = [layer.register_forward_hook(record) for layer in trainer.layers]
    trainer.step()
    for handle in handles:
        handle.remove()
    return calls


def _time_calls(calls: Sequence[tuple[Case, bool]], mode: str, layout: str, device: torch.device) -> float:
    """The times of layers' forwards and gradients on this package's kernels, ms, added up."""
    total = 0.0
    with torch.inference_mode():
        for (case, needs_grad_input), direction in itertools.product(calls, DIRECTIONS):
            if direction == "grad_input" and not needs_grad_input:
                continue

            def operands(case: Case = case) -> Operands:
                return make_operands(case, dtype_of(mode), device).laid_out(layout, device)

            total += time_operators(direction, operands(), operands, device)["ours"].median
    return total


def _compile_note(side: str, error: Exception) -> str:
    """The note of a row on ``torch.compile``: not measured where torch's own model does not compile, else failed."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_NOTE]
    return f"{'not measured' if side == 'torch' else 'failed'}: torch.compile of the model ({side}): {reason}"


def _require_known(what: str, names: Sequence[str], known: Sequence[str] | dict[str, Model]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{what} {', '.join(unknown)}: unknown to training; it knows {', '.join(known)}")


def _cells(row: Row) -> list[str]:
    names = [row.case, row.dtype, row.layout, row.direction.removeprefix(_STEP)]
    if not row.measured or row.floor_ms is None:
        return [*names, *[""] * 6, row.note]
    return [
        *names, f"{row.ours_ms:.4g}", f"{row.cudnn_ms:.4g}", f"{row.speedup:.2f}x", f"{row.spread:.0%}",
        f"{1 - row.floor_ms / (row.ours_ms or 1):.0%}", f"{row.error:.1e}", row.note,
    ]  # fmt: skip


def _line(row: Row) -> str:
    names = f"{row.case} {row.dtype} {row.layout} {row.direction}"
    if not row.measured:
        return f"{names}: {row.note}"
    return f"{names}: {row.ours_ms:.4g} ms, torch {row.cudnn_ms:.4g} ms, {row.speedup:.2f}x {row.note}"

"""Trains a DCGAN with deconv_ext in its generator, under automatic mixed precision and torch.compile.

    python examples/train_dcgan.py                                                # a GPU
    python examples/train_dcgan.py --width 4 --batch 4 --steps 2 --backend eager  # small, for a CPU

The real images are discs of random place, size and brightness, so nothing is downloaded. Prints the losses.
"""

import argparse

import torch
from torch import Tensor, nn

import deconv_ext

NOISE, SIZE = 100, 64  # channels of the noise; pixels of an image's side


def make_generator(width: int) -> nn.Sequential:
    """(batch, NOISE, 1, 1) to (batch, 1, SIZE, SIZE): five transposed convolutions, each enlarges the image."""

    def up(inputs: int, outputs: int, stride: int, padding: int) -> list[nn.Module]:
        layer = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *up(NOISE, 8 * width, 1, 0),  # 4x4
        *up(8 * width, 4 * width, 2, 1),  # 8x8
        *up(4 * width, 2 * width, 2, 1),  # 16x16
        *up(2 * width, width, 2, 1),  # 32x32
        nn.ConvTranspose2d(width, 1, 4, 2, 1),
        nn.Tanh(),
    )


def make_discriminator(width: int) -> nn.Sequential:
    """(batch, 1, SIZE, SIZE) to (batch,): the logit of an image being real."""

    def down(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.LeakyReLU(0.2)]

    return nn.Sequential(
        *down(1, width),
        *down(width, 2 * width),
        *down(2 * width, 4 * width),
        *down(4 * width, 8 * width),
        nn.Conv2d(8 * width, 1, 4),
        nn.Flatten(0),
    )


def make_images(batch: int, device: str) -> Tensor:
    """(batch, 1, SIZE, SIZE) in [-1, 1]: a disc each."""
    axis = torch.linspace(-1, 1, SIZE, device=device)
    x, y, radius, brightness = torch.rand(4, batch, 1, 1, 1, device=device)
    distance = (axis - x + 0.5).square() + (axis[:, None] - y + 0.5).square()
    return torch.where(distance < (0.2 + 0.4 * radius).square(), brightness, -1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=128, help="images a step")
    parser.add_argument("--width", type=int, default=64, help="channels of the generator's last hidden layer")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    # convert swaps the layers and keeps their parameters, so it may come before the optimiser or after it.
    generator = deconv_ext.convert(make_generator(args.width)).to(args.device)
    discriminator = make_discriminator(args.width).to(args.device)
    optimisers = [
        torch.optim.Adam(network.parameters(), lr=2e-4, betas=(0.5, 0.999)) for network in (generator, discriminator)
    ]
    generate = torch.compile(generator, backend=args.backend)  # one graph: the operator does not break it
    judge = torch.compile(discriminator, backend=args.backend)
    loss_of = nn.functional.binary_cross_entropy_with_logits
    real, fake = torch.ones(args.batch, device=args.device), torch.zeros(args.batch, device=args.device)

    for step in range(1, args.steps + 1):
        images, noise = make_images(args.batch, args.device), torch.randn(args.batch, NOISE, 1, 1, device=args.device)

        # Under autocast the operator runs in bfloat16, as torch's does. bfloat16 needs no GradScaler.
        with torch.autocast(torch.device(args.device).type, torch.bfloat16):
            made = generate(noise)
            loss_d = loss_of(judge(images), real) + loss_of(judge(made.detach()), fake)
        optimisers[1].zero_grad()
        loss_d.backward()  # outside autocast, as torch recommends
        optimisers[1].step()

        with torch.autocast(torch.device(args.device).type, torch.bfloat16):
            loss_g = loss_of(judge(made), real)
        optimisers[0].zero_grad()
        loss_g.backward()
        optimisers[0].step()

        if step % 50 == 0 or step == args.steps:
            print(f"step {step:5}: generator {loss_g.item():.3f}, discriminator {loss_d.item():.3f}")


if __name__ == "__main__":
    main()

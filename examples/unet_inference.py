"""A U-Net in inference: one line puts its upsampling layers on deconv_ext's kernels.

    python examples/unet_inference.py                        # a GPU in bfloat16 and channels_last
    python examples/unet_inference.py --size 64 --width 8    # small, for a CPU

Prints the time of a batch with torch's transposed convolutions and with deconv_ext's, and how far the results differ.
"""

import argparse
import copy
import itertools

import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

import deconv_ext


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions that keep the image's size."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()
    )


class UNet(nn.Module):
    """(batch, 3, size, size) to (batch, classes, size, size); size is a multiple of 16."""

    def __init__(self, width: int, classes: int = 19) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.down = nn.ModuleList([block(3, widths[0])])
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for fine, coarse in itertools.pairwise(widths):
            self.down.append(block(fine, coarse))
            self.up.append(nn.ConvTranspose2d(coarse, fine, 2, stride=2))  # doubles height and width
            self.merge.append(block(2 * fine, fine))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            x = down(x if not skips else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="of the images in pixels, a multiple of 16")
    parser.add_argument("--width", type=int, default=64, help="channels at full size")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True  # cuDNN's best algorithm, for a fair comparison
    # Tensor cores read 16-bit channels_last tensors without rewriting them.
    place = {"device": args.device, "dtype": torch.bfloat16, "memory_format": torch.channels_last}
    theirs = UNet(args.width).eval().to(**place)
    ours = deconv_ext.convert(copy.deepcopy(theirs))  # swaps the nn.ConvTranspose2d inside; same weights
    x = torch.randn(args.batch, 3, args.size, args.size).to(**place)

    with torch.inference_mode():
        expected, result = theirs(x), ours(x)
        difference = (result - expected).norm() / expected.norm()
        for name, model in (("torch", theirs), ("deconv_ext", ours)):
            seconds = Timer("model(x)", globals={"model": model, "x": x}).blocked_autorange(min_run_time=0.5).median
            print(f"{name:10} {1e3 * seconds:8.2f} ms a batch")
    print(f"relative difference of the results: {difference.item():.1e}")


if __name__ == "__main__":
    main()

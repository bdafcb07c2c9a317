"""What deconv_ext would gain in torchvision's Mask R-CNN: its transposed layer, timed with both operators.

    python examples/profile_maskrcnn.py                        # a GPU
    python examples/profile_maskrcnn.py --size 64 --images 1   # small, for a CPU: shapes without times

Needs torchvision; the weights are random and nothing is downloaded. The mask head doubles the image of each detected
object by a transposed convolution. The table shows its share of a training step, which is the most that a faster
operator can save.
"""

import argparse

import torch
from torchvision.models.detection import maskrcnn_resnet50_fpn

import deconv_ext


def make_targets(images: int, size: int, device: str) -> list[dict[str, torch.Tensor]]:
    """Eight objects in each image: box (left, top, right, bottom), class and mask, as torchvision takes them."""
    corners = torch.rand(images, 8, 2) * size / 2
    boxes = torch.cat([corners, corners + size / 4 + torch.rand(images, 8, 2) * size / 4], dim=2)
    masks = torch.zeros(images, 8, size, size, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks.flatten(0, 1), boxes.flatten(0, 1).int().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    labels = torch.randint(1, 91, (images, 8))
    return [
        {"boxes": boxes[i].to(device), "labels": labels[i].to(device), "masks": masks[i].to(device)}
        for i in range(images)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=800, help="of the images in pixels")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, min_size=args.size, max_size=args.size)
    model = model.to(args.device).train()
    images = list(torch.rand(args.images, 3, args.size, args.size, device=args.device))
    targets = make_targets(args.images, args.size, args.device)

    # The arguments are those of model(images, targets); `loss` makes one number of the losses that it returns.
    rows = deconv_ext.profile(model, images, targets, loss=lambda losses: sum(losses.values()))
    for row in rows:
        if row.share is not None:
            print(f"{row.name}: {row.speedup:.2f}x, {row.share:.1%} of the step; the kernels:")
            for one in row.directions:
                print(f"  {one.direction}: {one.kernel}")


if __name__ == "__main__":
    main()

"""What a network is given for a picture, and back to a picture.

In: a Picture and a Preprocessing. Out: the batch of one on its device and in its dtype, where it
lies in the picture, and the picture that it is. Must not know: models, files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images._geometry import Box
from hookviz.images._picture import Picture
from hookviz.images._preprocessing import Preprocessing

__all__ = ["NetworkInput", "network_input"]


@dataclass(frozen=True, eq=False)
class NetworkInput:
    """One picture as a network takes it.

    Attributes:
        tensor: Shape (1, 3, H, W), channels R, G, B, normalised (what a function of the user's own
            gave may have another number of channels), on the device and in the dtype
            asked for.
        preprocessing: What was done.
        box: Left, top, right, bottom of the input's edges, in pixels of the (upright) picture.
            Values below 0 or beyond the picture's size: the input has a frame there.
        picture_size: Width and height of the picture that ``box`` refers to.
        description: What was done, in words.
    """

    tensor: torch.Tensor
    preprocessing: Preprocessing
    box: Box
    picture_size: tuple[int, int]
    description: str

    @property
    def framed(self) -> bool:
        """Whether the input shows a frame that is no part of the picture."""
        left, top, right, bottom = self.box
        return left < 0 or top < 0 or right > self.picture_size[0] or bottom > self.picture_size[1]

    @property
    def seen(self) -> Box:
        """The part of the picture that the network sees: ``box`` without the frame."""
        left, top, right, bottom = self.box
        width, height = self.picture_size
        return (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))

    def picture(self) -> Image.Image:
        """Exactly what the network sees, as a picture.

        The tensor (not the source) is de-normalised, so the rounding of a half-precision dtype
        shows.

        Returns:
            A new RGB image of W×H pixels, one per element.
        """
        return denormalised(self.tensor, self.preprocessing)


def denormalised(tensor: torch.Tensor, preprocessing: Preprocessing) -> Image.Image:
    """A (1, 3, H, W) or (3, H, W) input as an RGB image: x·std + mean, ×255, rounded, clipped."""
    values = tensor.detach().to("cpu", torch.float32)
    values = values[0] if values.ndim == 4 else values
    if values.shape[0] != 3:
        # A function of the user's own may give another number of channels: shown grey.
        values = values.mean(dim=0, keepdim=True).expand(3, -1, -1)
    mean = torch.tensor(preprocessing.mean).view(3, 1, 1)
    std = torch.tensor(preprocessing.std).view(3, 1, 1)
    levels = torch.nan_to_num(values * std + mean).mul(255).round().clamp(0, 255).to(torch.uint8)
    return Image.fromarray(levels.permute(1, 2, 0).contiguous().numpy())


def network_input(
    picture: Picture,
    preprocess: Preprocessing | Any | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> NetworkInput:
    """Prepares a picture for a network.

    Args:
        picture: What ``read_image`` gave.
        preprocess: A Preprocessing, or anything ``Preprocessing.from_transforms`` takes (a preset
            of torchvision, a chain of transforms, timm's data config); None scales to 0..1 only.
        device: Where the tensor goes.
        dtype: A floating dtype; the numbers are computed in float32 and cast last.

    Returns:
        The input: a batch of one.

    Raises:
        ImageError: The preprocessing cannot be interpreted, or the dtype is not a floating one.

    Examples:
        >>> from hookviz.images import read_image
        >>> picture = read_image(Image.new("RGB", (8, 4), "red"))
        >>> given = network_input(picture, Preprocessing.for_size(4))
        >>> tuple(given.tensor.shape), given.box, given.picture().getpixel((0, 0))
        ((1, 3, 4, 4), (2.0, 0.0, 6.0, 4.0), (255, 0, 0))
    """
    if not dtype.is_floating_point:
        raise ImageError(f"The network's input cannot have dtype {dtype}; give a floating one.")
    how = Preprocessing.from_transforms(preprocess)
    values = how(picture)[None]
    how = how.shown_as(values)
    tensor = values.to(device=device, dtype=dtype)
    box = how.box(picture.size)
    given = NetworkInput(tensor, how, box, picture.size, "")
    words = how.describe()
    if given.framed and how.fit != "pad":
        words += ", the smaller picture framed in black"
    return NetworkInput(tensor, how, box, picture.size, words)

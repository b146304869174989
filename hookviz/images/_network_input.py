"""What a network is given for an image, and back to an image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image

from hookviz._tensors import dense
from hookviz.errors import ImageError
from hookviz.images._picture import Picture
from hookviz.images._preprocessing import Box, Preprocessing, unframed
from hookviz.images._read import read_image


@dataclass(frozen=True, eq=False)
class NetworkInput:
    """One image as a network takes it.

    Attributes:
        tensor: Shape (1, C, H, W), channels R, G, B or grey, normalised (somebody's own
            preprocessing may give another number of channels), on the device and in the dtype
            asked for.
        preprocessing: What was done, as far as it is known.
        box: Left, top, right, bottom of the input's edges, in pixels of the (upright) image.
            Values below 0 or beyond the image's size: the input has a frame there. None: somebody's
            own preprocessing made the input, and where it lies is not known.
        picture_size: Width and height of the image that ``box`` refers to.
        description: What was done, in words.
    """

    tensor: torch.Tensor
    preprocessing: Preprocessing
    box: Box | None
    picture_size: tuple[int, int]
    description: str

    @property
    def framed(self) -> bool | None:
        """Whether the input shows a frame that is no part of the image; None: not known."""
        return None if self.box is None else self.seen != self.box

    @property
    def seen(self) -> Box | None:
        """The part of the image that the network sees: ``box`` without the frame."""
        return None if self.box is None else unframed(self.box, self.picture_size)

    def picture(self) -> Image.Image:
        """Exactly what the network sees, as an image.

        The tensor (not the source) is de-normalised, so the rounding of a half-precision dtype
        shows: x·std + mean, ×255, rounded, clipped to 0..255. Where mean and std are not known
        (``preprocessing.describe()`` says so) the values are stretched from the lowest to the
        highest. An input that has neither one nor three channels is shown as their mean, in grey.

        Returns:
            A new RGB image of W×H pixels, one per element.
        """
        with torch.inference_mode(mode=False), torch.device("cpu"):
            values = dense(self.tensor[0], "cpu").to(torch.float32)
            if values.shape[0] != 3:
                values = values.mean(dim=0, keepdim=True).expand(3, -1, -1)
            mean, std = (
                torch.tensor(v, dtype=torch.float32).view(-1, 1, 1)
                for v in (self.preprocessing.mean, self.preprocessing.std)
            )
            shown = torch.nan_to_num(values * std + mean).mul(255).round().clamp(0, 255)
            levels = shown.to(torch.uint8).permute(1, 2, 0).contiguous()
            return Image.fromarray(levels.numpy())


def network_input(
    picture: Picture | Any,
    preprocess: Preprocessing | Any | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> NetworkInput:
    """Prepares an image for a network.

    Args:
        picture: What ``read_image`` gave, or anything that it takes.
        preprocess: A Preprocessing, or anything ``Preprocessing.from_transforms`` takes; None
            scales to 0..1 only.
        device: Where the tensor goes.
        dtype: A floating dtype. The values are those that the preprocessing gives, cast last.

    Returns:
        The input: a batch of one.

    Raises:
        ImageError: The preprocessing cannot be interpreted or fails, or the dtype is not a
            floating one.

    Examples:
        >>> from hookviz.images import read_image
        >>> picture = read_image(Image.new("RGB", (8, 4), "red"))
        >>> given = network_input(picture, Preprocessing.for_size(4))
        >>> tuple(given.tensor.shape), given.box, given.picture().getpixel((0, 0))
        ((1, 3, 4, 4), (2.0, 0.0, 6.0, 4.0), (255, 0, 0))
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ImageError(f"The network's input cannot have dtype {dtype}; give a floating one.")
    picture = read_image(picture)
    how = Preprocessing.from_transforms(preprocess)
    values = how(picture)
    how = how.checked(picture.image, values)
    with torch.inference_mode(mode=False):
        tensor = values[None].to(device=device, dtype=dtype)
    given = NetworkInput(tensor, how, how.box(picture.size), picture.size, how.describe())
    if given.framed and how.fit not in ("pad", "border"):
        return replace(given, description=f"{how.describe()}, the smaller image framed in black")
    return given

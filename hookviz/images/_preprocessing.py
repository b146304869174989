"""How a picture becomes a network's input: resize, fit, scale, normalise.

In: a picture (PIL, RGB). Out: a float32 tensor (3, H, W) and, beside it, which part of the picture
it shows. Must not know: where the picture came from, which model takes the tensor.

The operations are torchvision's own functions in the order of its presets, so that the numbers are
those of ``preset(image)`` bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F
from torchvision.transforms.v2 import functional as v2_functional

from hookviz.errors import ImageError, did_you_mean
from hookviz.images._geometry import Box, crop_offset, input_box, resized_size
from hookviz.images._picture import Picture
from hookviz.images._resizing import (
    MAX_INPUT_PIXELS,
    check_sides,
    part_resized,
    resized_picture,
    resized_tensor,
)

__all__ = ["Preprocessing"]

FITS = ("crop", "pad", "squash", "none")
INTERPOLATIONS = tuple(mode.value for mode in InterpolationMode)


@dataclass(frozen=True)
class Preprocessing:
    """Resize, fit, scale to 0..1 and normalise, in this order.

    Attributes:
        resize: Length of the short side after resizing (the other side follows), or the exact
            (height, width); None leaves the size. For fit "pad" and "squash" the crop size alone
            decides and this stays None.
        crop: (height, width) of the input; None takes the whole resized picture.
        fit: What makes the picture fit ``crop``: "crop" resizes by ``resize`` and cuts the centre
            (a picture smaller than the cut gets a black frame, as torchvision's does), "pad"
            shows the whole picture on a ground of the mean colour (zeros for the network),
            "squash" stretches it, "none" leaves it.
        mean: Subtracted per channel after scaling to 0..1, in R, G, B order.
        std: Divided by per channel, not zero.
        interpolation: "bilinear", "bicubic", "nearest", "nearest-exact", "lanczos", "box" or
            "hamming".
        antialias: Whether shrinking averages. Pillow always does; only ``on_tensor`` can go
            without.
        on_tensor: Resize the uint8 tensor instead of the PIL image, as torchvision's video preset
            does; the two differ by rounding.
        v2: Compute as torchvision.transforms.v2 does, whose resizing of tensors and scaling to
            0..1 round differently from the functions of the presets.

    Examples:
        >>> p = Preprocessing(resize=256, crop=(224, 224), fit="crop", mean=(0.5, 0.5, 0.5))
        >>> tuple(p(Image.new("RGB", (451, 300))).shape)
        (3, 224, 224)
        >>> p.describe().split(", mean")[0]
        'short side resized to 256 (bilinear), centre crop 224×224'
    """

    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    fit: str = "none"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    interpolation: str = "bilinear"
    antialias: bool = True
    on_tensor: bool = False
    v2: bool = False

    IMAGENET_MEAN: ClassVar[tuple[float, float, float]] = (0.485, 0.456, 0.406)
    IMAGENET_STD: ClassVar[tuple[float, float, float]] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise ImageError(
                f"fit='{self.fit}' is unknown; it is one of {', '.join(FITS)}.",
                remedy=did_you_mean(self.fit, FITS) or None,
            )
        if self.interpolation not in INTERPOLATIONS:
            raise ImageError(
                f"interpolation='{self.interpolation}' is unknown; it is one of "
                f"{', '.join(INTERPOLATIONS)}.",
                remedy=did_you_mean(self.interpolation, INTERPOLATIONS) or None,
            )
        if self.on_tensor and self.interpolation in ("box", "hamming", "lanczos"):
            raise ImageError(
                f"interpolation='{self.interpolation}' works on pictures only, not with on_tensor."
            )
        if self.fit in ("pad", "squash") and self.crop is None:
            raise ImageError(f"fit='{self.fit}' needs the size: give crop=(height, width).")
        if self.fit == "none" and self.crop is not None:
            raise ImageError("crop=(height, width) needs a fit: 'crop', 'pad' or 'squash'.")
        for word, sides in (("resize", self.resize), ("crop", self.crop)):
            check_sides(word, sides)
        for word, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3:
                raise ImageError(
                    f"{word} has {len(values)} values; it needs three, for red, green and blue."
                )
        if any(not torch.isfinite(torch.tensor(v)) for v in (*self.mean, *self.std)):
            raise ImageError("mean and std must be finite numbers.")
        if any(v == 0 for v in self.std):
            raise ImageError(f"std is {self.std}; no value may be zero.")

    @classmethod
    def for_size(
        cls,
        size: int | tuple[int, int],
        fit: str = "crop",
        *,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        interpolation: str = "bilinear",
    ) -> Preprocessing:
        """Preprocessing of one's own for an input of a given size.

        Args:
            size: Side of a square input, or (height, width).
            fit: "crop" (scaled until it covers the input, the rest cut off), "pad", "squash", or
                "none" (``size`` is then the length of the short side, the picture stays whole).
            mean: Per channel, of values 0..1; default ImageNet's.
            std: Per channel, of values 0..1; default ImageNet's.
            interpolation: See the class.

        Returns:
            The preprocessing.

        Raises:
            ImageError: A value is not legal.

        Examples:
            >>> Preprocessing.for_size((240, 320), "pad").crop
            (240, 320)
        """
        sides = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        m, s = tuple(float(v) for v in mean), tuple(float(v) for v in std)
        if fit == "none":
            return cls(sides[0] if sides[0] == sides[1] else sides, None, fit, m, s, interpolation)
        # A crop that covers: which side must be resized depends on the picture, see _geometry.
        return cls(None, sides, fit, m, s, interpolation)

    @classmethod
    def from_transforms(cls, transforms: Any) -> Preprocessing:
        """What a preset of torchvision or timm, or a chain of transforms, does; see presets.py.

        Args:
            transforms: What ``Weights.transforms()`` gives; an object with attributes like its
                ``crop_size``, ``resize_size``, ``mean``, ``std``, ``interpolation``,
                ``antialias``; a ``Compose`` of resize, centre crop, to-tensor and normalise;
                timm's data config (a mapping); a Preprocessing; None (values 0..1 only); any
                other callable from a PIL image to a tensor, which is called as it is.

        Returns:
            The preprocessing with the same numbers.

        Raises:
            ImageError: It is neither known nor callable.

        Examples:
            >>> from torchvision.models import VGG16_Weights
            >>> Preprocessing.from_transforms(VGG16_Weights.IMAGENET1K_V1.transforms()).crop
            (224, 224)
        """
        from hookviz.images._presets import interpret  # presets builds this class

        return interpret(transforms)

    def describe(self) -> str:
        """The steps in words, in their order."""
        steps = []
        how = self.interpolation + (
            "" if self.antialias or not self.on_tensor else ", no antialias"
        )
        if self.fit == "pad" and self.crop:
            steps.append(f"fitted into {_times(self.crop)} ({how}), padded with the mean colour")
        elif self.fit == "squash" and self.crop:
            steps.append(f"stretched to {_times(self.crop)} ({how})")
        elif self.fit == "crop" and self.crop and self.resize is None:
            steps.append(
                f"resized to cover {_times(self.crop)} ({how}), centre crop {_times(self.crop)}"
            )
        else:
            if isinstance(self.resize, int):
                steps.append(f"short side resized to {self.resize} ({how})")
            elif self.resize is not None:
                steps.append(f"resized to {_times(self.resize)} ({how})")
            else:
                steps.append("size unchanged")
            if self.crop:
                steps.append(f"centre crop {_times(self.crop)}")
        if self.mean == (0.0, 0.0, 0.0) and self.std == (1.0, 1.0, 1.0):
            steps.append("values 0 to 1")
        else:
            steps.append(f"mean ({_numbers(self.mean)}), std ({_numbers(self.std)})")
        return ", ".join(steps)

    def shown_as(self, tensor: torch.Tensor) -> Preprocessing:  # noqa: ARG002 - see the subclass
        """The preprocessing whose mean and std bring ``tensor`` back to a picture: this one."""
        return self

    def resized_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height after resizing, before cropping or padding.

        Args:
            size: Width and height of the picture.
        """
        return resized_size(size, self.resize, self.crop, self.fit)

    def box(self, size: tuple[int, int]) -> Box:
        """Where the edges of the input lie in the picture.

        Args:
            size: Width and height of the picture.

        Returns:
            Left, top, right, bottom in pixels of the picture. Values below 0 or beyond the size
            say that the input has a frame there that is not part of the picture.

        Examples:
            >>> Preprocessing(crop=(4, 4), fit="squash").box((8, 2))
            (0.0, 0.0, 8.0, 2.0)
        """
        return input_box(size, self.resize, self.crop, self.fit)

    def __call__(self, picture: Image.Image | Picture) -> torch.Tensor:
        """The network's input for one picture.

        Args:
            picture: A Picture, or a PIL image (anything but RGB is read as ``read_image`` would).

        Returns:
            A new float32 tensor (3, H, W) on the CPU, channels R, G, B, normalised.

        Raises:
            ImageError: The input would have more than 64 million pixels.
        """
        image = picture.image if isinstance(picture, Picture) else _rgb(picture)
        levels = self._fitted(image)
        scaled: torch.Tensor = (
            v2_functional.to_dtype(levels, torch.float32, scale=True)
            if self.v2
            else F.convert_image_dtype(levels, torch.float32)
        )
        if not (self.mean == (0.0, 0.0, 0.0) and self.std == (1.0, 1.0, 1.0)):
            scaled = F.normalize(scaled, mean=list(self.mean), std=list(self.std))
        if self.fit == "pad" and self.crop:
            width, height = levels.shape[2], levels.shape[1]
            left, top = -crop_offset(width, self.crop[1]), -crop_offset(height, self.crop[0])
            right, bottom = self.crop[1] - width - left, self.crop[0] - height - top
            scaled = F.pad(scaled, [left, top, right, bottom], fill=0)
        return scaled.contiguous()

    def _fitted(self, image: Image.Image) -> torch.Tensor:
        """The picture resized and cropped (but not yet padded by fit "pad"): uint8 (3, h, w)."""
        crop = self.crop if self.fit == "crop" else None
        size = self.resized_size(image.size)
        resizes = self.resize is not None or self.crop is not None
        if resizes and size[0] * size[1] > MAX_INPUT_PIXELS:
            if crop is None or self.on_tensor:
                raise ImageError(
                    f"The picture of {image.width}×{image.height} pixels would be resized to "
                    f"{size[0]}×{size[1]}; at most {MAX_INPUT_PIXELS // 1_000_000} million go.",
                    remedy="Crop the picture first, or choose preprocessing with a size.",
                )
            return part_resized(image, size, crop, self.box(image.size), self.interpolation)
        mode = InterpolationMode(self.interpolation)
        target = size if resizes else None
        if self.on_tensor:
            return resized_tensor(image, target, crop, mode, antialias=self.antialias, v2=self.v2)
        return resized_picture(image, target, crop, mode)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    from hookviz.images._read import read_image  # read stands above this module

    return read_image(image).image


def _times(sides: tuple[int, int]) -> str:
    return f"{sides[1]}×{sides[0]}"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.4g}" for v in values)

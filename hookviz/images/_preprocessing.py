"""How an image becomes a network's input: resize, fit, scale, normalise.

Two rules:

- Somebody's own preprocessing (anything that can be called) is called as it is, and the network
  receives what it gives, to the last bit. Sizes, mean and std that can be read off it only say
  where the input lies in the image, and are believed only where steps of those numbers give the
  same values for this very image; otherwise that is unknown, and said to be.
- Only a config (a mapping of numbers) becomes steps of our own. They give what the library of that
  config gives; a setting that they cannot repeat is refused.

The steps are computed by Pillow and NumPy, so that no global state of torch (default device and
dtype, inference mode, deterministic mode) touches them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from PIL import Image

from hookviz._tensors import dense
from hookviz._text import error_text
from hookviz.errors import ImageError, did_you_mean
from hookviz.images._picture import Picture
from hookviz.images._read import read_image

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels of the image; right and bottom lie past the last pixel."""

Sides = tuple[int, int]

MAX_INPUT_PIXELS = 64_000_000
"""An input (or the resized image it is cut from) of more pixels is refused or avoided."""

FITS = ("crop", "cover", "pad", "border", "squash", "none")
RESAMPLING = {mode.name.lower(): mode for mode in Image.Resampling}
RESAMPLING["nearest-exact"] = Image.Resampling.NEAREST
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_OWN_STEPS = "Describe it by hookviz.Preprocessing(resize=…, crop=(height, width), mean=…, std=…)."


def unframed(box: Box, size: Sides) -> Box:
    """The part of a box that lies in an image of that (width, height)."""
    left, top, right, bottom = box
    return (max(left, 0.0), max(top, 0.0), min(right, float(size[0])), min(bottom, float(size[1])))


@dataclass(frozen=True)
class Preprocessing:
    """Resize, fit, scale to 0..1 and normalise, in this order.

    Attributes:
        resize: Length of the short side after resizing (the other side follows), or (height,
            width); None leaves the size or, with the fits that need a size, takes ``crop``.
        crop: (height, width) of the input; None takes the whole resized image.
        fit: What makes the image fit ``crop``: "crop" resizes to ``resize`` (a pair: exactly) and
            cuts the centre (an image smaller than the cut gets a black frame), "cover" resizes
            until ``resize`` is covered and cuts the centre, "pad" shows the whole image on a
            ground of the mean color (zeros for the network), "border" the same with the mean
            rounded to whole levels, as timm does, "squash" stretches it, "none" leaves it.
        mean: Subtracted per channel after scaling to 0..1, in R, G, B order; one value for an
            input of one channel, which is made of the image in grey (ITU-R 601-2).
        std: Divided by per channel, not zero; as many values as ``mean``.
        interpolation: "bilinear", "bicubic", "nearest", "nearest-exact", "lanczos", "box" or
            "hamming", each as Pillow computes it, which averages where it shrinks.
        floor: Whether a centre cut that does not come out even begins at the pixel before (as
            Hugging Face's do) and not at the nearest even one (as torchvision's and timm's do).

    Examples:
        >>> p = Preprocessing(resize=256, crop=(224, 224), fit="crop", mean=(0.5, 0.5, 0.5))
        >>> tuple(p(Image.new("RGB", (451, 300))).shape)
        (3, 224, 224)
        >>> p.describe().split(", mean")[0]
        'short side resized to 256 (bilinear), centre crop 224×224'
    """

    resize: int | Sides | None = None
    crop: Sides | None = None
    fit: str = "none"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    interpolation: str = "bilinear"
    floor: bool = False

    IMAGENET_MEAN: ClassVar[tuple[float, float, float]] = _IMAGENET[0]
    IMAGENET_STD: ClassVar[tuple[float, float, float]] = _IMAGENET[1]

    def __post_init__(self) -> None:
        for word, value, legal in (
            ("fit", self.fit, FITS),
            ("interpolation", self.interpolation, tuple(RESAMPLING)),
        ):
            if value not in legal:
                raise ImageError(
                    f"{word}='{value}' is unknown; it is one of {', '.join(legal)}.",
                    remedy=did_you_mean(str(value), legal) or None,
                )
        if self.fit != "none" and self.crop is None:
            raise ImageError(f"fit='{self.fit}' needs the size: give crop=(height, width).")
        if self.fit == "none" and self.crop is not None:
            raise ImageError("crop=(height, width) needs a fit: 'crop', 'pad' or 'squash'.")
        _check_sides("resize", self.resize)
        _check_sides("crop", self.crop)
        for word, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, (tuple, list)) or not all(
                isinstance(v, (int, float)) and math.isfinite(v) for v in values
            ):
                raise ImageError(f"{word} is {values}; it must be finite numbers, one per channel.")
        if len(self.mean) not in (1, 3) or len(self.std) != len(self.mean):
            raise ImageError(
                f"mean has {len(self.mean)} values and std {len(self.std)}; each needs three, for "
                "red, green and blue, or one, for grey."
            )
        if any(v == 0 for v in self.std):
            raise ImageError(f"std is {self.std}; no value may be zero.")

    @property
    def channels(self) -> int:
        """Channels of the input: 3 (red, green, blue) or 1 (grey)."""
        return len(self.mean)

    @property
    def _covers(self) -> bool:
        """Whether the image is resized until it covers a size."""
        return self.fit == "cover" or (self.fit == "crop" and self.resize is None)

    @classmethod
    def for_size(
        cls,
        size: int | Sides,
        fit: str = "crop",
        *,
        channels: int = 3,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        interpolation: str = "bilinear",
    ) -> Preprocessing:
        """Preprocessing of one's own for an input of a given size.

        Args:
            size: Side of a square input, or (height, width).
            fit: "crop" (scaled until it covers the input, the rest cut off), "pad", "squash", or
                "none" (``size`` is then the length of the short side, the image stays whole).
            channels: 3 for red, green and blue, 1 for grey.
            mean: Per channel, of values 0..1, or one number for all; default ImageNet's, 0 for
                grey.
            std: Likewise; default ImageNet's, 1 for grey.
            interpolation: See the class.

        Returns:
            The preprocessing.

        Raises:
            ImageError: A size, fit, number of channels, mean or std is not legal.

        Examples:
            >>> Preprocessing.for_size((96, 128), "pad").crop
            (96, 128)
            >>> Preprocessing.for_size(28, channels=1, mean=0.1307, std=0.3081).mean
            (0.1307,)
        """
        if channels not in (1, 3):
            raise ImageError(f"channels={channels!r} is unknown; give 3 for color or 1 for grey.")
        _check_sides("size", size)
        usual: Any = _IMAGENET if channels == 3 else (0.0, 1.0)
        return Preprocessing(
            resize=size if fit == "none" else None,
            crop=None if fit == "none" else _pair(size),
            fit=fit,
            mean=_per_channel("mean", usual[0] if mean is None else mean, channels),
            std=_per_channel("std", usual[1] if std is None else std, channels),
            interpolation=interpolation,
        )

    @classmethod
    def from_transforms(cls, transforms: Any) -> Preprocessing:
        """Preprocessing that another library describes or does.

        Args:
            transforms: None (values 0..1 only); a Preprocessing; a mapping: timm's data config or
                pretrained config, or the config of a Hugging Face image processor; anything that
                can be called with an RGB PIL image (a preset or pipeline of torchvision, timm's
                transforms, any function), a Hugging Face image processor, or a callable that takes
                ``image=`` as albumentations' do. It gives a tensor (C, H, W) or an array (H, W, C)
                or (C, H, W), alone or in a mapping under "pixel_values" or "image".

        Returns:
            Steps of our own for a mapping; otherwise a Preprocessing that calls the object.

        Raises:
            ImageError: It is neither known nor callable, or a config has a setting that cannot
                be repeated.

        Examples:
            >>> from torchvision.models import VGG16_Weights
            >>> Preprocessing.from_transforms(VGG16_Weights.IMAGENET1K_V1.transforms()).crop
            (224, 224)
        """
        if transforms is None:
            return Preprocessing()
        if isinstance(transforms, Preprocessing):
            return transforms
        if isinstance(transforms, Mapping):
            return _from_config(transforms)
        # A processor for text and images holds the one for images.
        thing = getattr(transforms, "image_processor", None) or transforms
        if not callable(thing) or isinstance(thing, type):
            raise ImageError(
                f"The preprocessing is {_kind_of(thing)}; legal are a callable from a PIL image to "
                "a tensor, a mapping (timm's or a Hugging Face config) and a Preprocessing.",
                remedy=_OWN_STEPS,
            )
        return _called(thing)

    def fitted(self, fit: str, side: int = 224) -> Preprocessing:
        """The same mean, std and interpolation with another fit.

        Args:
            fit: "crop", "pad", "squash" or "none".
            side: The size where this preprocessing has none.

        Returns:
            Steps for the same size of input.

        Raises:
            ImageError: It is somebody's own and its numbers are not known.
        """
        size = self.crop or self.resize or side
        return Preprocessing.for_size(
            (self.resize or min(_pair(size))) if fit == "none" else size,
            fit,
            channels=self.channels,
            mean=self.mean,
            std=self.std,
            interpolation=self.interpolation,
        )

    def describe(self) -> str:
        """The steps in words, in their order."""
        target, how = self.resize or self.crop, f"({self.interpolation})"
        cut = [f"centre crop {_times(self.crop)}"] if self.crop else []
        if self.fit in ("pad", "border"):
            steps = [f"fitted into {_times(target)} {how}", "padded with the mean color"]
            steps += [] if target == self.crop else cut
        elif self.fit == "squash":
            steps = [f"stretched to {_times(self.crop)} {how}"]
        elif self._covers:
            steps = [f"resized to cover {_times(target)} {how}", *cut]
        elif self.resize is None:
            steps = ["size unchanged"]
        elif isinstance(self.resize, int):
            steps = [f"short side resized to {self.resize} {how}", *cut]
        else:
            steps = [f"resized to {_times(self.resize)} {how}", *cut]
        steps += ["grey"] if self.channels == 1 else []
        if set(self.mean) == {0.0} and set(self.std) == {1.0}:
            steps.append("values 0 to 1")
        else:
            mean, std = (", ".join(f"{v:.4g}" for v in values) for values in (self.mean, self.std))
            steps.append(f"mean ({mean}), std ({std})")
        return ", ".join(steps)

    def checked(self, image: Image.Image, given: torch.Tensor) -> Preprocessing:  # noqa: ARG002
        """What is known of how ``given`` was made of ``image``: all, for steps of our own."""
        return self

    def resized_size(self, size: Sides) -> Sides:
        """Width and height after resizing, before cropping or padding, as torchvision rounds.

        Args:
            size: Width and height of the image.

        Examples:
            >>> Preprocessing(256, (224, 224), "crop").resized_size((451, 300))
            (384, 256)
            >>> Preprocessing(crop=(224, 224), fit="pad").resized_size((451, 300))
            (224, 149)
        """
        width, height = size
        target = self.crop if self.fit == "squash" else self.resize or self.crop
        if target is None:
            return width, height
        if self.fit in ("pad", "border") or self._covers:
            sides = _pair(target)
            ratios = (width / sides[1], height / sides[0])
            ratio = min(ratios) if self._covers else max(ratios)
            return max(1, round(width / ratio)), max(1, round(height / ratio))
        if not isinstance(target, int):
            return target[1], target[0]
        short, long = sorted(size)
        other = int(target * long / short)  # torchvision's own rule, truncation included
        return (target, other) if width <= height else (other, target)

    def box(self, size: Sides) -> Box | None:
        """Where the edges of the input lie in the image.

        Args:
            size: Width and height of the image.

        Returns:
            Left, top, right, bottom in pixels of the image; values below 0 or beyond the size say
            that the input has a frame there that is not part of the image. None where it is not
            known, for somebody's own preprocessing.

        Examples:
            >>> Preprocessing(crop=(4, 4), fit="squash").box((8, 2))
            (0.0, 0.0, 8.0, 2.0)
            >>> Preprocessing(20, (30, 50), "crop").box((40, 20))
            (-5.0, -5.0, 45.0, 25.0)
        """
        width, height = size
        if self.crop is None or self.fit == "squash":
            return (0.0, 0.0, float(width), float(height))
        resized = self.resized_size(size)
        left, top = self._offsets(resized)
        across, down = width / resized[0], height / resized[1]
        return (
            left * across,
            top * down,
            (left + self.crop[1]) * across,
            (top + self.crop[0]) * down,
        )

    def _offsets(self, size: Sides) -> Sides:
        """Left and top of the centre crop in an image of that size; negative for a frame."""
        crop = self.crop or (size[1], size[0])
        spare = (size[0] - crop[1], size[1] - crop[0])
        if self.floor:
            return spare[0] // 2, spare[1] // 2
        left, top = (-(-s // 2) if s < 0 else round(s / 2.0) for s in spare)
        return left, top

    def __call__(self, picture: Image.Image | Picture) -> torch.Tensor:
        """The network's input for one image.

        Args:
            picture: A Picture, or a PIL image of any mode.

        Returns:
            A new float32 tensor (C, H, W) on the CPU, channels R, G, B or grey, normalised.

        Raises:
            ImageError: The input would have more than 64 million pixels.
        """
        image = _rgb(picture)
        if self.channels == 1:
            image = image.convert("L")
        fitted, inside = self._fitted(image)
        levels = np.atleast_3d(np.asarray(fitted))
        values = np.moveaxis(levels, 2, 0).astype(np.float32, order="C")
        values /= np.float32(255)
        values -= np.array(self.mean, np.float32)[:, None, None]
        values /= np.array(self.std, np.float32)[:, None, None]
        if self.fit == "pad":
            left, top, right, bottom = (max(edge, 0) for edge in inside)
            values[:, :top] = values[:, bottom:] = 0
            values[:, :, :left] = values[:, :, right:] = 0
        with torch.inference_mode(mode=False):
            return torch.from_numpy(values)

    def _fitted(self, image: Image.Image) -> tuple[Image.Image, tuple[int, int, int, int]]:
        """The image resized and cut or framed, and the edges of what is no frame in it."""
        size = self.resized_size(image.size)
        mode = RESAMPLING[self.interpolation]
        cuts = self.crop is not None and self.fit in ("crop", "cover")
        left, top = self._offsets(size)
        if size[0] * size[1] > MAX_INPUT_PIXELS and size != image.size:
            box = self.box(image.size)
            if not cuts or self.crop is None or box is None:
                raise ImageError(
                    f"The image of {image.width}×{image.height} pixels would be resized to "
                    f"{size[0]}×{size[1]}; at most {MAX_INPUT_PIXELS // 1_000_000} million go.",
                    remedy="Crop the image first, or choose preprocessing with a size.",
                )
            # A strip of 1×10,000 with its short side resized to 256 would have 655 million pixels,
            # of which the crop keeps 0.008 %: only that part is resized.
            part = unframed(box, image.size)
            size = (min(size[0], self.crop[1]), min(size[1], self.crop[0]))
            image = image.resize(size, mode, box=part)
            left, top = self._offsets(size)
        elif size != image.size:
            image = image.resize(size, mode)
        inside = (-left, -top, size[0] - left, size[1] - top)
        if self.crop is None or (self.crop[1], self.crop[0]) == size:
            return image, (0, 0, *size)
        ground = tuple(round(255 * v) for v in self.mean) if self.fit == "border" else 0
        cut = Image.new(image.mode, (self.crop[1], self.crop[0]), ground)
        cut.paste(image, inside)
        return cut, inside


@dataclass(frozen=True)
class CalledPreprocessing(Preprocessing):
    """Somebody's own preprocessing: called as it is, described as far as it could be read.

    Attributes:
        function: Gives what ``Preprocessing.from_transforms`` says.
        known: Whether the inherited numbers were read off the function (not yet checked); if not,
            mean and std only serve for showing.
    """

    function: Any = None
    known: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.known and (self.fit != "none" or self.resize is not None):
            self._refuse_changes()

    def _refuse_changes(self) -> NoReturn:
        raise ImageError(
            f"The preprocessing {_name_of(self.function)} is called as it is; its size and fit "
            "cannot be changed.",
            remedy="Give a hookviz.Preprocessing instead.",
        )

    def fitted(self, fit: str, side: int = 224) -> Preprocessing:
        """See the parent class."""
        return super().fitted(fit, side) if self.known else self._refuse_changes()

    def describe(self) -> str:
        """The steps as far as they are known, else its name and that they are not."""
        if self.known:
            return super().describe()
        if (self.mean[0], self.std[0]) == (0.0, 1 / 255):
            shown = "values from 0 to 255 that are not scaled to 0..1"
        else:
            shown = "shown stretched from its lowest to its highest value"
        return f"preprocessed by {_name_of(self.function)}, {shown}"

    def box(self, size: Sides) -> Box | None:
        """See the parent class."""
        return super().box(size) if self.known else None

    def checked(self, image: Image.Image, given: torch.Tensor) -> Preprocessing:
        """What is known of how ``given`` was made of ``image``.

        Args:
            image: What the function received.
            given: (C, H, W), what it gave.

        Returns:
            This, where its steps give the same values (up to the rounding of another resizer);
            else the same function without steps, with a mean and std that serve for showing.
        """
        # A preset of torchvision's is read by its class, not by its looks.
        if self.known and (preset_kind(self.function) or self._agrees(image, given)):
            return self
        low, high = 0.0, 255.0
        if given.is_floating_point():
            finite = given[torch.isfinite(given)].double()
            low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 1.0)
        span, channels = (high - low if high > low else 1.0), (1 if given.shape[0] == 1 else 3)
        mean, std = (-low / span,) * channels, (1 / span,) * channels
        return CalledPreprocessing(mean=mean, std=std, function=self.function)

    def _agrees(self, image: Image.Image, given: torch.Tensor) -> bool:
        """Whether steps of the numbers that were read give the same values."""
        try:
            ours = super().__call__(image).numpy()
        except ImageError:
            return False
        values = given.to(torch.float32).numpy()
        if ours.shape != values.shape:
            return False
        apart = np.abs(ours - values).mean(axis=(1, 2)) * self.std
        return bool(apart.mean() * 255 <= _TOLERANCE)

    def __call__(self, picture: Image.Image | Picture) -> torch.Tensor:
        """Calls the function on a copy of the RGB image.

        Returns:
            What it gave, (C, H, W), in its own dtype: a copy on the CPU without a graph.

        Raises:
            ImageError: It failed, or gave something else than one image's values.
        """
        name = _name_of(self.function)
        # Neither the default device nor inference mode decides what comes out.
        with torch.inference_mode(mode=False), torch.device("cpu"):
            try:
                given = _call(self.function, _rgb(picture).copy())
            except Exception as error:
                raise ImageError(
                    f"The preprocessing {name} failed: {error_text(error)}",
                    remedy="It is called with one RGB PIL image (an array as image= where it "
                    "takes nothing else).",
                ) from error
            return _one_image(given, name, batched=_is_processor(type(self.function)))


_TOLERANCE = 2.0
"""Levels (of 255) by which read steps may differ from what was given, on average over an image.
Resizing by Pillow and by torch differ by less than one."""


def _rgb(picture: Image.Image | Picture) -> Image.Image:
    if isinstance(picture, Image.Image) and picture.mode == "RGB":
        return picture
    return read_image(picture).image


# ── What a callable takes and gives


def _called(thing: Any) -> CalledPreprocessing:
    """The preprocessing that calls ``thing``, with what can be read off it."""
    try:
        steps = _read(thing)
    except Exception:  # noqa: BLE001 - only for showing: what cannot be read is unknown
        steps = None
    numbers = vars(steps or Preprocessing())
    return CalledPreprocessing(**numbers, function=thing, known=steps is not None)


def _is_processor(kind: Any) -> bool:
    """Whether it is a class of image processors of the transformers library, by its bases."""
    names = [base.__name__ for base in kind.mro()] if isinstance(kind, type) else []
    return "ImageProcessingMixin" in names


def preset_kind(thing: Any) -> str:
    """The class of a preset of torchvision's weights; "" for anything else."""
    kind = type(thing)
    return kind.__name__ if kind.__module__ == "torchvision.transforms._presets" else ""


def _call(thing: Any, image: Image.Image) -> Any:
    """Calls ``thing`` in the way of its kind."""
    if _is_processor(type(thing)):
        return thing(images=image, return_tensors="pt")
    if preset_kind(thing) == "VideoClassification":
        frame = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return thing(frame[None])[:, 0]
    if preset_kind(thing) == "OpticalFlow":
        return thing(image, image)[0]
    array = np.array(image)
    try:
        return thing(image)
    except Exception as error:
        if not _takes_only_named(thing):
            raise
        try:
            return thing(image=array)
        except Exception:  # noqa: BLE001 - the first error is the one of the usual call
            raise error from None


def _takes_only_named(thing: Any) -> bool:
    """Whether ``thing`` may take its image by the name ``image`` alone, as albumentations does."""
    try:
        kinds = {p.kind: p.name for p in inspect.signature(thing).parameters.values()}
    except (TypeError, ValueError):
        return False
    named = inspect.Parameter.VAR_KEYWORD in kinds or "image" in kinds.values()
    return named and not {p for p in kinds if p < inspect.Parameter.VAR_POSITIONAL}


def _one_image(given: Any, name: str, *, batched: bool) -> torch.Tensor:
    """The values of one image (C, H, W) in what a callable gave."""
    found, remedy = given, None
    if isinstance(given, Image.Image):
        remedy = "Add a step that makes a tensor of the image, such as ToTensor."
    if isinstance(found, Mapping):
        named = [key for key in ("pixel_values", "image") if key in found]
        arrays = [k for k, v in found.items() if isinstance(v, (torch.Tensor, np.ndarray))]
        keys = named or (arrays if len(arrays) == 1 else [])
        if not keys:
            raise ImageError(
                f"The preprocessing {name} gave a mapping with the keys "
                f"{', '.join(map(repr, found))}; 'pixel_values' or 'image' must be among them."
            )
        found = found[keys[0]]
    if isinstance(found, (list, tuple)) and len(found) == 1:
        found = found[0]
    last = isinstance(found, np.ndarray)  # arrays have their channels last, tensors first
    if isinstance(found, np.ndarray) and found.dtype.kind in "fiub":
        found = torch.from_numpy(found.copy())
    if isinstance(found, torch.Tensor) and not found.is_complex():
        values = dense(found.as_subclass(torch.Tensor), "cpu")
        if not batched or values.ndim > 3:
            while values.ndim > 3 and values.shape[0] == 1:
                values = values[0]
            ends_in_channels = values.shape[-1] in (1, 2, 3, 4)
            if last and values.ndim == 3 and ends_in_channels:
                values = values.permute(2, 0, 1)
            elif ends_in_channels and values.shape[0] > 4:
                remedy = "Add .permute(2, 0, 1): the channels of a tensor come first."
                values = values[..., :0]
            if values.ndim == 3 and values.numel():
                return values.clone(memory_format=torch.contiguous_format)
    raise ImageError(
        f"The preprocessing {name} gave {_kind_of(found)}; it must give the values of one image, "
        "(C, H, W).",
        remedy=remedy,
    )


# ── What can be read off another library's objects and configs


def _read(thing: Any) -> Preprocessing | None:
    """Steps that a callable seems to do; None where it does not say."""
    if _is_processor(type(thing)):
        return _from_hugging_face(thing.to_dict())
    steps = list(_flat(thing))
    if steps:
        return _from_chain(steps)
    if not preset_kind(thing):
        return None
    # The preset of optical flow has no attributes; its documentation says [-1, 1].
    usual = (0.5, 0.5) if preset_kind(thing) == "OpticalFlow" else (0.0, 1.0)
    crop = getattr(thing, "crop_size", None)
    return Preprocessing(
        resize=_sides(getattr(thing, "resize_size", None)),
        crop=None if crop is None else _pair(_sides(crop)),
        fit="none" if crop is None else "crop",
        mean=_per_channel("mean", getattr(thing, "mean", usual[0]), 3),
        std=_per_channel("std", getattr(thing, "std", usual[1]), 3),
        interpolation=_interpolation(getattr(thing, "interpolation", None)),
    )


def _flat(thing: Any) -> Iterable[Any]:
    inner = getattr(thing, "transforms", None)
    for step in inner if isinstance(inner, Iterable) else ():
        below = list(_flat(step))
        yield from below or [step]


def _from_chain(steps: Iterable[Any]) -> Preprocessing:
    """The steps of a chain by the names that torchvision and timm give them."""
    found: dict[str, Any] = {}
    channels = 3
    for step in steps:
        name = type(step).__name__
        if name in ("Resize", "ResizeKeepRatio"):
            found["resize"] = _sides(step.size)
            found["interpolation"] = _interpolation(step.interpolation)
            if name == "ResizeKeepRatio":
                found["fit"] = "border" if step.longest else "cover"
        elif name in ("CenterCrop", "CenterCropOrPad"):
            found["crop"] = _pair(_sides(step.size))
            found.setdefault("fit", "crop")
        elif name == "Normalize":
            found["mean"], found["std"] = (tuple(map(float, v)) for v in (step.mean, step.std))
        elif name == "Grayscale" and step.num_output_channels == 1:
            channels = 1
    return Preprocessing(**{"mean": (0.0,) * channels, "std": (1.0,) * channels, **found})


def _from_config(config: Mapping[str, Any]) -> Preprocessing:
    """The steps of a config of timm's or of a Hugging Face image processor."""
    keys = set(map(str, config))
    try:
        if any(key.startswith("do_") for key in keys) or "image_mean" in keys:
            return _hugging_face_processor(config) or _from_hugging_face(config)
        if keys & {"input_size", "crop_pct", "crop_mode"}:
            return _from_timm(config)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(
            f"The preprocessing is a config that cannot be read ({type(error).__name__}: {error}).",
            remedy=_OWN_STEPS,
        ) from error
    raise ImageError(
        f"The preprocessing is a mapping with the keys {', '.join(map(repr, config)) or 'none'}; "
        "legal are timm's data config and the config of a Hugging Face image processor.",
        remedy=_OWN_STEPS,
    )


def _unrepeatable(what: str, itself: str) -> ImageError:
    return ImageError(f"{what} cannot be repeated.", remedy=f"Give {itself} itself.")


_TIMM_OTHERS = (
    "is_training", "crop_border_pixels", "tf_preprocessing", "use_prefetcher", "naflex", "patchify",
)  # fmt: skip


def _from_timm(config: Mapping[str, Any]) -> Preprocessing:
    """The steps of ``timm.data.create_transform(**config)``, defaults included.

    Source: ``timm.data.transforms_factory.transforms_imagenet_eval``; a pretrained config goes by
    ``timm.data.resolve_data_config`` first, whose default interpolation differs.
    """
    others = [key for key in _TIMM_OTHERS if config.get(key)]
    if others or not config.get("normalize", True):
        setting = (others or ["normalize"])[0]
        raise _unrepeatable(f"timm's setting '{setting}'", "timm.data.create_transform(…)")
    pretrained = "architecture" in config or "num_classes" in config
    size = config.get("input_size") or 224
    height, width = (size, size) if isinstance(size, int) else (int(s) for s in tuple(size)[-2:])
    channels = 1 if not isinstance(size, int) and len(size) == 3 and size[0] == 1 else 3
    share = float(config.get("crop_pct") or 0.875)
    scaled = (math.floor(height / share), math.floor(width / share))
    mode = config.get("crop_mode") or "center"
    square = "crop" if scaled[0] == scaled[1] else "cover"
    return Preprocessing(
        resize=scaled[0] if mode not in ("squash", "border") and square == "crop" else scaled,
        crop=(height, width),
        fit={"squash": "crop", "border": "border"}.get(mode, square),
        mean=_per_channel("mean", config.get("mean") or _IMAGENET[0], channels),
        std=_per_channel("std", config.get("std") or _IMAGENET[1], channels),
        interpolation=_interpolation(
            config.get("interpolation") or ("bicubic" if pretrained else "bilinear")
        ),
    )


_HF_STEPS = {
    f"do_{step}"
    for step in ("resize", "center_crop", "rescale", "normalize", "convert_rgb", "reduce_labels")
}
_PROCESSOR = "the image processor"


def _hugging_face_processor(config: Mapping[str, Any]) -> CalledPreprocessing | None:
    """The processor that a config names, where transformers is installed; its numbers count."""
    name = config.get("image_processor_type") or config.get("feature_extractor_type")
    if not isinstance(name, str):
        return None
    try:
        import transformers
    except ImportError:
        return None
    kind: Any = getattr(transformers, name, None)
    return _called(kind.from_dict(dict(config))) if _is_processor(kind) else None


def _from_hugging_face(config: Mapping[str, Any]) -> Preprocessing:
    """The steps of a Hugging Face image processor's config, as its Pillow backend does them."""
    others = [
        key
        for key, value in config.items()
        if value and key not in _HF_STEPS and (key.startswith("do_") or key == "crop_pct")
    ]
    if others:
        raise _unrepeatable(f"The Hugging Face setting '{others[0]}'", _PROCESSOR)
    factor = float(config.get("rescale_factor") or 1 / 255) * config.get("do_rescale", True)
    if abs(factor * 255 - 1) > 1e-6:
        raise _unrepeatable("A Hugging Face config that does not scale to 0..1", _PROCESSOR)
    resizes = config.get("do_resize", "size" in config)
    crop = _hugging_face_size(config.get("crop_size")) if config.get("do_center_crop") else None
    normal = config.get("do_normalize", "image_mean" in config)
    return Preprocessing(
        resize=_hugging_face_size(config.get("size")) if resizes else None,
        crop=None if crop is None else _pair(crop),
        fit="none" if crop is None else "crop",
        mean=_per_channel("mean", config["image_mean"] if normal else 0.0, 3),
        std=_per_channel("std", config["image_std"] if normal else 1.0, 3),
        interpolation=_interpolation(config.get("resample")),
        floor=True,
    )


def _hugging_face_size(size: Any) -> int | Sides:
    if not isinstance(size, Mapping) and (sides := _sides(size)) is not None:
        return sides
    kept = {key: int(value) for key, value in (size or {}).items() if value}
    if set(kept) == {"height", "width"}:
        return kept["height"], kept["width"]
    if set(kept) == {"shortest_edge"}:
        return kept["shortest_edge"]
    raise _unrepeatable(f"The Hugging Face size {size!r}", _PROCESSOR)


# ── Numbers


def _per_channel(word: str, values: Any, channels: int) -> tuple[float, ...]:
    """One float per channel, of one number for all or of as many as there are channels."""
    try:
        numbers = [float(v) for v in (values if isinstance(values, Iterable) else [values])]
    except (TypeError, ValueError):
        raise ImageError(f"{word}={values!r} is not a list of numbers.") from None
    numbers *= channels if len(numbers) == 1 else 1
    if len(numbers) != channels:
        raise ImageError(
            f"{word} has {len(numbers)} values; an input of {channels} "
            f"channel{'s' * (channels > 1)} needs {channels}."
        )
    return tuple(numbers)


def _sides(value: Any) -> int | Sides | None:
    """A length, or (height, width), of what other libraries call a size."""
    if isinstance(value, (list, tuple)):
        return int(value[0]) if len(value) == 1 else (int(value[0]), int(value[1]))
    return None if value is None else int(value)


def _pair(sides: int | Sides | None) -> Sides:
    if sides is None or isinstance(sides, int):
        return (sides or 0, sides or 0)
    return sides


def _interpolation(value: Any) -> str:
    """Another library's interpolation by Pillow's name: an enum's member, a number or a name."""
    if value is None:
        return "bilinear"
    if isinstance(value, int):
        return Image.Resampling(value).name.lower()
    return str(getattr(value, "value", value)).lower()


def _check_sides(word: str, sides: Any) -> None:
    """Refuses a size that is none, or larger than MAX_INPUT_PIXELS."""
    if sides is None and word != "size":
        return
    values = sides if isinstance(sides, (tuple, list)) else (sides, sides)
    if len(values) != 2 or any(type(v) is not int or v < 1 for v in values):
        raise ImageError(
            f"{word}={sides!r} is not a size; give (height, width) in whole numbers from 1 up."
        )
    if math.prod(values) > MAX_INPUT_PIXELS:
        raise ImageError(
            f"{word}={sides!r} asks for {math.prod(values) / 1e6:.0f} million pixels; at most "
            f"{MAX_INPUT_PIXELS // 1_000_000} million are legal."
        )


def _times(sides: int | Sides | None) -> str:
    height, width = _pair(sides)
    return f"{width}×{height}"


def _name_of(thing: Any) -> str:
    return str(getattr(thing, "__name__", None) or type(thing).__name__)


def _kind_of(thing: Any) -> str:
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        word = "a tensor" if isinstance(thing, torch.Tensor) else "an array"
        return f"{word} {tuple(thing.shape)} of {thing.dtype}"
    name = _name_of(thing)
    if isinstance(thing, type):
        return f"the class {name}"
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"

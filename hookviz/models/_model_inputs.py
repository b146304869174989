"""How a model is called with an image.

Conventions: classifiers, segmentation and the user's own modules take the batch (N, 3, H, W);
torchvision's detection takes a list of (3, H, W); video takes (N, 3, T, H, W), the image
repeated T times; optical flow takes two frames, the image twice; Hugging Face modules take the
keyword ``pixel_values``.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
import torchvision.models as tv
from torch import Tensor, nn

from hookviz._text import bytes_text, shape_text
from hookviz.errors import ModelError
from hookviz.models._loaded_model import LoadedModel, Task, task_of

FRAMES = 16
"""How often the image is repeated for a video model: torchvision's MViT takes just 16, S3D at
least 14, the others any number."""

_FLOW_STEP = 8
_FLOW_BYTES = 2**31
_HF_VIDEO = ("videomae", "vivit", "timesformer", "vjepa2")
# RGB to grey as PIL's "L" does it (ITU-R 601-2).
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class InputHints:
    """What a model takes.

    Attributes:
        convention: "batch", "list of images", "video", "two frames" or "pixel_values".
        frames: How often the image is repeated for video; 0 otherwise.
        fixed_size: The only (height, width) that the model takes; None where it takes others.
        min_size: The smallest (height, width).
        channels: 3, or 1 where the first layer takes grey.
        sentence: The convention for people; "" for a plain batch.
    """

    convention: str
    frames: int = 0
    fixed_size: tuple[int, int] | None = None
    min_size: tuple[int, int] = (1, 1)
    channels: int = 3
    sentence: str = ""


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside DataParallel, DistributedDataParallel and ``torch.compile``."""
    while True:
        wrapped = isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = module.module if wrapped else getattr(module, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def is_hugging_face(module: nn.Module) -> bool:
    """Whether a module follows the conventions of the transformers library (by its looks)."""
    module = unwrapped(module)
    return hasattr(getattr(module, "config", None), "model_type") and hasattr(
        module, "main_input_name"
    )


def _min_size(builder: str) -> tuple[int, int]:
    """The smallest (height, width) that torchvision states for a builder; (1, 1) where none."""
    enum = tv.get_model_weights(builder) if builder in tv.list_models() else None
    default = getattr(enum, "DEFAULT", None)
    return (1, 1) if default is None else tuple(default.meta.get("min_size", (1, 1)))


def infer_task(module: nn.Module) -> Task:
    """What a module answers, by its class; "unknown" for the user's own classes."""
    tasks = [task_of(kind.__module__) for kind in type(unwrapped(module)).__mro__]
    return next((task for task in tasks if task != "unknown"), "unknown")


def expected_input(model: LoadedModel) -> InputHints:
    """How a model is fed.

    Args:
        model: Any model; a module passed in is known by its class and its first layer.

    Returns:
        The convention, and which sizes and channels fit it.

    Raises:
        ModelError: A Hugging Face module takes no image, or text beside it.

    Examples:
        >>> from hookviz.models import load_model
        >>> expected_input(load_model("r3d_18", weights=None)).sentence
        'The image is repeated as 16 equal frames.'
    """
    module = unwrapped(model.module)
    fixed = fixed_size(module)
    smallest = fixed or _min_size(model.builder)
    if is_hugging_face(module):
        return _hugging_face_hints(module)
    if model.task == "detection":
        return InputHints("list of images", min_size=smallest)
    if model.task == "optical_flow":
        return InputHints(
            "two frames",
            min_size=smallest,
            sentence="The image is fed as both frames, its right and lower edge repeated to a "
            f"multiple of {_FLOW_STEP} pixels.",
        )
    weight = next((p for p in module.parameters() if p.ndim >= 2), None)
    if model.task == "video" or (weight is not None and weight.ndim == 5):
        sentence = f"The image is repeated as {FRAMES} equal frames."
        return InputHints("video", FRAMES, fixed, smallest, sentence=sentence)
    first = (m for m in module.modules() if isinstance(m, nn.Conv2d) and m.weight is weight)
    grey = any(convolution.in_channels == 1 for convolution in first)
    return InputHints("batch", 0, fixed, smallest, channels=1 if grey else 3)


def feed(model: LoadedModel, tensor: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that show a batch of images to a model.

    Args:
        model: What is called: ``args, kwargs = feed(model, x); model.module(*args, **kwargs)``.
        tensor: (N, 3, H, W) or (3, H, W), floating point, normalised as the model wants it.

    Returns:
        Positional and keyword arguments, on the model's device and in its dtype. A view of
        ``tensor`` where nothing had to be changed.

    Raises:
        ModelError: The model cannot take such an image, or needs more than an image.
    """
    if not isinstance(tensor, Tensor):
        raise ModelError(f"A model is fed with a tensor (N, 3, H, W), not {type(tensor).__name__}.")
    if tensor.ndim == 3:
        tensor = tensor[None]
    if tensor.ndim != 4 or not tensor.is_floating_point() or 0 in tensor.shape:
        raise ModelError(
            f"A model is fed with floating-point images (N, 3, H, W), not {tensor.dtype} of shape "
            f"{tuple(tensor.shape)}."
        )
    hints = expected_input(model)
    _check_size(model.name, hints, tensor)
    if tensor.is_meta and model.device.type != "meta":
        raise ModelError("The images are on the meta device and have no values.")
    batch = tensor.to(device=model.device, dtype=model.dtype)
    if hints.channels == 1 and batch.shape[1] == 3:
        weight = batch.new_tensor(_LUMA)[None, :, None, None]
        batch = (batch * weight).sum(dim=1, keepdim=True)
    if hints.convention == "list of images":
        return (list(batch),), {}
    if hints.convention == "two frames":
        frame = _padded_flow_frame(model.name, batch)
        return (frame, frame.clone()), {}
    if hints.convention == "video":
        # A real copy: an expanded view shares memory, and in-place layers would refuse it.
        return (batch[:, :, None].repeat(1, 1, hints.frames, 1, 1),), {}
    if hints.convention == "pixel_values":
        if hints.frames:
            batch = batch[:, None].repeat(1, hints.frames, 1, 1, 1)
        return (), {"pixel_values": batch}
    return (batch,), {}


def _check_size(name: str, hints: InputHints, tensor: Tensor) -> None:
    height, width = tensor.shape[-2:]
    given = f"{width}×{height}"
    if hints.fixed_size is not None and (height, width) != hints.fixed_size:
        wanted = shape_text(hints.fixed_size[::-1])
        raise ModelError(
            f"'{name}' takes images of {wanted} pixels only, not {given}.",
            remedy=f"Choose a preprocessing that ends in {wanted}.",
            code="image-size",
            details={"height": hints.fixed_size[0], "width": hints.fixed_size[1]},
        )
    if height < hints.min_size[0] or width < hints.min_size[1]:
        least = shape_text(hints.min_size[::-1])
        raise ModelError(f"'{name}' takes images of at least {least} pixels, not {given}.")


def fixed_size(module: nn.Module) -> tuple[int, int] | None:
    """The size that torchvision's and timm's position tables are cut for."""
    kind = type(module)
    part: Any = module
    if kind.__module__.startswith("torchvision.models."):
        if kind.__name__ == "VisionTransformer":
            return part.image_size, part.image_size
        if kind.__name__ == "MViT":
            rows, columns = part.pos_encoding.spatial_size
            _, down, right = part.conv_proj.stride
            return rows * down, columns * right
        if kind.__name__ == "MaxVit":
            rows, columns = part.blocks[0].grid_size
            return 4 * rows, 4 * columns  # the stem and the block halve it
    patches = getattr(module, "patch_embed", None)
    size = getattr(patches, "img_size", None)
    strict = getattr(patches, "strict_img_size", False)
    if strict and not getattr(module, "dynamic_img_size", False) and isinstance(size, tuple):
        return int(size[0]), int(size[-1])
    return None


def _padded_flow_frame(name: str, batch: Tensor) -> Tensor:
    height, width = batch.shape[-2:]
    below, right = -height % _FLOW_STEP, -width % _FLOW_STEP
    # RAFT compares every position with every other one: memory grows with the square.
    positions = ((height + below) // _FLOW_STEP) * ((width + right) // _FLOW_STEP)
    if positions**2 * 4 > _FLOW_BYTES:
        raise ModelError(
            f"'{name}' would need {bytes_text(positions**2 * 4, binary=True)} for the correlations "
            f"of a {width}×{height} image.",
            remedy="Choose a preprocessing that makes it smaller, for example 520 pixels.",
        )
    return F.pad(batch, (0, right, 0, below), mode="replicate")


def _hugging_face_hints(module: nn.Module) -> InputHints:
    config: Any = module.config
    takes = inspect.signature(module.forward).parameters
    name = type(module).__name__
    main = str(module.main_input_name)
    if "pixel_values" not in takes:
        raise ModelError(
            f"The module {name} takes '{main}', no image (pixel_values).",
            remedy="Pass a vision model.",
        )
    if main != "pixel_values" or "input_ids" in takes:
        raise ModelError(
            f"The module {name} takes text beside the image (input_ids).",
            remedy="Pass its vision part, for example model.vision_model.",
        )
    video = str(config.model_type) in _HF_VIDEO
    frames = int(getattr(config, "num_frames", FRAMES)) if video else 0
    sentence = f"The image is repeated as {frames} equal frames." if frames else ""
    return InputHints("pixel_values", frames, sentence=sentence)

"""First version."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from hookviz.errors import ImageError
from hookviz.images.picture import Picture, clean_name, pixel_hash


def read_image(
    source: Any,
    *,
    name: str | None = None,
    max_bytes: int = 50_000_000,
    max_pixels: int = 64_000_000,
) -> Picture:
    """First version."""
    if isinstance(source, Picture):
        return source
    if isinstance(source, torch.Tensor):
        source = source.detach().cpu().permute(1, 2, 0).numpy()
    if isinstance(source, np.ndarray):
        if source.dtype.kind == "f":
            source = (source * 255).round().astype(np.uint8)
        image = Image.fromarray(source).convert("RGB")
        return Picture(image, clean_name(name or "array"), pixel_hash(image), "array", image.size)
    if isinstance(source, Image.Image):
        image = ImageOps.exif_transpose(source).convert("RGB")
        return Picture(image, clean_name(name or "image"), pixel_hash(image), "image", source.size)
    if isinstance(source, (str, Path)):
        name = name or str(source)
        source = Path(source).read_bytes()
    elif hasattr(source, "read"):
        source = source.read()
    data = bytes(source)
    label = clean_name(name or "image")
    try:
        opened = Image.open(io.BytesIO(data))
        opened.load()
    except Exception as error:  # noqa: BLE001 - first version
        raise ImageError(f"'{label}' is not a picture that can be read.") from error
    image = ImageOps.exif_transpose(opened).convert("RGB")
    return Picture(
        image, label, hashlib.sha256(data).hexdigest(), opened.format or "?", opened.size
    )

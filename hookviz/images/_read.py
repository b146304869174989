"""Any source → Picture: files, bytes, streams, PIL images, arrays, uploads, sample photos.

Limits: 50 MB of file and 64 million pixels by default, checked before decoding. At the limits one
call takes about 1 GB of memory at its peak and 1 to 3 seconds of processor time (measured, see
``python -m benchmarks.image_limits``); what is returned takes 4 bytes a pixel.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from hookviz._text import bytes_text, names_text, shape_text
from hookviz.bundled import SAMPLE_IMAGES, bundled_file
from hookviz.errors import ImageError, did_you_mean
from hookviz.images._decode import decode, refusing, warnings_as_notes
from hookviz.images._formats import ACCEPTED, file_kind
from hookviz.images._limits import MAX_BYTES, MAX_PIXELS, check_size
from hookviz.images._picture import Picture, clean_name, pixel_hash
from hookviz.images._rgb import array_to_rgb, tensor_to_array, to_rgb

# EXIF's orientations and what turns the stored image upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION_TAG = 0x0112
_TURNED = "Turned upright by its EXIF orientation."


def read_image(
    source: Any,
    *,
    name: str | None = None,
    max_bytes: int = MAX_BYTES,
    max_pixels: int = MAX_PIXELS,
    layout: str | None = None,
) -> Picture:
    """Reads an image from anything that holds one.

    Args:
        source: A path; the file's bytes (bytes, bytearray, memoryview); an open binary file (read
            from where it stands); a PIL image; a NumPy array: (H, W), (H, W, C) or (C, H, W) of
            uint8, uint16, bool or floats within 0..1; a tensor of the same kinds, (C, H, W)
            first; a Picture, which is returned as it is; the value of an ipywidgets
            ``FileUpload`` with one file in it, or that file. See _rgb.py for the rules on axes,
            values, transparency, 16 bits, floats and color profiles.
        name: What to call it in sentences and files; default the file's base name.
        max_bytes: Largest file, default 50 million bytes.
        max_pixels: Largest image, default 64 million pixels; formats whose decoders are slow
            have a lower limit (JPEG 2000 24 million, QOI 16 million, HEIC 48 million).
        layout: "HWC" or "CHW", for arrays and tensors whose shape does not tell.

    Returns:
        RGB, 8 bits, upright, sRGB, opaque, decoded in full; the first frame of an animation.

    Raises:
        ImageError: There is no image in it, it is damaged, or it is beyond the limits.

    Examples:
        >>> import numpy as np
        >>> picture = read_image(np.zeros((2, 3), np.uint8), name="black")
        >>> picture.describe()
        'black: array, 3×2 pixels'
        >>> read_image(b"%PDF-1.7", name="paper.png")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        hookviz.errors.ImageError: 'paper.png' cannot be read: it is a PDF document. ...
    """
    check_limits(max_bytes=max_bytes, max_pixels=max_pixels)
    if isinstance(source, Picture):
        return source if name is None else replace(source, name=clean_name(name))
    if isinstance(source, (torch.Tensor, np.ndarray, np.generic)):
        return _from_array(source, name, layout, max_pixels)
    if isinstance(source, Image.Image):
        return warnings_as_notes(lambda: _from_image(source, name, max_pixels))
    data, label = bytes_of(source, name, max_bytes)
    picture = warnings_as_notes(lambda: _from_bytes(data, label, max_pixels))
    if isinstance(source, (str, os.PathLike)):
        return replace(picture, path=str(_path(os.fspath(source)).absolute()))
    return replace(picture, data=data)


def check_limits(**limits: Any) -> None:
    """Refuses what is no whole number from 1 up."""
    for word, limit in limits.items():
        if not isinstance(limit, int) or limit < 1:
            raise ImageError(f"{word}={limit!r} is not a limit; give a whole number from 1 up.")


def bytes_of(source: Any, name: str | None, max_bytes: int) -> tuple[bytes, str]:
    """The bytes of a file, and what to call it.

    Raises:
        ImageError: It is no source of bytes, cannot be read, or has more than ``max_bytes``.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        label = clean_name(name or "")
        count = source.nbytes if isinstance(source, memoryview) else len(source)
        _check_bytes(count, label, max_bytes)
        return bytes(source), label
    if isinstance(source, (str, os.PathLike)):
        return _file_bytes(os.fsdecode(os.fspath(source)), name, max_bytes)
    if callable(getattr(source, "read", None)):
        return _stream_bytes(source, name, max_bytes)
    if (upload := _uploaded_file(source)) is not None:
        return bytes_of(upload[1], name or upload[0], max_bytes)
    raise ImageError(
        f"A {type(source).__name__} is no image; give a path, bytes, an open file, a PIL image, "
        f"an array or a tensor."
    )


def _path(path: str | bytes) -> Path:
    return Path(os.fsdecode(path)).expanduser()


def _file_bytes(path: str, name: str | None, max_bytes: int) -> tuple[bytes, str]:
    label = clean_name(name or path)
    if path.lower().startswith(("http://", "https://", "ftp://", "data:", "s3://")):
        inside = path.lower().startswith("data:")
        raise ImageError(
            f"'{label}' is an address, and hookviz reads files.",
            remedy="Decode it with base64 first." if inside else "Download the image first.",
        )
    file = _path(path)
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            folder = stat.S_ISDIR(found.st_mode)
            kind = "a folder" if folder else "a pipe or a device"  # which may never end
            raise ImageError(f"'{label}' is {kind}; give one image file.")
        _check_bytes(found.st_size, label, max_bytes)
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise ImageError(f"There is no file '{label}' at the path given.") from None
    except (OSError, ValueError) as error:
        # ValueError: a NUL character in the path.
        reason = getattr(error, "strerror", None) or "the path is not legal"
        raise ImageError(f"'{label}' cannot be read: {reason}.") from error
    _check_bytes(len(data), label, max_bytes)
    return data, label


def _stream_bytes(stream: Any, name: str | None, max_bytes: int) -> tuple[bytes, str]:
    own = getattr(stream, "name", None)
    label = clean_name(name or (own if isinstance(own, str) else ""))
    data = bytearray()
    try:
        # A raw stream or a socket may give less than asked for.
        while len(data) <= max_bytes and (piece := stream.read(max_bytes + 1 - len(data))):
            if isinstance(piece, str):
                raise ImageError(
                    f"'{label}' was opened as a text.", remedy='Open it with open(path, "rb").'
                )
            data += piece
    except (OSError, ValueError) as error:
        raise ImageError(f"'{label}' cannot be read: {error}.") from error
    _check_bytes(len(data), label, max_bytes)
    with suppress(OSError, ValueError, AttributeError, TypeError):
        if not data and stream.tell() > 0:
            raise ImageError(
                f"'{label}' gave no bytes: the file stands at its end.",
                remedy="Call seek(0) first.",
            )
    return bytes(data), label


def _check_bytes(count: int, label: str, max_bytes: int) -> None:
    if count > max_bytes:
        raise ImageError(
            f"'{label}' has {bytes_text(count)}, and at most {bytes_text(max_bytes)} are read.",
            remedy="Make it smaller.",
        )


def _from_bytes(data: bytes, label: str, max_pixels: int) -> Picture:
    kind = file_kind(data, label)
    if not kind.pillow:
        raise ImageError(
            f"'{label}' cannot be read: it is {kind.words}.",
            remedy=" ".join(filter(None, (f"hookviz opens {ACCEPTED}.", kind.advice))),
        )
    with refusing(label, kind.words):
        decoded, facts, notes = decode(data, kind.pillow, max_pixels)
        form = decoded.format or kind.pillow
        image, more = to_rgb(decoded, facts.bits, facts.inverted, sixteen=form == "PPM")
        if facts.oriented in _UPRIGHT:
            turned: tuple[str, ...] = (_TURNED,)  # by Pillow, while it loaded a TIFF
        else:
            image, turned = upright(decoded, image)
    digest = hashlib.sha256(data).hexdigest()
    return Picture(image, label, digest, form, facts.size, (*notes, *more, *turned))


def _from_image(source: Image.Image, name: str | None, max_pixels: int) -> Picture:
    own = getattr(source, "filename", "")
    label = clean_name(name or (own if isinstance(own, str) else ""))
    size = source.size
    with refusing(label, f"an image of mode {source.mode}"):
        check_size(size, max_pixels)
        source.load()
        image, notes = to_rgb(source)
        image, turned = upright(source, image)
    digest = pixel_hash(image)
    return Picture(image, label, digest, source.format or "image", size, (*notes, *turned))


def _from_array(source: Any, name: str | None, layout: str | None, max_pixels: int) -> Picture:
    tensor = isinstance(source, torch.Tensor)
    word = "tensor" if tensor else "array"
    label = clean_name(name or word)
    array = tensor_to_array(source) if tensor else source
    if array.size == 0:
        raise ImageError(
            f"'{label}' has the shape {shape_text(array.shape)}, which holds no pixels."
        )
    first = "CHW" if tensor else "HWC"
    with refusing(label, "a tensor" if tensor else "an array"):
        image, notes = array_to_rgb(array, label, layout, first, max_pixels)
    return Picture(image, label, pixel_hash(image), word, image.size, notes)


def upright(source: Image.Image, image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Turns ``image`` as the EXIF data of ``source`` say."""
    try:
        orientation = source.getexif().get(_ORIENTATION_TAG)
    except Warning:
        raise
    except Exception:  # noqa: BLE001 - Pillow raises almost anything for damaged EXIF data
        return image, ("The EXIF data in the file are damaged and were ignored.",)
    if not isinstance(orientation, int) or orientation not in _UPRIGHT:
        return image, ()
    return image.transpose(_UPRIGHT[orientation]), (_TURNED,)


def _uploaded_file(value: Any) -> tuple[str, Any] | None:
    """Name and bytes of the one file in the value of an ipywidgets FileUpload; None: it is none.

    Version 8 gives a tuple of mappings with "name" and "content"; version 7 a mapping from file
    name to a mapping with "content", and the name again under "metadata".
    """
    # A file may itself be called "content"; then what stands there is a mapping.
    if isinstance(value, Mapping) and isinstance(value.get("content", {}), Mapping):
        items = list(value.items())
    else:
        items = [("", item) for item in (value if isinstance(value, (tuple, list)) else [value])]
    if not all(isinstance(item, Mapping) for _, item in items):
        return None
    files = []
    for key, item in items:
        details = item.get("metadata")
        inner = details.get("name") if isinstance(details, Mapping) else None
        files.append((clean_name(str(item.get("name") or inner or key)), item.get("content")))
    if len(files) > 1:
        names = names_text(name for name, _ in files)
        raise ImageError(f"There are {len(files)} files in this upload: {names}; give one of them.")
    lost = "Files above about 10 MB are lost by this control: drop the file on hookviz's app, "
    lost += "or give its path."
    if not files:
        raise ImageError("No file has arrived in this upload.", remedy=lost)
    name, content = files[0]
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise ImageError(f"The uploaded file '{name}' arrived without its bytes.", remedy=lost)
    return name, content


# Sample photos


def sample_images() -> tuple[str, ...]:
    """Names of the photos that ship with hookviz.

    Examples:
        >>> sample_images()[0]
        'chelsea.png'
    """
    return SAMPLE_IMAGES


def sample_image(name: str = "chelsea.png") -> Picture:
    """One of the photos that ship with hookviz, all free of rights (assets/README.md).

    Args:
        name: One of ``sample_images()``, with or without its ending; default the cat.

    Returns:
        The picture.

    Raises:
        ImageError: There is no sample of that name.

    Examples:
        >>> sample_image().size
        (451, 300)
    """
    found = next((n for n in SAMPLE_IMAGES if name in (n, n.rsplit(".", 1)[0])), None)
    if found is None:
        raise ImageError(
            f"There is no sample photo '{name}'; there are {', '.join(SAMPLE_IMAGES)}.",
            remedy=did_you_mean(name, SAMPLE_IMAGES) or None,
        )
    return read_image(bundled_file("assets", found))

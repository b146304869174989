"""Any source → Picture.

In: a path, bytes, a file object, a PIL image, an array, a tensor or a Picture. Out: a Picture, or
an ImageError of one sentence that names the source, what it is, and what is accepted.
Must not know: models, figures, widgets.

Limits: 50 MB of file and 64 million pixels by default, checked before decoding. At the limits one
call takes about 1 GB of memory at its peak and 1 to 3 seconds of processor time (measured, see
``python -m benchmarks.image_limits``); what is returned takes 4 bytes a pixel.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images._arrays import array_to_rgb, is_array, tensor_to_array
from hookviz.images._decode import decode, load_open_image
from hookviz.images._file_upload import is_upload, uploaded_file
from hookviz.images._limits import MAX_BYTES, MAX_PIXELS, megabytes
from hookviz.images._picture import Picture, clean_name, pixel_hash
from hookviz.images._quiet import collected_warnings
from hookviz.images._rgb import to_rgb
from hookviz.images._signatures import ACCEPTED, file_kind

__all__ = ["read_image"]

# EXIF's orientations and what turns the stored picture upright.
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
    """Reads a picture from anything that holds one.

    Args:
        source: A path; the file's bytes (bytes, bytearray, memoryview); an open binary file (read
            from where it stands); a PIL image; a NumPy array: (H, W), (H, W, C) or (C, H, W) of
            uint8, uint16, bool or floats within 0..1; a tensor of the same kinds, (C, H, W)
            first; a Picture, which is returned as it is; the value of an ipywidgets
            ``FileUpload`` with one file in it, or that file. See arrays.py for the rules in full,
            colour.py for transparency, 16 bits, floats and colour profiles.
        name: What to call it in sentences and files; default the file's base name.
        max_bytes: Largest file, default 50 million bytes.
        max_pixels: Largest picture, default 64 million pixels; formats whose decoders are slow
            have a lower limit (JPEG 2000 24 million, QOI 16 million, HEIC 48 million).
        layout: "HWC" or "CHW", for arrays and tensors whose shape does not tell.

    Returns:
        RGB, 8 bits, upright, sRGB, opaque, decoded in full; the first frame of an animation.

    Raises:
        ImageError: There is no picture in it, it is damaged, or it is beyond the limits.

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
    for word, limit in (("max_bytes", max_bytes), ("max_pixels", max_pixels)):
        if not isinstance(limit, int) or limit < 1:
            raise ImageError(f"{word}={limit!r} is not a limit; give a whole number from 1 up.")
    if isinstance(source, Picture):
        return source if name is None else replace(source, name=clean_name(name))
    if isinstance(source, torch.Tensor) or is_array(source):
        return _from_array(source, name, layout, max_pixels)
    if isinstance(source, Image.Image):
        return _from_image(source, name, max_pixels)
    data, label = _bytes_of(source, name, max_bytes)
    return _from_bytes(data, label, max_pixels)


def _bytes_of(source: Any, name: str | None, max_bytes: int) -> tuple[bytes, str]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        label = clean_name(name or "")
        count = source.nbytes if isinstance(source, memoryview) else len(source)
        _check_bytes(count, label, max_bytes)
        return bytes(source), label
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        return _file_bytes(os.fsdecode(path), name, max_bytes)
    if callable(getattr(source, "read", None)):
        return _stream_bytes(source, name, max_bytes)
    if is_upload(source):
        label, data = uploaded_file(source)
        return _bytes_of(data, name or label, max_bytes)
    raise ImageError(
        f"A {type(source).__name__} is no picture; give a path, bytes, an open file, a PIL image, "
        f"an array or a tensor."
    )


def _file_bytes(path: str, name: str | None, max_bytes: int) -> tuple[bytes, str]:
    label = clean_name(name or path)
    if path.lower().startswith(("http://", "https://", "ftp://", "data:", "s3://")):
        raise ImageError(
            f"'{label}' is an address, and hookviz reads files.",
            remedy="Download the picture first.",
        )
    file = Path(path).expanduser()
    try:
        found = file.stat()
        if stat.S_ISDIR(found.st_mode):
            raise ImageError(f"'{label}' is a folder; give one picture file.")
        if not stat.S_ISREG(found.st_mode):
            # A pipe or device may never end.
            raise ImageError(f"'{label}' is a pipe or a device; give a picture file.")
        _check_bytes(found.st_size, label, max_bytes)
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise ImageError(f"There is no file '{label}' at the path given.") from None
    except PermissionError:
        raise ImageError(f"'{label}' may not be read: permission was denied.") from None
    except (OSError, ValueError) as error:
        # ValueError: a NUL character in the path.
        reason = getattr(error, "strerror", None) or "the path is not legal"
        raise ImageError(f"'{label}' cannot be read: {reason}.") from error
    _check_bytes(len(data), label, max_bytes)
    return data, label


def _stream_bytes(stream: Any, name: str | None, max_bytes: int) -> tuple[bytes, str]:
    own = getattr(stream, "name", None)
    label = clean_name(name or (own if isinstance(own, str) else ""))
    pieces: list[bytes] = []
    total = 0
    try:
        # A raw stream or a socket may give less than asked for.
        while total <= max_bytes:
            piece = stream.read(max_bytes + 1 - total)
            if not piece:
                break
            if isinstance(piece, str):
                raise ImageError(
                    f"'{label}' was opened as a text.", remedy='Open it with open(path, "rb").'
                )
            pieces.append(bytes(piece))
            total += len(piece)
    except (OSError, ValueError) as error:
        raise ImageError(f"'{label}' cannot be read: {error}.") from error
    _check_bytes(total, label, max_bytes)
    if total == 0 and _stands_at_end(stream):
        raise ImageError(
            f"'{label}' gave no bytes: the file stands at its end.", remedy="Call seek(0) first."
        )
    return b"".join(pieces), label


def _stands_at_end(stream: Any) -> bool:
    try:
        return bool(stream.tell() > 0)
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _check_bytes(count: int, label: str, max_bytes: int) -> None:
    if count > max_bytes:
        raise ImageError(
            f"'{label}' has {megabytes(count)}, and at most {megabytes(max_bytes)} are read.",
            remedy="Make the picture smaller, or raise max_bytes.",
        )


def _from_bytes(data: bytes, label: str, max_pixels: int) -> Picture:
    kind = file_kind(data, label)
    if not kind.pillow:
        raise ImageError(
            f"'{label}' cannot be read: it is {kind.words}.",
            remedy=" ".join(filter(None, (f"hookviz opens {ACCEPTED}.", kind.advice))),
        )
    decoded = decode(data, kind, label, max_pixels=max_pixels)
    header = decoded.header
    image, notes = _converted(
        decoded.image,
        label,
        kind.words,
        bits=header.bits,
        inverted=header.inverted,
        sixteen=decoded.format == "PPM",
    )
    if header.oriented in _UPRIGHT:
        turned: tuple[str, ...] = (_TURNED,)  # by Pillow, while it loaded a TIFF
    else:
        image, turned = _upright(decoded.image, image)
    digest = hashlib.sha256(data).hexdigest()
    notes = (*decoded.notes, *notes, *turned)
    return Picture(image, label, digest, decoded.format, decoded.size, notes)


def _from_image(source: Image.Image, name: str | None, max_pixels: int) -> Picture:
    own = getattr(source, "filename", "")
    label = clean_name(name or (own if isinstance(own, str) else ""))
    size = source.size
    load_open_image(source, label, max_pixels=max_pixels)
    image, notes = _converted(source, label, f"a picture of mode {source.mode}")
    image, turned = _upright(source, image)
    notes = (*notes, *turned)
    return Picture(image, label, pixel_hash(image), source.format or "image", size, notes)


def _converted(
    image: Image.Image, label: str, words: str, **facts: Any
) -> tuple[Image.Image, tuple[str, ...]]:
    try:
        with collected_warnings():
            return to_rgb(image, **facts)
    except MemoryError:
        raise ImageError(f"'{label}' does not fit into memory.") from None
    except (OSError, ValueError, SyntaxError, KeyError, TypeError) as error:
        # A damaged palette shows only when colours are made of it.
        raise ImageError(
            f"'{label}' cannot be read: it is {words} whose colours make no sense."
        ) from error


def _from_array(source: Any, name: str | None, layout: str | None, max_pixels: int) -> Picture:
    tensor = isinstance(source, torch.Tensor)
    word = "tensor" if tensor else "array"
    label = clean_name(name or word)
    array = tensor_to_array(source) if tensor else source
    if array.size == 0:
        shape = "×".join(map(str, array.shape))
        raise ImageError(f"'{label}' has the shape {shape}, which holds no pixels.")
    first = "CHW" if tensor else "HWC"
    image, notes = array_to_rgb(
        array, name=label, layout=layout, first=first, max_pixels=max_pixels
    )
    return Picture(image, label, pixel_hash(image), word, image.size, notes)


def _upright(source: Image.Image, image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Turns ``image`` as the EXIF data of ``source`` say."""
    try:
        orientation = source.getexif().get(_ORIENTATION_TAG)
    except Exception:  # noqa: BLE001 - Pillow raises almost anything for damaged EXIF data
        return image, ("The EXIF data in the file are damaged and were ignored.",)
    if not isinstance(orientation, int) or orientation not in _UPRIGHT:
        return image, ()
    return image.transpose(_UPRIGHT[orientation]), (_TURNED,)

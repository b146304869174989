"""Images in, network inputs out, and back to an image.

In: a path, bytes, a file object, a PIL image, an array or a tensor. Out: Picture and NetworkInput.
Must not know: models, hooks, figures, widgets.
"""

from __future__ import annotations

from hookviz.images._formats import FileKind, file_kind
from hookviz.images._frames import (
    ANIMATED,
    Frames,
    are_images,
    frames_in,
    read_frames,
    sample_frames,
)
from hookviz.images._limits import MAX_BYTES
from hookviz.images._network_input import NetworkInput, network_input
from hookviz.images._picture import Picture, clean_name
from hookviz.images._preprocessing import Box, Preprocessing
from hookviz.images._read import read_image, sample_image, sample_images
from hookviz.images._source import source_box

__all__ = [
    "ANIMATED",
    "MAX_BYTES",
    "Box",
    "FileKind",
    "Frames",
    "NetworkInput",
    "Picture",
    "Preprocessing",
    "are_images",
    "clean_name",
    "file_kind",
    "frames_in",
    "network_input",
    "read_frames",
    "read_image",
    "sample_frames",
    "sample_image",
    "sample_images",
    "source_box",
]

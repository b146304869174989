"""Pictures in, network inputs out, and back to a picture.

In: a path, bytes, a file object, a PIL image, an array or a tensor. Out: Picture and NetworkInput.
Must not know: models, hooks, figures, widgets.
"""

from __future__ import annotations

from hookviz.images._limits import MAX_BYTES
from hookviz.images._network_input import NetworkInput, network_input
from hookviz.images._picture import Picture
from hookviz.images._preprocessing import Box, Preprocessing
from hookviz.images._read import read_image
from hookviz.images._samples import sample_image, sample_images
from hookviz.images._upload import UploadBuffer

__all__ = [
    "MAX_BYTES",
    "Box",
    "NetworkInput",
    "Picture",
    "Preprocessing",
    "UploadBuffer",
    "network_input",
    "read_image",
    "sample_image",
    "sample_images",
]

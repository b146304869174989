"""Pictures in, network inputs out, and back to a picture.

In: a path, bytes, a file object, a PIL image, an array or a tensor. Out: Picture and NetworkInput.
Must not know: models, hooks, figures, widgets.
"""

from __future__ import annotations

from hookviz.images.geometry import Box
from hookviz.images.network_input import NetworkInput, network_input
from hookviz.images.picture import Picture
from hookviz.images.preprocessing import Preprocessing
from hookviz.images.read import read_image
from hookviz.images.samples import sample_image, sample_images

__all__ = [
    "Box",
    "NetworkInput",
    "Picture",
    "Preprocessing",
    "network_input",
    "read_image",
    "sample_image",
    "sample_images",
]

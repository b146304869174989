"""What a run was: model, weights, image, preprocessing, device, versions.

In: plain values that the caller knows. Out: a frozen record. Must not know: how a run is made,
how its facts are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from PIL import Image

__all__ = ["RunFacts", "base_name", "hidden_paths", "utc_text"]

_NO_REASONS: Mapping[str, str] = {}


def base_name(path: str) -> str:
    r"""The last part of a path of any system, so that no file tells where things lie.

    Examples:
        >>> base_name("/home/me/dog.jpg"), base_name("C:\\me\\dog.jpg"), base_name("dog")
        ('dog.jpg', 'dog.jpg', 'dog')
    """
    parts = [part for part in re.split(r"[/\\]", path) if part]
    return parts[-1] if parts else ""


# At least two separators, so that "mean/std" and URLs stay.
_PATH_IN_TEXT = re.compile(r"(?<![\w.:/\\])(?:~|[A-Za-z]:)?[/\\][^\s'\"]*[/\\]([^\s'\"/\\]+)")


def hidden_paths(text: str) -> str:
    """``text`` in which each absolute path is its last part alone.

    Examples:
        >>> hidden_paths("file /home/me/my.pth, strict")
        'file my.pth, strict'
    """
    return _PATH_IN_TEXT.sub(r"\1", text)


def utc_text(moment: datetime) -> str:
    """A time as the files state it: ISO 8601, UTC, whole seconds.

    A time without a zone is taken as UTC.

    Examples:
        >>> utc_text(datetime(2026, 11, 4, 14, 22, 33, 999, tzinfo=UTC))
        '2026-11-04T14:22:33Z'
    """
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, eq=False)
class RunFacts:
    """What is true of every activation of one run.

    Attributes:
        model: The model's name, for example "vgg16".
        weights: Where its weights come from, in words.
        weights_hash: Hexadecimal digest over the weights; "" where it is not known.
        trained: False where the weights are random; every file then says UNTRAINED.
        image_name: Base name of the image.
        image_sha256: SHA-256 of the image's bytes (of its pixels where it had none).
        preprocessing: What was done to the image, in words.
        device: For example "cpu" or "cuda:0".
        dtype: The model's dtype, for example "float32".
        torch_version: Version of torch.
        hookviz_version: Version of hookviz.
        started: When the forward began; UTC.
        input_picture: What the network saw, as RGB; None where there was no image.
        categories: Class names of the model's last layer; () where it has none.
        missing: Layers that were asked for and were not captured, each with the reason.
    """

    model: str
    weights: str
    weights_hash: str
    trained: bool
    image_name: str
    image_sha256: str
    preprocessing: str
    device: str
    dtype: str
    torch_version: str
    hookviz_version: str
    started: datetime
    input_picture: Image.Image | None = None
    categories: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=lambda: _NO_REASONS)

    @classmethod
    def of_run(
        cls,
        *,
        model: Any,
        picture: Any,
        network_input: Any,
        started: datetime,
        missing: Mapping[str, str] | None = None,
    ) -> RunFacts:
        """The facts of one run, taken from its parts.

        Args:
            model: A ``hookviz.models.LoadedModel``. Its weights are hashed here, once.
            picture: A ``hookviz.images.Picture``, or None.
            network_input: A ``hookviz.images.NetworkInput``, or None.
            started: When the forward began.
            missing: Layers without an activation, each with the reason.
        """
        import torch

        from hookviz.version import __version__

        received = None if network_input is None else network_input.tensor
        return cls(
            model=model.name,
            weights=model.weights,
            weights_hash=model.weights_hash,
            trained=model.trained,
            image_name="" if picture is None else picture.name,
            image_sha256="" if picture is None else picture.sha256,
            preprocessing="" if network_input is None else network_input.description,
            device=str(model.device if received is None else received.device),
            dtype=str(model.dtype).removeprefix("torch."),
            torch_version=torch.__version__,
            hookviz_version=__version__,
            started=started,
            input_picture=None if network_input is None else network_input.picture(),
            categories=tuple(model.categories),
            missing=_NO_REASONS if missing is None else missing,
        )

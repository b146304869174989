"""What goes wrong, in one sentence each.

In: what was found and what is legal. Out: an exception whose text names both.
Must not know: any other part of hookviz, nor any library.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

__all__ = [
    "CaptureError",
    "DeviceError",
    "ExportError",
    "HookvizError",
    "ImageError",
    "LayerError",
    "ModelError",
    "MonitorError",
    "RenderError",
    "RunCancelled",
    "SurveyError",
    "WeightsError",
    "closest",
    "did_you_mean",
]


class HookvizError(Exception):
    """Base of every error that hookviz raises on purpose.

    Args:
        message: One sentence that names the thing, what was found and what is legal.
        remedy: What the user can do about it, as one short sentence; None where the message
            already says so. It speaks of Python: arguments and functions.
        code: Short fixed name of the fault, for example "no-such-channel", so that a program
            (the app has buttons where Python has arguments) can say the remedy in its own words
            without reading the sentence; "" where nothing depends on it.
        details: What the sentence names, by name, for the same purpose.
    """

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        code: str = "",
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
        self.details: dict[str, object] = dict(details or {})

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message} {self.remedy}"


class LayerError(HookvizError):
    """A layer selector matches nothing, or one output of several was asked for."""


class CaptureError(HookvizError):
    """A capture cannot be set up or used in the way that was asked."""


class RunCancelled(HookvizError):  # noqa: N818 - a request, not a fault
    """The forward was ended on request; what was captured before stays available."""


class ModelError(HookvizError):
    """A model is unknown, cannot be built or cannot take an image."""


class WeightsError(ModelError):
    """Weights are missing, corrupt, unsafe or do not fit the model."""


class DeviceError(HookvizError):
    """A device is unknown, absent or out of memory."""


class ImageError(HookvizError):
    """An image cannot be read, or is beyond the limits."""


class RenderError(HookvizError):
    """A tensor cannot be drawn in the way that was asked."""


class ExportError(HookvizError):
    """A file cannot be written, or a written one cannot be read back."""


class MonitorError(HookvizError):
    """A training cannot be watched in the way that was asked, or its folder cannot be read."""


class SurveyError(HookvizError):
    """A survey of a data set cannot be begun, gone on with or read."""


def closest(name: str, choices: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """The choices most like ``name``, best first.

    Args:
        name: What was asked for.
        choices: What is legal.
        count: At most this many.

    Returns:
        Up to ``count`` of the choices; empty where nothing is alike.

    Examples:
        >>> closest("layr1", ["layer1", "layer2", "fc"])
        ('layer1', 'layer2')
    """
    pool = list(dict.fromkeys(choices))
    found = difflib.get_close_matches(name, pool, n=count, cutoff=0.55)
    # A name without its prefix ("layer4.2.relu" for "model.layer4.2.relu") is the commonest slip
    # and difflib rates it low, so names that end or begin with it come first.
    kin = [
        c for c in pool if name and c != name and (c.endswith("." + name) or name.endswith("." + c))
    ]
    return tuple(dict.fromkeys([*kin, *found]))[:count]


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """A sentence that offers the closest choices, or nothing.

    Examples:
        >>> did_you_mean("layr1", ["layer1", "layer2", "fc"])
        "Did you mean 'layer1' or 'layer2'?"
        >>> did_you_mean("zzz", ["layer1"])
        ''
    """
    found = [f"'{c}'" for c in closest(name, choices)]
    if not found:
        return ""
    if len(found) == 1:
        return f"Did you mean {found[0]}?"
    return f"Did you mean {', '.join(found[:-1])} or {found[-1]}?"

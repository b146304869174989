"""The size and channels that a module takes, found by trial.

A copy of the module without its values (on torch's meta device) and without its hooks is called
with images of different sizes. Shapes alone are computed: nothing of the module moves, no random
number is drawn, and a forward of a large model takes milliseconds.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookviz._meta import without_values
from hookviz.errors import RunCancelled
from hookviz.models._model_inputs import unwrapped

ANY_SIZE = (301, 451)
"""Who takes this takes any size: both sides are odd, and no usual input has them."""

USUAL_SIDES = (
    224, 32, 28, 64, 256, 299, 384, 96, 128, 48, 227, 112, 160, 192, 240, 288, 320, 336, 448, 512,
    16, 84, 100, 150, 200, 260, 300, 331, 378, 392, 416, 480, 518, 560, 600, 640, 768, 1024,
)  # fmt: skip
"""Sides of square inputs, the commonest first: 224 for ImageNet, 32 CIFAR, 28 digits …"""

RATIOS = ((3, 4), (4, 3), (1, 2), (2, 1), (9, 16), (16, 9), (2, 3), (3, 2), (1, 3), (3, 1))
"""Height to width, tried where no square fits."""

MAX_SIDE = 2048
SECONDS = 3.0
"""After this no layer is called any more; then the size counts as not found."""

_TOO_SMALL = re.compile("Kernel size can't be|[Oo]utput size is too small|should be less|too small")


@dataclass(frozen=True)
class InputSize:
    """What a module takes.

    Attributes:
        channels: 1 (grey) or 3 (red, green, blue).
        size: (height, width) that fits; None where any size does.
        only: Whether it takes no other size than ``size``; False also where sizes must be
            multiples of something.
    """

    channels: int
    size: tuple[int, int] | None = None
    only: bool = False

    def describe(self) -> str:
        """In words: "28×28 pixels, grey"."""
        color = "grey" if self.channels == 1 else "RGB"
        return f"{self.size[1]}×{self.size[0]} pixels, {color}" if self.size else color


def find_input_size(
    module: nn.Module, cancelled: Callable[[], bool] = lambda: False
) -> InputSize | None:
    """The image size and number of channels that a module's forward takes.

    Args:
        module: Called with one batch (N, C, H, W); neither it nor its hooks, buffers, mode or the
            random state are touched. A large one is not copied: only shapes are.
        cancelled: Asked before every module's call; True ends the search, which then gives None.

    Returns:
        Channels and size, by trial; where several sizes fit, the most usual one, or the smallest.
        None where that cannot be found: the forward takes something else, or cannot run without
        values.

    Examples:
        >>> digits = nn.Sequential(nn.Conv2d(1, 8, 5), nn.Flatten(), nn.Linear(8 * 24 * 24, 10))
        >>> find_input_size(digits)
        InputSize(channels=1, size=(28, 28), only=True)
        >>> find_input_size(nn.Conv2d(3, 8, 3))
        InputSize(channels=3, size=None, only=False)
    """
    module = unwrapped(module)
    weights = [*module.parameters()]
    if isinstance(module, torch.jit.ScriptModule) or any(map(is_lazy, weights)):
        return None
    try:
        twin = without_values(module).eval()
    except Exception:  # noqa: BLE001 - whatever a class's own __deepcopy__ raises
        return None
    first = next((part for part in twin.modules() if isinstance(part, _CONVOLUTIONS)), None)
    if isinstance(first, nn.Conv3d):
        return None
    own = first.in_channels if isinstance(first, nn.Conv2d) else 3
    channels = tuple(dict.fromkeys(c for c in (own, 3, 1) if c in (1, 3)))
    dtype = next((w.dtype for w in weights if w.is_floating_point()), torch.float32)
    trials = _Trials(twin, dtype, cancelled)
    for count in channels:
        if trials.way(count, *ANY_SIZE) == 0:
            return InputSize(count)
    for count in channels:
        size = trials.search(count)
        if size is not None:
            larger = trials.way(count, size[0] + 32, size[1] + 32)
            return InputSize(count, size, only=larger != 0)
    return None


class _Misfit(Exception):  # noqa: N818 - an answer inside this module, never seen outside
    """A linear layer got another number of features than it has."""


class _Trials:
    """Forwards of a copy without values.

    Args:
        twin: The copy.
        dtype: Of the images.
        cancelled: Says whether to stop.
    """

    def __init__(self, twin: nn.Module, dtype: torch.dtype, cancelled: Callable[[], bool]) -> None:
        self.twin = twin
        self.dtype = dtype
        until = time.monotonic() + SECONDS
        self.seen: list[tuple[int, int]] = []
        self.hopeless = False
        self.over: Callable[[], bool] = lambda: cancelled() or time.monotonic() > until

        def stop(_module: nn.Module, _args: Any) -> None:
            if self.over():
                raise RunCancelled("The search for the size was ended.")

        for part in twin.modules():
            if isinstance(part, torch.jit.ScriptModule):
                continue  # it takes no hooks
            part.register_forward_pre_hook(stop)
            if isinstance(part, nn.Linear):
                part.register_forward_pre_hook(_check_features)

    def way(self, channels: int, height: int, width: int) -> int | None:
        """0 where the shape fits, 1 where it is too large, -1 too small, None where unknown."""
        if self.hopeless or self.over():
            return None
        try:
            with (
                torch.inference_mode(mode=False),
                torch.no_grad(),
                torch.device("meta"),
                torch.autocast("cpu", enabled=False),
            ):
                output = self.twin(torch.empty(1, channels, height, width, dtype=self.dtype))
        except _Misfit as misfit:
            return _compare(*misfit.args)
        except Exception as error:  # noqa: BLE001 - whatever a forward raises
            # Other arguments or values are wanted: no size helps.
            self.hopeless = not isinstance(error, (RuntimeError, ValueError, AssertionError)) or (
                isinstance(error, NotImplementedError) or "meta" in str(error).lower()
            )
            return self._way_of(str(error))
        # A view(-1, features) makes a larger image a batch of several.
        return min((int(t.ndim > 0 and t.shape[0] != 1) for t in _tensors(output)), default=None)

    def _way_of(self, text: str) -> int | None:
        """What a message says: which number came and which was wanted."""
        found = re.search(r"tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", text)
        if found:
            return _compare(int(found[1]), int(found[2]))
        found = re.search(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", text)
        if found:
            sides = [int(n) for n in found[1].split(",")]
            return _compare(int(found[2]), math.prod(s for s in sides if s > 0))
        if not text.startswith("Sizes of tensors must match"):
            # A check of the module's own: "Expected 224 but got 301", "(301*451) … (112*224)".
            numbers = [int(n) for n in re.findall(r"(?<![\d.])\d{1,4}(?![\d.])", text)]
            pairs = [*((n, n) for n in numbers), *pairwise(numbers)]
            self.seen += [pair for pair in pairs if not set(pair) & set(ANY_SIZE)]
        return -1 if _TOO_SMALL.search(text) else None

    def search(self, channels: int) -> tuple[int, int] | None:
        """A size that fits: named in a refusal, a usual one, any square, then other ratios."""
        self.seen.clear()
        self.way(channels, *ANY_SIZE)
        named = dict.fromkeys(s for s in self.seen if all(4 <= side <= MAX_SIDE for side in s))
        for size in list(named)[:12]:
            if self.way(channels, *size) == 0:
                return size
        low, high = 0, MAX_SIDE + 1
        for side in USUAL_SIDES:
            way = self.way(channels, side, side) if low < side < high else None
            if way == 0:
                return side, side
            low, high = side if way == -1 else low, side if way == 1 else high
        if high - low <= MAX_SIDE:
            found = self._halve(channels, (1, 1), low, high)
            if found is not None:
                return found
        tries = (self._halve(channels, r, 0, MAX_SIDE // max(r) + 1) for r in RATIOS)
        return next((found for found in tries if found is not None), None)

    def _halve(
        self, channels: int, ratio: tuple[int, int], low: int, high: int
    ) -> tuple[int, int] | None:
        """The smallest size of a ratio that fits, where too small and too large can be told."""

        def way(scale: int) -> int | None:
            return self.way(channels, ratio[0] * scale, ratio[1] * scale)

        while low + 1 < high:
            scale = (low + high) // 2
            answer = way(scale)
            if answer == 0:
                # Strides and pooling divide smaller sizes without a rest.
                while scale > 1 and way(scale - 1) == 0:
                    scale -= 1
                return ratio[0] * scale, ratio[1] * scale
            if answer is None:
                return None
            low, high = (scale, high) if answer < 0 else (low, scale)
        return None


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _compare(got: int, wanted: int) -> int:
    return (got > wanted) - (got < wanted)


def _check_features(layer: nn.Module, args: tuple[Any, ...]) -> None:
    if isinstance(layer, nn.Linear) and args and isinstance(args[0], Tensor):
        got = args[0].shape[-1]
        if got != layer.in_features:
            raise _Misfit(got, layer.in_features)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (list, tuple, Mapping)):
        for item in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(item)

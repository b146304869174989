"""What networks were given in this session, small, so that earlier images can be looked at again.

No captured tensor is kept for it: a layer's map of an earlier image is computed again, by the
model as it is now.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from PIL import Image
from torch import Tensor, nn

from hookviz.activation import Activation
from hookviz.capture import Edit
from hookviz.images import NetworkInput, read_image
from hookviz.run import Run, run_model

INPUT_BYTES = 16_000_000
"""Bytes of inputs that are kept of earlier images; the oldest go first."""

MAP_BYTES = 48_000_000
"""Bytes of maps of the layer in view that are kept of them; the others are computed again."""

MOST = 5
"""Earlier images that are shown."""


@dataclass(frozen=True, eq=False)
class Earlier:
    """An image that the model was run on.

    Attributes:
        name: The image's name.
        sha256: Of the image.
        given: What the network was given, on the CPU.
    """

    name: str
    sha256: str
    given: NetworkInput

    @property
    def bytes(self) -> int:
        """Bytes of the input."""
        return self.given.tensor.nbytes


class EarlierImages:
    """The images that one model was run on, the latest last, bounded in bytes."""

    def __init__(self) -> None:
        self._images: list[Earlier] = []
        self._module: weakref.ref[nn.Module] | None = None
        self._layer: tuple[str, int, str, tuple[Edit, ...]] | None = None
        self._maps: dict[str, Activation] = {}

    def clear(self) -> None:
        """Lets go of all of it."""
        self._images, self._module = [], None
        self.forget_maps()

    def forget_maps(self) -> None:
        """Lets go of the maps that were computed again."""
        self._layer, self._maps = None, {}

    @property
    def bytes(self) -> int:
        """Bytes of what is kept: inputs and maps."""
        maps = sum(a.tensor.nbytes for a in self._maps.values())
        return maps + sum(one.bytes for one in self._images)

    def note(self, runs: Iterable[Run]) -> None:
        """Notes the images of runs; another model begins anew."""
        for run in runs:
            if self._module is None or self._module() is not run.model.module:
                self.clear()
                self._module = weakref.ref(run.model.module)
            last = self._images[-1] if self._images else None
            if last and (last.sha256, last.given.box) == (run.image.sha256, run.input.box):
                continue
            given = replace(run.input, tensor=run.input.tensor.cpu())
            others = [one for one in self._images if one.sha256 != run.image.sha256]
            self._images = [*others, Earlier(run.image.name, run.image.sha256, given)]
            self.forget_maps()
            while sum(one.bytes for one in self._images) > INPUT_BYTES and len(self._images) > 1:
                del self._images[0]

    def before(self, run: Run) -> list[Earlier]:
        """The images before a run's own, the latest first."""
        others = [one for one in self._images if one.sha256 != run.image.sha256]
        return others[: -MOST - 1 : -1]

    def activation(
        self,
        one: Earlier,
        run: Run,
        shown: Activation,
        cancelled: Callable[[], bool],
    ) -> Activation:
        """What a layer gives for an earlier image, by a forward of its own where it is not kept.

        Args:
            one: The image.
            run: The present run: its model and edits.
            shown: The layer's activation for the present image.
            cancelled: Ends the forward where it answers True.

        Raises:
            HookvizError: The layer gave nothing, or the forward was cancelled.
        """
        layer = (shown.layer, shown.call, shown.leaf, run.edits)
        if layer != self._layer:
            self._layer, self._maps = layer, {}
        if one.sha256 in self._maps:
            return self._maps[one.sha256]
        tensor: Tensor = one.given.tensor[0]
        again = run_model(
            run.model, read_image(Image.new("RGB", (1, 1))), [shown.layer],
            preprocess=lambda _image: tensor, stop_early=True, find_axes=False,
            cancelled=cancelled, edits=run.edits,
        )  # fmt: skip
        found = again.select(shown.layer, shown.call, shown.leaf or None)
        # What its axes are was found out with the present image.
        found = replace(found, axes=shown.axes, module_type=shown.module_type)
        kept = sum(a.tensor.nbytes for a in self._maps.values())
        if kept + found.tensor.nbytes <= MAP_BYTES:
            self._maps[one.sha256] = found
        return found

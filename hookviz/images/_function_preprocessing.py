"""Preprocessing by a function that hookviz cannot look into.

In: a callable from a PIL image to a tensor. Out: a Preprocessing that calls it and says what is not
known: the part of the picture that is seen, and the normalisation.
Must not know: models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images._picture import Picture
from hookviz.images._preprocessing import Preprocessing

__all__ = ["FunctionPreprocessing"]


@dataclass(frozen=True)
class FunctionPreprocessing(Preprocessing):
    """Preprocessing of the user's own: any function from an RGB PIL image to a tensor.

    Attributes:
        function: Gives a floating tensor (C, H, W) or (1, C, H, W).
        name: What to call it.
        mean: For showing only, see ``shown_as``.
        std: For showing only, see ``shown_as``.
    """

    function: Callable[[Image.Image], Any] | None = None
    name: str = "a function"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.function is None or self.fit != "none" or self.resize is not None:
            raise ImageError(
                f"The preprocessing {self.name} is a function; its size and fit cannot be changed.",
                remedy="Give a hookviz.Preprocessing instead.",
            )

    def describe(self) -> str:
        """Its name, and what is not known."""
        return f"preprocessed by {self.name}, shown stretched from its lowest to its highest value"

    def shown_as(self, tensor: torch.Tensor) -> Preprocessing:
        """The same with mean and std that bring this input to 0..1 for showing."""
        finite = tensor[torch.isfinite(tensor)].float()
        low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 1.0)
        span = high - low if high > low else 1.0
        return replace(self, mean=(-low / span,) * 3, std=(1 / span,) * 3)

    def __call__(self, picture: Image.Image | Picture) -> torch.Tensor:
        """Calls the function on the RGB image.

        Raises:
            ImageError: It failed, or gave something else than a floating tensor (C, H, W).
        """
        image = picture.image if isinstance(picture, Picture) else picture.convert("RGB")
        if self.function is None:
            raise ImageError("There is no function.")
        try:
            given = self.function(image)
        except Exception as error:
            raise ImageError(f"The preprocessing {self.name} failed: {error}") from error
        if isinstance(given, torch.Tensor) and given.ndim == 4 and given.shape[0] == 1:
            given = given[0]
        if not isinstance(given, torch.Tensor) or given.ndim != 3 or not given.is_floating_point():
            found = (
                f"a tensor {tuple(given.shape)} of {given.dtype}"
                if isinstance(given, torch.Tensor)
                else f"a {type(given).__name__}"
            )
            raise ImageError(
                f"The preprocessing {self.name} gave {found}; it must give a floating tensor "
                f"(C, H, W) for one picture."
            )
        return given.detach().to(torch.float32)

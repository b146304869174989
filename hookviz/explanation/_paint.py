"""Pictures as numbers that an optimiser changes, and the small moves that they are seen under.

A picture is kept by its frequencies (Olah et al. 2017, https://distill.pub/2017/feature-visualization/):
a step then changes all scales alike, not single pixels. Each frequency f is weighted by 1/f^decay,
as in photos (decay 1); a larger decay gives larger, smoother forms. Its colors are those of
uncorrelated axes, mixed to red, green and blue by the square root of the colors' covariance over
ImageNet, and a sigmoid keeps every value between 0 and 1. Constants as in lucid
(github.com/tensorflow/lucid, ``optvis/param``), so that its learning rates go on to mean the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Square root of the covariance of red, green and blue over ImageNet, lucid's
# ``color_correlation_svd_sqrt``; divided by the largest norm of its columns, as there.
_COLORS = ((0.26, 0.09, 0.02), (0.27, 0.00, -0.05), (0.27, -0.09, 0.03))
_DEVIATION = 0.01  # of the first frequencies: the picture begins as an almost even gray
_QUARTER = 4.0  # lucid's constant, which makes a learning rate of 0.05 a good one
_GRAY = 0.5  # what moves uncover at the edges


class Spectrum:
    """N pictures, kept by their frequencies.

    Args:
        shape: (N, C, H, W); C is 3 (red, green, blue) or 1 (gray).
        decay: Exponent of 1/f.
        generator: Where the first frequencies come from.
        device: Where the pictures are.

    Attributes:
        values: (N, C, H, W // 2 + 1, 2), what the optimiser changes: real and imaginary parts.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        decay: float,
        generator: torch.Generator,
        device: torch.device,
    ) -> None:
        count, colors, height, width = shape
        self._size = (height, width)
        rows = torch.fft.fftfreq(height, device="cpu")[:, None]
        columns = torch.fft.rfftfreq(width, device="cpu")
        frequency = (rows**2 + columns**2).sqrt().clamp(min=1 / max(height, width))
        self._weight = (frequency**-decay)[..., None].to(device)
        first = torch.randn(
            (count, colors, height, width // 2 + 1, 2), generator=generator, device="cpu"
        )
        self.values = (first * _DEVIATION).to(device).requires_grad_()
        mix = torch.tensor(_COLORS, device="cpu")
        self._mix = (mix / mix.norm(dim=0).max()).to(device) if colors == 3 else None

    def pictures(self) -> Tensor:
        """(N, C, H, W) from 0 to 1, in autograd's graph."""
        spectrum = torch.view_as_complex((self.values * self._weight).contiguous())
        raw = torch.fft.irfft2(spectrum, s=self._size, norm="ortho") / _QUARTER
        if self._mix is not None:
            raw = torch.einsum("rc,nchw->nrhw", self._mix, raw)
        pictures: Tensor = raw.sigmoid()
        return pictures


@dataclass(frozen=True)
class Moves:
    """The small random moves under which a picture is seen at each step.

    They keep the optimiser from specks that answer strongly and only just there. One affine
    sampling does all of them at once; what it uncovers beside the picture (the padding) is gray.

    Attributes:
        jitter: Largest shift along each axis, in pixels.
        scale: Largest change of size, as a share: 0.1 is 0.9 to 1.1 times.
        rotate: Largest turn, in degrees.
    """

    jitter: float = 12.0
    scale: float = 0.1
    rotate: float = 10.0

    @property
    def none(self) -> bool:
        """Whether pictures are seen as they are."""
        return self.jitter == self.scale == self.rotate == 0

    def seen(self, pictures: Tensor, generator: torch.Generator) -> Tensor:
        """(N, C, H, W) pictures, each under moves of its own.

        Args:
            pictures: (N, C, H, W) from 0 to 1.
            generator: Where the moves come from; four numbers for each picture.
        """
        drawn = torch.rand((len(pictures), 4), generator=generator, device="cpu") * 2 - 1
        if self.none:
            return pictures
        height, width = pictures.shape[-2:]
        turn = drawn[:, 0] * math.radians(self.rotate)
        size = 1 + drawn[:, 1] * self.scale
        cos, sin = turn.cos() / size, turn.sin() / size
        right, down = (drawn[:, 2:] * self.jitter * 2 / torch.tensor([width, height])).unbind(1)
        theta = torch.stack(
            [cos, -sin * height / width, right, sin * width / height, cos, down], dim=1
        ).reshape(-1, 2, 3)
        grid = F.affine_grid(theta.to(pictures), list(pictures.shape), align_corners=False)
        moved = F.grid_sample(pictures - _GRAY, grid, padding_mode="zeros", align_corners=False)
        return moved + _GRAY

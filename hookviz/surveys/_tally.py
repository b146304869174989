"""What is kept of a layer's channels: counts, moments, a histogram, the strongest images.

Every number can be merged: what two sets of images gave apart is what they give together. Counts
are whole numbers, so their sums are exact in any order; moments are merged in float64 by Chan's
formulas (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979), the same to the last bit wherever the order is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BINS = 4096
"""Of the histogram: the first 12 bits of a float32, sign, exponent and 3 bits of the mantissa."""

NOBODY = np.iinfo(np.int64).max
"""Stands for the image of a place that no image has taken."""

_POSITIVE_ODD = slice(2040, 2048)  # exponent 255: infinity first, then NaN
_NEGATIVE_ODD = slice(4088, 4096)
_SHIFT = 20  # of the 32 bits of a float the first 12 stay


@dataclass(eq=False)
class Tally:
    """The numbers of one layer over some images, channel by channel.

    Attributes:
        count: (C,) int64, finite values.
        mean: (C,) float64, of the finite values; 0 where there are none.
        squares: (C,) float64, sum of their squared distances from the mean.
        histogram: (C, BINS) int64.
        low: (C, 1) float64, the smallest finite value; inf where there is none.
        low_image: (C, 1) int64, the image that has it, the first of equals.
        low_place: (C, 1) int64, and where in that image's maps, flattened.
        high: (C, k) float64, largest finite value of the k strongest images, strongest first.
        high_image: (C, k) int64, these images; equal ones by number.
        high_place: (C, k) int64, where each has its largest value, the first of equals.
    """

    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    histogram: NDArray[np.int64]
    low: NDArray[np.float64]
    low_image: NDArray[np.int64]
    low_place: NDArray[np.int64]
    high: NDArray[np.float64]
    high_image: NDArray[np.int64]
    high_place: NDArray[np.int64]

    @classmethod
    def empty(cls, channels: int, top: int) -> Tally:
        """That of no image.

        Args:
            channels: C.
            top: k, how many images are kept for each channel.
        """
        nobody = np.int64(NOBODY)
        return cls(
            np.zeros(channels, np.int64),
            np.zeros(channels),
            np.zeros(channels),
            np.zeros((channels, BINS), np.int64),
            np.full((channels, 1), np.inf),
            np.full((channels, 1), nobody),
            np.zeros((channels, 1), np.int64),
            np.full((channels, top), -np.inf),
            np.full((channels, top), nobody),
            np.zeros((channels, top), np.int64),
        )

    def add(self, values: Tensor, images: NDArray[np.int64]) -> Tensor:
        """Counts some images in.

        Args:
            values: (N, C, P) float32, contiguous, on any device; P places a channel.
            images: (N,), their numbers.

        Returns:
            (N, C) float32, the mean over the places of each image, non-finite values included.
        """
        n, channels, places = values.shape
        histogram = _histogram(values)
        finite = places
        clean = high = low = values
        means = pooled = values.mean(-1)
        counts = torch.full((n, channels), finite, dtype=torch.float64)
        odd = bool(histogram[:, _POSITIVE_ODD].any() or histogram[:, _NEGATIVE_ODD].any())
        if odd:
            # A NaN may carry any bits; all are counted as the usual one, apart from infinities.
            histogram = _histogram(values.where(~values.isnan(), torch.nan))
            mask = values.isfinite()
            counts = mask.sum(-1).double().cpu()
            clean, high, low = (values.where(mask, at) for at in (0.0, -torch.inf, torch.inf))
            means = clean.sum(-1) / counts.clamp(min=1).to(values)
        apart = clean - means[..., None]
        if odd:
            apart = apart.where(mask, 0.0)
        squares = torch.linalg.vector_norm(apart, dim=-1).double().square()
        top, top_at = high.max(-1)
        bottom = low.amin(-1)
        self.histogram += histogram.cpu().numpy()
        self._join(*_joined(counts, means.double().cpu(), squares.cpu()))
        who = np.broadcast_to(images, (channels, n))
        values_of = top.double().cpu().numpy().T
        added = (
            (self.high, values_of),
            (self.high_image, np.where(np.isfinite(values_of), who, NOBODY)),
            (self.high_place, top_at.cpu().numpy().T),
        )
        self.high, self.high_image, self.high_place = _first(added, self.high.shape[1], -1)
        self._lowest(low, bottom, who)
        return pooled

    def _lowest(self, low: Tensor, bottom: Tensor, who: NDArray[np.int64]) -> None:
        """Where a channel's smallest value lies is looked for in the one image that has it."""
        smallest, at = bottom.min(0)
        channels = torch.arange(len(smallest), device=low.device)
        place = low[at, channels].argmin(-1)
        values = smallest.double().cpu().numpy()[:, None]
        image = who[channels.cpu().numpy(), at.cpu().numpy()][:, None]
        added = (
            (self.low, values),
            (self.low_image, np.where(np.isfinite(values), image, NOBODY)),
            (self.low_place, place.cpu().numpy()[:, None]),
        )
        self.low, self.low_image, self.low_place = _first(added, 1, 1)

    def merge(self, other: Tally) -> None:
        """Counts in what other images gave."""
        self.histogram += other.histogram
        self._join(other.count, other.mean, other.squares)
        low, high = (
            tuple(
                (getattr(self, field), getattr(other, field))
                for field in (name, f"{name}_image", f"{name}_place")
            )
            for name in ("low", "high")
        )
        self.low, self.low_image, self.low_place = _first(low, 1, 1)
        self.high, self.high_image, self.high_place = _first(high, self.high.shape[1], -1)

    def _join(
        self, count: NDArray[np.int64], mean: NDArray[np.float64], squares: NDArray[np.float64]
    ) -> None:
        total = self.count + count
        some = np.maximum(total, 1)
        apart = mean - self.mean
        share = count / some
        # Where there was nothing before, the other's mean itself and not 0 + 1 · its.
        joined = np.where(self.count == 0, mean, self.mean + apart * share)
        self.squares = self.squares + squares + apart**2 * self.count * share
        self.mean = np.where(total == 0, 0.0, joined)
        self.count = total

    def tensors(self) -> dict[str, Tensor]:
        """Everything as tensors by name; of the histogram the bins that hold something."""
        at = np.flatnonzero(self.histogram)
        named = {name: value for name, value in vars(self).items() if name != "histogram"}
        named |= {"bins": at, "in_bins": self.histogram.reshape(-1)[at]}
        return {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in named.items()}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Tally:
        """What `tensors` gave, again."""
        named = {name: value.numpy() for name, value in tensors.items()}
        at, number = named.pop("bins"), named.pop("in_bins")
        histogram = np.zeros(len(named["count"]) * BINS, dtype=np.int64)
        histogram[at] = number
        return cls(histogram=histogram.reshape(-1, BINS), **named)


def _histogram(values: Tensor) -> Tensor:
    """(C, BINS) int64: how many values of each channel begin with the same 12 bits."""
    channels = values.shape[1]
    kind = torch.int32 if channels * BINS < 2**31 else torch.int64
    offset = torch.arange(channels, dtype=kind, device=values.device)[:, None] * BINS
    bits = (values.view(torch.int32) >> _SHIFT).bitwise_and_(BINS - 1).to(kind).add_(offset)
    return torch.bincount(bits.reshape(-1), minlength=channels * BINS).reshape(-1, BINS)


def _joined(
    counts: Tensor, means: Tensor, squares: Tensor
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Count, mean and squares over several images, of those of each (N, C)."""
    total = counts.sum(0)
    some = total.clamp(min=1)
    # About the first image's mean, so that large means cancel before they are added up.
    first = means[0]
    mean = first + (counts * (means - first)).sum(0) / some
    joined = squares.sum(0) + (counts * (means - mean).square()).sum(0)
    return total.long().numpy(), mean.numpy(), joined.numpy()


def _first(pairs: Any, count: int, sign: int) -> tuple[Any, Any, Any]:
    """The first few of two lists together: by value times sign, then by image.

    Args:
        pairs: Values (C, n) and (C, m), images likewise, places likewise.
        count: How many.
        sign: 1: the smallest first; -1: the largest first.
    """
    joined = [np.concatenate(pair, axis=1) for pair in pairs]
    order = np.lexsort((joined[1], sign * joined[0]), axis=1)[:, :count]
    value, image, place = (np.take_along_axis(one, order, 1) for one in joined)
    return value, image, place


def bin_edges() -> NDArray[np.float64]:
    """(BINS, 2) float64: from which magnitude on (and below which) a bin's values lie, with sign.

    The magnitude grows with a bin's number: bins 0 to 2047 are positive, 2048 to 4095 negative.
    Exponent 255 stands for infinity and NaN; their edges are NaN.
    """
    numbers = np.arange(2040, dtype=np.uint32) << _SHIFT
    starts = np.append(numbers.view(np.float32).astype(np.float64), 2.0**128)
    edges = np.full((BINS // 2, 2), np.nan)
    edges[:2040] = np.stack((starts[:-1], starts[1:]), axis=1)
    return np.concatenate((edges, -edges))

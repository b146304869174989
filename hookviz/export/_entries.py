"""The figures of one layer, for the manifest.

In: what was planned for an activation, and its measured channels. Out: one entry. Must not know:
how files are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookviz.export._channels import ChannelPainter
from hookviz.export._manifest import layer_entry
from hookviz.export._plan import Item
from hookviz.render import Extents, moments

__all__ = ["item_entry"]


def item_entry(item: Item, painter: ChannelPainter | None, files: Sequence[str]) -> dict[str, Any]:
    """The manifest's entry of one activation, with its figures."""
    if painter is None:
        return layer_entry(
            item.activation,
            layout="",
            minimum=[],
            maximum=[],
            mean=[],
            more={},
            files=files,
            notes=item.notes,
        )
    found = painter.extents
    values = painter.arranged.maps
    if painter.arranged.apart is not None:  # class tokens belong to their channel
        values = torch.cat((values.flatten(1), painter.arranged.apart), dim=1).unsqueeze(1)
    means = _means(values, found)
    good = found.size - (found.nan + found.posinf + found.neginf)
    whole = found.whole or (float("nan"), float("nan"))
    with np.errstate(invalid="ignore"):
        total = float(np.nansum(np.where(good > 0, means, 0.0) * good))
    more = {
        "min": whole[0],
        "max": whole[1],
        "mean": total / int(good.sum()) if good.any() else float("nan"),
        "nan": int(found.nan.sum()),
        "posinf": int(found.posinf.sum()),
        "neginf": int(found.neginf.sum()),
        "dead": [int(c) for c in np.flatnonzero(found.dead)],
        "samples": painter.arranged.samples,
        "pages": item.pages_in_all,
    }
    return layer_entry(
        item.activation,
        layout=" ".join((painter.arranged.kind, painter.arranged.statement)),
        minimum=found.low.tolist(),
        maximum=found.high.tolist(),
        mean=means.tolist(),
        more=more,
        files=files,
        notes=[*painter.arranged.notes, *item.notes],
    )


def _means(maps: Tensor, found: Extents) -> NDArray[np.float64]:
    """(C,) mean of each channel over its finite values."""
    # Sums of finite float32 values cannot leave float64; wider dtypes and holes need more care.
    if found.all_finite and maps.dtype in _NARROW and maps.device.type == "cpu":
        sums: NDArray[np.float64] = maps.flatten(1).sum(1, dtype=torch.float64).numpy()
        return sums / found.size
    return moments(maps, found).mean


_NARROW = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.uint8)

"""``manifest.json``: what an export holds, for programs.

JSON has no word for NaN and the infinities; they stand as the strings "NaN", "Infinity" and
"-Infinity". Numbers are written so that they read back as the same float64. ``schema`` counts up
whenever a key changes its meaning.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookviz.activation import Activation
from hookviz.export._facts import (
    UNTRAINED,
    RunFacts,
    base_name,
    hidden_paths,
    number_text,
    utc_text,
)
from hookviz.export._part import Export, Item
from hookviz.render import Extents, SingleChannels, moments

SCHEMA = 1


def _strict(value: Any) -> Any:
    """``value`` with NaN and the infinities as strings, in lists and dicts too."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return number_text(value) if isinstance(value, float) and not math.isfinite(value) else value


def layer_entry(item: Item, layer: SingleChannels | None) -> dict[str, Any]:
    """One entry of "layers": one tensor of one call of one layer, with its figures.

    Args:
        item: The activation with its files and notes.
        layer: The same as measured; None where it cannot be drawn.
    """
    activation = item.activation
    names = ("layer", "run", "call", "calls", "order", "kind", "leaf")
    entry: dict[str, Any] = {name: getattr(activation, name) for name in names} | {
        "type": activation.module_type,
        "shape": _shape(activation),
        "dtype": str(activation.tensor.dtype).removeprefix("torch."),
        "layout": "",
    }
    channels: dict[str, Any] = {"count": 0, "min": [], "max": [], "mean": []}
    notes = item.notes
    if layer is not None:
        figures, channels = _figures(layer)
        entry |= figures | {"pages": item.pages}
        notes = [*layer.arranged.notes, *notes]
    return entry | {"channels": channels, "files": item.files, "notes": notes}


def _shape(activation: Activation) -> list[int]:
    """The tensor's shape; [] where it has none in numbers (nested tensors)."""
    try:
        return [int(size) for size in activation.shape]
    except (RuntimeError, TypeError, AttributeError):
        return []


def _figures(layer: SingleChannels) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures of a layer as a whole, and of each of its channels in their own order."""
    arranged, found = layer.arranged, layer.extents
    means = _means(arranged.values, found)
    good = found.size - (found.nan + found.posinf + found.neginf)
    whole = found.whole or (float("nan"), float("nan"))
    with np.errstate(invalid="ignore"):
        total = float(np.nansum(np.where(good > 0, means, 0.0) * good))
    figures = {
        "layout": " ".join((arranged.kind, arranged.statement)),
        "min": whole[0],
        "max": whole[1],
        "mean": total / int(good.sum()) if good.any() else float("nan"),
        "nan": int(found.nan.sum()),
        "posinf": int(found.posinf.sum()),
        "neginf": int(found.neginf.sum()),
        "dead": [int(c) for c in np.flatnonzero(found.dead)],
        "samples": arranged.samples,
    }
    return figures, {
        "count": len(found.low),
        "min": found.low.tolist(),
        "max": found.high.tolist(),
        "mean": means.tolist(),
    }


def _means(maps: Tensor, found: Extents) -> NDArray[np.float64]:
    """(C,) mean of each channel over its finite values."""
    # Sums of finite float32 values cannot leave float64; wider dtypes and holes need more care.
    if found.all_finite and maps.dtype in _NARROW and maps.device.type == "cpu":
        sums: NDArray[np.float64] = maps.flatten(1).sum(1, dtype=torch.float64).numpy()
        return sums / found.size
    return moments(maps).mean


_NARROW = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.uint8)


def manifest_of(export: Export, stopped: str = "") -> bytes:
    """The whole manifest: strict JSON in ASCII, ending with a line break.

    Args:
        export: What was asked for, and what became of it.
        stopped: Why it ended before its end; "" where it is complete.
    """
    manifest = run_entries(export.facts, stopped) | {
        "what": sorted(part.name for part in export.parts),
        "options": json.loads(export.options.to_json()),
        "own_options": {
            label: json.loads(options.to_json()) for label, options in export.own_options.items()
        },
        "missing": {name: str(reason) for name, reason in export.facts.missing.items()},
        "files": sorted(path.name for path in export.folder.finished),
        "layers": export.entries,
        "notes": export.notes,
    }
    return json_bytes(manifest)


def run_entries(facts: RunFacts, stopped: str = "") -> dict[str, Any]:
    """What every manifest says of the run, and whether it is complete."""
    return {
        "schema": SCHEMA,
        "complete": not stopped,
        "stopped": stopped,
        "hookviz_version": facts.hookviz_version,
        "torch_version": facts.torch_version,
        "time": utc_text(facts.started),
        "model": {
            "name": facts.model,
            "weights": hidden_paths(facts.weights),
            "weights_hash": facts.weights_hash,
            "trained": facts.trained,
            "state": "trained" if facts.trained else UNTRAINED,
            "dtype": facts.dtype,
        },
        "image": {
            "name": base_name(facts.image_name),
            "sha256": facts.image_sha256,
            "preprocessing": hidden_paths(facts.preprocessing),
            "seen": None if facts.input_image is None else list(facts.input_image.size),
        },
        "device": facts.device,
        "edits": facts.edits,
        "edits_record": facts.edits_record,
    }


def json_bytes(manifest: Any) -> bytes:
    """Strict JSON in ASCII, ending with a line break."""
    return (json.dumps(_strict(manifest), indent=2, allow_nan=False) + "\n").encode("ascii")

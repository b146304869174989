"""``manifest.json``: what an export holds, for programs.

In: facts, activations, their per-channel figures, the files written. Out: strict JSON text. Must
not know: how files are written, what a picture looks like.

JSON has no word for NaN and the infinities; they stand as the strings "NaN", "Infinity" and
"-Infinity". Numbers are written so that they read back as the same float64. ``schema`` counts up
whenever a key changes its meaning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hookviz.activation import Activation
from hookviz.export._facts import RunFacts, base_name, hidden_paths, utc_text
from hookviz.export._metadata import UNTRAINED

__all__ = ["SCHEMA", "layer_entry", "manifest_json", "manifest_text", "strict"]

SCHEMA = 1


def strict(value: Any) -> Any:
    """``value`` with NaN and the infinities as strings, in lists and dicts too.

    Examples:
        >>> strict({"a": [1.5, float("nan"), float("-inf")]})
        {'a': [1.5, 'NaN', '-Infinity']}
    """
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def _text(value: Any, indent: int) -> str:
    """JSON with one line per key, and lists of plain values on one line."""
    pad = "  " * (indent + 1)
    if isinstance(value, dict) and value:
        rows = [f"{json.dumps(k)}: {_text(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(pad + row for row in rows) + "\n" + "  " * indent + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        rows = [_text(item, indent + 1) for item in value]
        return "[\n" + ",\n".join(pad + row for row in rows) + "\n" + "  " * indent + "]"
    return json.dumps(value, allow_nan=False)


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Strict JSON in ASCII, ending with a line break.

    Examples:
        >>> print(manifest_text({"a": [1, 2.5], "b": [{"c": float("inf")}]}), end="")
        {
          "a": [1, 2.5],
          "b": [
            {
              "c": "Infinity"
            }
          ]
        }
    """
    return _text(strict(manifest), 0) + "\n"


def shape_of(activation: Activation) -> list[int]:
    """The tensor's shape; [] where it has none in numbers (nested tensors)."""
    try:
        return [int(size) for size in activation.shape]
    except (RuntimeError, TypeError, AttributeError):
        return []


def layer_entry(
    activation: Activation,
    *,
    layout: str,
    minimum: Sequence[float],
    maximum: Sequence[float],
    mean: Sequence[float],
    more: Mapping[str, Any],
    files: Iterable[str],
    notes: Iterable[str] = (),
) -> dict[str, Any]:
    """One entry of "layers": one tensor of one call of one layer.

    Args:
        activation: The record.
        layout: How the axes were read.
        minimum: Of each channel, in its own order.
        maximum: Of each channel.
        mean: Of each channel.
        more: Further figures of the layer as a whole.
        files: Names of its files.
        notes: Sentences about what was left out.
    """
    return {
        "layer": activation.layer,
        "type": activation.module_type,
        "run": activation.run,
        "call": activation.call,
        "calls": activation.calls,
        "order": activation.order,
        "kind": activation.kind,
        "leaf": activation.leaf,
        "shape": shape_of(activation),
        "dtype": str(activation.tensor.dtype).removeprefix("torch."),
        "layout": layout,
        **more,
        "channels": {
            "count": len(minimum),
            "min": list(minimum),
            "max": list(maximum),
            "mean": list(mean),
        },
        "files": list(files),
        "notes": list(notes),
    }


def manifest_json(
    facts: RunFacts,
    layers: Sequence[Mapping[str, Any]],
    *,
    files: Iterable[str],
    options: Mapping[str, Any],
    what: Iterable[str],
    stopped: str = "",
) -> dict[str, Any]:
    """The whole manifest as plain values.

    Args:
        facts: The run.
        layers: Entries of :func:`layer_entry`, in order of execution.
        files: Names of all files beside the manifest.
        options: The drawing options.
        what: What was asked for.
        stopped: Why the export ended before its end; "" where it is complete.
    """
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
            "seen": None if facts.input_picture is None else list(facts.input_picture.size),
        },
        "device": facts.device,
        "what": sorted(what),
        "options": dict(options),
        "missing": {name: str(reason) for name, reason in facts.missing.items()},
        "files": list(files),
        "layers": [dict(entry) for entry in layers],
    }

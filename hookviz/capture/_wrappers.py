"""A model wrapped so that its forward gives the features of some layers.

In: a model and layers. Out: a module that returns tensors by name.
Must not know: data loaders, pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from hookviz.activation import Activation
from hookviz.capture._checks import check_choice
from hookviz.capture._layers import LayerSelector, select_layers
from hookviz.capture._session import Capture
from hookviz.capture._snapshot import known_device
from hookviz.errors import LayerError

__all__ = ["Calls", "FeatureExtractor", "Features", "features_of"]

Calls: TypeAlias = Literal["error", "first", "last", "all"]
Features: TypeAlias = dict[str, Any]
"""Name → tensor; with ``calls="all"`` name → tuple of tensors, one per call."""


class FeatureExtractor(nn.Module):
    """A model whose forward returns the outputs of chosen layers instead of its own.

    Hooks are set for the length of one forward and removed on every way out; nothing stays on the
    model between forwards. Mode, gradients and random numbers are those of the model: call
    ``eval()`` and use ``torch.no_grad()`` as with the model itself.

    Args:
        model: Any ``nn.Module``.
        layers: Names, globs, patterns, types, modules or predicates (see
            :func:`~hookviz.capture._layers.select_layers`), or a mapping from names of one's own
            to layers. "" is the model's own output.
        calls: What to do with a layer that runs several times in one forward: "error" (the
            default) refuses, "first" and "last" take one, "all" makes every value of the result a
            tuple with one tensor per call, also for layers that ran once.
        gradients: False: detached copies. True: copies in autograd's graph, through which a loss
            on features reaches the parameters and the input.
        stop_early: End the forward after the last chosen layer, as far as that can be known (see
            :class:`~hookviz.capture._session.Capture`).
        device: Where the copies go; None leaves them where they are.

    Attributes:
        model: The model that was wrapped.
        layers: Own name → layer name.

    Raises:
        LayerError: A layer is unknown, here and not at the first forward.
        CaptureError: ``calls`` is none of the four.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True))
        >>> extract = FeatureExtractor(net, {"edges": "0"})
        >>> {name: tuple(t.shape) for name, t in extract(torch.zeros(1, 3, 8, 8)).items()}
        {'edges': (1, 8, 6, 6)}
    """

    def __init__(
        self,
        model: nn.Module,
        layers: LayerSelector | Iterable[LayerSelector] | Mapping[str, LayerSelector],
        *,
        calls: Calls = "error",
        gradients: bool = False,
        stop_early: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_calls(calls)
        self.layers = select_layers(model, layers)
        self.model = model
        self.calls: Calls = calls
        self.gradients = gradients
        self.stop_early = stop_early
        self.device = None if device is None else known_device(device, "Features")

    def forward(self, *args: Any, **kwargs: Any) -> Features:
        """Runs the model and returns the features.

        Args:
            *args: Passed to the model.
            **kwargs: Passed to the model.

        Returns:
            Name → tensor, in the order of ``layers``; axis order, dtype and (unless chosen)
            device as the layer gave it. A layer with several tensors in its output gives one
            entry for each, "name[path]".

        Raises:
            LayerError: A layer did not run, with the reason, or ran several times while ``calls``
                is "error", with the shapes of its calls.
            Exception: What the model raises, unchanged.
        """
        with Capture(
            self.model,
            self.layers,
            keep_graph=self.gradients,
            stop_early=self.stop_early,
            device=self.device,
            eval_mode=False,
        ) as capture:
            capture.run(*args, **kwargs)
            return features_of(capture, self.calls)

    def extra_repr(self) -> str:
        """The layers, for ``print(extractor)``."""
        shown = [own if own == name else f"{own}={name}" for own, name in self.layers.items()]
        return f"layers=[{', '.join(shown)}], calls={self.calls!r}"


def features_of(capture: Capture, calls: Calls) -> Features:
    """The outputs of a capture's one run by name; the policies are those of FeatureExtractor.

    Args:
        capture: A capture with exactly one run.
        calls: "error", "first", "last" or "all".

    Returns:
        Name → tensor or, with "all", tuple of tensors.

    Raises:
        LayerError: A layer did not run, or ran several times while ``calls`` is "error".
    """
    found: dict[str, list[Activation]] = {own: [] for own in capture.layers}
    for one in capture.activations:
        if one.kind == "output" and one.layer in found:
            found[one.layer].append(one)
    features: Features = {}
    for own, records in found.items():
        if not records:
            raise LayerError(f"There are no features of layer '{own}': {capture.missing[own]}.")
        number = records[0].calls
        if number > 1 and calls == "error":
            shapes = ", ".join(f"{r.call}: {list(r.shape)}" for r in records[:8])
            raise LayerError(
                f"Layer '{own}' ran {number} times ({shapes}), so which output is meant is open.",
                remedy='Choose calls="first", "last" or "all".',
            )
        leaves = list(dict.fromkeys(record.leaf for record in records))
        for leaf in leaves:
            tensors = tuple(record.tensor for record in records if record.leaf == leaf)
            key = own if len(leaves) == 1 else f"{own}[{leaf}]"
            chosen: Tensor | tuple[Tensor, ...] = tensors[-1 if calls == "last" else 0]
            features[key] = tensors if calls == "all" else chosen
    return features


def check_calls(calls: str) -> None:
    """Refuses what is no policy for several calls.

    Raises:
        CaptureError: It is none of the four.
    """
    check_choice("calls", calls, "error", "first", "last", "all")

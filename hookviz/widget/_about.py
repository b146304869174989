"""The panel "About": what the layer in use is."""

from __future__ import annotations

from typing import Any

import traitlets
from torch import nn

from hookviz._text import bytes_text, shape_text
from hookviz.widget._app import Panel
from hookviz.widget._bundle import built


class AboutLayer(Panel):
    """States the layer whose card was used last, in facts that need no run, and its outputs.

    Attributes:
        facts: Names and values, in order; [] where no layer is in use.
    """

    title = "About"

    _esm = built("panel_about.min.js")
    _css = built("panel_about.min.css")

    facts: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def refresh(self) -> None:
        """See `Panel`."""
        card, model = self.app.gallery.current, self.app.model
        if card is None or model is None:
            self.facts = []
            return
        module: nn.Module = model.module.get_submodule(card.layer)
        own = list(module.named_parameters(recurse=False))
        total = sum(parameter.numel() for parameter in module.parameters())
        listed = ", ".join(f"{name} {shape_text(p.shape)}" for name, p in own)
        facts = [
            ["Layer", card.layer or "(model)"],
            ["Type", f"{type(module).__module__}.{type(module).__qualname__}"],
            ["Options", module.extra_repr()],
            ["Parameters", f"{total:,}" + (f" ({listed})" if listed else "")],
            ["Layers inside", str(sum(1 for _ in module.modules()) - 1 or "")],
        ]
        for leaf, activation in card.leaves.items():
            tensor = activation.tensor
            text = f"{shape_text(tensor.shape)} · {str(tensor.dtype).removeprefix('torch.')}"
            facts.append([f"Output {leaf}".strip(), f"{text} · {bytes_text(tensor.nbytes)}"])
        self.facts = [fact for fact in facts if fact[1]]

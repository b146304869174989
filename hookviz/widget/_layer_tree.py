"""The layer tree as a widget of its own: it shows a module's layers, and which are ticked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import traitlets
from torch import nn

from hookviz._text import shape_text
from hookviz.capture import LayerInfo, list_layers, select_layers
from hookviz.errors import LayerError, did_you_mean
from hookviz.models import LoadedModel
from hookviz.widget._bundle import built
from hookviz.widget._part import Handlers, Part


def short_shape(shape: Sequence[int]) -> str:
    """A shape for people, without the batch of one.

    Examples:
        >>> short_shape((1, 64, 224, 224)), short_shape((1, 1000)), short_shape(())
        ('64×224×224', '1000', 'scalar')
    """
    return shape_text(shape[1:] if len(shape) > 1 and shape[0] == 1 else shape)


class LayerTree(Part):
    """A searchable tree of a model's layers with three-state boxes; one widget for all rows.

    Args:
        model: A module, a `LoadedModel`, or what `list_layers` gave; None for an empty tree.
        selected: Layers ticked at the start; names or any selectors of `select_layers`.

    Attributes:
        selected: Names of the ticked layers; it is put into the model's order. Set it or observe
            it.
        hidden_calls: Calls that are not wanted of layers with several, as "layer#call".
        search: The text in the search box.
        rows: What is shown: name, type, whether it has no children.
        facts: What is known by layer: the number of calls ``c``, shapes ``s`` and bytes ``b`` of
            the output, one per call; ``d`` where a run has found this out (else it is foreseen);
            or the reason ``r`` why the layer did not run.

    Examples:
        >>> tree = LayerTree(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), selected="0")
        >>> tree.selected
        ['0']
    """

    _esm = built("tree.min.js")
    _css = built("tree.min.css")

    rows: traitlets.List[Any] = traitlets.List().tag(sync=True)
    facts = traitlets.Dict().tag(sync=True)
    selected: traitlets.List[str] = traitlets.List(traitlets.Unicode()).tag(sync=True)
    hidden_calls = traitlets.List(traitlets.Unicode()).tag(sync=True)
    search = traitlets.Unicode().tag(sync=True)

    page_writes = frozenset({"selected", "hidden_calls", "search"})

    def __init__(
        self,
        model: nn.Module | LoadedModel | Iterable[LayerInfo] | None = None,
        selected: Any = (),
        **traits: Any,
    ) -> None:
        # All that is known goes into the first message: one widget, one message.
        module = model.module if isinstance(model, LoadedModel) else model
        if isinstance(module, nn.Module) and selected:
            selected = select_layers(module, selected).values()
        rows, wanted = _rows(module), set(selected)
        super().__init__(rows=rows, selected=[row[0] for row in rows if row[0] in wanted], **traits)

    @traitlets.validate("selected")
    def _check_selected(self, proposal: Any) -> list[str]:
        wanted, known = set(proposal["value"]), self.names
        for name in proposal["value"]:
            if name not in known:
                raise LayerError(
                    f"There is no layer '{name}'.", remedy=did_you_mean(name, known) or None
                )
        return [name for name in known if name in wanted]

    def handlers(self) -> Handlers:
        """What the page sends."""
        return {**super().handlers(), "ticks": self._take_ticks}

    def _take_ticks(self, selected: list[str], hidden_calls: list[str]) -> None:
        """The page's ticks, where they come before the traits."""
        if (selected, hidden_calls) != (self.selected, self.hidden_calls):
            self.set_state({"selected": selected, "hidden_calls": hidden_calls})

    def page_value(self, name: str, value: Any) -> Any:
        """See `Part`. Ticks of a model that went meanwhile are left out."""
        if name == "search" and isinstance(value, str):
            return value[:_LONGEST_SEARCH]
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            layers = {
                text: text.rpartition("#")[0] if name == "hidden_calls" else text for text in value
            }
            return [text for text, layer in layers.items() if layer in self.names]
        return value

    def show(self, model: nn.Module | LoadedModel | Iterable[LayerInfo] | None) -> None:
        """Shows another model's layers; ticks of layers that it has as well are kept.

        Args:
            model: A module, a `LoadedModel`, or what `list_layers` gave; None empties the tree.
        """
        # In one message, or the page would for a moment show old ticks on new rows.
        with self.lock, self.hold_sync():
            kept = set(self.selected)
            self.facts = {}
            self.hidden_calls = []
            self.rows = _rows(model)
            self.selected = [name for name in self.names if name in kept]

    def add_facts(self, facts: Mapping[str, dict[str, Any]]) -> None:
        """Adds what is known of layers now, see `facts`.

        Args:
            facts: By layer; layers that are not named keep what was known.
        """
        self.facts = {**self.facts, **facts}

    @property
    def names(self) -> list[str]:
        """All layers' names, the model's own "" first."""
        return [row[0] for row in self.rows]


_LONGEST_SEARCH = 1000


def _rows(model: nn.Module | LoadedModel | Iterable[LayerInfo] | None) -> list[list[Any]]:
    module = model.module if isinstance(model, LoadedModel) else model
    layers = list_layers(module) if isinstance(module, nn.Module) else module or ()
    return [[info.name, info.type, int(info.is_leaf)] for info in layers]

"""Two runs side by side: how far each layer is apart, and where they part first.

In: two runs, or what gives them. Out: a `Comparison`: a table, figures, files. Must not know: the
widget, the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookviz.comparison._comparing import Comparing
from hookviz.comparison._comparison import Comparison
from hookviz.comparison._layers import LayerDifference
from hookviz.comparison._match import MatchedBy
from hookviz.comparison._reproduce import reproduce
from hookviz.comparison._sides import KeptSide, side_of

__all__ = [
    "Comparison",
    "KeptSide",
    "LayerDifference",
    "MatchedBy",
    "compare",
    "reproduce",
]


def compare(
    a: Any,
    b: Any,
    layers: Any = "*",
    *,
    match: str | Mapping[str, str] | None = None,
    progress: Callable[[str], object] | None = None,
) -> Comparison:
    """Compares two runs layer by layer: photos, models, checkpoints, devices, dtypes, edits, calls.

    Values are compared one layer at a time, in float64. Maps of different sizes are averaged over
    the coarser grid, and the entry says so.

    Args:
        a: One of

            - a `Run`;
            - an `Activation`, several, a `KeptSide`, or a `Capture` (of edits, of one call, …);
            - the folder of an export with raw values (``run.export(what="values")``), which is
              read layer by layer, so that two large models need not be there at once;
            - a pair (model, image), with anything that `feature_maps` takes, or a function that
              gives the model. It runs here, and its values are compared while it runs: none is
              kept. Of two pairs the first keeps its values until the second has run. A model
              given by name or function is let go after its run.
        b: Likewise.
        layers: "*" for all, the output of the model itself included; else names, globs, compiled
            expressions or, where a model is at hand, any selectors of
            `hookviz.capture.select_layers`.
        match: Which layers belong together: "name", "order" (of execution: layers of the same
            type and number of channels that follow each other on both sides), or a mapping from
            layers of a to layers of b. None is by name, or by order where less than half of the
            names are shared.
        progress: Called with the layer of each tensor as soon as it is compared.

    Returns:
        The comparison: ``.layers``, ``.table()``, ``.to_pandas()``, ``.figure(layer)``,
        ``.first_difference(tol)``, ``.export(folder)``; what has no partner is in ``.only_a`` and
        ``.only_b``.

    Raises:
        HookvizError: A side cannot be compared, or the two have nothing in common.
        LayerError: A selector or the mapping names what is not there.
        Exception: Whatever a model's own forward raised, unchanged.

    Examples:
        >>> import copy, torch, hookviz
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
        >>> other = copy.deepcopy(net)
        >>> other[0].weight.data[2, 0, 0, 0] += 0.1
        >>> found = compare((net, hookviz.sample_image()), (other, hookviz.sample_image()))
        >>> first = found.first_difference()
        >>> first.layer, first.place[1]
        ('0', 2)

        Two calls of one layer:

        >>> twice = torch.nn.Sequential(net[0], net[1], torch.nn.Conv2d(4, 4, 3), net[1])
        >>> run = hookviz.feature_maps(twice, hookviz.sample_image(), "1")
        >>> calls = compare(run.select("1", call=1), run.select("1", call=2))
        >>> calls.layers[0].label
        '1 call 1 of 2 | 1 call 2 of 2'
    """
    return Comparing(side_of(a, "a"), side_of(b, "b"), layers, match, progress).done()

"""Attention rollout: how much of each patch has arrived at a token, through several layers.

Of each layer the attention A, the mean over heads, is taken together with the residual connection
around it: 0.5 A + 0.5 I, whose rows sum to 1. The rollout through layers 1 to n is their product,
the last layer first: (0.5 A_n + 0.5 I) … (0.5 A_1 + 0.5 I). Its row of a token says how much of
every token of layer 1 arrives there if values were only passed on. Abnar and Zuidema 2020,
arXiv:2005.00928, section 3. It has no target: what the values hold, and what is made of them, does
not count.

Attention within windows is laid back into the map first; what a window gives to padding is left
out, and the rows divided by their sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hookviz._axes import Places, order_of_tokens
from hookviz.activation import Activation
from hookviz.capture import Capture
from hookviz.errors import HookvizError, LayerError
from hookviz.explanation._forward import Answer
from hookviz.explanation._job import Job
from hookviz.explanation._methods import Method, register
from hookviz.models import feed, out_of_memory
from hookviz.render import Attribution
from hookviz.run import AxesTrial


def _rollout(job: Job) -> Iterator[Attribution]:
    """For each selected layer the rollout through all layers that attend, up to its last."""
    job.steps.expect(1)
    settings: dict[str, Any] = {"eval_mode": True, "cancelled": job.steps.cancelled}
    capture = Capture(job.model.module, job.layers, outputs=False, attention=True, **settings)
    args, kwargs = feed(job.model, job.input.tensor)
    with out_of_memory(f"running {job.model.name}", job.model.device), capture:
        job.answer = Answer(capture.run(*args, **kwargs), 1)
    records = AxesTrial(job.model, job.input.tensor, settings).settle(capture.activations)
    job.missing.update(capture.missing)
    layers = [name for name in job.layers if any(_inside(a, name) for a in records)]
    if not layers:
        name, why = next(iter(capture.missing.items()))
        raise LayerError(f"Layer '{name or '(model)'}' cannot be rolled out: {why}.")
    last = {name: max(a.order for a in records if _inside(a, name)) for name in layers}
    through_all: Tensor | None = None
    places = _places(records)
    for number, record in enumerate(records, start=1):
        step = _with_residual(record)
        through_all = step if through_all is None else step @ through_all
        for name in layers:
            if record.order == last[name]:
                yield _of_query(job, record, name, places, through_all, number)
    job.steps.step()


def _inside(record: Activation, layer: str) -> bool:
    return f"{record.layer}.".startswith(f"{layer}.".lstrip("."))


def _places(records: Sequence[Activation]) -> Places:
    """Where the tokens of the layers lie in the image; the method takes them for the same ones.

    Raises:
        LayerError: They are not the same, or it is not known where they lie.
    """
    for record in records:
        if record.shape[2] != record.shape[3]:
            raise LayerError(
                f"'{record.layer}' attends from {record.shape[2]} tokens to {record.shape[3]} "
                "others; attention rollout needs layers that attend to their own tokens."
            )
        if _tokens(record) != _tokens(records[0]):
            raise LayerError(
                f"Attention rollout goes through layers with the same tokens: '{record.layer}' has "
                f"{_tokens(record)}, '{records[0].layer}' has {_tokens(records[0])}.",
                remedy="Select layers of one stage.",
            )
    for known in (record.axes for record in records):
        if known is not None and known.windows is not None:
            return Places("NTD", known.windows.grid)
        places = None if known is None else known.places
        if places is not None and places.grid is not None and places.frames == 1:
            return places
    why = order_of_tokens(records[0].axes)
    raise LayerError(f"'{records[0].layer}' cannot be rolled out: {why}.")


def _tokens(record: Activation) -> str:
    windows = None if record.axes is None else record.axes.windows
    if windows is None:
        return f"{record.shape[3]} tokens"
    return "{}×{} patches".format(*windows.grid)


def _with_residual(record: Activation) -> Tensor:
    """(T, T) half the mean attention over heads, half the identity; rows sum to 1."""
    wide = torch.float32 if record.tensor.device.type == "mps" else torch.float64
    mean = record.tensor.to(wide).mean(1)
    windows = None if record.axes is None else record.axes.windows
    if windows is None:
        matrix = mean[0]
    else:
        height, width = windows.grid
        matrix = mean.new_zeros(height * width, height * width)
        for number, window in enumerate(mean):
            down, across = divmod(number, len(windows.columns))
            rows = torch.tensor(windows.rows[down], device=mean.device)[:, None]
            columns = torch.tensor(windows.columns[across], device=mean.device)
            at = (rows * width + columns).flatten()
            there = ((rows >= 0) & (columns >= 0)).flatten()
            at = at[there]
            matrix[at[:, None], at] = window[there][:, there]
        matrix = matrix / matrix.sum(1, keepdim=True)
    return 0.5 * matrix + 0.5 * torch.eye(len(matrix), dtype=wide, device=mean.device)


def _of_query(
    job: Job, record: Activation, layer: str, places: Places, matrix: Tensor, count: int
) -> Attribution:
    """The row that was asked for, as a map of the image."""
    assert places.grid is not None  # noqa: S101 - see _places
    query, apart = job.options["query"], places.apart
    rows, columns = places.grid
    if query is None:
        query = "class" if apart else "mean"
    if query == "class" and not apart:
        raise HookvizError(
            f"query is 'class', but '{record.layer}' has no class token.",
            remedy="Use 'mean' over all patches, or a patch as (row, column).",
        )
    if query == "class":
        row, words = matrix[0], "class token"
    elif query == "mean":
        row, words = matrix[apart:].mean(0), "mean over all patches"
    else:
        y, x = query
        if y >= rows or x >= columns:
            raise HookvizError(
                f"query is ({y}, {x}), but the patch grid has {rows} rows and {columns} columns."
            )
        row, words = matrix[apart + y * columns + x], f"patch ({y}, {x})"
    base = record
    if layer:
        kind = type(job.model.module.get_submodule(layer)).__name__
        base = replace(record, layer=layer, module_type=kind, call=1, calls=1, leaf="")
    plural = f"{count} attention layers" if count > 1 else "1 attention layer"
    return job.attribution(
        base,
        row[apart:].reshape(1, 1, rows, columns),
        apart=row[None, :apart] if apart else None,
        remarks=[f"query: {words}", f"through {plural}"],
    )


def _check(options: Mapping[str, Any]) -> None:
    query = options["query"]
    patch = isinstance(query, Sequence) and not isinstance(query, str) and len(query) == 2
    if patch:
        patch = all(type(at) is int and at >= 0 for at in query)
    if query not in (None, "class", "mean") and not patch:
        raise HookvizError(
            f"query is {query!r:.60}; legal are 'class', 'mean', a patch as (row, column) and None."
        )


register(
    Method(
        "rollout",
        "Attention rollout",
        "Abnar and Zuidema 2020, arXiv:2005.00928",
        _rollout,
        targeted=False,
        options={"query": None},
        check=_check,
    )
)

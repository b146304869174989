"""Attention: where one query looks, for each head a map of the image.

A record of kind "attention" holds (N, heads, queries, keys), the probabilities of one call; each
query's row sums to 1. Where attention looks within windows (Swin, MaxViT), the first axis counts
these: a query's keys are laid where they stand in the image, and places outside its window have
no value. ``query="all"`` draws the rows of all queries as they are, one matrix for each head.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hookviz._axes import KnownAxes, Places, Windows, order_of_tokens, token_grid
from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._arrange import Arranged, checked_index, grid_note, plain_tensor
from hookviz.render._kinds import FigureKind, register
from hookviz.render._maps import draw_maps
from hookviz.render._options import GridOptions


def _arrange(record: Activation, options: GridOptions) -> Arranged:
    """The view of an attention that the options ask for: a map for each head, or the mean."""
    tensor, notes = plain_tensor(record.tensor)
    shape, known = tuple(tensor.shape), record.axes
    if len(shape) != 4 or 0 in shape:
        raise RenderError(f"Attention is (N, heads, queries, keys), not of shape {shape}.")
    if options.frame is not None:
        raise RenderError(f"frame is {options.frame}, but attention has no frames.")
    if options.heads == "mean":
        if shape[1] > 1:
            notes.append(f"mean of {shape[1]} heads")
        tensor = tensor.mean(1, keepdim=True)
    arranged = Arranged(
        kind="attention-map",
        maps=tensor,
        statement="(N, heads, queries, keys)",
        notes=tuple(notes),
        shape=shape,
        dtype=str(record.tensor.dtype).removeprefix("torch."),
    )
    windows = None if known is None else known.windows
    if windows is not None and options.query != "all":
        return _in_window(arranged, tensor, windows, options)
    noun = "sample" if windows is None else "window"
    sample = checked_index(noun, options.sample, shape[0], shape)
    if shape[0] > 1:
        notes.append(f"{noun} {sample} of {shape[0]}")
    # Tokens are those of the keys; queries are the same ones where there are equally many.
    places = None if windows is not None else token_grid(shape[3], options.grid, known)
    if places is not None and (places.grid is None or places.frames > 1):
        places = None
    query = options.query
    if query is None and (places is None or shape[2] != shape[3]):
        query = "all"
    if query == "all":
        part = noun if windows is not None else ""
        return replace(
            arranged, kind="attention", maps=tensor[sample], notes=tuple(notes), samples=shape[0],
            part=part,
        )  # fmt: skip
    token, where, mark = _token(query, shape[2], places if shape[2] == shape[3] else None, known)
    row = tensor[sample, :, token]
    notes.append(f"query: {where}")
    if places is None or places.grid is None:
        notes.append(f"{order_of_tokens(known)}: keys in a strip")
        return replace(
            arranged, kind="signal", maps=row[:, None], notes=tuple(notes), samples=shape[0]
        )
    return replace(
        arranged,
        maps=row[:, places.apart :].reshape(-1, *places.grid),
        apart=row[:, : places.apart] if places.apart else None,
        notes=(*notes, grid_note(places, given=options.grid is not None)),
        samples=shape[0],
        mark=mark,
    )


def _token(
    query: str | int | tuple[int, int] | None,
    count: int,
    places: Places | None,
    known: KnownAxes | None,
) -> tuple[int, str, tuple[int, int] | None]:
    """Position of the query, what it is in words, and its place where it is a patch."""
    grid, apart = (None, 0) if places is None else (places.grid, places.apart)
    if query is None and grid is not None:
        query = "class" if apart else (grid[0] // 2, grid[1] // 2)
    if query == "class":
        if not apart:
            raise RenderError(
                "query is 'class', but the layer has no class token that is known.",
                remedy="Give a patch as (row, column), or a token's number.",
                code="no-such-query",
            )
        return 0, "class token" if apart == 1 else f"token 0 of the first {apart}", None
    if isinstance(query, tuple):
        if grid is None:
            raise RenderError(
                f"query is {query}, but {order_of_tokens(known)}.",
                remedy=f"Give a token's number, 0 to {count - 1}, or the grid.",
                code="no-such-query",
            )
        _check_place(query, grid)
        return apart + query[0] * grid[1] + query[1], _patch(query), query
    assert isinstance(query, int)  # noqa: S101 - without a grid all queries are drawn
    if query >= count:
        raise RenderError(
            f"query is {query}, but there are {count} queries (0 to {count - 1}).",
            code="no-such-query",
        )
    if grid is None or query < apart:
        return query, f"token {query} of {count}", None
    place = divmod(query - apart, grid[1])
    return query, _patch(place), place


def _patch(place: tuple[int, int]) -> str:
    return f"patch ({place[0]}, {place[1]}), outlined"


def _check_place(place: tuple[int, int], grid: tuple[int, int]) -> None:
    if place[0] >= grid[0] or place[1] >= grid[1]:
        raise RenderError(
            f"query is {place}, but the patch grid has {grid[0]} rows and {grid[1]} columns.",
            code="no-such-query",
        )


def _in_window(
    arranged: Arranged, tensor: Tensor, windows: Windows, options: GridOptions
) -> Arranged:
    """The keys of a query where they stand in the map; places outside its window have no value."""
    height, width = windows.grid
    query = options.query
    if isinstance(query, str):
        raise RenderError(
            f"query is {query!r}, but windows hold no such token.",
            remedy="Give a patch as (row, column).",
            code="no-such-query",
        )
    if isinstance(query, int):
        query = divmod(query, width)
    place = (height // 2, width // 2) if query is None else query
    _check_place(place, (height, width))
    samples = arranged.shape[0] // windows.count
    sample = checked_index("sample", options.sample, samples, arranged.shape)
    window, token = windows.find(*place)
    down, across = divmod(window, len(windows.columns))
    row = tensor[sample * windows.count + window, :, token]
    rows, columns = (
        torch.tensor(at, device=row.device) for at in (windows.rows[down], windows.columns[across])
    )
    keys = row.reshape(len(row), len(rows), len(columns))[:, rows >= 0][:, :, columns >= 0]
    rows, columns = rows[rows >= 0], columns[columns >= 0]
    # Positions, which are looked up in the same way, have no NaN.
    nothing = torch.nan if row.is_floating_point() else -1
    maps = torch.full((len(row), height, width), nothing, dtype=row.dtype, device=row.device)
    maps[:, rows[:, None], columns] = keys
    notes = [*arranged.notes, f"query: {_patch(place)}"]
    notes += [f"sample {sample} of {samples}"] if samples > 1 else []
    notes.append(
        f"window of {len(rows)}×{len(columns)} in {height}×{width}: attention looks nowhere else"
    )
    tokens = len(windows.rows[0]) * len(windows.columns[0])
    padding = tokens - keys.shape[1] * keys.shape[2]
    if padding:
        notes.append(f"{padding} keys of the window are padding, which is not drawn")
    outside = "" if row.is_floating_point() and row.isnan().any() else "outside the window"
    return replace(
        arranged, maps=maps, notes=tuple(notes), samples=samples, mark=place, absent=outside
    )


register(
    FigureKind(
        "attention-map",
        draw_maps,
        "head",
        "head",
        value_noun="patch",
        on_image=True,
        record="attention",
        arrange=_arrange,
    )
)

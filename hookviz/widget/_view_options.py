"""The view controls and the drawing options that they stand for.

What the user chose comes as texts and numbers of a page, and becomes checked GridOptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookviz.errors import RenderError
from hookviz.render import GridOptions

VIEW_CHOICES: dict[str, Any] = {
    "cmaps": [
        "auto", "viridis", "magma", "inferno", "cividis", "gray", "RdBu_r", "hookviz_dark",
        "coolwarm", "turbo",
    ],
    "scales": [
        ["auto", "automatic"],
        ["full", "full range"],
        ["channel", "per map"],
        ["layer", "per layer"],
        ["symmetric", "symmetric"],
        ["percentile", "1–99 %"],
        ["fixed", "fixed"],
    ],
    "orders": ["index", "mean", "max", "variance", "sparsity"],
}  # fmt: skip
_NAMES = (
    "cmap", "scale", "order", "per_page", "channels", "summary", "hide_dead", "overlay",
    "vmin", "vmax",
)  # fmt: skip


def view_of(options: GridOptions) -> dict[str, Any]:
    """The controls' values for drawing options.

    Examples:
        >>> view_of(GridOptions(channels=(0, 3)))["channels"]
        '0,3'
    """
    view = {name: getattr(options, name) for name in _NAMES}
    channels = options.channels or ""
    view["channels"] = channels if isinstance(channels, str) else ",".join(map(str, channels))
    view["overlay"] = options.opacity > 0
    for name in ("vmin", "vmax"):
        view[name] = "" if view[name] is None else f"{view[name]:.6g}"
    return view


def changed_options(
    options: GridOptions,
    changes: Mapping[str, Any],
    span: Callable[[], tuple[float, float] | None] = lambda: None,
) -> GridOptions:
    """Drawing options after the user changed something.

    Args:
        options: Those before.
        changes: New values by name, as they come from controls; other names are left out.
        span: Gives the lowest and highest value to begin a fixed scale with; None is 0 to 1.

    Returns:
        The new options.

    Raises:
        RenderError: A value is not legal.

    Examples:
        >>> changed_options(GridOptions(), {"scale": "fixed"}, lambda: (-1.0, 2.0)).vmax
        2.0
    """
    wanted = {name: value for name, value in changes.items() if name in _NAMES}
    if "hide_dead" in wanted:
        wanted["hide_dead"] = bool(wanted["hide_dead"])
    for name in ("vmin", "vmax"):
        if name in wanted:
            wanted[name] = _value(name, wanted[name])
    if "channels" in wanted:
        wanted["channels"] = str(wanted["channels"] or "").strip() or None
    scale = wanted.get("scale", options.scale)
    if scale == "fixed":
        low, high = span() or (0.0, 1.0)
        if low >= high:
            low, high = low - 0.5, low + 0.5
        for name, start in (("vmin", low), ("vmax", high)):
            if wanted.get(name, getattr(options, name)) is None:
                wanted[name] = start
    elif scale != "shared":
        wanted["vmin"] = wanted["vmax"] = None
    return options.replace(**wanted)


def _value(name: str, text: Any) -> float | None:
    plain = "" if text is None else str(text).strip()
    try:
        return float(plain.replace("−", "-").replace(",", ".")) if plain else None
    except ValueError:
        word = "Lowest" if name == "vmin" else "Highest"
        raise RenderError(
            f"{word} value is '{text}'; it must be a number.", remedy="For example -1.5 or 2e-3."
        ) from None

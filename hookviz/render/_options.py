"""How a page of pictures is to look.

In: what the user chose. Out: a frozen, checked GridOptions that goes into a PNG's text keys and
back. Must not know: tensors, or how anything is drawn.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from hookviz.errors import RenderError, did_you_mean
from hookviz.render._checks import number, one_of, pair, parse_channels, whole
from hookviz.render._colormaps import colormaps

__all__ = ["LAYOUTS", "ORDERS", "SCALES", "SUMMARIES", "GridOptions"]

Scale = Literal[
    "auto", "channel", "layer", "shared", "symmetric", "percentile", "fixed"
]  # how values become colours
Layout = Literal[
    "auto",
    "maps",
    "channels-last",
    "tokens",
    "vector",
    "signal",
    "volume",
    "volume-channels-last",
    "attention",
]  # which axes are what

SCALES: tuple[str, ...] = get_args(Scale)
LAYOUTS: tuple[str, ...] = get_args(Layout)
ORDERS: tuple[str, ...] = ("index", "mean", "max", "variance", "sparsity", "similarity")
SUMMARIES: tuple[str, ...] = ("mean", "max", "pca")
STYLES: tuple[str, ...] = ("light", "dark")
SHRINKS: tuple[str, ...] = ("mean", "nearest")

_MAX_PIXELS_WIDE = 20_000


@dataclass(frozen=True)
class GridOptions:
    """What is drawn of a layer, and how. Frozen; ``replace(...)`` makes a changed copy.

    Attributes:
        per_page: Maps on one page, at least 1.
        page: Which page, from 0.
        channels: Only these, in this order: "0-15,42" or a sequence of indices; None is all.
        order: "index" (or the order of ``channels``), "mean", "max", "variance", "sparsity"
            (share of zeros) or "similarity:17" (correlation with channel 17).
        descending: Largest first; None is smallest first for "index", largest first otherwise.
        top: Only the first ``top`` after ordering; for vectors, how many bars are named.
        hide_dead: Leave out channels that are zero everywhere.
        cmap: Name of a matplotlib colormap; "auto" is viridis, or a diverging one where the
            scale is symmetric about zero.
        scale: "channel" (each map from its own minimum to its own maximum), "layer", "shared"
            (``vmin`` and ``vmax`` found over several layers or images by ``shared_range``),
            "symmetric" (about zero), "percentile", "fixed" (``vmin``, ``vmax``); "auto" is
            "symmetric" where the layer has negative values, else "layer".
        vmin: Lower end for "fixed" and "shared", in the activation's own units.
        vmax: Upper end for "fixed" and "shared".
        percentile: The two percentiles of "percentile", 0 to 100.
        sample: Which sample of a batch, from 0.
        frame: Which frame of a volume, from 0; None is the middle one.
        layout: Which axes are what; "auto" reads it from the layer's type and the shape, and the
            figure states it.
        grid: (rows, columns) of a transformer's patch grid where it cannot be found.
        style: "light" or "dark", which pin every colour and the font; None follows
            matplotlib's rcParams.
        width: Width of the figure in pixels.
        dpi: Pixels per inch; text has the same size in points whatever it is.
        ncols: Maps in a row; None chooses.
        shrink: What a pixel shows where a map is larger than its tile: "mean" of the activations
            under it, or the "nearest" one.
        show_input: Put the picture that the network saw beside the grid.
        overlay: Lay each map over that picture; a number from 0 to 1 is the map's opacity
            (True is 0.55).
        summary: "none", or one or more of "mean", "max", "pca", joined by commas.
        colorbar: Draw the colourbar.
        labels: Write each channel's index.
        title: Instead of the layer's name.

    Raises:
        RenderError: A value is not one of the legal ones.

    Examples:
        >>> options = GridOptions(channels="0-3,42", cmap="magma")
        >>> GridOptions.from_json(options.to_json()) == options
        True
    """

    per_page: int = 64
    page: int = 0
    channels: str | tuple[int, ...] | None = None
    order: str = "index"
    descending: bool | None = None
    top: int | None = None
    hide_dead: bool = False
    cmap: str = "auto"
    scale: str = "auto"
    vmin: float | None = None
    vmax: float | None = None
    percentile: tuple[float, float] = (1.0, 99.0)
    sample: int = 0
    frame: int | None = None
    layout: str = "auto"
    grid: tuple[int, int] | None = None
    style: str | None = None
    width: int = 1200
    dpi: float = 100.0
    ncols: int | None = None
    shrink: str = "mean"
    show_input: bool = False
    overlay: bool | float = False
    summary: str = "none"
    colorbar: bool = True
    labels: bool = True
    title: str | None = None

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "per_page", whole("per_page", self.per_page, low=1))
        set_(self, "page", whole("page", self.page))
        set_(self, "sample", whole("sample", self.sample))
        set_(self, "width", whole("width", self.width, low=200, high=_MAX_PIXELS_WIDE))
        for name in ("frame", "top", "ncols"):
            value = getattr(self, name)
            if value is not None:
                set_(self, name, whole(name, value, low=0 if name == "frame" else 1))
        set_(self, "dpi", number("dpi", self.dpi, low=20.0, high=1200.0))
        for name in ("vmin", "vmax"):
            if getattr(self, name) is not None:
                set_(self, name, number(name, getattr(self, name)))
        one_of("scale", self.scale, SCALES)
        one_of("layout", self.layout, LAYOUTS)
        one_of("shrink", self.shrink, SHRINKS)
        if self.style is not None:
            one_of("style", self.style, STYLES)
        self._check_cmap()
        self._check_order()
        self._check_range()
        self._check_pictures()
        if self.grid is not None:
            rows, columns = pair("grid", self.grid)
            set_(self, "grid", (whole("grid", rows, low=1), whole("grid", columns, low=1)))
        if self.channels is not None:
            if isinstance(self.channels, str):
                parse_channels(self.channels)
            else:
                set_(self, "channels", parse_channels(self.channels))

    def _check_cmap(self) -> None:
        name = self.cmap
        if not isinstance(name, str):
            name = getattr(name, "name", None)  # type: ignore[unreachable]  # a Colormap object
            if name is None:
                raise RenderError(f"cmap is {self.cmap!r}; it must be the name of a colormap.")
            object.__setattr__(self, "cmap", name)
        if name != "auto" and name not in colormaps:
            known = list(colormaps)
            raise RenderError(
                f"cmap is {name!r}, which is no colormap.",
                remedy=did_you_mean(name, known) or "For example 'viridis', 'gray' or 'RdBu_r'.",
            )

    def _check_order(self) -> None:
        name, _, reference = str(self.order).partition(":")
        if name not in ORDERS or (name == "similarity") != reference.isdecimal():
            raise RenderError(
                f"order is {self.order!r}; legal are 'index', 'mean', 'max', 'variance', "
                "'sparsity' and 'similarity:K' with a channel's index for K.",
                remedy=did_you_mean(name, ORDERS) or None,
            )

    def _check_range(self) -> None:
        low, high = pair("percentile", self.percentile)
        low = number("percentile", low, low=0.0, high=100.0)
        high = number("percentile", high, low=0.0, high=100.0)
        if low >= high:
            raise RenderError(f"percentile is ({low:g}, {high:g}); the first must be the smaller.")
        object.__setattr__(self, "percentile", (low, high))
        if self.vmin is not None and self.vmax is not None and self.vmin >= self.vmax:
            raise RenderError(
                f"vmin is {self.vmin:g} and vmax {self.vmax:g}; vmin must be smaller than vmax.",
                code="empty-range",
                details={"low": self.vmin, "high": self.vmax},
            )
        if self.scale in ("fixed", "shared") and (self.vmin is None or self.vmax is None):
            how = " (shared_range finds them)" if self.scale == "shared" else ""
            raise RenderError(f"scale={self.scale!r} needs both vmin and vmax{how}.")
        if self.scale not in ("fixed", "shared") and (
            self.vmin is not None or self.vmax is not None
        ):
            if self.scale == "auto" and self.vmin is not None and self.vmax is not None:
                object.__setattr__(self, "scale", "fixed")
                return
            raise RenderError(
                f"vmin and vmax are given, but scale={self.scale!r} does not use them.",
                remedy="Give both and scale='fixed'.",
            )

    def _check_pictures(self) -> None:
        if not isinstance(self.overlay, bool):
            object.__setattr__(self, "overlay", number("overlay", self.overlay, low=0.0, high=1.0))
        for part in self.summaries:
            one_of("summary", part, ("none", *SUMMARIES))

    @property
    def summaries(self) -> tuple[str, ...]:
        """The summary tiles asked for, in the order asked for; () for "none"."""
        parts = [p.strip() for p in str(self.summary).split(",")]
        return tuple(dict.fromkeys(p for p in parts if p not in ("none", "")))

    @property
    def opacity(self) -> float:
        """Opacity of a map over the picture, 0 to 1; 0 where nothing is overlaid."""
        if isinstance(self.overlay, bool):
            return 0.55 if self.overlay else 0.0
        return float(self.overlay)

    def replace(self, **changes: Any) -> GridOptions:
        """A copy with some values changed; unknown names raise RenderError."""
        _known(changes)
        return replace(self, **changes)

    def to_json(self) -> str:
        """One line of JSON with sorted keys; ``from_json`` gives equal options back."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> GridOptions:
        """The options that ``to_json`` wrote.

        Raises:
            RenderError: The text is not JSON, or holds a name or value that is not legal.
        """
        try:
            found = json.loads(text)
        except (ValueError, TypeError) as error:
            raise RenderError(f"The options are not readable as JSON: {error}.") from error
        if not isinstance(found, dict):
            raise RenderError(f"The options must be a JSON object, found {type(found).__name__}.")
        return cls.of(**found)

    @classmethod
    def of(cls, **values: Any) -> GridOptions:
        """Options from names and values, as keyword arguments of ``feature_grid`` give them."""
        _known(values)
        for name in ("channels", "percentile", "grid"):
            if isinstance(values.get(name), list):
                values[name] = tuple(values[name])
        return cls(**values)


def _known(values: dict[str, Any]) -> None:
    names = [field.name for field in fields(GridOptions)]
    for name in values:
        if name not in names:
            raise RenderError(
                f"There is no drawing option {name!r}.",
                remedy=did_you_mean(name, names) or f"Legal are {', '.join(names)}.",
            )

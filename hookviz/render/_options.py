"""How a figure is to look: the options, and whether each value that the user gave is legal."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, cast, get_args

from hookviz.errors import RenderError, did_you_mean
from hookviz.render._palette import colormaps

Scale = Literal[
    "auto", "full", "channel", "layer", "shared", "symmetric", "percentile", "fixed", "running"
]  # fmt: skip
Axes = Literal[
    "auto",
    "maps",
    "channels-last",
    "tokens",
    "vector",
    "signal",
    "volume",
    "volume-channels-last",
    "attention",
]
Style = Literal["light", "dark"]
Shrink = Literal["mean", "nearest"]
Colors = Literal["sum", "max", "each"]
Heads = Literal["each", "mean"]
Query = int | str | tuple[int, int] | None
ComparisonSide = Literal["all", "a", "b", "difference"]

SCALES: tuple[str, ...] = get_args(Scale)
GIVEN_SCALES = ("fixed", "shared", "running")
"""Those whose ends are ``vmin`` and ``vmax``."""
AXES: tuple[str, ...] = get_args(Axes)
ORDERS: tuple[str, ...] = ("index", "mean", "max", "variance", "sparsity", "norm", "similarity")
SUMMARIES: tuple[str, ...] = ("mean", "max", "pca")

_MAX_PIXELS_WIDE = 20_000
_INCHES = 1.4  # narrower figures have no room beside a colorbar's texts
_MAX_CHANNEL = 10_000_000  # more than any layer has; a range of more would fill the memory


class DrawingOptions(TypedDict, total=False):
    """The fields of `GridOptions` as keyword arguments, for editors and type checkers."""

    figure: str
    per_page: int
    page: int
    channels: str | Sequence[int] | None
    order: str
    descending: bool | None
    first: str | Sequence[int] | None
    top: int | None
    hide_dead: bool
    cmap: Any
    scale: Scale
    vmin: float | None
    vmax: float | None
    percentile: tuple[float, float]
    sample: int
    frame: int | None
    axes: Axes
    grid: tuple[int, int] | None
    input_channel: int | None
    output_channel: int | None
    relative: bool
    side: ComparisonSide
    signed: bool | None
    colors: Colors
    query: Query
    heads: Heads
    style: Style | None
    width: int
    dpi: float
    ncols: int | None
    shrink: Shrink
    show_input: bool
    overlay: bool | float
    summary: str
    colorbar: bool
    labels: bool
    title: str | None
    bare: bool


@dataclass(frozen=True)
class GridOptions:
    """What is drawn of a layer, and how. Frozen; ``replace(...)`` makes a changed copy.

    Attributes:
        figure: "auto" draws what the record holds (maps, tokens, bars …); "statistics" draws a
            histogram, numbers and the range of every channel.
        per_page: Maps on one page, at least 1.
        page: Which page, from 0.
        channels: Only these, in this order: "0-15,42" or a sequence of indices; None is all.
        order: "index" (or the order of ``channels``), "mean", "max", "variance", "sparsity"
            (share of zeros), "norm" (root mean square; in a comparison, how much they differ) or
            "similarity:17" (correlation with channel 17).
        descending: Largest first; None is smallest first for "index", largest first otherwise.
        first: These before all others, whatever ``order``, ``channels`` and ``hide_dead`` say:
            "42,7" or a sequence of indices; None is none.
        top: Only the first ``top`` after ordering; for vectors, how many bars are named.
        hide_dead: Leave out channels that are zero everywhere.
        cmap: Name of a matplotlib colormap; "auto" is viridis, or a diverging one where the
            scale is symmetric about zero.
        scale: "auto" spans 98 % of the layer's values by magnitude, symmetric about zero where
            any value is negative; what lies beyond is marked and counted. Where all values
            lie within 1.25 times that, it is "full". "full" spans all values: it is "symmetric"
            (about zero) where any value is negative, else "layer" (from the minimum to the
            maximum). "channel" gives each map its own range; "shared" is ``vmin`` and ``vmax``
            found over several layers or images by ``shared_range``, "running" those found over
            the frames so far by `HeldScales`; "percentile" and "fixed" (``vmin``, ``vmax``) are
            as they say.
        vmin: Lower end for "fixed", "shared" and "running", in the activation's own units.
        vmax: Upper end for "fixed", "shared" and "running".
        percentile: The two percentiles of "percentile", 0 to 100.
        sample: Which sample of a batch, from 0.
        frame: Which frame of a volume, from 0; None is the middle one.
        axes: Which axes are what; "auto" takes what the run, the layer's type and the shape say,
            and the figure states it.
        grid: (rows, columns) of a transformer's patch grid where it cannot be found.
        input_channel: Filters only: the input channel whose kernels are drawn; None is the first
            of each group, or all three as colors where there are three.
        output_channel: Filters only: draw all kernels of this output channel, the strongest input
            channels first.
        relative: Comparisons only: draw the relative difference (b − a) / max(|a|, |b|), value by
            value: −2 to 2, 1 in size where one of the two is zero, 0 where they are equal, both
            zero included.
        side: Comparisons only: "all", or "a", "b" or "difference" alone, on the scale that it has
            beside the others.
        signed: Attributions only: True draws them with their sign, False cut at zero; None is as
            the method's paper has it.
        colors: Attributions of the network's input only: "sum" over its color channels, "max" is
            the largest magnitude among them, "each" draws them one by one.
        query: Attention only: whose attention is drawn: "class" (the class token), a patch as
            (row, column), a token's number, or "all" for the matrix of all queries; None is the
            class token where there is one, else the middle patch.
        heads: Attention only: "each" head, or their "mean".
        style: "light" or "dark", which pin every color and the font; None follows
            matplotlib's rcParams.
        width: Width of the figure in pixels.
        dpi: Pixels per inch; text has the same size in points whatever it is.
        ncols: Maps in a row; None chooses.
        shrink: What a pixel shows where a map is larger than its tile: "mean" of the activations
            under it, or the "nearest" one.
        show_input: Put the image that the network saw beside the grid.
        overlay: Lay each map over that image; a number from 0 to 1 is the map's opacity
            (True is 0.55).
        summary: "none", or one or more of "mean", "max", "pca", joined by commas.
        colorbar: Draw the colorbar.
        labels: Write each channel's index.
        title: Instead of the layer's name.
        bare: The tiles of maps alone, without title, sentences and colorbar, for a page that shows
            those itself; figures of other kinds keep them.

    Raises:
        RenderError: A value is not one of the legal ones.

    Examples:
        >>> options = GridOptions(channels="0-3,42", cmap="magma")
        >>> GridOptions.from_json(options.to_json()) == options
        True
    """

    figure: str = "auto"
    per_page: int = 64
    page: int = 0
    channels: str | tuple[int, ...] | None = None
    order: str = "index"
    descending: bool | None = None
    first: str | tuple[int, ...] | None = None
    top: int | None = None
    hide_dead: bool = False
    cmap: str = "auto"
    scale: Scale = "auto"
    vmin: float | None = None
    vmax: float | None = None
    percentile: tuple[float, float] = (1.0, 99.0)
    sample: int = 0
    frame: int | None = None
    axes: Axes = "auto"
    grid: tuple[int, int] | None = None
    input_channel: int | None = None
    output_channel: int | None = None
    relative: bool = False
    side: ComparisonSide = "all"
    signed: bool | None = None
    colors: Colors = "sum"
    query: Query = None
    heads: Heads = "each"
    style: Style | None = None
    width: int = 1200
    dpi: float = 100.0
    ncols: int | None = None
    shrink: Shrink = "mean"
    show_input: bool = False
    overlay: bool | float = False
    summary: str = "none"
    colorbar: bool = True
    labels: bool = True
    title: str | None = None
    bare: bool = False

    def __post_init__(self) -> None:
        for check, names in _CHECKS:
            for name in names:
                value = getattr(self, name)
                if value is not None or getattr(GridOptions, name) is not None:
                    object.__setattr__(self, name, check(name, value))
        for part in self.summaries:
            one_of("summary", part, ("none", *SUMMARIES))
        if self.width < _INCHES * self.dpi:
            raise RenderError(
                f"width is {self.width} pixels, which at {self.dpi:g} dpi is too narrow for texts.",
                remedy=f"Make it at least {math.ceil(_INCHES * self.dpi)}, or dpi smaller.",
            )
        low, high = self.percentile
        if low >= high:
            raise RenderError(f"percentile is ({low:g}, {high:g}); the first must be the smaller.")
        self._check_range()

    def _check_range(self) -> None:
        low, high = self.vmin, self.vmax
        if low is not None and high is not None:
            if low >= high:
                raise RenderError(
                    f"vmin is {low:g} and vmax {high:g}; vmin must be smaller than vmax.",
                    code="empty-range",
                    details={"low": low, "high": high},
                )
            if self.scale == "auto":
                object.__setattr__(self, "scale", "fixed")
        elif self.scale in GIVEN_SCALES:
            how = " (shared_range finds them)" if self.scale == "shared" else ""
            raise RenderError(f"scale={self.scale!r} needs both vmin and vmax{how}.")
        if self.scale not in GIVEN_SCALES and (low, high) != (None, None):
            raise RenderError(
                f"vmin and vmax are given, but scale={self.scale!r} does not use them.",
                remedy="Give both and scale='fixed'.",
            )

    @property
    def summaries(self) -> tuple[str, ...]:
        """The summary tiles asked for, in the order asked for; () for "none"."""
        parts = [p.strip() for p in self.summary.split(",")]
        return tuple(dict.fromkeys(p for p in parts if p not in ("none", "")))

    @property
    def opacity(self) -> float:
        """Opacity of a map over the image, 0 to 1; 0 where nothing is overlaid."""
        if isinstance(self.overlay, bool):
            return 0.55 if self.overlay else 0.0
        return float(self.overlay)

    def replace(self, **changes: Any) -> GridOptions:
        """A copy with some values changed.

        Args:
            **changes: Fields by name.

        Returns:
            New options, checked like any.

        Raises:
            RenderError: A name or a value is not legal.
        """
        return GridOptions.of(**{**vars(self), **changes})

    def to_json(self) -> str:
        """One line of JSON with sorted keys; ``from_json`` gives equal options back."""
        return json.dumps(vars(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> GridOptions:
        """The options that ``to_json`` wrote.

        Args:
            text: JSON of an object; files of earlier versions are read as well.

        Returns:
            Equal options.

        Raises:
            RenderError: The text is not JSON, or holds a name or value that is not legal.
        """
        try:
            found = json.loads(text)
        except (ValueError, TypeError) as error:
            raise RenderError(f"The options are not readable as JSON: {error}.") from error
        if not isinstance(found, dict):
            raise RenderError(f"The options must be a JSON object, found {type(found).__name__}.")
        if "layout" in found:
            found["axes"] = found.pop("layout")
        return cls.of(**found)

    @classmethod
    def of(cls, **values: Unpack[DrawingOptions]) -> GridOptions:
        """Options from names and values, as keyword arguments of ``feature_grid`` give them.

        Args:
            **values: Fields by name; those not named have their defaults.

        Returns:
            The options.

        Raises:
            RenderError: A name or a value is not legal.
        """
        names = [field.name for field in fields(cls)]
        for name in values:
            if name == "layout":
                raise RenderError("The drawing option 'layout' is called 'axes'.")
            if name not in names:
                raise RenderError(
                    f"There is no drawing option {name!r}.",
                    remedy=did_you_mean(name, names) or f"Legal are {', '.join(names)}.",
                )
        return cls(**cast("dict[str, Any]", values))


def parse_channels(channels: str | Sequence[int], name: str = "channels") -> tuple[int, ...]:
    """The indices that a text like "0-15,42" names, each once, in the order written.

    Args:
        channels: Indices and inclusive ranges joined by commas, or a sequence of indices.
        name: What a sentence about them calls them.

    Raises:
        RenderError: The text is not such a list.

    Examples:
        >>> parse_channels("0-3, 42,2")
        (0, 1, 2, 3, 42)
        >>> parse_channels("9-7")
        (9, 8, 7)
    """
    if not isinstance(channels, str):
        if not isinstance(channels, Iterable):
            raise _no_channels(
                name, channels, "it must be a text like '0-15,42' or a sequence of indices."
            )
        return tuple(dict.fromkeys(whole(name, c, high=_MAX_CHANNEL) for c in channels))
    found: list[int] = []
    for text in channels.replace("–", "-").replace(";", ",").split(","):
        part = text.strip()
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(end.isdecimal() for end in ends):
            fault = f"{part!r} is neither an index nor a range; write for example '0-15,42'."
            raise _no_channels(name, channels, fault, part)
        first, last = int(ends[0]), int(ends[-1])
        if max(first, last) > _MAX_CHANNEL:
            raise _no_channels(name, channels, f"{max(first, last)} is too large.", part)
        step = 1 if first <= last else -1
        found.extend(range(first, last + step, step))
    return tuple(dict.fromkeys(found))


def _no_channels(name: str, channels: Any, fault: str, part: str | None = None) -> RenderError:
    details = {} if part is None else {"text": part}
    return RenderError(f"{name} is {channels!r}; {fault}", code="not-channels", details=details)


def whole(name: str, value: Any, low: int = 0, high: int | None = None) -> int:
    """The value as an int from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise RenderError(f"{name} is {value!r}; it must be a whole number.")
    if int(value) < low or (high is not None and int(value) > high):
        end = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RenderError(f"{name} is {value}; it must be {end}.")
    return int(value)


def number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """The value as a finite float from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise RenderError(f"{name} is {value!r}; it must be a number.")
    if not math.isfinite(value) or not low <= float(value) <= high:
        legal = "finite" if math.isinf(low) else f"from {low:g} to {high:g}"
        raise RenderError(f"{name} is {value}; it must be {legal}.")
    return float(value)


def one_of(name: str, value: Any, legal: Iterable[str | None]) -> Any:
    """The value, which must be one of ``legal``."""
    legal = tuple(legal)
    if value not in legal:
        raise RenderError(
            f"{name} is {value!r}; legal are {', '.join(map(repr, legal))}.",
            remedy=did_you_mean(str(value), map(str, legal)) or None,
        )
    return value


def _query(name: str, value: Any) -> Query:
    if isinstance(value, str):
        return cast("str", one_of(name, value, ("class", "all")))
    if isinstance(value, Sequence):
        return _pair(whole, name, value)
    return whole(name, value)


def _signed(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RenderError(f"{name} is {value!r}; legal are True, False and None.")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RenderError(f"{name} is {value!r}; it must be a text.")
    return value


def _pair(check: Callable[[str, Any], Any], name: str, value: Any) -> tuple[Any, Any]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise RenderError(f"{name} is {value!r}; it must be two numbers.")
    return check(name, value[0]), check(name, value[1])


def _overlay(name: str, value: Any) -> bool | float:
    return value if isinstance(value, bool) else number(name, value, low=0.0, high=1.0)


def _channels(name: str, value: Any) -> Any:
    indices = parse_channels(value, name)
    return value if isinstance(value, str) else indices


def _cmap(_: str, value: Any) -> str:
    name = value if isinstance(value, str) else getattr(value, "name", None)  # a Colormap object
    if name is None:
        raise RenderError(f"cmap is {value!r}; it must be the name of a colormap.")
    if name != "auto" and name not in colormaps:
        raise RenderError(
            f"cmap is {name!r}, which is no colormap.",
            remedy=did_you_mean(name, colormaps) or "For example 'viridis', 'gray' or 'RdBu_r'.",
        )
    return str(name)


def _order(_: str, value: Any) -> Any:
    name, _, reference = str(value).partition(":")
    if name not in ORDERS or (name == "similarity") != reference.isdecimal():
        raise RenderError(
            f"order is {value!r}; legal are 'index', 'mean', 'max', 'variance', "
            "'sparsity', 'norm' and 'similarity:K' with a channel's index for K.",
            remedy=did_you_mean(name, ORDERS) or None,
        )
    return value


_CHECKS: tuple[tuple[Callable[[str, Any], Any], tuple[str, ...]], ...] = (
    (_text, ("figure", "summary", "title")),
    (whole, ("page", "sample", "frame", "input_channel", "output_channel")),
    (partial(whole, low=1), ("per_page", "top", "ncols")),
    (partial(whole, low=200, high=_MAX_PIXELS_WIDE), ("width",)),
    (partial(number, low=20.0, high=1200.0), ("dpi",)),
    (number, ("vmin", "vmax")),
    (_overlay, ("overlay",)),
    (partial(_pair, partial(number, low=0.0, high=100.0)), ("percentile",)),
    (partial(_pair, partial(whole, low=1)), ("grid",)),
    (partial(one_of, legal=SCALES), ("scale",)),
    (partial(one_of, legal=AXES), ("axes",)),
    (partial(one_of, legal=get_args(Shrink)), ("shrink",)),
    (partial(one_of, legal=get_args(Colors)), ("colors",)),
    (partial(one_of, legal=get_args(Heads)), ("heads",)),
    (_query, ("query",)),
    (partial(one_of, legal=get_args(ComparisonSide)), ("side",)),
    (partial(one_of, legal=(None, *get_args(Style))), ("style",)),
    (_signed, ("signed",)),
    (_channels, ("channels", "first")),
    (_cmap, ("cmap",)),
    (_order, ("order",)),
)
"""What each value must be; where the default is None, None is legal."""

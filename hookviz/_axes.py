"""Which axes of a tensor are channels, rows and columns.

Nothing is drawn as an image because its numbers look like one. What an axis is comes from the run
(one image went in, so 64 at the front are no samples), from the kind of layer, from a shape that
one reading alone explains, or from a trial (`hookviz.run`): parts of the image are changed, and
the reading is taken whose places change where the image did. Where none of these settles it, there
is no grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hookviz.errors import RenderError

_AXES = {
    "maps": ("NCHW", "CHW", "HW"),
    "channels-last": ("NHWC", "HWC"),
    "tokens": ("NTD", "TD"),
    "vector": ("NC", "C"),
    "signal": ("NCL", "CL"),
    "volume": ("NCTHW", "CTHW"),
    "volume-channels-last": ("NTHWC", "THWC"),
    "attention": ("NAQK", "NQK", "QK"),
}
_LAYOUT_OF = {axes: layout for layout, ways in _AXES.items() for axes in ways} | {"NDT": "tokens"}
# Types that normalise or mix their last axis: on (N, H, W, C) they leave no doubt.
_LAST = (
    "Linear", "LayerNorm", "SwinTransformerBlock", "PatchMerging", "ShiftedWindowAttention",
    "MLP", "Mlp", "WindowAttention",
)  # fmt: skip
# Types that work on (N, C, …).
_FIRST = (
    "Conv", "ConvTranspose", "BatchNorm", "InstanceNorm", "GroupNorm", "MaxPool", "AvgPool",
    "AdaptiveAvgPool", "AdaptiveMaxPool", "LPPool", "Upsample", "PixelShuffle", "LayerNorm2d",
    "LocalResponseNorm", "FrozenBatchNorm", "LazyConv", "LazyBatchNorm", "Dropout2d", "Dropout3d",
    "ReflectionPad", "ZeroPad", "ReplicationPad", "ConstantPad", "BasicBlock", "Bottleneck",
)  # fmt: skip
_TOKENS = (
    "Linear", "LayerNorm", "MultiheadAttention", "Attention", "Encoder", "EncoderBlock",
    "TransformerEncoder", "TransformerDecoder", "MLP", "Mlp", "Block", "Embedding", "GELU",
    "RMSNorm",
)  # fmt: skip
_MOST_APART = 16  # class, distillation and register tokens: the most that known models have is 9
_FEWEST_PLACES = 12  # fewer say too little in a trial


@dataclass(frozen=True)
class Places:
    """Where a tensor's places lie in the image.

    Attributes:
        axes: One letter per axis, as in Reading; "T" is the axis of tokens.
        grid: (rows, columns) of the tokens of one frame; None where the axes are rows and columns.
        apart: Tokens before the grid, which stand for no place.
        frames: Grids that follow each other, as in video.
    """

    axes: str
    grid: tuple[int, int] | None = None
    apart: int = 0
    frames: int = 1


@dataclass(frozen=True)
class Windows:
    """How a map was cut into windows; attention looks within one alone.

    Windows follow each other row by row, and so do the tokens of each.

    Attributes:
        rows: For each row of windows, the rows of the map that its tokens stand for; -1 is padding.
        columns: The columns likewise.

    Examples:
        >>> windows = Windows(((1, 2), (3, 0)), ((0, 1), (2, -1)))
        >>> windows.count, windows.grid, windows.find(0, 2)
        (4, (4, 3), (3, 2))
    """

    rows: tuple[tuple[int, ...], ...]
    columns: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """How many windows there are."""
        return len(self.rows) * len(self.columns)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of the map."""
        return max(map(max, self.rows)) + 1, max(map(max, self.columns)) + 1

    def find(self, y: int, x: int) -> tuple[int, int]:
        """The window and the token in it that stand for a place of the map."""
        (down, row), (across, column) = (
            next((w, part.index(at)) for w, part in enumerate(parts) if at in part)
            for parts, at in ((self.rows, y), (self.columns, x))
        )
        return down * len(self.columns) + across, row * len(self.columns[0]) + column


@dataclass(frozen=True)
class KnownAxes:
    """What a run found out about the axes of one tensor.

    Attributes:
        batch: How many images went in.
        leading: What the first axis counts where it does not count the images: "window",
            "proposal", "frame" or "part".
        places: What the trial confirmed; None where it confirmed nothing or none was made.
        tried: "" where no trial was made, "confirmed", "other order" (the places change elsewhere
            than the image does) or "open" (every place changes alike).
        random: The same image gave other values: the forward draws random numbers.
        groups: Of weights: how many groups of input and output channels there are.
        windows: Of attention: the windows that its first axis counts, image by image; None where
            it counts images.
    """

    batch: int = 1
    leading: str = "part"
    places: Places | None = None
    tried: str = ""
    random: bool = False
    groups: int = 1
    windows: Windows | None = None


@dataclass(frozen=True)
class Hints:
    """What is known beside the shape.

    Attributes:
        module_type: Class name of the layer; "" for a bare tensor.
        layer: Its dotted name.
        input_size: (height, width) of what the network saw, in pixels.
        rows_sum_to_one: The last axis holds shares, as attention weights do.
        known: What the run found out; None for a tensor that comes from no run.
    """

    module_type: str = ""
    layer: str = ""
    input_size: tuple[int, int] | None = None
    rows_sum_to_one: bool = False
    known: KnownAxes | None = None


@dataclass(frozen=True)
class Reading:
    """What each axis is.

    Attributes:
        layout: One of the layouts of GridOptions, never "auto".
        axes: One letter per axis: N sample, C channel, H row, W column, T token or frame, D
            feature, A head, Q query, K key, L place.
        doubt: "" where the axes are known, else what remains open.
    """

    layout: str
    axes: str
    doubt: str = ""

    @property
    def statement(self) -> str:
        """The axes as people write them, with the doubt where there is one.

        Examples:
            >>> Reading("maps", "NCHW").statement
            '(N, C, H, W)'
        """
        words = {"A": "heads", "Q": "queries", "K": "keys"}
        axes = ", ".join(words.get(a, a) for a in self.axes)
        comma = "," if len(self.axes) == 1 else ""
        return f"({axes}{comma})" + (f": {self.doubt}" if self.doubt else "")


def read_axes(shape: tuple[int, ...], layout: str = "auto", hints: Hints | None = None) -> Reading:
    """Decide which axes are what.

    Args:
        shape: The tensor's shape.
        layout: One of GridOptions.axes; anything but "auto" overrides.
        hints: What is known of the layer.

    Raises:
        RenderError: No picture can be made of such a shape, or the layout does not fit it.

    Examples:
        >>> read_axes((1, 64, 56, 56)).axes, read_axes((1, 56, 56, 96)).axes
        ('NCHW', 'NHWC')
    """
    hints, shape = hints or Hints(), tuple(shape)
    if 0 in shape:
        raise RenderError(f"A tensor of shape {shape} holds no values to draw.")
    if not shape:
        raise RenderError("A single number (shape ()) is no picture; read its value instead.")
    if layout != "auto":
        fitting = {
            name: axes for name, ways in _AXES.items() for axes in ways if len(axes) == len(shape)
        }
        if layout not in fitting:
            offer = ", ".join(map(repr, sorted(fitting))) or "none, for so many axes"
            raise RenderError(f"axes={layout!r} does not fit shape {shape}; legal: {offer}.")
        return Reading(layout, fitting[layout], "as asked")
    if len(shape) > 5:
        raise RenderError(
            f"A tensor of shape {shape} has {len(shape)} axes; hookviz draws 1 to 5.",
            remedy="Choose a part of it, for example tensor[:, 0].",
        )
    known = hints.known
    if known is not None and known.places is not None:
        axes = known.places.axes
        return Reading(_LAYOUT_OF[axes], axes)
    if len(shape) == 1:
        return Reading("vector", "C")
    reading = _READERS[len(shape) - 2](shape, hints)
    if known is None or not known.tried or not reading.doubt or len(shape) < 3:
        return reading
    # What a trial could not confirm is no image: a strip is true whatever its places are.
    if len(shape) == 3:
        return Reading("tokens", "NTD")
    return Reading("signal", "NCL", "its places in the image could not be found out")


def candidates(
    shape: tuple[int, ...], input_size: tuple[int, int] | None, frames: int = 1
) -> Iterator[Places]:
    """The readings of a tensor as places of the image that a trial may confirm, likely ones first.

    Args:
        shape: The tensor's shape.
        input_size: (height, width) of what the network saw.
        frames: How many frames went in.

    Examples:
        >>> next(candidates((1, 197, 768), (224, 224)))
        Places(axes='NTD', grid=(14, 14), apart=1, frames=1)
    """
    for axes in {2: ("TD",), 3: ("NTD", "NDT")}.get(len(shape), ()):
        count = shape[axes.index("T")]
        for number in range(frames, 0, -1):
            for apart in range(min(_MOST_APART, count) + 1):
                patches, rest = divmod(count - apart, number)
                grid = None if rest else _grid_like(patches, input_size)
                if grid is not None and patches >= _FEWEST_PLACES:
                    yield Places(axes, grid, apart, number)
    for axes in {3: ("CHW",), 4: ("NCHW", "NHWC"), 5: ("NCTHW", "NTHWC")}.get(len(shape), ()):
        rows, columns = shape[axes.index("H")], shape[axes.index("W")]
        if min(rows, columns) > 1 and rows * columns >= _FEWEST_PLACES:
            yield Places(axes)


def token_grid(
    count: int, grid: tuple[int, int] | None = None, known: KnownAxes | None = None
) -> Places | None:
    """The patch grid behind a row of tokens, where it is known.

    Args:
        count: Tokens in all.
        grid: (rows, columns) as the user gives them.
        known: What the run found out.

    Raises:
        RenderError: ``grid`` does not fit the number of tokens.

    Examples:
        >>> token_grid(197, (14, 14)).apart, token_grid(197)
        (1, None)
    """
    if grid is not None:
        apart = count - grid[0] * grid[1]
        if not 0 <= apart <= _MOST_APART:
            raise RenderError(
                f"grid={grid[0]}×{grid[1]} holds {grid[0] * grid[1]} patches, "
                f"but there are {count} tokens."
            )
        return Places("NTD", grid, apart)
    return known.places if known is not None else None


def order_of_tokens(known: KnownAxes | None) -> str:
    """Why tokens are not drawn as a grid, as a sentence."""
    if known is None or not known.tried:
        return "the order of its tokens is not known"
    if known.tried == "other order":
        return "the order of its tokens is not that of the image"
    return "where its tokens lie in the image could not be found out"


def _grid_like(patches: int, input_size: tuple[int, int] | None) -> tuple[int, int] | None:
    """Rows and columns of square patches that cover the input, or nothing.

    A layer rounds each side up or down by less than one patch.
    """
    ratio = 1.0 if input_size is None else input_size[0] / input_size[1]
    near = round(math.sqrt(patches * ratio)) if patches > 0 else 0
    for rows in sorted(range(max(2, near - 2), near + 3), key=lambda r: abs(r - near)):
        columns, rest = divmod(patches, rows)
        if rest == 0 and columns > 1 and _alike((rows, columns), ratio):
            return rows, columns
    return None


def _read_two(shape: tuple[int, ...], hints: Hints) -> Reading:
    known = hints.known
    rows_of_tokens = known is not None and known.leading == "part" and shape[0] != known.batch
    return Reading("vector", "NC", "possibly (T, D)" if rows_of_tokens else "")


def _read_three(shape: tuple[int, ...], hints: Hints) -> Reading:
    kind, known = hints.module_type, hints.known
    if shape[1] == shape[2] and hints.rows_sum_to_one and _named_attention(hints):
        return Reading("attention", "NQK")
    if kind.endswith("1d"):
        return Reading("signal", "NCL")
    if kind.endswith("2d"):
        return Reading("maps", "CHW")
    if known is not None and shape[0] != known.batch and known.leading != "part":
        return Reading("tokens", "NTD")
    if kind.startswith(_TOKENS) or kind.endswith(_TOKENS):
        return Reading("tokens", "NTD", "the order of T is not known")
    if known is not None:
        batch = shape[0] == known.batch
    else:
        fits = any(_grid_like(shape[1] - apart, hints.input_size) for apart in (0, 1, 2, 4, 5))
        # So few at the front, so many features: a batch of tokens rather than a stack of maps.
        batch = fits and shape[0] <= 32 and shape[1] >= 16 and shape[2] >= 32
        batch &= shape[1] != shape[2]
    if batch:
        return Reading("tokens", "NTD", "possibly (C, H, W)")
    return Reading("maps", "CHW", "possibly (N, T, D)")


def _read_four(shape: tuple[int, ...], hints: Hints) -> Reading:
    kind = hints.module_type
    _, first, second, third = shape
    if second == third and hints.rows_sum_to_one and (not kind or _named_attention(hints)):
        doubt = "" if kind else "its rows sum to 1; possibly (N, C, H, W)"
        return Reading("attention", "NAQK", doubt)
    if kind.endswith("3d"):
        return Reading("volume", "CTHW")
    side = _channel_side(hints, shape[0], (first, second), (second, third))
    if side == "first" or (second, third) == (1, 1):
        return Reading("maps", "NCHW")
    if side == "last" or (first, second) == (1, 1):
        return Reading("channels-last", "NHWC")
    return Reading("maps", "NCHW", "possibly (N, H, W, C)")


def _read_five(shape: tuple[int, ...], hints: Hints) -> Reading:
    side = _channel_side(hints, shape[0], shape[2:4], shape[3:5])
    if side == "first":
        return Reading("volume", "NCTHW")
    if side == "last":
        return Reading("volume-channels-last", "NTHWC")
    return Reading("volume", "NCTHW", "possibly (N, T, H, W, C)")


_READERS = (_read_two, _read_three, _read_four, _read_five)  # of 2, 3, 4 and 5 axes


def _channel_side(
    hints: Hints, count: int, if_last: tuple[int, ...], if_first: tuple[int, ...]
) -> str:
    """Where the channels stand: "first", "last", or "" where nothing settles it.

    The map would measure ``if_last`` with the channels last, ``if_first`` with them first.
    """
    kind, input_size = hints.module_type, hints.input_size
    if kind.startswith(_FIRST):
        return "first"
    ratio = 1.0 if input_size is None else input_size[0] / input_size[1]
    if hints.known is not None and count != hints.known.batch:
        ratio = 1.0  # windows and proposals have not the shape of the image
    last, first = (_alike(if_last, ratio), _alike(if_first, ratio))
    if hints.known is not None and _named_attention(hints):
        return ""  # heads, queries and keys are as square as maps are
    if kind.startswith(_LAST) and (last or hints.known is None):
        return "last"
    if first != last:
        return "first" if first else "last"
    return ""


def _alike(size: tuple[int, ...], ratio: float) -> bool:
    """Whether a map of that size can stem from an input of that ratio of height to width.

    Each layer rounds a side up or down by less than one, which matters in small maps alone.
    """
    height, width = size
    if ratio == 1.0:
        return height == width
    return abs(height - ratio * width) <= 1.0 + ratio


def _named_attention(hints: Hints) -> bool:
    words = (hints.module_type + "." + hints.layer).lower()
    return "attn" in words or "attention" in words or "softmax" in words

"""Which axes of a tensor are channels, rows and columns.

In: a shape, and what is known of the layer and of the network's input. Out: a Reading, which
states what was decided and why. Must not know: values, torch, or how anything is drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hookviz.errors import RenderError

__all__ = ["Hints", "Reading", "read_axes", "token_grid"]

_AXES = {
    ("maps", 4): "NCHW",
    ("maps", 3): "CHW",
    ("maps", 2): "HW",
    ("channels-last", 4): "NHWC",
    ("channels-last", 3): "HWC",
    ("tokens", 3): "NTD",
    ("tokens", 2): "TD",
    ("vector", 2): "NC",
    ("vector", 1): "C",
    ("signal", 3): "NCL",
    ("signal", 2): "CL",
    ("volume", 5): "NCTHW",
    ("volume", 4): "CTHW",
    ("volume-channels-last", 5): "NTHWC",
    ("volume-channels-last", 4): "THWC",
    ("attention", 4): "NAQK",
    ("attention", 3): "NQK",
    ("attention", 2): "QK",
}
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
# How many class and register tokens stand before the patches, most usual first: none, a class
# token, class and distillation tokens, a class token and four registers, four registers alone.
_TOKENS_APART = (0, 1, 2, 5, 4)


@dataclass(frozen=True)
class Hints:
    """What is known beside the shape.

    Attributes:
        module_type: Class name of the layer; "" for a bare tensor.
        layer: Its dotted name.
        leaf: Path of the tensor in a nested output.
        input_size: (height, width) of what the network saw, in pixels.
        grid: (rows, columns) of the patch grid, where the user or the model gives it.
        rows_sum_to_one: The last axis holds shares, as attention weights do.
    """

    module_type: str = ""
    layer: str = ""
    leaf: str = ""
    input_size: tuple[int, int] | None = None
    grid: tuple[int, int] | None = None
    rows_sum_to_one: bool = False


@dataclass(frozen=True)
class Reading:
    """What each axis is.

    Attributes:
        layout: One of the layouts of GridOptions, never "auto".
        axes: One letter per axis: N sample, C channel, H row, W column, T token or frame, D
            feature, A head, Q query, K key, L place.
        doubt: "" where the type or the shape settles it, else a sentence with the other reading.
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
        layout: One of GridOptions.layout; anything but "auto" overrides.
        hints: What is known of the layer.

    Raises:
        RenderError: No picture can be made of such a shape, or the layout does not fit it.

    Examples:
        >>> read_axes((1, 64, 56, 56)).axes, read_axes((1, 56, 56, 96)).axes
        ('NCHW', 'NHWC')
    """
    hints = hints or Hints()
    written = _written(shape)
    if 0 in shape:
        raise RenderError(f"A tensor of shape {written} holds no values to draw.")
    if not shape:
        raise RenderError("A single number (shape ()) is no picture; read its value instead.")
    if layout != "auto":
        axes = _AXES.get((layout, len(shape)))
        if axes is None:
            legal = sorted({name for name, count in _AXES if count == len(shape)})
            offer = ", ".join(map(repr, legal)) or "none, for so many axes"
            raise RenderError(f"layout={layout!r} does not fit shape {written}; legal: {offer}.")
        return Reading(layout, axes, "as asked")
    if len(shape) == 1:
        return Reading("vector", "C")
    if len(shape) == 2:
        return Reading("vector", "NC")
    if len(shape) == 3:
        return _read_three(shape, hints)
    if len(shape) == 4:
        return _read_four(shape, hints)
    if len(shape) == 5:
        return _read_five(shape, hints)
    raise RenderError(
        f"A tensor of shape {written} has {len(shape)} axes; hookviz draws 1 to 5.",
        remedy="Choose a part of it, for example tensor[:, 0].",
    )


def token_grid(
    count: int, grid: tuple[int, int] | None = None, input_size: tuple[int, int] | None = None
) -> tuple[int, int, int, str] | None:
    """The patch grid behind a row of tokens.

    Args:
        count: Tokens in all.
        grid: (rows, columns) where they are known.
        input_size: (height, width) of what the network saw.

    Returns:
        (tokens apart at the start, rows, columns, where the grid comes from), or None where no
        grid fits.

    Raises:
        RenderError: ``grid`` does not fit the number of tokens.

    Examples:
        >>> token_grid(197)[:3], token_grid(1025)[:3], token_grid(77)
        ((1, 14, 14), (1, 32, 32), None)
        >>> token_grid(1 + 12 * 16, input_size=(192, 256))[:3]
        (1, 12, 16)
    """
    if grid is not None:
        apart = count - grid[0] * grid[1]
        if not 0 <= apart <= 16:
            raise RenderError(
                f"grid={grid[0]}×{grid[1]} holds {grid[0] * grid[1]} patches, "
                f"but there are {count} tokens."
            )
        return apart, *grid, "as given"
    if input_size is not None and input_size[0] != input_size[1]:
        for apart in _TOKENS_APART:
            found = _grid_like(count - apart, input_size)
            if found:
                return apart, *found, "from the input's shape"
    for apart in _TOKENS_APART:
        side = math.isqrt(max(0, count - apart))
        if side >= 2 and side * side == count - apart:
            return apart, side, side, "taken as square"
    return None


def _grid_like(patches: int, input_size: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of square patches that cover the input exactly, or nothing."""
    height, width = input_size
    for rows in range(2, patches // 2 + 1):
        columns, rest = divmod(patches, rows)
        if rest == 0 and height % rows == 0 and height // rows * columns == width:
            return rows, columns
    return None


def _read_three(shape: tuple[int, ...], hints: Hints) -> Reading:
    kind = hints.module_type
    if shape[1] == shape[2] and hints.rows_sum_to_one and _named_attention(hints):
        return Reading("attention", "NQK")
    if kind.endswith("1d"):
        return Reading("signal", "NCL")
    if kind.endswith("2d"):
        return Reading("maps", "CHW")
    if kind.startswith(_TOKENS) or kind.endswith(_TOKENS):
        return Reading("tokens", "NTD")
    square = shape[1] == shape[2]
    fits = token_grid(shape[1], hints.grid, hints.input_size) is not None
    if fits and not square and shape[0] <= 32 and shape[1] >= 16 and shape[2] >= 32:
        return Reading("tokens", "NTD", "layout='maps' reads it as (C, H, W)")
    return Reading("maps", "CHW", "layout='tokens' reads it as (N, T, D)")


def _read_four(shape: tuple[int, ...], hints: Hints) -> Reading:
    kind = hints.module_type
    _, first, second, third = shape
    if second == third and hints.rows_sum_to_one and (not kind or _named_attention(hints)):
        doubt = "" if kind else "its rows sum to 1; layout='maps' reads it as (N, C, H, W)"
        return Reading("attention", "NAQK", doubt)
    if kind.endswith("3d"):
        return Reading("volume", "CTHW")
    side = _channel_side(kind, (first, second), (second, third), hints.input_size)
    if side == "first":
        return Reading("maps", "NCHW")
    if side == "last":
        return Reading("channels-last", "NHWC")
    return Reading("maps", "NCHW", "layout='channels-last' reads it as (N, H, W, C)")


def _read_five(shape: tuple[int, ...], hints: Hints) -> Reading:
    side = _channel_side(hints.module_type, shape[2:4], shape[3:5], hints.input_size)
    if side == "first":
        return Reading("volume", "NCTHW")
    if side == "last":
        return Reading("volume-channels-last", "NTHWC")
    return Reading("volume", "NCTHW", "layout='volume-channels-last' reads it as (N, T, H, W, C)")


def _channel_side(
    kind: str,
    if_last: tuple[int, ...],
    if_first: tuple[int, ...],
    input_size: tuple[int, int] | None,
) -> str:
    """Where the channels stand: "first", "last", or "" where nothing settles it.

    The map would measure ``if_last`` with the channels last, ``if_first`` with them first.
    """
    if kind.startswith(_FIRST):
        return "first"
    if kind.startswith(_LAST):
        return "last"
    ratio = 1.0 if input_size is None else input_size[0] / input_size[1]
    last, first = (_alike(if_last, ratio), _alike(if_first, ratio))
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


def _written(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"

"""What torch's operations read, where their arguments say it: convolutions, pools, products.

To follow another operation closely, add a function that gives the boxes of its first result, and
its name in `RULES`; without one it is tried (`hookviz.run._reach`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from hookviz.run._reach import (
    LOCAL,
    NONE,
    PLANES,
    CannotFollow,
    Operation,
    Reach,
    Rule,
    Steps,
    compact,
    elementwise,
    geometry_of,
    nothing,
    through_memory,
    union,
)

RULES: dict[str, Rule] = {}


def _rule(names: str, *, local: bool = False) -> Callable[[Rule], Rule]:
    """Registers a function as the rule of some operations."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        if local:
            LOCAL.update(names.split())
        return function

    return register


# Element by element, but torch does not say so.
_rule(
    "native_dropout prelu _prelu_kernel hardswish polar complex log_sigmoid_forward bernoulli "
    "normal bucketize dequantize quantize_per_tensor quantize_per_channel "
    "fake_quantize_per_tensor_affine _to_copy alias detach lift lift_fresh",
    local=True,
)(elementwise)


# ── Shapes


@_rule("view _unsafe_view _reshape_alias _reshape_copy view_copy")
def _reshaped(op: Operation) -> Reach | None:
    source = op.source
    before, after = tuple(source.shape), tuple(op.out.shape)
    if math.prod(before) != math.prod(after) or not math.prod(before):
        return None  # seen as another dtype
    return op.reads[id(source)].change(
        lambda p: compact(_regrouped(p, before, after)), op.steps_kept()
    )


def _regrouped(part: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Numbers (G, *before) seen as (G, *after).

    Only axes that are merged or split, and along which something changes, are written out.
    """
    sizes, wanted = [len(part)], [len(part)]
    old, new = list(enumerate(before)), list(enumerate(after))
    while old or new:
        taken, given = [old.pop(0)] if old else [], [new.pop(0)] if new else []
        while math.prod(n for _, n in taken) != math.prod(n for _, n in given):
            fewer = math.prod(n for _, n in taken) < math.prod(n for _, n in given)
            (taken if fewer else given).append((old if fewer else new).pop(0))
        constant = all(part.shape[d + 1] == 1 for d, _ in taken)
        sizes += [1 if constant else n for _, n in taken]
        wanted += [1 if constant else n for _, n in given]
    return part.expand(sizes).reshape(wanted)


@_rule("permute transpose t")
def _permuted(op: Operation) -> Reach:
    dims = op.source.dim()
    order = list(range(dims))
    if op.name == "permute":
        order = [d % dims for d in op["dims"]]
    elif dims > 1:
        a, b = (0, 1) if op.name == "t" else (op["dim0"] % dims, op["dim1"] % dims)
        order[a], order[b] = b, a
    reach = op.reads[id(op.source)]
    old = reach.steps
    steps: Steps = {at - dims: old[d - dims] for at, d in enumerate(order) if d - dims in old}
    return reach.change(lambda p: p.permute(0, *(d + 1 for d in order)), steps)


@_rule("as_strided as_strided_copy")
def _as_strided(op: Operation) -> Reach:
    # The geometry is that of the original, which planes of numbers do not have.
    source = op.source
    return through_memory([(geometry_of(source), op.reads[id(source)])], geometry_of(op.out))


@_rule("view_as_real")
def _as_real(op: Operation) -> Reach:
    return elementwise(op).change(lambda p: p[..., None], {})


@_rule("view_as_complex")
def _as_complex(op: Operation) -> Reach:
    return op.reads[id(op.source)].over([-1], keep=False)


@_rule("cat")
def _joined(op: Operation) -> Reach:
    """Tensors side by side along one axis; the other axes need not be written out."""
    dims = op.out.dim()
    axis = op["dim"] % dims + 1
    pieces = [t for t in op["tensors"] if t.dim() == dims]
    reaches = [op.read(t) or nothing(dims) for t in pieces]
    parts = []
    for planes in zip(*(r.parts for r in reaches), strict=True):
        sizes = [max(p.shape[d] for p in planes) for d in range(dims + 1)]
        wide = []
        for plane, piece in zip(planes, pieces, strict=True):
            sizes[axis] = piece.shape[axis - 1]
            wide.append(plane.expand(sizes))
        parts.append(compact(torch.cat(wide, axis)))
    return Reach.of(parts, next((r.steps for r in reaches if r.steps), {}))


@_rule("copy")
def _copied(op: Operation) -> Reach:
    """What is copied into a tensor replaces what was there."""
    reach = op.read(op["src"])
    return nothing(op.out.dim()) if reach is None else reach.in_dims(op.out.dim())


@_rule("glu")
def _halved(op: Operation) -> Reach:
    """The second half of an axis scales the first."""
    axis = op["dim"] % op.out.dim() + 1
    half = op.out.shape[axis - 1]

    def fold(p: Tensor) -> Tensor:
        if p.shape[axis] == 1:
            return p
        return torch.maximum(p.narrow(axis, 0, half), p.narrow(axis, half, half))

    return op.reads[id(op.source)].change(fold)


@_rule("index_add scatter_add")
def _added_at(op: Operation) -> Reach | None:
    """Sums at places that an index names."""
    if op.read(op["index"]) is not None:
        return None
    if op["index"].is_meta:
        raise CannotFollow("it adds values by an index that is computed", values=True)
    name = "source" if op.name == "index_add" else "src"
    add: Any = torch.index_reduce if op.name == "index_add" else torch.scatter_reduce
    parts = []
    for part, count in enumerate(PLANES):
        pairs = [[op.plane(op[n], part, i) for n in ("self", name)] for i in range(count)]
        planes = [add(a.clone(), op["dim"], op["index"].cpu(), b, "amax") for a, b in pairs]
        parts.append(compact(torch.stack(planes)))
    return Reach.of(parts)


# ── Products and attention

_FACTORS = {
    "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "addmm": ("mat1", "mat2"),
    "_addmm_activation": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"),
    "mv": ("self", "vec"), "addmv": ("mat", "vec"), "linear": ("input", "weight"),
}  # fmt: skip


@_rule(" ".join(_FACTORS))
def _multiplied(op: Operation) -> Reach:
    """Rows of the left factor, columns of the right one."""
    left, right = (op[name] for name in _FACTORS[op.name])
    rows, columns = op.read(left), op.read(right)
    known: list[tuple[Any, Reach | None]] = []
    if rows is not None:
        known.append((left, rows.over([-1], keep="mv" not in op.name)))
    if columns is not None and op.name not in ("mv", "addmv", "linear"):
        known.append((right, columns.over([-2])))
    if op.name.startswith(("add", "badd", "_add")):
        known.append((op["self"], op.read(op["self"])))
    return op.joined(*known)


@_rule(
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math "
    "_scaled_dot_product_attention_math_for_mps"
)
def _attention(op: Operation) -> Reach:
    """Each query reads itself and every key and value."""
    heads, known = op.out.shape[1], []
    for name, axes in (("query", [-1]), ("key", [-2, -1]), ("value", [-2, -1])):
        reach = op.read(op[name])
        if reach is not None:
            reach = reach.over(axes)
            # Fewer heads of keys than of queries are shared.
            reach = reach.change(lambda p: p if p.shape[2] in (1, heads) else p.amax(2, True))
        known.append((op[name], reach))
    return op.joined(*known)


@_rule("_native_multi_head_attention _transformer_encoder_layer_fwd")
def _whole_attention(op: Operation) -> Reach:
    """Torch's fused attention layers: (N, T, D) → (N, T, D)."""
    source = op["query"] if "query" in op.arguments else op["src"]
    return op.with_others(source, lambda reach: reach.over([1, 2]))


# ── Normalisation


@_rule(
    "native_batch_norm _native_batch_norm_legit cudnn_batch_norm miopen_batch_norm batch_norm "
    "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update"
)
def _batch_normalised(op: Operation) -> Reach:
    """Each channel alone, over all places where statistics are computed."""
    places = [d for d in range(op.out.dim()) if d != 1 and op.arguments.get("training")]
    return op.with_others(op.source, lambda reach: reach.over(places))


@_rule("native_layer_norm _fused_rms_norm")
def _layer_normalised(op: Operation) -> Reach:
    last = len(op["normalized_shape"])
    reach = op.read(op["input"])
    steps = {} if reach is None else {d: s for d, s in reach.steps.items() if d < -last}
    joined = op.with_others(op["input"], lambda reach: reach.over(range(-last, 0)))
    return Reach.of(joined.parts, steps)


@_rule("native_group_norm")
def _group_normalised(op: Operation) -> Reach:
    """Statistics of a group of channels over all places."""
    dims, groups, channels = op.out.dim(), op["group"], op.out.shape[1]

    def spread(reach: Reach) -> Reach:
        whole = reach.over(range(2, dims))
        return whole.change(lambda p: _by_groups(p, 1 - dims, groups, channels))

    return op.with_others(op["input"], spread)


def _by_groups(part: Tensor, axis: int, groups: int, channels: int) -> Tensor:
    """The union over each group of channels, for as many channels as come out."""
    if part.shape[axis] == 1:
        return part
    if groups == 1:
        return part.amax(axis, keepdim=True)
    shape = list(part.shape)
    shape[axis : axis + 1 or None] = [groups, shape[axis] // groups]
    return part.reshape(shape).amax(axis).repeat_interleave(channels // groups, axis)


# ── Along one axis of places: windows, padding, resizing

_Extend: TypeAlias = Callable[[int, int], Tensor]
_Act: TypeAlias = Callable[[_Extend, bool], Tensor]
"""What happens along an axis: (extend, real) → new numbers (..., n).

``extend(before, after)`` gives the old numbers (..., n) with so many more at either side: real
ones depend on nothing, the others go on as if the input did."""

_LONGEST_PERIOD = 64


def _on_axis(
    op: Operation, reach: Reach, axis: int, size: int, act: _Act, pace: Fraction | None
) -> Reach:
    """Boxes after something has happened along one axis.

    Args:
        op: For the record.
        reach: Boxes of what is read.
        axis: Counted from the last, negative.
        size: Values along it.
        act: What happens.
        pace: How many of the old places one of the new places is worth; None: not the same number
            everywhere.
    """
    step = reach.steps.get(axis)
    # Where a window lies in the padding altogether, nothing is read: 0 or −inf.
    alive = act(
        lambda before, after: F.pad(torch.zeros(1, size), (before, after), value=NONE), True
    )
    full = bool((alive > NONE).all())

    def part(p: Tensor, which: int) -> Tensor:
        line = p.movedim(axis, -1)
        real, free = line[: min(2, len(line))], line[2:]
        constant = line.shape[-1] == 1 < size
        if constant and full:
            return p
        if constant:
            found = [real + alive[0], free.expand(*free.shape[:-1], alive.shape[-1])]
        else:
            found = [act(lambda before, after: F.pad(real, (before, after), value=NONE), True)]
            if len(free):
                moves = None if step is None else step[which]
                found.append(act(lambda b, a: _extended(op, free, b, a, moves), False))
        return torch.cat(found).movedim(-1, axis)

    steps = dict(reach.steps)
    if pace is None:
        steps.pop(axis, None)
    elif step is not None:
        steps[axis] = (step[0] * pace, step[1] * pace)
    return Reach.of((part(p, which) for which, p in enumerate(reach.parts)), steps)


def _extended(
    op: Operation, line: Tensor, before: int, after: int, step: Fraction | None
) -> Tensor:
    """Boxes (2, ..., n) with those that would lie before and after them.

    Boxes move on by the same amount from place to place, or, where maps were enlarged, from
    every k-th place to the next.
    """
    count = line.shape[-1]
    if before <= 0 and after <= 0:
        return F.pad(line, (before, after))
    finite = line > NONE
    if bool(finite.all()):
        at = torch.arange(-before, count + after)
        sign = torch.tensor((-1.0, 1.0)).reshape(2, *(1,) * (line.dim() - 1))
        # A known step needs no second period to show it; an unknown one does.
        for period in range(1, 1 + min(count if step is not None else count // 2, _LONGEST_PERIOD)):
            shift = line[..., period:] - line[..., :-period]
            moves = shift[..., :1] if step is None else sign * float(step * period)
            if bool((shift == moves).all()):
                turns = at.div(period, rounding_mode="floor")
                return (line[..., at % period] + moves * turns).floor()
    if bool(finite.any()):
        op.mode.edges_known = False
    return F.pad(line, (before, after), value=NONE)


def _each(value: Any, count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _slid(
    op: Operation, reach: Reach, axis: int, sizes: tuple[int, int],
    kernel: int, stride: int, padding: int, dilation: int, tap: int | None = None,
) -> Reach:  # fmt: skip
    """The union over a window that slides along one axis.

    Args:
        op: For the record.
        reach: Boxes of what the window reads.
        axis: Counted from the last, negative.
        sizes: Values along it, before and after.
        kernel: Values in a window.
        stride: From one window to the next.
        padding: Values before the first.
        dilation: From one value of a window to the next.
        tap: The only value of the window that counts; None: all.
    """
    size, count = sizes
    span = dilation * (kernel - 1) + 1
    after = max(0, (count - 1) * stride + span - size - padding)

    def act(extend: _Extend, _real: bool) -> Tensor:
        windows = extend(padding, after).unfold(-1, span, stride)[..., :count, ::dilation]
        return windows.amax(-1) if tap is None else windows[..., tap]

    return _on_axis(op, reach, axis, size, act, Fraction(stride))


def _spread(
    op: Operation, reach: Reach, axis: int, sizes: tuple[int, int],
    kernel: int, stride: int, padding: int, dilation: int, tap: int | None = None,
) -> Reach:  # fmt: skip
    """The same for a transposed convolution, each of whose inputs is spread over a window."""
    size, count = sizes
    span = dilation * (kernel - 1) + 1
    more = -(-span // stride) + 1  # places beyond the edges that may reach an output
    first = padding + more * stride - (span - 1)

    def act(extend: _Extend, _real: bool) -> Tensor:
        line = extend(more, more)
        spaced = torch.full((*line.shape[:-1], line.shape[-1] * stride), NONE)
        spaced[..., ::stride] = line
        end = first + count + span - 1
        spaced = F.pad(spaced, (0, max(0, end - spaced.shape[-1])), value=NONE)
        windows = spaced[..., first:end].unfold(-1, span, 1)[..., ::dilation]
        return windows.amax(-1) if tap is None else windows[..., kernel - 1 - tap]

    return _on_axis(op, reach, axis, size, act, Fraction(1, stride))


@_rule("convolution convolution_overrideable _convolution", local=True)
def _convolved(op: Operation) -> Reach:
    """Convolutions of any kind and number of axes."""
    source, weight, out = op["input"], op["weight"], op.out
    reach = op.read(source)
    if reach is None:
        return op.everything()
    kernel = list(weight.shape[2:])
    spatial = len(kernel)
    numbers = [kernel, *(_each(op[n], spatial) for n in ("stride", "padding", "dilation"))]
    slide: Any = _spread if op["transposed"] else _slid
    at = -spatial - 1
    grouped = reach.change(lambda p: _by_groups(p, at, op["groups"], out.shape[at]))
    # Weights that are zero in every filter read nothing: masked convolutions.
    taps: Any = _taps(op.mode.weight(weight), kernel) or [[None] * spatial]
    found = []
    for tap in taps:
        one = grouped
        for axis in range(-spatial, 0):
            sizes = (source.shape[axis], out.shape[axis])
            one = slide(op, one, axis, sizes, *(n[axis] for n in numbers), tap[axis])
        found.append(one)
    return op.joined((source, union(found)))


def _taps(weight: Tensor | None, kernel: list[int]) -> list[list[int]] | None:
    """Places of a kernel where some filter is not zero; None where all are, or none is."""
    if weight is None or math.prod(kernel) == 1 or weight.is_meta or weight.layout != torch.strided:
        return None
    there = (weight.detach() != 0).flatten(0, 1).any(0)
    if bool(there.all()) or not bool(there.any()):
        return None
    found: list[list[int]] = there.nonzero().tolist()
    return found


_POOLS = [f"{kind}_pool{n}d" for kind in ("max", "avg") for n in (1, 2, 3)]
_SHARED = [f"{kind}_pool{n}d" for kind in
           ("adaptive_max", "adaptive_avg", "_adaptive_avg") for n in (1, 2, 3)]  # fmt: skip


@_rule(" ".join([*_POOLS, *(f"{name}_with_indices" for name in _POOLS)]), local=True)
def _pooled(op: Operation) -> Reach:
    spatial = int(op.name.partition("pool")[2][0])
    reach = op.reads[id(op.source)]
    kernel = _each(op["kernel_size"], spatial)
    stride = _each(op["stride"] or kernel, spatial)
    padding = _each(op["padding"], spatial)
    dilation = _each(op.arguments.get("dilation", 1), spatial)
    for axis in range(-spatial, 0):
        sizes = (op.source.shape[axis], op.out.shape[axis])
        numbers = (n[axis] for n in (kernel, stride, padding, dilation))
        reach = _slid(op, reach, axis, sizes, *numbers)
    return reach


@_rule(" ".join(_SHARED))
def _shared_out(op: Operation) -> Reach:
    """Adaptive pools: each axis shared out among so many windows."""
    reach = op.reads[id(op.source)]
    for axis in range(-int(op.name.partition("pool")[2][0]), 0):
        size, count = op.source.shape[axis], op.out.shape[axis]
        if size % count == 0:
            width = size // count
            reach = _slid(op, reach, axis, (size, count), width, width, 0, 1)
            continue
        ends = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]

        def act(extend: _Extend, _real: bool, ends: list[tuple[int, int]] = ends) -> Tensor:
            line = extend(0, 0)
            return torch.stack([line[..., a:b].amax(-1) for a, b in ends], -1)

        reach = _on_axis(op, reach, axis, size, act, None)
    return reach


_PADS = [f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)]


@_rule(" ".join(["constant_pad_nd", *_PADS]), local=True)
def _padded(op: Operation) -> Reach:
    return _with_pads(op, op.arguments.get("pad") or op["padding"])


def _with_pads(op: Operation, pads: Sequence[int]) -> Reach:
    """Padding with a constant, by reflection or by repeating the edge; cropping."""
    source = op.source
    reach = op.reads[id(source)]
    for at in range(len(pads) // 2):
        axis, before, after = -at - 1, pads[2 * at], pads[2 * at + 1]
        size = source.shape[axis]
        places = torch.arange(-before, size + after)
        if op.name.startswith("reflection"):
            places = size - 1 - (size - 1 - places.abs()).abs()
        places = places.clamp(0, size - 1)

        def act(
            extend: _Extend,
            real: bool,
            places: Tensor = places,
            ends: tuple[int, int] = (before, after),
        ) -> Tensor:
            return extend(0, 0)[..., places] if real and op.name in _PADS else extend(*ends)

        reach = _on_axis(op, reach, axis, size, act, Fraction(1))
    return reach


@_rule("im2col")
def _unfolded(op: Operation) -> Reach:
    """Windows written out as columns (`torch.nn.Unfold`): padding first, then a mere move."""
    down, across = op["padding"]
    padded = _with_pads(op, [across, across, down, down])
    n, channels, height, width = op.source.shape
    shape = (n, channels, height + 2 * down, width + 2 * across)
    parts = []
    for part in padded.parts:
        planes = part.expand(len(part), *shape).flatten(0, 1)
        columns: Any = op.func(planes, op["kernel_size"], op["dilation"], [0, 0], op["stride"])
        parts.append(compact(columns.unflatten(0, (len(part), n))))
    return Reach.of(parts)


@_rule(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    local=True,
)
def _resized(op: Operation) -> Reach:
    """Interpolation, by the weights that the very operation gives to each place."""
    reach, spatial = op.reads[id(op.source)], op.source.dim() - 2
    for at in range(spatial):
        sizes = (op.source.shape[at + 2], op.out.shape[at + 2])
        reach = _resized_axis(op, reach, at, spatial, sizes)
    return reach


def _resized_axis(
    op: Operation, reach: Reach, at: int, spatial: int, sizes: tuple[int, int]
) -> Reach:
    size, count = sizes
    scales = [n for n in op.arguments if n.startswith("scale")]
    asked = op[scales[at]]
    pace = Fraction(size, count) if asked is None else 1 / Fraction(asked).limit_denominator(1000)
    whole = size % count == 0 or count % size == 0
    regular = not op.arguments.get("align_corners") and (asked is not None or (whole and size > 1))
    # Beyond the edges it goes on where a whole number of places becomes a whole number.
    more = pace.numerator * -(-4 // pace.numerator)

    def weights(before: int, after: int) -> Tensor:
        """Whether each place after (rows) reads each place before (columns)."""
        # Two places across: with one, torch 2.14 takes antialiased images for channels-last ones.
        shape = [before if d == at else 2 for d in range(spatial)]
        eye = torch.eye(before, dtype=torch.float64)
        eye = eye.reshape(1, before, *(n if d == at else 1 for d, n in enumerate(shape)))
        given = {
            **op.arguments,
            **dict.fromkeys(scales),
            scales[at]: asked,
            "output_size": [after if d == at else 2 for d in range(spatial)],
        }
        names = [a.name for a in op.func._schema.arguments]  # noqa: SLF001 - torch's description
        given[names[0]] = eye.expand(1, before, *shape).contiguous()
        result: Tensor = op.func(*(given[n] for n in names))
        across = (0 if d != at else slice(None) for d in range(spatial))
        return result[(0, slice(None), *across)].t() != 0

    def act(extend: _Extend, real: bool) -> Tensor:
        beyond = more if regular and not real else 0
        line = extend(beyond, beyond)
        ahead = int(beyond / pace)
        mask = weights(size + 2 * beyond, count + 2 * ahead)[ahead : ahead + count]
        return line[..., None, :].where(mask, NONE).amax(-1)

    return _on_axis(op, reach, at - spatial, size, act, pace if regular else None)

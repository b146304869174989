"""Which pixels of a network's input each value of a forward depends on.

The rule: dependence is followed through the operations that a forward performs, not through the
types of its layers. Every tensor carries, for each of its values, the box of input pixels that the
value depends on; an operation's result carries the union of the boxes that it reads. What an
operation reads follows from torch's own description of it (element by element, a view, along an
axis), for convolutions, pools, resizing and products from their arguments. An operation that
nobody described is tried: its inputs are changed, and its results show what they depend on. So
it plays no part which values flow, how large they are, or whether a ReLU is dead.

The forward runs on a copy without values where that is possible, which costs milliseconds and
touches neither the model nor a generator of random numbers; where the forward looks at values, on
a copy that shares the weights.

A box is kept twice: as it is, and as it would be if the input went on past its edges, which says
how much of a field lies outside. Boxes are kept row by row and column by column: along an axis
where nothing changes, one number stands for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NONE = -math.inf
_Steps: TypeAlias = dict[int, tuple[Fraction, Fraction]]


@dataclass(frozen=True, eq=False)
class Reach:
    """The boxes that the values of one tensor depend on.

    Each tensor has the axes of the tensor that it stands for behind its first one, with size 1
    where nothing changes along an axis. All are maxima, so that a union is a maximum; −inf says
    that the value depends on no pixel.

    Attributes:
        rows: (4, ...): −top and bottom (both inclusive), then the same two as if the input had no
            edge.
        columns: (4, ...): −left and right, likewise.
        mixed: (1, ...): which event (its number, negative) first made a value depend on every
            pixel; −inf where none did, and for values that depend on nothing.
        steps: By how many input rows and columns boxes move from one place to the next along an
            axis (counted from the last, negative), where it is known.
    """

    rows: Tensor
    columns: Tensor
    mixed: Tensor
    steps: _Steps = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Iterable[Tensor], steps: _Steps | None = None) -> Reach:
        """The boxes made of the three tensors, in their order."""
        rows, columns, mixed = parts
        return cls(rows, columns, mixed, steps or {})

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three tensors."""
        return self.rows, self.columns, self.mixed

    def change(self, function: Callable[[Tensor], Tensor], steps: _Steps | None = None) -> Reach:
        """The same function applied to each of the three."""
        return Reach.of(map(function, self.parts), self.steps if steps is None else steps)


class CannotFollow(Exception):  # noqa: N818 - a reason, turned into a sentence by the caller
    """Why dependence cannot be followed; ``values`` says that real values would help."""

    def __init__(self, reason: str, *, values: bool = False) -> None:
        super().__init__(reason)
        self.values = values


def of_input(tensor: Tensor) -> Reach:
    """Each pixel of an input (..., H, W) depends on itself."""
    height, width = tensor.shape[-2:]
    ones = (1,) * (tensor.dim() - 2)
    rows = torch.arange(height, dtype=torch.float32, device="cpu")
    columns = torch.arange(width, dtype=torch.float32, device="cpu")
    one, zero = Fraction(1), Fraction(0)
    return Reach(
        torch.stack((-rows, rows) * 2).reshape(4, *ones, height, 1),
        torch.stack((-columns, columns) * 2).reshape(4, *ones, 1, width),
        torch.full((1, *ones, 1, 1), NONE, device="cpu"),
        {-2: (one, zero), -1: (zero, one)},
    )


class Following(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is open, follows what every operation makes of the tensors that it knows.

    Args:
        size: (height, width) of the input.
        where: Name of the layer that runs now, for the record of events.
        weights: The values of weights that have none in this forward, by their identity.

    Attributes:
        edges_known: Whether boxes could be continued beyond the edges wherever that was needed.
        events: For each event, the layer and the operation that made everything depend on every
            pixel.
        unions: Operations that could not even be tried, with the layer: all that they give was
            taken to depend on all that they read.
    """

    def __init__(
        self, size: tuple[int, int], where: Callable[[], str], weights: dict[int, Tensor]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._size, self._where, self._weights = size, where, weights
        self._known: dict[int, tuple[StorageWeakRef, dict[_Geometry, Reach]]] = {}
        self._count = 0
        self.edges_known = True
        self.events: list[tuple[str, str]] = []
        self.unions: list[tuple[str, str]] = []

    # ── Which tensor has which boxes: by memory and geometry, since a view may have several objects

    def get(self, tensor: Tensor) -> Reach | None:
        """The boxes of a tensor; None where it does not depend on the input."""
        entry = self._entry(tensor)
        if entry is None:
            return None
        geometry = _geometry(tensor)
        if geometry not in entry:
            entry[geometry] = _read_back(entry, tensor)
        found = entry[geometry]
        return found if bool((found.rows > NONE).any()) else None

    def set(self, tensor: Tensor, reach: Reach | None, *, written: bool = False) -> None:
        """Give a tensor its boxes; where it was written, what shares its memory gets them too."""
        entry = self._entry(tensor)
        if entry is None:
            if reach is None:
                return
            storage = tensor.untyped_storage()
            entry = {}
            self._known[storage._cdata] = (StorageWeakRef(storage), entry)  # type: ignore[no-untyped-call]  # noqa: SLF001
            self._count += 1
            if self._count % 64 == 0:
                self._known = {k: e for k, e in self._known.items() if not e[0].expired()}  # type: ignore[no-untyped-call]
        geometry = _geometry(tensor)
        new = _nothing(tensor.dim()) if reach is None else _fitting(reach, tensor)
        for other in [g for g in entry if written and g != geometry]:
            entry[other] = _overwritten(entry[other], other, new, geometry)
        entry[geometry] = new

    def _entry(self, tensor: Tensor) -> dict[_Geometry, Reach] | None:
        try:
            key = tensor.untyped_storage()._cdata  # noqa: SLF001 - the only name a memory has
        except (RuntimeError, NotImplementedError) as error:
            raise CannotKnow(tensor) from error
        found = self._known.get(key)
        if found is None or found[0].expired():  # type: ignore[no-untyped-call]
            return None
        return found[1]

    # ── Operations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        reads = {id(t): r for t in given if (r := self.get(t)) is not None}
        out = func(*args, **kwargs)
        written = func._schema.is_mutable  # noqa: SLF001 - torch's own description of the operation
        if reads or written:
            op = _Operation(self, func, args, kwargs, out, reads)
            for tensor, reach in op.results():
                self.set(tensor, reach, written=any(tensor is w for w in op.written))
        return out

    def event(self, name: str) -> int:
        """Record that here everything began to depend on every pixel."""
        self.events.append((self._where(), name))
        return -(len(self.events) - 1)

    def union(self, name: str) -> None:
        """Record an operation whose results were taken to depend on all that it reads."""
        self.unions.append((self._where(), name))

    def all_pixels(self, reach: Reach) -> bool:
        """Whether every value that depends on anything depends on every pixel."""
        height, width = self._size
        rows, columns = reach.rows[:2], reach.columns[:2]
        there = (rows[0] > NONE).logical_and(rows[1] > NONE)
        whole = (rows[0] >= 0) & (rows[1] >= height - 1)
        aside = (columns[0] > NONE) & (columns[1] > NONE)
        across = (columns[0] >= 0) & (columns[1] >= width - 1)
        return bool((whole | ~there).all() and (across | ~aside).all())

    def weight(self, tensor: Tensor) -> Tensor | None:
        """The values of a weight, where they can be read."""
        if tensor.is_meta:
            return self._weights.get(id(tensor))
        return tensor


class CannotKnow(CannotFollow):
    """A kind of tensor that has no memory of its own to look at."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(f"a {tensor.dtype} tensor of layout {tensor.layout} flows in it")


_Geometry: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]


def _geometry(tensor: Tensor) -> _Geometry:
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())


def _nothing(dims: int) -> Reach:
    ones = (1,) * dims
    four = torch.full((4, *ones), NONE, device="cpu")
    return Reach(four, four, four[:1])


def _fitting(reach: Reach, tensor: Tensor) -> Reach:
    for part in reach.parts:
        sizes = part.shape[1:]
        fits = all(a in (1, b) for a, b in zip(sizes, tensor.shape, strict=False))
        if len(sizes) != tensor.dim() or not fits:
            raise AssertionError(f"boxes {tuple(sizes)} for a tensor {tuple(tensor.shape)}")
    return reach


def _extent(geometry: _Geometry) -> int:
    shape, stride, offset = geometry
    return offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True) if n)


def _laid(part: Tensor, geometry: _Geometry, length: int) -> Tensor:
    """One plane group (G, *shape) at its places in memory (G, length), −inf elsewhere."""
    shape, stride, offset = geometry
    flat = torch.full((len(part), length), NONE, device="cpu")
    if 0 not in shape:
        view = flat.as_strided((len(part), *shape), (length, *stride), offset)
        view.copy_(part.expand(len(part), *shape))
    return flat


def _overwritten(old: Reach, at: _Geometry, new: Reach, by: _Geometry) -> Reach:
    """What becomes of the boxes of a tensor when another one in its memory is written."""
    length = max(_extent(at), _extent(by))
    if at[2] >= _extent(by) or by[2] >= _extent(at):
        return old
    parts = []
    for before, after in zip(old.parts, new.parts, strict=True):
        flat = _laid(before, at, length)
        shape, stride, offset = by
        if 0 not in shape:
            view = flat.as_strided((len(after), *shape), (length, *stride), offset)
            view.copy_(after.expand(len(after), *shape))
        shape, stride, offset = at
        there = flat.as_strided((len(before), *shape), (length, *stride), offset)
        parts.append(_compact(there))
    return Reach.of(parts, old.steps)


def _read_back(entry: dict[_Geometry, Reach], tensor: Tensor) -> Reach:
    """The boxes of a tensor whose memory is known under other geometries only."""
    geometry = _geometry(tensor)
    length = max(_extent(g) for g in (*entry, geometry))
    parts = []
    for index in range(3):
        flat: Tensor | None = None
        for other, reach in entry.items():
            laid = _laid(reach.parts[index], other, length)
            flat = laid if flat is None else torch.maximum(flat, laid)
        if flat is None:
            raise AssertionError("a memory without boxes")
        shape, stride, offset = geometry
        parts.append(_compact(flat.as_strided((len(flat), *shape), (length, *stride), offset)))
    return Reach.of(parts)


def _compact(part: Tensor) -> Tensor:
    """One number along each axis where nothing changes."""
    long = [d for d in range(1, part.dim()) if part.shape[d] > 1]
    for dim in long:
        if part.stride(dim) == 0:
            part = part.narrow(dim, 0, 1)
    for dim in long:
        if part.shape[dim] > 1:
            first = part.narrow(dim, 0, 1)
            if bool((part == first).all()):
                part = first
    return part.contiguous()


def _reshaped(part: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Boxes (G, ...) of a tensor ``before`` that is seen as ``after``.

    Only axes that are merged or split, and along which something changes, are written out.
    """
    sizes, wanted = [part.shape[0]], [part.shape[0]]
    i = j = 0
    while i < len(before) or j < len(after):
        old: list[int] = []
        new: list[int] = []
        left = right = 1
        while (not old and not new) or left != right:
            if left <= right and i < len(before) and (left < right or not old):
                old.append(i)
                left *= before[i]
                i += 1
            elif j < len(after):
                new.append(j)
                right *= after[j]
                j += 1
            else:
                old.append(i)
                left *= before[i]
                i += 1
        constant = all(part.shape[d + 1] == 1 for d in old)
        sizes += [1 if constant else before[d] for d in old]
        wanted += [1 if constant else after[d] for d in new]
    return part.expand(sizes).reshape(wanted)


def _union(reaches: Iterable[Reach]) -> Reach:
    """Boxes that hold all of the given ones; they broadcast as tensors do."""
    whole: Reach | None = None
    for one in reaches:
        if whole is None:
            whole = one
            continue
        dims = max(whole.rows.dim(), one.rows.dim())
        pairs = zip(_to_dims(whole, dims - 1).parts, _to_dims(one, dims - 1).parts, strict=True)
        whole = Reach.of((torch.maximum(a, b) for a, b in pairs), whole.steps or one.steps)
    if whole is None:
        raise AssertionError("a union of nothing")
    return whole


def _to_dims(reach: Reach, dims: int) -> Reach:
    """With axes of size 1 in front, as broadcasting adds them."""
    more = dims - (reach.rows.dim() - 1)
    if not more:
        return reach
    return reach.change(lambda p: p.reshape(p.shape[0], *(1,) * more, *p.shape[1:]))


def _agreed(reach: Reach) -> Reach:
    """Values whose rows lie in the padding depend on no column either, and the other way round."""
    rows, columns, _ = reach.parts
    if bool((rows > NONE).all()) and bool((columns > NONE).all()):
        return reach
    there = (rows > NONE) & (columns > NONE)
    return Reach(
        torch.where(there, rows, NONE), torch.where(there, columns, NONE),
        torch.where(there[:1] | there[1:2], reach.mixed, NONE), reach.steps,
    )  # fmt: skip


def _most(reach: Reach, dims: Sequence[int], *, keep: bool = True) -> Reach:
    """The union along some axes of the tensor."""
    if not dims:
        return reach
    at = [d + 1 if d >= 0 else d for d in dims]
    return reach.change(lambda p: p.amax(at, keepdim=keep), {})


class _Operation:
    """One operation: what it read, what it gave, and what that depends on."""

    def __init__(
        self,
        mode: Following,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        reads: dict[int, Reach],
    ) -> None:
        self.mode, self.func, self.args, self.kwargs = mode, func, args, kwargs
        self.out, self.reads = out, reads
        schema = func._schema  # noqa: SLF001 - as above
        namespace, _, name = schema.name.partition("::")
        self.name = name[:-1] if schema.is_mutable and name.endswith("_") else name
        self.ours = namespace in ("aten", "prims", "prim")
        self.arguments: dict[str, Any] = {
            a.name: a.default_value for a in schema.arguments if a.has_default_value()
        }
        self.arguments.update(zip((a.name for a in schema.arguments), args, strict=False))
        self.arguments.update(kwargs)
        self.written = [
            self.arguments[a.name]
            for a in schema.arguments
            if a.alias_info is not None and a.alias_info.is_write
            and isinstance(self.arguments.get(a.name), Tensor)
        ]  # fmt: skip

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def read(self, value: Any) -> Reach | None:
        """The boxes of an argument; None where it is no tensor or depends on nothing."""
        return self.reads.get(id(value)) if isinstance(value, Tensor) else None

    @property
    def first(self) -> Tensor:
        """The first tensor that it gives."""
        found: Tensor = next(t for t in tree_leaves(self.out) if isinstance(t, Tensor))
        return found

    @property
    def elementwise(self) -> bool:
        """Whether torch says that each value is made of those at its own place."""
        plain = getattr(getattr(torch.ops.aten, self.name, None), "default", self.func)
        return any(torch.Tag.pointwise in f.tags for f in (self.func, plain))

    def results(self) -> Iterator[tuple[Tensor, Reach | None]]:
        """Each tensor that the operation gave or wrote, with its boxes."""
        given = [t for t in tree_leaves(self.out) if isinstance(t, Tensor)]
        given += [t for t in self.written if all(t is not g for g in given)]
        if not given:
            return
        # A new tensor that takes the shape of another one, or one that is filled anew.
        fresh = self.name in _FRESH or self.name.endswith("_like") or self.name.startswith("new_")
        if not self.reads or fresh:
            yield from ((t, None) for t in self.written)
            return
        reaches = self._reaches(given)
        yield from zip(given, reaches, strict=True)

    def _reaches(self, given: list[Tensor]) -> list[Reach]:
        rule = _RULES.get(self.name) if self.ours else None
        if rule is None and (self.func.is_view or self.name in _MOVING):
            return self.moved(given)
        if rule is None and "scaled_dot_product" in self.name and self.ours:
            rule = _attention
        if rule is None and self.elementwise:
            rule = _pointwise
        if rule is None and self.ours and _along(self) is not None:
            rule = _along_axes
        found = rule(self) if rule is not None else self.tried(given)
        if found is None:
            self.mode.union(self.name)
            found = _to_dims(self.everything(), self.first.dim())
        if rule not in _LOCAL:
            found = self._noted(found)
        more = self.everything()
        return [_matched(found, more, tensor, self.first) for tensor in given]

    def everything(self) -> Reach:
        """The union of all that was read, without axes."""
        return _union(_most(r, range(r.rows.dim() - 1), keep=False) for r in self.reads.values())

    def _noted(self, found: Reach) -> Reach:
        """Mark values that depend on every pixel from here on."""
        mode = self.mode
        if bool((found.mixed > NONE).any()) or not mode.all_pixels(found):
            return found
        if all(mode.all_pixels(r) for r in self.reads.values()):
            return found
        event = float(mode.event(self.name))
        return replace(found, mixed=torch.full_like(found.rows[:1], event))

    # ── Values that change their places

    def moved(self, given: list[Tensor]) -> list[Reach]:
        """The boxes move as the values do."""
        quick = self._moved_quickly(given)
        if quick is not None:
            return [quick]
        indices = [v for v in self.reads if v in self._index_ids()]
        outputs: list[list[list[Tensor]]] = []  # part → plane → result
        for part in range(3):
            count = next(iter(self.reads.values())).parts[part].shape[0]
            planes = []
            for plane in range(count):
                args, kwargs = tree_map(
                    lambda v, part=part, plane=plane: self.plane(v, part, plane),
                    (self.args, self.kwargs),
                )
                result = self._again(args, kwargs)
                planes.append([t for t in tree_leaves(result) if isinstance(t, Tensor)])
            outputs.append(planes)
        steps = self._steps_moved(given[0])
        reaches = []
        for at, tensor in enumerate(given):
            parts = [_compact(torch.stack([p[at] for p in planes])) for planes in outputs]
            reach = Reach.of(parts, steps)
            for index in indices:  # which value is taken depends on the input as well
                whole = self.reads[index]
                reach = _union((reach, _to_dims(_most(
                    whole, range(whole.rows.dim() - 1), keep=False), tensor.dim())))  # fmt: skip
            reaches.append(reach)
        return reaches

    def _index_ids(self) -> set[int]:
        wanted = ("indices", "index", "repeats", "mask")
        return {id(t) for n in wanted for t in tree_leaves(self.arguments.get(n))}

    def plane(self, value: Any, part: int, plane: int) -> Any:
        """An argument as it stands for one plane of boxes."""
        if not isinstance(value, Tensor):
            return value
        if id(value) in self._index_ids():
            if value.is_meta:
                raise CannotFollow("it picks values by an index that is computed", values=True)
            return value.cpu()
        reach = self.read(value)
        if reach is None:
            found = torch.full((), NONE, device="cpu").expand(value.shape)
        else:
            found = reach.parts[part][plane].expand(value.shape)
        return found.clone() if any(value is w for w in self.written) else found

    def _again(self, args: Any, kwargs: Any) -> Any:
        if "value" in self.arguments and self.name.endswith("pad_nd"):
            args = (*args[:2], NONE)
            kwargs = {}
        kwargs = {k: v for k, v in kwargs.items() if k not in ("dtype", "device", "pin_memory")}
        name = {"_unsafe_view": "view", "_reshape_alias": "view"}.get(self.name, self.name)
        if name == "view" or (name == "reshape"):
            return args[0].reshape(self.first.shape)
        if self.name.startswith("as_strided"):
            # The geometry is that of the original, which the planes do not have.
            geometry = _geometry(self.args[0])
            length = max(_extent(geometry), _extent(_geometry(self.first)))
            flat = _laid(args[0][None], geometry, length)[0]
            return flat.as_strided(*_geometry(self.first))
        return self.func(*args, **kwargs)

    def _moved_quickly(self, given: list[Tensor]) -> Reach | None:
        """The common moves that need not look at every value."""
        first = next((v for v in self.args if isinstance(v, Tensor)), None)
        reach = self.read(first)
        if self.name in ("cat", "concat", "concatenate"):
            return self._joined(given[0])
        if reach is None or first is None or len(given) != 1:
            return None
        if len(self.reads) == 1 and all(p.numel() == len(p) for p in reach.parts):
            # One box for all values, wherever they go.
            nothing_new = self.func.is_view or self.name in ("clone", "_to_copy", "_unsafe_view")
            if nothing_new:
                return _to_dims(self.everything(), given[0].dim())
        if self.name in (
            "clone",
            "_to_copy",
            "alias",
            "detach",
            "lift_fresh",
            "lift",
            "contiguous",
        ):
            return reach
        dims = first.dim()
        if self.name in ("view", "_unsafe_view", "_reshape_alias", "_reshape_copy", "view_copy"):
            shapes = tuple(first.shape), tuple(given[0].shape)
            if 0 not in first.shape and math.prod(shapes[0]) == math.prod(shapes[1]):
                return reach.change(
                    lambda p: _compact(_reshaped(p, *shapes)), self._steps_moved(given[0])
                )
        if self.name.endswith(("pad_nd", "_pad1d", "_pad2d", "_pad3d")):
            return _padded(self, reach)
        if self.name in ("flip", "roll") and self["dims"]:
            wanted = [d % dims for d in self["dims"]]
            shifts = self.arguments.get("shifts")

            def turn(p: Tensor) -> Tensor:
                there = [i for i, d in enumerate(wanted) if p.shape[d + 1] > 1]
                at = [wanted[i] + 1 for i in there]
                if not at:
                    return p
                return p.flip(at) if shifts is None else p.roll([shifts[i] for i in there], at)

            return reach.change(turn, {})
        return None

    def _joined(self, out: Tensor) -> Reach | None:
        """Tensors side by side along one axis; the others need not be written out."""
        pieces = [t for t in self.args[0] if t.shape != (0,)]
        axis = self.arguments["dim"] % out.dim() + 1
        reaches = [self.read(t) or _nothing(out.dim()) for t in pieces]
        sizes = [t.shape[axis - 1] for t in pieces]
        parts = []
        for index in range(3):
            planes = [r.parts[index] for r in reaches]
            common = [max(p.shape[d] for p in planes) for d in range(out.dim() + 1)]
            wide = []
            for p, size in zip(planes, sizes, strict=True):
                common[axis] = size
                wide.append(p.expand(common))
            parts.append(_compact(torch.cat(wide, axis)))
        return Reach.of(parts, next((r.steps for r in reaches if r.steps), {}))

    def _steps_moved(self, tensor: Tensor) -> _Steps:
        """The steps after a move that keeps the order of places."""
        first = next((v for v in self.args if isinstance(v, Tensor)), None)
        reach = self.read(first)
        if reach is None or first is None:
            return {}
        before, after = first.dim(), tensor.dim()
        if self.name in ("permute", "transpose", "t") and before == after:
            order = list(range(before))
            if self.name == "permute":
                order = [d % before for d in self["dims"]]
            else:
                a, b = (0, 1) if self.name == "t" else (self["dim0"], self["dim1"])
                a, b = a % before, b % before
                order[a], order[b] = order[b], order[a]
            return {
                at - before: reach.steps[d - before]
                for at, d in enumerate(order)
                if d - before in reach.steps
            }
        kept: _Steps = {}
        for back in range(-1, -min(before, after) - 1, -1):
            if first.shape[back] != tensor.shape[back]:
                break
            if back in reach.steps:
                kept[back] = reach.steps[back]
        return kept

    # ── What nobody described

    def tried(self, given: list[Tensor]) -> Reach | None:
        """Change what lies on one side of a row or column, and see which results change."""
        floats = [t for t in self.written if t.is_floating_point()]
        if floats or not self.first.is_floating_point() or not given:
            return None
        values = [t for t in tree_leaves((self.args, self.kwargs)) if isinstance(t, Tensor)]
        if any(v.is_meta and id(v) not in self.reads for v in values):
            raise CannotFollow(f"{self.name} has to be tried", values=True)
        if not all(v.is_floating_point() for v in values if id(v) in self.reads):
            return None
        generator = torch.Generator("cpu").manual_seed(0)

        def noise(t: Tensor) -> Tensor:
            drawn = torch.randn(t.shape, generator=generator, device="cpu")
            device = "cpu" if t.is_meta else t.device
            return drawn.to(device=device, dtype=t.dtype)

        base = {id(v): noise(v) for v in values if id(v) in self.reads}
        other = {key: noise(v) * 3 for key, v in base.items()}

        def call(swap: dict[int, Tensor]) -> Tensor:
            args, kwargs = tree_map(
                lambda v: swap.get(id(v), v) if isinstance(v, Tensor) else v,
                (self.args, self.kwargs),
            )
            result = self.func(*args, **kwargs)
            found: Tensor = next(t for t in tree_leaves(result) if isinstance(t, Tensor))
            return found

        self.mode.edges_known = False
        shape = self.first.shape
        start = call(base)
        parts = []
        for part in range(3):
            planes = []
            for plane in range(4 if part < 2 else 1):
                found = torch.full(shape, NONE, device="cpu")
                levels = {
                    v
                    for r in self.reads.values()
                    for v in set(r.parts[part][plane].flatten().tolist())
                    if v > NONE
                }
                if len(levels) > _MOST_TRIALS:
                    return None
                for level in sorted(levels):
                    swap = {}
                    for key, reach in self.reads.items():
                        mask = reach.parts[part][plane] >= level
                        mask = mask.expand(base[key].shape).to(base[key].device)
                        swap[key] = torch.where(mask, other[key], base[key])
                    moved = (call(swap) != start).cpu()
                    found[moved] = level
                planes.append(found)
            parts.append(_compact(torch.stack(planes)))
        return Reach.of(parts)


_MOST_TRIALS = 2048


def _matched(found: Reach, more: Reach, tensor: Tensor, first: Tensor) -> Reach:
    """The boxes for one of several results: statistics and indices beside the first."""
    if tensor.shape == first.shape:
        return found
    return _to_dims(more, tensor.dim())


# ── Rules: what the values of a result are made of

_FRESH = {
    "zero", "fill", "uniform", "normal", "random", "bernoulli", "exponential", "zeros", "ones",
    "full", "empty", "rand", "randn", "arange", "set", "resize", "cauchy", "geometric",
    "log_normal",
}  # fmt: skip
_MOVING = {
    "clone", "cat", "stack", "index_select", "gather", "flip", "roll",
    "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
    "replication_pad1d", "replication_pad2d", "replication_pad3d", "repeat", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "tril", "triu",
    "rot90", "index", "_unsafe_index", "slice_scatter", "select_scatter", "_unsafe_view",
    "_reshape_copy", "lift_fresh", "contiguous", "repeat_interleave", "as_strided_copy",
    "view_copy", "expand_copy", "permute_copy", "diagonal_scatter", "take", "_reshape_alias",
    "lift", "unfold_copy", "as_strided", "diag_embed", "narrow_copy",
    "split_with_sizes_copy", "index_put", "_index_put_impl", "scatter",
}  # fmt: skip


def _pointwise(op: _Operation) -> Reach:
    dims = op.first.dim()
    return _union(_to_dims(r, dims) for r in op.reads.values())


def _along(op: _Operation) -> tuple[Tensor, Reach, list[int]] | None:
    """The only tensor read and the axes that an operation works along."""
    if len(op.reads) != 1 or op.written:
        return None
    source = next(
        (v for v in op.arguments.values() if isinstance(v, Tensor) and id(v) in op.reads), None
    )
    reach = op.read(source)
    if source is None or reach is None:
        return None
    dims = source.dim()
    if op.first.numel() == 1 and source.numel() >= 1:
        return source, reach, list(range(dims))
    asked: Any = next((op.arguments[n] for n in ("dim", "dims", "axis") if n in op.arguments), 0.5)
    if asked == 0.5:
        return None
    if asked is None or asked == []:
        asked = range(dims)
    at = [asked] if isinstance(asked, int) else list(asked)
    return source, reach, sorted({d % dims for d in at}) if dims else []


def _along_axes(op: _Operation) -> Reach | None:
    """Sums, means, largest values, softmax, sorting, transforms: along whole axes."""
    found = _along(op)
    if found is None:
        return None
    source, reach, at = found
    if op.name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin") and at:
        axis = at[0] + 1
        return reach.change(lambda p: p if p.shape[axis] == 1 else torch.cummax(p, axis).values, {})
    dims = op.first.dim()
    if dims == source.dim():
        others = [d for d in range(dims) if d not in at]
        if any(source.shape[d] != op.first.shape[d] for d in others):
            return None
        return _most(reach, at)
    if dims == source.dim() - len(at):
        return _most(reach, at, keep=False)
    return None


def _contracted(op: _Operation) -> Reach:
    """Products of matrices: rows of the left, columns of the right."""
    dims = op.first.dim()
    names = {
        "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "addmm": ("mat1", "mat2"),
        "_addmm_activation": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"),
        "addbmm": ("batch1", "batch2"), "mv": ("self", "vec"), "addmv": ("mat", "vec"),
        "dot": ("self", "tensor"), "vdot": ("self", "other"), "linear": ("input", "weight"),
        "addr": ("vec1", "vec2"),
    }  # fmt: skip
    left_name, right_name = names[op.name]
    found: list[Reach] = []
    left, right = op.read(op[left_name]), op.read(op[right_name])
    if left is not None:
        vector = op.name in ("mv", "addmv", "dot", "vdot")
        found.append(_to_dims(_most(left, [-1], keep=not vector), dims))
    if right is not None:
        if op.name in ("mm", "bmm", "addmm", "_addmm_activation", "baddbmm"):
            found.append(_to_dims(_most(right, [-2]), dims))
        else:
            everything = _most(right, range(right.rows.dim() - 1), keep=False)
            found.append(_to_dims(everything, dims))
    taken = {id(op[left_name]), id(op[right_name])}
    for key, reach in op.reads.items():
        if key not in taken:
            found.append(_to_dims(reach, dims))
    return _union(found)


def _attention(op: _Operation) -> Reach:
    """Each query reads itself and every key and value."""
    found = []
    heads = op.first.shape[1]
    for name in ("query", "key", "value", "attn_mask", "attn_bias"):
        reach = op.read(op.arguments.get(name))
        if reach is None:
            continue
        reach = _most(_to_dims(reach, 4), [-1] if name == "query" else [-2, -1])
        found.append(reach.change(lambda p: p if p.shape[2] in (1, heads) else p.amax(2, True)))
    return replace(_union(found), steps={})


def _whole_attention(op: _Operation) -> Reach:
    """Torch's fused attention layers: (N, T, D) → (N, T, D)."""
    found = [_most(r, [d for d in range(r.rows.dim() - 1) if d > 0]) for r in op.reads.values()]
    return _union(_to_dims(r, op.first.dim()) for r in found)


def _normalised(op: _Operation) -> Reach:
    """Batch normalisation: each channel alone, over all places where statistics are computed."""
    training = op.arguments.get("training", False) or op.arguments.get("train", False)
    source = op.read(op.arguments.get("input", op.arguments.get("self")))
    others = [
        _union([r]) for k, r in op.reads.items()
        if k != id(op.arguments.get("input", op.arguments.get("self")))
    ]  # fmt: skip
    dims = op.first.dim()
    found = []
    if source is not None:
        found.append(_most(source, [d for d in range(dims) if d != 1]) if training else source)
    for reach in others:
        everything = _most(reach, range(reach.rows.dim() - 1), keep=False)
        found.append(_to_dims(everything, dims))
    return _union(found)


def _layer_normalised(op: _Operation) -> Reach:
    last = len(op["normalized_shape"])
    dims = op.first.dim()
    found = []
    for value in ("input", "weight", "bias"):
        reach = op.read(op.arguments.get(value))
        if reach is not None:
            found.append(_to_dims(_most(reach, range(-last, 0)), dims))
    kept = {d: s for d, s in found[0].steps.items() if d < -last}
    return replace(_union(found), steps=kept)


def _group_normalised(op: _Operation) -> Reach:
    """Statistics of a group of channels over all places."""
    groups = op["group"]
    dims = op.first.dim()
    channels = op.first.shape[1]
    found = []
    for name in ("input", "weight", "bias"):
        reach = op.read(op.arguments.get(name))
        if reach is None:
            continue
        if name != "input":
            found.append(_to_dims(_most(reach, [0], keep=False), dims))
            continue
        reach = _most(reach, range(2, dims))
        found.append(reach.change(lambda p: _by_groups(p, 1 - dims, groups, channels)))
    return _union(found)


def _by_groups(part: Tensor, axis: int, groups: int, channels: int) -> Tensor:
    """The union over each group of channels, for as many channels as come out."""
    if part.shape[axis] == 1:
        return part
    if groups == 1:
        return part.amax(axis, keepdim=True)
    shape = list(part.shape)
    shape[axis : axis + 1 or None] = [groups, shape[axis] // groups]
    most = part.reshape(shape).amax(axis)
    return most.repeat_interleave(channels // groups, axis)


def _halved(op: _Operation) -> Reach:
    """Gated linear units: the second half of an axis scales the first."""
    source = op.read(op["self"])
    if source is None:
        raise AssertionError("glu reads one tensor")
    axis = op["dim"] % op.first.dim() + 1
    half = op.first.shape[axis - 1]

    def fold(p: Tensor) -> Tensor:
        if p.shape[axis] == 1:
            return p
        return torch.maximum(p.narrow(axis, 0, half), p.narrow(axis, half, half))

    return source.change(fold)


# ── Along one axis of places: windows, padding, resizing

_Extend: TypeAlias = Callable[[int, int], Tensor]
_Act: TypeAlias = Callable[[_Extend, bool], Tensor]
"""What happens along an axis: (extend, real) → new values (..., n).

``extend(before, after)`` gives the old values (..., n) with so many more at either side: real ones
depend on nothing, the others go on as if the input did."""


def _on_axis(
    op: _Operation, reach: Reach, axis: int, size: int, act: _Act, pace: Fraction | None
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

    def nothing(line: Tensor) -> _Extend:
        return lambda before, after: F.pad(line, (before, after), value=NONE)

    def part(p: Tensor, which: int) -> Tensor:
        if p.shape[axis] == 1 and size > 1:
            return p
        line = p.movedim(axis, -1)
        if which == _MIXED:
            return act(nothing(line), True).movedim(-1, axis)

        def extend(before: int, after: int) -> Tensor:
            return _extended(op, line[2:], before, after, None if step is None else step[which])

        return torch.cat((act(nothing(line[:2]), True), act(extend, False))).movedim(-1, axis)

    steps = dict(reach.steps)
    if pace is None:
        steps.pop(axis, None)
    elif step is not None:
        steps[axis] = (step[0] * pace, step[1] * pace)
    rows, columns, mixed = (part(p, which) for which, p in enumerate(reach.parts))
    return Reach(rows, columns, mixed, steps)


_MIXED = 2
_LONGEST_PERIOD = 64


def _extended(
    op: _Operation, line: Tensor, before: int, after: int, step: Fraction | None
) -> Tensor:
    """Boxes (2, ..., n) with those that would lie before and after them.

    Boxes move on by the same amount from place to place, or, where maps were enlarged, from
    every k-th place to the next.
    """
    count = line.shape[-1]
    if before <= 0 and after <= 0:
        return F.pad(line, (before, after))
    at = torch.arange(-before, count + after)
    finite = line > NONE
    if not bool(finite.any()):
        return F.pad(line, (before, after), value=NONE)
    if bool(finite.all()):
        sign = torch.tensor((-1.0, 1.0)).reshape(2, *(1,) * (line.dim() - 1))
        # A known step needs no second period to show it; an unknown one does.
        for period in range(1, 1 + min(count if step is not None else count // 2, _LONGEST_PERIOD)):
            shift = line[..., period:] - line[..., :-period]
            if step is None:
                moved = shift[..., :1]
            else:
                moved = (sign * float(step * period)).expand_as(line[..., :1])
            if bool((shift == moved).all()):
                turns = at.div(period, rounding_mode="floor")
                return (line[..., at % period] + moved * turns).floor()
    op.mode.edges_known = False
    return F.pad(line, (before, after), value=NONE)


def _each(value: Any, count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def _slid(
    op: _Operation, reach: Reach, axis: int, sizes: tuple[int, int],
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

    def act(extend: _Extend, real: bool) -> Tensor:  # noqa: ARG001
        windows = extend(padding, after).unfold(-1, span, stride)[..., :count, ::dilation]
        return windows.amax(-1) if tap is None else windows[..., tap]

    return _on_axis(op, reach, axis, size, act, Fraction(stride))


def _spread(
    op: _Operation, reach: Reach, axis: int, sizes: tuple[int, int],
    kernel: int, stride: int, padding: int, dilation: int, tap: int | None = None,
) -> Reach:  # fmt: skip
    """The same for a transposed convolution, each of whose inputs is spread over a window."""
    size, count = sizes
    span = dilation * (kernel - 1) + 1
    more = -(-span // stride) + 1  # places beyond the edges that may reach an output

    def act(extend: _Extend, real: bool) -> Tensor:  # noqa: ARG001
        line = extend(more, more)
        spaced = torch.full((*line.shape[:-1], line.shape[-1] * stride), NONE, device="cpu")
        spaced[..., ::stride] = line
        first = padding + more * stride - (span - 1)
        spaced = F.pad(spaced, (0, max(0, first + count + span - 1 - spaced.shape[-1])), value=NONE)
        windows = spaced[..., first : first + count + span - 1].unfold(-1, span, 1)[..., ::dilation]
        return windows.amax(-1) if tap is None else windows[..., kernel - 1 - tap]

    return _on_axis(op, reach, axis, size, act, Fraction(1, stride))


def _convolved(op: _Operation) -> Reach:
    """Convolutions of any kind and number of axes."""
    weight, groups = op["weight"], op["groups"]
    source, out = op["input"], op.first
    found = []
    for name in ("weight", "bias"):
        other = op.read(op[name])
        if other is not None:
            everything = _most(other, range(other.rows.dim() - 1), keep=False)
            found.append(_to_dims(everything, out.dim()))
    reach = op.read(source)
    if reach is None:
        return _union(found)
    kernel = list(weight.shape[2:])
    spatial = len(kernel)
    numbers = [kernel, *(_each(op[n], spatial) for n in ("stride", "padding", "dilation"))]
    slide: Any = _spread if op["transposed"] else _slid
    at_channel = -spatial - 1
    reach = reach.change(lambda p: _by_groups(p, at_channel, groups, out.shape[at_channel]))
    # Weights that are zero in every filter read nothing: masked convolutions.
    taps: Any = _taps(op.mode.weight(weight), kernel) or [[None] * spatial]
    for tap in taps:
        one = reach
        for at in range(spatial):
            axis = at - spatial
            sizes = (source.shape[axis], out.shape[axis])
            one = slide(op, one, axis, sizes, *(n[at] for n in numbers), tap[at])
        found.append(_agreed(one))
    return _union(reversed(found))


def _taps(weight: Tensor | None, kernel: list[int]) -> list[list[int]] | None:
    """Places of a kernel where some filter is not zero; None where all are, or none is."""
    if weight is None or math.prod(kernel) == 1 or weight.is_meta or weight.layout != torch.strided:
        return None
    there = (weight.detach() != 0).flatten(0, 1).any(0)
    if bool(there.all()) or not bool(there.any()):
        return None
    found: list[list[int]] = there.nonzero().tolist()
    return found


def _pooled(op: _Operation) -> Reach | None:
    """Pools of any kind, by the number of axes in their name."""
    spatial = int(op.name.partition("pool")[2][0])
    source: Any = op.arguments.get("self", op.arguments.get("input"))
    out = op.first
    reach = op.read(source)
    if reach is None:
        return None
    if "adaptive" in op.name:
        for axis in range(-spatial, 0):
            reach = _shared_out(op, reach, axis, (source.shape[axis], out.shape[axis]))
        return reach
    kernel = _each(op["kernel_size"], spatial)
    numbers = [
        kernel,
        _each(op["stride"] or kernel, spatial),
        _each(op.arguments.get("padding", 0), spatial),
        _each(op.arguments.get("dilation", 1), spatial),
    ]
    for at in range(spatial):
        axis = at - spatial
        sizes = (source.shape[axis], out.shape[axis])
        reach = _slid(op, reach, axis, sizes, *(n[at] for n in numbers))
    return _agreed(reach)


def _shared_out(op: _Operation, reach: Reach, axis: int, sizes: tuple[int, int]) -> Reach:
    """Adaptive pools: an axis shared out among so many windows."""
    size, count = sizes
    if size % count == 0:
        return _slid(op, reach, axis, sizes, size // count, size // count, 0, 1)
    starts = [i * size // count for i in range(count)]
    ends = [-(-(i + 1) * size // count) for i in range(count)]

    def act(extend: _Extend, real: bool) -> Tensor:  # noqa: ARG001
        line = extend(0, 0)
        parts = [line[..., a:b].amax(-1) for a, b in zip(starts, ends, strict=True)]
        return torch.stack(parts, -1)

    return _on_axis(op, reach, axis, size, act, None)


def _unfolded(op: _Operation) -> Reach:
    """Windows written out as columns (`torch.nn.Unfold`): padding first, then a mere move."""
    reach = op.reads[id(op["self"])]
    down, across = op["padding"]
    padded = _padded(op, reach, [across, across, down, down])
    n, channels, height, width = op["self"].shape
    shape = (n, channels, height + 2 * down, width + 2 * across)
    parts = []
    for part in padded.parts:
        planes = part.expand(len(part), *shape).flatten(0, 1)
        columns = op.func(planes, op["kernel_size"], op["dilation"], [0, 0], op["stride"])
        parts.append(_compact(columns.unflatten(0, (len(part), n))))
    return Reach.of(parts)


def _padded(op: _Operation, reach: Reach, pads: Sequence[int] | None = None) -> Reach:
    """Padding with a constant, by reflection or by repeating the edge; cropping."""
    source = op["self"]
    if pads is None:
        pads = list(op["pad"] if "pad" in op.arguments else op["padding"])
    for at in range(len(pads) // 2):
        axis, before, after = -at - 1, pads[2 * at], pads[2 * at + 1]
        size = source.shape[axis]
        places = torch.arange(-before, size + after)
        if "reflection" in op.name:
            places = size - 1 - (size - 1 - places.abs()).abs()
        elif "replication" in op.name:
            places = places.clamp(0, size - 1)

        def act(
            extend: _Extend,
            real: bool,
            places: Tensor = places,
            ends: tuple[int, int] = (before, after),
        ) -> Tensor:
            if real and op.name.startswith(("reflection", "replication")):
                return extend(0, 0)[..., places]
            return extend(*ends)

        reach = _on_axis(op, reach, axis, size, act, Fraction(1))
    return reach


def _resized(op: _Operation) -> Reach | None:
    """Interpolation, by the weights that the very operation gives to each place."""
    source: Any = op.arguments.get("self", op.arguments.get("input"))
    out = op.first
    reach = op.read(source)
    if reach is None:
        return None
    spatial = source.dim() - 2
    for at in range(spatial):
        axis = at - spatial
        reach = _resized_axis(op, reach, at, spatial, (source.shape[axis], out.shape[axis]))
    return reach


def _resized_axis(
    op: _Operation, reach: Reach, at: int, spatial: int, sizes: tuple[int, int]
) -> Reach:
    size, count = sizes
    scales = [n for n in op.arguments if n.startswith("scale")]
    asked = op.arguments[scales[at]] if len(scales) == spatial else None
    pace = Fraction(size, count) if asked is None else 1 / Fraction(asked).limit_denominator(1000)
    corners = bool(op.arguments.get("align_corners", False))
    # Beyond the edges it goes on where a whole number of places becomes a whole number.
    more = pace.numerator * -(-4 // pace.numerator)

    def weights(before: int, after: int) -> Tensor:
        """Whether each place after (rows) reads each place before (columns)."""
        # Two places across: with one, torch 2.14 takes antialiased images for channels-last ones.
        shape = [1] * spatial
        shape[at] = before
        eye = torch.eye(before, dtype=torch.float64, device="cpu").reshape(1, before, *shape)
        eye = eye.expand(1, before, *(n if d == at else 2 for d, n in enumerate(shape)))
        given = dict(op.arguments)
        given[next(n for n in given if n in ("self", "input"))] = eye.contiguous()
        given["output_size"] = [after if d == at else 2 for d in range(spatial)]
        for index, name in enumerate(scales):
            given[name] = asked if index == at else None
        names = [a.name for a in op.func._schema.arguments]  # noqa: SLF001 - torch's description
        result: Tensor = op.func(*(given[n] for n in names))
        for axis in range(spatial - 1, -1, -1):
            if axis != at:
                result = result.select(axis + 2, 0)
        return result.reshape(before, after).t() != 0

    def act(extend: _Extend, real: bool) -> Tensor:
        beyond = 0 if real or corners or size == 1 else more
        line = extend(beyond, beyond)
        ahead = int(beyond / pace)
        mask = weights(size + 2 * beyond, count + 2 * ahead)[ahead : ahead + count]
        return torch.where(mask, line[..., None, :], NONE).amax(-1)

    regular = not corners and size > 1 and (asked is not None or size % count * (count % size) == 0)
    return _on_axis(op, reach, -spatial + at, size, act, pace if regular else None)


def _copied(op: _Operation) -> Reach | None:
    """What is copied into a tensor replaces what was there."""
    source = op.read(op["src"])
    return None if source is None else _to_dims(source, op.first.dim())


def _added_at(op: _Operation) -> Reach | None:
    """Sums at places that an index names."""
    if op.read(op["index"]) is not None:
        return None
    if op["index"].is_meta:
        raise CannotFollow("it adds values by an index that is computed", values=True)
    name = "source" if op.name == "index_add" else "src"
    add: Any = torch.index_reduce if op.name == "index_add" else torch.scatter_reduce
    parts = []
    for part in range(3):
        planes = []
        for plane in range(4 if part < _MIXED else 1):
            base, more = op.plane(op["self"], part, plane), op.plane(op[name], part, plane)
            index = op["index"].cpu()
            planes.append(add(base.contiguous(), op["dim"], index, more, "amax"))
        parts.append(_compact(torch.stack(planes)))
    return Reach.of(parts)


_RULES: dict[str, Callable[[_Operation], Reach | None]] = {
    **dict.fromkeys(
        ("mm", "bmm", "addmm", "_addmm_activation", "baddbmm", "addbmm", "mv", "addmv", "dot",
         "vdot", "linear", "addr"), _contracted,
    ),
    **dict.fromkeys(
        ("_native_multi_head_attention", "_transformer_encoder_layer_fwd",
         "_triton_multi_head_attention"), _whole_attention,
    ),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "miopen_batch_norm",
         "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
         "_batch_norm_no_update", "batch_norm", "native_batch_norm_legit_functional",
         "_batch_norm_impl_index"), _normalised,
    ),
    "native_layer_norm": _layer_normalised,
    "_fused_rms_norm": _layer_normalised,
    "native_group_norm": _group_normalised,
    "glu": _halved,
    "im2col": _unfolded,
    "copy": _copied,
    # Element by element, but not said to be.
    **dict.fromkeys(
        ("native_dropout", "_fused_dropout", "prelu", "_prelu_kernel", "hardswish", "polar",
         "complex", "log_sigmoid_forward", "bernoulli", "normal", "bucketize", "dequantize",
         "quantize_per_tensor", "quantize_per_channel", "fake_quantize_per_tensor_affine",
         "_to_copy"), _pointwise,
    ),
    "view_as_real": lambda op: _pointwise(op).change(lambda p: p[..., None], {}),
    "view_as_complex": lambda op: _pointwise(op).change(lambda p: p.amax(-1), {}),
    "index_add": _added_at,
    "scatter_add": _added_at,
    **dict.fromkeys(("convolution", "convolution_overrideable", "_convolution"), _convolved),
    **dict.fromkeys(
        (f"{kind}{count}d{more}" for kind in ("max_pool", "avg_pool", "adaptive_max_pool",
         "adaptive_avg_pool", "_adaptive_avg_pool") for count in (1, 2, 3)
         for more in ("", "_with_indices")), _pooled,
    ),
    **dict.fromkeys(
        ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
         "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
         "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
         "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"), _resized,
    ),
}  # fmt: skip
_LOCAL = (_pointwise, _convolved, _pooled, _resized)

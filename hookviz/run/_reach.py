"""Which pixels of a network's input each value of a forward depends on.

The rule: dependence is followed through the operations that a forward performs, not through the
types of its layers. Every tensor carries, for each of its values, the box of input pixels that the
value depends on; an operation's result carries the union of the boxes that it reads. What an
operation reads follows from torch's own description of it (element by element, a view, along an
axis) or from its arguments (`hookviz.run._reach_rules`). An operation that nobody described is
tried: its inputs are changed, and its results show what they depend on. So it plays no part which
values flow, how large they are, or whether a ReLU is dead.

A box is kept twice: as it is, and as it would be if the input went on past its edges, which says
how much of a field lies outside. Boxes are kept row by row and column by column: along an axis
where nothing changes, one number stands for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NONE = -math.inf
PLANES = (4, 4, 1)
"""How many numbers each of the three parts of a `Reach` holds for a value."""

Steps: TypeAlias = dict[int, tuple[Fraction, Fraction]]
Rule: TypeAlias = "Callable[[Operation], Reach | None]"
"""What an operation's first result depends on; None where the rule does not fit it."""


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
    steps: Steps = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Iterable[Tensor], steps: Steps | None = None) -> Reach:
        """The boxes made of the three tensors, in their order."""
        rows, columns, mixed = parts
        return cls(rows, columns, mixed, steps or {})

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three tensors."""
        return self.rows, self.columns, self.mixed

    @property
    def dims(self) -> int:
        """How many axes the tensor has."""
        return self.rows.dim() - 1

    def change(self, function: Callable[[Tensor], Tensor], steps: Steps | None = None) -> Reach:
        """The same function applied to each of the three."""
        return Reach.of(map(function, self.parts), self.steps if steps is None else steps)

    def in_dims(self, dims: int) -> Reach:
        """With axes of size 1 in front, as broadcasting adds them."""
        more = dims - self.dims
        if not more:
            return self
        return self.change(lambda p: p.reshape(len(p), *(1,) * more, *p.shape[1:]))

    def over(self, axes: Iterable[int], *, keep: bool = True) -> Reach:
        """The union along some axes."""
        at = [a + 1 if a >= 0 else a for a in axes]
        return self.change(lambda p: p.amax(at, keepdim=keep), {}) if at else self

    def everything(self, dims: int) -> Reach:
        """The union of all values, for a tensor of so many axes."""
        return self.over(range(self.dims), keep=False).in_dims(dims)


class CannotFollow(Exception):  # noqa: N818 - a reason, turned into a sentence by the caller
    """Why dependence cannot be followed; ``values`` says that real values would help."""

    def __init__(self, reason: str, *, values: bool = False) -> None:
        super().__init__(reason)
        self.values = values


def of_input(tensor: Tensor) -> Reach:
    """Each pixel of an input (..., H, W) depends on itself."""
    height, width = tensor.shape[-2:]
    ones = (1,) * (tensor.dim() - 2)
    rows, columns = torch.arange(float(height)), torch.arange(float(width))
    return Reach(
        torch.stack((-rows, rows) * 2).reshape(4, *ones, height, 1),
        torch.stack((-columns, columns) * 2).reshape(4, *ones, 1, width),
        torch.full((1, *ones, 1, 1), NONE),
        {-2: (Fraction(1), Fraction(0)), -1: (Fraction(0), Fraction(1))},
    )


def nothing(dims: int) -> Reach:
    """Values that depend on no pixel."""
    return Reach.of(torch.full((n, *(1,) * dims), NONE) for n in PLANES)


def union(reaches: Iterable[Reach]) -> Reach:
    """Boxes that hold all of the given ones, of which there is at least one; they broadcast."""
    first, *others = reaches
    for one in others:
        dims = max(first.dims, one.dims)
        pairs = zip(first.in_dims(dims).parts, one.in_dims(dims).parts, strict=True)
        first = Reach.of((torch.maximum(a, b) for a, b in pairs), first.steps or one.steps)
    return first


def compact(part: Tensor) -> Tensor:
    """One number along each axis where nothing changes."""
    long = [d for d in range(1, part.dim()) if part.shape[d] > 1]
    for dim in long:
        if part.stride(dim) == 0:
            part = part.narrow(dim, 0, 1)
    for dim in long:
        first = part.narrow(dim, 0, 1)
        if part.shape[dim] > 1 and bool((part == first).all()):
            part = first
    return part.contiguous()


# ── Memory: a view may have several objects, so boxes are known by storage and geometry

Geometry: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]


def geometry_of(tensor: Tensor) -> Geometry:
    """Shape, strides and offset."""
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())


def _end(geometry: Geometry) -> int:
    shape, stride, offset = geometry
    return offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True) if n)


def through_memory(
    written: Iterable[tuple[Geometry, Reach]], at: Geometry, steps: Steps | None = None
) -> Reach:
    """What a view reads after others were written to the same memory, in their order."""
    written = list(written)
    length = max(_end(g) for g in (at, *(g for g, _ in written)))
    parts = []
    for index, count in enumerate(PLANES):
        memory = torch.full((count, length), NONE)

        def view(geometry: Geometry, memory: Tensor = memory, count: int = count) -> Tensor:
            shape, stride, offset = geometry
            return memory.as_strided((count, *shape), (length, *stride), offset)

        for geometry, reach in written:
            view(geometry).copy_(reach.parts[index].expand(count, *geometry[0]))
        parts.append(compact(view(at)))
    return Reach.of(parts, steps)


class Following(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is open, follows what every operation makes of the tensors that it knows.

    Args:
        size: (height, width) of the input.
        where: Name of the layer that runs now, for the record of events.
        weights: The values of weights that have none in this forward, by their identity.
        rules: What operations depend on, by their name in ``torch.ops.aten``.

    Attributes:
        edges_known: Whether boxes could be continued beyond the edges wherever that was needed.
        events: For each event, the layer and the operation that made everything depend on every
            pixel.
        unions: Operations that could not even be tried, with the layer: all that they give was
            taken to depend on all that they read.
        numbers: Layers that took single numbers out of tensors: what becomes of these in Python is
            not followed.
    """

    def __init__(
        self,
        size: tuple[int, int],
        where: Callable[[], str],
        weights: Mapping[int, Tensor],
        rules: Mapping[str, Rule],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._size, self.where, self._weights, self.rules = size, where, weights, rules
        self._known: dict[int, tuple[StorageWeakRef, dict[Geometry, Reach]]] = {}
        self.edges_known = True
        self.events: list[tuple[str, str]] = []
        self.unions: list[tuple[str, str]] = []
        self.numbers: list[str] = []

    def get(self, tensor: Tensor) -> Reach | None:
        """The boxes of a tensor; None where it does not depend on the input."""
        entry = self._entry(tensor)
        if entry is None:
            return None
        geometry = geometry_of(tensor)
        if geometry not in entry:
            entry[geometry] = through_memory(entry.items(), geometry)
        found = entry[geometry]
        return found if bool((found.rows > NONE).any()) else None

    def set(self, tensor: Tensor, reach: Reach | None, *, written: bool = False) -> None:
        """Give a tensor its boxes; where it was written, what shares its memory gets them too."""
        entry = self._entry(tensor)
        if entry is None:
            if reach is None:
                return
            if len(self._known) % 64 == 0:
                self._known = {k: e for k, e in self._known.items() if not e[0].expired()}  # type: ignore[no-untyped-call]
            storage = tensor.untyped_storage()
            entry = {}
            self._known[storage._cdata] = (StorageWeakRef(storage), entry)  # type: ignore[no-untyped-call]  # noqa: SLF001
        at = geometry_of(tensor)
        new = nothing(tensor.dim()) if reach is None else reach
        for other, old in list(entry.items()) if written else ():
            if other != at and other[2] < _end(at) and at[2] < _end(other):
                entry[other] = through_memory([(other, old), (at, new)], other, old.steps)
        entry[at] = new

    def _entry(self, tensor: Tensor) -> dict[Geometry, Reach] | None:
        try:
            key = tensor.untyped_storage()._cdata  # noqa: SLF001 - the only name a memory has
        except (RuntimeError, NotImplementedError) as error:
            raise CannotFollow(
                f"a {tensor.dtype} tensor of layout {tensor.layout} flows in it"
            ) from error
        found = self._known.get(key)
        return None if found is None or found[0].expired() else found[1]  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        reads = {id(t): r for t in given if (r := self.get(t)) is not None}
        out = func(*args, **kwargs)
        if reads or func._schema.is_mutable:  # noqa: SLF001 - torch's own description of it
            op = Operation(self, func, args, kwargs, out, reads)
            for tensor, reach in op.results():
                self.set(tensor, reach, written=any(tensor is w for w in op.written))
        return out

    def all_pixels(self, reach: Reach) -> bool:
        """Whether every value that depends on anything depends on every pixel."""
        for part, size in zip(reach.parts, self._size, strict=False):
            first, last = part[0], part[1]
            whole = (first >= 0) & (last >= size - 1)
            if not bool((whole | (last == NONE)).all()):
                return False
        return True

    def weight(self, tensor: Tensor) -> Tensor | None:
        """The values of a weight, where they can be read."""
        return self._weights.get(id(tensor)) if tensor.is_meta else tensor


class Leaving(TorchFunctionMode):
    """While it is open, values that leave torch for NumPy or a list end the forward.

    Args:
        following: Knows which values depend on the input.
    """

    def __init__(self, following: Following) -> None:
        super().__init__()
        self._following = following

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        leaves = name in ("numpy", "__array__", "tolist", "__dlpack__")
        if leaves and self._following.get(args[0]) is not None:
            where = self._following.where()
            raise CannotFollow(f"in '{where}' its values leave torch ({name})")
        return func(*args, **(kwargs or {}))


class Operation:
    """One operation: what it read, what it gave, and what that depends on.

    Attributes:
        name: As in ``torch.ops.aten``, without the underscore of operations in place.
        reads: The boxes of its arguments, by identity; what depends on no pixel is not there.
        written: Arguments that it changed.
        out: The first tensor that it gave.
    """

    def __init__(
        self,
        mode: Following,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        reads: dict[int, Reach],
    ) -> None:
        self.mode, self.func, self.reads = mode, func, reads
        self._call = (args, kwargs)
        schema = func._schema  # noqa: SLF001 - torch's own description of it
        space, _, name = schema.name.partition("::")
        self.name = name[:-1] if schema.is_mutable and name.endswith("_") else name
        self._described = space == "aten"
        self.arguments: dict[str, Any] = {
            a.name: a.default_value for a in schema.arguments if a.has_default_value()
        }
        self.arguments.update(zip((a.name for a in schema.arguments), args, strict=False))
        self.arguments.update(kwargs)
        changed = [
            self.arguments.get(a.name)
            for a in schema.arguments
            if a.alias_info is not None and a.alias_info.is_write
        ]
        self.written = [t for t in tree_leaves(changed) if isinstance(t, Tensor)]
        self._given = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        self._given += [t for t in self.written if all(t is not g for g in self._given)]
        self.out = self._given[0] if self._given else torch.empty(0)

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    @property
    def source(self) -> Tensor:
        """What it is done to, by the names that torch gives it."""
        names = (n for n in ("self", "input") if n in self.arguments)
        found: Tensor = self.arguments[next(names)]
        return found

    def read(self, value: Any) -> Reach | None:
        """The boxes of an argument; None where it is no tensor or depends on nothing."""
        return self.reads.get(id(value)) if isinstance(value, Tensor) else None

    def joined(self, *known: tuple[Any, Reach | None]) -> Reach:
        """The union of what is known for some arguments with all of the others."""
        dims = self.out.dim()
        ids = {id(value) for value, _ in known}
        found = [reach.in_dims(dims) for _, reach in known if reach is not None]
        found += [r.everything(dims) for key, r in self.reads.items() if key not in ids]
        return union(found)

    def everything(self) -> Reach:
        """The union of all that was read."""
        return self.joined()

    def with_others(self, value: Tensor, change: Callable[[Reach], Reach]) -> Reach:
        """What is made of one argument's boxes, joined with all of the other arguments."""
        reach = self.read(value)
        return self.joined((value, None if reach is None else change(reach)))

    def results(self) -> Iterator[tuple[Tensor, Reach | None]]:
        """Each tensor that the operation gave or wrote, with its boxes."""
        fresh = self.name in _FRESH or self.name.endswith("_like") or self.name.startswith("new_")
        if self.reads and self.name == "_local_scalar_dense":
            self.mode.numbers.append(self.mode.where())
        if not self.reads or fresh or not self._given:
            yield from ((t, None) for t in self.written)
            return
        rule = self.mode.rules.get(self.name) if self._described else None
        if rule is None and (self.func.is_view or self.name in _MOVING):
            yield from zip(self._given, self.moved(), strict=True)
            return
        if rule is None and self._elementwise():
            rule = elementwise
        found = rule(self) if rule is not None else None
        if found is None and self._described:
            found = along_axes(self)
        if found is None:
            found = self.tried()
        if found is None:
            self.mode.unions.append((self.mode.where(), self.name))
            found = self.everything()
        found = self._noted(found)
        for tensor in self._given:
            # Beside the first there are statistics and indices.
            alike = tensor.shape == self.out.shape
            yield tensor, found if alike else self.everything().everything(tensor.dim())

    def _elementwise(self) -> bool:
        """Whether torch says that each value is made of those at its own place."""
        plain = getattr(getattr(torch.ops.aten, self.name, None), "default", self.func)
        return any(torch.Tag.pointwise in f.tags for f in (self.func, plain))

    def _noted(self, found: Reach) -> Reach:
        """Mark values that depend on every pixel from here on, because all places were read."""
        mode = self.mode
        local = self.name in LOCAL or self._elementwise()
        if local or bool((found.mixed > NONE).any()) or not mode.all_pixels(found):
            return found
        if all(mode.all_pixels(r) for r in self.reads.values()):
            return found
        mode.events.append((mode.where(), self.name))
        return replace(found, mixed=torch.full_like(found.rows[:1], 1.0 - len(mode.events)))

    def moved(self) -> list[Reach]:
        """The boxes move as the values do: the operation is done to each plane of numbers."""
        one_box = all(p.numel() == len(p) for r in self.reads.values() for p in r.parts)
        if one_box and self.func.is_view:
            return [self.everything().everything(t.dim()) for t in self._given]
        names = ("indices", "index", "repeats", "mask")
        picks = {id(t): t for n in names for t in tree_leaves(self.arguments.get(n))}
        if any(isinstance(t, Tensor) and t.is_meta for t in picks.values()):
            raise CannotFollow("it picks values by an index that is computed", values=True)
        results: list[list[list[Tensor]]] = []
        for part, count in enumerate(PLANES):
            planes = []
            for plane in range(count):

                def stand_in(value: Any, part: int = part, plane: int = plane) -> Any:
                    if id(value) in picks:
                        return value.cpu() if isinstance(value, Tensor) else value
                    return self.plane(value, part, plane)

                args, kwargs = tree_map(stand_in, self._call)
                planes.append(tree_leaves(self.func(*args, **kwargs)))
            results.append(planes)
        found = []
        for at, tensor in enumerate(self._given):
            parts = [compact(torch.stack([p[at] for p in planes])) for planes in results]
            reach = Reach.of(parts, self.steps_kept())
            chosen = [r for key, r in self.reads.items() if key in picks]
            found.append(union([reach, *(r.everything(tensor.dim()) for r in chosen)]))
        return found

    def plane(self, value: Any, part: int, plane: int) -> Any:
        """One number for each value of a tensor argument; other arguments as they are."""
        if not isinstance(value, Tensor):
            return value
        reach = self.read(value) or nothing(value.dim())
        found = reach.parts[part][plane].expand(value.shape)
        return found.clone() if any(value is w for w in self.written) else found

    def steps_kept(self) -> Steps:
        """The steps along axes that are still there after a move, counted from the last."""
        source = next(v for v in tree_leaves(self._call) if id(v) in self.reads)
        steps, kept = self.reads[id(source)].steps, {}
        for back in range(-1, -min(source.dim(), self.out.dim()) - 1, -1):
            if source.shape[back] != self.out.shape[back]:
                break
            if back in steps:
                kept[back] = steps[back]
        return kept

    def tried(self) -> Reach | None:
        """Change what lies on one side of a row or column, and see which results change."""
        values = [t for t in tree_leaves(self._call) if isinstance(t, Tensor)]
        read = {id(t): t for t in values if id(t) in self.reads}
        if any(t.is_meta and id(t) not in read for t in values):
            raise CannotFollow(f"{self.name} has to be tried", values=True)
        source, *others = read.values()
        # Of several one may be an index, with which an operation would leave its memory.
        if (
            others
            or self.written
            or not (source.is_floating_point() and self.out.is_floating_point())
        ):
            return None
        generator = torch.Generator("cpu").manual_seed(0)
        device = "cpu" if source.is_meta else source.device
        plain, other = (
            torch.randn(source.shape, generator=generator).mul(scale).to(device, source.dtype)
            for scale in (1, 3)
        )

        def call(values: Tensor) -> Tensor:
            args, kwargs = tree_map(lambda v: values if v is source else v, self._call)
            found: Tensor = tree_leaves(self.func(*args, **kwargs))[0]
            return found

        start = call(plain)
        begin = time.perf_counter()
        call(other)
        each = time.perf_counter() - begin
        planes = [plane for part in self.reads[id(source)].parts for plane in part]
        levels = [sorted(set(plane.flatten().tolist()) - {NONE}) for plane in planes]
        if sum(map(len, levels)) * each > _LONGEST_TRIAL:
            return None
        self.mode.edges_known = False
        found = []
        for plane, thresholds in zip(planes, levels, strict=True):
            most = torch.full(self.out.shape, NONE)
            for level in thresholds:
                changed = call(torch.where((plane >= level).to(device), other, plain))
                most[(changed != start).cpu()] = level
            found.append(most)
        return Reach.of(compact(torch.stack(p)) for p in (found[:4], found[4:8], found[8:]))


_LONGEST_TRIAL = 20.0
"""Seconds that all calls may take."""
_FRESH = {
    "zero", "fill", "uniform", "random", "exponential", "zeros", "ones", "full", "empty", "rand",
    "randn", "arange", "set", "resize", "cauchy", "geometric", "log_normal",
}  # fmt: skip
"""What makes values anew, whatever tensor lends its shape."""
_MOVING = {
    "stack", "index_select", "gather", "flip", "roll", "repeat", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "tril", "triu", "rot90",
    "index", "_unsafe_index", "slice_scatter", "select_scatter", "repeat_interleave", "take",
    "diagonal_scatter", "diag_embed", "index_put", "_index_put_impl", "scatter", "expand_copy",
    "permute_copy", "unfold_copy", "narrow_copy", "split_with_sizes_copy", "slice_copy",
}  # fmt: skip
"""What puts values elsewhere without being a view."""
LOCAL: set[str] = set()
"""Operations on a window around each place, which do not mix all places however small a map is."""


def elementwise(op: Operation) -> Reach:
    """Each value is made of those at its own place, as tensors broadcast."""
    return union(r.in_dims(op.out.dim()) for r in op.reads.values())


def along_axes(op: Operation) -> Reach | None:
    """Sums, means, largest values, softmax, sorting, transforms: along whole axes."""
    if len(op.reads) != 1 or op.written:
        return None
    source = next((v for v in op.arguments.values() if op.read(v) is not None), None)
    if source is None:
        return None
    reach, dims = op.reads[id(source)], source.dim()
    asked = [op.arguments[n] for n in ("dim", "dims") if n in op.arguments]
    if op.out.numel() == 1:
        return reach.everything(op.out.dim())
    if not asked:
        return None
    axes = [asked[0]] if isinstance(asked[0], int) else list(asked[0] or range(dims))
    axes = sorted({a % dims for a in axes})
    if op.name in ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"):
        at = axes[0] + 1
        return reach.change(lambda p: p if p.shape[at] == 1 else torch.cummax(p, at).values, {})
    keep = op.out.dim() == dims
    if not keep and op.out.dim() != dims - len(axes):
        return None
    if keep and any(source.shape[d] != op.out.shape[d] for d in range(dims) if d not in axes):
        return None
    return reach.over(axes, keep=keep)

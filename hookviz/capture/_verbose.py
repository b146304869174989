"""A forward as a table: which layer ran when, what it gave, how long it took."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TextIO

import torch
from torch import nn

from hookviz._text import bytes_text
from hookviz.capture._checks import check, check_count
from hookviz.capture._leaves import describe, leaves
from hookviz.capture._module_hooks import bypass_compiled, set_forward_hook, set_pre_hook
from hookviz.capture._tree import LayerSelectors, ModuleTree, depth_of, resolve, select_from

_HEADERS = ("layer", "type", "call", "output", "dtype", "device", "ms", "bytes")
_RIGHT = {"call", "ms", "bytes"}
_LIVE_WIDTHS = {"output": 24, "dtype": 8, "device": 6, "ms": 9, "bytes": 10}


@dataclass(frozen=True)
class ExecutionRow:
    """One call of one layer.

    Attributes:
        layer: Dotted ``named_modules()`` path; "(model)" is the model itself.
        type: Class name of the module.
        call: Which call of the layer in this forward, from 1.
        output: Shapes of what it gave, nested as it was: "[10, 64, 112, 112]",
            "([2, 5, 8], ([4, 2, 4], [4, 2, 4]))", "{out: [1, 21, 64, 64]}"; what is no tensor is
            named by its type.
        dtype: Of the output's tensors, without "torch."; several joined by a comma.
        device: Of the output's tensors, likewise.
        milliseconds: Wall time of the call with everything below it, the hooks on its children
            included; on an accelerator the device is waited for before and after.
        bytes: Size of the output's tensors.
        started: Position among all rows by the moment the call began, from 1.
    """

    layer: str
    type: str
    call: int
    output: str
    dtype: str
    device: str
    milliseconds: float
    bytes: int
    started: int

    def cells(self) -> tuple[str, ...]:
        """The row as people read it, in the order of the table's columns."""
        time, size = f"{self.milliseconds:.2f}", bytes_text(self.bytes, binary=True)
        call = str(self.call)
        return self.layer, self.type, call, self.output, self.dtype, self.device, time, size


class VerboseExecution(nn.Module):
    """Wraps a model so that each forward is printed as a table.

    The wrapper calls the model and returns its output unchanged. Hooks are set for the length of
    one forward and removed on every way out. Values, modes, gradients and random numbers are
    those of the model alone.

    Args:
        model: Any ``nn.Module``; a compiled one is run through the original module.
        depth: Layers down to this many names deep: 1 (the default) the model's children, 2 their
            children as well, None all; 0 the model alone.
        layers: Tell these instead (names, globs, patterns, types, predicates; see
            `select_layers`).
        live: Write each row when its call ends, so that the children of a layer stand above it;
            False: nothing is written.
        stream: Where to; default ``sys.stdout``.

    Attributes:
        model: The model that was wrapped.
        rows: The rows of the last forward, in order of completion; after a failed forward those
            that came before the failure.

    Raises:
        LayerError: ``layers`` names what is not there.
        CaptureError: ``depth`` is negative, or the model is TorchScript.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        >>> verbose = VerboseExecution(net, live=False)
        >>> output = verbose(torch.zeros(2, 3, 8, 8))
        >>> [(row.layer, row.type, row.output) for row in verbose.rows]
        [('0', 'Conv2d', '[2, 8, 6, 6]'), ('1', 'ReLU', '[2, 8, 6, 6]')]
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        depth: int | None = 1,
        layers: LayerSelectors | None = None,
        live: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        super().__init__()
        if depth is not None:
            check_count("depth", depth, 0)
        check("stream", stream, "a text file", holds=stream is None or hasattr(stream, "write"))
        self.model = model
        self.depth = depth
        self.live = live
        self.stream = stream
        self.rows: tuple[ExecutionRow, ...] = ()
        self._layers = layers
        self._watched()  # unknown names are an error here, not at the first forward

    def __getstate__(self) -> dict[str, Any]:
        # An open file stays in its process; a copy writes to its own sys.stdout.
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]  # as torch has it
        return {**state, "stream": None}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on these arguments, tells the table, returns the model's output."""
        watched = self._watched()
        table = _Table(watched, (self.stream or sys.stdout) if self.live else None)
        try:
            with ExitStack() as stack:
                bypass_compiled(self.model, stack.callback)
                for name, module in watched.items():
                    table.hook(name, module, stack)
                return resolve(self.model)(*args, **kwargs)
        except BaseException as error:
            table.failed(error)
            raise
        finally:
            self.rows = tuple(table.rows)
            table.total()

    def table(self) -> str:
        """The rows of the last forward as plain text, in the order in which the calls began.

        Returns:
            Lines without a final line break, the columns aligned; only the headings before the
            first forward.
        """
        rows = [row.cells() for row in sorted(self.rows, key=lambda row: row.started)]
        widths = [max(map(len, column)) for column in zip(_HEADERS, *rows, strict=True)]
        lines = [_line(_HEADERS, widths), "  ".join("─" * width for width in widths)]
        return "\n".join([*lines, *(_line(row, widths) for row in rows)])

    def _watched(self) -> dict[str, nn.Module]:
        tree = ModuleTree(self.model)
        if self._layers is not None:
            chosen = select_from(tree, self._layers)
            return {name or "(model)": tree.modules[layer] for name, layer in chosen.items()}
        # The model itself would only repeat the last of its children, so it is shown at depth 0.
        return {
            name or "(model)": module
            for name, module in tree.modules.items()
            if (name or self.depth == 0) and (self.depth is None or depth_of(name) <= self.depth)
        }


class _Running(threading.local):
    """Name, place and moment of the calls that have begun in this thread (a replica's, say)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, float]] = []


class _Table:
    """The table of one forward while it runs."""

    def __init__(self, watched: Mapping[str, nn.Module], stream: TextIO | None) -> None:
        self.rows: list[ExecutionRow] = []
        self._stream = stream
        self._calls: Counter[str] = Counter()
        self._began = itertools.count(1)
        self._lock = threading.Lock()
        self._running = _Running()
        types = [type(module).__name__ for module in watched.values()]
        longest = {
            "layer": max(map(len, watched), default=0),
            "type": max(map(len, types), default=0),
        }
        self._widths = [max(len(h), {**_LIVE_WIDTHS, **longest}.get(h, 0)) for h in _HEADERS]

    def hook(self, name: str, module: nn.Module, stack: ExitStack) -> None:
        def before(_module: nn.Module, args: Any, kwargs: Any) -> None:
            started = next(self._began)
            _wait((args, kwargs))
            self._running.calls.append((name, started, time.perf_counter()))

        def after(module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            _wait(output)
            ended = time.perf_counter()
            _, started, began = self._running.calls.pop()
            tensors = [tensor for _, tensor in leaves(output)]
            with self._lock:
                self._calls[name] += 1
                row = ExecutionRow(
                    layer=name,
                    type=type(module).__name__,
                    call=self._calls[name],
                    output=describe(output),
                    dtype=_joined(str(tensor.dtype).removeprefix("torch.") for tensor in tensors),
                    device=_joined(str(tensor.device) for tensor in tensors),
                    milliseconds=(ended - began) * 1000,
                    bytes=sum(tensor.nelement() * tensor.element_size() for tensor in tensors),
                    started=started,
                )
                if not self.rows:
                    self._write(_line(_HEADERS, self._widths))
                self.rows.append(row)
                self._write(_line(row.cells(), self._widths))

        stack.callback(set_pre_hook(module, before))
        # After the hooks that others have set, so that the row tells what goes on from here.
        stack.callback(set_forward_hook(module, after))

    def failed(self, error: BaseException) -> None:
        if self._running.calls:
            self._write(f"{self._running.calls[-1][0]}  ended by {type(error).__name__}")

    def total(self) -> None:
        if self.rows:
            size = bytes_text(sum(row.bytes for row in self.rows), binary=True)
            plural = "s" if len(self.rows) > 1 else ""
            self._write(f"{len(self.rows)} call{plural}, outputs {size}")

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            self._stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None  # closed meanwhile; the forward is worth more than its table


def _wait(value: Any) -> None:
    """Waits until the devices of a value's tensors have done what was asked of them."""
    for device in {tensor.device for _, tensor in leaves(value)}:
        if device.type not in ("cpu", "meta"):
            torch.accelerator.synchronize(device)


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words)) or "–"


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    texts = [
        cell.rjust(width) if header in _RIGHT else cell.ljust(width)
        for header, cell, width in zip(_HEADERS, cells, widths, strict=True)
    ]
    return "  ".join(texts).rstrip()

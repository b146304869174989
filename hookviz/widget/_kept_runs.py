"""The session's runs that can be compared: what is kept of each, and how much of all.

A kept run has the outputs of its layers on the CPU, a small picture and facts. It has neither the
model nor the photo, so that runs of several models can be there at once.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hookviz.activation import Activation
from hookviz.comparison import KeptSide
from hookviz.errors import HookvizError
from hookviz.export import RunFacts
from hookviz.run import Run
from hookviz.widget._pictures import jpeg_bytes

KEPT_RUNS = 8
"""Runs that are kept to be compared."""
KEPT_BYTES = 500_000_000
"""Bytes of the tensors of all kept runs together; the last run's are those of the results."""
_THUMBNAIL = 96


@dataclass(eq=False)
class KeptRun:
    """One run, without its model.

    Attributes:
        key: Its number in the session as text, which messages name it by.
        title: What sets it apart from others of the same model and photo; "" for nothing.
        model: The model's name.
        trained: Whether its weights are.
        image: The image's name.
        device: Where it ran.
        dtype: The model's dtype.
        started: When; UTC.
        records: Outputs of its layers, on the CPU.
        input_size: (height, width) of what the network saw.
        thumbnail: What the network saw, small, as JPEG.
        facts: What files say of it; None until `find_facts` has ended.
        known: Set once it has.
    """

    key: str
    title: str
    model: str
    trained: bool
    image: str
    device: str
    dtype: str
    started: datetime
    records: tuple[Activation, ...]
    input_size: tuple[int, int]
    thumbnail: bytes
    facts: RunFacts | None = None
    known: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, run: Run, key: str, title: str = "") -> KeptRun:
        """What is kept of a run; tensors that are on the CPU are shared with it."""
        height, width = run.input.tensor.shape[-2:]
        return cls(
            key=key,
            title=title or ("edited" if run.edits else ""),
            model=run.model.name,
            trained=run.model.trained,
            image=run.image.name,
            device=str(run.input.tensor.device),
            dtype=str(run.model.dtype).removeprefix("torch."),
            started=run.started,
            records=tuple(
                replace(a, tensor=a.tensor.cpu()) for a in run.activations if a.kind == "output"
            ),
            input_size=(int(height), int(width)),
            thumbnail=jpeg_bytes(run.input.picture(), _THUMBNAIL),
        )

    @property
    def bytes(self) -> int:
        """Of the tensors."""
        return sum(record.tensor.nbytes for record in self.records)

    @property
    def words(self) -> str:
        """What it is, for people."""
        model = self.model if self.trained else f"{self.model} UNTRAINED"
        words = f"{model}, {self.image}, {self.device} {self.dtype}"
        return f"{self.title}: {words}" if self.title else words

    @property
    def repeated(self) -> list[str]:
        """Layers that were called several times."""
        return list(dict.fromkeys(a.layer for a in self.records if a.calls > 1))

    def find_facts(self, run: Run) -> None:
        """Takes what files say of it, which takes a hash of the weights, while these are there."""
        try:
            self.facts = run.facts
        finally:
            self.known.set()

    def side(self) -> KeptSide:
        """It as a side of a comparison."""
        return _Side(self, self.records, self.words)

    def calls(self, layer: str) -> list[KeptSide]:
        """Each call of one of its layers as a side.

        Raises:
            HookvizError: It was not called several times.
        """
        calls: dict[int, list[Activation]] = {}
        for record in self.records:
            if record.layer == layer:
                calls.setdefault(record.call, []).append(record)
        if len(calls) < 2:
            raise HookvizError(f"Layer {layer!r:.80} was not called several times in this run.")
        count = max(calls)
        return [
            _Side(self, found, f"call {call} of {count}, {self.words}")
            for call, found in calls.items()
        ]

    def public(self) -> dict[str, Any]:
        """It as the page knows it."""
        names = ("key", "title", "model", "trained", "image", "device", "dtype", "bytes")
        layers = len({record.layer for record in self.records})
        more = {"time": self.started.timestamp(), "layers": layers, "calls": self.repeated}
        return {name: getattr(self, name) for name in names} | more


class _Side(KeptSide):
    """A kept run as a side, whose facts may become known later."""

    def __init__(self, kept: KeptRun, records: Sequence[Activation], words: str) -> None:
        super().__init__(records, words, kept.input_size, None, kept.device)
        self._kept = kept

    def facts(self) -> RunFacts:
        return self._kept.facts or super().facts()


class KeptRuns(dict[str, KeptRun]):
    """The kept runs by key, oldest first: at most `KEPT_RUNS` and `KEPT_BYTES`.

    Attributes:
        let_go: How many were let go of to make room.
        too_large: Bytes of the last run, where they alone are too many to be kept; else 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self.let_go = self.too_large = 0

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(kept.bytes for kept in self.values())

    def keep(
        self, run: Run, title: str = "", in_use: Collection[str] = (), *, with_last: int = 1
    ) -> KeptRun | None:
        """Keeps a run, and lets go of older ones until all are within the limits.

        Args:
            run: The run.
            title: See `KeptRun`.
            in_use: Keys of runs that are let go of last.
            with_last: How many of the last runs must stay.

        Returns:
            What is kept; None where the run alone is too large.
        """
        size = sum(a.tensor.nbytes for a in run.activations if a.kind == "output")
        self.too_large = size if size > KEPT_BYTES else 0
        if self.too_large or not size:
            return None
        kept = KeptRun.of(run, str(next(self._numbers)), title)
        self[kept.key] = kept
        while len(self) > KEPT_RUNS or self.bytes > KEPT_BYTES:
            older = list(self)[:-with_last]
            if not older:
                del self[kept.key]
                self.too_large = size
                return None
            del self[next((key for key in older if key not in in_use), older[0])]
            self.let_go += 1
        return kept

    def public(self) -> dict[str, Any]:
        """What the page says of all."""
        return {
            "runs": [kept.public() for kept in self.values()],
            "bytes": self.bytes,
            "most": KEPT_RUNS,
            "limit": KEPT_BYTES,
            "let_go": self.let_go,
            "too_large": self.too_large,
        }

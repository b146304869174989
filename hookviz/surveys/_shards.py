"""Makes shards: batches through the hooked model, numbers and tensors into one file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hookviz._text import fault_text
from hookviz.activation import Activation
from hookviz.capture import Capture
from hookviz.errors import DeviceError, SurveyError
from hookviz.models import LoadedModel, feed, out_of_memory
from hookviz.run import failing_layer
from hookviz.surveys._files import TensorFile, committed, write_json
from hookviz.surveys._inputs import Batch
from hookviz.surveys._layout import Layout
from hookviz.surveys._plan import Plan
from hookviz.surveys._tally import Tally
from hookviz.surveys._zarr_store import ZarrWriter

_ROOM = 200  # bytes of a header for one tensor


class _BatchFailed(Exception):  # noqa: N818 - becomes the reason of a shard
    pass


@dataclass(frozen=True)
class ShardDone:
    """What became of a shard.

    Attributes:
        number: Which.
        images: How many images it has.
        bad: Those that could not be read, with the reasons.
        failed: Why it could not be made; "" where it was.
    """

    number: int
    images: int
    bad: list[tuple[int, str]]
    failed: str = ""


class ShardMaker:
    """Makes shards of a plan with a model; a context manager, inside which the model has hooks.

    Args:
        model: The model.
        plan: The plan.
    """

    def __init__(self, model: LoadedModel, plan: Plan) -> None:
        self._model, self._plan = model, plan
        self._layouts = {layout.label: layout for layout in plan.layouts}
        facts = plan.facts
        self._keep: str = facts["keep"]
        self._zarr: bool = facts["store"] == "zarr" and self._keep != "none"
        self._dtype = None if facts["dtype"] is None else getattr(torch, facts["dtype"])
        self._top: int = facts["top"]
        self._stack = ExitStack()
        self._capture = Capture(model.module, facts["layers"], eval_mode=True)

    def __enter__(self) -> Self:
        self._stack.enter_context(self._capture)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def make(self, number: int, images: range, batches: Iterator[Batch]) -> ShardDone:
        """Makes a shard and commits it.

        Args:
            number: Which.
            images: Its images.
            batches: Gives its batches in order; all of them are taken, come what may.

        Returns:
            What became of it; where the model failed twice on a batch, the reason.

        Raises:
            SurveyError: It cannot be written, or the memory is too small for a batch.
        """
        parts = parts_of(images, self._plan.facts["batch"])
        bad: list[tuple[int, str]] = []
        at = 0
        try:
            with (
                committed(self._plan.shard_file(number)) as file,
                self._arrays(number, len(images)) as arrays,
            ):
                room = _ROOM * (len(self._layouts) * (14 + len(parts)) + 2 * len(parts) + 16)
                writer = TensorFile(file, room)
                tallies = {
                    label: Tally.empty(layout.channels, self._top)
                    for label, layout in self._layouts.items()
                }
                for part in parts:
                    batch, at = next(batches), at + 1
                    bad += batch.bad
                    self._count(part, batch, writer, at - 1, tallies, arrays, images.start)
                for place, tally in enumerate(tallies.values()):
                    for name, tensor in tally.tensors().items():
                        writer.add(f"{place}/{name}", tensor)
                writer.close({"images": [images.start, images.stop], "bad": bad})
        except _BatchFailed as failure:
            for _ in parts[at:]:
                bad += next(batches).bad
            note = {"images": [images.start, images.stop], "reason": str(failure)}
            write_json(self._plan.failed_file(number), note)
            return ShardDone(number, len(images), bad, str(failure))
        self._plan.failed_file(number).unlink(missing_ok=True)
        return ShardDone(number, len(images), bad)

    def _arrays(self, number: int, images: int) -> AbstractContextManager[ZarrWriter | None]:
        """Writes what is kept where that is in arrays; it is there before the shard's own file."""
        if not self._zarr:
            return nullcontext()
        plan = self._plan
        layouts = list(self._layouts.values())
        return ZarrWriter(plan.arrays_folder(number), layouts, images, plan.facts["batch"])

    def _count(
        self,
        part: range,
        batch: Batch,
        writer: TensorFile,
        at: int,
        tallies: dict[str, Tally],
        arrays: ZarrWriter | None,
        first: int,
    ) -> None:
        """Runs a batch, counts it in, and writes what is kept of it."""
        left_out = {number for number, _ in batch.bad}
        rows = np.array([number for number in part if number not in left_out], dtype=np.int64)
        writer.add(f"rows/{at}", torch.from_numpy(rows))
        if not len(rows):
            return
        chosen = torch.from_numpy(rows - part.start)
        found = self._answers(part, batch.images)
        for place, (label, layout) in enumerate(self._layouts.items()):
            tensor = found.pop(label)
            if left_out:
                tensor = tensor[chosen.to(tensor.device)]
            kept = pooled = tallies[label].add(layout.values(tensor), rows)
            if self._keep != "none":
                kept = tensor if self._keep == "whole" else pooled
                kept = kept if self._dtype is None else kept.to(self._dtype)
                if arrays is None:
                    writer.add(f"{place}/kept/{at}", kept)
                else:
                    arrays.add(place, part.start - first, len(part), chosen, kept)

    def _answers(self, part: range, images: Tensor) -> dict[str, Tensor]:
        """What the layers give for a batch; a second try where the model fails."""
        with suppress(Exception):  # whatever a model does; the second try says it
            return self._run(images)
        try:
            return self._run(images)
        except DeviceError as error:
            raise self._too_large(images, error) from error
        except Exception as error:
            layer = failing_layer(self._model.module, error)
            place = "" if layer is None else f" in layer '{layer}'"
            raise _BatchFailed(
                f"Images {part.start} to {part.stop - 1}: the model failed{place}: "
                f"{fault_text(error)}"
            ) from error

    def _run(self, images: Tensor) -> dict[str, Tensor]:
        capture = self._capture
        device = self._model.device
        capture.clear()
        try:
            with torch.no_grad(), out_of_memory(f"running {self._model.name}", device):
                args, kwargs = feed(self._model, images)
                capture.run(*args, **kwargs)
            found = {a.label: a for a in capture.activations}
        finally:
            capture.clear()
        for label, layout in self._layouts.items():
            if label not in found:
                raise SurveyError(f"{label} did not run for this batch, as it did at first.")
            _check(found[label], layout, len(images))
        if len(found) > len(self._layouts):
            more = next(label for label in found if label not in self._layouts)
            raise SurveyError(f"{more} ran for this batch, and not at first.")
        return {label: one.tensor for label, one in found.items()}

    def _too_large(self, images: Tensor, error: DeviceError) -> SurveyError:
        """Which batch would fit, as a sentence."""
        size = len(images) // 2
        while size:
            with suppress(Exception):  # it fits, or the next is tried
                self._run(images[:size])
                break
            size //= 2
        fits = f"A batch of {size} fits: batch={size}, in another folder." if size else None
        return SurveyError(
            f"{error.message.rstrip('.')}, with a batch of {len(images)}.",
            remedy=fits,
            code="batch-too-large",
            details={"fits": size},
        )


def _check(found: Activation, layout: Layout, count: int) -> None:
    if found.shape != (count, *layout.shape):
        raise SurveyError(
            f"{layout.label} gives {list(found.shape)} for {count} images, and gave "
            f"{[1, *layout.shape]} for one."
        )


def parts_of(images: range, size: int) -> list[range]:
    """The batches of a shard.

    Examples:
        >>> parts_of(range(10, 15), 2)
        [range(10, 12), range(12, 14), range(14, 15)]
    """
    return [images[at : at + size] for at in range(0, len(images), size)]

"""Targets: the one number of a model's answer that is explained.

What a target is written as, in Python, on the command line and in files:

===============================  ==================================================================
written                          the number
===============================  ==================================================================
None, "likeliest"                the score of the likeliest class; of a detection the likeliest
                                 box, of a segmentation the mask of the class with the most places
281, "281", "tabby"              the score of a class, as the model gives it (before a softmax
                                 that is not in the model); of a detection the best box of that
                                 class, of a segmentation the mask of that class
"box 2", BoxTarget(2)            the score of a box, counted as the model gives them
"mask of cat", MaskTarget("cat") a class's scores, summed over the places where it is the likeliest
"channel 31 of features.28",     the mean of a channel over its places in the last call of a layer
ChannelTarget("features.28", 31)
"channel 31 of features.28 at    its value at row 5, column 7
5, 7", ChannelTarget("features.28", 31, (5, 7))
a function                       what it gives for the model's output of one image, as a tensor
a list of these                  each by itself
===============================  ==================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hookviz._text import names_text
from hookviz.activation import Activation
from hookviz.capture import change_leaves, select_layers
from hookviz.errors import HookvizError, LayerError, closest
from hookviz.explanation._checks import check_whole
from hookviz.explanation._forward import Answer
from hookviz.explanation._places import reading_of
from hookviz.models import LoadedModel, class_scores, classes_in, describe

LIKELIEST = "likeliest"


@dataclass(frozen=True)
class ChannelTarget:
    """A channel of a later layer.

    Attributes:
        layer: The layer.
        channel: Its channel (feature of tokens, number of a vector), from 0.
        place: (row, column) in the maps of the layer; None is the mean over all places.
    """

    layer: str
    channel: int
    place: tuple[int, int] | None = None


@dataclass(frozen=True)
class BoxTarget:
    """The score of a box that a detection model found.

    Attributes:
        box: Which one, from 0, in the order in which the model gives them.
    """

    box: int = 0


@dataclass(frozen=True)
class MaskTarget:
    """A class's scores, summed over the places of a segmentation where it is the likeliest.

    Attributes:
        of: The class, by number or name.
    """

    of: int | str


TargetLike: TypeAlias = (
    int
    | str
    | ChannelTarget
    | BoxTarget
    | MaskTarget
    | Callable[[Any], Tensor]
    | Sequence[Any]
    | None
)
"""What ``target=`` takes; the table above says what each means."""


@dataclass(frozen=True, eq=False)
class SettledTarget:
    """One number, found out for one image.

    Attributes:
        name: In words, for titles and files: "class 281 (tabby)".
        written: As ``target=`` takes it, as a text; "" for a function, which no text names.
        scores: Gives (N,) the number for each of the N images of an answer, in autograd's graph.
    """

    name: str
    written: str
    scores: Callable[[Answer], Tensor]

    def score(self, answer: Answer) -> Tensor:
        """(N,) the number for each image.

        Raises:
            HookvizError: It is not one number for each image.
        """
        with torch.enable_grad():
            found = self.scores(answer)
        if found.shape != (answer.count,):
            raise HookvizError(
                f"The target ({self.name}) must be one number for each image, not a tensor "
                f"{tuple(found.shape)} for {answer.count}."
            )
        return found


@dataclass(frozen=True, eq=False)
class Wanted:
    """A target that was asked for; which number it is may depend on the model's answer.

    Attributes:
        settle: Gives the target for the answer to the one image that is explained.
        layer: The layer that it reads; None for the model's output.
        placed: Whether it needs to know where the layer's places lie in the image.
    """

    settle: Callable[[Answer], SettledTarget]
    layer: str | None = None
    placed: bool = False


def wanted_targets(model: LoadedModel, target: TargetLike) -> tuple[Wanted, ...]:
    """What is asked for, as far as it can be checked before the model runs.

    Args:
        model: The model.
        target: See the table above.

    Raises:
        HookvizError: It is no target.
        LayerError: It names a layer that is not there.
    """
    if isinstance(target, Sequence) and not isinstance(target, str):
        if not target:
            raise HookvizError("target is an empty list; name at least one target.")
        return tuple(_wanted(model, one) for one in target)
    return (_wanted(model, target),)


def _wanted(model: LoadedModel, target: Any) -> Wanted:
    if isinstance(target, str):
        target = _read(model, target)
    if isinstance(target, Tensor) and target.dim() == 0:
        target = target.item()
    if target is None:
        return Wanted(partial(_likeliest, model))
    if isinstance(target, ChannelTarget):
        return _channel(model, target)
    if isinstance(target, BoxTarget):
        check_whole("box", target.box, 0)
        return Wanted(partial(_box, model, target.box))
    if isinstance(target, MaskTarget):
        return Wanted(partial(_mask, model, target.of))
    if isinstance(target, str) or (hasattr(target, "__index__") and not isinstance(target, bool)):
        return Wanted(partial(_class, model, target if isinstance(target, str) else int(target)))
    if callable(target):
        return Wanted(lambda _answer: _function(target))
    raise HookvizError(
        f"target is {target!r:.80}; it must be a class (number or name), 'channel C of LAYER', "
        "'box N', 'mask of CLASS', a function of the output, a list of these, or None."
    )


_NUMBER = r"(\d+)"
_WRITTEN = re.compile(
    rf"channel {_NUMBER} of (.*?)(?: at {_NUMBER} *, *{_NUMBER})?|box {_NUMBER}|mask of (.+)",
    re.IGNORECASE,
)


def _read(model: LoadedModel, text: str) -> Any:
    """A text as what it stands for; names of classes go first."""
    plain = " ".join(text.split())
    if any(_same(plain, name) for name in model.categories):
        return plain
    if plain.lower() == LIKELIEST:
        return None
    if plain.isdecimal():
        return int(plain)
    found = _WRITTEN.fullmatch(plain)
    if found is None:
        return plain
    channel, layer, row, column, box, of = found.groups()
    if channel is not None:
        place = None if row is None else (int(row), int(column))
        return ChannelTarget(layer, int(channel), place)
    if box is not None:
        return BoxTarget(int(box))
    return MaskTarget(int(of) if of.isdecimal() else of)


def _same(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()


# Classes


def _likeliest(model: LoadedModel, answer: Answer) -> SettledTarget:
    if _segments(answer.output):
        maps = _maps(answer.output)
        shares = torch.bincount(maps[0].detach().argmax(0).flatten(), minlength=maps.shape[1])
        # Class 0 of a segmentation is the background, where there is anything else.
        order = shares.argsort(descending=True, stable=True).tolist()
        best = next((i for i in order if i and shares[i]), order[0])
        return _mask(model, int(best), answer)
    if _detects(answer.output):
        return _box(model, 0, answer)
    scores = _class_scores(model, answer)
    return _class(model, int(scores[0].detach().argmax()), answer)


def _class(model: LoadedModel, which: int | str, answer: Answer) -> SettledTarget:
    if _segments(answer.output):
        return _mask(model, which, answer)
    if _detects(answer.output):
        index = class_index(model.categories, which, len(model.categories))
        labels = answer.output[0]["labels"].tolist()
        if index not in labels:
            raise HookvizError(
                f"The model found no box of {_class_name(model.categories, index)}.",
                remedy=f"Boxes were found of {_found(model, labels)}."
                if labels else "It found no box at all.",
            )  # fmt: skip
        return _box(model, labels.index(index), answer)
    scores = _class_scores(model, answer)
    count = scores.shape[1]
    names = model.categories if len(model.categories) == count else ()
    index = class_index(names, which, count)

    def of(answer: Answer) -> Tensor:
        return _class_scores(model, answer)[:, index]

    return SettledTarget(_class_name(names, index), str(index), of)


def _found(model: LoadedModel, labels: Iterable[int]) -> str:
    return names_text(dict.fromkeys(_class_name(model.categories, i) for i in labels))


def _class_scores(model: LoadedModel, answer: Answer) -> Tensor:
    """(N, classes)."""
    count = classes_in(model, answer.output)
    scores = class_scores(answer.output)
    if scores is None or count < 1:
        why = model.no_classifier or f"The model gives no classes but {describe(answer.output)}."
        raise HookvizError(
            why,
            remedy="Explain a channel of a later layer, for example target='channel 0 of "
            f"{_last_layer(model)}', or a function of the output.",
            code="no-classes",
        )
    return scores


def _last_layer(model: LoadedModel) -> str:
    """A layer late in the model, as an example."""
    names = [
        n for n, m in model.module.named_modules() if next(m.parameters(False), None) is not None
    ]
    return names[-1] if names else "LAYER"


def class_index(names: Sequence[str], which: int | str, count: int) -> int:
    """The number of a class.

    Args:
        names: Names of the classes; () where they have none.
        which: Number or name, in capitals or not.
        count: How many classes there are.

    Raises:
        HookvizError: There is no such class, or several have that name.

    Examples:
        >>> class_index(("tench", "goldfish"), "Goldfish", 2)
        1
    """
    if isinstance(which, int):
        if not 0 <= which < count:
            raise HookvizError(
                f"There is no class {which}: the model has {count}, 0 to {count - 1}.",
                code="no-such-class",
                details={"class": which, "count": count},
            )
        return which
    if not names:
        raise HookvizError(
            f"The model's classes have no names, so there is no {which!r:.80}.",
            remedy=f"Name the class by its number, 0 to {count - 1}, or give the model "
            "categories=[...].",
            code="no-such-class",
        )
    found = [i for i, name in enumerate(names) if _same(name, which)]
    if len(found) == 1:
        return found[0]
    if found:
        raise HookvizError(
            f"{len(found)} classes are called {which!r}: {', '.join(map(str, found))}.",
            remedy="Name the one that is meant by its number.",
        )
    inside = [name for name in names if which.casefold() in name.casefold()]
    offer = dict.fromkeys([*closest(which, names), *inside][:5])
    raise HookvizError(
        f"No class is called {which!r:.80}.",
        remedy=f"Close to it are {names_text(offer)}." if offer else "See model.categories.",
        code="no-such-class",
        details={"class": which, "closest": list(offer)},
    )


def _class_name(names: Sequence[str], index: int) -> str:
    return f"class {index} ({names[index]})" if index < len(names) else f"class {index}"


# Segmentation


def _maps(output: Any) -> Tensor:
    """(N, classes, H, W) of a segmentation."""
    found = output.get("out") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if isinstance(found, Tensor) and found.dim() == 4:
        return found
    raise HookvizError(f"The model gives no masks but {describe(output)}.")


def _segments(output: Any) -> bool:
    return isinstance(output, Mapping) and "out" in output


def _mask(model: LoadedModel, which: int | str, answer: Answer) -> SettledTarget:
    maps = _maps(answer.output)
    count = maps.shape[1]
    names = model.categories if len(model.categories) == count else ()
    index = class_index(names, int(which) if not isinstance(which, str) else which, count)
    name = _class_name(names, index)
    inside = maps[0].detach().argmax(0) == index
    if not bool(inside.any()):
        there = maps[0].detach().argmax(0).flatten().tolist()
        raise HookvizError(
            f"The mask of {name} is empty: it is the likeliest at no place.",
            remedy=f"Likeliest somewhere are {_found(model, there)}.",
        )

    def of(answer: Answer) -> Tensor:
        return (_maps(answer.output)[:, index] * inside).sum((1, 2))

    return SettledTarget(f"mask of {name}", f"mask of {index}", of)


# Detection


def _detects(output: Any) -> bool:
    first = output[0] if isinstance(output, Sequence) and output else None
    return isinstance(first, Mapping) and {"boxes", "labels", "scores"} <= set(first)


def _box(model: LoadedModel, box: int, answer: Answer) -> SettledTarget:
    if not _detects(answer.output):
        raise HookvizError(f"The model gives no boxes but {describe(answer.output)}.")
    found = answer.output[0]
    count = len(found["scores"])
    if box >= count:
        legal = f"it found {count}, 0 to {count - 1}" if count else "it found none"
        raise HookvizError(f"There is no box {box} in the model's answer: {legal}.")
    label, place = int(found["labels"][box]), found["boxes"][box].detach().clone()
    score = found["scores"][box].detach().clone()

    def of(answer: Answer) -> Tensor:
        return torch.stack([_score_of_box(one, label, place, score) for one in answer.output])

    return SettledTarget(f"box {box} of {_class_name(model.categories, label)}", f"box {box}", of)


def _score_of_box(found: Mapping[str, Tensor], label: int, place: Tensor, score: Tensor) -> Tensor:
    """The score of the box that most overlaps the one meant; 0 where none of its class does.

    In the answer to the same image that is the very box; to a changed one, its like.
    """
    mine = found["labels"] == label
    if not bool(mine.any()):
        return torch.zeros_like(score)
    overlap = _overlap(found["boxes"].detach()[mine], place)
    best = int(overlap.argmax())
    if float(overlap[best]) < 0.5:
        return torch.zeros_like(score)
    return found["scores"][mine][best]


def _overlap(boxes: Tensor, box: Tensor) -> Tensor:
    """(N,) area of intersection over area of union of (N, 4) boxes and (4,) one."""
    low, high = torch.maximum(boxes[:, :2], box[:2]), torch.minimum(boxes[:, 2:], box[2:])
    both = (high - low).clamp(min=0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (box[2:] - box[:2]).prod()
    return both / (areas - both).clamp(min=1e-12)


# Channels of later layers


def _channel(model: LoadedModel, target: ChannelTarget) -> Wanted:
    check_whole("channel", target.channel, 0)
    if target.place is not None:
        place = tuple(target.place)
        if len(place) != 2:
            raise HookvizError(f"place is {target.place!r:.80}; it must be (row, column).")
        for part in place:
            check_whole("place", part, 0)
        target = replace(target, place=place)
    found = list(select_layers(model.module, [target.layer]).values())
    if len(found) != 1:
        raise LayerError(
            f"The target names {len(found)} layers ({names_text(found)}); it must name one."
        )
    target = replace(target, layer=found[0])
    placed = target.place is not None
    return Wanted(lambda answer: _settled_channel(target, answer), target.layer, placed)


def _settled_channel(target: ChannelTarget, answer: Answer) -> SettledTarget:
    text = f"channel {target.channel} of {target.layer}"
    if target.place is not None:
        text += " at {}, {}".format(*target.place)

    def of(answer: Answer) -> Tensor:
        record = answer.read.get(target.layer)
        if record is None:
            why = answer.missing.get(target.layer, "it gave no tensor")
            raise LayerError(f"The target's layer '{target.layer}' has no output: {why}.")
        return channel_scores(record, target, answer.count)

    of(answer)
    return SettledTarget(text, text, of)


def channel_scores(record: Activation, target: ChannelTarget, count: int) -> Tensor:
    """(N,) the channel's mean, or its value at the place."""
    tensor = record.tensor
    shape = tuple(tensor.shape)
    found = reading_of(record, count)
    if found is None:
        raise LayerError(
            f"Which axis of '{record.layer}', of shape {shape}, holds channels is not known.",
            remedy="Give a function of the output as the target.",
        )
    reading, axis = found
    if target.channel >= shape[axis]:
        raise LayerError(
            f"There is no channel {target.channel} in '{record.layer}', of shape {shape}: its "
            f"channels are 0 to {shape[axis] - 1}."
        )
    maps = tensor.select(axis, target.channel)
    if target.place is None:
        return maps.reshape(count, -1).mean(1)
    row, column = target.place
    letters = reading.axes[1:axis] + reading.axes[axis + 1 :]
    places = None if record.axes is None else record.axes.places
    if letters == "T" and places is not None and places.grid is not None and places.frames == 1:
        maps = maps[:, places.apart :].reshape(count, *places.grid)
    elif letters != "HW":
        raise LayerError(
            f"'{record.layer}', of shape {shape}, has no rows and columns to take a place from.",
            remedy="Leave the place out: the target is then the mean over all.",
        )
    rows, columns = maps.shape[1:]
    if row >= rows or column >= columns:
        raise LayerError(
            f"There is no place {row}, {column} in '{record.layer}': it has {rows} rows and "
            f"{columns} columns."
        )
    return maps[:, row, column]


# Functions


def _function(function: Callable[[Any], Any]) -> SettledTarget:
    name = getattr(function, "__name__", type(function).__name__)

    def of(answer: Answer) -> Tensor:
        if answer.count == 1:
            return _number(function(answer.output), name)
        each = [_number(function(_one(answer.output, i, answer.count)), name)
                for i in range(answer.count)]  # fmt: skip
        return torch.cat(each)

    return SettledTarget(
        f"function {name}" if name != "<lambda>" else "a function of the output", "", of
    )


def _number(found: Any, name: str) -> Tensor:
    """(1,) what a function gave."""
    if not isinstance(found, Tensor):
        raise HookvizError(
            f"The target {name} must give a tensor of one number, not {type(found).__name__}.",
            remedy="Compute it of the output with torch, without .item() and numpy.",
        )
    if found.numel() != 1:
        raise HookvizError(
            f"The target {name} gives {found.numel()} numbers, a tensor {tuple(found.shape)}; it "
            "must give one.",
            remedy="Take one of them or their sum, for example lambda output: output[0, 5].",
        )
    return found.reshape(1)


def _one(output: Any, index: int, count: int) -> Any:
    """The output for one image of several."""
    if isinstance(output, list) and len(output) == count:
        return output[index : index + 1]
    return change_leaves(
        output, lambda _, t: t[index : index + 1] if t.dim() and t.shape[0] == count else t
    )

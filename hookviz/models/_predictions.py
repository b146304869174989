"""What a model says the image shows: classes, a summary, or why there is neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookviz._tensors import dense
from hookviz._text import error_text
from hookviz.errors import ModelError
from hookviz.models._loaded_model import LoadedModel
from hookviz.models._modules import last_layer

DETECTION_SCORE = 0.5
"""Objects below this score are counted, not named."""


@dataclass(frozen=True)
class Predictions:
    """What a model says of one image.

    Attributes:
        items: (class index, class name, probability in 0…1), most probable first; () where the
            model is not a classifier.
        reason: Why ``items`` is empty; "" where it is not.
        summary: Text on a segmentation, a detection or a flow; "" for classifiers.
        note: What to hold against the items: "UNTRAINED …"; "" for nothing.
    """

    items: tuple[tuple[int, str, float], ...] = ()
    reason: str = ""
    summary: str = ""
    note: str = ""

    def __str__(self) -> str:
        if self.items:
            lines = [f"{100 * p:5.1f} %  {label}" for _, label, p in self.items]
            return "\n".join([*([self.note] if self.note else []), *lines])
        return self.summary or self.reason


def predictions(model: LoadedModel, output: Any, k: int = 5) -> Predictions:
    """The top classes of a classifier, or a summary of another model's output.

    Args:
        model: The model that gave the output.
        output: What its forward returned: logits (N, classes) or probabilities, something with
            ``logits``, torchvision's dicts of segmentation and detection, a list of flows; None
            where the forward was ended early.
        k: At most this many classes.

    Returns:
        Of the first image of the batch. Probabilities are the softmax of the logits in float32;
        an output that is already non-negative and sums to one is taken as it is.

    Raises:
        ModelError: ``k`` is not a number of classes.

    Examples:
        >>> from hookviz.models import load_model
        >>> net = load_model(torch.nn.Identity(), categories=("cat", "dog"))
        >>> predictions(net, torch.tensor([[2.0, 0.0]])).items[0][1]
        'cat'
    """
    note = "" if model.trained else "UNTRAINED: the probabilities mean nothing."
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ModelError(f"k is the number of classes to show, 1 or more, not {k!r}.")
    if output is None:
        return Predictions(reason="The model did not run to its end, so it gave no output.")
    if model.no_classifier:
        return Predictions(reason=model.no_classifier)
    try:
        segments = isinstance(output, Mapping) and "out" in output
        task = "segmentation" if segments else model.task
        if task not in _SUMMARIES:
            return _classes(model, output, k, note)
        summarise, what, reason = _SUMMARIES[task]
        summary = summarise(model, output)
        if not summary:
            return Predictions(reason=f"The output is not {what} but {describe(output)}.")
        return Predictions(reason=reason, summary=summary, note=note)
    except Exception as error:  # noqa: BLE001 - a model may give anything, and its maps are there
        first = error_text(error)[:160]
        return Predictions(reason=f"The output cannot be read as classes ({first}).")


def class_scores(output: Any) -> Tensor | None:
    """The scores in a classifier's output, as the classifier gave them.

    Args:
        output: What a forward returned: (N, classes), (N, classes, 1, 1) or (classes,), bare or
            under the name ``logits``, or as the first of several.

    Returns:
        (N, classes), in the output's dtype, in its place in autograd's graph; None where there are
        none.
    """
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif not isinstance(output, Tensor):
        # GoogLeNet and Inception in train mode, Hugging Face's outputs; else a plain tuple.
        named = getattr(output, "logits", None)
        first = output[0] if isinstance(output, Sequence) and output else None
        output = named if named is not None else first
    if not isinstance(output, Tensor) or output.is_complex() or output.dtype == torch.bool:
        return None
    if output.is_quantized:
        output = output.dequantize()
    if output.ndim == 4 and output.shape[2:] == (1, 1):  # a convolution as the classifier
        output = output.flatten(1)
    if output.ndim == 1:
        output = output[None]
    return output if output.ndim == 2 and output.shape[0] else None


def classes_in(model: LoadedModel, output: Any) -> int:
    """How many classes a model's output tells apart; 0 where nothing says that it holds classes."""
    scores = class_scores(output)
    count = 0 if scores is None else scores.shape[1]
    known = model.task != "unknown" or model.categories or last_layer(model.module)[1] == count
    return count if known and not model.no_classifier else 0


def _classes(model: LoadedModel, output: Any, k: int, note: str) -> Predictions:
    found = class_scores(output)
    scores = None if found is None else dense(found)[0].to("cpu", torch.float32)
    count = 0 if scores is None else scores.numel()
    if scores is None:
        reason = f"The output is not a classification but {describe(output)}."
    elif count < 2:
        reason = f"The output holds {count} number{'s' * (count != 1)}, no classes."
    elif not classes_in(model, output):
        reason = f"The output is {describe(output)}, and nothing says that these are classes."
    elif not torch.isfinite(scores).all():
        reason = "The classifier's output holds NaN or infinite values."
    else:
        done = bool((scores >= 0).all()) and abs(float(scores.sum()) - 1) < 1e-3
        top = (scores if done else scores.softmax(0)).topk(min(k, count))
        names = model.categories if len(model.categories) == count else ()
        chosen = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return Predictions(tuple((i, _name(names, i), p) for i, p in chosen), note=note)
    return Predictions(reason=reason)


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else f"class {index}"


def _shares(model: LoadedModel, output: Any) -> str:
    maps = output.get("out") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if not isinstance(maps, Tensor) or maps.ndim != 4 or maps.shape[1] < 2:
        return ""
    classes = maps[0].detach().float().argmax(0).flatten().cpu()
    shares = torch.bincount(classes, minlength=maps.shape[1]) / classes.numel()
    order = [int(i) for i in shares.argsort(descending=True, stable=True) if shares[i] > 0]
    parts = [f"{_name(model.categories, i)} {100 * float(shares[i]):.1f} %" for i in order[:5]]
    more = f" and {len(order) - 5} more" if len(order) > 5 else ""
    return f"Share of the pixels: {', '.join(parts)}{more}."


def _objects(model: LoadedModel, output: Any) -> str:
    first = output[0] if isinstance(output, Sequence) and output else output
    if not (isinstance(first, Mapping) and {"labels", "scores"} <= set(first)):
        return ""
    scores, labels = first["scores"].tolist(), first["labels"].tolist()
    found = sorted(zip(scores, labels, strict=True), reverse=True)
    sure = [(score, int(label)) for score, label in found if score >= DETECTION_SCORE]
    names = [f"{_name(model.categories, label)} {score:.2f}" for score, label in sure[:10]]
    more = f" and {len(sure) - 10} more" if len(sure) > 10 else ""
    text = f"{len(sure)} object{'s' * (len(sure) != 1)} with a score of {DETECTION_SCORE} or more"
    below = len(found) - len(sure)
    return f"{text}{': ' if names else ''}{', '.join(names)}{more}; {below} below."


def _shifts(_: LoadedModel, output: Any) -> str:
    last = output[-1] if isinstance(output, Sequence) and output else output
    if not isinstance(last, Tensor) or last.ndim != 4 or last.shape[1] != 2:
        return ""
    length = last[0].detach().float().norm(dim=0)
    mean, most = float(length.mean()), float(length.max())
    return f"Shift between two equal frames: mean {mean:.2f}, largest {most:.2f} pixels."


_Summary = tuple[Callable[[LoadedModel, Any], str], str, str]
_SUMMARIES: dict[str, _Summary] = {
    "segmentation": (
        _shares, "a segmentation", "The model gives a class to every pixel, not to the image.",
    ),
    "detection": (
        _objects, "a detection", "The model finds objects, it does not classify the image.",
    ),
    "optical_flow": (
        _shifts, "an optical flow", "The model gives a shift of every pixel, no classes.",
    ),
}  # fmt: skip
"""By task: the summary of an output, "" where it is none; what it would be; why no classes."""


def describe(output: Any) -> str:
    """An output in a few words, for sentences: "a tensor (1, 512, 7, 7)"."""
    if isinstance(output, Tensor):
        return "a nested tensor" if output.is_nested else f"a tensor {tuple(output.shape)}"
    kind = type(output).__name__
    text = f"an {kind}" if kind[:1].lower() in "aeiou" else f"a {kind}"
    if isinstance(output, Mapping):
        return f"{text} with {', '.join(map(str, list(output)[:4])) or 'nothing'}"
    return f"{text} of {len(output)}" if isinstance(output, list | tuple) else text

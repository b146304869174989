"""Edits of a run: a layer's value for another image, and the edits of a file made again."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from torch import Tensor, nn

from hookviz.capture import (
    Edit,
    EditPart,
    Layers,
    Site,
    edit,
    edit_from_json,
    patch,
    zero,
)
from hookviz.errors import CaptureError, HookvizError
from hookviz.images import Picture, read_image

_FROM_IMAGE = "patch_from"


@dataclass(frozen=True)
class ImageEdit(Edit):
    """An edit that puts a layer's value for another image in the place of the current one.

    Attributes:
        image: The other image.
        part: Which part of the output.
    """

    image: Picture = field(kw_only=True, repr=False)
    part: EditPart = field(kw_only=True, repr=False)


def patch_from(image: Any, layers: Layers, **part: Unpack[EditPart]) -> ImageEdit:
    """A layer's output, or a part of it, becomes what it is for another image.

    The other image goes through the same model and preprocessing, without edits, when the run
    begins (activation patching, Meng et al. 2022, arXiv:2202.05262).

    Args:
        image: Anything that `read_image` takes.
        layers: Selectors of the layers.
        **part: ``channels``, ``place``, ``heads``, ``axis``, ``call``, ``leaf``: see
            `hookviz.capture.EditPart`.

    Returns:
        An edit for ``feature_maps(…, edits=[…])``; `hookviz.capture.edit` has no model to run the
        other image through and refuses it.

    Raises:
        ImageError: The image cannot be read.
        CaptureError: The part is not described so.

    Examples:
        >>> import hookviz
        >>> str(patch_from(hookviz.sample_image(), "features.28", channels=7))
        'features.28: set channel 7 to its value for chelsea.png'
    """
    picture = read_image(image)
    plain = zero(layers, **part)  # which knows how a part is described
    what = plain.text.removeprefix("zero ")
    recipe = {
        **(plain.recipe or {}),
        "edit": _FROM_IMAGE,
        "image": picture.name,
        "image_sha256": picture.sha256,
    }
    return ImageEdit(
        layers, "output", _needs_a_run, f"set {what} to its value for {picture.name}",
        plain.call, plain.leaf, plain.heads, recipe, image=picture, part=part,
    )  # fmt: skip


def _needs_a_run(tensor: Tensor, site: Site) -> Tensor:  # noqa: ARG001 - a change
    raise CaptureError(
        f"The value of '{site.layer}' for another image is not known here.",
        remedy="Use patch_from in feature_maps(…, edits=[…]).",
    )


def named(module: nn.Module, edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits with their layers named.

    Args:
        module: The model.
        edits: As the caller gave them.

    Raises:
        HookvizError: One is no edit, or of a gradient, or selects no layer.
    """
    given: Any = edits
    if isinstance(given, Edit) or not isinstance(given, Iterable):
        raise CaptureError(f"edits is a list of edits, not {type(given).__name__}.")
    each = tuple(given)
    layers = edit(module, *each).layers
    for one in each:
        if one.kind.endswith("gradient"):
            raise CaptureError(f"'{one}' edits a gradient, and a run has none.")
    return tuple(one.at(names) for one, names in zip(each, layers, strict=True))


def resolved(
    edits: Sequence[Edit], run: Callable[[Picture, Sequence[Edit]], object]
) -> tuple[Edit, ...]:
    """The edits with the values of other images found out.

    Args:
        edits: With their layers named.
        run: Runs the model on another image with edits that keep what they see.
    """
    others: dict[str, list[ImageEdit]] = {}
    for one in edits:
        if isinstance(one, ImageEdit):
            others.setdefault(one.image.sha256, []).append(one)
    stored: dict[int, dict[tuple[str, int, str], Tensor]] = defaultdict(dict)
    for same in others.values():
        run(same[0].image, [_keeping(one, stored[id(one)]) for one in same])
    return tuple(
        _putting(one, stored[id(one)]) if isinstance(one, ImageEdit) else one for one in edits
    )


def _keeping(one: Edit, kept: dict[tuple[str, int, str], Tensor]) -> Edit:
    def keep(tensor: Tensor, site: Site) -> Tensor:
        kept[site.layer, site.call, site.leaf] = tensor.detach().clone()
        return tensor

    return Edit(one.layers, one.kind, keep, one.text, one.call, one.leaf, one.heads)


def _putting(one: ImageEdit, kept: dict[tuple[str, int, str], Tensor]) -> Edit:
    def put(tensor: Tensor, site: Site) -> Tensor:
        stored = kept.get((site.layer, site.call, site.leaf))
        if stored is None:
            raise CaptureError(f"For {one.image.name}, there was no call {site.call} of {site}.")
        return patch(stored, site.layer, **one.part).change(tensor, site)

    return Edit(one.layers, one.kind, put, one.text, one.call, one.leaf, one.heads)


def edits_to_json(edits: Iterable[Edit]) -> str:
    """Edits as one line of JSON, for files; "" for none.

    An edit that holds a function or tensor is there by its text alone, so that a file says that it
    was made with it, and no run can be made from it.
    """
    records = []
    for one in edits:
        try:
            records.append(one.to_json())
        except CaptureError:
            records.append({"edit": None, "text": str(one)})
    return json.dumps(records, separators=(",", ":")) if records else ""


def edits_from_json(text: str, images: Iterable[Picture] = ()) -> tuple[Edit, ...]:
    """The edits that a file says.

    Args:
        text: What `edits_to_json` gave; nothing in it is taken for granted.
        images: Where the other images of `patch_from` are looked for, by their hash.

    Raises:
        HookvizError: It is no such text, holds an edit of a function or tensor, or another image
            is not at hand.

    Examples:
        >>> from hookviz.capture import scale
        >>> [str(one) for one in edits_from_json(edits_to_json([scale("conv1", 2.0, channels=3)]))]
        ['conv1: scale channel 3 by 2']
    """
    try:
        records = json.loads(text) if text else []
    except (ValueError, RecursionError) as error:
        raise CaptureError("The record of the edits is not JSON.") from error
    if not isinstance(records, list):
        raise CaptureError(f"The record of the edits is no list but {text!r:.80}.")
    there = {image.sha256: image for image in images}
    return tuple(_edit_of(record, there) for record in records)


def _edit_of(record: Any, images: dict[str, Picture]) -> Edit:
    if isinstance(record, dict) and record.get("edit", "") is None:
        raise CaptureError(
            f"The edit '{record.get('text')!s:.200}' holds a function or tensor of your own, which "
            "the file does not hold."
        )
    if not isinstance(record, dict) or record.get("edit") != _FROM_IMAGE:
        return edit_from_json(record)
    rest = {k: v for k, v in record.items() if k not in ("image", "image_sha256")}
    plain = edit_from_json({**rest, "edit": "zero"})
    picture = images.get(str(record.get("image_sha256")))
    if picture is None:
        raise HookvizError(
            f"The other image of an edit, '{record.get('image', '?')!s:.80}', is not at hand.",
            remedy="Pass it behind the first: reproduce(png, image=['first', 'other']).",
            code="image-not-at-hand",
        )
    keys = [key for key in EditPart.__annotations__ if key in rest]
    part: Any = {key: rest[key] for key in keys}
    if isinstance(part.get("place"), list):
        part["place"] = tuple(part["place"])
    return patch_from(picture, plain.layers, **part)

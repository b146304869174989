"""What an export's files and folders are called.

A layer, its call, leaf, kind and type may hold any characters. The names are such that every
common file system takes them, stay inside one folder, and differ from one another also where upper
and lower case are the same.

The rules, in the order in which they act:

1. Letters, digits and marks of any script and the characters ``. - + = @ ,`` and ``_`` stay; each
   run of others (slashes, spaces, colons, control characters, ...) becomes one ``-``. Leading
   dots and trailing dots go. The text is in Unicode's composed form (NFC).
2. A part that is too long (in UTF-8 bytes) is cut and ends with ``~`` and eight hexadecimal
   digits of the SHA-256 of the whole part.
3. A name that was given before, compared by compatibility form and case folding, gets ``~2``,
   ``~3``, ... before its ending.

A name starts with the order of execution, so that no name is one that Windows reserves.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import PurePosixPath, PureWindowsPath

from hookviz.activation import Activation
from hookviz.errors import ExportError

INPUT_NAME = "000_input.png"
MANIFEST_NAME = "manifest.json"
CONTACT_STEM = "000_contact"

# Some file systems (eCryptfs) take 143 bytes where most take 255. The ending "_grid_p123of456.png"
# and a distinguishing "~12" must fit beside the stem.
_STEM_BYTES = 112
_PART_BYTES = 24
_FOLDER_PART_BYTES = 48
_KEPT = frozenset(".-+=@,_")
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?")
_FORBIDDEN = frozenset('<>:"/\\|?*')


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _size(text: str) -> int:
    return len(text.encode("utf-8"))


def _shortened(text: str, limit: int, whole: str) -> str:
    """``text`` in at most ``limit`` bytes; what was cut is set apart by a hash of ``whole``."""
    if _size(text) <= limit:
        return text
    mark = f"~{_digest(whole)}"
    head = text.encode("utf-8")[: max(limit - len(mark), 0)].decode("utf-8", "ignore")
    return head.rstrip(". ") + mark


def clean(text: str, limit: int = _PART_BYTES) -> str:
    """One part of a file name, made of ``text``.

    Args:
        text: Any text: a layer's name, a type, the stem of an image's name.
        limit: Most UTF-8 bytes of the result; at least 10.

    Returns:
        A text without separators, control characters, leading or trailing dots; may be empty
        where ``text`` holds nothing else.

    Examples:
        >>> clean("features.2")
        'features.2'
        >>> clean("../../etc/passwd")
        'etc-passwd'
        >>> clean("a b: c?")
        'a-b-c'
    """
    kept: list[str] = []
    for char in unicodedata.normalize("NFC", text):
        if char in _KEPT or unicodedata.category(char)[0] in "LNM":
            kept.append(char)
        elif not kept or kept[-1] != "-":
            kept.append("-")
    # Dashes at the ends stand for dropped characters, and trailing dots vanish on Windows.
    cleaned = "".join(kept).strip(".-")
    return _shortened(cleaned, limit, text)


def activation_stem(
    activation: Activation, *, width: int = 3, several_runs: bool = False, view: str = ""
) -> str:
    """The beginning that all files of one activation share.

    ``<order>_<layer>[_run<r>][_call<c>of<n>][_leaf-<leaf>][_<kind>][_<view>]_<type>``: what is in
    brackets is there only where it says something (several runs, several calls, a nested value,
    something other than an output, another sample than the first).

    Args:
        activation: The record.
        width: Digits of the order of execution; more than 3 where an export holds more than 999
            calls, so that names sort as the layers ran.
        several_runs: The export holds more than one forward.
        view: More that the file shows, for example "sample3".

    Returns:
        At most 112 UTF-8 bytes.

    Examples:
        >>> import torch
        >>> relu = Activation("layer1.0.relu", 2, 2, 1, 27, "output", "", "ReLU", torch.zeros(1))
        >>> activation_stem(relu)
        '027_layer1.0.relu_call2of2_ReLU'
    """
    tail = f"_run{activation.run}" if several_runs else ""
    if activation.calls > 1:
        tail += f"_call{activation.call}of{activation.calls}"
    if activation.leaf:
        tail += f"_leaf-{clean(activation.leaf) or _digest(activation.leaf)}"
    if activation.kind != "output":
        tail += f"_{clean(activation.kind.replace('_', '-'))}"
    if view:
        tail += f"_{clean(view)}"
    type_part = clean(activation.module_type)
    if type_part:
        tail += f"_{type_part}"
    head = f"{activation.order:0{width}d}_"
    layer = "model" if activation.layer == "" else clean(activation.layer, limit=1_000)
    if not layer:  # a name of nothing but forbidden characters
        layer = f"layer~{_digest(activation.layer)}"
    left = _STEM_BYTES - _size(head) - _size(tail)
    stem = head + _shortened(layer, max(left, 10), activation.layer) + tail
    return _shortened(stem, _STEM_BYTES, f"{activation.layer}\0{stem}")


def page_ending(page: int, pages: int, ending: str = "png") -> str:
    """The ending of a grid's name; ``page`` counts from 0, the name from 1.

    Examples:
        >>> page_ending(0, 8)
        '_grid_p1of8.png'
    """
    return f"_grid_p{page + 1}of{pages}.{ending}"


def channel_ending(channel: int, channels: int) -> str:
    """The ending of a single channel's name, with as many digits as the last channel needs.

    Examples:
        >>> channel_ending(17, 64), channel_ending(17, 2048)
        ('_ch017.png', '_ch0017.png')
    """
    return f"_ch{channel:0{max(3, len(str(max(channels - 1, 0))))}d}.png"


def folder_name(moment: datetime, model: str, image: str) -> str:
    """The name of an export's folder.

    Args:
        moment: When it was made.
        model: The model's name.
        image: The image's name, with or without its ending.

    Examples:
        >>> folder_name(datetime(2026, 11, 4, 14, 22, 33, tzinfo=UTC), "vgg16", "dog.jpg")
        '20261104T142233Z_vgg16_dog'
    """
    stem = re.sub(r"\.[A-Za-z0-9]{1,5}$", "", re.split(r"[/\\]", image.rstrip("/\\"))[-1])
    parts = (
        clean(model, _FOLDER_PART_BYTES) or "model",
        clean(stem, _FOLDER_PART_BYTES) or "image",
    )
    return "_".join((f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}", *parts))


def is_forbidden(char: str) -> bool:
    """Whether some common system, or a zip, cannot have this character in a file's name."""
    return char in _FORBIDDEN or unicodedata.category(char)[0] == "C"


def checked_name(name: str) -> str:
    """A folder name that the user chose, if it is one plain name.

    Args:
        name: For example "my export".

    Returns:
        ``name`` unchanged.

    Raises:
        ExportError: It is empty, a path, "..", too long, or not a name on every common system.
    """
    if not isinstance(name, str):
        raise ExportError(f"name is {name!r:.80}; it must be a str: the new folder's name.")
    wrong_name = f"{name!r} cannot be the name of an export's folder"
    if not name or name in {".", ".."} or name != name.strip() or name.endswith("."):
        raise ExportError(
            f"{wrong_name}: it is empty, made of dots, or begins or ends with a space or a dot.",
            remedy="Choose one plain name such as 'my-export'.",
        )
    if len(PurePosixPath(name).parts) != 1 or len(PureWindowsPath(name).parts) != 1:
        raise ExportError(
            f"{wrong_name}: it is a path.",
            remedy="Give the folder that holds it separately, and one plain name here.",
        )
    wrong = sorted(set(filter(is_forbidden, name)))
    if wrong:
        raise ExportError(f"{wrong_name}: it holds {', '.join(map(repr, wrong))}.")
    if _RESERVED.fullmatch(name):
        raise ExportError(f"{wrong_name}: Windows reserves it.")
    if _size(name) > 200:
        raise ExportError(f"{wrong_name}: it has {_size(name)} bytes, and 200 are the most.")
    return name


class NameBook:
    """Gives each file of one folder a name of its own.

    Two names are the same where a file system that ignores case, or one that decomposes letters,
    would take them for the same.

    Args:
        taken: Names that are given already.

    Examples:
        >>> book = NameBook()
        >>> book.take("001_a", ".png"), book.take("001_A", ".png"), book.take("001_a", ".npz")
        ('001_a.png', '001_A~2.png', '001_a.npz')
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._keys = {self._key(name) for name in taken}

    @staticmethod
    def _key(name: str) -> str:
        # Folding can leave a composed letter where decomposing does not, so it is done twice.
        folded = unicodedata.normalize("NFKC", name).casefold()
        return unicodedata.normalize("NFKC", folded).casefold()

    def take(self, stem: str, ending: str) -> str:
        """``stem + ending``, set apart by ``~2``, ``~3``, ... where it was given before."""
        name, number = stem + ending, 1
        while self._key(name) in self._keys:
            number += 1
            name = f"{stem}~{number}{ending}"
        self._keys.add(self._key(name))
        return name

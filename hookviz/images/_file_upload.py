"""The value of an ipywidgets ``FileUpload``, of version 7 or 8 → names and bytes.

In: what that control holds. Out: files' names and bytes, nothing decoded. Must not know: widgets,
pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hookviz.errors import ImageError
from hookviz.images._picture import clean_name

__all__ = ["is_upload", "uploaded_file", "uploaded_files"]


def uploaded_files(value: Any) -> list[tuple[str, bytes]]:
    """The files in an ipywidgets ``FileUpload.value``, of version 7 or 8.

    Args:
        value: Version 8: a tuple of mappings with "name" and "content" (a memoryview). Version 7:
            a mapping from file name to a mapping with "content" (bytes), and the name again under
            "metadata". None, () and {} mean no file.

    Returns:
        Cleaned name and a copy of the bytes of each file, in the order given.

    Raises:
        ImageError: The value has another shape.

    Examples:
        >>> uploaded_files(({"name": "a.png", "content": memoryview(b"x")},))
        [('a.png', b'x')]
        >>> uploaded_files({"a.png": {"metadata": {"name": "a.png"}, "content": b"x"}})
        [('a.png', b'x')]
    """
    if value is None:
        return []
    if isinstance(value, Mapping):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        items = [(None, item) for item in value]
    else:
        raise ImageError(
            f"An upload's value is a tuple or a dict of files, not {type(value).__name__}."
        )
    files = []
    for key, item in items:
        if not isinstance(item, Mapping):
            raise ImageError(f"An uploaded file is a dict, not {type(item).__name__}.")
        details = item.get("metadata")
        inner = details.get("name") if isinstance(details, Mapping) else None
        label = clean_name(str(item.get("name") or inner or key or ""))
        content = item.get("content")
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise ImageError(
                f"The uploaded file '{label}' arrived without its bytes.",
                remedy="Files above about 10 MB are lost by this control: drop the file instead.",
            )
        files.append((label, bytes(content)))
    return files


def is_upload(value: Any) -> bool:
    """Whether this is the value of an ipywidgets ``FileUpload``, or one file of it.

    Examples:
        >>> is_upload(()), is_upload([1, 2]), is_upload({"content": b"x"})
        (True, False, True)
    """
    if isinstance(value, Mapping):
        return "content" in value or all(isinstance(v, Mapping) for v in value.values())
    return isinstance(value, (tuple, list)) and all(isinstance(v, Mapping) for v in value)


def uploaded_file(value: Any) -> tuple[str, bytes]:
    """The one file in a ``FileUpload.value`` of version 7 or 8, or an item of it.

    Args:
        value: See `uploaded_files`.

    Returns:
        Cleaned name and bytes.

    Raises:
        ImageError: There is no file or more than one in it, or it has another shape.
    """
    # A file may itself be called "content"; then what stands there is a mapping.
    single = (
        isinstance(value, Mapping)
        and "content" in value
        and not isinstance(value["content"], Mapping)
    )
    files = uploaded_files((value,) if single else value)
    if not files:
        raise ImageError(
            "No file has arrived in this upload.",
            remedy="Files above about 10 MB are lost by this control: drop the file on "
            "hookviz's app, or give its path.",
        )
    if len(files) > 1:
        names = ", ".join(f"'{name}'" for name, _ in files)
        raise ImageError(f"There are {len(files)} files in this upload: {names}; give one of them.")
    return files[0]

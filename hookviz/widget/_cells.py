"""Which notebook cell an app belongs to.

In: apps as they are made. Out: older apps of the same cell, closed. Must not know: what an app is,
beyond its ``close``.

Running a cell again leaves the app of its first run without a view, but with its thread and all
that it captured. JupyterLab names the cell in each request to the kernel.
"""

from __future__ import annotations

import weakref
from typing import Protocol

__all__ = ["current_cell", "take_cell"]


class _Closable(Protocol):
    def close(self) -> None: ...


_apps: dict[str, tuple[str, list[weakref.ref[_Closable]]]] = {}


def current_cell() -> tuple[str, str] | None:
    """The running cell and the request that runs it; None outside a notebook."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return None
    parent = kernel.get_parent("shell") or {}
    header = parent.get("header") or {}
    cell = (parent.get("metadata") or {}).get("cellId")
    if header.get("msg_type") != "execute_request" or not cell:
        return None
    return str(cell), str(header.get("msg_id", ""))


def take_cell(app: _Closable, cell: tuple[str, str] | None) -> None:
    """Registers an app with its cell and closes those of the cell's earlier runs.

    Args:
        app: The new app.
        cell: What `current_cell` gave.
    """
    if cell is None:
        return
    name, request = cell
    before, apps = _apps.get(name, ("", []))
    if before != request:
        for reference in apps:
            old = reference()
            if old is not None:
                old.close()
        apps = []
    _apps[name] = (request, [*apps, weakref.ref(app)])

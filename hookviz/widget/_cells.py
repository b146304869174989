"""The notebook that an app lives in: which cell made it, and the kernel's interrupt.

Running a cell again leaves the app of its first run without a view, but with its threads and all
that it captured. JupyterLab names the cell in each request to the kernel.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from typing import Any, Protocol


class _App(Protocol):
    def close(self) -> None: ...
    def cancel(self) -> bool: ...


_apps: dict[str, tuple[str, weakref.WeakSet[_App]]] = {}
_interruptible: weakref.WeakSet[_App] = weakref.WeakSet()


def interactive_shell() -> Any:
    """IPython's shell of this process, whose ``user_ns`` cells use; None where there is none."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()


def _kernel() -> Any:
    """The kernel that runs this process; None outside a notebook."""
    return getattr(interactive_shell(), "kernel", None)


def current_cell() -> tuple[str, str] | None:
    """The running cell and the request that runs it; None outside a notebook."""
    kernel = _kernel()
    parent = (kernel.get_parent("shell") if kernel is not None else None) or {}
    header = parent.get("header") or {}
    cell = (parent.get("metadata") or {}).get("cellId")
    if header.get("msg_type") != "execute_request" or not cell:
        return None
    return str(cell), str(header.get("msg_id", ""))


def cell_name(cell: tuple[str, str] | None) -> str:
    """What is the same for a cell in each kernel that runs it: its notebook and its id.

    Args:
        cell: What `current_cell` gave.

    Returns:
        A name; "" outside a notebook.
    """
    # Jupyter's server names the notebook in the kernel's environment.
    return "" if cell is None else f"{os.environ.get('JPY_SESSION_NAME', '')}#{cell[0]}"


def take_cell(app: _App, cell: tuple[str, str] | None) -> None:
    """Registers an app with its cell and closes those of the cell's earlier runs.

    Args:
        app: The new app.
        cell: What `current_cell` gave.
    """
    if cell is None:
        return
    name, request = cell
    before, apps = _apps.get(name, ("", weakref.WeakSet()))
    if before != request:
        for old in list(apps):
            old.close()
        apps = weakref.WeakSet()
    apps.add(app)
    _apps[name] = (request, apps)


def stop_on_interrupt(app: _App) -> None:
    """Has the kernel's interrupt (the ■ of the toolbar) cancel the app's job.

    ipykernel ignores the signal while no cell is running, which is when an app's job runs; it
    puts that handler back after each cell. Outside a notebook nothing is changed.

    Args:
        app: The app.
    """
    kernel = _kernel()
    idle = getattr(kernel, "saved_sigint_handler", None)
    if idle is None or threading.current_thread() is not threading.main_thread():
        return
    _interruptible.add(app)
    if idle is signal.SIG_IGN:
        kernel.saved_sigint_handler = _cancel_jobs


def _cancel_jobs(_signal: int, _frame: Any) -> None:
    for app in list(_interruptible):
        app.cancel()

"""What ``hookviz doctor`` looks at."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hookviz._text import bytes_text
from hookviz.errors import HookvizError
from hookviz.version import __version__

__all__ = ["Finding", "examine"]

_NEEDED = {
    "hookviz": ("torch", "torchvision", "matplotlib", "pillow", "ipywidgets", "anywidget"),
    "hookviz[lab]": ("jupyterlab", "ipykernel"),
}
# The front ends that JupyterLab must find: folder below share/jupyter/labextensions, package.
_FRONT_ENDS = {
    "@jupyter-widgets/jupyterlab-manager": "jupyterlab_widgets",
    "anywidget": "anywidget",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: Its name.
        good: Whether hookviz can work with it.
        found: What was found.
        remedy: What to do; "" where nothing is wrong.
    """

    what: str
    good: bool
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Looks at everything that hookviz needs; never raises for what is missing."""
    return [
        Finding("hookviz", True, f"{__version__}, Python {platform.python_version()}"),
        *_packages(),
        _device(),
        *_front_ends(),
        _cache(),
        _bundled_weights(),
    ]


def _packages() -> Iterator[Finding]:
    for extra, names in _NEEDED.items():
        for name in names:
            try:
                version = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                remedy = f"pip install '{extra}' in {sys.prefix}"
                yield Finding(name, False, "not installed", remedy)
                continue
            if name == "ipykernel" and version.startswith("7.0."):
                fault = f"{version} loses widget messages"
                yield Finding(name, False, fault, "pip install -U ipykernel")
            else:
                yield Finding(name, True, version)


def _device() -> Finding:
    try:
        import torch

        from hookviz.models import choose_device

        device = choose_device("auto")
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    except HookvizError as error:
        return Finding("device", False, error.message, error.remedy or "")
    except ImportError as error:
        return Finding("device", False, f"torch cannot be imported: {error}", "Install torch again")
    return Finding("device", True, f"{device} ({name})" if name != str(device) else name)


def _front_ends() -> Iterator[Finding]:
    """The widget's front end must lie where the JupyterLab *server* runs, not only the kernel."""
    for server, folders in _servers().items():
        for extension, package in _FRONT_ENDS.items():
            places = [folder / extension for folder in folders]
            place = next((p for p in places if (p / "package.json").is_file()), None)
            found, remedy = f"{place} ({server})", ""
            if place is None:
                found = f"not found where the server runs ({server})"
                remedy = f"pip install {package} there, then reload the page"
            yield Finding(f"{package} front end", place is not None, found, remedy)


def _servers() -> dict[str, list[Path]]:
    """Where servers look for front ends: beside this Python, and beside ``jupyter`` on the path."""
    try:
        from jupyter_core.paths import jupyter_path

        here = [Path(p) for p in jupyter_path("labextensions")]
    except ImportError:
        here = []
    tail = Path("share") / "jupyter" / "labextensions"
    here.append(Path(sys.prefix) / tail)
    servers = {"this environment": here}
    program = shutil.which("jupyter-lab")
    if program is not None:
        prefix = Path(program).resolve().parent.parent
        if prefix != Path(sys.prefix).resolve():
            servers[f"jupyter-lab on the path, {prefix}"] = [prefix / tail]
    return servers


def _cache() -> Finding:
    from hookviz.models import cache_folder, cached_weights

    name, folder = "torch's cache", cache_folder()
    parent = next((p for p in [folder, *folder.parents] if p.exists()), folder)
    try:
        files = cached_weights()
        fault = "" if os.access(parent, os.W_OK) and parent.is_dir() else "cannot be written"
    except (HookvizError, OSError) as error:
        files, fault = [], f"cannot be read: {error}"
    if fault:
        return Finding(name, False, f"{folder} {fault}", "Set TORCH_HOME to your own folder")
    total = bytes_text(sum(f.bytes for f in files))
    return Finding(name, True, f"{folder}: {len(files)} files, {total}")


def _bundled_weights() -> Finding:
    from hookviz.models import bundled_weights_ok

    good, sentence = bundled_weights_ok()
    return Finding("bundled VGG16", good, sentence, "" if good else "Install hookviz again")

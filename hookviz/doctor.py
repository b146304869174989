"""What ``hookviz doctor`` looks at."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from hookviz._text import bytes_text
from hookviz.errors import HookvizError
from hookviz.version import __version__

__all__ = ["Finding", "examine"]

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


def _packages() -> list[Finding]:
    findings = []
    for name, extra in [
        ("torch", ""),
        ("torchvision", ""),
        ("matplotlib", ""),
        ("pillow", ""),
        ("ipywidgets", ""),
        ("anywidget", ""),
        ("jupyterlab", "lab"),
        ("ipykernel", "lab"),
    ]:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wanted = f"hookviz[{extra}]" if extra else "hookviz"
            findings.append(
                Finding(name, False, "not installed", f"pip install '{wanted}' in {sys.prefix}")
            )
            continue
        if name == "ipykernel" and version.startswith("7.0."):
            findings.append(
                Finding(name, False, f"{version} loses widget messages", "pip install -U ipykernel")
            )
        else:
            findings.append(Finding(name, True, version))
    return findings


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


def _front_ends() -> list[Finding]:
    """The widget's front end must lie where the JupyterLab *server* runs, not only the kernel."""
    findings = []
    for server, folders in _servers().items():
        for extension, package in _FRONT_ENDS.items():
            places = [folder / extension for folder in folders]
            found = [p for p in places if (p / "package.json").is_file()]
            what = f"{package} front end"
            if found:
                findings.append(Finding(what, True, f"{found[0]} ({server})"))
            else:
                findings.append(
                    Finding(
                        what,
                        False,
                        f"not found where the server runs ({server})",
                        f"pip install {package} there, then reload the page",
                    )
                )
    return findings


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

    folder = cache_folder()
    parent = next((p for p in [folder, *folder.parents] if p.exists()), folder)
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        return Finding(
            "torch's cache",
            False,
            f"{folder} cannot be written",
            "Set TORCH_HOME to your own folder",
        )
    try:
        files = cached_weights()
    except (HookvizError, OSError) as error:
        return Finding("torch's cache", False, str(error), "Set TORCH_HOME to your own folder")
    total = bytes_text(sum(f.bytes for f in files))
    return Finding("torch's cache", True, f"{folder}: {len(files)} files, {total}")


def _bundled_weights() -> Finding:
    from hookviz.models import bundled_weights_ok

    good, sentence = bundled_weights_ok()
    return Finding("bundled VGG16", good, sentence, "" if good else "Install hookviz again")

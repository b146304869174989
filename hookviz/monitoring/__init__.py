"""A training watched: numbers of layers step by step, a probe image's maps, what goes wrong.

In: a module that a loop trains. Out: a `Monitor`: curves, tables, pictures, alerts, and a folder
that `open_monitor` reads, while the training runs as well. Must not know: the widget, the command
line; nor, outside the module of its adapter, any library that trains or tracks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from hookviz.errors import MonitorError
from hookviz.images import Preprocessing
from hookviz.monitoring._folder import SavedHistory
from hookviz.monitoring._history import QUANTITIES, Alert, PictureAt, TrainingHistory
from hookviz.monitoring._monitor import Monitor, OnAlert, TrainingWarning
from hookviz.monitoring._over_time import MapsOverTime

if TYPE_CHECKING:
    from hookviz.monitoring._lightning import LightningMonitor
    from hookviz.monitoring._tensorboard import ToTensorBoard
    from hookviz.monitoring._transformers import TrainerMonitor
    from hookviz.monitoring._wandb import ToWandb

__all__ = [
    "QUANTITIES",
    "Alert",
    "LightningMonitor",
    "MapsOverTime",
    "Monitor",
    "OnAlert",
    "PictureAt",
    "SavedHistory",
    "ToTensorBoard",
    "ToWandb",
    "TrainerMonitor",
    "TrainingHistory",
    "TrainingWarning",
    "monitor",
    "open_monitor",
]

# Each needs a library that few have all of; what is not asked for is not imported.
_ADAPTERS = {
    "LightningMonitor": ("_lightning", "lightning"),
    "ToTensorBoard": ("_tensorboard", "tensorboard"),
    "ToWandb": ("_wandb", "wandb"),
    "TrainerMonitor": ("_transformers", "transformers"),
}


def __getattr__(name: str) -> Any:
    if name not in _ADAPTERS:
        raise AttributeError(f"module 'hookviz.monitoring' has no attribute '{name}'")
    module, library = _ADAPTERS[name]
    try:
        found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ImportError as error:
        raise MonitorError(
            f"{name} needs {library}, which is not installed.", remedy=f"pip install {library}."
        ) from error
    globals()[name] = found
    return found


def monitor(
    model: nn.Module,
    layers: Any = None,
    *,
    every: int = 100,
    stats_every: int = 10,
    probe: Any = None,
    out: str | Path | None = None,
    updates: bool = True,
    on_alert: OnAlert = "warn",
    preprocess: Preprocessing | Callable[..., Any] | None = None,
    resume: bool = False,
    **options: Any,
) -> Monitor:
    """Watches layers of a model while a loop trains it.

    The loop stays as it is, but for a call of ``m.step()`` after ``optimizer.step()``. Nothing of
    the training changes: weights come out the same to the bit, no generator of random numbers
    moves, and no hook is left behind. Copies and pickles of the model have no hooks either.

    Measured are the forwards with gradients; those of one step (gradient accumulation) together.
    What a validation, the probe or the recomputation of gradient checkpointing runs is not counted.
    Statistics are taken in the layer's own dtype, accumulated in float32 at least, and on its
    device; they come over together once a measured step.

    Args:
        model: The module that is trained, also within ``DataParallel`` or
            ``DistributedDataParallel``, where rank 0 alone watches. Enter the block before the
            first call of a model that ``torch.compile`` was applied to.
        layers: Any selectors of `hookviz.capture.select_layers`; None is every module without
            children.
        every: Every how many steps the probe's maps and the filters of the layers are drawn;
            also before the first. Without ``layers`` up to eight convolutions are drawn. Their
            values are kept, too (float32: `layer1` of ResNet-18 at 224 pixels 0.8 MB a drawing);
            without ``out`` up to 256 MB, of which then every second step is let go.
        stats_every: Every how many steps the layers are measured; also in the first. 1 names the
            very step at which a NaN arose, and takes a few percent more time.
        probe: An image, anything that `read_image` takes; None draws nothing.
        out: A folder for all of it, see `open_monitor`; None keeps it in memory.
        updates: Also measure how far each step moves the weights. A copy of the watched weights is
            kept for it.
        on_alert: What an alert does beside being kept in ``m.alerts``: "warn" gives a
            `TrainingWarning`, "raise" raises a `MonitorError` from ``step()``, "record" nothing; a
            function is called with the `Alert`.
        preprocess: In place of the preprocessing found for the model.
        resume: Go on in a folder that has a training: steps are counted on.
        **options: Of the figures, fields of `hookviz.render.GridOptions`.

    Returns:
        A context manager; ``m.step(loss=…)``, ``m.alerts``, ``m.values(layer, quantity)``,
        ``m.table()``, ``m.to_pandas()``, ``m.figure(layer, quantity)``, ``m.picture(layer)``,
        ``m.over_time(layer).strip(channel)``.

    Raises:
        LayerError: A selector matches nothing.
        MonitorError: An argument is illegal, or the folder holds a training already.
        HookvizError: The probe cannot be read, or the model cannot be fed an image.

    Examples:
        >>> import torch, hookviz
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> with hookviz.monitor(net, stats_every=1, probe=hookviz.sample_image()) as m:
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         loss = net(torch.rand(2, 3, 8, 8)).mean()
        ...         loss.backward()
        ...         optimizer.step()
        ...         m.step(loss=loss)
        >>> steps, zeros = m.values("1", "zeros")
        >>> steps.tolist(), m.picture("0").width
        ([1, 2, 3], 700)
        >>> figure = m.figure(["0", "1"], "mean")
        >>> strip = m.over_time("0").strip(2)  # channel 2 before the first step, after each 100
    """
    return Monitor(
        model, layers, every=every, stats_every=stats_every, probe=probe, out=out,
        updates=updates, on_alert=on_alert, preprocess=preprocess, resume=resume, options=options,
    )  # fmt: skip


def open_monitor(folder: str | Path) -> SavedHistory:
    """Opens the folder of a watched training, also while the training goes on elsewhere.

    Args:
        folder: What ``out`` of `monitor` named.

    Returns:
        The same as the monitor of the training gives: ``.values()``, ``.table()``, ``.figure()``,
        ``.picture()``, ``.alerts``. Each asks the folder for what is new.

    Raises:
        MonitorError: It is no such folder.

    Examples:
        >>> import tempfile, torch, hookviz
        >>> net = torch.nn.Linear(2, 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with hookviz.monitor(net, stats_every=1, out=f"{folder}/a") as m:
        ...         net(torch.ones(3, 2)).sum().backward()
        ...         m.step(loss=0.5)
        ...     seen = hookviz.open_monitor(f"{folder}/a")
        ...     seen.step_number, seen.ended, seen.scalar("loss")[1].tolist()
        (1, True, [0.5])
    """
    return SavedHistory(folder)

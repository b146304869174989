"""The app for JupyterLab, and its parts as widgets of their own.

In: a model, an image, layers. Out: widgets. Must not know: the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hookviz.models import is_local, load_model
from hookviz.widget._explorer import Explorer
from hookviz.widget._image_input import ImageInput
from hookviz.widget._layer_tree import LayerTree
from hookviz.widget._map_gallery import MapGallery
from hookviz.widget._session import Session, is_session
from hookviz.widget._training_view import TrainingView

__all__ = ["Explorer", "ImageInput", "LayerTree", "MapGallery", "TrainingView", "explore"]


def explore(
    model: Any = None,
    image: Any = None,
    layers: Any = None,
    *,
    device: str = "auto",
    run: bool | None = None,
    session: str | Path | None = None,
) -> Explorer:
    """Opens the app: choose a photo, tick layers, run, look.

    As the last line of a notebook cell it is displayed once. Running the cell again closes the
    app of its earlier run.

    Args:
        model: A module, a `LoadedModel` or a name that `load_model` takes; None is VGG16. A model
            whose weights have to be downloaded is loaded after the app is on screen. A name that
            ends with ".hookviz.json" is a ``session``.
        image: Anything that `read_image` takes; None waits for a photo.
        layers: Layers ticked at the start; names or any selectors of `select_layers`.
        device: "auto", "cpu", "cuda" or "mps".
        run: Whether the model runs at once; None is where image and layers are both given. The
            cell that displays the app then ends with the results, so a notebook that is executed
            without a screen holds their picture. Elsewhere ``app.wait()`` waits for them.
        session: A file that ``app.save`` wrote: its choices, where the other arguments make none.

    Returns:
        The widget. Its ``model``, ``image``, ``layers``, ``run`` and ``figures`` can be read and
        set from other cells.

    Raises:
        HookvizError: Model, image, layers, device or session are unknown or cannot be used.

    Examples:
        >>> from torch import nn
        >>> app = explore(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), layers=["0"])
        >>> app.layers, app.why_not
        (['0'], 'Choose an image.')
        >>> app.close()
    """
    if session is None and is_session(model):
        model, session = None, model
    saved = None if session is None else Session(session)
    if saved is not None:
        model = saved.load_model(device) if model is None else model
        image = saved.picture() if image is None else image
    later = saved is None and isinstance(model, str) and not is_local(model)
    loaded = None if later else load_model("vgg16" if model is None else model, device=device)
    ticked = saved.layers if saved is not None and layers is None else layers
    wanted = (image is not None and bool(ticked)) if run is None else run
    app = Explorer()
    try:
        if later:
            app.device = "" if device == "auto" else device
            app.layers = list([layers] if isinstance(layers, str) else layers or [])
            app.choosing.load(model)
            app.choosing.then_run = wanted
        else:
            app.model = loaded
            if saved is not None:
                saved.restore(app, ticks=layers is None)
                app.running.sized = app.image_input.choice == "own"
            if layers is not None:
                app.layers = layers
        if image is not None:
            app.image = image
        app.running.promised = wanted and (later or app.start_run(anyway=run is True))
    except BaseException:
        app.close()
        raise
    return app

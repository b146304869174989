"""The picture that a saved notebook shows where no kernel runs.

A widget without its kernel is an error text in the notebook. Two more outputs stand behind the
app's own: a style that hides that text, and hides the picture while the app is alive; and the
picture, replaced under its display id once the grids have not changed for half a second.
"""

from __future__ import annotations

import base64
import io
import uuid
from collections.abc import Sequence
from typing import Any

from PIL import Image

from hookviz.widget._pictures import fewer_colors

WIDTH = 900
_HEIGHT = 1800
_GAP = 12

# The app's output comes first, then this style, then the picture: each hides by its neighbours.
_CHILD = ".jp-OutputArea-child"
_BEHIND = f"{_CHILD}:has(.hookviz-static)"
# Where JupyterLab writes its error text. (A :has within a :has would make the rule void; for a :not
# within one, the browser looks at the rule again with every element that comes or goes.)
_ERROR = f"{_CHILD}:has(>.jupyter-widgets):not(:has(.hv-app))"
_LIVING = ":is(:has(.hv-app[data-alive]),:has(.hv-app .hv-grid[data-version]))"
_STYLE = (
    '<div class="hookviz-static">hookviz: run this cell to bring the app to life.</div><style>'
    f"{_BEHIND}:not({_ERROR}+*){{display:none}}"
    f"{_CHILD}{_LIVING}+{_BEHIND}+{_CHILD}{{display:none}}"
    f"{_ERROR}:has(+{_CHILD} .hookviz-static){{display:none}}"
    "</style>"
)


class Still:
    """The two outputs behind an app."""

    def __init__(self) -> None:
        self.id: str | None = None
        self._last: tuple[bytes, ...] = ()

    def place(self) -> None:
        """Puts the outputs after the app's, in the cell that displays it."""
        self.id = uuid.uuid4().hex
        self._last = ()
        show({"text/html": _STYLE, "text/plain": ""})
        show({"text/plain": ""}, display_id=self.id)

    def update(self, pngs: Sequence[bytes]) -> None:
        """Replaces the picture.

        Args:
            pngs: Grids, most important first.
        """
        if self.id is None or not pngs or tuple(pngs) == self._last:
            return
        publisher = _publisher()
        if publisher is not None:
            self._last = tuple(pngs)
            png = base64.b64encode(still_picture(pngs)).decode("ascii")
            publisher.publish(
                data={"image/png": png, "text/plain": "The last result of hookviz."},
                metadata={},
                transient={"display_id": self.id},
                update=True,
            )


def show(data: dict[str, Any], **options: Any) -> None:
    """Displays a bundle of mime types as it is, in the running cell.

    Args:
        data: By mime type.
        **options: ``metadata``, ``display_id``, see ``IPython.display.display``.
    """
    from IPython.display import display

    display(data, raw=True, **options)  # type: ignore[no-untyped-call]


def _publisher() -> Any:
    from IPython import get_ipython

    return getattr(get_ipython(), "display_pub", None)


def still_picture(pngs: Sequence[bytes]) -> bytes:
    """Grids one under the other as one small PNG of 256 colours.

    Args:
        pngs: The grids; those that would make the picture too tall are left out.

    Returns:
        A PNG of at most 900 × 1800 pixels.
    """
    parts: list[Image.Image] = []
    height = 0
    for png in pngs:
        image = Image.open(io.BytesIO(png)).convert("RGB")
        image.thumbnail((WIDTH, image.height), Image.Resampling.LANCZOS, reducing_gap=None)
        if parts and height + _GAP + image.height > _HEIGHT:
            break
        height += image.height + (_GAP if parts else 0)
        parts.append(image)
    ground = parts[0].getpixel((0, 0))
    sheet = Image.new("RGB", (max(p.width for p in parts), min(height, _HEIGHT)), ground)
    top = 0
    for part in parts:
        sheet.paste(part, (0, top))
        top += part.height + _GAP
    # Pillow's optimize takes four times as long for 0.7 % less.
    return fewer_colors(sheet, compress_level=6)

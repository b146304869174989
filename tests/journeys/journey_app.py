"""In: the place where a hookviz app is shown. Out: its controls, and what a person does with them.

Must not know: Jupyter (the same app runs in JupyterLab and in Voila).

Controls are found by what a person or a screen reader finds: role and name; ``data-hv`` names the
parts that have neither.
"""

from __future__ import annotations

import base64
import io
import re
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import FilePayload, Locator, Page, expect

PAINTED = """([card, img, than]) => {
  const version = Number(card.dataset.version);
  return version > than && Number(img.dataset.version) === version
    && img.complete && img.naturalWidth > 0;
}"""

# All that the app says, tooltips included.
SAID = """root => {
  const titles = [...root.querySelectorAll('[title]')].map(element => element.title);
  return [root.innerText, ...titles].join('\\n');
}"""

SOURCE_BYTES = """async img => {
  const bytes = new Uint8Array(await (await fetch(img.src)).arrayBuffer());
  let text = '';
  for (let i = 0; i < bytes.length; i += 8192) {
    text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  }
  return btoa(text);
}"""


# Where an element is once it has been in one place for six of the browser's frames: a picture that
# is painted above it moves it.
STEADY = """async element => {
  let before = '', same = 0;
  while (same < 6) {
    await new Promise(requestAnimationFrame);
    const now = JSON.stringify(element.getBoundingClientRect());
    same = now === before ? same + 1 : 0;
    before = now;
  }
  return JSON.parse(before);
}"""


def steady_box(element: Locator) -> dict[str, float]:
    """Where an element is on the screen (x, y, width, height), once it stays there."""
    expect(element).to_be_attached()  # a line is not "visible"
    found: dict[str, float] = element.evaluate(STEADY)
    return found


def soon(holds: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    """Wait until what Playwright's ``expect`` has no word for holds; ``what`` is said otherwise."""
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until, what()
        time.sleep(0.05)


class App:
    """One hookviz app on the screen.

    Args:
        page: The browser's page.
        scope: Where to look for it (a cell's output, the body).
        index: Which one, where the scope holds several.
    """

    def __init__(self, page: Page, scope: Locator, index: int = 0) -> None:
        self.page = page
        self.root = scope.locator('[data-hv="app"]').nth(index)

    def part(self, name: str) -> Locator:
        return self.root.locator(f'[data-hv="{name}"]')

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=name, exact=True)

    def reach(self, control: Locator) -> Locator:
        """A control, once the fold that it stands in is open."""
        for fold, opener in (("image-fold", "change"), ("view-rare", "view-more")):
            around = control.locator(f'xpath=ancestor::*[@data-hv="{fold}"]')
            if around.count() and around.first.is_hidden():
                self.part(opener).click()
        return control

    def labelled(self, label: str) -> Locator:
        """The control of a label, in sight."""
        return self.reach(self.root.get_by_label(label, exact=True))

    def choose(self, label: str, value: str) -> None:
        self.labelled(label).select_option(value)

    # --- states ---------------------------------------------------------------------------

    def wait_ready(self) -> App:
        """Wait until all parts are there and a model has been loaded."""
        expect(self.root).to_be_visible()
        for name in ("tree", "image", "gallery", "runbar"):
            expect(self.part(name)).to_be_visible()
        self.wait_idle()
        return self

    def wait_state(self, state: str) -> None:
        # `expect` asks less often, and writes down what a screen reader has each time it asks.
        self.root.and_(self.page.locator(f'[data-state="{state}"]')).wait_for(state="attached")

    def wait_idle(self) -> None:
        self.wait_state("idle")

    def alerts(self) -> Locator:
        """The alerts that are shown (each part has a place for one; the app uses one)."""
        return self.part("alert").filter(visible=True)

    def expect_alert(self, *parts: str) -> Locator:
        """One alert is shown where the eye is, and its text has these parts; its locator."""
        for part in parts:
            expect(self.alerts()).to_contain_text(part)
        expect(self.alerts()).to_have_count(1)
        expect(self.alerts()).to_be_in_viewport()
        return self.alerts()

    def type_into(self, label: str, text: str) -> Locator:
        """Type a value into a field and press Enter; the field."""
        field = self.labelled(label)
        field.fill(text)
        field.press("Enter")
        return field

    def expect_refused(self, label: str, text: str, stands: str, *parts: str) -> None:
        """Type a value that is refused: the one before stands, the sentence is at the field."""
        field = self.type_into(label, text)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_value(stands)
        said = self.root.locator(f"id={field.get_attribute('aria-describedby')}")
        for part in parts:
            expect(said).to_contain_text(part)
        expect(said).to_be_visible()
        self.expect_no_alert()

    def expect_plain_words(self) -> None:
        """No word of Python's stands in the app: no argument, no call, no True or False."""
        said = self.root.evaluate(SAID)
        found = re.findall(r".*(?:\w\w+=['\w]|\b(?:True|False)\b|\w\(\)).*", said)
        assert found == [], found

    def expect_no_alert(self) -> None:
        expect(self.alerts()).to_have_count(0)

    # --- image ----------------------------------------------------------------------------

    def sample(self, name: str = "chelsea") -> None:
        samples = self.root.get_by_role("button", include_hidden=True)
        self.reach(samples.and_(self.root.get_by_label(f"Sample {name}", exact=True))).click()
        self.expect_image(f"{name}.png")

    def browse(self, file: Path | FilePayload) -> None:
        """Press the button and choose a file in the browser's own dialog."""
        with self.page.expect_file_chooser() as chooser:
            self.reach(self.part("browse")).click()
        chooser.value.set_files(file)

    def expect_image(self, name: str) -> None:
        """Both pictures are shown: the original of this name, and what the network sees."""
        expect(self.part("image-caption")).to_contain_text(name)
        for which in ("original", "seen"):
            picture = self.part(which)
            expect(picture).to_be_visible()
            self.page.wait_for_function(
                "img => img.complete && img.naturalWidth > 0", arg=picture.element_handle()
            )
        expect(self.part("original")).to_have_attribute("alt", f"Original: {name}")

    # --- layers ---------------------------------------------------------------------------

    def search(self, text: str) -> None:
        self.root.get_by_role("searchbox", name="Search layers", exact=True).fill(text)

    def row(self, layer: str) -> Locator:
        return self.root.locator(f'[data-hv="row"][data-name="{layer}"]:not([data-call])')

    def rows(self) -> Locator:
        return self.root.locator('[data-hv="row"]')

    def tick(self, layer: str, state: str = "true") -> None:
        """Click a layer's box and see it ticked (or, with state="false", unticked)."""
        row = self.row(layer)
        row.locator('[data-hv="tick"]').click()
        expect(row).to_have_attribute("aria-checked", state)

    def find_and_tick(self, *layers: str) -> None:
        for layer in layers:
            self.search(layer)
            self.tick(layer)
        self.search("")

    # --- run and results ------------------------------------------------------------------

    @property
    def run_button(self) -> Locator:
        return self.part("run")

    def run(self, *layers: str) -> None:
        """Press Run; wait until new pictures of these layers are painted and the app is idle."""
        before = {layer: self.version(layer) for layer in layers}
        expect(self.run_button).not_to_have_attribute("aria-disabled", "true")
        self.run_button.click()
        for layer in layers:
            self.painted(layer, than=before[layer])
        self.wait_idle()

    def card(self, layer: str, call: int | None = None) -> Locator:
        of_call = "" if call is None else f'[data-call="{call}"]'
        return self.root.locator(f'[data-hv="card"][data-layer="{layer}"]{of_call}').first

    def cards(self) -> Locator:
        return self.root.locator('[data-hv="card"]')

    def grid(self, layer: str, call: int | None = None) -> Locator:
        return self.card(layer, call).locator('[data-hv="grid"]')

    def version(self, layer: str) -> int:
        """The number of a layer's picture: grows with each new one, −1 before the first."""
        card = self.card(layer)
        if card.count() == 0:
            return -1
        return int(card.get_attribute("data-version") or -1)

    def painted(self, layer: str, than: int = -1, call: int | None = None) -> Locator:
        """Wait until a layer's card shows a picture newer than this; its <img>.

        The card is scrolled to first: pictures far from the screen are not drawn.
        """
        grid = self.grid(layer, call)
        self.card(layer, call).evaluate("card => card.scrollIntoView({block: 'nearest'})")
        expect(grid).to_be_visible()
        self.page.wait_for_function(
            PAINTED, arg=[self.card(layer, call).element_handle(), grid.element_handle(), than]
        )
        return grid

    def pixels(self, layer: str) -> Image.Image:
        """A layer's picture exactly as it reached the screen."""
        data = base64.b64decode(self.painted(layer).evaluate(SOURCE_BYTES))
        return Image.open(io.BytesIO(data)).convert("RGB")

    # --- export ---------------------------------------------------------------------------

    def export(self, scope: str, folder: str, *kinds: str) -> Path:
        """Export through the dialog; the folder that it says it wrote."""
        self.part("export-button").click()
        dialog = self.part("export-dialog")
        expect(dialog).to_be_visible()
        dialog.get_by_label(scope, exact=True).check()
        for kind in ("Grids", "Channels as PNG", "Values"):
            box = dialog.get_by_label(kind, exact=True)
            box.set_checked(kind in (kinds or ("Grids",)))
        dialog.get_by_label("Folder", exact=True).fill(folder)
        path = dialog.locator('[data-hv="export-path"]')
        before = path.inner_text() if path.is_visible() else ""
        dialog.get_by_role("button", name="Export now", exact=True).click()
        expect(path).to_contain_text(folder)
        expect(path).not_to_have_text(before)
        self.wait_idle()
        return Path(path.inner_text())

    # --- keyboard -------------------------------------------------------------------------

    def has_focus(self) -> bool:
        return bool(self.root.evaluate("root => root.contains(document.activeElement)"))

    def tab_to(self, target: Locator, limit: int = 120) -> None:
        """Press Tab until an element has the focus, as somebody without a mouse does."""
        for _press in range(limit):
            if target.evaluate("element => element === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"{limit} presses of Tab did not reach {target}")

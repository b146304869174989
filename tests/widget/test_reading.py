"""In: pictures from a page. Out: they are read beside the message loop, the newest one counts."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hookviz.errors import ImageError
from hookviz.widget import Explorer
from hookviz.widget import _image_input as image_input


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((30, 40, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def upload(page: Any, data: bytes, name: str) -> None:
    page.say("upload-start", id=name, name=name, size=len(data), settle=False)
    page.say("upload-piece", data, id=name, offset=0, settle=False)


class Reader:
    """Stands before read_image: each reading waits until it is let go on."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.begun: list[str] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def __call__(self, source: Any, **options: Any) -> Any:
        if isinstance(source, bytes):
            self.begun.append(str(options["name"]))
            self.entered.release()
            assert self.gate.acquire(timeout=20)
        return self.real(source, **options)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    reader = Reader(image_input.read_image)
    monkeypatch.setattr(image_input, "read_image", reader)
    yield reader
    for _ in range(20):
        reader.gate.release()


def test_a_photo_that_takes_long_blocks_no_other_control(
    app: Explorer, image_page: Any, page: Any, reader: Reader
) -> None:
    upload(image_page, png(90), "slow.png")
    assert reader.entered.acquire(timeout=20)
    assert not app.image_input.wait(0)
    # The message loop is this test's own thread: it goes on.
    page.say("auto", on=False)
    app.layers = ["conv"]
    assert app.image is None
    assert "upload-done" not in image_page.types()
    reader.gate.release()
    assert app.image_input.wait(20)
    assert app.image_input.wait(0)
    assert app.image.name == "slow.png"
    assert image_page.types().count("upload-done") == 1


def test_of_several_photos_the_newest_is_read_and_each_is_answered(
    app: Explorer, image_page: Any, reader: Reader
) -> None:
    for value, name in ((10, "a.png"), (20, "b.png"), (30, "c.png")):
        upload(image_page, png(value), name)
        if name == "a.png":
            assert reader.entered.acquire(timeout=20)
    reader.gate.release()
    reader.gate.release()
    assert app.image_input.wait(20)
    assert reader.begun == ["a.png", "c.png"]  # nobody waits for b.png any more
    assert app.image.name == "c.png"
    answered = [m["id"] for m, _ in image_page.heard if m["type"] == "upload-done"]
    assert answered == ["a.png", "b.png", "c.png"]


def press_run_while_reading(app: Explorer, image_page: Any, page: Any, reader: Reader) -> None:
    image_page.say("sample", name="coffee.png")
    app.layers = ["conv"]
    upload(image_page, png(200), "dropped.png")
    assert reader.entered.acquire(timeout=20)
    page.say("run")


def test_run_pressed_right_after_a_drop_runs_the_dropped_photo(
    app: Explorer, image_page: Any, page: Any, reader: Reader
) -> None:
    press_run_while_reading(app, image_page, page, reader)
    time.sleep(0.1)  # the run has every chance to take the older photo
    reader.gate.release()
    assert app.wait(30)
    assert app.run.image.name == "dropped.png"
    assert app.results.stale == set()


def test_a_run_that_waits_for_a_photo_can_be_cancelled(
    app: Explorer, image_page: Any, page: Any, reader: Reader
) -> None:
    press_run_while_reading(app, image_page, page, reader)
    page.say("cancel")
    assert app.jobs.wait(5)
    assert app.run is None
    assert app.status["state"] == "idle"
    reader.gate.release()
    assert app.wait(30)
    assert app.image.name == "dropped.png"


def test_a_file_that_is_no_picture_is_refused_from_the_thread(
    app: Explorer, image_page: Any
) -> None:
    image_page.say("sample", name="coffee.png")
    upload(image_page, b"not a picture", "notes.png")
    assert app.image_input.wait(20)
    assert "notes.png" in app.alert["message"]
    assert image_page.last("upload-refused")[0]["id"] == "notes.png"
    assert app.image.name == "coffee.png"


def test_what_python_sets_is_read_at_once(app: Explorer) -> None:
    app.image = png(90)
    assert app.image.size == (40, 30)
    with pytest.raises(ImageError):
        app.image = b"not a picture"
    assert app.image.size == (40, 30)


def test_closing_while_a_photo_is_read_leaves_nothing(
    app: Explorer, image_page: Any, reader: Reader
) -> None:
    upload(image_page, png(90), "slow.png")
    assert reader.entered.acquire(timeout=20)
    reader.gate.release()
    app.close()
    assert app.image_input.wait(5)

"""Page and Python stay in one state, whatever a page sends and in whatever order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hookviz.errors import HookvizError
from hookviz.images import Preprocessing, sample_image
from hookviz.models import LoadedModel
from hookviz.surveys import survey
from hookviz.widget import Explorer, explore
from hookviz.widget._explorer import PANELS
from hookviz.widget._messages import arguments_of
from hookviz.widget._part import Part

# What never changes, or is large.
CONSTANT = {"_esm", "_css", "layout", "tabbable", "tooltip"}


class Kinds(nn.Module):
    """Maps, single values, tokens and a layer that is dead: each refuses other options."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.few = nn.Conv2d(6, 2, 3)
        self.tokens = nn.Linear(2, 5)
        self.head = nn.Linear(5, 3)
        self.dead = nn.Threshold(1e9, 0.0)
        self.lost = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.few(self.conv(x))
        self.dead(x)
        y: Tensor = self.tokens(x.flatten(2).transpose(1, 2))
        z: Tensor = self.head(y.mean(1))
        return z


class StandIn:
    """A front end without a browser: the state of each widget as a page has it."""

    def __init__(self, parts: list[Part], monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts = parts
        self.states: list[dict[str, Any]] = []
        self.versions: dict[str, int] = {}
        for index, part in enumerate(parts):
            self.states.append(plain(part.get_state()))

            def hear(message: Any, buffers: Any = None, index: int = index) -> None:
                if message["method"] == "update":
                    self.states[index].update(plain(message["state"]))
                elif message["method"] == "custom" and message["content"]["type"] == "pixels":
                    self.versions[message["content"]["key"]] = message["content"]["version"]

            monkeypatch.setattr(part, "_send", hear)

    def say(self, index: int, content: Any) -> None:
        self._send(index, {"method": "custom", "content": content})

    def set(self, index: int, state: dict[str, Any]) -> None:
        # A page has its own value at once, and takes no notice of the echo.
        self.states[index].update(state)
        self._send(index, {"method": "update", "state": state})

    def _send(self, index: int, data: dict[str, Any]) -> None:
        self.parts[index]._handle_msg({"content": {"data": data}, "buffers": []})

    def assert_agrees(self) -> None:
        for part, state in zip(self.parts, self.states, strict=True):
            real = plain(part.get_state())
            assert {k: v for k, v in state.items() if real[k] != v} == {}, type(part).__name__


def plain(state: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in state.items() if name not in CONSTANT}
    result: dict[str, Any] = json.loads(json.dumps(kept, default=str))
    return result


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Explorer, StandIn]]:
    torch.manual_seed(0)
    here = tmp_path_factory.mktemp("here")
    (here / "photos").mkdir()
    for seed in range(3):
        sample_image().image.resize((16 + seed, 16)).save(here / "photos" / f"{seed}.png")
    model = LoadedModel(
        Kinds(), "kinds", "as passed in", True, preprocess=Preprocessing.for_size(12)
    )
    layers = ["conv", "few", "tokens", "head", "dead", "lost"]
    survey(model, here / "photos", ["conv", "few"], here / "survey", workers=0)
    app = explore(model, sample_image(), layers)
    assert app.wait(60)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(here)
        page = StandIn([app, *app.parts], monkeypatch)
        page.say(3, {"type": "look", "width": 300})
        assert app.wait(60)
        assert app.alert == {}
        yield app, page
    app.close()


TEXTS = st.sampled_from(
    ["", "0", "5", "0-3,1", "64", "99999999", "-1", "cat", "a\0b", "\ud800", "nan", "1e400", "−2",
     "maps", "mean", "viridis", "fixed", "similarity:1", "similarity:77", "../x", "conv#1",
     "head#1", "dead#1", "lost#1", "few#1"]
)  # fmt: skip
JSON = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.just(10**30), st.floats(), TEXTS,
    st.lists(TEXTS, max_size=2), st.dictionaries(TEXTS, st.integers(0, 3), max_size=2),
)  # fmt: skip
KEYS = st.sampled_from(["conv#1", "few#1", "tokens#1", "head#1", "dead#1", "lost#1", "none#9"])
VIEW = st.one_of(
    st.fixed_dictionaries({"channels": st.sampled_from(["", "0", "1,0", "0-5", "5", "64", "x"])}),
    st.fixed_dictionaries({"overlay": st.booleans()}),
    st.fixed_dictionaries({"summary": st.sampled_from(["none", "mean", "pca", "mode"])}),
    st.fixed_dictionaries({"hide_dead": st.booleans()}),
    st.fixed_dictionaries(
        {"scale": st.sampled_from(["auto", "channel", "fixed", "percentile", "shared", "size"])}
    ),
    st.fixed_dictionaries({"vmin": TEXTS}),
    st.fixed_dictionaries({"order": st.sampled_from(["index", "mean", "similarity:4", "age"])}),
    st.fixed_dictionaries({"cmap": st.sampled_from(["auto", "magma", "no such"])}),
    st.fixed_dictionaries({"per_page": st.sampled_from([1, 2, 64, 0, -1, 2.5])}),
    st.dictionaries(st.sampled_from(["cmap", "channels", "vmax", "page", "width", "evil"]), JSON),
)


def message(kind: str, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


TITLES = [panel.title for panel in PANELS]
INSPECT, CHANNEL, COMPARE, EXPLAIN, WHAT_IF, DATA_SET, LIVE = (
    4 + TITLES.index(t)
    for t in ("Inspect", "Channel", "Compare", "Explain", "What if", "Data set", "Live")
)
FOLDERS = st.sampled_from(["photos", "survey", "survey/shards", "..", "~nobody/x", "x" * 3000])
RUNS = st.lists(st.sampled_from(["1", "2", "3", "4", "99", ""]), max_size=4)
PLACE = {"channel": st.integers(-1, 6), "y": st.integers(-1, 12), "x": st.integers(-1, 12)}

# By widget: the app, the tree, the image input, the gallery, the panels.
MESSAGES = {
    0: st.one_of(
        message("auto", on=st.one_of(st.booleans(), JSON)),
        message("weights", model=JSON),
        message("load", model=st.sampled_from(["", "vgg61", "no\nsuch"]), weights=JSON),
        message("device", device=JSON),
        message("action", do=st.sampled_from(["", "nothing", "size x y"])),
        message("export", what=JSON, scope=JSON, key=JSON),
        message("file-piece", id=JSON, offset=JSON),
        message(
            "page-size", scope=st.one_of(st.sampled_from(["grid", "all", "ticked"]), JSON), key=KEYS
        ),
        message("page-size", scope=JSON, key=JSON),
        message("view-here", view=JSON),
        message("open-channel", key=KEYS, channel=st.one_of(st.integers(-2, 9), JSON)),
        message("open-channel", key=JSON, channel=JSON),
        message("pin", key=KEYS, channel=st.integers(-1, 6), y=JSON, x=JSON),
        message("former", text=TEXTS),
        message("former", text=JSON),
        message("use-former"),
        message("no-former"),
        message("cancel"),
        message("run", anyway=JSON),
        message("dismiss"),
    ),
    1: st.one_of(message("dismiss"), message("select", names=JSON)),
    2: st.one_of(
        message("sample", name=st.sampled_from(["coffee.png", "chelsea.png", "no.png"])),
        message("sample", name=JSON),
        message("preprocess", choice=st.sampled_from(["model", "pad", "upside down"])),
        message("preprocess", choice=JSON),
        message("upload-start", id=JSON, name=JSON, size=JSON),
        message("upload-piece", id=JSON, offset=JSON),
        message("pictures"),
    ),
    3: st.one_of(
        message("view", changes=VIEW),
        message("view", changes=VIEW),
        message("view", changes=VIEW),
        message("view", changes=JSON),
        message("page", key=KEYS, page=st.one_of(st.integers(-2, 9), JSON)),
        message("statistics", key=KEYS, on=st.booleans()),
        message("collapse", key=KEYS, on=st.booleans()),
        message("leaf", key=KEYS, leaf=JSON),
        message("channels", key=KEYS, channels=TEXTS),
        message("channels", key=KEYS, channels=JSON),
        message("first", key=KEYS, channel=st.one_of(st.integers(-2, 7), JSON), on=JSON),
        message("first", key=KEYS, channel=st.integers(0, 5), on=st.booleans()),
        message("none-first", key=KEYS),
        message("look", width=st.sampled_from([200, 300, 10**9, "wide"]), ratio=JSON),
        message("near", keys=JSON),
        message("current", key=KEYS),
    ),
    EXPLAIN: st.one_of(
        message("method", method=st.sampled_from(["eigencam", "attention", "saliency", "voodoo"])),
        message("query", y=st.one_of(st.just(0.5), JSON), x=st.one_of(st.just(2.0), JSON)),
        message("heads", heads=st.sampled_from(["each", "mean", "none"])),
        message("method", method=JSON),
        message(
            "explain",
            target=st.sampled_from(["", "0", "7", "channel 1 of few", "box 9", "\0"]),
            options=st.one_of(JSON, st.dictionaries(st.sampled_from(["steps", "x"]), TEXTS)),
        ),
        message("classes", search=JSON),
        message("look", width=st.sampled_from([0, 300, 10**9]), ratio=JSON, style=JSON),
        message("export", zipped=JSON),
    ),
    WHAT_IF: st.one_of(
        message(
            "add",
            what=st.sampled_from(["zero", "scale", "replace_by_noise", "other_image", "explode"]),
            layer=st.sampled_from(["conv", "few", "head", "lost", "none"]),
            channels=TEXTS,
            place=TEXTS,
            heads=st.sampled_from(["", "", "0"]),
            factor=JSON,
            image=st.sampled_from(["coffee.png", "../x"]),
        ),
        message("switch", index=st.integers(-1, 3), on=st.one_of(st.booleans(), JSON)),
        message("factor", index=st.integers(-1, 3), factor=JSON),
        message("remove", index=st.one_of(st.integers(-1, 3), JSON)),
        message("move", index=st.integers(-1, 3), to=st.integers(-1, 3)),
        message("undo"),
        message("target", target=st.sampled_from(["", "1", "9", "channel 0 of conv", "?"])),
        message("compare"),
        message("rank", layer=st.sampled_from(["conv", "head", "none"])),
        message("table"),
        message("run-edited", on=st.one_of(st.booleans(), JSON)),
        message("upload-start", id=TEXTS, name=TEXTS, size=JSON),
        message("upload-piece", id=TEXTS, offset=JSON),
    ),
    DATA_SET: st.one_of(
        message("open", folder=st.one_of(FOLDERS, JSON)),
        message("layer", layer=st.one_of(st.sampled_from(["few", "conv", "none"]), JSON)),
        message("sort", by=st.one_of(st.sampled_from(["max", "zeros", "age"]), JSON), falling=JSON),
        message("dead", first=st.one_of(st.booleans(), JSON)),
        message("more"),
        message("channel", channel=st.one_of(st.integers(-1, 6), JSON)),
        message("channel", channel=st.integers(0, 1)),
        message("crops"),
        message("thumbnails", channels=st.one_of(st.lists(TEXTS, max_size=3), JSON)),
        message("survey", images=st.one_of(FOLDERS, JSON), folder=TEXTS, batch=JSON),
        message("go-on", more=JSON),
        message("action", do=st.sampled_from(["", "more-images"])),
        message("cancel"),
        message("show", rank=st.one_of(st.integers(-1, 4), JSON)),
        message("show", rank=st.just(1)),
        message("export", form=st.one_of(st.sampled_from(["png", "exe"]), JSON)),
    ),
    LIVE: st.one_of(
        message("frame", seq=JSON, width=st.sampled_from([0, 4, 10**9]), height=JSON, png=JSON),
        message("frame", seq=st.integers(0, 9), width=st.just(4), height=st.just(3), name=TEXTS),
        message("sample-clip"),
        message("clip-frame", seq=st.integers(0, 9), number=st.integers(-1, 40), paused=JSON),
        message("clip-frame", seq=JSON, number=JSON),
        message("hold", how=st.one_of(st.sampled_from(["none", "running", "fixed", "x"]), JSON)),
        message("record", frames=st.sampled_from([0, -1, 10**9]), form=TEXTS, folder=JSON),
        message("record", frames=JSON, form=st.sampled_from(["mp4", ""])),
        message("record-stop"),
        message("freeze"),
        message("stop"),
        message("look", width=st.sampled_from([0, 300, 10**9]), ratio=JSON, style=JSON),
    ),
    INSPECT: st.one_of(message("open-channel", key=KEYS, channel=JSON), message("unpin")),
    CHANNEL: st.one_of(
        message("look", width=st.sampled_from([0, 300, 10**9, "wide"]), ratio=JSON, style=JSON),
        message("visible", on=st.one_of(st.booleans(), JSON)),
        message("step", by=st.one_of(st.sampled_from([1, -1, 2**53, -(2**53)]), JSON)),
        message("open", key=KEYS, channel=st.one_of(st.integers(-2, 9), JSON)),
        message("pin", key=KEYS, channel=JSON, y=st.integers(-1, 12), x=st.integers(-1, 12)),
        message("gallery"),
        message("send", name=TEXTS, again=JSON),
        message(
            "visualize", size=st.sampled_from([0, 7, 8, 10**9]), steps=st.integers(-1, 2), seed=JSON
        ),
        message("export"),
        message("cancel"),
    ),
    COMPARE: st.one_of(
        message("look", width=st.sampled_from([200, 300, 10**9, "wide"]), ratio=JSON),
        message("compare", keys=RUNS),
        message("compare", keys=RUNS),
        message("compare", keys=JSON),
        message("calls", key=st.sampled_from(["1", "2", ""]), layer=TEXTS),
        message("forget", key=st.sampled_from(["1", "2", "99"])),
        message("against", number=st.one_of(st.integers(-1, 4), JSON)),
        message("layer", index=st.one_of(st.integers(-2, 9), JSON)),
        message("page", page=st.one_of(st.integers(-2, 9), JSON)),
        message("scale", scale=st.sampled_from(["auto", "full", "fixed", ""])),
        message("point", ask=JSON, version=JSON, **PLACE),
        message("pin", **PLACE),
        message("export", everything=st.sampled_from([None, "yes", 2]), folder=JSON),
        message("thumbnails"),
        message("unpin"),
        message("close"),
    ),
}
SETS = {
    DATA_SET: st.dictionaries(
        st.sampled_from(["folder", "opened", "layer", "channels", "channel", "progress", "said"]),
        JSON, min_size=1, max_size=2,
    ),
    0: st.dictionaries(
        st.sampled_from(["status", "auto_run", "device", "model_info", "why_not", "tree"]),
        JSON, min_size=1, max_size=2,
    ),
    1: st.one_of(
        st.fixed_dictionaries(
            {
                "selected": st.lists(
                    st.sampled_from(["conv", "few", "head", "tokens", "dead", "lost", "gone"])
                ),
                "hidden_calls": st.lists(st.sampled_from(["conv#1", "gone#1"])),
            }
        ),
        st.dictionaries(st.sampled_from(["rows", "selected", "search", "facts"]), JSON, min_size=1),
    ),
    2: st.dictionaries(st.sampled_from(["info", "choice", "max_bytes"]), JSON, min_size=1),
    3: st.dictionaries(st.sampled_from(["cards", "view", "empty"]), JSON, min_size=1),
    CHANNEL: st.dictionaries(
        st.sampled_from(["shown", "places", "inputs", "earlier", "sent"]), JSON, min_size=1
    ),
    LIVE: st.dictionaries(
        st.sampled_from(["clip", "side", "hold", "recording", "why_not"]), JSON, min_size=1
    ),
    COMPARE: st.dictionaries(
        st.sampled_from(["tray", "compared", "layers", "layer", "page", "pin", "scale"]),
        JSON, min_size=1, max_size=2,
    ),
}  # fmt: skip
ACTIONS = st.one_of(
    *(st.tuples(st.just("say"), st.just(i), messages) for i, messages in MESSAGES.items()),
    *(st.tuples(st.just("say"), st.just(3), MESSAGES[3]) for _ in range(3)),
    st.tuples(st.just("say"), st.just(CHANNEL), MESSAGES[CHANNEL]),
    *(st.tuples(st.just("say"), st.just(COMPARE), MESSAGES[COMPARE]) for _ in range(2)),
    *(st.tuples(st.just("set"), st.just(i), states) for i, states in SETS.items()),
)


@settings(
    max_examples=40, suppress_health_check=list(HealthCheck), database=None,
    derandomize=True,
)  # fmt: skip
@given(st.lists(ACTIONS, min_size=1, max_size=12))
def test_any_sequence_of_messages_ends_in_one_state_and_a_legal_one_still_works(
    scene: tuple[Explorer, StandIn], actions: list[tuple[str, int, Any]]
) -> None:
    app, page = scene
    for how, index, content in actions:
        if how == "say":
            page.say(index, content)
        else:
            page.set(index, content)
    page.say(0, {"type": "auto", "on": False})
    assert app.wait(60)
    page.assert_agrees()
    # Nothing is wedged: a view, ticks and a run are taken.
    page.say(3, {"type": "view", "changes": {"cmap": "gray", "scale": "auto"}})
    page.say(3, {"type": "view", "changes": {"cmap": "viridis"}})
    page.say(3, {"type": "view", "changes": {"channels": "0", "order": "index"}})
    assert page.states[3]["view"]["cmap"] == "viridis" == app.options.cmap
    assert page.states[3]["view"]["channels"] == "0" == app.options.channels
    assert app.gallery.alert == {}
    page.say(3, {"type": "view", "changes": {"channels": ""}})
    page.set(1, {"selected": ["conv", "head"], "hidden_calls": []})
    assert app.layers == ["conv", "head"]
    page.say(2, {"type": "sample", "name": "chelsea.png"})
    assert app.wait(60)
    page.say(0, {"type": "run"})
    assert app.wait(60)
    page.say(0, {"type": "dismiss"})
    page.say(0, {"type": "open-channel", "key": "conv#1", "channel": 5})
    for _ in range(2):  # the map, then what follows it
        assert app.wait(60)
    page.assert_agrees()
    assert page.states[CHANNEL]["shown"]["channel"] == 5
    assert page.states[CHANNEL]["inputs"]["bars"]
    cards = {card["key"]: card for card in page.states[3]["cards"]}
    assert list(cards) == ["conv#1", "head#1"]
    assert {card["state"] for card in cards.values()} == {"shown"}
    assert not any(card["stale"] for card in cards.values())
    for key, card in cards.items():
        assert card["collapsed"] or page.versions[key] == card["version"]
    # Two runs are compared.
    page.say(0, {"type": "run"})
    assert app.wait(60)
    runs = [run["key"] for run in page.states[COMPARE]["tray"]["runs"]][-2:]
    page.say(COMPARE, {"type": "compare", "keys": runs})
    assert app.wait(60)
    assert page.states[COMPARE]["compared"]["state"] == "ready"
    assert [row["verdict"] for row in page.states[COMPARE]["layers"]] == ["same", "same"]
    # A survey is opened, a channel of it chosen.
    page.say(DATA_SET, {"type": "open", "folder": "survey"})
    assert app.wait(60)
    page.say(DATA_SET, {"type": "layer", "layer": "few"})
    assert app.wait(60)
    page.say(DATA_SET, {"type": "channel", "channel": 1})
    assert app.wait(60)
    assert page.states[DATA_SET]["channel"]["channel"] == 1
    assert len(page.states[DATA_SET]["channel"]["hits"]) == 3
    page.assert_agrees()


class TestViewChoices:
    """A choice that some layers cannot follow goes to the others; one that none can is refused."""

    def view(self, page: StandIn, **changes: Any) -> None:
        page.say(3, {"type": "view", "changes": changes})

    @pytest.fixture
    def opened(self, scene: tuple[Explorer, StandIn]) -> tuple[Explorer, StandIn, dict[str, Any]]:
        app, page = scene
        notes: dict[str, Any] = {}
        hear = app.gallery._send

        def listen(message: Any, buffers: Any = None) -> None:
            hear(message, buffers)
            content = message.get("content", {})
            if content.get("type") == "pixels":
                notes[content["key"]] = content.get("note") or content.get("error")

        app.gallery._send = listen
        self.view(page, channels="", overlay=False, summary="none", hide_dead=False, order="index")
        app.layers = ["conv", "few", "tokens", "head", "dead"]
        for key in app.layers:
            page.say(3, {"type": "statistics", "key": f"{key}#1", "on": False})
            page.say(3, {"type": "collapse", "key": f"{key}#1", "on": False})
        if app.gallery.shown_cards == [] or len(app.gallery.shown_cards) < 5:
            assert app.start_run()
        assert app.wait(60)
        notes.clear()
        return app, page, notes

    def test_a_channel_of_one_layer_leaves_the_others_their_maps(self, opened: Any) -> None:
        app, page, notes = opened
        self.view(page, channels="5")
        assert app.wait(60)
        assert app.gallery.alert == {}
        assert notes["conv#1"] is None
        assert notes["few#1"]["code"] == "no-such-channel"
        assert set(notes) == {"conv#1", "few#1", "tokens#1", "head#1", "dead#1"}

    def test_a_channel_that_no_layer_has_is_refused_at_its_field(self, opened: Any) -> None:
        app, page, notes = opened
        self.view(page, channels="1")
        assert app.wait(60)
        notes.clear()
        self.view(page, channels="64")
        assert app.wait(60)
        assert app.gallery.alert["field"] == "channels"
        assert app.gallery.alert["code"] == "no-such-channel"
        assert app.alert == {}
        assert page.states[3]["view"]["channels"] == "1" == app.options.channels
        assert notes == {}
        self.view(page, cmap="magma")
        assert app.gallery.alert == {}

    def test_channels_that_a_layer_has_in_part_are_shown_in_part(self, opened: Any) -> None:
        app, page, notes = opened
        self.view(page, channels="0-5")
        assert app.wait(60)
        assert notes["conv#1"] is None
        assert notes["few#1"]["details"]["last"] == "1"

    def test_an_overlay_is_for_maps_alone(self, opened: Any) -> None:
        app, page, notes = opened
        self.view(page, overlay=True)
        assert app.wait(60)
        assert notes["conv#1"] is None
        assert notes["head#1"]["code"] == "overlay-needs-maps"
        app.layers = ["head"]
        self.view(page, overlay=False)
        self.view(page, overlay=True)
        assert app.gallery.alert["field"] == "overlay"
        assert page.states[3]["view"]["overlay"] is False

    def test_dead_channels_are_hidden_where_others_are_left(self, opened: Any) -> None:
        app, page, notes = opened
        self.view(page, hide_dead=True)
        assert app.wait(60)
        assert notes["conv#1"] is None
        assert notes["dead#1"]["code"] == "all-dead"

    def test_a_choice_is_not_refused_for_an_earlier_one(self, opened: Any) -> None:
        app, page, _ = opened
        self.view(page, overlay=True)
        for key in ("conv", "few", "dead"):
            page.say(3, {"type": "statistics", "key": f"{key}#1", "on": True})
        self.view(page, channels="0")  # vectors alone are left, which no overlay goes with
        assert app.gallery.alert == {}
        assert page.states[3]["view"]["channels"] == "0" == app.options.channels
        self.view(page, channels="64")
        assert app.gallery.alert["code"] == "no-such-channel"
        self.view(page, channels="", overlay=False)

    def test_a_page_beyond_the_last_is_the_last(self, opened: Any) -> None:
        app, page, notes = opened
        self.view(page, per_page=2)
        page.say(3, {"type": "page", "key": "conv#1", "page": 99})
        assert app.wait(60)
        assert notes["conv#1"] is None
        assert app.gallery.card("conv#1").page == 2
        self.view(page, per_page=64)


def test_an_action_that_cannot_be_is_refused_and_nothing_changes(
    scene: tuple[Explorer, StandIn],
) -> None:
    app, page = scene
    page.say(2, {"type": "preprocess", "choice": "model"})  # whatever was chosen before
    for do in ("", "size 999999 999999", "size 0 0", "size 1", "no such", "retry", "own-sizes"):
        page.say(0, {"type": "action", "do": do})
    assert app.wait(60)
    assert app.image_input.choice == "model"
    page.say(0, {"type": "action", "do": "size 999999 999999"})
    assert "pixels" in app.alert["message"]
    page.say(0, {"type": "dismiss"})
    page.assert_agrees()


class TestFields:
    def handler(self, name: str, count: int, on: bool = False, share: float = 0.0) -> None: ...

    @pytest.mark.parametrize(
        ("content", "part"),
        [
            ({"count": 1}, "without name"),
            ({"name": "a"}, "without count"),
            ({"name": 1, "count": 1}, "a text"),
            ({"name": "a", "count": True}, "whole number"),
            ({"name": "a", "count": 1.5}, "whole number"),
            ({"name": "a", "count": 2**60}, "whole number"),
            ({"name": "a", "count": 1, "on": "yes"}, "true or false"),
            ({"name": "a", "count": 1, "share": float("nan")}, "a number"),
            ({"name": "a\0", "count": 1}, "a text"),
            ({"name": "\ud800", "count": 1}, "a text"),
            ({"name": "a" * 200_000, "count": 1}, "a text"),
        ],
    )
    def test_a_field_of_another_type_is_refused_in_one_sentence(
        self, content: dict[str, Any], part: str
    ) -> None:
        with pytest.raises(HookvizError, match=part):
            arguments_of(self.handler, content, [])

    def test_a_field_left_out_keeps_its_default_and_unknown_ones_are_left_out(self) -> None:
        found = arguments_of(self.handler, {"name": "é", "count": 3.0, "self": 1}, [])
        assert found == {"name": "é", "count": 3}

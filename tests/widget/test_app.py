from __future__ import annotations

import gc
import json
import threading
import time
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz.errors import DeviceError, HookvizError, LayerError, ModelError
from hookviz.images import Preprocessing, sample_image
from hookviz.models import LoadedModel
from hookviz.widget import Explorer, MapGallery, explore
from hookviz.widget import _cells as cells
from hookviz.widget import _running as running
from hookviz.widget._painting import draw_card
from hookviz.widget._running import expected_rows


def hook_count(module: nn.Module) -> int:
    return sum(
        len(hooks)
        for part in module.modules()
        for name, hooks in vars(part).items()
        if name.endswith("_hooks") and isinstance(hooks, dict)
    )


def ready(app: Explorer, *layers: str) -> Explorer:
    app.image = sample_image()
    app.layers = list(layers) or ["conv", "relu"]
    return app


class Slow(nn.Module):
    """Waits at its gate, so that a test can do something meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.entered.set()
        assert self.gate.wait(20)
        return x


@pytest.fixture
def slow_app() -> Any:
    slow = Slow()
    net = nn.Sequential(nn.Conv2d(3, 4, 3), slow, nn.Conv2d(4, 5, 3))
    model = LoadedModel(net, "slow", "as passed in", True, preprocess=Preprocessing.for_size(16))
    app = ready(explore(model), "0", "1", "2")
    yield app, slow
    slow.gate.set()
    app.close()


class TestReasons:
    def test_what_is_missing_is_said_in_turn(self, app: Explorer, page: Any) -> None:
        assert app.why_not == "Choose an image."
        app.image = sample_image()
        assert app.why_not == "Tick at least one layer."
        page.say("run")
        assert app.status["state"] == "idle"
        app.layers = "conv"
        assert app.why_not == ""
        app.model = None
        assert app.why_not == "Choose a model."
        assert app.tree.rows == []

    def test_nothing_to_export_is_said(self, app: Explorer, page: Any) -> None:
        page.say("export", scope="ticked", what=["grids"])
        assert "nothing to export" in app.alert["message"]
        with pytest.raises(HookvizError, match="nothing to export"):
            app.export("nowhere")


class TestRun:
    def test_a_run_shows_every_call_and_tells_the_tree(
        self, app: Explorer, page: Any, gallery_page: Any
    ) -> None:
        gallery_page.look()
        ready(app, "conv", "relu", "unused", "fc")
        page.say("run")
        assert app.wait(30)
        assert app.alert == {}
        assert [c["key"] for c in app.gallery.cards] == [
            "conv#1",
            "relu#1",
            "relu#2",
            "fc#1",
            "unused#1",
        ]
        assert app.gallery.cards[1]["calls"] == 2
        assert app.tree.facts["relu"]["c"] == 2
        assert app.tree.facts["unused"]["r"]
        assert "Run to see" not in app.gallery.cards[-1]["reason"]
        assert app.run.layers == ("conv", "relu", "fc")
        assert set(app.figures) == {"conv", "relu call 1 of 2", "relu call 2 of 2", "fc"}
        told = [m["key"] for m, _ in gallery_page.heard if m["type"] == "pixels"]
        assert set(told) == {"conv#1", "relu#1", "relu#2", "fc#1"}
        assert app.status["text"].startswith("Done in")

    def test_the_model_is_left_as_it_was(self, app: Explorer, net: nn.Module) -> None:
        before = {k: v.clone() for k, v in net.state_dict().items()}
        ready(app, "conv", "deep")
        values = []
        for _ in range(2):
            assert app.start_run()
            assert app.wait(30)
            values.append(app.run.activations[-1].tensor)
        assert torch.equal(*values)
        assert net.training
        assert hook_count(net) == 0
        assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())

    def test_a_captured_layer_is_shown_at_once_and_an_unticked_one_is_hidden(
        self, app: Explorer
    ) -> None:
        ready(app, "conv", "fc")
        app.start_run()
        assert app.wait(30)
        first = app.run
        app.layers = ["fc"]
        assert [c["layer"] for c in app.gallery.cards] == ["fc"]
        app.layers = ["conv", "fc", "deep"]
        states = {c["layer"]: c["state"] for c in app.gallery.cards}
        assert states == {"conv": "shown", "fc": "shown", "deep": "pending"}
        assert app.run is first

    def test_view_changes_and_pages_never_run_the_model(
        self, app: Explorer, net: nn.Module, gallery_page: Any
    ) -> None:
        calls: list[int] = []
        handle = net.register_forward_hook(lambda *_: calls.append(1))
        gallery_page.look()
        ready(app, "conv")
        app.start_run()
        assert app.wait(30)
        gallery_page.say("view", changes={"cmap": "magma", "per_page": 4})
        gallery_page.say("page", key="conv#1", page=1)
        app.options = app.options.replace(order="mean")
        assert app.wait(30)
        assert calls == [1]
        handle.remove()

    def test_a_new_image_marks_results_stale_until_the_next_run(self, app: Explorer) -> None:
        ready(app, "conv", "fc")
        app.start_run()
        assert app.wait(30)
        app.layers = ["conv"]
        app.image = sample_image("coffee.png")
        assert [c["stale"] for c in app.gallery.cards] == [True]
        assert app.predictions == {}
        app.start_run()
        assert app.wait(30)
        assert [c["stale"] for c in app.gallery.cards] == [False]
        app.layers = ["conv", "fc"]
        # fc belonged to the picture before: it is not shown as if it were of this one.
        assert [c["state"] for c in app.gallery.cards] == ["shown", "pending"]

    def test_another_preprocessing_marks_results_stale(
        self, app: Explorer, image_page: Any
    ) -> None:
        ready(app, "conv")
        app.start_run()
        assert app.wait(30)
        image_page.say("preprocess", choice="squash")
        assert app.gallery.cards[0]["stale"]
        app.start_run()
        assert app.wait(30)
        assert app.run.input.preprocessing.fit == "squash"

    def test_single_calls_can_be_hidden(self, app: Explorer) -> None:
        ready(app, "relu")
        app.start_run()
        assert app.wait(30)
        app.tree.hidden_calls = ["relu#1"]
        assert [c["key"] for c in app.gallery.cards] == ["relu#2"]

    def test_a_double_click_runs_once_and_cancel_keeps_what_is_there(self, slow_app: Any) -> None:
        app, slow = slow_app
        assert app.start_run()
        assert slow.entered.wait(20)
        assert not app.start_run()
        assert app.status["state"] == "running"
        assert app.cancel()
        assert app.status["state"] == "cancelling"
        slow.gate.set()
        assert app.wait(30)
        assert app.alert == {}
        assert "Cancelled" in app.status["text"]
        shown = [c["layer"] for c in app.gallery.cards if c["state"] == "shown"]
        assert shown[0] == "0"
        assert "2" not in shown
        assert not app.cancel()
        assert app.start_run()
        assert app.wait(30)
        assert len(app.gallery.shown_cards) == 3

    def test_a_layer_is_shown_while_the_forward_is_still_under_way(self, slow_app: Any) -> None:
        app, slow = slow_app
        app.start_run()
        assert slow.entered.wait(20)
        assert [c["layer"] for c in app.gallery.cards if c["state"] == "shown"] == ["0"]
        slow.gate.set()
        assert app.wait(30)

    def test_ticks_during_a_run_and_the_image_swapped_meanwhile(self, slow_app: Any) -> None:
        app, slow = slow_app
        app.start_run()
        assert slow.entered.wait(20)
        app.layers = ["0"]
        app.image = sample_image("coffee.png")
        slow.gate.set()
        assert app.wait(30)
        # What arrived belongs to the image before.
        assert [c["stale"] for c in app.gallery.cards] == [True]

    def test_a_model_set_during_a_run_ends_it_and_gets_none_of_its_results(
        self, slow_app: Any
    ) -> None:
        app, slow = slow_app
        app.start_run()
        assert slow.entered.wait(20)
        assert len(app.gallery.shown_cards) == 1
        app.model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.ReLU())  # layers of those names
        assert app.gallery.shown_cards == []
        slow.gate.set()
        assert app.wait(30)
        assert app.run is None
        assert app.alert == app.predictions == {}
        assert app.status["outcome"] == "cancelled"
        assert {c["reason"] for c in app.gallery.cards} == {"Run to see it."}
        assert app.start_run()
        assert app.wait(30)
        assert app.gallery.shown_cards[0].activation.shape[1] == 2

    def test_a_run_that_cannot_begin_leaves_no_card_waiting(
        self, app: Explorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ready(app, "conv")

        def broken(*_args: Any, **_options: Any) -> Any:
            raise MemoryError("no room")

        monkeypatch.setattr(running, "network_input", broken)
        app.start_run()
        assert app.wait(30)
        assert "no room" in app.alert["message"]
        assert app.status["outcome"] == "failed"
        assert [c["reason"] for c in app.gallery.cards] == ["Run to see it."]

    def test_cards_say_why_they_are_empty(self, slow_app: Any) -> None:
        app, slow = slow_app
        app.start_run()
        assert slow.entered.wait(20)
        reasons = {c["layer"]: c["reason"] for c in app.gallery.cards}
        assert reasons == {"0": "", "1": "Waiting for the run.", "2": "Waiting for the run."}
        app.cancel()
        slow.gate.set()
        assert app.wait(30)
        assert app.gallery.cards[-1]["reason"] == "The run was cancelled before this layer."
        app.layers = []
        app.layers = ["2"]
        app.image = sample_image("coffee.png")
        assert app.gallery.cards[0]["reason"] == "Run to see it."

    def test_a_forward_that_fails_names_the_layer_and_keeps_the_rest(self) -> None:
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(5, 4, 3))
        app = ready(explore(net), "0", "1")
        app.start_run()
        assert app.wait(30)
        assert "layer '1'" in app.alert["message"]
        assert "Conv2d" in app.alert["message"]
        assert "stay" in app.alert["remedy"]
        assert "Traceback" in app.alert["traceback"]
        assert [c["layer"] for c in app.gallery.cards if c["state"] == "shown"] == ["0"]
        assert app.status["state"] == "idle"
        assert hook_count(net) == 0
        app.layers = ["0"]
        app.close()

    def test_out_of_memory_keeps_what_is_there_and_offers_the_cpu(
        self, app: Explorer, page: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ready(app, "conv")
        app.start_run()
        assert app.wait(30)

        def no_memory(model: Any, *args: Any, **kwargs: Any) -> Any:
            from dataclasses import replace

            return replace(app.run, activations=(), error=DeviceError("Out of memory on cuda."))

        monkeypatch.setattr(running, "run_model", no_memory)
        monkeypatch.setattr(LoadedModel, "device", torch.device("cuda"))
        app.start_run()
        assert app.wait(30)
        assert app.alert["action"]["do"] == "retry-cpu"
        assert app.gallery.cards[0]["state"] == "shown"

    def test_a_large_run_is_asked_about_first(
        self, app: Explorer, page: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ready(app, "conv")
        assert app.wait(30)
        monkeypatch.setattr(running, "LARGE", 100)
        page.say("run")
        assert page.types()[-1] == "ask-large"
        assert app.run is None
        page.say("run", anyway=True)
        assert app.wait(30)
        assert app.run is not None

    def test_runs_are_automatic_only_where_asked_and_coalesced(
        self, app: Explorer, page: Any, net: nn.Module, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[int] = []
        handle = net.register_forward_hook(lambda *_: calls.append(1))
        app.image = sample_image()
        app.layers = ["conv"]
        time.sleep(0.5)
        assert calls == []
        # On a busy machine four ticks may take longer than the usual 0.3 s.
        monkeypatch.setattr("hookviz.widget._running._AUTO_DELAY", 1.5)
        page.say("auto", on=True)
        for layers in (["fc"], ["conv", "fc"], ["deep"], ["conv", "deep", "fc"]):
            app.tree.selected = layers
        until = time.monotonic() + 20
        while app.run is None and time.monotonic() < until:
            time.sleep(0.02)
        assert app.wait(30)
        assert calls == [1]
        assert app.run.layers == ("conv", "deep", "fc")
        handle.remove()

    def test_fifty_rapid_ticks_draw_each_card_once_and_end_right(
        self, app: Explorer, gallery_page: Any
    ) -> None:
        ready(app, "conv", "relu", "fc", "deep")
        app.start_run()
        assert app.wait(30)
        gallery_page.look()
        for number in range(50):
            app.tree.selected = ["conv"] if number % 2 else ["conv", "fc"]
        assert app.wait(30)
        told = [m["key"] for m, _ in gallery_page.heard if m["type"] == "pixels"]
        assert [c["layer"] for c in app.gallery.cards] == ["conv"]
        assert told.count("conv#1") == 1


class TestModels:
    def test_another_model_clears_results_and_keeps_ticks_that_fit(
        self, app: Explorer, page: Any
    ) -> None:
        ready(app, "conv", "fc")
        app.start_run()
        assert app.wait(30)
        app.model = nn.ModuleDict({"conv": nn.Conv2d(3, 2, 1)})
        assert app.layers == ["conv"]
        assert [c["state"] for c in app.gallery.cards] == ["pending"]
        assert app.model_info["name"]

    def test_names_weights_and_an_untrained_model(self, app: Explorer, page: Any) -> None:
        page.say("models")
        names = [name for name, _ in page.last("models")[0]["names"]]
        assert names[0] == "net"
        assert "resnet18" in names
        page.say("weights", model="squeezenet1_1")
        values = [c[0] for c in page.last("weights")[0]["choices"]]
        assert values[0] == "auto"
        assert values[-2:] == ["none", "file"]
        page.say("load", model="squeezenet1_1", weights="none")
        assert app.wait(60)
        assert app.alert == {}
        assert app.model_info["trained"] is False
        assert "features.0" in app.tree.names
        page.say("load", model="net", weights="auto")
        assert app.wait(30)
        assert app.model.name == "net"

    @pytest.mark.parametrize(
        ("search", "first"),
        [
            ("resnet 50", ["resnet50", "deeplabv3_resnet50"]),
            ("NE", ["net", "resnet101"]),
            ("vgg1?", ["vgg11", "vgg13"]),
            ("~/runs/best.ckpt", ["~/runs/best.ckpt"]),
            ("C:\\models\\net.pt", ["C:\\models\\net.pt"]),
            ("resnet99", []),
        ],
    )
    def test_the_list_is_searched_and_takes_what_a_model_source_takes(
        self, app: Explorer, page: Any, search: str, first: list[str]
    ) -> None:
        page.say("models", search=search)
        answer = page.last("models")[0]
        assert [name for name, _ in answer["names"]][:2] == first
        assert (answer["search"], answer["current"]) == (search, "net")

    def test_models_on_this_machine_are_marked(self, app: Explorer, page: Any) -> None:
        page.say("models", search="")
        here = dict(page.last("models")[0]["names"])
        assert here["net"]
        assert here["vgg16"]

    @pytest.mark.parametrize(
        ("content", "part"),
        [
            ({"model": "vgg61", "weights": "auto"}, "vgg61"),
            ({"model": "vgg11", "weights": "file", "file": ""}, "file"),
            ({"model": "vgg11", "weights": "file", "file": "/no/such.pth"}, "such.pth"),
        ],
    )
    def test_what_cannot_be_loaded_is_said_and_the_model_stays(
        self, app: Explorer, page: Any, content: dict[str, str], part: str
    ) -> None:
        before = app.model
        page.say("load", **content)
        assert app.wait(60)
        assert part in app.alert["message"]
        assert app.model is before
        assert app.status["state"] == "idle"

    def test_an_unknown_name_raises_at_once(self) -> None:
        with pytest.raises(ModelError, match="vgg61"):
            explore("vgg61")
        with pytest.raises(LayerError, match="convv"):
            explore(nn.Sequential(nn.Conv2d(3, 2, 1)), layers=["convv"])

    def test_shapes_are_known_before_a_run_and_nothing_is_touched(self, model: LoadedModel) -> None:
        net = model.module
        seen: list[int] = []
        handle = net.register_forward_hook(lambda *_: seen.append(1))
        found = expected_rows(model, (1, 3, 24, 24))
        handle.remove()
        assert found.rows["conv"]["s"] == ["6×24×24"]
        assert found.rows["relu"]["c"] == 2
        assert sum(found.rows["conv"]["b"]) == 6 * 24 * 24 * 4
        assert "unused" not in found.rows
        assert found.order["relu#1"] < found.order["deep#1"] < found.order["relu#2"]
        assert seen == []
        assert net.training
        assert next(net.parameters()).device.type == "cpu"

    def test_a_model_whose_shapes_cannot_be_foreseen(self) -> None:
        class Picky(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x if float(x.sum()) > 0 else -x

        picky = LoadedModel(Picky(), "picky", "none", False)
        assert expected_rows(picky, (1, 3, 8, 8)).rows == {}


class TestState:
    def test_layers_from_the_page_and_from_python_are_one(self, app: Explorer) -> None:
        app.tree.selected = ["fc"]
        assert app.layers == ["fc"]
        app.layers = ["deep.*"]
        assert app.tree.selected == ["deep.0", "deep.1"]
        with pytest.raises(LayerError):
            app.layers = ["nope"]
        assert app.layers == ["deep.0", "deep.1"]

    def test_image_from_the_page_and_from_python_are_one(
        self, app: Explorer, image_page: Any
    ) -> None:
        image_page.say("sample", name="coffee.png")
        assert app.image.name == "coffee.png"
        app.image = sample_image("chelsea.png")
        assert app.image_input.value.name == "chelsea.png"
        app.image = None
        assert app.why_not == "Choose an image."

    def test_a_bad_sample_is_shown_in_the_app(self, app: Explorer, image_page: Any) -> None:
        image_page.say("sample", name="dog.png")
        assert "dog.png" in app.alert["message"]
        assert app.image_input.alert == {}

    def test_a_run_made_elsewhere_is_shown(self, app: Explorer, model: LoadedModel) -> None:
        run = hookviz.feature_maps(model, sample_image("coffee.png"), ["fc", "conv"])
        seen: list[Any] = []
        app.observe(lambda change: seen.append(change.new), "run")
        app.run = run
        assert seen == [run]
        assert app.layers == ["conv", "fc"]
        assert app.image.name == "coffee.png"
        assert [c["state"] for c in app.gallery.cards] == ["shown", "shown"]

    def test_the_state_that_a_notebook_keeps_is_small_and_has_no_pixels(
        self, app: Explorer, gallery_page: Any
    ) -> None:
        gallery_page.look()
        ready(app, "conv", "relu", "fc")
        app.start_run()
        assert app.wait(30)
        parts = (app, app.tree, app.image_input, app.gallery)
        state = json.dumps([{k: str(v) for k, v in p.get_state().items()} for p in parts])
        # Nearly all of it is the JavaScript and the style sheets of the four widgets.
        assert len(state) < 260_000
        plain = [{k: str(v) for k, v in p.get_state().items() if k[0] != "_"} for p in parts]
        assert len(json.dumps(plain)) < 12_000


class TestExport:
    def test_grids_channels_values_and_what_is_on_screen(
        self, app: Explorer, page: Any, gallery_page: Any, tmp_path: Path
    ) -> None:
        gallery_page.look()
        ready(app, "conv", "fc")
        app.start_run()
        assert app.wait(30)
        page.say("export", scope="grid", key="conv#1", what=["grids"], folder=str(tmp_path))
        assert app.wait(30)
        assert app.alert == {}
        folder = Path(app.export_result["path"])
        assert folder.parent == tmp_path.resolve()
        (grid,) = folder.glob("*_grid_*.png")
        shown = [b for m, b in gallery_page.heard if m.get("key") == "conv#1"][-1][0]
        card = app.gallery.card("conv#1")
        for png, on_page in ((grid, False), (BytesIO(shown), True)):
            # The page has the same maps without title and colorbar, which stand in its card's head.
            options = app.gallery.options_of(card, on_page=on_page)
            drawn = draw_card(card.activation, options, card.origin)[0]
            assert np.array_equal(Image.open(png).convert("RGB"), drawn.pixels()[..., :3])
            assert drawn.channels == tuple(range(drawn.total))
        page.say(
            "export", scope="channels", key="conv#1", channels="0-1", what=[], folder=str(tmp_path)
        )
        assert app.wait(30)
        assert len(list(Path(app.export_result["path"]).glob("*_ch*.png"))) == 2
        page.say("export", scope="ticked", what=["svg", "pdf"], key="conv#1", folder=str(tmp_path))
        assert app.wait(60)
        kinds = [p.suffix for p in Path(app.export_result["path"]).iterdir()]
        assert (kinds.count(".svg"), kinds.count(".pdf")) == (2, 2)
        app.layers = ["fc"]
        page.say(
            "export", scope="all", what=["grids", "values"], values="npz", folder=str(tmp_path)
        )
        assert app.wait(60)
        names = [p.name for p in Path(app.export_result["path"]).iterdir()]
        assert any("conv" in n for n in names)
        assert any("fc" in n for n in names)
        assert "manifest.json" in names

    @pytest.mark.parametrize(
        ("view", "scope"),
        [
            ({"channels": "5"}, "grid"),
            ({"channels": "5"}, "ticked"),
            ({"overlay": True}, "grid"),
            ({"overlay": True}, "ticked"),
            ({}, "grid"),
        ],
    )
    def test_a_file_shows_what_its_card_shows_also_where_it_lacks_what_was_chosen(
        self, app: Explorer, gallery_page: Any, tmp_path: Path, view: dict[str, Any], scope: str
    ) -> None:
        from PIL import Image

        gallery_page.look()
        ready(app, "conv", "fc")
        app.start_run()
        assert app.wait(30)
        gallery_page.say("view", changes=view)
        gallery_page.say("statistics", key="fc#1", on=not view)
        gallery_page.say("current", key="fc#1")
        assert app.wait(30)
        app.exporting.start(["grids"], scope, "fc#1", folder=str(tmp_path))
        assert app.wait(30)
        assert app.alert == {}
        (grid,) = Path(app.export_result["path"]).glob("*_fc_*_grid_*.png")
        shown = [b for m, b in gallery_page.heard if m.get("key") == "fc#1"][-1][0]
        assert (
            Image.open(grid).convert("RGB").tobytes()
            == Image.open(BytesIO(shown)).convert("RGB").tobytes()
        )

    @pytest.mark.parametrize(
        ("order", "part"),
        [
            ({"scope": "ticked", "what": []}, "kind of file"),
            ({"scope": "channels", "key": "conv#1", "what": []}, "channels"),
            ({"scope": "channels", "key": "conv#1", "channels": "zz", "what": []}, "zz"),
        ],
    )
    def test_orders_that_make_no_sense_are_said(
        self, app: Explorer, page: Any, tmp_path: Path, order: dict[str, Any], part: str
    ) -> None:
        ready(app, "conv")
        app.start_run()
        assert app.wait(30)
        page.say("export", folder=str(tmp_path), **order)
        assert app.wait(30)
        assert part in app.alert["message"]
        assert app.status["state"] == "idle"

    def test_a_folder_that_cannot_be_written(
        self, app: Explorer, page: Any, tmp_path: Path
    ) -> None:
        ready(app, "conv")
        app.start_run()
        assert app.wait(30)
        (tmp_path / "file").write_text("x")
        page.say("export", scope="ticked", what=["grids"], folder=str(tmp_path / "file"))
        assert app.wait(30)
        assert "file" in app.alert["message"]

    def test_a_zip_goes_to_the_page_in_pieces(
        self, app: Explorer, page: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import hookviz.widget._exporting as exporting

        monkeypatch.setattr(exporting, "_PIECE", 1000)
        ready(app, "conv")
        app.start_run()
        assert app.wait(30)
        page.say("zip", scope="ticked", what=["grids"])
        assert app.wait(30)
        ready_message, _ = page.last("file-ready")
        data = b""
        while len(data) < ready_message["size"]:
            page.say("file-piece", id=ready_message["id"], offset=len(data))
            data += page.last("file-piece")[1][0]
        with zipfile.ZipFile(BytesIO(data)) as archive:
            assert any("conv" in n for n in archive.namelist())
        page.say("file-piece", id=ready_message["id"], offset=0)
        assert "not there any more" in app.alert["message"]

    @pytest.mark.parametrize("scope", ["ticked", "grid", "all"])
    def test_a_page_goes_to_the_browser_as_it_is_and_is_no_larger_than_was_said(
        self, app: Explorer, page: Any, scope: str
    ) -> None:
        ready(app, "conv", "relu")
        page.say("page-size", scope=scope, key="conv#1")
        assert page.last("page-size")[0]["size"] == 0  # nothing was run
        app.start_run()
        assert app.wait(30)
        page.say("page-size", scope=scope, key="conv#1")
        assert app.wait(30)
        said = page.last("page-size")[0]
        assert (said["scope"], said["key"]) == (scope, "conv#1")
        page.say("zip", scope=scope, key="conv#1", what=["page"])
        assert app.wait(30)
        offered, _ = page.last("file-ready")
        assert offered["name"].endswith(".html")
        page.say("file-piece", id=offered["id"], offset=0)
        data = bytes(page.last("file-piece")[1][0])
        assert len(data) == offered["size"] <= said["size"] < 1_000_000
        text = data.decode("utf-8")
        assert text.startswith("<!doctype html>")
        shown = json.loads(
            text.split('<script type="application/json" id="page">')[1].split("</script>")[0]
        )
        names = [layer["name"] for layer in shown["layers"]]
        calls = ["relu call 1 of 2", "relu call 2 of 2"]
        assert names == (["conv"] if scope == "grid" else ["conv", *calls])
        page.say("page-size", scope="channels", key="conv#1")
        assert page.last("page-size")[0]["size"] == 0
        page.say("zip", scope="channels", key="conv#1", what=["page"], channels="")
        assert "No channels" in app.alert["message"]

    def test_zips_that_nobody_fetches_are_let_go_of(
        self, app: Explorer, page: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import hookviz.widget._exporting as exporting

        made: list[Any] = []
        plain = exporting.tempfile.TemporaryFile

        def make(**options: Any) -> Any:
            made.append(plain(**options))
            return made[-1]

        monkeypatch.setattr(exporting.tempfile, "TemporaryFile", make)
        ready(app, "conv")
        app.start_run()
        assert app.wait(30)
        for _ in range(4):
            page.say("zip", scope="ticked", what=["grids"])
            assert app.wait(30)
        assert [file.closed for file in made] == [True, True, False, False]
        app.close()
        assert all(file.closed for file in made)


class TestPanels:
    def test_each_panel_is_a_tab_with_a_widget_of_its_own(self, app: Explorer) -> None:
        from hookviz.widget._explorer import PANELS

        assert [title for title, _, _ in app.panels] == [panel.title for panel in PANELS]
        for (_, reference, _), panel in zip(app.panels, app.parts[3:], strict=True):
            assert reference == f"anywidget:{panel.model_id}"

    def test_about_states_the_layer_in_use_before_and_after_a_run(
        self, app: Explorer, gallery_page: Any
    ) -> None:
        about = next(p for p in app.parts if type(p).__name__ == "AboutLayer")
        assert about.facts == []
        ready(app, "conv", "relu")
        facts = dict(about.facts)
        assert facts["Layer"] == "conv"
        assert facts["Type"].endswith(".Conv2d")
        assert facts["Options"].startswith("3, 6, kernel_size=(3, 3)")
        assert facts["Parameters"] == "168 (weight 6×3×3×3, bias 6)"
        assert "Output" not in facts
        app.start_run()
        assert app.wait(30)
        assert dict(about.facts)["Output"] == "1×6×24×24 · float32 · 14 kB"
        gallery_page.say("current", key="relu#2")
        assert dict(about.facts)["Type"].endswith(".ReLU")
        app.layers = []
        assert about.facts == []

    def test_a_panel_that_fails_is_said_and_the_rest_goes_on(
        self, app: Explorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(app.parts[3], "refresh", lambda: 1 / 0)
        ready(app, "conv")
        assert "ZeroDivisionError" in app.alert["message"]
        app.start_run()
        assert app.wait(30)
        assert len(app.gallery.shown_cards) == 1


class TestLife:
    def test_closing_ends_threads_and_hooks(self, app: Explorer, net: nn.Module) -> None:
        ready(app, "conv")
        app.start_run()
        app.close()
        assert [t for t in threading.enumerate() if t.name.startswith("hookviz-")] == []
        assert hook_count(net) == 0
        app.close()

    def test_the_app_goes_with_its_last_view(self, app: Explorer, page: Any) -> None:
        page.say("view-open", view="a")
        page.say("view-open", view="b")
        page.say("view-here", view="a")
        assert page.types().count("roll-call") == 2
        page.say("view-closed", view="a")
        assert app.comm is not None
        page.say("view-closed", view="b")
        assert app.comm is None

    def test_views_of_a_page_that_was_loaded_again_do_not_count(
        self, app: Explorer, page: Any
    ) -> None:
        page.say("view-open", view="before")
        page.say("view-open", view="after")
        page.say("view-closed", view="after")
        assert app.comm is None

    def test_a_closed_app_can_be_shown_again(self, app: Explorer) -> None:
        ready(app, "conv")
        app.close()
        app.open()
        assert app.comm is not None
        assert app.tree.comm is not None
        app.layers = ["conv"]
        assert app.start_run()
        assert app.wait(30)
        assert len(app.gallery.shown_cards) == 1

    def test_running_a_cell_again_closes_its_older_app(
        self, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        where = [("cell", "1")]
        import hookviz.widget._explorer as explorer

        monkeypatch.setattr(explorer, "current_cell", lambda: where[0])
        monkeypatch.setattr(cells, "_apps", {})
        first, beside = explore(model), explore(model)
        where[0] = ("other", "2")
        other = explore(model)
        assert first.comm is not None
        where[0] = ("cell", "3")
        again = explore(model)
        assert (first.comm, beside.comm) == (None, None)
        assert other.comm is not None
        for app in (other, again):
            app.close()

    def test_outside_a_notebook_there_is_no_cell(self) -> None:
        assert cells.current_cell() is None

    def test_three_apps_on_one_model_record_each_layer_once(
        self, net: nn.Module, model: LoadedModel
    ) -> None:
        handle = net.conv.register_forward_hook(lambda *_: None)
        apps = [ready(explore(model), "conv", "relu") for _ in range(3)]
        for app in apps:
            assert app.start_run()
        for app in apps:
            assert app.wait(60)
            assert [(a.layer, a.call) for a in app.run.activations] == [
                ("conv", 1), ("relu", 1), ("relu", 2),
            ]  # fmt: skip
        apps[0].layers = ["fc"]
        assert apps[1].layers == ["conv", "relu"]
        for app in apps:
            app.close()
        assert hook_count(net) == 1
        handle.remove()

    def test_the_static_picture_follows_the_run(
        self, app: Explorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import base64

        from PIL import Image

        from hookviz.widget import _still as still

        told: list[dict[str, Any]] = []

        class Publisher:
            def publish(self, **what: Any) -> None:
                told.append(what)

        monkeypatch.setattr(still, "_publisher", Publisher)
        app._still.id = "display"
        app.gallery._take_look(1300)
        ready(app, "conv", "fc")
        app.start_run()
        assert app.wait(30)
        until = time.monotonic() + 10
        while not told and time.monotonic() < until:
            time.sleep(0.01)
        last = told[-1]
        assert last["update"] is True
        assert last["transient"] == {"display_id": "display"}
        png = base64.b64decode(last["data"]["image/png"])
        assert Image.open(BytesIO(png)).width == still.WIDTH
        app.gallery._come_near(["conv#1"])  # nothing on the pictures has changed
        assert app.wait(30)
        time.sleep(0.8)  # a second one would come after half a second
        assert len(told) == 1

    def test_displayed_once_with_one_picture_behind_it(
        self, app: Explorer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import IPython.display

        shown: list[dict[str, Any]] = []
        monkeypatch.setattr(IPython.display, "display", lambda data, **_options: shown.append(data))
        app._ipython_display_()
        kinds = [set(data) for data in shown]
        view = "application/vnd.jupyter.widget-view+json"
        assert [view in k for k in kinds] == [True, False, False]
        assert "object at" not in shown[0]["text/plain"]

    def test_nothing_of_a_closed_app_is_kept(self, model: LoadedModel) -> None:
        import weakref

        app = ready(explore(model), "conv")
        app.start_run()
        assert app.wait(30)
        tensor = weakref.ref(app.run.activations[0].tensor)
        app.close()
        del app
        until = time.monotonic() + 10
        while tensor() is not None and time.monotonic() < until:
            gc.collect()
            time.sleep(0.02)
        assert tensor() is None

    def test_explore_without_arguments_is_vgg16(self) -> None:
        app = explore()
        assert app.model_info["name"] == "vgg16"
        assert "features.28" in app.tree.names
        assert isinstance(app.gallery, MapGallery)
        app.close()


class TestSlowLink:
    def test_small_pictures_have_fewer_bytes_and_nearly_the_same_colors(
        self, app: Explorer, gallery_page: Any
    ) -> None:
        gallery_page.look()
        ready(app, "conv")
        app.start_run()
        assert app.wait(30)

        def shown() -> tuple[bytes, Any]:
            png = bytes(gallery_page.last("pixels")[1][0])
            return png, np.asarray(Image.open(BytesIO(png)).convert("RGB")).astype(int)

        exact, colors = shown()
        gallery_page.say("small", on=True)
        assert app.wait(30)
        assert app.gallery.small
        small, nearly = shown()
        assert len(small) < 0.7 * len(exact)
        assert nearly.shape == colors.shape
        assert np.abs(nearly - colors).max() <= 12
        assert np.abs(nearly - colors).mean() < 1
        gallery_page.say("small", on=False)
        assert app.wait(30)
        assert shown()[0] == exact


class TestFilters:
    def test_a_card_shows_its_layers_filters_and_exports_them(
        self, app: Explorer, gallery_page: Any, tmp_path: Any
    ) -> None:
        gallery_page.look()
        ready(app, "conv", "relu")
        app.start_run()
        assert app.wait(30)
        known = {card["layer"]: card["filters"] for card in app.gallery.cards}
        assert known == {"conv": False, "relu": None}  # a ReLU has none
        gallery_page.say("filters", key="conv#1", on=True)
        assert app.wait(30)

        def facts() -> dict[str, Any]:
            pixels = [m for m, _ in gallery_page.heard if m["type"] == "pixels"]
            return [m for m in pixels if m["key"] == "conv#1"][-1]

        assert facts()["shape"] == "6×3×3×3"
        assert "filters" in facts()["alt"]
        # what the view says of activations does not touch them
        gallery_page.say("view", changes={"channels": "2", "overlay": True})
        assert app.wait(30)
        assert facts()["channels"] == 6
        app.exporting.start(["grids"], "grid", "conv#1", folder=str(tmp_path))
        assert app.wait(30)
        assert any("weight" in path.name for path in tmp_path.rglob("*.png"))
        gallery_page.say("statistics", key="conv#1", on=True)
        card = app.gallery.card("conv#1")
        assert (card.statistics, card.filters) == (True, False)
        gallery_page.say("filters", key="relu#1", on=True)
        assert not app.gallery.card("relu#1").filters

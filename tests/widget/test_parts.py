from __future__ import annotations

import gc
import io
import sys
from dataclasses import replace
from typing import Any

import anywidget
import numpy as np
import pytest
import torch
from ipywidgets.embed import embed_data
from PIL import Image
from torch import nn

from hookviz.activation import Activation
from hookviz.capture import Capture, list_layers
from hookviz.errors import HookvizError, ImageError, LayerError, RenderError
from hookviz.images import Preprocessing, sample_image
from hookviz.models import LoadedModel
from hookviz.render import GridOptions
from hookviz.widget import Explorer, ImageInput, LayerTree, MapGallery
from hookviz.widget._part import Handlers, Part, problem
from hookviz.widget._view_options import changed_options, view_of


def png(width: int = 40, height: int = 30, value: int = 90) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def upload(
    page: Any, data: bytes, name: str = "a.png", piece: int = 2_000_000, key: str = "u"
) -> None:
    page.say("upload-start", id=key, name=name, size=len(data))
    for offset in range(0, len(data), piece):
        page.say("upload-piece", data[offset : offset + piece], id=key, offset=offset)


class TestErrors:
    def test_a_handler_never_raises_and_the_error_is_shown(self) -> None:
        class Bad(Part):
            def act(self) -> None:
                raise HookvizError("It broke.", remedy="Mend it.")

            def boom(self) -> None:
                raise KeyboardInterrupt

            def handlers(self) -> Handlers:
                return {**super().handlers(), "act": self.act, "boom": self.boom}

        bad = Bad()
        bad._handle_custom_msg({"type": "act"}, [])
        assert bad.alert["message"] == "It broke."
        assert bad.alert["remedy"] == "Mend it."
        assert "Traceback" in bad.alert["traceback"]
        bad._handle_custom_msg({"type": "boom"}, [])
        assert "interrupted" in bad.alert["message"]
        bad._handle_custom_msg({"type": "dismiss"}, [])
        assert bad.alert == {}
        for nonsense in ("text", None, {}, {"type": 3}, {"type": []}, {"type": "__init__"}):
            bad._handle_custom_msg(nonsense, [])
        assert bad.alert == {}
        bad.close()

    @pytest.mark.parametrize("kind", [LayerTree, ImageInput, MapGallery, Explorer])
    def test_a_widget_that_cannot_be_made_is_cleared_away_in_silence(
        self, kind: type[Part], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_self: Any, **_traits: Any) -> None:
            raise RuntimeError("no kernel")

        monkeypatch.setattr(anywidget.AnyWidget, "__init__", broken)
        seen: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", seen.append)
        with pytest.raises(RuntimeError, match="no kernel"):
            kind()
        gc.collect()  # ipywidgets closes a widget when it is disposed of
        assert [str(what.exc_value) for what in seen] == []

    def test_an_unforeseen_error_is_one_sentence(self) -> None:
        shown = problem(RuntimeError("shapes differ\nlong story"), action={"label": "x", "do": "y"})
        assert shown["message"] == "RuntimeError: shapes differ."
        assert shown["action"] == {"label": "x", "do": "y"}
        assert problem(ValueError())["message"] == "ValueError: no message."


class TestLayerTree:
    def test_rows_are_there_from_the_first_message(self, net: nn.Module) -> None:
        tree = LayerTree(net, ["conv", "deep.*"])
        assert tree.rows[0] == ["", "Net", 0]
        assert tree.selected == ["conv", "deep.0", "deep.1"]
        assert set(tree.get_state(["rows", "selected"])) == {"rows", "selected"}
        tree.close()

    def test_ticks_that_the_next_model_has_too_are_kept(self, net: nn.Module) -> None:
        tree = LayerTree(net, ["conv", "fc"])
        tree.show(nn.ModuleDict({"conv": nn.Conv2d(1, 1, 1), "other": nn.ReLU()}))
        assert tree.selected == ["conv"]
        assert tree.names == ["", "conv", "other"]
        tree.show(None)
        assert tree.rows == []
        tree.close()

    def test_from_a_list_of_layers(self, net: nn.Module) -> None:
        tree = LayerTree(list_layers(net), {"fc"})
        assert tree.selected == ["fc"]
        tree.close()

    def test_an_unknown_layer_is_an_error_with_the_closest_names(self, net: nn.Module) -> None:
        with pytest.raises(LayerError, match="convv"):
            LayerTree(net, ["convv"])
        tree = LayerTree(net, ["fc"])
        with pytest.raises(LayerError, match=r"convv.*'conv'"):
            tree.selected = ["convv"]
        assert tree.selected == ["fc"]
        tree.close()

    def test_a_loaded_model_is_taken_where_a_module_is(self, model: LoadedModel) -> None:
        tree = LayerTree(model, nn.Conv2d)
        assert tree.selected == ["conv", "deep.0", "unused"]
        tree.show(replace(model, module=nn.Sequential(nn.ReLU())))
        assert tree.names == ["", "0"]
        tree.close()

    def test_ticks_are_put_into_the_models_order_and_those_of_another_model_are_left_out(
        self, net: nn.Module
    ) -> None:
        tree = LayerTree(net)
        tree.selected = ["fc", "conv", "fc"]
        assert tree.selected == ["conv", "fc"]
        tree.set_state({"selected": ["gone", "fc", "conv"], "hidden_calls": ["gone#1", "fc#1"]})
        assert tree.selected == ["conv", "fc"]
        assert tree.hidden_calls == ["fc#1"]
        tree.set_state({"rows": [], "facts": {"conv": 1}, "search": "x" * 5000})
        assert tree.names[0] == ""
        assert tree.facts == {}
        assert len(tree.search) == 1000
        tree.close()


class TestImageInput:
    def test_pieces_are_acknowledged_and_become_the_picture(self, make_page: Any) -> None:
        widget = ImageInput(preprocess=Preprocessing.for_size(16))
        page = make_page(widget)
        data = png()
        upload(page, data, piece=50)
        acks = [m["received"] for m, _ in page.heard if m["type"] == "upload-ack"]
        assert acks[0] == 0
        assert acks[-1] == len(data)
        assert page.types().count("upload-done") == 1
        assert widget.value.name == "a.png"
        assert widget.info["size"] == "40 × 30"
        assert "16 × 16" in widget.info["seen"]
        _, buffers = page.last("picture")
        assert Image.open(io.BytesIO(buffers[0])).size == (16, 16)
        widget.close()

    def test_the_same_file_twice_is_two_changes(self, make_page: Any) -> None:
        widget = ImageInput()
        page, seen = make_page(widget), []
        widget.observe(lambda change: seen.append(change.new), "value")
        upload(page, png())
        upload(page, png(), key="v")
        page.say("sample", name="chelsea.png")
        page.say("sample", name="chelsea.png")
        assert [p.name for p in seen] == ["a.png", "a.png", "chelsea.png", "chelsea.png"]
        widget.close()

    @pytest.mark.parametrize(
        ("data", "name"),
        [
            (b"", "empty.png"),
            (b"<svg/>", "drawing.png"),
            (b"GIF89a", "short.gif"),
            (png()[:60], "half.png"),
        ],
        ids=["empty", "svg", "short", "half"],
    )
    def test_a_bad_file_is_one_alert_and_the_old_picture_stays(
        self, make_page: Any, data: bytes, name: str
    ) -> None:
        widget = ImageInput(sample_image())
        page = make_page(widget)
        upload(page, data, name)
        assert name in widget.alert["message"]
        assert "upload-refused" in page.types()
        assert widget.value.name == "chelsea.png"
        upload(page, png(), "good.png", key="w")
        assert widget.alert == {}
        assert widget.value.name == "good.png"
        widget.close()

    def test_a_file_too_large_is_refused_before_its_bytes(self, make_page: Any) -> None:
        widget = ImageInput(max_bytes=1000)
        page = make_page(widget)
        page.say("upload-start", id="u", name="big.png", size=60_000_000)
        assert page.types() == ["upload-refused"]
        assert "big.png" in widget.alert["message"]
        page.say("upload-piece", b"x", id="u", offset=0)
        assert page.types() == ["upload-refused"]
        widget.close()

    def test_late_pieces_of_a_replaced_upload_are_ignored(self, make_page: Any) -> None:
        widget = ImageInput()
        page, data = make_page(widget), png()
        page.say("upload-start", id="old", name="old.png", size=len(data))
        page.say("upload-start", id="new", name="new.png", size=len(data))
        page.say("upload-piece", data, id="old", offset=0)
        page.say("upload-piece", data, id="new", offset=0)
        assert widget.value.name == "new.png"
        assert widget.alert == {}
        widget.close()

    def test_what_the_page_found_out_itself_is_shown(self, make_page: Any) -> None:
        widget = ImageInput()
        make_page(widget).say("problem", message="Too large.", remedy="Smaller.")
        assert widget.alert["message"] == "Too large."
        widget.close()

    @pytest.mark.parametrize("choice", ["pad", "squash", "none"])
    def test_the_preprocessing_chosen_is_the_one_used(self, make_page: Any, choice: str) -> None:
        widget = ImageInput(sample_image(), Preprocessing.for_size(16))
        make_page(widget).say("preprocess", choice=choice)
        given = widget.network_input()
        assert given.preprocessing.fit == choice
        height, width = given.tensor.shape[2:]
        assert (height, width) == (16, 16) if choice != "none" else min(height, width) == 16
        widget.close()

    def test_an_unknown_preprocessing_is_shown(self, make_page: Any) -> None:
        widget = ImageInput(sample_image())
        make_page(widget).say("preprocess", choice="upside down")
        assert widget.alert["message"]
        assert widget.choice == "model"
        widget.close()

    def test_pictures_are_never_part_of_the_state(self) -> None:
        widget = ImageInput(sample_image("astronaut.png"), Preprocessing.for_size(64))
        state = {k: v for k, v in widget.get_state().items() if k not in ("_esm", "_css")}
        assert len(str(state)) < 3000
        widget.close()

    def test_set_from_python(self) -> None:
        widget = ImageInput()
        widget.value = np.zeros((4, 5, 3), np.uint8)
        assert widget.value.size == (5, 4)
        with pytest.raises((ImageError, OSError)):
            widget.value = "no such file.png"
        assert widget.value.size == (5, 4)
        widget.value = None
        assert widget.info == {}
        widget.close()


def test_an_app_can_be_embedded_in_a_page_without_a_kernel() -> None:
    app = Explorer()
    try:
        state = embed_data([app])["manager_state"]["state"]
        assert {app.model_id, *(part.model_id for part in app.parts)} <= state.keys()
    finally:
        app.close()


def activations(net: nn.Module, *layers: str) -> tuple[Activation, ...]:
    with torch.no_grad(), Capture(net, layers, eval_mode=True) as capture:
        capture.run(torch.rand(1, 3, 24, 24))
    return capture.activations


class TestMapGallery:
    def test_nothing_is_drawn_before_a_page_looks(self, net: nn.Module, make_page: Any) -> None:
        gallery = MapGallery(activations(net, "conv", "relu"))
        page = make_page(gallery)
        assert gallery.wait(10)
        assert page.heard == []
        assert [c["key"] for c in gallery.cards] == ["conv#1", "relu#1", "relu#2"]
        page.look()
        assert gallery.wait(20)
        assert [m["key"] for m, _ in page.heard] == ["conv#1", "relu#1", "relu#2"]
        message, buffers = page.heard[0]
        assert Image.open(io.BytesIO(buffers[0])).width == 500 == message["width"]
        assert message["shape"] == "6×24×24"
        gallery.close()

    def test_pages_turn_and_the_version_grows(self, net: nn.Module, make_page: Any) -> None:
        gallery = MapGallery(activations(net, "conv"), GridOptions(per_page=4))
        page = make_page(gallery)
        page.look()
        assert gallery.wait(20)
        page.say("page", key="conv#1", page=1)
        assert gallery.wait(20)
        first, second = (m for m, _ in page.heard)
        assert (first["page"], second["page"], second["pages"]) == (0, 1, 2)
        assert first["version"] < second["version"] == gallery.cards[0]["version"]
        page.say("page", key="nowhere#1", page=1)
        assert gallery.alert == {}
        gallery.close()

    def test_a_card_that_comes_back_gets_its_picture_again(
        self, net: nn.Module, make_page: Any
    ) -> None:
        found = activations(net, "conv")
        gallery = MapGallery(found)
        page = make_page(gallery)
        page.look()
        assert gallery.wait(20)
        for _ in range(3):
            gallery.activations = ()
            gallery.activations = found
        assert gallery.wait(20)
        message, _ = page.last("pixels")
        assert message["version"] == gallery.cards[0]["version"]
        assert page.types().count("pixels") > 1
        gallery.close()

    def test_a_page_that_looks_again_gets_the_same_pictures(
        self, net: nn.Module, make_page: Any
    ) -> None:
        gallery = MapGallery(activations(net, "conv"))
        page = make_page(gallery)
        page.look()
        assert gallery.wait(20)
        page.look()
        assert gallery.wait(20)
        (_, first), (_, second) = page.heard
        assert first == second
        gallery.close()

    def test_view_changes_are_checked_and_shown(self, net: nn.Module, make_page: Any) -> None:
        gallery = MapGallery(activations(net, "conv"))
        page = make_page(gallery)
        page.look()
        page.say("view", changes={"cmap": "magma", "order": "mean", "hide_dead": True})
        assert gallery.options.cmap == "magma"
        assert gallery.view["order"] == "mean"
        page.say("view", changes={"channels": "0-3,cat"})
        assert "cat" in gallery.alert["message"]
        assert gallery.options.channels is None
        assert gallery.view["channels"] == ""
        page.say("view", changes={"channels": "0-2"})
        assert gallery.alert == {}
        assert gallery.wait(20)
        message, _ = page.last("pixels")
        assert message["alt"]
        gallery.close()

    def test_a_channel_that_a_layer_lacks_is_said_on_its_card_which_shows_all(
        self, net: nn.Module, make_page: Any
    ) -> None:
        gallery = MapGallery(activations(net, "conv", "deep.0"), GridOptions(channels="7"))
        page = make_page(gallery)
        page.look()
        assert gallery.wait(20)
        told = {m["key"]: m for m, _ in page.heard}
        details = told["conv#1"]["note"]["details"]
        named = {"channel": "7", "last": "5", "noun": "channel", "option": "channels"}
        assert details == named
        assert told["conv#1"]["channels"] == 6
        assert not any("error" in message for message in told.values())
        assert "note" not in told["deep.0#1"]
        assert gallery.alert == {}
        gallery.close()

    def test_a_fixed_scale_begins_with_the_layers_range(
        self, net: nn.Module, make_page: Any
    ) -> None:
        gallery = MapGallery(activations(net, "conv"))
        page = make_page(gallery)
        page.look()
        page.say("view", changes={"scale": "fixed"})
        tensor = gallery.activations[0].tensor
        assert gallery.options.vmin == pytest.approx(float(tensor.min()))
        page.say("view", changes={"vmax": "nine"})
        assert "nine" in gallery.alert["message"]
        page.say("view", changes={"scale": "channel"})
        assert gallery.options.vmin is None
        gallery.close()

    def test_collapse_statistics_and_the_current_card(self, net: nn.Module, make_page: Any) -> None:
        gallery = MapGallery(activations(net, "conv", "deep.0"))
        page = make_page(gallery)
        page.look()
        assert gallery.wait(20)
        before = len(page.heard)
        page.say("collapse", key="conv#1", on=True)
        assert gallery.wait(20)
        assert gallery.cards[0]["collapsed"]
        assert len(page.heard) == before
        page.say("statistics", key="deep.0#1", on=True)
        assert gallery.wait(20)
        assert "statistics" in page.last("pixels")[0]["alt"]
        assert gallery.current.key == "deep.0#1"
        gallery.close()

    def test_leaves_are_chosen_on_the_card(self, make_page: Any) -> None:
        lstm = nn.LSTM(4, 6)
        with torch.no_grad(), Capture(lstm, [""], eval_mode=True) as capture:
            capture.run(torch.rand(5, 1, 4))
        gallery = MapGallery(capture.activations)
        page = make_page(gallery)
        page.look()
        assert len(gallery.cards) == 1
        leaves = gallery.cards[0]["leaves"]
        assert len(leaves) == 3
        page.say("leaf", key="#1", leaf=leaves[1])
        assert gallery.cards[0]["leaf"] == leaves[1]
        page.say("leaf", key="#1", leaf="none such")
        assert gallery.cards[0]["leaf"] == leaves[1]
        assert gallery.wait(20)
        gallery.close()

    def test_figures_are_drawn_on_access_and_closed_to_pyplot(self, net: nn.Module) -> None:
        gallery = MapGallery(activations(net, "conv", "relu"))
        assert list(gallery.figures) == ["conv", "relu call 1 of 2", "relu call 2 of 2"]
        figure = gallery.figures["conv"]
        assert figure is not gallery.figures["conv"]
        assert "conv" in repr(gallery.figures)
        with pytest.raises(KeyError):
            gallery.figures["nope"]
        gallery.close()

    def test_a_drawing_that_breaks_is_shown_and_the_rest_is_drawn(
        self, net: nn.Module, make_page: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import hookviz.widget._painting as painting

        real = painting.draw

        def draw(activation: Activation, *args: Any, **kwargs: Any) -> Any:
            if activation.layer == "conv":
                raise ZeroDivisionError("by nothing")
            return real(activation, *args, **kwargs)

        monkeypatch.setattr(painting, "draw", draw)
        gallery = MapGallery(activations(net, "conv", "deep.0"))
        page = make_page(gallery)
        page.look()
        assert gallery.wait(20)
        assert "by nothing" in gallery.alert["message"]
        assert "error" not in page.last("pixels")[0]
        gallery.close()


def test_view_of_options_and_back() -> None:
    options = changed_options(
        GridOptions(), {"scale": "fixed", "vmin": "−1,5", "vmax": 2, "evil": 1}
    )
    assert (options.vmin, options.vmax) == (-1.5, 2.0)
    assert view_of(options)["vmin"] == "-1.5"
    with pytest.raises(RenderError):
        changed_options(options, {"vmin": "3"})
    assert changed_options(GridOptions(), {"scale": "fixed"}, lambda: (2.0, 2.0)).vmin == 1.5

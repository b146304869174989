"""Weights over real HTTP from 127.0.0.1, the cache in a temporary folder."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.models as tv

from hookviz.errors import RunCancelled, WeightsError
from hookviz.models import cached_weights, list_weights, load_model
from hookviz.models._weights_cache import download, reachable


def folder(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def assert_loaded(model: Any, served: Any) -> None:
    assert model.trained
    assert model.weights == served.member.name
    assert not model.module.training
    state = model.module.state_dict()
    assert set(state) == set(served.state)
    assert all(torch.equal(state[name], served.state[name]) for name in state)


def load(**options: Any) -> Any:
    return load_model("squeezenet1_1", device="cpu", **{"progress": False, **options})


# --- good ---------------------------------------------------------------------------------------


def test_a_good_server_fills_the_cache_and_is_asked_once(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    assert_loaded(load(), served_squeezenet)
    assert folder(torch_cache) == [served_squeezenet.file]
    assert (torch_cache / served_squeezenet.file).read_bytes() == served_squeezenet.body
    weights_server.files.clear()
    assert_loaded(load(weights="DEFAULT"), served_squeezenet)
    assert len(weights_server.requests) == 1


def test_progress_tells_bytes_to_the_end(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    weights_server.ways[served_squeezenet.file] = "slow"
    told: list[tuple[int, int, str]] = []
    load(progress=lambda done, total, name: told.append((done, total, name)))
    size = len(served_squeezenet.body)
    assert len(told) > 2
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert told[-1] == (size, size, served_squeezenet.file)
    assert all(total == size for _, total, _ in told)


def test_the_bar_shows_bytes_and_speed(
    served_squeezenet: Any, torch_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(progress=True)
    shown = capsys.readouterr()
    assert served_squeezenet.file in shown.err
    assert "B/s" in shown.err
    assert shown.out == ""


def test_a_mirror_set_by_the_environment_is_asked_instead(
    weights_server: Any,
    squeezenet_state: dict[str, torch.Tensor],
    torch_cache: Path,
    served_squeezenet: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"https://download.pytorch.org/models/{served_squeezenet.file}"
    monkeypatch.setattr(served_squeezenet.member.value, "url", url)
    monkeypatch.setenv("HOOKVIZ_WEIGHTS_HOST", f"{weights_server.address}/torch/")
    assert_loaded(load(), served_squeezenet)


# --- bad on the way -----------------------------------------------------------------------------


def test_a_connection_cut_halfway_is_resumed(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    weights_server.ways[served_squeezenet.file] = "cut"
    assert_loaded(load(), served_squeezenet)
    half = len(served_squeezenet.body) // 2
    assert [asked for _, asked in weights_server.requests] == ["", f"bytes={half}-"]
    assert folder(torch_cache) == [served_squeezenet.file]


def test_a_server_without_ranges_is_asked_from_the_start_again(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    weights_server.ways[served_squeezenet.file] = "cut without ranges"
    assert_loaded(load(), served_squeezenet)
    assert folder(torch_cache) == [served_squeezenet.file]


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("always cut", "the connection broke at"),
        ("404", "the server answered 404"),
        ("403", "the server answered 403"),
        ("500", "the server answered 500"),
        ("page", "a web page instead of the file"),
    ],
)
def test_a_failed_download_is_one_sentence_and_leaves_no_half_file(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path, way: str, said: str
) -> None:
    weights_server.ways[served_squeezenet.file] = way
    with pytest.raises(WeightsError) as caught:
        load()
    text = str(caught.value)
    assert said in text
    assert served_squeezenet.file in text
    assert str(torch_cache) in text
    assert "weights=None" in text
    assert "\n" not in text
    assert folder(torch_cache) == []


def test_a_wrong_hash_is_refused_and_not_kept(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    body = bytearray(served_squeezenet.body)
    body[len(body) // 2] ^= 1
    weights_server.files[served_squeezenet.file] = bytes(body)
    with pytest.raises(WeightsError, match="its SHA-256 begins with"):
        load()
    assert folder(torch_cache) == []


def test_a_silent_server_is_given_up_within_five_seconds(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    weights_server.ways[served_squeezenet.file] = "silent"
    start = time.monotonic()
    with pytest.raises(WeightsError, match="no answer within"):
        load()
    # The promise is "offline within 5 seconds"; the margin is for a busy machine.
    assert time.monotonic() - start < 7
    assert folder(torch_cache) == []


def test_nobody_listening(served_squeezenet: Any, torch_cache: Path, monkeypatch: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    url = f"http://127.0.0.1:{port}/models/{served_squeezenet.file}"
    monkeypatch.setattr(served_squeezenet.member.value, "url", url)
    with pytest.raises(WeightsError) as caught:
        load()
    assert f"127.0.0.1:{port}: no connection" in str(caught.value)
    assert f"Put {served_squeezenet.file} into {torch_cache}" in str(caught.value)
    assert folder(torch_cache) == []


def test_a_name_that_hangs_in_the_look_up(
    served_squeezenet: Any, torch_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hanging(*args: Any, **kwargs: Any) -> Any:
        time.sleep(6)
        raise OSError("too late")

    url = f"http://weights.invalid/models/{served_squeezenet.file}"
    monkeypatch.setattr(served_squeezenet.member.value, "url", url)
    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    with pytest.raises(WeightsError, match="no answer within"):
        load()


def test_cancelled_midway_keeps_nothing(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    weights_server.ways[served_squeezenet.file] = "slow"
    seen: list[int] = []
    with pytest.raises(RunCancelled):
        load(progress=lambda done, *_: seen.append(done), cancelled=lambda: len(seen) > 1)
    assert seen[-1] < len(served_squeezenet.body)
    assert folder(torch_cache) == []


def test_cancelled_in_the_middle_of_a_silence(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    weights_server.ways[served_squeezenet.file] = "stalls"
    begun = threading.Event()
    with pytest.raises(RunCancelled):
        load(progress=lambda *_: begun.set(), cancelled=begun.is_set)
    assert folder(torch_cache) == []


def test_a_silence_in_the_middle_is_a_broken_connection(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("hookviz.models._weights_cache.STALL_SECONDS", 0.3)
    weights_server.ways[served_squeezenet.file] = "stalls"
    assert_loaded(load(), served_squeezenet)
    assert len(weights_server.requests) == 2


def test_cancelled_while_connecting(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    weights_server.ways[served_squeezenet.file] = "silent"
    asked = threading.Event()
    threading.Timer(0.3, asked.set).start()
    with pytest.raises(RunCancelled):
        load(cancelled=asked.is_set)


# --- what lies in the cache ---------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "page", "longer"])
def test_a_corrupt_file_in_the_cache_is_found_and_fetched_again(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path, damage: str
) -> None:
    body = served_squeezenet.body
    flipped = bytearray(body)
    flipped[1000] ^= 1
    bad = {
        "cut": body[: len(body) // 3],
        "flipped": bytes(flipped),
        "empty": b"",
        "page": b"<html>Sign in</html>",
        "longer": body + b"x",
    }[damage]
    torch_cache.mkdir(parents=True)
    (torch_cache / served_squeezenet.file).write_bytes(bad)
    assert_loaded(load(), served_squeezenet)
    assert (torch_cache / served_squeezenet.file).read_bytes() == body
    assert folder(torch_cache) == [served_squeezenet.file]
    if damage == "cut":  # only the rest was asked for
        assert weights_server.requests == [(served_squeezenet.file, f"bytes={len(bad)}-")]


def test_a_corrupt_file_stays_where_no_better_one_is_to_be_had(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    torch_cache.mkdir(parents=True)
    (torch_cache / served_squeezenet.file).write_bytes(b"damaged")
    weights_server.ways[served_squeezenet.file] = "404"
    with pytest.raises(WeightsError, match="the file there is damaged"):
        load()
    assert folder(torch_cache) == [served_squeezenet.file]


def test_auto_takes_other_cached_weights_before_a_download(
    torch_cache: Path, monkeypatch: pytest.MonkeyPatch, as_file: Any
) -> None:
    state = tv.resnet18(weights=None).state_dict()
    body = as_file(state)
    file = f"resnet-{hashlib.sha256(body).hexdigest()[:8]}.pth"
    torch_cache.mkdir(parents=True)
    (torch_cache / file).write_bytes(body)
    member = tv.ResNet18_Weights.IMAGENET1K_V1
    monkeypatch.setattr(member.value, "url", f"http://127.0.0.1:9/models/{file}")
    model = load_model("resnet18", device="cpu")
    assert model.weights == "IMAGENET1K_V1"
    assert model.categories[281] == "tabby"
    assert model.note == ""


def test_full_vgg16_is_taken_from_the_cache_and_a_damaged_one_is_told(
    torch_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_cache.mkdir(parents=True)
    (torch_cache / "vgg16-397923af.pth").write_bytes(b"half a download")
    model = load_model("vgg16", device="cpu")
    assert "bundled" in model.weights
    assert "vgg16-397923af.pth is damaged" in model.note


def test_the_cache_is_listed_with_sizes_and_state(
    served_squeezenet: Any, torch_cache: Path
) -> None:
    assert cached_weights() == []
    load()
    (torch_cache / "resnet18-f37072fd.pth").write_bytes(b"damaged")
    (torch_cache / "x.pth.1234.partial").write_bytes(b"1")
    (torch_cache / "own.pth").write_bytes(b"22")
    found = {file.path.name: file for file in cached_weights(check=True)}
    assert {name: file.state for name, file in found.items()} == {
        served_squeezenet.file: "whole",
        "resnet18-f37072fd.pth": "corrupt",
        "x.pth.1234.partial": "partial",
        "own.pth": "no hash",
    }
    assert found["resnet18-f37072fd.pth"].models[0] == "resnet18 IMAGENET1K_V1"
    assert found[served_squeezenet.file].bytes == len(served_squeezenet.body)
    assert found[served_squeezenet.file].path.parent == torch_cache
    assert {file.state for file in cached_weights()} == {"unchecked", "partial", "no hash"}
    assert list_weights("squeezenet1_1")[0].cached


def test_a_folder_that_cannot_be_made(served_squeezenet: Any, torch_cache: Path) -> None:
    torch_cache.parent.mkdir(parents=True)
    torch_cache.write_text("a file where the folder should be")
    with pytest.raises(WeightsError) as caught:
        load()
    assert "cannot be written" in str(caught.value)
    assert "TORCH_HOME" in str(caught.value)


def test_a_file_from_the_host_is_never_unpickled(
    weights_server: Any, torch_cache: Path, monkeypatch: pytest.MonkeyPatch, malicious: Any
) -> None:
    body, trace = malicious
    file = f"squeezenet1_1-{hashlib.sha256(body).hexdigest()[:8]}.pth"
    weights_server.files[file] = body
    monkeypatch.setattr(tv.SqueezeNet1_1_Weights.DEFAULT.value, "url", weights_server.url(file))
    with pytest.raises(WeightsError, match="refused"):
        load()
    assert not trace.exists()


def test_two_downloads_of_one_file_at_once(
    served_squeezenet: Any, weights_server: Any, torch_cache: Path
) -> None:
    weights_server.ways[served_squeezenet.file] = "slow"
    url = weights_server.url(served_squeezenet.file)
    failed: list[WeightsError] = []

    def fetch() -> None:
        try:
            download(url, torch_cache / served_squeezenet.file, progress=False)
        except WeightsError as error:
            failed.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert (torch_cache / served_squeezenet.file).read_bytes() == served_squeezenet.body
    assert folder(torch_cache) == [served_squeezenet.file]


def test_the_member_is_as_it_was_after_loading(served_squeezenet: Any, torch_cache: Path) -> None:
    load()
    assert "get_state_dict" not in vars(served_squeezenet.member)


def test_loading_leaves_torchs_random_numbers_alone(
    served_squeezenet: Any, torch_cache: Path
) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    load()
    load(weights=None)
    assert torch.equal(torch.rand(3), wanted)


def test_a_server_is_reachable_whatever_it_answers(
    weights_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reachable(weights_server.url("nothing.pth"))
    assert not reachable("http://127.0.0.1:9")
    assert not reachable("no address")
    monkeypatch.setenv("http_proxy", weights_server.address)  # a name that only the proxy knows
    monkeypatch.setattr("urllib.request._opener", None)  # made once, with the proxies of then
    assert reachable("http://hub.invalid")

"""torchvision's names and enums: every builder, every member, without a download."""

from __future__ import annotations

import pytest
import torchvision.models as tv

from hookviz.errors import ModelError, WeightsError
from hookviz.models import list_models, list_weights, load_model
from hookviz.models._torchvision import TorchvisionArchitecture

RESNET50 = TorchvisionArchitecture("resnet50")
ALL = [
    pytest.param(name, member, id=f"{name}-{member.name}")
    for name in tv.list_models()
    for member in tv.get_model_weights(name)
]


def test_every_builder_is_listed_vgg_and_resnet_first() -> None:
    names = list_models()
    assert sorted(names) == sorted(tv.list_models())
    families = [name.rstrip("0123456789_bn") for name in names]
    assert families[:8] == ["vgg"] * 8
    assert families[8:13] == ["resnet"] * 5
    assert names[13:] == sorted(names[13:])


def test_search_takes_words_and_globs() -> None:
    assert list_models("50 RESNET")[0] == "resnet50"
    assert set(list_models("50 RESNET")) == {
        n for n in tv.list_models() if "resnet" in n and "50" in n
    }
    assert list_models("vgg1?") == ["vgg11", "vgg13", "vgg16", "vgg19"]
    assert list_models("no such thing") == []


@pytest.mark.parametrize(("name", "member"), ALL)
def test_the_preprocessing_in_use_is_the_enums(name: str, member: object) -> None:
    arch = TorchvisionArchitecture(name)
    model = arch.with_member(arch.find_member(member.name), tv.squeezenet1_1())
    mine, theirs = model.preprocess, member.transforms()
    assert type(mine) is type(theirs)
    assert vars(mine) == vars(theirs) or str(mine) == str(theirs)
    for key in ("crop_size", "resize_size", "mean", "std", "interpolation", "antialias"):
        assert getattr(mine, key, None) == getattr(theirs, key, None)
    assert model.categories == tuple(member.meta.get("categories") or ())
    assert model.weights == member.name
    assert model.trained
    assert "\n" not in model.documentation
    if not model.categories and model.task in ("classification", "video"):
        assert "No classifier" in model.no_classifier


def test_there_are_as_many_members_as_torchvision_has() -> None:
    assert len(ALL) > 150


@pytest.mark.parametrize("name", tv.list_models())
def test_the_weights_of_every_builder_are_listed_default_first(name: str) -> None:
    found = list_weights(name)
    assert {w.name for w in found} - {"bundled"} == {m.name for m in tv.get_model_weights(name)}
    assert found[0].default
    assert all(w.file and (w.url or w.name == "bundled") for w in found)
    assert found[0].megabytes > 0
    assert found[0].documentation


@pytest.mark.parametrize(
    "asked", ["IMAGENET1K_V1", "imagenet1k_v1", "ResNet50_Weights.IMAGENET1K_V1"]
)
def test_weights_by_name(asked: str) -> None:
    assert RESNET50.find_member(asked) is tv.ResNet50_Weights.IMAGENET1K_V1


def test_weights_as_a_member_and_default() -> None:
    assert RESNET50.find_member(tv.ResNet50_Weights.IMAGENET1K_V1).name == "IMAGENET1K_V1"
    assert RESNET50.find_member("DEFAULT") is tv.ResNet50_Weights.IMAGENET1K_V2


@pytest.mark.parametrize(
    "asked", ["IMAGENET1K_V9", "VGG16_Weights.IMAGENET1K_V1", tv.VGG16_Weights.DEFAULT]
)
def test_unknown_weights_name_the_legal_ones(asked: object) -> None:
    with pytest.raises(WeightsError) as caught:
        load_model("resnet50", weights=asked)
    assert "'resnet50' has no weights" in str(caught.value)
    assert "IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT, None" in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        ("resnet81", ["Unknown model 'resnet81'", "Did you mean", "'resnet18'"]),
        ("", ["Unknown model ''"]),
        ("../vgg16", ["Unknown model"]),
    ],
)
def test_an_unknown_model_offers_the_closest(asked: str, parts: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(asked)
    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize("asked", [7, None, tv.resnet18])
def test_a_model_that_is_neither_name_nor_module(asked: object) -> None:
    with pytest.raises(ModelError, match=r"a name or a torch\.nn\.Module"):
        load_model(asked)


def test_names_are_taken_in_any_case_and_with_hyphens() -> None:
    assert load_model("ResNet18", None).name == "resnet18"
    assert list_weights("vgg16-bn") == list_weights("vgg16_bn")

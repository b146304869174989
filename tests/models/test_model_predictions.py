"""Top classes, summaries, and the reasons where there are neither."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import nn

from hookviz.models import LoadedModel, predictions


def model(task: Any = "classification", **facts: Any) -> LoadedModel:
    module = facts.pop("module", nn.Linear(2, 3))
    given = {"trained": True, "categories": ("cat", "dog", "cow"), **facts}
    return LoadedModel(module, "net", "w", task=task, **given)


LOGITS = torch.tensor([[1.0, 3.0, 2.0], [9.0, 0.0, 0.0]])
TOP = [(1, "dog"), (2, "cow"), (0, "cat")]
Named = namedtuple("Named", ["logits", "aux_logits"])


@pytest.mark.parametrize(
    "output",
    [
        LOGITS, LOGITS.half(), LOGITS.bfloat16(), LOGITS[0], LOGITS[:, :, None, None],
        {"logits": LOGITS}, Named(LOGITS, None), (LOGITS, torch.zeros(1)), [LOGITS],
        LOGITS.clone().requires_grad_(),
    ],
)  # fmt: skip
def test_the_first_image_s_top_classes(output: Any) -> None:
    answer = predictions(model(), output, k=5)
    assert [(index, label) for index, label, _ in answer.items] == TOP
    wanted = LOGITS[0].softmax(0)
    assert [p for *_, p in answer.items] == pytest.approx(
        [float(wanted[i]) for i, _ in TOP], abs=2e-3
    )
    assert sum(p for *_, p in answer.items) == pytest.approx(1)
    assert "dog" in str(answer)
    assert answer.reason == ""


def test_k_is_the_most_that_are_given() -> None:
    assert len(predictions(model(), LOGITS, k=2).items) == 2


def test_probabilities_are_not_softened_twice() -> None:
    answer = predictions(model(), torch.tensor([[0.1, 0.7, 0.2]]))
    assert answer.items[0][2] == pytest.approx(0.7)


def test_log_probabilities_come_out_as_probabilities() -> None:
    answer = predictions(model(), torch.tensor([[0.1, 0.7, 0.2]]).log())
    assert answer.items[0][2] == pytest.approx(0.7)


def test_names_of_another_count_are_not_put_beside_the_classes() -> None:
    answer = predictions(model(categories=("cat", "dog")), LOGITS)
    assert answer.items[0][1] == "class 1"


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (None, "did not run to its end"),
        (torch.zeros(1, 3, 7, 7), r"not a classification but a tensor \(1, 3, 7, 7\)"),
        (torch.zeros(1, 1), "1 number, no classes"),
        (torch.full((1, 3), torch.nan), "NaN"),
        (torch.tensor([[torch.inf, 0.0, 0.0]]), "NaN or infinite"),
        ({"features": torch.zeros(1)}, "not a classification but a dict with features"),
        ("text", "not a classification but a str"),
        ([], "not a classification but a list of 0"),
        (torch.zeros(0, 3), "not a classification"),
        (torch.zeros(1, 3, dtype=torch.complex64), "not a classification"),
    ],
)
def test_the_reason_where_there_are_none(output: Any, said: str) -> None:
    answer = predictions(model(), output)
    assert answer.items == ()
    import re

    assert re.search(said, answer.reason)
    assert str(answer) == answer.reason


def test_an_embedding_of_a_module_of_ones_own_is_not_called_classes() -> None:
    mine = model("unknown", categories=(), module=nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
    assert predictions(mine, torch.zeros(1, 3)).items
    other = model("unknown", categories=(), module=nn.Conv2d(3, 8, 1))
    assert "nothing says that these are classes" in predictions(other, torch.zeros(1, 3)).reason


def test_untrained_says_so() -> None:
    answer = predictions(model(trained=False), LOGITS)
    assert "UNTRAINED" in answer.note
    assert str(answer).startswith("UNTRAINED")


def test_segmentation_is_summed_up_by_its_share_of_the_pixels() -> None:
    maps = torch.zeros(1, 3, 10, 10)
    maps[:, 1, :3] = 5
    answer = predictions(model("segmentation"), OrderedDict(out=maps, aux=maps))
    assert answer.items == ()
    assert answer.summary == "Share of the pixels: cat 70.0 %, dog 30.0 %."
    assert "every pixel" in answer.reason


def test_detection_is_summed_up_by_its_objects() -> None:
    found = {
        "boxes": torch.zeros(3, 4),
        "labels": torch.tensor([1, 2, 9]),
        "scores": torch.tensor([0.9, 0.3, 0.8]),
    }
    answer = predictions(model("detection"), [found])
    assert (
        answer.summary == "2 objects with a score of 0.5 or more: dog 0.90, class 9 0.80; 1 below."
    )


def test_detection_of_nothing() -> None:
    nothing = {k: torch.zeros(0) for k in ("boxes", "labels", "scores")}
    assert predictions(model("detection"), [nothing]).summary.startswith("0 objects")


def test_flow_is_summed_up_by_its_length() -> None:
    flow = torch.tensor([3.0, 4.0])[None, :, None, None].expand(1, 2, 6, 6)
    assert "mean 5.00, largest 5.00 pixels" in predictions(model("optical_flow"), [flow]).summary


@pytest.mark.parametrize("task", ["segmentation", "detection", "optical_flow"])
@pytest.mark.parametrize("output", [torch.zeros(1), [], {}, "x", [torch.zeros(2)]])
def test_outputs_that_do_not_suit_the_task(task: str, output: Any) -> None:
    answer = predictions(model(task), output)
    assert answer.reason.startswith("The output is not a")
    assert answer.summary == ""

"""The adapters with the libraries themselves."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hookviz
from hookviz import monitoring

from .conftest import Small, batches, train

OF_OTHERS = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
"""The libraries warn of themselves, of workers and of each other."""


def test_tensorboard(small: Small, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = monitoring.ToTensorBoard(tmp_path)
    image = hookviz.sample_image()
    with hookviz.monitor(
        small, ["conv1", "relu"], every=2, stats_every=1, probe=image, width=300
    ) as m:

        def after(**numbers: Any) -> None:
            m.step(**numbers)
            board.update(m)

        train(small, batches(4), after)
    board.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"images": 0, "scalars": 0})
    events.Reload()
    for name, wanted in [
        ("zeros/relu call 2", m.values("relu", "zeros", call=2)),
        ("gradient/conv1", m.values("conv1", "gradient")),
        ("loss", m.scalar()),
    ]:
        found = events.Scalars(name)
        assert [event.step for event in found] == wanted[0].tolist()
        assert [event.value for event in found] == pytest.approx(wanted[1].tolist(), rel=1e-6)
    assert [event.step for event in events.Images("maps/conv1")] == [0, 2, 4]
    assert events.Images("maps/conv1")[0].width == 300


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Small()

        def training_step(self, batch: Any, number: int) -> Tensor:
            if fails and number == 2:
                raise ValueError("enough")
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(callbacks: list[Any]) -> nn.Module:
        torch.manual_seed(0)
        task = Task()
        data = TensorDataset(*(torch.cat(parts) for parts in zip(*batches(8), strict=True)))
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
            callbacks=callbacks, default_root_dir=tmp_path, log_every_n_steps=1,
        )  # fmt: skip
        trainer.fit(task, DataLoader(data, batch_size=4))
        return task

    fails = False
    watch = monitoring.LightningMonitor(["net.conv1", "net.relu"], stats_every=1, on_alert="record")
    one, other = fit([watch]), fit([])
    m = watch.monitor
    assert m is not None
    assert m.values("net.conv1", "mean")[0].tolist() == [1, 2, 3, 4]
    assert m.values("net.conv1", "gradient")[0].tolist() == [1, 2, 3, 4]
    assert m.calls("net.relu") == 2
    assert len(m.scalar()[0]) == 4
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    assert not one.net.conv1._forward_hooks
    fails = True
    watch = monitoring.LightningMonitor(["net.conv1"], stats_every=1)
    with pytest.raises(ValueError, match="enough"):
        fit([watch])
    assert watch.monitor is not None
    assert watch.monitor.ended


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.parts = [torch.cat(parts) for parts in zip(*batches(8), strict=True)]

    def __len__(self) -> int:
        return 32

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"x": self.parts[0][at], "labels": self.parts[1][at]}


class WithLoss(Small):
    def forward(self, x: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        out = super().forward(x)
        return {"loss": F.cross_entropy(out, labels), "logits": out}


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")

    def fit(callbacks: list[Any]) -> nn.Module:
        torch.manual_seed(0)
        model = WithLoss()
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=4, max_steps=3,
            gradient_accumulation_steps=2, report_to=[], save_strategy="no", logging_steps=1,
            use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        transformers.Trainer(
            model=model, args=arguments, train_dataset=Rows(), callbacks=callbacks
        ).train()
        return model

    watch = monitoring.TrainerMonitor(["conv1", "relu"], stats_every=1, on_alert="record")
    one, other = fit([watch]), fit([])
    m = watch.monitor
    assert m is not None
    assert m.ended
    assert m.values("conv1", "gradient")[0].tolist() == [1, 2, 3]
    assert m.values("conv1", "update")[1].min() > 0
    assert m.calls("relu") == 2
    assert m.scalar("loss")[0].tolist() == [1, 2, 3]
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    assert not one.conv1._forward_hooks


@OF_OTHERS
def test_wandb_offline(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(
        mode="offline",
        dir=str(tmp_path),
        settings=wandb.Settings(console="off", x_disable_stats=True),
    )
    logged: list[dict[str, Any]] = []
    log = run.log
    monkeypatch.setattr(run, "log", lambda numbers: (logged.append(numbers), log(numbers)))
    sink = monitoring.ToWandb(run)
    image = hookviz.sample_image()
    with hookviz.monitor(
        small, ["conv1"], every=4, stats_every=2, probe=image, width=300, on_alert="record"
    ) as m:

        def after(**numbers: Any) -> None:
            m.step(**numbers)
            sink.update(m)
            pickle.dumps(copy.deepcopy(small))  # which wandb.watch prevents

        train(small, batches(4), after)
    means = [row["hookviz/mean/conv1"] for row in logged if "hookviz/mean/conv1" in row]
    assert means == m.values("conv1", "mean")[1].tolist()
    assert run.summary["hookviz/mean/conv1"] == pytest.approx(means[-1])
    assert [row["hookviz/step"] for row in logged if "hookviz/maps/conv1" in row] == [0, 4]
    run.finish()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_what_is_not_installed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "hookviz.monitoring._lightning", raising=False)
    monkeypatch.delitem(vars(monitoring), "LightningMonitor", raising=False)
    with pytest.raises(hookviz.HookvizError, match="LightningMonitor needs lightning"):
        monitoring.LightningMonitor  # noqa: B018 - the access is the test

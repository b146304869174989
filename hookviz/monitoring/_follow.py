"""What is new in a training since the last look, for those who show it elsewhere."""

from __future__ import annotations

from hookviz.monitoring._history import PictureAt, TrainingHistory


def tag(picture: PictureAt) -> str:
    """Under which name a picture is shown elsewhere."""
    call = f"/call {picture.call}" if picture.call > 1 else ""
    leaf = f"/{picture.leaf}" if picture.leaf else ""
    return f"{picture.kind}/{picture.layer or 'model'}{call}{leaf}"


class Follower:
    """Hands on what is new in a history, number by number, picture by picture."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._pictures = self._alerts = 0
        self._newest: tuple[int, str] = (-1, "")

    def update(self, history: TrainingHistory) -> None:
        """Hands on what arose since the last call, in order of the steps.

        Args:
            history: A monitor, or what `hookviz.open_monitor` gave.
        """
        found = history.since(self._seen)
        for step, name, number in sorted(found):
            self._seen[name] = max(step, self._seen.get(name, -1))
            self.scalar(name, step, number)
        # By its name, as pictures in memory are thinned.
        fresh = [p for p in history.pictures if (p.step, p.file) > self._newest]
        for picture in fresh:
            self.picture(history, picture)
            self._newest = max(self._newest, (picture.step, picture.file))
        for alert in history.alerts[self._alerts :]:
            self.text(alert.step, alert.text)
            self._alerts += 1
        self.flush()

    def scalar(self, name: str, step: int, number: float) -> None:
        """Takes a number."""
        raise NotImplementedError

    def picture(self, history: TrainingHistory, picture: PictureAt) -> None:
        """Takes a figure."""
        raise NotImplementedError

    def text(self, step: int, text: str) -> None:
        """Takes an alert."""
        raise NotImplementedError

    def flush(self) -> None:
        """All that is new was handed on."""

"""What the user is told about the weights of a model.

In: what a fit brought. Out: sentences. Must not know: how anything was loaded.
"""

from __future__ import annotations

from hookviz.models._comparing import BROKEN
from hookviz.models._fitting import Fitted
from hookviz.models._loaded import SEED

__all__ = ["UNTRAINED", "fit_notes", "joined", "source_name"]

UNTRAINED = f"UNTRAINED: random weights (seed {SEED})."


def joined(*sentences: str) -> str:
    """Sentences in a row, empty ones left out."""
    return " ".join(sentence for sentence in sentences if sentence)


def source_name(source: str) -> str:
    """How ``LoadedModel.weights`` names a checkpoint of one's own."""
    return source if source == "state dict" else f"file {source}"


def fit_notes(source: str, fitted: Fitted) -> tuple[str, str]:
    """What to say of a checkpoint that was loaded.

    Args:
        source: The file's name.
        fitted: What came of it.

    Returns:
        (the note, why there are no predictions); both "" where there is nothing to say.
    """
    head = ""
    names = fitted.head_missing
    if names:
        more = ", …" if len(names) > 2 else ""
        head = f"No classifier in {source}: {', '.join(names[:2])}{more} kept random values."
    part = ""
    names = fitted.report.faults
    if names:
        more = ", …" if len(names) > 3 else ""
        part = f"LOADED IN PART: {len(names)} tensors do not fit ({', '.join(names[:3])}{more})."
    broken = "".join(f"{source} holds {n}." for n in fitted.report.notes if n.startswith(BROKEN))
    return joined(head, part, broken), head

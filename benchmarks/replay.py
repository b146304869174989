"""Proof by replay: every layer's recorded input gives its recorded output, bit for bit.

    python -m benchmarks.replay [--only PATTERN] [--limit N] [--timm N] [--jobs N] [--verbose]

Over every builder of ``torchvision.models.list_models()`` (classification, detection,
segmentation, video, optical flow, quantised) and, where timm is installed, N of its architectures
spread over all its families: built without downloads, with seeded random weights, run once in eval
mode on the smallest legal input while a ``hookviz.Capture`` of every layer records inputs and
outputs. Then each recorded call is made again, on a copy of the layer (made before the forward,
parameters shared), with the recorded tensors, the arguments that are no tensors, and the state of
the random numbers; its output must be the recorded one. Exit code 1 where a mismatch is left.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import re
import sys
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

import torch

from benchmarks.replaying import Result, replay


@dataclass
class Outcome:
    """One model's result, or why there is none."""

    name: str
    library: str
    result: Result | None
    refused: str
    seconds: float


def _start() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def examine(library: str, name: str) -> Outcome:
    """Builds a model, runs it, runs each of its calls again."""
    from benchmarks import zoo

    began = time.perf_counter()
    build = zoo.build_torchvision if library == "torchvision" else zoo.build_timm
    result, refused = None, ""
    try:
        specimen = build(name)
    except Exception as error:
        refused = f"not built: {type(error).__name__}: {_first_line(error)}"
    else:
        try:
            result = replay(specimen.model, specimen.args, specimen.kwargs)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            refused = (
                f"not run: {type(error).__name__}: {_first_line(error)} "
                f"({os.path.basename(place.filename)}:{place.lineno})"  # noqa: PTH119 - a name in a message
            )
        del specimen
    gc.collect()
    return Outcome(name, library, result, refused, time.perf_counter() - began)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")[:160]


def _names(args: argparse.Namespace) -> tuple[list[tuple[str, str]], list[str]]:
    from benchmarks import zoo

    notes = []
    names = [("torchvision", name) for name in zoo.torchvision_names()]
    if args.timm:
        try:
            names += [("timm", name) for name in zoo.timm_names(args.timm)]
        except ImportError:
            notes.append("timm is not installed, so none of its architectures were run")
    if args.only:
        names = [(library, name) for library, name in names if re.search(args.only, name)]
    if args.limit:
        # Spread over the list, so that a small sample still has models of every kind.
        step = max(len(names) / args.limit, 1)
        names = [names[int(i * step)] for i in range(min(args.limit, len(names)))]
    return names, notes


def run(names: list[tuple[str, str]], jobs: int, *, verbose: bool) -> list[Outcome]:
    """All models, in processes of their own, so that memory is given back and a crash is told."""
    outcomes: dict[tuple[str, str], Outcome] = {}
    left = list(names)
    while left:
        pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_start)
        with pool:
            futures = {pool.submit(examine, *name): name for name in left}
            for future in as_completed(futures):
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    break
                outcomes[outcome.library, outcome.name] = outcome
                if verbose:
                    print(_line(outcome), file=sys.stderr, flush=True)
        still = [name for name in left if name not in outcomes]
        if still:
            # One of the first `jobs` unfinished ones took its process down; alone it is told.
            jobs = 1
            if len(still) == len(left):
                library, name = still[0]
                outcomes[library, name] = Outcome(name, library, None, "process died", 0.0)
                still = still[1:]
        left = still
    return [outcomes[name] for name in names]


def _line(outcome: Outcome) -> str:
    found = outcome.result
    if found is None:
        return f"| {outcome.name} | – | – | – | – | {outcome.seconds:.1f} | {outcome.refused} |"
    notes = [f"{len(found.stateful)} from a copy made at the call"] if found.stateful else []
    notes += [f"{found.silent} calls without tensors"] if found.silent else []
    return (
        f"| {outcome.name} | {found.modules} | {found.calls} | {len(found.mismatches)} | "
        f"{found.trivial} | {outcome.seconds:.1f} | {'; '.join(notes)} |"
    )


def report(outcomes: list[Outcome], notes: list[str], seconds: float) -> int:
    """Prints the tables; the number of unexplained mismatches."""
    for library in ("torchvision", "timm"):
        part = [outcome for outcome in outcomes if outcome.library == library]
        if not part:
            continue
        print(f"\n### {library}\n")
        print("| model | modules | calls | mismatches | trivial outputs | s | notes |")
        print("|---|---:|---:|---:|---:|---:|---|")
        for outcome in part:
            print(_line(outcome))
    wrong = [(o.name, text) for o in outcomes if o.result for text in o.result.mismatches]
    stateful = [(o.name, text) for o in outcomes if o.result for text in o.result.stateful]
    refused = [(o.name, o.refused) for o in outcomes if o.result is None]
    if stateful:
        print("\n### Same only from a copy made at the call\n")
        print("These layers hold state that others set before they call them, which the copy made")
        print("before the forward lacks; a copy made at the call gives the recorded output.\n")
        for name, text in stateful[:40]:
            print(f"- {name}: {text}")
        if len(stateful) > 40:
            print(f"- … and {len(stateful) - 40} more")
    for title, rows in (("Mismatches", wrong), ("Refused", refused)):
        if rows:
            print(f"\n### {title}\n")
            for name, text in rows:
                print(f"- {name}: {text}")
    done = [o.result for o in outcomes if o.result]
    print("\n### Sum\n")
    for library in ("torchvision", "timm"):
        count = sum(o.library == library and o.result is not None for o in outcomes)
        print(f"- {library}: {count} models")
    print(f"- modules that ran: {sum(r.modules for r in done)}")
    print(
        f"- calls: {sum(r.calls for r in done)}, the same bit for bit: {sum(r.same for r in done)}"
    )
    print(f"- of these from a copy made at the call: {sum(len(r.stateful) for r in done)}")
    print(f"- calls that gave no tensor: {sum(r.silent for r in done)}")
    print(f"- mismatches: {len(wrong)}")
    print(f"- refused: {len(refused)}")
    for note in notes:
        print(f"- {note}")
    print(f"- {seconds:.0f} s; torch {torch.__version__}, Python {platform.python_version()}")
    return len(wrong)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--only", metavar="PATTERN", help="models whose name this expression finds")
    parser.add_argument("--limit", type=int, metavar="N", help="N models, spread over the list")
    parser.add_argument("--timm", type=int, default=110, metavar="N", help="of timm (default 110)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--verbose", action="store_true", help="tell each model when it is done")
    args = parser.parse_args(argv)
    _start()
    names, notes = _names(args)
    if not names:
        print("No model has such a name.", file=sys.stderr)
        return 2
    began = time.perf_counter()
    outcomes = run(names, args.jobs, verbose=args.verbose)
    return 1 if report(outcomes, notes, time.perf_counter() - began) else 0


if __name__ == "__main__":
    sys.exit(main())

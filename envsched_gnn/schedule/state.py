"""The book as plain data: by identity, so that a pool may change between save and load.

Knows: the form of a saved state, what to do with tasks that are no longer there.
Does not know: predictions, experts, files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from envsched_gnn.errors import CheckpointError
from envsched_gnn.history import History
from envsched_gnn.records import LoadReport, Pick, Prediction, Relaxation, Selection, group_id_of
from envsched_gnn.schedule.book import Book
from envsched_gnn.schedule.quarantine import Quarantine, Record
from envsched_gnn.schedule.reports import Latest, Open

VERSION = 1
"""Of the form of a state."""
BOOK_FIELDS = ("exposure", "in_flight", "closed", "memo", "counts", "problems", "latest", "last_step")
"""What `dump_book` gives."""


def header(kind: str, book: Book, absent: Mapping[str, Any]) -> dict[str, Any]:
    """What every state starts with; `pool` names the tasks it knows, those that the present pool lacks included."""
    return {"version": VERSION, "kind": kind, "pool": [*book.keys, *absent.get("pool", [])]}


def check(state: Any, kind: str, fields: Sequence[str]) -> None:
    """Refuse what is no state of this kind and version.

    Raises:
        CheckpointError: says what was expected.
    """
    cure = "Load what state_dict() of this version returned, or start without a state."
    if not isinstance(state, Mapping) or not {"version", "kind"} <= set(state):
        raise CheckpointError(f"scheduler state: {type(state).__name__} without version and kind; expected a state of {kind!r}. {cure}")
    if state["version"] != VERSION or state["kind"] != kind:
        found = f"version {state['version']} of {state['kind']!r}"
        raise CheckpointError(f"scheduler state: {found}; expected version {VERSION} of {kind!r}. {cure}")
    missing = [name for name in ("pool", *fields) if name not in state]
    if missing:
        raise CheckpointError(f"scheduler state: no field {missing[0]!r}; expected {', '.join(fields)}. {cure}")


DAMAGE = (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError)
"""What reading a damaged state raises."""


def damaged(error: Exception) -> CheckpointError:
    """The error of a state of the right kind whose content is broken."""
    return CheckpointError(
        f"scheduler state: damaged ({type(error).__name__}: {error}); expected what state_dict() returned. Use an older checkpoint."
    )


def report(state: Mapping[str, Any], book: Book) -> LoadReport:
    """How the state's pool and the present one overlap."""
    saved = set(state["pool"])
    known = sum(key in book.row_of for key in saved)
    return LoadReport(known=known, unknown=len(saved) - known, new=len(book.keys) - known)


def dump_book(book: Book, absent: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data; `absent` is what an earlier `load_book` could not place."""
    keys = book.keys
    exposure = {step: [keys[row] for row in rows] for step, rows in book.exposure.log()}
    for step, others in absent.get("exposure", []):
        exposure.setdefault(step, []).extend(others)
    return {
        "exposure": [[step, exposure[step]] for step in sorted(exposure)],
        "in_flight": [*_dump_open(book), *absent.get("in_flight", [])],
        "closed": sorted(book.closed),
        "memo": [_dump_request(request, selection) for request, selection in book.memo.items()],
        "counts": dict(book.counts),
        "problems": list(book.problems),
        "latest": asdict(book.latest),
        "last_step": book.last_step,
    }


def load_book(state: Mapping[str, Any], book: Book) -> dict[str, Any]:
    """Fill a new book; returns what belongs to tasks that are not in the pool."""
    absent: dict[str, Any] = {"pool": [key for key in state["pool"] if key not in book.row_of], "exposure": [], "in_flight": []}
    for step, keys in state["exposure"]:
        rows = [book.row_of[key] for key in keys if key in book.row_of]
        others = [key for key in keys if key not in book.row_of]
        if rows or not others:
            book.exposure.add(int(step), rows)
        if others:
            absent["exposure"].append([step, others])
    for batch in state["in_flight"]:
        rest = _load_open(batch, book)
        if rest["tasks"]:
            absent["in_flight"].append(rest)
    book.closed = set(state["closed"])
    for request in state["memo"]:
        if all(pick[0] in book.row_of for pick in request["picks"]):
            book.memo[request["step"], request["n"], request["request_id"]] = _load_request(request, book)
    book.counts = Counter(state["counts"])
    book.problems = list(state["problems"])
    book.latest = Latest(**state["latest"])
    book.last_step = state["last_step"]
    return absent


def dump_learned(history: History, quarantine: Quarantine, book: Book, absent: Mapping[str, Any]) -> dict[str, Any]:
    """Observations (key, step, variance, mean, dispersion) in order of arrival; quarantine records (key, streak, times, until)."""
    log = history.state_dict()
    rows = zip(log["tasks"].tolist(), log["steps"].tolist(), *log["values"].tolist(), strict=True)
    records = [[book.keys[row], r.streak, r.times, r.until] for row, r in quarantine.records.items()]
    return {
        "history": [[book.keys[row], *values] for row, *values in rows] + absent.get("history", []),
        "quarantine": records + absent.get("quarantine", []),
    }


def load_learned(state: Mapping[str, Any], book: Book, absent: dict[str, Any]) -> tuple[dict[str, Tensor], dict[int, Record]]:
    """(state of the History, quarantine records by row); what cannot be placed is added to `absent`."""
    log, absent["history"] = _split(state["history"], book)
    records, absent["quarantine"] = _split(state["quarantine"], book)
    values = torch.tensor([row[2:] for row in log], dtype=torch.float64).reshape(len(log), 3)
    history = {
        "tasks": torch.tensor([book.row_of[row[0]] for row in log], dtype=torch.int64),
        "steps": torch.tensor([row[1] for row in log], dtype=torch.int64),
        "values": values.T.contiguous(),
    }
    return history, {book.row_of[key]: Record(streak=streak, times=times, until=until) for key, streak, times, until in records}


def _split(entries: Iterable[Any], book: Book) -> tuple[list[Any], list[Any]]:
    """Entries `(key, ...)` of tasks that are in the pool, and the others."""
    here: list[Any] = []
    absent: list[Any] = []
    for entry in entries:
        (here if entry[0] in book.row_of else absent).append(list(entry))
    return here, absent


def _dump_request(request: tuple[int, int, str | None], selection: Selection) -> dict[str, Any]:
    return {
        "step": request[0],
        "n": request[1],
        "request_id": request[2],
        "picks": [[p.key, p.env_id, p.task_id, p.phase, p.score, p.predicted_variance, p.p_informative] for p in selection.picks],
        "relaxations": [[r.quota, r.env_id, r.task_id] for r in selection.relaxations],
        "rank": selection.picks[0].rank if selection.picks else 1,
        "use": selection.use,
        "num_rollouts": selection.num_rollouts,
        "more": selection.more,
    }


def _load_request(request: Mapping[str, Any], book: Book) -> Selection:
    use = request.get("use", "train")  # states of before there were uses lack it
    picks = [
        Pick(
            rank=rank,
            env_id=env_id,
            task_id=task_id,
            task_index=book.row_of[key],
            group_id=group_id_of(request["step"], env_id, task_id, use),
            phase=phase,
            score=score,
            predicted_variance=variance,
            p_informative=p,
        )
        for rank, (key, env_id, task_id, phase, score, variance, p) in enumerate(request["picks"], request.get("rank", 1))
    ]
    relaxations = [Relaxation(quota=quota, env_id=env_id, task_id=task_id) for quota, env_id, task_id in request["relaxations"]]
    return Selection(
        step=request["step"],
        picks=tuple(picks),
        relaxations=tuple(relaxations),
        use=use,
        num_rollouts=request.get("num_rollouts"),
        more=request.get("more", False),
    )


def _dump_open(book: Book) -> list[dict[str, Any]]:
    """One entry a request that has open groups: the groups side by side, tasks as the last dimension of every part."""
    batches: dict[int, list[tuple[str, Open]]] = {}
    for group_id, entry in book.open.items():
        batches.setdefault(id(entry.batch), []).append((group_id, entry))
    return [_dump_batch(members, book) for members in batches.values()]


def _dump_batch(members: list[tuple[str, Open]], book: Book) -> dict[str, Any]:
    entries = [entry for _, entry in members]
    batch = entries[0].batch
    prediction = None
    if batch is not None:
        at = batch.at(torch.tensor([entry.position for entry in entries], device=batch.informativeness.device))
        prediction = _plain(at)
    return {
        "group_ids": [group_id for group_id, _ in members],
        "tasks": [book.keys[entry.task] for entry in entries],
        "steps": [entry.step for entry in entries],
        "cancelled": [entry.cancelled for entry in entries],
        "uses": [entry.use for entry in entries],
        "values": [[entry.predicted_variance, entry.p_informative] for entry in entries],
        "prediction": prediction,
    }


def _load_open(saved: Mapping[str, Any], book: Book) -> dict[str, Any]:
    """Put the groups of tasks that are in the pool into the book; returns the saved entry of the others."""
    device = book.exposure.total.device
    prediction = None if saved["prediction"] is None else _load_prediction(saved["prediction"], device)
    gone = []
    saved = {"uses": ["train"] * len(saved["tasks"])} | dict(saved)  # states of before there were uses lack them
    for position, (group_id, key, step, cancelled, (variance, p), use) in enumerate(
        zip(*(saved[name] for name in ("group_ids", "tasks", "steps", "cancelled", "values", "uses")), strict=True)
    ):
        if key not in book.row_of:
            gone.append(position)
            continue
        book.open[group_id] = Open(
            step=step,
            task=book.row_of[key],
            predicted_variance=variance,
            p_informative=p,
            batch=prediction,
            position=position,
            cancelled=cancelled,
            use=use,
        )
    rest: dict[str, Any] = {name: [saved[name][k] for k in gone] for name in ("group_ids", "tasks", "steps", "cancelled", "values", "uses")}
    rest["prediction"] = None if saved["prediction"] is None else _restrict(saved["prediction"], gone)
    return rest


def _load_prediction(saved: Mapping[str, Any], device: torch.device) -> Prediction:
    def tensor(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    return Prediction(
        informativeness=tensor(saved["informativeness"]),
        predicted_variance=tensor(saved["predicted_variance"]),
        p_informative=tensor(saved["p_informative"]),
        parts={name: tensor(part) for name, part in saved["parts"].items()},
    )


def _restrict(saved: Mapping[str, Any], positions: list[int]) -> dict[str, Any]:
    kept = _load_prediction(saved, torch.device("cpu")).at(torch.tensor(positions, dtype=torch.int64))
    return _plain(kept)


def _plain(prediction: Prediction) -> dict[str, Any]:
    return {
        "informativeness": prediction.informativeness.tolist(),
        "predicted_variance": prediction.predicted_variance.tolist(),
        "p_informative": prediction.p_informative.tolist(),
        "parts": {name: part.tolist() for name, part in prediction.parts.items()},
    }

"""The scheduler: propose a batch before any rollout, learn from the rewards that come back.

Knows: the order of things in `select` and `observe`, and what must be kept between rounds.
Does not know: formulas (scores, predict), the search for the best batch (greedy), bookkeeping (book), how rollouts are made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from envsched_gnn.config import PredictConfig, SelectConfig
from envsched_gnn.config_scheduling import Preset
from envsched_gnn.errors import ConfigError
from envsched_gnn.graph.neighbors import Neighbors
from envsched_gnn.history import History
from envsched_gnn.predict import Predictor, mixture
from envsched_gnn.predict.heuristic import heuristic_of
from envsched_gnn.records import Evidence, LoadReport, Prediction, RolloutGroup, Selection
from envsched_gnn.schedule import state
from envsched_gnn.schedule.book import Book, Request, check_pool, shadow_request
from envsched_gnn.schedule.explain import Explanation, explain
from envsched_gnn.schedule.greedy import SCALE, Choice, GreedyPass, PhaseScore
from envsched_gnn.schedule.groups import collect
from envsched_gnn.schedule.keys import task_keys
from envsched_gnn.schedule.metrics import book_metrics
from envsched_gnn.schedule.quarantine import Quarantine
from envsched_gnn.schedule.quotas import Quotas, quotas_at
from envsched_gnn.schedule.redundancy import Redundancy, usual_threshold
from envsched_gnn.schedule.reports import Accepted
from envsched_gnn.schedule.scores import base_scores, columns

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

    from envsched_gnn.pool.pool import Pool

MIN_INFORMATIVE_HALF_LIFE = 200.0
"""Steps; H = max(200, 5 N/B), so that a task is still known when it returns (ours)."""
EXPOSURE_SCALE: dict[Preset, float] = {"paper": 16.0, "default": 1.0}
"""At 16 the forecasts of `default` are sure enough to pick the same tasks again and again, and a policy learns little from them (ours)."""
MakePredictor = Callable[[PredictConfig, "HeteroData", Neighbors, int], Predictor]
"""(settings, graph, the scheduler's neighbours, seed) -> a predictor that shares them."""
KIND = "envsched"
FIELDS = (*state.BOOK_FIELDS, "history", "quarantine", "predictor")


class EnvSched:
    """Proposes tasks whose rewards will differ, without leaving most environments unseen."""

    def __init__(
        self,
        pool: Pool | None,
        graph: HeteroData,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        preset: Preset | None = None,
        select: SelectConfig | None = None,
        predict: PredictConfig | None = None,
        predictor: Predictor | MakePredictor | None = None,
    ) -> None:
        """A scheduler that has seen nothing.

        `pool` is only checked against the graph. `batch_size` (64) and `preset` (`default`) override those of `select` and `predict`.
        A `predictor` of your own replaces the preset's; it finds the observed neighbours in the edges of the graph it is handed. Or give
        what makes one from (settings, graph, neighbours, seed), as `models.make.predictor_of`: it then shares the scheduler's neighbours.

        Raises:
            ConfigError: `predict.predictor` is a learned one, and nothing that makes it is given.
            GraphError: the graph was built from another pool, or holds an empty reward range.
        """
        if pool is not None:
            check_pool(pool, graph)
        self.graph = copy.copy(graph)
        self.seed = seed
        select = select or SelectConfig()
        self.select_config = replace(select, batch_size=select.batch_size if batch_size is None else batch_size)
        predict = predict or PredictConfig()
        self.predict_config = replace(predict, preset=preset or predict.preset)
        if predictor is None and predict.predictor != "heuristic":
            cure = "Give predictor=envsched_gnn.models.make.predictor_of, or leave predict.predictor out."
            raise ConfigError(f"predict.predictor = {predict.predictor!r}: nothing that makes it is given. {cure}")
        self._reads_edges = predictor is not None and hasattr(predictor, "predict")
        self._absent: dict[str, Any] = {}
        self._start(predictor)

    def _start(self, predictor: Predictor | MakePredictor | None) -> None:
        """Nothing observed, nothing selected."""
        store, config = self.graph["task"], self.predict_config
        tasks = store.env_index.numel()
        self.book = Book(self.graph)
        self.quarantine = Quarantine(self.select_config.quarantine_after)
        self.neighbors = Neighbors(self.graph)
        self.history = History(
            tasks,
            half_life_long=config.half_life_long,
            half_life_short=config.half_life_short,
            half_life_informative=max(MIN_INFORMATIVE_HALF_LIFE, 5 * tasks / self.select_config.batch_size),
            v_floor=config.v_floor,
            power=mixture.POWERS.get(config.target) if config.preset == "default" else None,
            device=store.env_index.device,
        )
        self.predictor: Predictor
        if predictor is None:
            self.predictor = heuristic_of(config, self.neighbors)
        else:
            given: Any = predictor
            self.predictor = given if self._reads_edges else given(config, self.graph, self.neighbors, self.seed)
        threshold, scale = self.select_config.penalty_threshold, self.select_config.exposure_scale
        threshold = usual_threshold(self.preset, self.graph) if threshold is None else threshold
        self.exposure_scale = EXPOSURE_SCALE[self.preset] if scale is None else scale
        self.redundancy = Redundancy(self.graph, weight=self.select_config.penalty, threshold=threshold)

    @property
    def batch_size(self) -> int:
        """B."""
        return self.select_config.batch_size

    @property
    def preset(self) -> Preset:
        """`paper` or `default`."""
        return self.predict_config.preset

    def to(self, device: torch.device | str) -> EnvSched:
        """Move graph, history and neighbours; returns self. The graph handed to the constructor stays where it is.

        A predictor of your own is not touched: it is handed graph and evidence on `device` from then on, and has to follow them.
        """
        self.graph.to(str(device))
        self.neighbors.to(device)
        self.history.to(device)
        self.book.exposure.to(device)
        self.book.move_open(device)
        return self

    # ---- select ----

    @torch.no_grad()
    def select(self, step: int, n: int | None = None, request_id: str | None = None) -> Selection:
        """Propose min(n, eligible) tasks for `step`; n defaults to the batch size.

        The same (step, n, request_id) returns the same Selection. Further requests of a step share its quotas, penalties and exposure; each
        splits its own n into phases. Quotas scale with the configured batch size, whatever n is.

        Raises:
            HistoryError: a new request of a step before the latest, or a negative number.
        """
        request = (index(step), self.batch_size if n is None else index(n), request_id)
        known = self.book.recall(request)
        if known is not None:
            return known
        evidence, prediction = self.predicted(request[0])
        return self._register(request, self._choose(request[0], request[1], evidence, prediction), prediction)

    def predicted(self, step: int) -> tuple[Evidence, Prediction]:
        """What is known before `step`, and what that predicts."""
        evidence = self.history.evidence(step)
        if self._reads_edges:
            self.neighbors.fill(self.graph)
        return evidence, self.predictor.predict(self.graph, evidence, step)

    def _choose(self, step: int, n: int, evidence: Evidence, prediction: Prediction) -> list[Choice]:
        """One greedy pass: coverage picks first, then exploitation; a uniform batch while nothing has been observed."""
        store, environments = self.graph["task"], self.book.schedulable
        cold = self._is_cold(step)
        q = prediction.informativeness
        if cold:
            q = torch.zeros_like(q)
            phases = [PhaseScore(phase="cold", base=q, count=n)]
        else:
            covering = round(self.select_config.coverage_share * n)
            cover, exploit = base_scores(self, step, evidence, prediction, picked=True)
            phases = [
                PhaseScore(phase="coverage", base=cover, count=covering, spread=True),
                PhaseScore(phase="exploitation", base=exploit, count=n - covering),
            ]
        greedy = GreedyPass(
            [phase for phase in phases if phase.count > 0],
            eligible=self._eligible(step),
            ties=(lambda rows: torch.round(q[rows] * SCALE).long(), lambda rows: task_keys(store.identity[rows], self.seed, step)),
            env_index=store.env_index,
            quotas=self.quotas(step),
            redundancy=None if cold else self.redundancy,
            earlier=self.book.exposure.at(step).tolist(),
            crowd=-(-len(q) // min(len(store.cross_vectors), len(environments))) if len(environments) else 1,
        )
        return greedy.choose()

    def _is_cold(self, step: int) -> bool:
        """Whether no group of an earlier step has been observed."""
        return not bool((self.history.steps < step).any())

    def _eligible(self, step: int) -> Tensor:
        """Not held out, not quarantined, not in flight, not yet picked at this step; [tasks] bool."""
        eligible = ~self.graph["task"].held_out
        out = self.book.busy(step) + self.quarantine.active(self.rounds_before(step))
        eligible[torch.tensor(out, dtype=torch.int64, device=eligible.device)] = False
        return eligible

    def rounds_before(self, step: int) -> int:
        """Number of rounds before `step`."""
        return len(self.book.exposure.rounds_before(step, len(self.book.exposure.rounds)))

    def quotas(self, step: int) -> Quotas:
        """Limits and counts as the round `step` stands."""
        return quotas_at(self.book.exposure, step, self.select_config, len(self.book.schedulable))

    def _register(self, request: Request, choices: Sequence[Choice], prediction: Prediction) -> Selection:
        rows = torch.tensor([choice.task for choice in choices], dtype=torch.int64, device=prediction.informativeness.device)
        at = prediction.at(rows)
        return self.book.register(request, choices, at, torch.stack([at.predicted_variance, at.p_informative], 1).tolist())

    @torch.no_grad()
    def shadow(self, step: int, task_ids: Sequence[str]) -> Selection:
        """Register tasks that the trainer chose itself, phase `shadow`: they are predicted, count as exposure and may report.

        Any task of the pool may be given, eligible or not. Unknown tasks, repeats and tasks already selected at this step are left out and
        counted as problems. The score of a shadow pick is its informativeness q.

        Raises:
            HistoryError: a step before the latest.
        """
        request = shadow_request(index(step), task_ids)
        known = self.book.recall(request)
        if known is not None:
            return known
        rows = self.book.shadow_rows(request[0], task_ids)
        _, prediction = self.predicted(request[0])
        q = prediction.informativeness[rows].tolist()
        choices = [Choice(task=row, phase="shadow", score=score) for row, score in zip(rows, q, strict=True)]
        return self._register(request, choices, prediction)

    # ---- observe ----

    @torch.no_grad()
    def observe(self, groups: Iterable[RolloutGroup] | Selection, rewards: Any = None) -> None:
        """Learn from groups: an iterable of RolloutGroup, or a Selection with its rewards [B][K] in rank order.

        Idempotent by group id; late, ragged, masked, unknown and unexpected groups are legal (see `problems`). A group of a known task that
        was not proposed here counts as evidence and as exposure of its own step, and is used from the step after it on. If the iterable
        raises, the groups that came before are kept, then the error goes on.

        Raises:
            HistoryError: rewards do not fit the selection, or nothing in `groups` is a RolloutGroup.
        """
        collect(groups, rewards, lambda taken: self._learn(self.book.accept(taken)))

    def _learn(self, accepted: Accepted) -> None:
        rounds = len(self.book.exposure.rounds)
        for task, failed in zip(accepted.tasks, accepted.failed, strict=True):
            if self.quarantine.report(task, failed, rounds):
                key, failures = self.book.keys[task], self.select_config.quarantine_after
                self.book.problem("quarantined", f"task {key!r}: {failures} failed groups in a row; quarantined")
        statistics = accepted.statistics
        seen = statistics.observed
        if not bool(seen.any()):
            return
        tasks, steps = torch.tensor(accepted.tasks), torch.tensor(accepted.steps)
        self.history.add(tasks[seen], steps[seen], statistics.variance[seen], statistics.mean[seen], statistics.dispersion[seen])
        self.neighbors.insert(tasks[seen])
        for step, groups, before in accepted.by_request():
            self.predictor.update(step, groups, before)

    def cancel(self, group_ids: Iterable[str]) -> None:
        """These groups were dispatched and will not report: their tasks are free again, exposure stays. One that reports counts."""
        self.book.cancel([group_ids] if isinstance(group_ids, str) else group_ids)

    def release(self, task_ids: Iterable[str]) -> None:
        """End the quarantine of tasks, for example after an audit, and forget their failures."""
        self.quarantine.release(self.book.row(key) for key in ([task_ids] if isinstance(task_ids, str) else task_ids))

    # ---- look ----

    @torch.no_grad()
    def scores(self, step: int) -> dict[str, Tensor]:
        """Columns [tasks] of SCORES.csv in pool order, before any pick of `step`; long-horizon estimates are the shrunk ones."""
        return columns(self, step)

    @torch.no_grad()
    def explain(self, task_id: str, step: int | None = None) -> Explanation:
        """Why `ENV_ID/TASK_ID` gets the number it gets at `step` (default: the step after the latest round).

        Raises:
            HistoryError: no such task.
        """
        latest = self.book.exposure.rounds[-1] if self.book.exposure.rounds else -1
        return explain(self, self.book.row(task_id), latest + 1 if step is None else step)

    def metrics(self) -> dict[str, float]:
        """Flat figures for a logger, keys `envsched/...`, at most 40."""
        figures = book_metrics(self.book)
        figures["envsched/observed_tasks"] = float(len(self.neighbors.observed))
        figures["envsched/quarantined"] = float(len(self.quarantine.active(len(self.book.exposure.rounds))))
        return figures | self.predictor.metrics()

    def problems(self) -> tuple[str, ...]:
        """What was wrong with reports and requests, with the record at fault; the last 200."""
        return tuple(self.book.problems)

    # ---- state ----

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs to pick bit-equally: plain data by identity, for JSON or torch.save."""
        return {
            **state.header(KIND, self.book, self._absent),
            **state.dump_book(self.book, self._absent),
            **state.dump_learned(self.history, self.quarantine, self.book, self._absent),
            "predictor": self.predictor.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> LoadReport:
        """Restore a state, of this pool or of one that has changed since; on an error nothing changes.

        Tasks that are not in the pool are kept aside and saved again; new ones start from the graph prior.

        Raises:
            CheckpointError: this is no state of this version and kind, or it is damaged.
        """
        state.check(saved, KIND, FIELDS)
        predictor = copy.deepcopy(self.predictor.state_dict())
        book = Book(self.graph)
        try:
            absent = state.load_book(saved, book)
            log, records = state.load_learned(saved, book, absent)
            self.predictor.load_state_dict(saved["predictor"])
        except state.DAMAGE as error:
            self.predictor.load_state_dict(predictor)
            raise state.damaged(error) from error
        self.book, self.quarantine.records, self._absent = book, records, absent
        self.history.load_state_dict(log)
        self.neighbors.load_state_dict({"observed": log["tasks"]})
        return state.report(saved, book)

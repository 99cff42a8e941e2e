"""A peer of EnvSched behind the scheduler's own verbs: one host for all rules.

Knows: requests, what is in flight, what came back and was not learned from yet, which rollouts are charged, how memory is saved.
Does not know: any rule. Peers run on the CPU: a choice takes milliseconds.

A step may take several requests: a Selection with `more` asks for another one once its groups have reported (see `rounds`). The rule learns
once a round, from all its groups at once, so that it does not matter in which order or in how many parts they are observed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from envsched_gnn.records import LoadReport, RolloutGroup, Selection
from envsched_gnn.schedule import state
from envsched_gnn.schedule.book import Book, check_pool
from envsched_gnn.schedule.greedy import Choice
from envsched_gnn.schedule.groups import collect
from envsched_gnn.schedule.metrics import book_metrics
from envsched_gnn.schedule.policies import saved as tables
from envsched_gnn.schedule.policies.groups import Report, groups_of, mean_deviation, num_trained
from envsched_gnn.schedule.policies.rule import Ask, Rule

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

    from envsched_gnn.pool.pool import Pool
    from envsched_gnn.schedule.reports import Accepted

LOOKED = ("pilot", "reference")
"""Uses whose tasks may still be picked to train on."""
FIELDS = (*state.BOOK_FIELDS, "learned", "reports", "memory")


class Peer:
    """A rule, and the books that let a trainer talk to it as to `EnvSched`. No quotas, no quarantine."""

    def __init__(self, pool: Pool | None, graph: HeteroData, rule: Rule, *, name: str, batch_size: int = 64, seed: int = 0) -> None:
        """A peer that has selected nothing. `pool` is only checked against the graph; `name` is that of its saved states.

        Raises:
            GraphError: the graph was built from another pool, or holds an empty reward range.
        """
        if pool is not None:
            check_pool(pool, graph)
        self.graph, self.rule, self.name = copy.copy(graph), rule, name
        self.batch_size, self.seed = batch_size, seed
        self.book = Book(self.graph)
        self._identity, self._held_out = graph["task"].identity.cpu(), graph["task"].held_out.cpu()
        self._reports: list[Report] = []
        self._learned = True
        """Whether the rule has learned from the latest round."""
        self._absent: dict[str, Any] = {}

    def to(self, device: torch.device | str) -> Peer:
        """Stays on the CPU; returns self."""
        return self

    # ---- select ----

    @torch.no_grad()
    def select(self, step: int, n: int | None = None, request_id: str | None = None) -> Selection:
        """min(n, eligible) tasks, or as many as the rule says. Eligible: not held out, not in flight, not picked to train on.

        The same request, the same Selection. Further requests of a step are the next trips of its round, see `Selection.more`.

        Raises:
            HistoryError: a new request of a step before the latest, or a negative number.
        """
        request = (index(step), self.batch_size if n is None else index(n), request_id)
        known = self.book.recall(request)
        if known is not None:
            return known
        if request[0] > self.book.last_step and (self._reports or not self._learned):
            self._learn()
        plan = self.rule.choose(self._ask(request[0], request[1]))
        picked = zip(plan.rows.tolist(), plan.score.tolist(), strict=True)
        choices = [Choice(task=row, phase=plan.phase, score=score) for row, score in picked]
        self._learned = False
        return self.book.register(
            request, choices, None, [(0.0, 0.0)] * len(choices), use=plan.use, num_rollouts=plan.num_rollouts, more=plan.more
        )

    def _ask(self, step: int, count: int) -> Ask:
        earlier = self._at(step)
        rows = self._eligible(step, earlier)
        looked = groups_of(report for report in self._reports if report.step == step and report.use != "train")
        return Ask(step=step, count=count, rows=rows, identity=self._identity[rows], seed=self.seed, trip=len(earlier), looked=looked)

    def _at(self, step: int) -> list[Selection]:
        """The selections of a step so far."""
        return [selection for (at, _, _), selection in self.book.memo.items() if at == step]

    def _eligible(self, step: int, earlier: list[Selection]) -> Tensor:
        """A task that was only looked at may be picked again: its group then has another id."""
        looked, taken = ({p.task_index for s in earlier if (s.use in LOOKED) == only for p in s.picks} for only in (True, False))
        in_flight = {entry.task for entry in self.book.open.values() if not entry.cancelled}
        out = in_flight | taken | (set(self.book.exposure.at(step).tolist()) - looked)
        eligible = ~self._held_out
        eligible[torch.tensor(sorted(out), dtype=torch.int64)] = False
        return eligible.nonzero().flatten()

    # ---- observe ----

    @torch.no_grad()
    def observe(self, groups: Iterable[RolloutGroup] | Selection, rewards: Any = None) -> None:
        """Take the groups that came back, in the same forms as `EnvSched.observe`; once a round is complete, the rule learns from it."""
        collect(groups, rewards, lambda taken: self._take(self.book.accept(taken)))

    def cancel(self, group_ids: Iterable[str]) -> None:
        """These groups will not report: their tasks are free again."""
        self.book.cancel([group_ids] if isinstance(group_ids, str) else group_ids)

    def _take(self, accepted: Accepted) -> None:
        statistics = accepted.statistics
        columns = (statistics.num_valid.tolist(), statistics.mean.tolist(), statistics.variance.tolist())
        for row, step, proposed, rewards, n, mean, variance in zip(
            accepted.tasks, accepted.steps, accepted.expected, accepted.rewards, *columns, strict=True
        ):
            report = Report(
                row=row,
                step=step,
                use="train" if proposed is None else proposed.use,
                num_rollouts=len(rewards),
                num_rewards=n,
                mean=mean,
                variance=variance,
                deviation=mean_deviation(rewards, float(self.book.low[row]), float(self.book.high[row])),
            )
            if proposed is not None:
                self.book.counts["charged_rollouts"] += report.num_rollouts
                self.book.counts["trained_rollouts"] += num_trained(report, self._reports, self.batch_size)
            self._reports.append(report)
        if not self._learned and self._is_over():
            self._learn()

    def _is_over(self) -> bool:
        """Whether nothing is in flight, and the latest selection is its step's last."""
        latest = self._at(self.book.last_step)
        return not any(s.more for s in latest[-1:]) and all(entry.cancelled for entry in self.book.open.values())

    def _learn(self) -> None:
        groups, self._reports, self._learned = groups_of(self._reports), [], True
        self.rule.learn(max(self.book.last_step, 0), groups)

    # ---- look ----

    def metrics(self) -> dict[str, float]:
        """Flat figures for a logger, keys `envsched/...`: those of `Uniform`, rollouts charged and trained on, and the rule's own."""
        figures = book_metrics(self.book)
        figures |= {f"envsched/total/{name}": float(self.book.counts[name]) for name in ("charged_rollouts", "trained_rollouts")}
        return figures | {f"envsched/policy/{name}": float(value) for name, value in self.rule.metrics().items()}

    def problems(self) -> tuple[str, ...]:
        """What was wrong with reports and requests; the last 200."""
        return tuple(self.book.problems)

    # ---- state ----

    def state_dict(self) -> dict[str, Any]:
        """By identity: plain data, and the rule's memory as tensors."""
        keys = self.book.keys
        return {
            **state.header(self._kind, self.book, self._absent),
            **state.dump_book(self.book, self._absent),
            "learned": self._learned,
            "reports": [[keys[report.row], *report[1:]] for report in self._reports] + self._absent.get("reports", []),
            "memory": tables.dump(self.rule.memory, self.book.env_ids, self._absent.get("memory")),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> LoadReport:
        """Restore a state, also of a pool that has changed since. What belongs to tasks that are not there is kept aside and saved again.

        Raises:
            CheckpointError: this is no state of this version and peer, or it is damaged; nothing changes.
        """
        state.check(saved, self._kind, FIELDS)
        book = Book(self.graph)
        try:
            absent = state.load_book(saved, book)
            reports = [Report(book.row_of[key], *rest) for key, *rest in saved["reports"] if key in book.row_of]
            absent["reports"] = [entry for entry in saved["reports"] if entry[0] not in book.row_of]
            memory, absent["memory"] = tables.load(saved["memory"], self.rule.start(), saved["pool"], book.row_of, book.env_ids)
        except state.DAMAGE as error:
            raise state.damaged(error) from error
        report = state.report(saved, book)
        self.rule.restore(memory, same_pool=list(saved["pool"]) == book.keys)
        self.book, self._reports, self._learned, self._absent = book, reports, bool(saved["learned"]), absent
        return report

    @property
    def _kind(self) -> str:
        return f"peer {self.name}"

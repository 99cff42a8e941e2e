"""The frozen carriers that are handed from one part to the next.

Knows: the fields, their shapes and their meaning.
Does not know: how any of them is read, computed or stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float
    from torch import Tensor

EnvType = Literal["python_class", "mcp", "openenv", "gym", "taskset", "bfcl"]
Status = Literal["ok", "tool_budget", "truncated", "timeout", "crashed", "out_of_memory", "cancelled"]
Phase = Literal["cold", "coverage", "exploitation", "shadow", "uniform"]
Quota = Literal["consecutive", "rolling", "per_round"]
Use = Literal["train", "filter", "pilot", "reference"]
"""What becomes of a selection's groups. `train`: the policy learns from all of them. `filter`: from those with variance, a batch at most.
`pilot`: from none, but where the same step selects the task to train on, these rollouts belong to its group. `reference`: from none."""

REWARDED: frozenset[str] = frozenset({"ok", "tool_budget", "truncated"})
"""The only statuses that may carry a reward."""


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Seconds that one rollout may spend in each stage of an environment."""

    setup: float = 10.0
    """Loading the environment and setting the initial state."""
    step: float = 10.0
    """One tool call."""
    score: float = 10.0
    """All checks of a task."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An executable environment: tools, state, transitions."""

    env_id: str
    """Unique in the pool."""
    name: str = ""
    """Of a `python_class`: the name of the class in `source`."""
    description: str = ""
    """Shown to the policy."""
    env_type: EnvType = "python_class"
    """How it is executed."""
    entry_point: str = ""
    """Import path, command or URL, where the environment is not `source`."""
    source: str = ""
    """Python source of a `python_class`."""
    tools: tuple[dict[str, Any], ...] = ()
    """OpenAI chat function schemas: {"type": "function", "function": {"name", "description", "parameters"}}."""
    rules: tuple[str, ...] = ()
    """Constraints in words, shown to the policy."""
    state_schema: Any = None
    """Entities and attributes of the state, in the pool's own form."""
    operations: tuple[dict[str, Any], ...] = ()
    """{"name", "description", "type": "query" | "state_change"} of each tool, in the pool's order."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest reward of its tasks."""
    max_turns: int = 40
    """Tool calls after which an episode is truncated."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    """Limits in seconds."""
    licence: str = ""
    revision: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check of a verifier."""

    description: str = ""
    code: str = ""
    """Source of `def check_func(final_state) -> bool`; it may read a global `initial_state`."""
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """What turns a final state into a reward. Never shown to the policy."""

    kind: str = "checks"
    """`checks`: share of checks passed; any other kind is scored by the environment itself."""
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of one environment: a node of the graph."""

    env_id: str
    task_id: str
    """Unique within the environment."""
    prompt: str
    """The instruction, shown to the policy."""
    initial_state: Any = None
    verifier: Verifier = field(default_factory=Verifier)
    ground_truth: Any = None
    """Gold trajectory, `[{"name", "arguments"}, ...]` for a `python_class`; never shown to policy or features."""
    reward_range: tuple[float, float] | None = None
    """Overrides the environment's; see `reward_range_in`."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Passed through. `info["held_out"]` keeps a task out of training."""

    @property
    def key(self) -> str:
        """The task's identity, `env_id/task_id`."""
        return f"{self.env_id}/{self.task_id}"

    def reward_range_in(self, environment: Environment) -> tuple[float, float]:
        """[lo, hi] of its rewards: its own, else its environment's."""
        return self.reward_range or environment.reward_range

    @property
    def held_out(self) -> bool:
        """Whether the task is kept for evaluation and never scheduled."""
        return bool(self.info.get("held_out", False))

    @property
    def taught(self) -> bool:
        """Whether the task is held out to teach a policy from, and so not for evaluation either."""
        return bool(self.info.get("taught", False))


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One episode of a task."""

    reward: float | None
    """In the task's reward range; None where the status carries no reward."""
    status: Status = "ok"
    seconds: float = 0.0
    tokens: int = 0
    policy_version: int = 0
    detail: str = ""
    """What failed, for people."""

    def __post_init__(self) -> None:
        if self.status not in REWARDED and self.reward is not None and not math.isnan(self.reward):
            raise ValueError(f"a rollout of status {self.status!r} carries reward {self.reward}; only {sorted(REWARDED)} may")


def group_id_of(step: int, env_id: str, task_id: str, use: Use = "train") -> str:
    """`STEP:ENV/TASK`, unique in a run: a task in flight is not proposed again in its step. `STEP.USE:ENV/TASK` if only looked at."""
    return f"{step}:{env_id}/{task_id}" if use in ("train", "filter") else f"{step}.{use}:{env_id}/{task_id}"


@dataclass(frozen=True, kw_only=True)
class RolloutGroup:
    """The rollouts of one task at one step. Ragged, late and all-masked groups are legal."""

    group_id: str
    """From the Selection; `observe` is idempotent by it."""
    env_id: str
    task_id: str
    step: int
    """The step of the selection, however late the group reports."""
    rollouts: tuple[Rollout, ...]

    @property
    def key(self) -> str:
        """Identity of the task, `env_id/task_id`."""
        return f"{self.env_id}/{self.task_id}"

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Raw rewards in rollout order; None is masked."""
        return tuple(rollout.reward for rollout in self.rollouts)


@dataclass(frozen=True, kw_only=True)
class Pick:
    """One task chosen for the batch."""

    rank: int
    """Position in the batch, from 1; where a step has several requests, it runs on from one to the next."""
    env_id: str
    task_id: str
    task_index: int
    """Row in the pool, valid for this process only."""
    group_id: str
    """See `group_id_of`."""
    phase: Phase
    score: float
    """The phase's score when picked, penalty included."""
    predicted_variance: float
    p_informative: float

    @property
    def key(self) -> str:
        """Identity of the task, `env_id/task_id`."""
        return f"{self.env_id}/{self.task_id}"


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """A quota that a pick had to break because no task was left within it."""

    quota: Quota
    env_id: str
    task_id: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The ordered picks of one request."""

    step: int
    picks: tuple[Pick, ...]
    relaxations: tuple[Relaxation, ...] = ()
    use: Use = "train"
    num_rollouts: int | None = None
    """Rollouts of each pick; None: as many as the engine makes of every task."""
    more: bool = False
    """Another request of this step is due when these groups have reported. It may find that the step is over, and pick nothing."""

    @property
    def task_ids(self) -> tuple[str, ...]:
        """Identities `env_id/task_id` in rank order."""
        return tuple(pick.key for pick in self.picks)

    @property
    def group_ids(self) -> tuple[str, ...]:
        """Group ids in rank order."""
        return tuple(pick.group_id for pick in self.picks)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the observed groups of steps before `step` say, task by task. Unobserved tasks have weight 0 and estimate 0."""

    weight: Float[Tensor, "horizons tasks"]
    """W: effective observation weight, horizons (long, short); float64."""
    estimate: Float[Tensor, "horizons stats tasks"]
    """own: own estimates, stats (variance, mean, dispersion)."""
    reference: Float[Tensor, "horizons stats"]
    """ref: global references."""
    informative_weight: Float[Tensor, " tasks"]
    """W at half-life H of the preset `default`."""
    informative_estimate: Float[Tensor, " tasks"]
    """zbar: weighted share of a task's groups with v > v_floor, half-life H."""
    informative_level: float
    """l: half-life-8 mean of z over the first group of each task; 0.5 before any observation (ours).

    A scheduler comes back to tasks that vary: over all groups l would promise of tasks never seen what those show."""
    informative_share: float
    """The same over all groups."""
    size: Float[Tensor, " tasks"] | None = None
    """Of targets other than `informative`: weighted mean of v, or of sqrt(v), over a task's groups with v > v_floor, half-life H; 0 where
    there are none."""
    size_level: float = 0.0
    """The same over all groups, half-life 8."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a predictor expects of the next group of every task."""

    informativeness: Float[Tensor, " tasks"]
    """q: percentile rank of the preset's score, in (0, 1); float64."""
    predicted_variance: Float[Tensor, " tasks"]
    """u."""
    p_informative: Float[Tensor, " tasks"]
    """P(v > v_floor)."""
    uncertainty: Float[Tensor, " tasks"] | None = None
    """Standard deviation of p_informative, as the predictor itself believes; None where it has none."""
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """Named intermediate tensors whose last dimension is tasks, for `explain` and for `update`."""
    keep: Callable[[Tensor], Mapping[str, Tensor]] | None = None
    """Further parts of the tasks that `at` is given: what `update` needs of them alone, too large for all. Call `at` before the next
    observation: it may read what the predictor shares with the scheduler."""

    def at(self, tasks: Tensor) -> Prediction:
        """The same prediction restricted to `tasks` (indices), in that order; small enough to keep until the groups report."""
        return Prediction(
            informativeness=self.informativeness[tasks],
            predicted_variance=self.predicted_variance[tasks],
            p_informative=self.p_informative[tasks],
            uncertainty=None if self.uncertainty is None else self.uncertainty[tasks],
            parts={name: part[..., tasks] for name, part in self.parts.items()} | (dict(self.keep(tasks)) if self.keep else {}),
        )

    def to(self, device: torch.device | str) -> Prediction:
        """The same restricted prediction on another device."""
        return Prediction(
            informativeness=self.informativeness.to(device),
            predicted_variance=self.predicted_variance.to(device),
            p_informative=self.p_informative.to(device),
            uncertainty=None if self.uncertainty is None else self.uncertainty.to(device),
            parts={name: part.to(device) for name, part in self.parts.items()},
        )


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What `load_state_dict` found when the pool has changed since the save."""

    known: int
    """Tasks of the state that are in the pool."""
    unknown: int
    """Tasks of the state that are not; their history is kept aside and saved again."""
    new: int
    """Tasks of the pool that the state has never seen; they start from the graph prior."""

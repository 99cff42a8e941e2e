"""Why a task has its number: its own groups, its neighbours, the caps that apply, and the arithmetic.

Knows: the formulas of both presets, once more, for one task and from the neighbours shown.
Does not know: any prediction but the one it checks itself against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from envsched_gnn.config import PredictConfig
from envsched_gnn.graph.neighbors import RELATIONS, Relation
from envsched_gnn.history import STATS
from envsched_gnn.ops import percentile_rank, quantile_map, sort
from envsched_gnn.predict import mixture, paper
from envsched_gnn.predict.heuristic import HeuristicPredictor
from envsched_gnn.records import Evidence, Prediction
from envsched_gnn.schedule.scores import base_scores

if TYPE_CHECKING:
    from envsched_gnn.schedule.envsched import EnvSched

Steps = tuple[tuple[str, float], ...]
"""(formula, value) in the order of the computation."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One observed group of the task."""

    step: int
    variance: float
    mean: float
    dispersion: float
    weight: float
    """2^(-(t-s)/half_life_long)."""


@dataclass(frozen=True, kw_only=True)
class Neighbor:
    """One observed neighbour that the prediction uses; weights and estimates of the horizon that the preset's number rests on."""

    task: str
    similarity: float
    weight: float
    """W_j."""
    evidence: float
    """a_ij: s_ij W_j in preset `paper`, 2 s_ij W_j / (W_j + 1) otherwise."""
    estimate: dict[str, float]
    """own_y(j): variance, mean, dispersion; and `informative`, zbar_j."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Everything behind one number. `str()` prints it; `to_dict()` is plain data."""

    task: str
    step: int
    preset: str
    quantity: str
    """`predicted_variance` in preset `paper`, `p_informative` otherwise."""
    value: float
    """The number."""
    informativeness: float
    """q."""
    num_selections: int
    history: tuple[Observation, ...]
    own: dict[str, float]
    """W and own estimates of the task."""
    neighbors: dict[Relation, tuple[Neighbor, ...]]
    """By relation, nearest first."""
    caps: dict[str, str]
    """What keeps or would keep the task out of the batch; empty if nothing does."""
    formulas: Steps
    """Intermediate values in the order of the computation, each with its formula."""
    terms: Steps
    """What adds up to `value`."""
    scores: dict[str, float]
    """Coverage and exploitation score before any pick of the step."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain(scheduler: EnvSched, row: int, step: int) -> Explanation:
    """Explain the number of task `row` at `step`."""
    evidence, prediction = scheduler.predicted(step)
    cover, exploit = base_scores(scheduler, step, evidence, prediction)
    heuristic = scheduler.predictor if isinstance(scheduler.predictor, HeuristicPredictor) else None
    learned = "learned_p" in prediction.parts
    preset = heuristic.preset if heuristic else scheduler.predict_config.predictor if learned else "predictor"
    informative = preset != "paper"
    neighbors = {relation: _neighbors(scheduler, row, relation, evidence, informative) for relation in RELATIONS}
    value = prediction.predicted_variance if preset == "paper" else prediction.p_informative
    formulas: Steps
    terms: Steps
    if learned:
        formulas, terms = _learned(row, prediction)
        formulas = (*formulas, *_worth(row, prediction, scheduler.predict_config))
    elif heuristic is None:
        formulas, terms = (), (("the predictor's own", float(value[row])),)
    elif heuristic.preset == "paper":
        formulas, terms = _paper(row, evidence, prediction, neighbors, heuristic)
    else:
        formulas, terms = _default(row, evidence, neighbors, heuristic.experts.weights().tolist())
        formulas = (*formulas, *_size(row, evidence, prediction, heuristic.power))
    return Explanation(
        task=scheduler.book.keys[row],
        step=step,
        preset=preset,
        quantity="predicted_variance" if preset == "paper" else "p_informative",
        value=float(value[row]),
        informativeness=float(prediction.informativeness[row]),
        num_selections=int(scheduler.book.exposure.num_selections(step - 1)[row]),
        history=_history(scheduler, row, step),
        own=_estimates(row, evidence) | {"weight": _weight(row, evidence, informative)},
        neighbors=neighbors,
        caps=_caps(scheduler, row, step),
        formulas=formulas,
        terms=terms,
        scores={"coverage": float(cover[row]), "exploitation": float(exploit[row])},
    )


def _history(scheduler: EnvSched, row: int, step: int) -> tuple[Observation, ...]:
    log = scheduler.history
    mine = ((log.tasks == row) & (log.steps < step)).nonzero().flatten()
    mine = mine[torch.argsort(log.steps[mine], stable=True)]
    half_life = scheduler.predict_config.half_life_long
    return tuple(
        Observation(step=s, variance=v, mean=m, dispersion=d, weight=2.0 ** (-(step - s) / half_life))
        for s, (v, m, d) in zip(log.steps[mine].tolist(), log.values[:, mine].T.tolist(), strict=True)
    )


def _weight(row: int, evidence: Evidence, informative: bool) -> float:
    return float(evidence.informative_weight[row] if informative else evidence.weight[0, row])


def _estimates(row: int, evidence: Evidence) -> dict[str, float]:
    own = dict(zip(STATS, evidence.estimate[0, :, row].tolist(), strict=True))
    return own | {"informative": float(evidence.informative_estimate[row])}


def _neighbors(scheduler: EnvSched, row: int, relation: Relation, evidence: Evidence, informative: bool) -> tuple[Neighbor, ...]:
    tasks, similarity = scheduler.neighbors.of(relation, row)
    found = []
    for j, s in zip(tasks.tolist(), similarity.tolist(), strict=True):
        weight = _weight(j, evidence, informative)
        says = float(mixture.neighbour_weight(evidence.informative_weight[[j]])) if informative else weight
        found.append(
            Neighbor(task=scheduler.book.keys[j], similarity=s, weight=weight, evidence=s * says, estimate=_estimates(j, evidence))
        )
    return tuple(found)


def _relation(neighbors: tuple[Neighbor, ...], y: str, reference: float, strength: float) -> float:
    """(sum_j a_ij own_y(j) + strength ref) / (sum_j a_ij + strength)."""
    weighted = sum(j.evidence * j.estimate[y] for j in neighbors)
    return (weighted + strength * reference) / (sum(j.evidence for j in neighbors) + strength)


def _paper(
    row: int, evidence: Evidence, prediction: Prediction, neighbors: Mapping[Relation, tuple[Neighbor, ...]], predictor: HeuristicPredictor
) -> tuple[Steps, Steps]:
    """Steps 1 to 6 for one task: long horizon from the neighbours shown; the short one is the prediction's."""
    formulas, estimate = [], {}
    W = _weight(row, evidence, False)
    for at, y in enumerate(STATS):
        reference, own = float(evidence.reference[0, at]), float(evidence.estimate[0, at, row])
        within, cross = (_relation(neighbors[relation], y, reference, paper.GRAPH_STRENGTH) for relation in RELATIONS)
        prior = (within + cross) / 2
        estimate[y] = (W * own + paper.SHRINKAGE_STRENGTH * prior) / (W + paper.SHRINKAGE_STRENGTH)
        formulas += [
            (f"ref_{y}", reference),
            (f"within_{y} = (sum a own + 2 ref) / (sum a + 2)", within),
            (f"cross_{y} = (sum a own + 2 ref) / (sum a + 2)", cross),
            (f"est_{y} = (W own + 2 (within + cross) / 2) / (W + 2)", estimate[y]),
        ]
    f = paper.reconstructed_variance(*(torch.tensor(estimate[y], dtype=torch.float64) for y in ("mean", "dispersion")))
    parts = prediction.parts
    v = parts["estimate_variance"]
    pr_v = percentile_rank(v)[row]
    pr_f = percentile_rank(paper.reconstructed_variance(parts["estimate_mean"], parts["estimate_dispersion"]))[row]
    share, decline = predictor.reconstruction, predictor.decline
    rank = (1 - share) * pr_v + share * pr_f
    u_long = float(quantile_map(sort(v), rank[None])[0])
    u_short = float(parts["variance_short"][row])
    formulas += [
        ("f = est_dispersion est_mean (1 - est_mean)", float(f)),
        ("pr(est_variance) among all tasks", float(pr_v)),
        ("pr(f) among all tasks", float(pr_f)),
        (f"rank = {1 - share:g} pr(est_variance) + {share:g} pr(f)", float(rank)),
        ("u_short, the same with half-life 2", u_short),
    ]
    terms = (
        ("u_long = Q(rank), Q the quantile function of est_variance", u_long),
        (f"decline = -{decline:g} max(u_long - u_short, 0)", -decline * max(u_long - u_short, 0.0)),
    )
    return tuple(formulas), terms


def _default(row: int, evidence: Evidence, neighbors: Mapping[Relation, tuple[Neighbor, ...]], weights: list[float]) -> tuple[Steps, Steps]:
    """The experts of one task, and what each contributes."""
    level = evidence.informative_level
    W, zbar = _weight(row, evidence, True), float(evidence.informative_estimate[row])
    within, cross = (_relation(neighbors[relation], "informative", level, mixture.GRAPH_STRENGTH) for relation in RELATIONS)
    priors = {name: a * level + b * within + c * cross for name, (a, b, c) in mixture.PRIORS.items()}
    formulas = (
        ("level = recent share of informative groups, of tasks' first ones", level),
        ("within = (sum a zbar + level) / (sum a + 1), a = 2 s W / (W + 1)", within),
        ("cross = (sum a zbar + level) / (sum a + 1)", cross),
        ("mean = (within + cross) / 2", priors["mean"]),
        *((f"faint_{name} = (3 level + {name}) / 4", priors[f"faint_{name}"]) for name in ("within", "cross", "mean")),
    )
    experts = [(name, c) for c in mixture.STRENGTHS for name in mixture.PRIORS]
    terms = tuple(
        (f"{weight:.3f} (W zbar + {c:g} {name}) / (W + {c:g})", weight * (W * zbar + c * priors[name]) / (W + c))
        for (name, c), weight in zip(experts, weights, strict=True)
    )
    return formulas, terms


def _size(row: int, evidence: Evidence, prediction: Prediction, power: float | None) -> Steps:
    """How P(informative) becomes the informativeness, where the target is a size."""
    if power is None or not evidence.size_level:
        return ()
    name = {1.0: "variance", 0.5: "deviation"}[power]
    return (
        (f"size = (W zbar own + level) / (W zbar + 1), of the {name} where there is any", float(mixture.shrunk_size(evidence)[row])),
        (f"informativeness = p_informative size / {mixture.MAX_VARIANCE**power:g}", float(prediction.informativeness[row])),
    )


def _learned(row: int, prediction: Prediction) -> tuple[Steps, Steps]:
    """What the mixture says, what the network makes of it, and what each contributes."""
    said = {name: float(part[row]) for name, part in prediction.parts.items() if part.dim() == 1}
    p, mixed = float(prediction.p_informative[row]), said["mixture_p"]
    gate = "gate = n / (n + 200), n groups learned from" if said["learned_gate"] else "gate: fewer than 50 groups, the graph prior alone"
    formulas = [
        ("mixture of the heuristic experts", mixed),
        (gate, said["learned_gate"]),
        ("gate r, the network's correction of the log-odds", said["learned_correction"]),
        ("learned = sigmoid(log-odds of the mixture + gate r)", said["learned_p"]),
    ]
    if "learned_weight" in said:
        formulas.append(("weight of learned among all experts", said["learned_weight"]))
    if prediction.uncertainty is not None:
        formulas.append(("uncertainty of P(informative)", float(prediction.uncertainty[row])))
    return tuple(formulas), (("mixture", mixed), ("learned correction", p - mixed))


def _worth(row: int, prediction: Prediction, config: PredictConfig) -> Steps:
    """How the network's P(informative) and its E[v | v > floor] become the informativeness."""
    u, q = float(prediction.predicted_variance[row]), float(prediction.informativeness[row])
    variance = ("predicted_variance = p_informative E[v | v > floor]", u)
    if config.preset == "paper":
        return variance, ("informativeness = rank of predicted_variance", q)
    match config.target:
        case "informative":
            return ()
        case "variance":
            return variance, ("informativeness = 4 predicted_variance", q)
        case "std":
            return variance, ("informativeness = 2 sqrt(p_informative predicted_variance)", q)


def _caps(scheduler: EnvSched, row: int, step: int) -> dict[str, str]:
    """What keeps the task out of a batch of `step`, in words."""
    book, quotas = scheduler.book, scheduler.quotas(step)
    env = int(book.env_index[row])
    caps = {}
    if bool(scheduler.graph["task"].held_out[row]):
        caps["held_out"] = "kept for evaluation, never selected"
    if row in (entry.task for entry in book.open.values() if not entry.cancelled):
        caps["in_flight"] = "a group of it has not reported"
    if row in book.exposure.at(step):
        caps["selected"] = f"selected at step {step} already"
    rounds = scheduler.rounds_before(step)
    if row in scheduler.quarantine.active(rounds):
        left = scheduler.quarantine.records[row].until - rounds
        caps["quarantine"] = f"its groups failed {scheduler.quarantine.after} times in a row; {left} more rounds, or until released"
    broken = quotas.broken_by(row, env)
    if "consecutive" in broken:
        caps["consecutive"] = f"selected in each of the last {scheduler.select_config.consecutive} rounds"
    if "rolling" in broken:
        caps["rolling"] = f"{quotas.window_picks[env]} tasks of its environment in 3 rounds, at most {quotas.rolling}"
    if "per_round" in broken:
        caps["per_round"] = f"{quotas.round_picks[env]} tasks of its environment in this round, at most {quotas.per_round}"
    return caps


def _lines(e: Explanation) -> list[str]:
    lines = [f"{e.task} at step {e.step}, preset {e.preset}: {e.quantity} {e.value:.6g}, informativeness {e.informativeness:.4f}"]
    lines.append(
        f"selected {e.num_selections} times before; coverage {e.scores['coverage']:.4f}, exploitation {e.scores['exploitation']:.4f}"
    )
    own = ", ".join(f"{y} {e.own[y]:.4f}" for y in (*STATS, "informative")) if e.history else "no estimate"
    lines.append(f"own history: {len(e.history)} observed groups, W {e.own['weight']:.4g}, own {own}")
    lines += [f"  step {o.step}: variance {o.variance:.4f}, mean {o.mean:.4f}, dispersion {o.dispersion:.4f}" for o in e.history]
    for relation, neighbors in e.neighbors.items():
        lines.append(f"{relation} neighbours: {len(neighbors) or 'none observed'}")
        for j in neighbors:
            y = j.estimate
            lines.append(
                f"  {j.task}: similarity {j.similarity:.4f}, W {j.weight:.4g}, variance {y['variance']:.4f}, mean {y['mean']:.4f}, "
                f"dispersion {y['dispersion']:.4f}, informative {y['informative']:.4f}"
            )
    lines.append("caps: " + ("; ".join(f"{name}: {text}" for name, text in e.caps.items()) or "none"))
    lines += [f"  {name}: {value:.6g}" for name, value in e.formulas]
    lines.append(f"{e.quantity} =")
    lines += [f"  {value:+.6g}  {name}" for name, value in e.terms]
    lines.append(f"  = {sum(value for _, value in e.terms):.6g}")
    return lines

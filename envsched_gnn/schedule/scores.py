"""What a scheduler says of every task at a step: both scores before penalties, and the columns of SCORES.csv.

Knows: where the terms of a score come from, the names of the columns.
Does not know: formulas (coverage, acquisition), which tasks are picked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from envsched_gnn.records import Evidence, Prediction
from envsched_gnn.schedule import coverage
from envsched_gnn.schedule.acquisition import acquired

if TYPE_CHECKING:
    from envsched_gnn.schedule.envsched import EnvSched


def base_scores(
    scheduler: EnvSched, step: int, evidence: Evidence, prediction: Prediction, *, picked: bool = False
) -> tuple[Tensor, Tensor]:
    """(coverage, exploitation) score of every task before penalties; `picked`: count the picks of this step too.

    Exploitation ranks by what `select.acquisition` makes of the prediction.
    Preset `default` weighs coverage by q, an expectation there: seldom seen tasks count as far as they may have variance.
    """
    book = scheduler.book
    count = book.exposure.num_selections(step if picked else step - 1)
    n_e = torch.from_numpy(book.exposure.environment_density(step)).to(count.device)
    nbar = coverage.mean_density(n_e, torch.from_numpy(book.schedulable).to(count.device), scheduler.batch_size, len(count))
    env_term = coverage.environment_term(n_e, nbar)[scheduler.graph["task"].env_index]
    pattern = coverage.pattern_term(coverage.cross_evidence(evidence, prediction, scheduler.neighbors))
    cover = coverage.coverage_score(env_term, coverage.task_term(count), pattern)
    if scheduler.preset == "default":
        cover = coverage.weighed(cover, prediction.informativeness, count)
    worth = acquired(prediction, scheduler.select_config, scheduler.graph["task"].identity, scheduler.seed, step)
    return cover, coverage.exploitation_score(worth, count, scheduler.exposure_scale)


def columns(scheduler: EnvSched, step: int) -> dict[str, Tensor]:
    """Columns [tasks] in pool order, before any pick of `step`; long-horizon estimates are the shrunk ones."""
    evidence, prediction = scheduler.predicted(step)
    cover, exploit = base_scores(scheduler, step, evidence, prediction)
    parts = prediction.parts
    return {
        "weight_long": evidence.weight[0],
        "variance_long": parts.get("estimate_variance", evidence.estimate[0, 0]),
        "mean_long": parts.get("estimate_mean", evidence.estimate[0, 1]),
        "dispersion_long": parts.get("estimate_dispersion", evidence.estimate[0, 2]),
        "predicted_variance": prediction.predicted_variance,
        "informativeness": prediction.informativeness,
        "coverage_score": cover,
        "exploitation_score": exploit,
        "num_selections": scheduler.book.exposure.num_selections(step - 1).clone(),
        "p_informative": prediction.p_informative,
    }

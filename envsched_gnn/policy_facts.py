"""What there is to know of each policy before it is run: the table behind `envsched compare --list`.

Knows: what a policy knows of environments, whether evidence of a task counts for others, extra rollouts, source, licence, what is ours.
Does not know: how any policy works; it needs no torch. All peers are written anew from their description; no code of their origin is used.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from envsched_gnn.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A row of the table."""

    name: str
    does: str
    """In a few words."""
    environments: str
    """What it knows of environments."""
    shares: str
    """Whether what a task shows counts for other tasks."""
    extra_rollouts: str
    """Rollouts that the policy does not learn from; all are charged."""
    source: str
    licence: str
    """Of the code that its description was checked against, if there is any."""
    ours: str
    """What differs from the source, or had to be decided."""


def _peer(
    name: str,
    does: str,
    *,
    environments: str = "nothing",
    shares: str = "no",
    extra_rollouts: str = "none",
    source: str,
    licence: str = "no code found",
    ours: str,
) -> Facts:
    return Facts(
        name=name,
        does=does,
        environments=environments,
        shares=shares,
        extra_rollouts=extra_rollouts,
        source=source,
        licence=licence,
        ours=ours,
    )


GRAPH = "tools, states, verifiers: the graph of tasks within and across environments; quotas"
EMBEDDING = "prompt vectors: TF-IDF reduced by SVD unless others are handed in"
OURS = "this project"

FACTS: tuple[Facts, ...] = (
    _peer("uniform", "epochs in random order", source="-", licence="-", ours="-"),
    _peer(
        "envsched",
        "EnvSched, preset default: chance of variance from a mixture of experts on the graph",
        environments=GRAPH,
        shares="yes, along the graph",
        source="arXiv 2610.37609",
        licence=OURS,
        ours="target, experts, half-lives, coverage",
    ),
    _peer(
        "paper",
        "EnvSched as published: predicted variance",
        environments=GRAPH,
        shares="yes, along the graph",
        source="arXiv 2610.37609",
        ours="similarities, coverage score, penalty: the paper leaves them open",
    ),
    _peer(
        "oracle",
        "the ceiling: the current policy's true chance of variance, under EnvSched's quotas",
        environments="quotas",
        extra_rollouts="its looks at every task, which nobody charges: shown apart",
        source="-",
        licence=OURS,
        ours="all of it; needs an engine to look with, so compare makes it",
    ),
    _peer(
        "dps",
        "hidden Markov model of each task; largest chance to be mixed",
        source="arXiv 2603.10887 (ICLR 2026)",
        licence="Apache-2.0",
        ours="whole pool as candidates; a group is mixed if it has variance, else low or high by its mean against 1/2",
    ),
    _peer(
        "leeps",
        "exploit and explore portfolios, budget by their recent share of mixed groups",
        shares="yes, 16 nearest observed prompts",
        source="arXiv 2607.28077",
        licence="not available to us",
        ours=f"all formulas and constants: only the abstract's idea was known; {EMBEDDING}",
    ),
    _peer(
        "dots",
        "difficulty by attention to reference tasks; nearest to 1/2",
        shares="yes, from references by attention",
        extra_rollouts="half a batch of reference groups every other step",
        source="arXiv 2506.05316 (NeurIPS 2025)",
        licence="none at the top; part Apache-2.0",
        ours=f"linear attention maps learned online instead of adapters trained on other models; no replay of rollouts; {EMBEDDING}",
    ),
    _peer(
        "pilot_commit",
        "two pilots of three batches of tasks; the other six rollouts where they differ",
        extra_rollouts="pilots of tasks that are not committed to, up to 60 a trained task",
        source="arXiv 2605.26606",
        licence="Apache-2.0",
        ours="small version for groups of 8; keeps a task if its pilots differ; no eviction, no buffer of older pilots",
    ),
    _peer(
        "mopps",
        "Beta belief of each task's success, Thompson sampling; nearest to 1/2",
        source="arXiv 2507.04632",
        licence="Apache-2.0",
        ours="decay 0.5 of its three settings",
    ),
    _peer(
        "sec",
        "bandit over environments by mean advantage, softmax",
        environments="which task belongs to which: the arm",
        shares="yes, within the environment",
        source="arXiv 2505.14970",
        licence="only third-party code seen",
        ours="environment as category; rate and temperature of an independent implementation; draws without replacement",
    ),
    _peer(
        "dump",
        "upper confidence bounds over environments, softmax",
        environments="which task belongs to which: the arm",
        shares="yes, within the environment",
        source="arXiv 2504.09710",
        licence="no licence file; training code not published",
        ours="environment as distribution; window, temperature and bound from memory of the paper; draws without replacement",
    ),
    _peer(
        "graph_potts",
        "Potts labels and Beta-Binomial success on a graph of prompts; nearest to 1/2",
        shares="yes, along a prompt graph",
        source="arXiv 2608.17941",
        ours=f"k-means for spectral clustering; three local sweeps a round; PCL's choice; smoothing 0.1; {EMBEDDING}",
    ),
    _peer(
        "pcl",
        "value head on prompt vectors; nearest to 1/2",
        shares="yes, through the head",
        source="arXiv 2510.01135 (ICLR 2026)",
        licence="not confirmed",
        ours=f"ridge head on frozen vectors in place of a language model; {EMBEDDING}",
    ),
    _peer(
        "greso",
        "epochs that skip tasks by their streak without variance",
        source="arXiv 2506.02177",
        licence="no licence file",
        ours="no refill; easy or hard by the mean against 1/2",
    ),
    _peer(
        "bots",
        "Beta belief with implicit evidence, Thompson sampling; nearest to 1/2",
        environments="tools, states, verifiers: the graph's prior of the mean reward",
        shares="yes, along EnvSched's graph",
        source="arXiv 2510.26374 (ICLR 2026)",
        licence="Apache-2.0 (Trinity-RFT)",
        ours="EnvSched's graph prior as implicit evidence in place of two reference models",
    ),
    _peer(
        "dapo",
        "dynamic sampling: draw, discard groups without variance, draw again",
        extra_rollouts="discarded groups, up to nine batches a step",
        source="arXiv 2503.14476",
        licence="Apache-2.0 (verl)",
        ours="draws in epochs; at most ten draws a step",
    ),
)
NAMES = tuple(facts.name for facts in FACTS)
SEVERAL_TRIPS = tuple(facts.name for facts in FACTS if facts.extra_rollouts != "none")
"""Policies that look before they choose, or discard: a step of theirs takes several trips between scheduler and engine."""


def unknown(name: str) -> ConfigError:
    """The error of a name that no policy has; names the nearest one."""
    near = difflib.get_close_matches(name.lower().replace("-", "_"), NAMES, n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"policy {name!r}: no such policy; expected one of {', '.join(NAMES)}. {hint}See envsched compare --list.")

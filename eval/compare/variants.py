"""The ablations: variants of `envsched` and `paper` that change one thing, written `paper:within_only`.

Knows: which there are, what each asks and sets.
Does not know: how a setting works; it needs no torch.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from envsched_gnn.errors import ConfigError
from envsched_gnn.policy_facts import NAMES, unknown

BOTH = ("envsched", "paper")
EVER = 10**9
"""A quota that nothing reaches."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A change of one thing."""

    name: str
    asks: str
    """The question that it answers."""
    settings: tuple[str, ...] = ()
    """`key=value`, as `-s` takes them."""
    recent: int | None = None
    """Neighbours only among tasks observed in the last so many rounds."""
    of: tuple[str, ...] = BOTH
    """Policies that it is a variant of."""


def _neighbours(within: int, cross: int) -> Variant:
    settings = (f"graph.within_neighbors={within}", f"graph.cross_neighbors={cross}")
    return Variant(name=f"neighbours_{within}_{cross}", asks=f"{within} and {cross} neighbours in place of 6 and 12", settings=settings)


VARIANTS: tuple[Variant, ...] = (
    Variant(
        name="within_only",
        asks="the relation within environments alone; the other one says its reference",
        settings=("graph.cross_neighbors=0",),
    ),
    Variant(
        name="cross_only",
        asks="the relation across environments alone; the other one says its reference",
        settings=("graph.within_neighbors=0",),
    ),
    Variant(name="rho_0", asks="no coverage picks", settings=("select.coverage_share=0.0",)),
    Variant(name="rho_1", asks="coverage picks alone", settings=("select.coverage_share=1.0",)),
    *(
        Variant(
            name=f"exposure_{now}",
            asks=f"a task's exploitation score falls to 0.71 with its selection number {now}, not {before}",
            settings=(f"select.exposure_scale={now}.0",),
            of=(policy,),
        )
        for policy, now, before in (("envsched", 16, 1), ("paper", 1, 16))
    ),
    *(_neighbours(within, cross) for within, cross in ((3, 12), (12, 12), (6, 6), (6, 24))),
    Variant(name="no_decline", asks="no term for a recent decline", settings=("predict.decline=0.0",), of=("paper",)),
    Variant(
        name="no_reconstruction", asks="variance alone, not mean and dispersion", settings=("predict.reconstruction=0.0",), of=("paper",)
    ),
    Variant(name="no_penalty", asks="no penalty for redundancy in a batch", settings=("select.penalty=0.0",)),
    Variant(
        name="no_quotas",
        asks="no quotas of environments and repeats",
        settings=(f"select.per_round={EVER}", f"select.rolling={EVER}", f"select.consecutive={EVER}"),
    ),
    Variant(name="dense", asks="similarity of sentence embeddings in place of words and code", settings=("graph.similarity=dense",)),
    Variant(name="dense_both", asks="similarity of sentence embeddings beside words and code", settings=("graph.similarity=both",)),
    *(
        Variant(name=f"target_{name}", asks=f"tasks ordered by the expected {what}", settings=(f"predict.target={name}",), of=("envsched",))
        for name, what in (("informative", "chance of variance"), ("std", "standard deviation"))
    ),
    Variant(
        name="learned", asks="a network over the graph, learning in the run, corrects the forecast", settings=("predict.predictor=learned",)
    ),
    Variant(name="ensemble", asks="that network as one more expert of the mixture", settings=("predict.predictor=ensemble",)),
    Variant(name="bonus", asks="informativeness and its uncertainty, added", settings=("select.acquisition=bonus",), of=("envsched",)),
    Variant(
        name="thompson", asks="a draw from what is believed of P(variance > 0)", settings=("select.acquisition=thompson",), of=("envsched",)
    ),
    Variant(name="recent_8", asks="neighbours observed in the last 8 rounds alone", recent=8),
    Variant(name="recent_32", asks="neighbours observed in the last 32 rounds alone", recent=32),
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A row of a comparison: a policy, or a variant of one."""

    policy: str
    variant: Variant | None = None

    @property
    def name(self) -> str:
        """As the user writes it."""
        return self.policy if self.variant is None else f"{self.policy}:{self.variant.name}"

    @property
    def folder(self) -> str:
        """As a folder is called."""
        return self.name.replace(":", ".")


def entry_of(name: str) -> Entry:
    """`paper`, or `paper:within_only`.

    Raises:
        ConfigError: no such policy or variant, or one of another policy; the nearest one is named.
    """
    policy, colon, variant = name.partition(":")
    if policy not in NAMES:
        raise unknown(policy)
    if not colon:
        return Entry(policy=policy)
    known = {entry.name: entry for entry in VARIANTS if policy in entry.of}
    if variant not in known:
        some = f"expected one of {', '.join(known)}" if known else f"expected a variant of {' or '.join(BOTH)}"
        raise ConfigError(f"policy {name!r}: no such variant; {some}. {_near(variant, tuple(known))}")
    return Entry(policy=policy, variant=known[variant])


def entries_of(text: str, first: tuple[str, ...] = ()) -> list[Entry]:
    """The entries of `uniform,paper:rho_0`, each once; those named in `first` come first, asked for or not.

    Raises:
        ConfigError: as `entry_of`, or nothing is named.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--policies {text!r}: expected names with commas between them, as uniform,envsched,mopps.")
    return [entry_of(name) for name in dict.fromkeys((*first, *names))]


def seeds_of(text: str) -> list[int]:
    """`0-4` or `0,2,7` or both, ascending, each once.

    Raises:
        ConfigError: anything else.
    """
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or (dash and int(high) < int(low)):
            raise ConfigError(f"--seeds {text!r}: expected numbers from 0, as 0-4 or 0,2,7.")
        found |= set(range(int(low), int(high if dash else low) + 1))
    return sorted(found)


def _near(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return f"{hint}See envsched compare --list."

"""What a domain is: the nouns, states and values that ToolWorld dresses its abstract worlds in.

Knows: the shape of a domain's description.
Does not know: any domain (the tables are in `domains_public` and `domains_trade`), tools, tasks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Domain:
    """One field of work. Every tuple of nouns offers the variants among which an environment chooses.

    The abstract roles: an owner holds bookings; a booking takes units of a resource; a resource stands in a place;
    a place keeps a list of owners; staff approve.
    """

    name: str
    summary: str
    """A noun phrase."""
    owner: tuple[str, ...]
    resource: tuple[str, ...]
    place: tuple[str, ...]
    booking: tuple[str, ...]
    staff: tuple[str, ...]
    roles: tuple[str, str, str]
    """The first one approves."""
    heads: tuple[str, ...]
    """Last words of resource names."""
    place_heads: tuple[str, ...]
    """Last words of place names."""
    categories: tuple[str, ...]
    """Of resources."""
    owner_states: tuple[str, str, str]
    """In good standing, suspended, closed for good."""
    resource_states: tuple[str, str, str]
    """In service, out of service, retired for good."""
    place_states: tuple[str, str]
    """Open, shut for good."""
    booking_states: tuple[str, str, str, str]
    """Pending, active, finished for good, cancelled for good."""
    tiers: tuple[str, str, str]
    """Of owners, rising."""
    topics: tuple[str, ...]
    """Of notices."""
    units: str
    capacity: str
    used: str
    rate: tuple[str, ...]
    due: str
    access: tuple[str, ...]
    """The list of owners that a place keeps."""
    report: tuple[str, ...]
    firms: bool = False
    """Whether owners are firms, not people."""


def plural(noun: str) -> str:
    """Regular English plural of a snake-case noun."""
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def words(name: str) -> str:
    """A snake-case name as words."""
    return name.replace("_", " ")

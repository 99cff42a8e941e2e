"""`envsched compare`: policies side by side. `--list` says which there are.

Knows: the options of the verb, how the table of facts is shown.
Does not know: policies.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from envsched_gnn.cli.console import Json, cured, show, show_json


@cured
def compare(
    list_policies: Annotated[bool, typer.Option("--list", help="Name the policies, and what there is to know of each.")] = False,
    json: Json = False,
) -> None:
    """Compare policies: uniform, EnvSched, the oracle, and the peers."""
    if not list_policies:
        raise typer.BadParameter("nothing to do; expected --list.")
    from envsched_gnn.policy_facts import FACTS

    if json:
        show_json([asdict(facts) for facts in FACTS])
        return
    for facts in FACTS:
        show(f"{facts.name}: {facts.does}")
        show(f"    environments: {facts.environments}")
        show(f"    shares evidence: {facts.shares}; extra rollouts: {facts.extra_rollouts}")
        show(f"    source: {facts.source}; licence of its code: {facts.licence}")
        show(f"    ours: {facts.ours}")

"""`envsched`: the verbs, put together.

Knows: which verbs there are.
Does not know: what they do.
"""

from __future__ import annotations

import typer

from envsched_gnn.cli import compare, diagnose, doctor, fit, graph, pool, replay, run, select, simulate, train

app = typer.Typer(
    name="envsched",
    help="Choose which environments and tasks to spend the next RL batch on, before any rollout.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("doctor")(doctor.doctor)
app.add_typer(pool.app, name="pool")
app.add_typer(graph.app, name="graph")
app.command("select")(select.select)
app.command("explain")(select.explain)
app.command("run")(run.run)
app.command("train")(train.train)
app.command("report")(run.report)
app.command("compare")(compare.compare)
app.command("simulate")(simulate.simulate)
app.command("replay")(replay.replay)
app.command("fit")(fit.fit)
app.command("diagnose")(diagnose.diagnose)

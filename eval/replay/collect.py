"""The rows of several replays in one file: which predictor is right on which ledger.

    envsched replay RUN -o A.json; ...; python -m envsched_gnn.eval.replay.collect A.json B.json -o eval/results/predictors.json

Knows: what `envsched replay` writes, which of it a reader compares.
Does not know: how a figure is computed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from envsched_gnn.errors import HistoryError, message
from envsched_gnn.files import write_atomic
from envsched_gnn.train.folder import commit

LEDGER = ("ledger", "kind", "policy", "uniform", "judged", "steps", "mixed_share")
"""What is said of a ledger."""
INTERVALS = ("spearman", "mae", "precision_at_batch")
ROW = (
    *("ledger", "kind", "target", "predictor"),
    *(f"{name}{end}" for name in INTERVALS for end in ("", "_low", "_high")),
    "calibration_error",
)
"""What is said of a predictor; beside it the Spearman of each third."""
INTERVAL = ("interval_coverage", "interval_probability")
"""What is said of the target `informative` alone."""
THIRDS = ("early", "middle", "late")


def collected(files: Sequence[Path]) -> dict[str, Any]:
    """A row a ledger, target and predictor; and each pair's difference in Spearman, resampled together.

    Raises:
        HistoryError: a file is not what `envsched replay -o` writes.
    """
    results = [_read(path) for path in files]
    return {
        "ledgers": [{name: result[name] for name in LEDGER} for result in results],
        "rows": [_row(row) for result in results for row in result["rows"]],
        "differences": [{"ledger": result["ledger"], **pair} for result in results for pair in result["differences"]],
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if all(name in result for name in (*LEDGER, "rows", "differences")):
            return dict(result)
        found = "no result of a replay"
    except (OSError, ValueError) as error:
        found = f"cannot be read ({error})"
    raise HistoryError(message(str(path), found, "a file of `envsched replay RUN -o FILE.json`", "Make it anew."))


def _row(row: dict[str, Any]) -> dict[str, Any]:
    found = {name: row[name] for name in (*ROW, *INTERVAL) if name in ROW or name in row}
    return found | {f"spearman_{part}": row[part]["spearman"] for part in THIRDS}


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m envsched_gnn.eval.replay.collect", description="Rows of several replays in one file.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--out", required=True, type=Path)
    arguments = parser.parse_args()
    try:
        found = collected(arguments.files)
    except HistoryError as error:
        raise SystemExit(f"error: {error}") from None
    described = {"commit": commit(), "date": date.today().isoformat(), "command": "envsched replay RUN -o FILE.json, for each ledger"}
    write_atomic(arguments.out, json.dumps(described | found, indent=1).encode())


if __name__ == "__main__":
    main()

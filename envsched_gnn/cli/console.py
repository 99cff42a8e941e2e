"""What verbs share: errors as one sentence, results on stdout, everything else on stderr, two options.

Knows: exit codes, how JSON is printed.
Does not know: any verb.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from envsched_gnn.errors import EnvSchedError

P = ParamSpec("P")
R = TypeVar("R")

Settings = Annotated[
    list[str] | None, typer.Option("-s", "--set", metavar="KEY=VALUE", help="A setting, as pool.toolworld.environments=4; may be repeated.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

USER_ERROR = 1
"""Exit code of a mistake that the user can cure; 2 is wrong usage, 130 is Ctrl-C."""


def cured(verb: Callable[P, R]) -> Callable[P, R]:
    """Print an EnvSchedError, what the file system refuses, or a package that is missing, as one sentence, no traceback; exit with 1."""

    @functools.wraps(verb)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        """The verb, its errors in a sentence."""
        try:
            return verb(*args, **kwargs)
        except EnvSchedError as error:
            say(f"error: {error}")
            raise typer.Exit(USER_ERROR) from None
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("envsched_gnn"):
                raise
            say(f"error: the package {error.name} is not installed. Install what training needs: pip install 'envsched-gnn[rl]'.")
            raise typer.Exit(USER_ERROR) from None
        except BrokenPipeError:  # the reader of stdout has gone, as `| head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(USER_ERROR) from None
        except OSError as error:
            say(f"error: {error}. Check that the path is right and may be used, and that the disk is not full.")
            raise typer.Exit(USER_ERROR) from None

    return wrapped


def say(text: str) -> None:
    """A line on stderr."""
    print(printable(text), file=sys.stderr)


def show(text: str) -> None:
    """A line of the result on stdout."""
    print(printable(text))


def show_json(value: Any) -> None:
    """The result as JSON on stdout; the same value gives the same bytes."""
    print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))


def printable(text: str) -> str:
    """The text without what a terminal cannot show: lone surrogates become `?`, control characters are escaped."""
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in clean)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]
    return "\n".join(lines)

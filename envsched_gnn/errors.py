"""Every error that a user can cause.

Knows: the kinds of mistake, and the form of a message: which file, which record, what was expected, the cure.
Does not know: where mistakes happen.
"""


class EnvSchedError(Exception):
    """Base of all errors with a cure in their message; the command line prints it and exits with 1."""


class PoolError(EnvSchedError):
    """A pool is missing, malformed or inconsistent."""


class ConfigError(EnvSchedError):
    """A configuration has an unknown key or an impossible value."""


class GraphError(EnvSchedError):
    """A graph file is damaged, or does not belong to this pool."""


class HistoryError(EnvSchedError):
    """A history, ledger or rollout record cannot be read."""


class CheckpointError(EnvSchedError):
    """A checkpoint or scheduler state cannot be restored."""


class EngineError(EnvSchedError):
    """The engine that generates rollouts failed; what was finished before is in the run's folder."""


class EnvironmentFailureError(EnvSchedError):
    """An environment could not be set up, called or scored; ends one rollout with a status, never the run."""


def message(where: str, found: str, expected: str, cure: str) -> str:
    """One sentence each for the place, the value found, what was expected, and the cure."""
    return f"{where}: {found}; expected {expected}. {cure}"


def require(condition: bool, key: str, value: object, expected: str) -> None:
    """ConfigError, naming the setting `key`, unless the condition holds."""
    if not condition:
        raise ConfigError(f"{key} = {value!r}: expected {expected}.")

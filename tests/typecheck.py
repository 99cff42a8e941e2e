"""The run-time checker of tensor shapes and types; an int is a float, as type checkers read it."""

from beartype import BeartypeConf, beartype

typecheck = beartype(conf=BeartypeConf(is_pep484_tower=True))

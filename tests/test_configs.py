"""Every TOML that we ship parses, and names its run after itself."""

from pathlib import Path

import pytest

from envsched_gnn.config import load_config

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.toml"))


def test_there_is_one_for_each_pool() -> None:
    assert {"bfcl", "envscaler", "toolworld"} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_parses(path: Path) -> None:
    config = load_config(path)
    assert config.run.name == path.stem
    assert config.run.policy == "envsched"

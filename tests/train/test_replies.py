"""A worker's replies are believed in the right form alone."""

import pytest

from envsched_gnn.train.replies import sound

PLAY = {"reward": 1.0, "calls": 2, "seconds": {"setup": 0.1, "step": 0.2, "score": 0.0}}


@pytest.mark.parametrize(
    "plays", [[], [PLAY], [PLAY] * 3, [PLAY, {**PLAY, "reward": 1}], [PLAY, 1], [PLAY, {}], {"0": PLAY, "1": PLAY}, 2, None]
)
def test_as_many_sound_plays_as_were_asked_for(plays: object) -> None:
    assert sound("play_each", {"plays": [PLAY, PLAY]}, 2)
    assert not sound("play_each", {"plays": plays}, 2)


def test_what_was_not_asked_for_is_not_looked_at() -> None:
    assert sound("play", {**PLAY, "plays": 5})
    assert not sound("nothing", PLAY)

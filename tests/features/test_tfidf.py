"""TF-IDF blocks against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsched_gnn.features.tfidf import character_tokens, count, join_blocks, ngrams, tfidf, word_tokens


def test_two_documents_by_hand() -> None:
    """n = 2: idf(red) = ln(3/3) + 1 = 1, idf(ball) = idf(cube) = ln(3/2) + 1 = 1.4054651; tf(red, red) = 1 + ln 2 = 1.6931472."""
    block = tfidf(count([["red ball"], ["red red cube"]], word_tokens))
    assert block is not None
    # columns ball, cube, red; norms sqrt(1.4054651^2 + 1) = 1.7249151 and sqrt(1.4054651^2 + 1.6931472^2) = 2.2004726
    expected = [[0.8148025, 0.0, 0.5797387], [0.0, 0.6387105, 0.7694470]]
    np.testing.assert_allclose(block.toarray(), expected, atol=1e-6)
    assert (block @ block.T).toarray()[0, 1] == pytest.approx(0.4460782, abs=1e-6)


def test_pieces_count_like_one_text_but_ngrams_stay_inside() -> None:
    whole = tfidf(count([["a b"], ["a a"]], lambda text: word_tokens(text, (1, 2))))
    split = tfidf(count([["a", "b"], ["a", "a"]], lambda text: word_tokens(text, (1, 2))))
    assert whole is not None
    assert split is not None
    assert (whole.shape, split.shape) == ((2, 4), (2, 2))


def test_joined_blocks_average_the_cosines_of_those_present() -> None:
    first = tfidf(count([["x"], ["x"], []], word_tokens))
    second = tfidf(count([["p"], ["q"], ["q"]], word_tokens))
    joined = join_blocks([first, None, second], 3)
    products = (joined @ joined.T).toarray()
    assert products[0, 1] == pytest.approx(0.5)  # (1 + 0) / 2
    assert products[1, 2] == pytest.approx(0.7071068)  # one shared block: 1 / (sqrt 2 sqrt 1)
    np.testing.assert_allclose(products.diagonal(), 1.0)


def test_joining_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [["x y"], [], ["y"], ["z x x"], ["y z"]]
    blocks = [tfidf(count(documents, word_tokens)), tfidf(count(documents[::-1], word_tokens))]
    whole = join_blocks(blocks, 5)
    monkeypatch.setattr("envsched_gnn.features.tfidf.PART", 2)
    parts = join_blocks(blocks, 5)
    assert whole.nnz == 14
    np.testing.assert_array_equal(parts.toarray(), whole.toarray())


def test_no_tokens_at_all() -> None:
    assert tfidf(count([[], [""]], word_tokens)) is None
    assert join_blocks([None], 2).shape == (2, 0)


def test_tokens() -> None:
    assert word_tokens("Ship-it NOW 7", (1, 2)) == ["ship", "it", "now", "7", "ship it", "it now", "now 7"]
    assert character_tokens("Ab") == [" ab", "ab ", " ab "]
    assert ngrams(["a", "b", "c"], (3,)) == ["a b c"]


@given(st.lists(st.lists(st.text(max_size=12), max_size=4), min_size=1, max_size=8), st.randoms())
def test_unit_rows_and_any_order(documents: list[list[str]], random: object) -> None:
    """Any text, lone surrogates included: rows are non-negative, of length 1 or 0, and follow their documents in any order."""
    order = list(range(len(documents)))
    random.shuffle(order)  # type: ignore[attr-defined]
    block, shuffled = tfidf(count(documents, word_tokens)), tfidf(count([documents[row] for row in order], word_tokens))
    if block is None:
        assert shuffled is None
        return
    assert shuffled is not None
    assert block.min() >= 0
    norms = np.sqrt(np.asarray(block.multiply(block).sum(axis=1)).ravel())
    has_tokens = [any(word_tokens(piece) for piece in document) for document in documents]
    np.testing.assert_allclose(norms, np.array(has_tokens, dtype=float), atol=1e-12)
    np.testing.assert_array_equal(shuffled.toarray(), block.toarray()[order])

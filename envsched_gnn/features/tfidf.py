"""TF-IDF blocks as sparse unit vectors, with work per unique piece of text.

Knows: documents as multisets of pieces, tokenisers, how blocks become one unit vector.
Does not know: what the texts are, tasks, environments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.preprocessing import normalize

PART = 1000
"""Rows that are joined at a time."""

Piece = TypeVar("Piece", bound=Hashable)


def tfidf(counts: sparse.csr_matrix | None) -> sparse.csr_matrix | None:
    """Rows of unit length: (1 + ln tf) (1 + ln((1 + n) / (1 + df))), divided by their norm. [documents, vocabulary] float64 CSR.

    Takes token counts and overwrites them. Rows without tokens stay empty; None stays None.
    """
    if counts is None:
        return None
    return TfidfTransformer(sublinear_tf=True, smooth_idf=True, norm="l2").fit(counts).transform(counts, copy=False)


def count(documents: Sequence[Sequence[Piece]], tokens: Callable[[Piece], list[str]]) -> sparse.csr_matrix | None:
    """Token counts [documents, vocabulary] = (documents x unique pieces) (unique pieces x vocabulary), float64 CSR.

    A document's tokens are those of its pieces, with repetition; equal pieces are tokenised once. The vocabulary is sorted, so the columns
    do not depend on the order of the documents. None if no document has a token.
    """
    row_of: dict[Piece, int] = {}
    columns = [row_of.setdefault(piece, len(row_of)) for document in documents for piece in document]
    starts = np.concatenate([[0], np.cumsum([len(document) for document in documents])])
    pieces = list(row_of)
    try:
        per_piece = CountVectorizer(analyzer=tokens, dtype=np.float64).fit_transform(pieces)
    except ValueError:  # an empty vocabulary
        return None
    occurrences = sparse.csr_matrix((np.ones(len(columns)), np.array(columns, dtype=np.int64), starts), shape=(len(documents), len(pieces)))
    counts = (occurrences @ per_piece).tocsr()
    counts.sort_indices()
    return counts


def join_blocks(blocks: Sequence[sparse.csr_matrix | None], rows: int) -> sparse.csr_matrix:
    """Concatenate unit blocks and normalise again: u = [b_1, ..., b_p] / sqrt(p), p = blocks present in the row; without any, 0.

    The result is filled part by part: of a large pool, no third copy fits in memory.
    """
    present = [block for block in blocks if block is not None]
    if not present:
        return sparse.csr_matrix((rows, 0))
    starts: np.ndarray = np.stack([block.indptr for block in present]).sum(axis=0, dtype=np.int64)
    columns = sum(block.shape[1] for block in present)
    index_type = np.int32 if max(columns, starts[-1]) < 2**31 else np.int64
    data, indices = np.empty(starts[-1]), np.empty(starts[-1], dtype=index_type)
    for first in range(0, rows, PART):
        part = normalize(sparse.hstack([block[first : first + PART] for block in present], format="csr"), copy=False)
        stretch = slice(starts[first], starts[first] + part.nnz)
        data[stretch], indices[stretch] = part.data, part.indices
    return sparse.csr_matrix((data, indices, starts.astype(index_type)), shape=(rows, columns), copy=False)


def word_tokens(text: str, sizes: Sequence[int] = (1,)) -> list[str]:
    """Lower-case word n-grams of the given sizes."""
    return ngrams(_WORDS(text.lower()), sizes)


_WORDS = CountVectorizer(token_pattern=r"(?u)\w+").build_tokenizer()
_CHARACTERS = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5)).build_analyzer()


def character_tokens(text: str) -> list[str]:
    """Lower-case character 3-5-grams inside word boundaries."""
    return _CHARACTERS(text)


def ngrams(items: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """Runs of consecutive items, joined by blanks."""
    return [" ".join(items[start : start + size]) for size in sizes for start in range(len(items) - size + 1)]

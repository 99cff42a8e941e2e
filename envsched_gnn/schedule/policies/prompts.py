"""What peers know of a prompt: one vector a task. This is the offline default; hand in dense sentence embeddings where there are some.

Knows: words of prompts.
Does not know: environments, verifiers, tools. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

DIMENSION = 64
"""Of the reduced vectors (ours)."""
MAX_WORDS = 50_000
"""Words that are kept, the most frequent ones (ours)."""


def prompt_embedding(prompts: Sequence[str]) -> Float[Tensor, "tasks d"]:
    """TF-IDF of words, reduced by a truncated SVD (seeded), rows of length 1; float64. d = 64, or fewer if there are few words or tasks.

    A prompt without a word, or without any that the others have, gets the vector 0 or a short one of its own.
    """
    try:
        words = TfidfVectorizer(sublinear_tf=True, max_features=MAX_WORDS, token_pattern=r"(?u)\b\w+\b").fit_transform(prompts)
    except ValueError:  # no prompt has a word
        return torch.zeros((len(prompts), 1), dtype=torch.float64)
    small = min(words.shape) <= DIMENSION
    dense = words.toarray() if small else TruncatedSVD(DIMENSION, random_state=0).fit_transform(words)
    return unit(torch.from_numpy(np.ascontiguousarray(dense)))


def unit(vectors: Float[Tensor, "tasks d"]) -> Float[Tensor, "tasks d"]:
    """Rows of length 1, float64; a row of zeros stays."""
    vectors = vectors.to(torch.float64)
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)

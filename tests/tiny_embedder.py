"""A sentence-transformers model of a few thousand random numbers: as real as a large one, and made in a second."""

import string
from pathlib import Path

import torch


def save_tiny_model(folder: Path, *, dimension: int = 16, broken: bool = False) -> Path:
    """Write the model into a folder; `broken`: with weights that are not numbers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    parts = folder / "parts"
    parts.mkdir(parents=True)
    letters = string.ascii_lowercase + string.digits
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (parts / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(parts / "vocab.txt"), model_max_length=64).save_pretrained(parts)
    sizes = {"hidden_size": dimension, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bert = BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, **sizes))
    if broken:
        torch.nn.init.constant_(bert.embeddings.word_embeddings.weight, float("nan"))
    bert.save_pretrained(parts)
    model = folder / "model"
    SentenceTransformer(modules=[Transformer(str(parts)), Pooling(dimension)], device="cpu").save(str(model))
    return model

"""A tiny text classifier with random weights, made and then loaded as `--predictor hf` loads one. Imports transformers."""

from dataclasses import replace

import torch

from holdfast.inference.predictor.spec import Predictor, PredictorSpec, build

VOCABULARY = ("[PAD]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz")


def made(spec: PredictorSpec) -> Predictor:
    """Into spec.model."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # pyright: ignore[reportMissingImports]
    from transformers import (  # pyright: ignore[reportMissingImports]
        BertConfig,
        BertForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    tokenizer = Tokenizer(models.WordLevel({token: n for n, token in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    saved.save_pretrained(spec.model)
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(VOCABULARY), **sizes, num_labels=3, max_position_embeddings=256)
    BertForSequenceClassification(config).save_pretrained(spec.model)
    return build(replace(spec, name="hf"))

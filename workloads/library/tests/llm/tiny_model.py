"""Writes a Llama of random weights that vLLM serves: `python tiny_model.py FOLDER`.

It runs in the environment of vLLM, so it imports nothing of this repository. Each token is a word,
so that a text shows every token that is lost or doubled.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
WORDS = 316
CONTEXT = 8192
"""Tokens of a request of the example service."""


def main(folder: Path) -> None:
    vocabulary: dict[str, int] = {}
    for token in (*SPECIAL, *(f"w{number}" for number in range(WORDS))):
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=CONTEXT,
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        # Larger than usual: otherwise a greedy text soon repeats one word.
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

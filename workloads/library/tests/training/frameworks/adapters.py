"""`adapters.py KIND FOLDER`: trains an adapter of PEFT on a small GPT-2, exports it, and loads the
export with PEFT.

Prints `equal` if PEFT's own file has the same tensors, and the loaded model the same output.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.cli import app

TOKENS = torch.arange(12).reshape(1, 12)
CONFIGS: dict[str, Any] = {
    "lora": LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True),
    "dora": LoraConfig(
        r=4,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
        use_dora=True,
    ),
    "embedding": LoraConfig(
        r=4,
        target_modules=["wte", "c_attn"],
        fan_in_fan_out=True,
    ),
    "saved modules": LoraConfig(
        r=4, target_modules=["c_attn"], modules_to_save=["ln_f"], fan_in_fan_out=True
    ),
    "bias": LoraConfig(
        r=4,
        target_modules=["c_attn"],
        bias="all",
        fan_in_fan_out=True,
    ),
    "ia3": IA3Config(
        target_modules=["c_attn"],
        feedforward_modules=[],
        fan_in_fan_out=True,
    ),
}


def make_base() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(
        vocab_size=32,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        **ends,
    )
    return GPT2LMHeadModel(config).eval()


def train(kind: str, folder: Path) -> PeftModel:
    model = get_peft_model(make_base(), CONFIGS[kind])
    model.eval()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    state = {"model": model, "optimizer": optimizer}
    with Checkpointer(folder / "checkpoints", state, run="r", every=100) as ckpt:
        for step in range(3):
            model(input_ids=TOKENS, labels=TOKENS).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ckpt.tick(step + 1)
    return model


def main(kind: str, folder: Path) -> None:
    model = train(kind, folder)
    model.save_pretrained(folder / "by-peft")
    words = ["export", folder / "checkpoints", "--run", "r", "--out", folder / "ours"]
    words += ["--adapter-config", folder / "by-peft" / "adapter_config.json"]
    result = CliRunner().invoke(app, [*map(str, words)])
    if result.exit_code:
        print(result.output, result.exception)
        return
    expected = load_file(folder / "by-peft" / "adapter_model.safetensors")
    exported = load_file(folder / "ours" / "adapter_model.safetensors")
    differences = sorted(expected.keys() ^ exported.keys())
    assert not differences, differences
    for name, tensor in expected.items():
        assert torch.equal(tensor, exported[name]), name
    loaded = PeftModel.from_pretrained(make_base(), folder / "ours").eval()
    with torch.no_grad():
        assert torch.equal(loaded(TOKENS).logits, model(TOKENS).logits)
        assert not torch.equal(loaded(TOKENS).logits, make_base()(TOKENS).logits)
    print("equal")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))

"""HF416 finds secrets among the arguments, and takes no option of a tokenizer for one."""

import pytest

from holdfast.lint.rules.identity import _holds_secret  # pyright: ignore[reportPrivateUsage]

VALUE = "a1b2c3d4e5f6a7b8c9d0"


@pytest.mark.parametrize(
    ("word", "option"),
    [
        (VALUE, "--token"),
        (VALUE, "--wandb_api_key"),
        (f"--password={VALUE}", ""),
        (f"export HF_TOKEN={VALUE}; python train.py", "-c"),
        (f"curl -H 'Authorization: Bearer hf_{VALUE}'", "-c"),
        ("ghp_" + VALUE * 2, "--auth"),
        ("AKIA" + "ABCDEFGH" * 2, "--id"),
    ],
)
def test_secret_is_found(word: str, option: str) -> None:
    assert _holds_secret(word, option)


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("$(HF_TOKEN)", "--token"),
        ("--token=${HF_TOKEN_OF_THE_TEAM_1}", ""),
        ("/var/run/secrets/team-1/token", "--token"),
        ("<|reserved_special_token_0|>", "--pad-token"),
        ("4096", "--max-token"),
        ("projects/acme/secrets/hub1/versions/3", "--secret-name"),
        ("meta-llama/Llama-3.1-8B-Instruct", "--tokenizer"),
        ("--eos-token-id=128009", ""),
        ("python -m train --tokens-per-batch 100000000000000000", "-c"),
        ("gs://acme-data/sk-learn/2026", "--data"),
    ],
)
def test_other_argument_is_not_found(word: str, option: str) -> None:
    assert not _holds_secret(word, option)

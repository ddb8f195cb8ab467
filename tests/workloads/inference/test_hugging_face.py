"""The example for a Hugging Face model: a tiny one with random weights, in the frameworks' own environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg import Connection
from psycopg_pool import ConnectionPool

from infra.contract.errors import InputError
from infra.contract.lifecycle import EXIT_COMPLETE
from tests import support
from tests.tools import frameworks
from tests.workloads.inference.parts import fill
from workloads.inference.connect import ENV_DATABASE
from workloads.inference.database import EmbeddedPostgres
from workloads.inference.hugging_face import TextClassifier
from workloads.inference.items import Item
from workloads.inference.queue_postgres import PostgresQueue

ROOT = Path(__file__).parents[3]
BODIES = [" ".join("abcdefgh"[(n * k) % 8] for k in range(n)) for n in range(40)]
# Makes a model, and labels every body in company and alone.
_SCRIPT = """
import json, sys, torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
from workloads.inference.hugging_face import TextClassifier
folder, texts = sys.argv[1], json.loads(sys.argv[2])
words = {word: n for n, word in enumerate(["[PAD]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz"])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
torch.manual_seed(3)
sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
config = BertConfig(vocab_size=len(words), **sizes, num_labels=3, max_position_embeddings=256)
BertForSequenceClassification(config).save_pretrained(folder)
bodies = [text.encode() for text in texts]
predictor = TextClassifier(folder)
predictor.load()
alone = [predictor.predict([body])[0] for body in bodies]
print(json.dumps([predictor.predict(bodies), predictor.predict(bodies[::-1])[::-1], alone]))
"""


@pytest.mark.process
@pytest.mark.timeout(600)  # two starts of torch and transformers
def test_texts_are_labelled_and_the_same_in_any_company(
    server: EmbeddedPostgres, pool: ConnectionPool[Connection], connection: Connection, job: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{site()}", ENV_DATABASE: server.uri}
    model = tmp_path / "model"
    script = [sys.executable, "-c", _SCRIPT, str(model), json.dumps(BODIES)]
    said = subprocess.run(script, env=environment, check=True, capture_output=True, text=True).stdout
    together, reversed_, alone = json.loads(said.splitlines()[-1])
    assert together == reversed_ == alone
    assert len({value["score"] for value in alone}) > 1
    wanted = [Item(job=job, id=f"{n}", body=body.encode()) for n, body in enumerate(BODIES)]
    wanted.append(Item(job=job, id="no text", body=b"\xff\xfe"))
    fill(connection, PostgresQueue(pool, job, lease_s=60.0), job, wanted)
    run = [sys.executable, "-m", "workloads", "batch", "run", job, "--predictor", "hf", "--model", str(model)]
    done = subprocess.run(
        [*run, "--max-failures", "1", "--events", str(tmp_path / "e")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == EXIT_COMPLETE, done.stderr
    found = connection.execute("SELECT item, status, value FROM holdfast.result WHERE job = %s", (job,)).fetchall()
    assert {item: value for item, status, value in found if status == "done"} == {
        str(n): value for n, value in enumerate(alone)
    }
    assert [item for item, status, _ in found if status == "dead"] == ["no text"]


def test_a_folder_that_is_no_model_is_bad_input(tmp_path: Path) -> None:
    for folder in ("", str(tmp_path)):
        with pytest.raises(InputError, match=r"no config\.json"):
            TextClassifier(folder)


def site() -> Path:
    try:
        return frameworks.install()
    except (OSError, subprocess.CalledProcessError) as error:
        support.unavailable(f"the frameworks cannot be installed: {error}")

"""The batch commands before a database that answers: what an option reaches there is refused as everywhere."""

import random

import pytest

from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from tests.test_options import COMMANDS, NUMBERS, TEXTS, ended

pytestmark = pytest.mark.process
VERBS = ("database", "enqueue", "status", "failures", "export")
SECONDS_OR_WRITES = {"--watch", "--out"}
"""What would wait as long as it says; what writes where it says."""


@pytest.mark.parametrize("verb", VERBS)
def test_an_odd_value_is_refused_by_the_database_as_by_a_command(
    verb: str, server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("items")
    (folder / "a.txt").write_text("a")
    usual = {"job": "odd-options", "source": str(folder), "out": str(folder / "out.jsonl")}
    draw = random.Random(verb)
    for odd in COMMANDS[f"holdfast batch {verb}"].params:
        for value in (
            []
            if getattr(odd, "is_flag", False) or odd.opts[0] in SECONDS_OR_WRITES
            else draw.sample(TEXTS + NUMBERS, 8)
        ):
            words = ["batch", verb]
            for each in COMMANDS[f"holdfast batch {verb}"].params:
                if each is odd or each.required:
                    text = value if each is odd else usual[each.name]
                    words += ["--", text] if each.param_type_name == "argument" else [f"{each.opts[0]}={text}"]
            words[2:2] = [] if odd.name == "database" else [f"--database={server.uri}"]
            # What follows -- is the job alone.
            if "--" in words:
                at = words.index("--")
                words = [*words[:at], *words[at + 2 :], *words[at : at + 2]]
            code, out, err = ended("holdfast", words)
            assert code in (0, 1, 2, 3), (words, code, out, err)

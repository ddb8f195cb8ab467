"""Each example of the tree is short, has a job file that `submit` takes, is on the page, and is
killed by a test.
"""

import ast
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from holdfast.jobs.file import file_text
from holdfast.jobs.submit import prepared_job
from holdfast.jobs.submit.prepared_job import Prepared
from tests.platforms import with_images
from workloads.library.tests.inference import test_examples as predictors
from workloads.library.tests.training import test_examples as trainers

ROOT = Path(__file__).parents[4]
LIBRARY = ROOT / "workloads/library"
EXAMPLES = sorted(
    path
    for path in (ROOT / "workloads").rglob("examples/*.py")
    if path.stem not in trainers.NOT_JOBS
)
FRAMEWORKS = {"transformers", "lightning", "accelerate"}


def job_file(example: Path) -> Path:
    return example.with_suffix(".yaml")


def test_every_example_has_a_job_file_and_is_killed_by_a_test() -> None:
    assert len(EXAMPLES) >= 7
    files: set[Path] = set()
    for example in EXAMPLES:
        files.update(example.parent.glob("*.yaml"))
    assert sorted(files) == sorted(map(job_file, EXAMPLES))
    killed = set(predictors.KILLED)
    for name in trainers.KILLED:
        killed.add(trainers.EXAMPLES / f"{name}.py")
    assert killed == set(EXAMPLES)


# Syntax nodes, which no formatting changes: some 60 lines.
MOST_NODES = 600


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_its_job_file_runs_it(example: Path) -> None:
    nodes = list(ast.walk(ast.parse(example.read_text())))
    assert len(nodes) < MOST_NODES
    document: dict[str, Any] = YAML(typ="safe").load(job_file(example).read_text())
    jsonschema.validate(document, json.loads((ROOT / file_text.SCHEMA_FILE).read_text()))
    # Rendered, and refused where the linter finds anything.
    prepared: Prepared = prepared_job.read_job(document, job_file(example), with_images("example"))
    assert prepared.bodies
    assert prepared.job.name == example.stem.replace("_", "-")
    module = (
        document.get("predictor", "").partition(":")[0]
        or document["command"][document["command"].index("-m") + 1]
    )
    assert module == ".".join(example.relative_to(LIBRARY).with_suffix("").parts)
    # Started by hand, the example saves under the name that its job gives it, so that either
    # continues what the other left.
    assert (
        document.get("predictor") or f'"HOLDFAST_RUN", "{prepared.job.name}"' in example.read_text()
    )
    frameworks = (
        set(re.findall(r"^(?:from|import) (\w+)", example.read_text(), re.MULTILINE)) & FRAMEWORKS
    )
    assert document["image"] != "trainer" or not frameworks, (
        "the trainer's image holds no framework"
    )


def test_examples_page_links_each_job_file() -> None:
    page = LIBRARY / "docs/reference/examples.md"
    linked = set()
    for target in re.findall(r"\]\(([^)#]+/examples/[^)#]+)\)", page.read_text()):
        linked.add((page.parent / target).resolve())
    tools = {trainers.EXAMPLES / "read_holdfast.py"}
    assert linked == {*EXAMPLES, *map(job_file, EXAMPLES)} | tools

"""`holdfast lint` reads job files and standard input; the page says how to accept a finding."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast.commands import app
from holdfast.jobs.file import file_text
from holdfast.support.errors import InputError, Stopped
from tests import platforms
from tests.support import ROOT
from workloads.library.tests.jobs.test_job_file import own

PAGE = ROOT / "workloads/library/docs/how-to/run-a-job.md"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: training}
spec:
  terminationGracePeriodSeconds: 400
  tolerations: [{operator: Exists}]
  nodeSelector: {cloud.google.com/gke-spot: "true"}
  containers: [{name: a, image: "r/i@sha256:%s"}]
""" % ("a" * 64)


def lint(*words: str, text: str | bytes = "") -> Result:
    options = ["--platform", str(platforms.file("example"))]
    return CliRunner().invoke(app, ["lint", *words, *options], input=text)


def test_a_job_file_is_judged_as_it_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "my-run.yaml"
    path.write_text(file_text.dump(own(environment="example", gpus="1xl4")))
    result = lint(str(path))
    assert result.exit_code == 0 and "1 objects in 1 files: 0 error" in result.stdout, result.output
    path.write_text(path.read_text().replace("environment: example", "environment: prod"))
    assert isinstance(lint(str(path)).exception, Stopped)


def test_a_service_file_is_judged_as_it_is_sent(tmp_path: Path) -> None:
    text = (ROOT / "workloads/library/holdfast/services/examples/scores.yaml").read_text()
    path = tmp_path / "scores.yaml"
    path.write_text(text)
    result = lint(str(path))
    assert result.exit_code == 0 and "0 error" in result.stdout, result.output
    path.write_text(text + "base: 4\nbase_most: 2\n")
    assert "base_most" in str(lint(str(path)).exception)


def test_standard_input_takes_manifests_and_job_files() -> None:
    result = lint("-", text=POD)
    assert (
        result.exit_code == 1 and "standard input:5" in result.stdout and "HF101" in result.stdout
    )
    assert lint("-", text=file_text.dump(own(environment="example", gpus="1xl4"))).exit_code == 0


def test_standard_input_that_is_no_text_is_a_finding() -> None:
    result = lint("-", text=b"kind: \xff\n")
    assert result.exit_code == 1 and "not UTF-8 text [HF904]" in result.stdout, result.output


@pytest.mark.parametrize(
    ("text", "problem"),
    [("schema: holdfast.job/1\nname: a\n", "fields are missing"), ("", "no Kubernetes object")],
)
def test_wrong_input_is_refused(text: str, problem: str) -> None:
    result = lint("-", text=text)
    assert isinstance(result.exception, InputError) and problem in str(result.exception)


@pytest.mark.parametrize("other", ["job", "manifest before", "manifest after"])
def test_job_file_with_a_second_document_is_refused(other: str) -> None:
    """`submit` refuses it too; a check that reads only one of them would pass the other unseen."""
    job = file_text.dump(own(environment="example", gpus="1xl4"))
    texts = {
        "job": f"{job}---\n{job}",
        "manifest before": f"{POD}---\n{job}",
        "manifest after": f"{job}---\n{POD}",
    }
    result = lint("-", text=texts[other])
    assert isinstance(result.exception, InputError)
    assert "more than a job or service" in str(result.exception)


def test_refusal_names_its_file(tmp_path: Path) -> None:
    small = own(environment="example", gpus="1xa100", capacity="spot")
    large = replace(small, data="gs://bucket/folder", cache="900Gi")
    (tmp_path / "small.yaml").write_text(file_text.dump(small))
    (tmp_path / "large.yaml").write_text(file_text.dump(large))
    refusal = lint(str(tmp_path)).exception
    assert isinstance(refusal, InputError)
    assert refusal.what.startswith(f"{tmp_path}/large.yaml: ")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"source": "gone"}, "source"), ({"hours": 10.0, "max_usd": 1.0}, "10 h of undisturbed work")],
)
def test_lint_refuses_what_submit_refuses(fields: dict[str, Any], problem: str) -> None:
    job = own(environment="example", gpus="1xl4", capacity="spot", **fields)
    refusal = lint("-", text=file_text.dump(job)).exception
    assert isinstance(refusal, InputError) and problem in refusal.what


def test_doubled_key_in_a_job_file_is_a_finding() -> None:
    job = file_text.dump(own(environment="example", gpus="1xl4"))
    result = lint("-", text=f"{job}nodes: 2\n")
    assert result.exit_code == 1
    assert "HF503" in result.stdout
    assert "'nodes' is here a second time" in result.stdout


def test_page_shows_a_comment_that_accepts_a_finding() -> None:
    (comment,) = re.findall(r"# holdfast: ignore\[HF101\] .*", PAGE.read_text())
    accepted = POD.replace("Seconds: 400", f"Seconds: 400  {comment}")
    assert "HF101" not in lint("-", text=accepted).stdout.partition("\n\n")[0]

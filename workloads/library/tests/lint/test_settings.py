"""`.holdfast-lint.yaml` lowers rules for a repository, and `submit` lints the manifest it sends."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.commands import app
from holdfast.lint.settings import FILE, find_settings
from holdfast.support.errors import InputError
from tests import platforms
from tests.support import ROOT

PAGE = ROOT / "workloads/library/docs/reference/linter.md"
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: a, namespace: training}
spec:
  activeDeadlineSeconds: 3600
  completionMode: Indexed
  completions: 1
  backoffLimitPerIndex: 1
  template:
    spec:
      restartPolicy: Never
      priorityClassName: spot-workload-low
      terminationGracePeriodSeconds: 15
      nodeSelector: {holdfast.dev/pool-class: spot-l4}
      tolerations:
      - {key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}
      containers:
      - name: a
        image: "r/i@sha256:%s"
        resources: {limits: {nvidia.com/gpu: 1}}
""" % ("a" * 64)
OTHER = JOB.replace("name: a,", "name: other,")


def holdfast(*words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--platform", str(platforms.file("example"))])


def write(folder: Path, *rules: str) -> None:
    lines = "".join(f"  {rule}\n" for rule in rules)
    (folder / FILE).write_text(f"schema: holdfast.lint-settings/1\nrules:\n{lines}")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "team" / "job.yaml"
    path.parent.mkdir()
    path.write_text(JOB)
    return path


def test_rules_are_lowered_and_switched_off(manifest: Path, tmp_path: Path) -> None:
    before = holdfast("lint", str(manifest))
    assert before.exit_code == 1 and "error: evictions count" in before.stdout, before.output
    write(
        tmp_path,
        "HF110: {level: info, reason: it is short}",
        "HF119: {level: off, reason: Argo CD deletes Jobs}",
    )
    result = holdfast("lint", str(manifest))
    assert result.exit_code == 0, result.output
    assert "info: evictions count" in result.stdout
    assert f"error lowered to info by {FILE}: it is short" in result.stdout
    assert f"ignored [HF119] is kept for ever after it ends: Argo CD deletes Jobs ({FILE})" in (
        result.stdout
    )


def test_fix_can_be_written_as_it_stands(manifest: Path) -> None:
    write(manifest.parent, "HF110: off")
    error = holdfast("lint", str(manifest)).exception
    assert isinstance(error, InputError)
    text = f"schema: holdfast.lint-settings/1\n{error.fix}\n"
    (manifest.parent / FILE).write_text(text)
    assert "evictions count" in holdfast("lint", str(manifest)).stdout


def test_the_nearest_file_counts(manifest: Path, tmp_path: Path) -> None:
    write(tmp_path, "HF110: {level: off, reason: far}")
    write(manifest.parent, "HF119: {level: off, reason: near}")
    result = holdfast("lint", str(manifest))
    assert "error: evictions count" in result.stdout and "near" in result.stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rules: {}", "schema: holdfast.lint-settings/1"),
        ("schema: holdfast.lint-settings/2\nrules: {}", "schema: holdfast.lint-settings/1"),
        ("schema: holdfast.lint-settings/1\nrules: [HF110]", "a mapping of rules"),
        ("schema: holdfast.lint-settings/1\nrules: {}\nrule: {}", "field rule"),
        ("schema: [", "cannot be used: got line"),
        ("", "one document"),
        ("HF1: {level: off, reason: a}", "rule HF1"),
        ("HF110: off", "HF110: False"),
        ("HF110: {level: off}", "HF110 without a reason"),
        ("HF110: {level: off, reason: ' '}", "HF110 without a reason"),
        ("HF110: {level: off, reason: a, paths: b}", "field paths"),
        ("HF110: {level: error, reason: a}", "warning, info, off: HF110 is error"),
        ("HF119: {level: warning, reason: a}", "info, off: HF119 is warning"),
        ("HF110: {level: none, reason: a}", "level none"),
        ("HF110: {reason: a}", "level None"),
    ],
)
def test_a_wrong_file_ends_the_command(manifest: Path, text: str, problem: str) -> None:
    if text.startswith("HF"):
        write(manifest.parent, text)
    else:
        (manifest.parent / FILE).write_text(text)
    for words in (("lint", str(manifest)), ("submit", str(manifest), "--dry-run")):
        error = holdfast(*words).exception
        assert isinstance(error, InputError) and problem in str(error), words
        assert FILE in error.what


def test_the_pages_example_is_read(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(schema: holdfast.lint-settings.*?)```", PAGE.read_text(), re.S)
    (tmp_path / FILE).write_text(text)
    settings = find_settings(tmp_path)
    assert settings and set(settings.rules) == {"HF114", "HF119"}


def test_submit_refuses_errors_and_prints_warnings(manifest: Path) -> None:
    result = holdfast("submit", str(manifest), "--dry-run")
    error = result.exception
    assert isinstance(error, InputError) and "1 errors" in error.what and "HF110" in error.got
    assert "holdfast.dev/ignore-HF110: REASON" in error.fix
    assert "[HF119]" in result.stderr, "warnings are printed"
    write(manifest.parent, "HF110: {level: off, reason: it is short}")
    result = holdfast("submit", str(manifest), "--dry-run")
    assert result.exit_code == 0 and "list price" in result.stdout, result.output


def test_submit_honors_accepted_findings(manifest: Path) -> None:
    accepted = JOB.replace(
        "namespace: training}",
        "namespace: training, annotations: {holdfast.dev/ignore-HF110: it is short}}",
    )
    manifest.write_text(accepted)
    assert holdfast("submit", str(manifest), "--dry-run").exit_code == 0
    manifest.write_text(JOB.replace("spec:\n", "spec:  # holdfast: ignore[HF110] short\n", 1))
    assert holdfast("submit", str(manifest), "--dry-run").exit_code == 0


def test_submit_judges_only_what_it_sends(manifest: Path) -> None:
    policy = (
        "  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget,"
        ' status: "True"}]}]}\n'
    )
    manifest.write_text(JOB.replace("spec:\n", f"spec:\n{policy}", 1) + "---\n" + OTHER)
    words = ("submit", str(manifest), "--dry-run")
    assert isinstance(holdfast(*words).exception, InputError)
    assert holdfast(*words, "--job", "a").exit_code == 0

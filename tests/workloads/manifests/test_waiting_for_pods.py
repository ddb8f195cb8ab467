"""Kueue's WaitForPodsReady, judged by its configuration: rule HF156 and `doctor --cluster`."""

from typing import Any, cast

import pytest

from holdfast.clients.api import Api, ApiError
from holdfast.contract.errors import Unjudged
from holdfast.lint.engine import Options, lint_texts
from holdfast.lint.registry import all_rules
from holdfast.manifests.waiting_for_pods import go_duration_s
from tests.platforms import load
from workloads.operators import kueue_limits
from workloads.operators.overlay import CONFIG_FILE

HEAD = "apiVersion: config.kueue.x-k8s.io/{}\nkind: Configuration\n{}\n"
GOOD = "timeout: 12h, recoveryTimeout: 0s"


@pytest.mark.parametrize(
    ("version", "body", "words"),
    [
        ("v1beta2", "", ["longer than 30m", "for 30m"]),
        ("v1beta2", "waitForPodsReady: {recoveryTimeout: 0s}", ["longer than 30m"]),
        ("v1beta2", "waitForPodsReady: {timeout: 30m0s, recoveryTimeout: 0s}", ["longer than 30m0s"]),
        ("v1beta2", "waitForPodsReady: {timeout: 0s, recoveryTimeout: 0s}", ["longer than 30m"]),
        ("v1beta2", "waitForPodsReady: {timeout: 24h}", ["for 24h"]),
        ("v1beta2", "waitForPodsReady: {timeout: 12h, recoveryTimeout: 1h30m}", ["for 1h30m"]),
        ("v1beta2", f"waitForPodsReady: {{{GOOD}, blockAdmission: true}}", ["holds up"]),
        ("v1beta2", f"waitForPodsReady: {{{GOOD}}}", []),
        ("v1beta2", 'waitForPodsReady: {timeout: 43200s, recoveryTimeout: "0"}', []),
        ("v1beta2", "featureGates: {DisableWaitForPodsReady: true}\nwaitForPodsReady: {timeout: 1m}", []),
        ("v1beta1", "", []),
        ("v1beta1", "waitForPodsReady: {enable: false}", []),
        ("v1beta1", "waitForPodsReady: {enable: true}", ["longer than 30m", "for 30m"]),
    ],
)
def test_what_a_configuration_does_to_jobs_that_wait_for_nodes(version: str, body: str, words: list[str]) -> None:
    found = lint_texts({"kueue.yaml": HEAD.format(version, body)}, Options(platforms=[load("example")])).active
    hits = [finding.message for finding in found if finding.rule == "HF156"]
    assert len(hits) == len(words), hits
    assert all(word in hit for word, hit in zip(words, hits, strict=True)), hits
    assert "recoveryTimeout: 0s" in all_rules()["HF156"].fix and "timeout: 12h" in all_rules()["HF156"].fix


def test_durations_of_go() -> None:
    assert [go_duration_s(text) for text in ("1h30m", "0", "0s", "12h0m0s", "soon", "", "5", "1h x", "1.2.3h")] == [
        5400.0, 0.0, 0.0, 43200.0, None, None, None, None, None,
    ]  # fmt: skip


class Cluster:
    """A Kueue of another team."""

    def __init__(self, text: str | None, *, image: str = "kueue:v0.19.2", args: str = "", refused: str = "") -> None:
        self.text, self.refused = text, refused
        pod = {"containers": [{"image": image, "args": [args]}]}
        self.deployment = {"metadata": {}, "spec": {"template": {"spec": pod}}}

    def items(self, path: str, **query: object) -> list[dict[str, Any]]:
        self._refuse("list")
        assert path == "/api/v1/configmaps" and query == {"fieldSelector": f"metadata.name={kueue_limits.NAME}"}
        found = self._configuration()
        return [found] if found else []

    def find(self, path: str) -> dict[str, Any] | None:
        self._refuse("get")
        return self.deployment if "/deployments/" in path else self._configuration()

    def _configuration(self) -> dict[str, Any] | None:
        return None if self.text is None else {"metadata": {"namespace": "batch"}, "data": {CONFIG_FILE: self.text}}

    def _refuse(self, verb: str) -> None:
        if verb in self.refused:
            raise ApiError(403, "no")


def judged(text: str | None, **how: str) -> tuple[bool, str, str]:
    return kueue_limits.judged(cast(Api, Cluster(text, **how)))


SHORT = HEAD.format("v1beta2", "waitForPodsReady: {recoveryTimeout: 0s}")
SILENT = HEAD.format("v1beta2", "")


@pytest.mark.parametrize(
    ("text", "how", "effects"),
    [
        (SHORT, {}, 1),
        (SILENT, {}, 2),
        (SILENT, {"image": "kueue@sha256:00"}, 2),
        (SILENT, {"image": "kueue:v0.18.1"}, 0),
        (SHORT, {"image": "kueue:v0.18.1"}, 1),
        (SILENT, {"args": "--feature-gates=A=false,DisableWaitForPodsReady=true"}, 0),
        (SILENT, {"refused": "list"}, 2),
        (HEAD.format("v1beta2", f"waitForPodsReady: {{{GOOD}}}"), {}, 0),
    ],
)
def test_the_doctor_says_what_a_foreign_kueue_does_to_our_jobs(text: str, how: dict[str, str], effects: int) -> None:
    well, found, fix = judged(text, **how)
    assert well is (effects == 0)
    assert (
        found.startswith("batch/kueue-manager-config: ")
        and found.count("again and again") + found.count("as a whole") == effects
    )
    assert "ConfigMap batch/kueue-manager-config" in fix and "recoveryTimeout: 0s" in fix


@pytest.mark.parametrize(
    ("text", "how", "reason"),
    [
        (SILENT, {"refused": "list get"}, "not checked"),
        (None, {}, "no ConfigMap"),
        ("- a", {}, "not a YAML map"),
        ("a: [", {}, "not a YAML map"),
    ],
)
def test_what_it_cannot_see_is_no_pass(text: str | None, how: dict[str, str], reason: str) -> None:
    with pytest.raises(Unjudged, match=reason):
        judged(text, **how)

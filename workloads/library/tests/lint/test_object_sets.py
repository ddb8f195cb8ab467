"""Folders that do not go into one cluster: samples, overlays and clusters in one repository."""

import pytest

from holdfast.lint.engine import Options, lint_texts, parse_text
from holdfast.lint.object_index import ObjectIndex
from holdfast.lint.object_sets import divide
from holdfast.lint.objects import Object
from holdfast.lint.objects import objects as list_objects
from tests.platforms import with_images

CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME}\ndata: {KEY: x}\n"
PLATFORM = with_images("example")


def make_config(name: str, key: str) -> str:
    return CONFIG.replace("NAME", name).replace("KEY", key)


def make_pod(config: str, key: str, field: str = "configMapKeyRef") -> str:
    reference = f"{{{field}: {{name: {config}, key: {key}}}}}"
    container = f"{{name: a, image: a:1, env: [{{name: A, valueFrom: {reference}}}]}}"
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{container}]}}\n"
    )


def find(texts: dict[str, str], rule: str) -> list[str]:
    report = lint_texts(texts, Options(platforms=[PLATFORM]))
    return [finding.file for finding in report.findings if finding.rule == rule]


TWO_SAMPLES = {
    "repo/one/config.yaml": make_config("shared", "lr"),
    "repo/two/config.yaml": make_config("shared", "epochs"),
}


@pytest.mark.parametrize(("key", "files"), [("epochs", []), ("lr", ["repo/two/pod.yaml"])])
def test_the_own_folder_counts(key: str, files: list[str]) -> None:
    texts = TWO_SAMPLES | {"repo/two/pod.yaml": make_pod("shared", key)}
    assert find(texts, "HF431") == files


def test_another_sample_says_nothing() -> None:
    """A Secret that a person makes is not a ConfigMap of a sample elsewhere."""
    texts = TWO_SAMPLES | {"repo/three/pod.yaml": make_pod("shared", "lr", "secretKeyRef")}
    assert find(texts, "HF430") == []
    texts["repo/two/pod.yaml"] = make_pod("shared", "epochs", "secretKeyRef")
    assert find(texts, "HF430") == ["repo/two/pod.yaml"]


def test_one_folder_may_hold_samples() -> None:
    texts = {
        "samples/one.yaml": make_config("shared", "lr") + "---\n" + make_pod("shared", "lr"),
        "samples/two.yaml": make_config("shared", "k") + "---\n" + make_pod("shared", "lr"),
        "samples/three.yaml": make_pod("shared", "other"),
        "samples/four.yaml": make_pod("common", "lr"),
        "samples/common.yaml": make_config("common", "k"),
    }
    assert find(texts, "HF431") == ["samples/four.yaml", "samples/two.yaml"]


def test_copies_part_nothing() -> None:
    texts = {
        "repo/one/config.yaml": make_config("shared", "lr"),
        "repo/two/config.yaml": make_config("shared", "lr"),
        "repo/three/pod.yaml": make_pod("shared", "epochs"),
    }
    assert find(texts, "HF431") == ["repo/three/pod.yaml"]


KUSTOMIZATION = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"


@pytest.mark.parametrize(
    ("head", "field", "files"),
    [
        (KUSTOMIZATION, "patches", ["repo/three/pod.yaml"]),
        ("", "patches", ["repo/three/pod.yaml"]),
        (KUSTOMIZATION, "crds", []),
    ],
    ids=["patch", "without kind", "no patch"],
)
def test_patches_part_nothing(head: str, field: str, files: list[str]) -> None:
    """A file that no kustomization names as a patch is another ConfigMap of that name."""
    texts = {
        "repo/base/config.yaml": make_config("shared", "lr"),
        "repo/two/config.yaml": make_config("shared", "steps"),
        "repo/two/kustomization.yaml": f"{head}{field}: [{{path: config.yaml}}]\n",
        "repo/three/pod.yaml": make_pod("shared", "epochs"),
    }
    assert find(texts, "HF431") == files


def test_the_folder_above_counts() -> None:
    texts = TWO_SAMPLES | {
        "repo/common.yaml": make_config("common", "lr"),
        "repo/two/pod.yaml": make_pod("common", "epochs"),
    }
    assert find(texts, "HF431") == ["repo/two/pod.yaml"]


@pytest.mark.parametrize("root", ["", "/home/me/"])
def test_an_overlay_knows_its_base(root: str) -> None:
    texts = TWO_SAMPLES | {
        "repo/base/config.yaml": make_config("common", "lr"),
        "repo/two/kustomization.yaml": (
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
            "resources: [../base, config.yaml, pod.yaml]\n"
        ),
        "repo/two/pod.yaml": make_pod("common", "epochs"),
    }
    texts = {f"{root}{name}": text for name, text in texts.items()}
    assert find(texts, "HF431") == [f"{root}repo/two/pod.yaml"]


def test_cluster_objects_count_everywhere() -> None:
    """A folder may name what is of a namespace that the files make."""
    texts = TWO_SAMPLES | {
        "repo/batch.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: batch}\n",
        "repo/three/config.yaml": make_config("common", "lr").replace(
            "{name: common}", "{name: common, namespace: batch}"
        ),
        "repo/two/pod.yaml": make_pod("common", "epochs").replace(
            "{name: a}", "{name: a, namespace: batch}", 1
        ),
    }
    assert find(texts, "HF431") == ["repo/two/pod.yaml"]


@pytest.mark.parametrize(("value", "count"), [("${GPU}", 0), ("nvidia-a1000", 1)])
def test_values_that_are_put_in_later_are_not_judged(value: str, count: int) -> None:
    text = make_pod("a", "b").replace(
        "spec: {", f'spec: {{nodeSelector: {{cloud.google.com/gke-accelerator: "{value}"}}, '
    )
    assert len(find({"pod.yaml": text}, "HF035")) == count


def test_one_contradiction_costs_little_in_a_large_folder() -> None:
    """The other files of the folder stay together."""
    texts = {
        "flat/a.yaml": make_config("shared", "lr"),
        "flat/b.yaml": make_config("shared", "epochs"),
    }
    for number in range(300):
        texts[f"flat/{number}.yaml"] = make_config(f"c{number}", "lr")
    objects: list[Object] = []
    for name, text in texts.items():
        for document in parse_text(name, text).documents:
            objects += list_objects(document, name)
    assert [len(part.objects) for part in divide(objects, ObjectIndex(objects))] == [1, 1, 300]


def test_many_contradictions_are_one_set() -> None:
    objects: list[Object] = []
    for number in range(2_100):
        name = f"{number}/a.yaml"
        for document in parse_text(name, make_config("shared", f"k{number}")).documents:
            objects += list_objects(document, name)
    assert len(divide(objects, ObjectIndex(objects))) == 1

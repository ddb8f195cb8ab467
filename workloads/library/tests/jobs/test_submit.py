"""What a manifest buys, and what is refused before anything is sent."""

import json
from pathlib import Path

import pytest

from holdfast.clients.api import Object
from holdfast.cost import prices
from holdfast.jobs.file.file_text import read_documents
from holdfast.jobs.submit import submission
from holdfast.jobs.submit.submission import check_documents, only
from holdfast.lint.document import MAX_FILE_BYTES
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import LABEL_ACCELERATOR, LABEL_FLEX_START, Pool
from tests import platforms
from workloads.library.tests.jobs.test_manifests import list_kinds

ENV = platforms.load("example")
TABLE = prices.load()


def job(pool: Pool, pods: int, selector: dict[str, str] | None = None) -> Object:
    container = {
        "name": "main",
        "image": "x",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    placement = {
        "nodeSelector": pool.selector() if selector is None else selector,
        "tolerations": pool.tolerations(),
    }
    body = {
        "parallelism": pods,
        "template": {"spec": placement | {"containers": [container]}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": body,
    }


def jobset(pool: Pool, replicas: int, pods: int) -> Object:
    group = {
        "name": "workers",
        "replicas": replicas,
        "template": {"spec": job(pool, pods)["spec"]},
    }
    head = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "s"},
    }
    return head | {"spec": {"replicatedJobs": [group]}}


def test_a_job_costs_its_pods_times_the_most_expensive_machine() -> None:
    def usd(pool: str) -> float:
        quote = TABLE.quote(
            prices.MACHINE_TYPES[ENV.pool(pool).machine_type], ENV.region, Capacity.SPOT
        )
        return quote.usd if quote else 0.0

    purchase_plan = submission.plan([job(ENV.pool("spot-a100"), 4)], ENV, TABLE)
    assert purchase_plan.purchases[0].pools == ("spot-a100",)
    assert purchase_plan.usd_per_hour == pytest.approx(4 * usd("spot-a100"))
    pool = next(p for p in ENV.pools if p.pool_class == "spot-l4")
    purchase_plan = submission.plan([jobset(pool, 2, 3)], ENV, TABLE)
    assert json.loads(json.dumps(purchase_plan.as_json()))["schema"] == "holdfast.purchase/2"
    (bought,) = purchase_plan.purchases
    assert len(bought.pools) == 3
    assert bought.pods == 6
    assert bought.gpus == 6
    assert bought.usd_per_hour == pytest.approx(6 * max(map(usd, bought.pools)))


def test_a_job_sets_groups_are_each_paid_for() -> None:
    """A cap must hold if the machines of the first group are the cheapest."""
    cheap_pool = ENV.pool("spot-l4-g2-standard-8")
    costly_pool = ENV.pool("spot-a100")
    document = jobset(cheap_pool, 1, 1)
    (leader,) = document["spec"]["replicatedJobs"]
    (worker,) = jobset(costly_pool, 2, 2)["spec"]["replicatedJobs"]
    document["spec"]["replicatedJobs"] = [leader, worker | {"name": "others"}]
    usd: list[float | None] = []
    for part in (job(cheap_pool, 1), job(costly_pool, 4)):
        plan = submission.plan([part], ENV, TABLE)
        usd.append(plan.usd_per_hour)
    (bought,) = submission.plan([document], ENV, TABLE).purchases
    assert bought.usd_per_hour == pytest.approx(sum(filter(None, usd)))
    assert (bought.pods, bought.gpus) == (5, 5)
    assert "spot-a100" in bought.pools
    (refusal,) = submission.plan(
        [document],
        ENV,
        TABLE,
        3.0,
    ).refusals
    assert "over the cap" in refusal
    worker["template"]["spec"]["template"]["spec"]["tolerations"] = [3]
    with pytest.raises(InputError, match=FORM):
        check_documents(Path("m.yaml"), [document])


def test_a_cap_holds_at_its_very_value_and_refuses_below_the_price() -> None:
    document = job(ENV.pool("spot-a100"), 2)
    price = submission.plan([document], ENV, TABLE).usd_per_hour
    assert price is not None
    assert not submission.plan([document], ENV, TABLE, price).refusals
    (refusal,) = submission.plan([document], ENV, TABLE, price - 0.01).refusals
    assert "over the cap" in refusal
    (refusal,) = submission.plan(
        [job(ENV.pool("spot-a100"), 2, {"nobody": "here"})], ENV, TABLE, 1e9
    ).refusals
    assert "fits no pool" in refusal, "an unknown price is above each cap"
    for cap in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="more than 0"):
            submission.plan([document], ENV, TABLE, cap)


ALIASES = "a0: &a0 [1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'])}]\n" for n in range(1, 12)
)
JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\n"
PODS = "template: {spec: {containers: [{}]"
FORM = "its parallelism and pod template"
SPECS = {
    "backoffLimit: 1.0e+999": "a number that is infinite",
    f"parallelism: .inf, {PODS}}}}}": "ValueError",
    f"parallelism: two, {PODS}}}}}": "invalid literal",
    f"a: {5_000 * '['}{5_000 * ']'}": "cannot be read",
    "template: {spec: {containers: []}}": FORM,
    f"{PODS}, nodeSelector: null}}}}": FORM,
    f"{PODS}, tolerations: 3}}}}": FORM,
    f"{PODS}, tolerations: [x]}}}}": FORM,
}


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("", "nothing"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", "ConfigMap"),
        ("a: [", "cannot be read"),
        ("\0", "cannot be read"),
        ("- 3\n", "not a Kubernetes object"),
        (ALIASES, "values after aliases are expanded"),
        ("a: 1\n# " + MAX_FILE_BYTES * "x", "more than 1,572,864 bytes"),
        ("kind: Job\n", "not a Kubernetes object"),
        (JOB, "KeyError 'spec'"),
        (JOB + "spec: {}\nspec: {}\n", "a second time"),
        (JOB.replace("Job", "JobSet") + "spec: {replicatedJobs: []}\n", "IndexError"),
        (f"{JOB}spec: {{{PODS}}}}}}}\n---\n7\n", "document 2"),
        *((f"{JOB}spec: {{{spec}}}\n", output) for spec, output in SPECS.items()),
    ],
)
def test_a_manifest_without_a_whole_job_is_bad_input(
    tmp_path: Path, text: str, output: str
) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        check_documents(path, read_documents(path))
    assert output in refused.value.lines()


def test_one_job_is_taken_with_everything_that_is_no_job(tmp_path: Path) -> None:
    names = ("Job", "a"), ("PodDisruptionBudget", "a"), ("JobSet", "b"), ("ClusterRole", "c")
    documents: list[Object] = []
    for kind, name in names:
        documents.append(
            {
                "kind": kind,
                "metadata": {"name": name},
            }
        )
    assert list_kinds(only(documents, "b")) == [
        "PodDisruptionBudget",
        "JobSet",
        "ClusterRole",
    ]
    assert only(documents, "") == documents
    rendered = {
        "kind": "Job",
        "metadata": {
            "name": "b-1a2b3c4d",
            "labels": {"app.kubernetes.io/name": "b"},
        },
    }
    assert only([rendered], "b") == only([rendered], "b-1a2b3c4d") == [rendered]
    with pytest.raises(InputError) as refused:
        only(documents, "bb")
    assert refused.value.fix == "did you mean b?"
    (tmp_path / "training.yaml").write_text("")
    with pytest.raises(InputError) as refused:
        read_documents(tmp_path / "trainning.yaml")
    assert refused.value.fix == f"did you mean {tmp_path}/training.yaml?"


def test_a_flex_job_costs_the_cheapest_machine_that_can_be_made_for_it() -> None:
    for cpu, machine in (("2", "g2-standard-4"), ("14", "g2-standard-16")):
        document = job(
            ENV.pool("spot-a100"), 3, {LABEL_FLEX_START: "true", LABEL_ACCELERATOR: "nvidia-l4"}
        )
        document["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] = {
            "cpu": cpu,
            "memory": "12Gi",
        }
        quote = TABLE.quote(prices.MACHINE_TYPES[machine], ENV.price_region, Capacity.FLEX_START)
        purchase_plan = submission.plan([document], ENV, TABLE, 100)
        assert quote
        assert purchase_plan.purchases[0].pools == ()
        assert purchase_plan.refusals == []
        assert purchase_plan.usd_per_hour == pytest.approx(3 * quote.usd)

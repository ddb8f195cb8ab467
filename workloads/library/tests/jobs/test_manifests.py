"""What a user's job becomes: placed where its pools are, and clean under the linter whatever
it says.
"""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from ruamel.yaml import YAML

from holdfast.clients.api import Object
from holdfast.cost import prices
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import placement
from holdfast.jobs.plan.missing_parts import list_missing_parts
from holdfast.jobs.plan.offers import list_offers
from holdfast.jobs.render import manifests, pod_parts
from holdfast.jobs.submit import submission
from holdfast.manifests.pods import KEY_FOLDER
from holdfast.manifests.render_context import RenderContext
from holdfast.platform.document import Team
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import ANNOTATION_REQUEUES_FOR, LABEL_REQUEUES, Capacity
from holdfast.vocabulary.environment import ENV_KEY_FILE
from holdfast.vocabulary.roles import team_role
from tests.platforms import load, names
from workloads.library.tests.jobs.test_job_file import IMAGE, own

PRICES = prices.load()


def render(job: JobSpec) -> list[Object]:
    """Renders a job, lints the text, and reads it again."""
    env = load(job.environment)
    context = RenderContext(env)
    text = manifests.text(job, manifests.bodies(job, context, placement.place(job, env, PRICES)))
    manifests.judge("job.yaml", text, env)
    return [body for body in YAML(typ="safe").load_all(text) if body]


def get_pod_spec(bodies: list[Object]) -> Object:
    spec = bodies[-1]["spec"]
    if bodies[-1]["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return spec["template"]["spec"]


def find_body(bodies: list[Object], kind: str) -> Object:
    """Returns the first object of a kind."""
    return next(body for body in bodies if body["kind"] == kind)


def list_kinds(bodies: list[Object]) -> list[str]:
    return [body["kind"] for body in bodies]


def read_variables(container: Object) -> dict[str, str]:
    """Returns the environment of a container, with "" for what only a cluster knows."""
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def choose_run(environment: str) -> str:
    """Returns the name of a run that may write in the environment."""
    return next((run.name for run in load(environment).runs), own().name)


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {
        "secrets": {"HF_TOKEN": "hf", "B": "b/3"},
        "claims": {"/mnt/models": "models"},
        "checkpoint_key": "key",
    },
    {
        "on_notice": "drain",
        "scratch": "512Mi",
        "shm": "1Gi",
        "env": {"MODE": "a b", "LEVEL": "./x="},
    },
    {
        "on_notice": "wrap",
        "data": "gs://bucket/a/b",
        "scratch": "40Gi",
        "restarts": 9,
    },
    {
        "data": "gs://bucket",
        "max_hours": 0.5,
        "command": ("./x y", "--a=b", "-"),
    },
)
"""Further fields of jobs; the machines take turns with them."""


@pytest.mark.parametrize("name", names())
def test_every_offered_machine_runs_jobs_that_pass_the_linter(name: str) -> None:
    """Tests jobs that fill a machine and jobs with one of its GPUs, alone and as a gang."""
    options = itertools.cycle(OPTIONS)
    rendered = 0
    for offer, (whole, nodes) in itertools.product(
        list_offers(load(name)), ((True, 1), (False, 1), (True, 2))
    ):
        gpus = offer.machine.gpus if whole else 1
        mismatch = offer.capacity is (Capacity.QUEUED if nodes == 1 else Capacity.FLEX_START)
        if mismatch or gpus * nodes > offer.lent_gpus:
            continue
        placement_fields = {
            "gpus": f"{gpus}x{offer.accelerator}",
            "nodes": nodes,
            "capacity": offer.capacity.value,
        }
        placement_fields["resumes"] = whole or offer.capacity is Capacity.SPOT
        job = own(name=choose_run(name), environment=name, **placement_fields | next(options))
        placed = placement.place(job, load(name), PRICES)
        assert placed.offer is not None and placed.offer.capacity is offer.capacity
        pod = get_pod_spec(render(job))
        rendered += 1
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)
        assert container["image"] == IMAGE and container["command"][-len(job.command) :] == list(
            job.command
        )
        assert (
            pod["securityContext"]["runAsNonRoot"]
            and container["securityContext"]["readOnlyRootFilesystem"]
        )
    assert rendered >= len(OPTIONS), "each option has its turn"


def test_a_gang_finds_its_first_pod_and_counts_its_ranks_without_options() -> None:
    bodies = render(own(gpus="1xa100", nodes=3, capacity="spot"))
    assert list_kinds(bodies) == ["NetworkPolicy", "PodDisruptionBudget", "JobSet"]
    entries: dict[str, Object] = {}
    for entry in get_pod_spec(bodies)["containers"][0]["env"]:
        entries[entry["name"]] = entry
    head = "$(HOLDFAST_JOB)-workers-0-0.$(HOLDFAST_JOB)"
    assert entries["PET_MASTER_ADDR"]["value"] == entries["MASTER_ADDR"]["value"] == head
    assert entries["PET_NNODES"]["value"] == "3"
    assert entries["PET_NPROC_PER_NODE"]["value"] == "1"
    rank_field = entries["PET_NODE_RANK"]["valueFrom"]["fieldRef"]
    assert "job-completion-index" in rank_field["fieldPath"]


def test_gang_that_reaches_max_hours_is_not_restarted() -> None:
    """JobSet restarts a failed Job unless a rule names its reason."""
    gang = render(own(gpus="1xa100", nodes=2, capacity="spot", max_hours=40.0))[-1]
    actions = {}
    for rule in gang["spec"]["failurePolicy"]["rules"]:
        for reason in rule["onJobFailureReasons"]:
            actions[reason] = rule["action"]
    assert actions == {
        "PodFailurePolicy": "RestartJobSetAndIgnoreMaxRestarts",
        "DeadlineExceeded": "FailJobSet",
    }


def test_secrets_are_references_and_files_never_values() -> None:
    bodies = render(own(secrets={"HF_TOKEN": "hf/3"}, checkpoint_key="signing"))
    assert bodies[0]["kind"] == "SecretProviderClass" and bodies[0]["spec"]["provider"] == "gke"
    resources: dict[str, str] = {}
    for entry in YAML(typ="safe").load(bodies[0]["spec"]["parameters"]["secrets"]):
        resources[entry["path"]] = entry["resourceName"]
    assert resources == {
        "HF_TOKEN": "projects/acme-ai-platform/secrets/hf/versions/3",
        "checkpoint-key": "projects/acme-ai-platform/secrets/signing/versions/latest",
    }
    env = read_variables(get_pod_spec(bodies)["containers"][0])
    assert env["HF_TOKEN_FILE"] == "/etc/holdfast/secrets/HF_TOKEN" and "HF_TOKEN" not in env
    assert env["HOLDFAST_CHECKPOINT_KEY_FILE"] == "/etc/holdfast/secrets/checkpoint-key"


def test_secrets_are_refused_where_no_add_on_would_mount_them() -> None:
    example = load("example")
    off = replace(example, security=replace(example.security, secret_manager=False))
    with pytest.raises(InputError) as refused:
        pod_parts.provider_class(own(secrets={"HF_TOKEN": "hf/3"}), RenderContext(off))
    assert "hf/3, with the add-on off in example" in refused.value.got
    assert "set security.secret_manager of example" in refused.value.fix
    assert pod_parts.provider_class(own(), RenderContext(off)) is None


def test_a_batch_fills_its_queue_before_a_worker_looks_into_it() -> None:
    options = ("--set", "micro_batch=8")
    bodies = render(
        own(
            predictor="mine:predict",
            predict_seconds=90.0,
            data="gs://bucket/a",
            nodes=3,
            command=options,
        )
    )
    pod = get_pod_spec(bodies)
    proxy, load = pod["initContainers"]
    assert proxy["name"] == "cloud-sql-proxy"
    assert load["name"] == "load"
    command = pod["containers"][0]["command"]
    assert command[3:6] == ["batch", "run", "my-run"] and command[-4:] == [
        "--set",
        "predict_timeout_s=90",
        *options,
    ]
    assert bodies[-1]["spec"]["parallelism"] == 3 and bodies[-1]["metadata"]["namespace"] == "batch"


def test_rows_name_files_and_columns_to_the_loader() -> None:
    whole_row = render(own(**BATCH, rows="prompts.jsonl"))
    columns = render(own(**BATCH, rows="*.parquet id prompt"))
    files = render(own(**BATCH))
    assert read_source_options(files) == ["--source", "/data"]
    assert read_source_options(whole_row) == ["--source", "/data/prompts.jsonl"]
    assert read_source_options(columns) == [
        *("--source", "/data/*.parquet"),
        *("--id-column", "id"),
        *("--body-column", "prompt"),
    ]


def read_source_options(bodies: list[Any]) -> list[str]:
    """Return the words of the loader that name its source."""
    command = get_pod_spec(bodies)["initContainers"][1]["command"]
    words = command[command.index("--source") :]
    return words[: words.index("--topic")] if "--topic" in words else words


BATCH: dict[str, Any] = {
    "predictor": "mine:predict",
    "data": "gs://bucket/a",
    "command": (),
}


def test_a_batch_queues_on_its_lane() -> None:
    pod = get_pod_spec(render(own(**BATCH, lane=2)))
    topic = load("example").work_topics[1]
    project = load("example").project
    options = ["--topic", f"projects/{project}/topics/{topic}"]
    options += ["--subscription", f"projects/{project}/subscriptions/{topic}"]
    for container in (pod["containers"][0], pod["initContainers"][-1]):
        command = container["command"]
        start = command.index("--topic")
        assert command[start : start + 4] == options
    assert "--topic" not in get_pod_spec(render(own(**BATCH)))["containers"][0]["command"]


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ("example", []),
        ("prod", ["no Pub/Sub lane"]),
        ("dev", ["no results database", "no Pub/Sub lane"]),
    ],
)
def test_new_job_names_what_an_environment_lacks(environment: str, missing: list[str]) -> None:
    batch = own(environment=environment, **BATCH)
    lines = list(list_missing_parts(batch, load(environment)))
    assert len(lines) == len(missing)
    for line, words in zip(lines, missing, strict=True):
        assert f"{environment} has {words}" in line
    training = own(environment=environment)
    assert list(list_missing_parts(training, load(environment))) == []


def test_a_lane_that_nothing_makes_is_refused() -> None:
    for name, lane, allowed in (("example", 3, "0 to 2"), ("prod", 1, "0 to 0")):
        with pytest.raises(InputError, match="no such lane") as error:
            render(own(environment=name, lane=lane, **BATCH))
        assert error.value.allowed == allowed and f"lanes={lane}" in error.value.fix
    with pytest.raises(InputError, match="without a predictor"):
        own(lane=1)
    team = Team(name="vision", namespaces=("vision",))
    example = load("example")
    accounts = {**example.accounts, team_role("vision"): "vision@example.iam"}
    shared = replace(example, teams=(*example.teams, team), accounts=accounts)
    with pytest.raises(InputError, match="no rights to it"):
        pod_parts.require_lane(own(**BATCH, lane=1, namespace="vision"), shared)


@pytest.mark.parametrize(
    ("fields", "problem", "allowed"),
    [
        ({"gpus": "1xh100"}, "no pool of example has this GPU", "1xl4 spot"),
        ({"gpus": "1xl4", "nodes": 40}, "lends fewer GPUs", "1xl4 spot"),
        (
            {
                "gpus": "1xa100",
                "nodes": 2,
                "capacity": "flex-start",
            },
            "one by one",
            "queued",
        ),
        ({"gpus": "2xl4", "capacity": "on-demand"}, "no such machines", "flex-start"),
        (
            {
                "gpus": "1xa100",
                "nodes": "2..4",
                "capacity": "queued",
            },
            "comes back after hours",
            "spot",
        ),
        (
            {
                "gpus": "1xa100",
                "nodes": 2,
                "sharded": True,
                "capacity": "queued",
            },
            "comes back after hours",
            "spot",
        ),
        ({"gpus": "1xl4", "nodes": "20..40"}, "lends fewer GPUs", "1xl4 spot"),
        (
            {
                "gpus": "1xl4",
                "capacity": "spot",
                "resumes": False,
            },
            "cannot resume",
            "flex-start",
        ),
        ({"gpus": "none", "capacity": "flex-start"}, "without GPUs", "on-demand"),
        (
            {
                "gpus": "none",
                "capacity": "spot",
                "cpus": 64,
            },
            "holds a pod",
            "Spot group",
        ),
        (
            {
                "gpus": "1xl4",
                "capacity": "spot",
                "scratch": "500Gi",
            },
            "has 49 GiB",
            "flex-start",
        ),
        (
            {
                "gpus": "1xl4",
                "capacity": "spot",
                "scratch": "48Gi",
            },
            "takes 50 GiB",
            "flex-start",
        ),
        (
            {
                "gpus": "1xa100",
                "nodes": 2,
                "sharded": True,
                "state": "80Gi",
            },
            "5 x 40.0 GiB = 200.0 GiB",
            "HF158",
        ),
        (
            {
                "gpus": "1xa100",
                "nodes": "2..4",
                "sharded": True,
                "state": "80Gi",
            },
            "5 x 40.0 GiB = 200.0 GiB",
            "HF158",
        ),
        (
            {
                "gpus": "1xa100",
                "nodes": 2,
                "sharded": True,
                "state": "100Gi",
                "copies_in": "disk",
            },
            "no capacity for this job",
            "another number of nodes",
        ),
        (
            {
                "gpus": "1xa100",
                "nodes": 2,
                "sharded": True,
                "command": ("torchrun", "t.py"),
            },
            "HF157",
            "HF157",
        ),
        ({"env": {"API_TOKEN": "hunter2hunter2hunter2"}}, "HF416", "HF416"),
        ({"command": ("python", "t.py", "--hf-token", "a1b2c3d4" * 3)}, "HF416", "HF416"),
        ({"command": ("python", "t.py", f"--key=hf_{'aB3' * 9}")}, "HF416", "HF416"),
        ({"command": ("sh", "-c", "trap 'exit 0' TERM; python train.py")}, "HF105", "HF105"),
    ],
)
def test_what_no_environment_can_run_is_refused(
    fields: dict[str, Any], problem: str, allowed: str
) -> None:
    with pytest.raises(InputError) as refused:
        render(own(**fields))
    assert problem in refused.value.what and allowed in refused.value.allowed, str(refused.value)


def test_run_has_its_key_if_checkpoints_are_signed() -> None:
    def get_key(environment: str, **changes: Any) -> tuple[str, str]:
        job = own(name=choose_run(environment), environment=environment, **changes)
        spec = get_pod_spec(render(job))
        secret = ""
        for volume in spec["volumes"]:
            if "secret" in volume and not secret:
                secret = volume["secret"]["secretName"]
        for container in spec["containers"]:
            if container["name"] == "main":
                return secret, read_variables(container).get(ENV_KEY_FILE, "")
        raise LookupError("no container main")

    by_signing: dict[bool, str] = {}
    for name in names():
        by_signing.setdefault(load(name).security.signed_checkpoints, name)
    signs = by_signing[True]
    free = by_signing[False]
    assert get_key(signs) == (f"run-key-{choose_run(signs)}", f"{KEY_FOLDER}/key")
    assert get_key(free) == get_key(signs, on_notice="wrap") == ("", "")


def test_queued_gang_may_requeue_until_its_deadline() -> None:
    fields: dict[str, Any] = {
        "gpus": "1xa100",
        "nodes": 2,
        "capacity": "queued",
        "restarts": 5,
    }
    within = render(own(**fields, hours=40, deadline_hours=120))[-1]["metadata"]
    assert (within["labels"][LABEL_REQUEUES], within["annotations"][ANNOTATION_REQUEUES_FOR]) == (
        "5",
        str(120 * 3600),
    )
    gang = render(own(**fields))[-1]
    assert gang["spec"]["failurePolicy"]["maxRestarts"] == 5
    assert gang["metadata"]["annotations"][ANNOTATION_REQUEUES_FOR] == str(30 * 86_400)


def test_elastic_gang_has_service_budget_and_the_price_at_full_size() -> None:
    bodies = render(
        own(
            gpus="1xa100",
            nodes="2..4",
            command=("python", "mine.py"),
            restarts=5,
        )
    )
    assert list_kinds(bodies) == ["Service", "NetworkPolicy", "PodDisruptionBudget", "Job"]
    spec = bodies[-1]["spec"]
    main = get_pod_spec(bodies)["containers"][0]
    assert (
        spec["completions"],
        spec["parallelism"],
        spec["backoffLimitPerIndex"],
        spec["suspend"],
    ) == (4, 4, 5, True)
    assert bodies[-1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "spot"
    env = read_variables(main)
    assert env["HOLDFAST_GANG_NODES"] == "4"
    assert env["HOLDFAST_GANG_MIN_NODES"] == "2"
    assert main["env"][-1]["name"] == "HOLDFAST_GANG_ADDRESS", (
        "Kubernetes expands only variables that come before"
    )
    assert main["command"] == ["python", "mine.py"]
    several = render(
        own(
            gpus="1xa100",
            nodes="2..4",
            command=("python", "mine.py"),
            processes=3,
        )
    )
    assert get_pod_spec(several)["containers"][0]["command"] == [
        *pod_parts.RANKS,
        "3",
        "--",
        "python",
        "mine.py",
    ]
    (bought,) = submission.plan(bodies, load("example"), PRICES, 0.01).purchases
    (alone,) = submission.plan(render(own(gpus="1xa100")), load("example"), PRICES).purchases
    assert bought.usd_per_hour == pytest.approx(4 * (alone.usd_per_hour or 0)) and bought.gpus == 4
    assert submission.plan(bodies, load("example"), PRICES, 0.01).refusals


def test_sharded_gang_with_a_range_goes_on_with_fewer_nodes() -> None:
    fields: dict[str, Any] = {
        "gpus": "1xa100",
        "nodes": "2..4",
        "sharded": True,
    }
    bodies = render(own(**fields, command=("python", "mine.py")))
    assert bodies[2]["spec"]["minAvailable"] == 2
    main = get_pod_spec(bodies)["containers"][0]
    options = " ".join(main["command"]).partition(" -- ")[0]
    assert options.endswith("--sharded --copies 1 --wait 300 --min-nodes 2")
    placed = placement.place(own(**fields, command=("python", "mine.py")), load("example"), PRICES)
    assert placed.rule == "sharded" and placed.offer and placed.offer.capacity is Capacity.SPOT


def test_sharded_gang_has_a_launcher_and_is_drained_one_by_one() -> None:
    program = ("python", "mine.py")
    fields: dict[str, Any] = {
        "gpus": "1xa100",
        "nodes": 4,
        "sharded": True,
        "command": program,
    }
    bodies = render(own(**fields, wait_hours=2.0, state="40Gi"))
    assert list_kinds(bodies) == ["Service", "NetworkPolicy", "PodDisruptionBudget", "Job"]
    assert bodies[2]["spec"]["minAvailable"] == 3
    main = get_pod_spec(bodies)["containers"][0]
    template = bodies[-1]["spec"]["template"]
    env = read_variables(main)
    assert env["HOLDFAST_GANG_NODES"] == env["NNODES"] == "4"
    launcher = [
        *pod_parts.RANKS,
        "1",
        "--sharded",
        "--copies",
        "1",
        "--wait",
        "7200",
    ]
    assert main["command"] == [*launcher, "--", *program]
    assert template["metadata"]["annotations"]["holdfast.dev/placement-rule"] == "sharded"
    placed = placement.place(own(**fields), load("example"), PRICES)
    assert placed.rule == "sharded" and placed.offer and placed.offer.capacity is Capacity.SPOT

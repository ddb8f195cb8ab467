"""Lists seeded defects: each is one change and the rule that finds it.

Changes are made to objects of the rendered `example`, and to the rules' clean objects. A change is
a path of words and a new value. `labels`, `pod` and `main` begin at the labels and the
spec of the pod template and at its first container, `job` at the spec of a JobSet's first Job.
`DROP` removes, also the whole object (path ""), and a function gets the old value. The changes were
written before the rules were run on them.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast.lint import engine, examples
from holdfast.lint.document import Document
from holdfast.lint.engine import File, Options, Report, judge, lint_texts, parse_text
from holdfast.lint.registry import Rule, all_rules
from holdfast.vocabulary.kubernetes import LABEL_QUEUE
from workloads.library.tests.services import example_services

FOLDER = Path(__file__).parents[3] / "rendered" / "example"
DROP = object()
TEMPLATE = {"JobSet": ("spec", "replicatedJobs", 0, "template", "spec", "template"), "CronJob": ()}
BELOW = {
    "labels": ("metadata", "labels"),
    "pod": ("spec",),
    "main": ("spec", "containers", 0),
}


@dataclass(frozen=True)
class Defect:
    name: str
    of: str
    """Kind/name, or the beginning of it."""
    path: str
    value: Any
    rule: str

    def found(self) -> bool:
        return self.rule in judge_by((self.rule,), self.files())

    def files(self) -> list[File]:
        """Returns all files of the environment, with the change in them."""
        files = [replace(file, documents=list(file.documents)) for file in load_rendered()]
        documents, index = self._locate(files)
        # JSON drops the marks of the text.
        body = json.loads(json.dumps(documents[index].value))
        if self.path:
            _change(body, self.path, self.value)
        documents[index] = Document(body if self.path else None, 1)
        return files

    def _locate(self, files: list[File]) -> tuple[list[Document], int]:
        for file in files:
            for index, document in enumerate(file.documents):
                if title(document.value).startswith(self.of):
                    return file.documents, index
        raise LookupError(self.of)


@cache
def load_rendered() -> list[File]:
    paths = sorted(FOLDER.glob("*/*.yaml"))
    files = [parse_text(path.as_posix(), path.read_text()) for path in paths]
    chat = example_services.render_text("chat")
    return [*files, parse_text((FOLDER / "chat.yaml").as_posix(), chat)]


def clean() -> Report:
    return judge(load_rendered(), Options())


def judge_by(rule_ids: Collection[str], files: list[File]) -> set[str]:
    """Returns which of these rules find something.

    All rules over a hundred defects would take a minute.
    """
    rules = {rule_id: all_rules()[rule_id] for rule_id in rule_ids}
    with mock.patch.object(engine, "all_rules", lambda: rules):
        return {finding.rule for finding in judge(files, Options()).active}


def title(body: Any) -> str:
    if isinstance(body, dict) and "metadata" in body:
        return f"{body['kind']}/{body['metadata']['name']}"
    return ""


def _change(body: dict[str, Any], path: str, value: Any) -> None:
    first, *words = path.split()
    template = TEMPLATE.get(body["kind"], ("spec", "template"))
    if first in BELOW:
        start = (*template, *BELOW[first])
    else:
        start = template[:-1] if first == "job" else (first,)
    steps: list[str | int] = list(start)
    for path_word in words:
        steps.append(int(path_word) if path_word.isdecimal() else path_word)
    last = steps.pop()
    parent: Any = reduce(_step, steps, body)
    if value is DROP:
        del parent[last]
    else:
        parent[last] = value(parent[last]) if callable(value) else value


def _step(value: Any, step: str | int) -> Any:
    return value.setdefault(step, {}) if isinstance(value, dict) else value[step]


def word(old: str, new: str) -> Callable[[list[str]], list[str]]:
    """Replaces the word after the option `old` in a command, or the word `old` itself."""

    def change(words: list[str]) -> list[str]:
        index = words.index(old) + old.startswith("--")
        return [*words[:index], new, *words[index + 1 :]]

    return change


def append(*words: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda old: [*old, *words]


def shell(script: str) -> list[str]:
    return ["bash", "-c", script]


def env(name: str, value: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Replaces the variable `name`."""

    def change(variables: list[dict[str, Any]]) -> list[dict[str, Any]]:
        new_variable = {"name": name, "value": value}
        return [new_variable if item["name"] == name else item for item in variables]

    return change


def without(key: str, value: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda old: [item for item in old if item.get(key) != value]


def find_rules_in_change(base: str, change: str) -> set[str]:
    """Returns the rules that find a change of a clean object of the linter's examples.

    Without a base, the change is the whole object.
    """
    rule = next(rule for rule in all_rules().values() if rule.base == base)
    return find_rules(make_file(rule, change))


def make_file(rule: Rule, text: str) -> str:
    """Returns an example of a rule as a file: JSON is YAML, and quotes every string."""
    if not rule.base or text.startswith("apiVersion:"):
        return text
    bodies = examples.build_objects(rule.base, text)
    return "---\n".join(json.dumps(body, indent=1) + "\n" for body in bodies)


def find_rules(*texts: str, names: tuple[str, ...] = ()) -> set[str]:
    """Returns the rules that find something in these files, which are judged together."""
    files: dict[str, str] = {}
    for index, text in enumerate(texts):
        files[names[index] if names else f"{index}.yaml"] = text
    return {finding.rule for finding in lint_texts(files, Options()).active}


def pre_stop(*words: str) -> str:
    return f"lifecycle: {{preStop: {{exec: {{command: {list(words)}}}}}}}"


def bash(script: str) -> str:
    return f"command: [bash, -c, {json.dumps(script)}]"


SHARDED = ["python", "-m", "holdfast", "train", "ranks", "--processes", "1", "--sharded", "--"]


def make_sharded(state: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(template: dict[str, Any]) -> dict[str, Any]:
        template["metadata"]["annotations"]["holdfast.dev/state"] = state
        template["spec"]["containers"][0]["command"] = [*SHARDED, "python", "t.py"]
        return template

    return change


GANG = "JobSet/train-gang"
SWEEP = "Job/train-sweep"
ELASTIC = "Job/train-elastic"
QUEUED = "JobSet/train-queued-l4"
FLEX = "Job/train-flex-l4"
DRAIN = "Job/batch-drain"
STEADY = "Deployment/batch-steady"
POLICY = "podFailurePolicy rules"
GRACE = "pod terminationGracePeriodSeconds"
SELECTOR = "pod nodeSelector"
QUEUE = f"metadata labels {LABEL_QUEUE}"
GPU = "main resources limits nvidia.com/gpu"
LAST_STEP = {
    "action": "FailJob",
    "onExitCodes": {
        "operator": "In",
        "values": [2, 70],
    },
}
JOBS = (
    Defect("grace above the window", SWEEP, GRACE, 60, "HF101"),
    Defect("grace not stated", GANG, GRACE, DROP, "HF102"),
    Defect(
        "preStop sleeps", GANG, "main lifecycle", {"preStop": {"sleep": {"seconds": 12}}}, "HF103"
    ),
    Defect(
        "preStop saves",
        SWEEP,
        "main lifecycle",
        {"preStop": {"exec": {"command": shell("gsutil cp -r /tmp gs://b")}}},
        "HF108",
    ),
    Defect(
        "trap exits 0",
        SWEEP,
        "main command",
        shell("trap 'save; exit 0' TERM; python t.py & wait"),
        "HF105",
    ),
    Defect(
        "the shell swallows the signal",
        GANG,
        "main command",
        shell("python a.py && python t.py"),
        "HF106",
    ),
    Defect("exit code lost", SWEEP, "main command", shell("python t.py || true"), "HF109"),
    Defect(
        "the variable's window", ELASTIC, "main env", env("HOLDFAST_WINDOW_SECONDS", "60"), "HF107"
    ),
    Defect("--window above the grace", DRAIN, "main command", word("--window", "60"), "HF107"),
    Defect(
        "--window above the grace of a Deployment",
        STEADY,
        "main command",
        word("--window", "60"),
        "HF107",
    ),
    Defect(
        "safe-to-evict believed",
        SWEEP,
        "spec template metadata annotations cluster-autoscaler.kubernetes.io/safe-to-evict",
        "false",
        "HF104",
    ),
    Defect("evictions count", SWEEP, f"spec {POLICY}", lambda old: old[1:], "HF110"),
    Defect(
        "FailJob before Ignore",
        ELASTIC,
        f"spec {POLICY}",
        lambda old: [old[1], old[0], *old[2:]],
        "HF111",
    ),
    Defect("FailJob on 143", DRAIN, f"spec {POLICY} 1 onExitCodes values", [2, 70, 143], "HF115"),
    Defect(
        "FailJob on everything but 0",
        SWEEP,
        f"spec {POLICY} 1 onExitCodes",
        {
            "operator": "NotIn",
            "values": [0],
        },
        "HF115",
    ),
    Defect("restart in place", SWEEP, "pod restartPolicy", "OnFailure", "HF112"),
    Defect("one back-off for all", DRAIN, "spec backoffLimitPerIndex", DROP, "HF114"),
    Defect(
        "the gang counts evictions",
        GANG,
        "spec failurePolicy rules 0 action",
        "RestartJobSet",
        "HF116",
    ),
    Defect("the gang's child ignores evictions", GANG, f"job {POLICY} 0 action", "Ignore", "HF116"),
    Defect("a bug looks like an eviction", GANG, f"job {POLICY}", append(LAST_STEP), "HF117"),
    Defect("gang with restarts 0", GANG, "spec failurePolicy maxRestarts", 0, "HF123"),
    Defect("gang with restarts left out", GANG, "spec failurePolicy maxRestarts", DROP, "HF123"),
    Defect(
        "exit codes of no container",
        SWEEP,
        f"spec {POLICY} 1 onExitCodes containerName",
        "trainer",
        "HF124",
    ),
    Defect(
        "ignored codes of no container",
        ELASTIC,
        f"spec {POLICY} 2 onExitCodes containerName",
        "worker",
        "HF124",
    ),
    Defect("no deadline", GANG, "job activeDeadlineSeconds", DROP, "HF118"),
    Defect("kept for ever", GANG, "spec ttlSecondsAfterFinished", DROP, "HF119"),
    Defect(
        "stays on a silent node",
        DRAIN,
        "pod tolerations",
        without("key", "node.kubernetes.io/unreachable"),
        "HF037",
    ),
    Defect(
        "pool class misspelt", SWEEP, f"{SELECTOR} holdfast.dev/pool-class", "spot-a10", "HF003"
    ),
    Defect(
        "Spot not tolerated", SWEEP, "pod tolerations", without("key", "provisioning-tier"), "HF004"
    ),
    Defect("taint's value", DRAIN, "pod tolerations 0 value", "spot", "HF001"),
    Defect("Spot and flex-start", FLEX, f"{SELECTOR} cloud.google.com/gke-spot", "true", "HF013"),
    Defect("four GPUs on nodes with one", SWEEP, GPU, "4", "HF031"),
    Defect(
        "GPU node without a GPU",
        DRAIN,
        "main resources",
        {"limits": {"cpu": "6", "memory": "24Gi"}},
        "HF033",
    ),
    Defect("more memory than a machine", SWEEP, "main resources requests memory", "640Gi", "HF020"),
    Defect(
        "driver left to chance",
        FLEX,
        f"{SELECTOR} cloud.google.com/gke-gpu-driver-version",
        DROP,
        "HF036",
    ),
    Defect(
        "accelerator of another cloud",
        FLEX,
        f"{SELECTOR} cloud.google.com/gke-accelerator",
        "nvidia-a100",
        "HF035",
    ),
    Defect("queue misspelt", SWEEP, QUEUE, "sport", "HF306"),
    Defect("suspended without a queue", SWEEP, QUEUE, DROP, "HF314"),
    Defect("gang past the queue", GANG, "metadata labels", {}, "HF314"),
    Defect("Spot work pushes others out", DRAIN, "pod priorityClassName", "serving", "HF302"),
)
BASE = "Deployment/server-base"
SPOT = "Deployment/server-overflow"
VLLM_BASE = "Deployment/chat-base"
VLLM = "Deployment/chat-overflow"
HEAD = "$(HOLDFAST_JOB)-{}-0-0.$(HOLDFAST_JOB):29500"
OTHERS = "train-queued-l4-f4ff7bcc-workers-0-0.train-queued-l4-f4ff7bcc:29500"
LIVE = "/v2/health/live"
READY = "/v2/health/ready"
ALL = [{"namespaceSelector": {}}]
ONE = [{"port": 29_500, "protocol": "TCP"}]
SECRETS = {
    "apiGroups": [""],
    "resources": ["secrets"],
    "verbs": ["get", "list"],
}
EXEC = {
    "apiGroups": [""],
    "resources": ["pods/exec"],
    "verbs": ["create"],
}
REST = (
    Defect(
        "queued nodes without a class",
        "ProvisioningRequestConfig/queued",
        "spec provisioningClassName",
        DROP,
        "HF315",
    ),
    Defect(
        "queued nodes of another class",
        "ProvisioningRequestConfig/queued",
        "spec provisioningClassName",
        "queued.gke.io",
        "HF315",
    ),
    Defect(
        "queue without its check",
        "ClusterQueue/queued",
        "spec admissionChecksStrategy",
        DROP,
        "HF315",
    ),
    Defect("queued without its priority class", QUEUED, "pod priorityClassName", DROP, "HF303"),
    Defect(
        "flavor of no pool",
        "ResourceFlavor/spot-spot-l4",
        "spec nodeLabels holdfast.dev/pool-class",
        "spot-l40",
        "HF312",
    ),
    Defect("queue of no ClusterQueue", "LocalQueue/spot", "spec clusterQueue", "sport", "HF309"),
    Defect("four nodes, two pods", GANG, "main command", word("--nodes", "4"), "HF122"),
    Defect("eight ranks, one GPU", GANG, "main command", word("--ranks", "8"), "HF125"),
    Defect(
        "two GPUs promised, one asked for", SWEEP, "main env", env("HOLDFAST_GPUS", "2"), "HF125"
    ),
    Defect(
        "rendezvous of another job", GANG, "main command", word("--rendezvous", OTHERS), "HF126"
    ),
    Defect(
        "rendezvous of no replicated job",
        GANG,
        "main command",
        word("--rendezvous", HEAD.format("driver")),
        "HF126",
    ),
    Defect(
        "rendezvous without a port",
        QUEUED,
        "main command",
        word("--rendezvous", HEAD.format("workers")[:-6]),
        "HF126",
    ),
    Defect(
        "address of another gang",
        ELASTIC,
        "main env",
        env("HOLDFAST_GANG_ADDRESS", "train-wide-{place}.train-wide"),
        "HF126",
    ),
    Defect(
        "job's name is another's",
        GANG,
        "main env",
        env("HOLDFAST_JOB", "train-sweep-f441d25f"),
        "HF127",
    ),
    Defect(
        "server's name is another's",
        BASE,
        "main env",
        env("HOLDFAST_JOB", "server-overflow"),
        "HF127",
    ),
    Defect("elastic, not by index", ELASTIC, "spec backoffLimitPerIndex", DROP, "HF150"),
    Defect("elastic budget", "PodDisruptionBudget/train-elastic", "spec minAvailable", 3, "HF152"),
    Defect("elastic job never ends", ELASTIC, "spec successPolicy", DROP, "HF151"),
    Defect("elastic without names", ELASTIC, "pod subdomain", DROP, "HF154"),
    Defect(
        "elastic Service of no pod",
        "Service/train-elastic",
        "spec selector app.kubernetes.io/name",
        "train-wide",
        "HF148",
    ),
    Defect("elastic gang's policy removed", "NetworkPolicy/train-elastic", "", DROP, "HF155"),
    Defect(
        "one port for an elastic gang",
        "NetworkPolicy/train-elastic",
        "spec ingress 0 ports",
        ONE,
        "HF155",
    ),
    Defect(
        "elastic gang under torchrun",
        ELASTIC,
        "main command",
        ["torchrun", "--nproc-per-node=1", "t.py"],
        "HF157",
    ),
    Defect(
        "torchrun under the launcher",
        ELASTIC,
        "main command",
        [*SHARDED, "torchrun", "t.py"],
        "HF157",
    ),
    Defect(
        "sharded without room for copies", ELASTIC, "spec template", make_sharded("400Gi"), "HF158"
    ),
    Defect(
        "sharded, drained by halves", ELASTIC, "main command", [*SHARDED, "python", "t.py"], "HF152"
    ),
    Defect("gang's policy removed", "NetworkPolicy/train-gang", "", DROP, "HF155"),
    Defect(
        "gang's policy for others",
        "NetworkPolicy/train-gang",
        "spec podSelector matchLabels app.kubernetes.io/name",
        "train",
        "HF155",
    ),
    Defect(
        "one port out of the gang", "NetworkPolicy/train-gang", "spec egress 0 ports", ONE, "HF155"
    ),
    Defect(
        "gang open to all namespaces",
        "NetworkPolicy/train-gang",
        "spec ingress 0 from",
        ALL,
        "HF161",
    ),
    Defect(
        "shared memory above the pod's", SWEEP, "pod volumes 2 emptyDir sizeLimit", "640Gi", "HF207"
    ),
    Defect(
        "checkpoints in an emptyDir",
        SWEEP,
        "main command",
        word("--checkpoints", "/tmp/checkpoints"),
        "HF201",
    ),
    Defect(
        "readiness on the liveness path", SPOT, "main readinessProbe httpGet path", LIVE, "HF147"
    ),
    Defect(
        "liveness on the readiness path", BASE, "main livenessProbe httpGet path", READY, "HF147"
    ),
    Defect("slow readiness", SPOT, "main readinessProbe periodSeconds", 10, "HF140"),
    Defect(
        "server's --window above its grace", BASE, "main command", word("--window", "60"), "HF107"
    ),
    Defect("longest request", SPOT, "main command", append("--longest-request", "30"), "HF142"),
    Defect(
        "vLLM's timeout above the window",
        VLLM,
        "main command",
        word("--shutdown-timeout", "60"),
        "HF145",
    ),
    Defect(
        "vLLM's timeout above the grace",
        VLLM_BASE,
        "main command",
        word("--shutdown-timeout", "12"),
        "HF145",
    ),
    Defect(
        "sidecar's --window above the grace",
        VLLM_BASE,
        "pod initContainers 0 command",
        word("--window", "60"),
        "HF107",
    ),
    Defect(
        "metric of an adapter that is not installed",
        "HorizontalPodAutoscaler/server-base",
        "spec metrics 0 pods metric name",
        "prometheus.googleapis.com|holdfast_server_requests_inflight|gauge",
        "HF156",
    ),
    Defect("AutoscalingMetric removed", "AutoscalingMetric/engines", "", DROP, "HF156"),
    Defect(
        "gauge renamed",
        "AutoscalingMetric/proxies",
        "spec metrics 0 pod containers 0 metrics 0 gauge name",
        "requests",
        "HF156",
    ),
    Defect(
        "two gauges of one name",
        "AutoscalingMetric/engines",
        "spec metrics 0 pod containers 0 metrics 1 gauge name",
        "running",
        "HF159",
    ),
    Defect("drain hook removed", VLLM, "main lifecycle", DROP, "HF149"),
    Defect(
        "drain hook on the port of the probe",
        "Deployment/proxy",
        "main lifecycle preStop httpGet port",
        8081,
        "HF149",
    ),
    Defect(
        "overflow of nothing",
        SPOT,
        "metadata annotations holdfast.dev/overflow-of",
        "server-bse",
        "HF146",
    ),
    Defect(
        "budget of 100 %",
        "PodDisruptionBudget/server-base",
        "spec",
        lambda old: {"minAvailable": "100%", "selector": old["selector"]},
        "HF137",
    ),
    Defect("budget of none", "PodDisruptionBudget/chat-base", "spec maxUnavailable", 0, "HF137"),
    Defect(
        "Service of no pod",
        "Service/server",
        "spec selector holdfast.dev/serves",
        "servers",
        "HF148",
    ),
    Defect(
        "budget of no pod",
        "PodDisruptionBudget/chat-overflow",
        "spec selector matchLabels app.kubernetes.io/name",
        "chat-spot",
        "HF148",
    ),
    Defect(
        "targetPort of no container",
        "Service/chat-servers",
        "spec ports 0 targetPort",
        8000,
        "HF148",
    ),
    Defect("servers closed to the proxy", "NetworkPolicy/answer", "", DROP, "HF160"),
    Defect("proxy closed on its way out", "NetworkPolicy/chat-health-egress", "", DROP, "HF160"),
    Defect(
        "one of two ports open",
        "NetworkPolicy/chat-health",
        "spec ingress 0 ports 0 port",
        8080,
        "HF160",
    ),
    Defect(
        "servers open to all namespaces",
        "NetworkPolicy/answer",
        "spec ingress 0 from",
        ALL,
        "HF161",
    ),
    Defect("reads all secrets", "Role/endpoints", "rules", append(SECRETS), "HF420"),
    Defect(
        "runs commands in pods", "ClusterRole/holdfast-planned-end", "rules", append(EXEC), "HF420"
    ),
    Defect(
        "administers the cluster",
        "ClusterRoleBinding/holdfast-exporter",
        "roleRef name",
        "cluster-admin",
        "HF420",
    ),
)
IGNORED = (
    "spec: {podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: TYPE, status:"
    " STATUS}]}]}}"
)
SPOT_CLASS = (
    "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: spot}\nglobalDefault:"
    " true\n"
)
ACCOUNT = (
    "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, annotations:"
    " {iam.gke.io/gcp-service-account: ann@acme.example}}\n"
)
IDENTITY = "iam.gke.io/gcp-service-account"
SINGLE = (
    ("container", pre_stop("/bin/sleep", "90s"), "HF103"),
    ("container", pre_stop("sleep", "14"), "HF103"),
    ("container", pre_stop("sh", "-c", "sleep 2m"), "HF103"),
    ("container", pre_stop("sh", "-c", "sleep infinity"), "HF103"),
    ("container", pre_stop("python", "-c", "import time; time.sleep(90)"), "HF103"),
    ("container", pre_stop("sh", "-c", "while [ ! -f /tmp/saved ]; do sleep 1; done"), "HF103"),
    ("container", pre_stop("/bin/sh", "-c", "python save_checkpoint.py"), "HF108"),
    ("container", pre_stop("gcloud", "storage", "cp", "-r", "/scratch", "gs://b"), "HF108"),
    ("container", bash("function bye { exit 0; }\ntrap bye SIGTERM EXIT\npython t.py"), "HF105"),
    ("container", bash("trap 'echo bye; exit' TERM; python t.py & wait"), "HF105"),
    (
        "container",
        bash('trap "kill -TERM $PID; exit 0" SIGINT SIGTERM; python t.py & PID=$!; wait'),
        "HF105",
    ),
    ("container", bash("trap '' TERM; exec python t.py"), "HF106"),
    ("job", IGNORED.replace("TYPE", "DisruptedTarget").replace("STATUS", '"True"'), "HF110"),
    ("job", IGNORED.replace("TYPE", "DisruptionTarget").replace("STATUS", '"False"'), "HF110"),
    ("job", "spec: {activeDeadlineSeconds: 0}", "HF118"),
    (
        "job",
        (
            "spec: {parallelism: 4, completions: 3, template: {spec: {containers: [{name: m, image:"
            " a, command: [torchrun, --nnodes=4]}]}}}"
        ),
        "HF122",
    ),
    ("container", "command: [torchrun, --nnodes, '4', t.py]", "HF122"),
    ("container", "command: [python, -m, holdfast, train, run, --run, $(RUN)]", "HF121"),
    ("flex-pod", "nodeSelector: {cloud.google.com/gke-max-run-duration-seconds: 7d}", "HF016"),
    (
        "job-pod",
        (
            "tolerations: [{key: provisioning-tier, operator: Equal, value: preemptible, effect:"
            " NoExecute}]"
        ),
        "HF001",
    ),
    (
        "job-pod",
        (
            "terminationGracePeriodSeconds: 25\nnodeSelector: {holdfast.dev/pool-class: null,"
            " cloud.google.com/gke-sopt: 'true'}"
        ),
        "HF101",
    ),
    ("job-pod", "tolerations: [{operator: Equal, value: preemptible}]", "HF022"),
    ("job-pod", "tolerations: [{important: spot, effect: NoSchedule}]", "HF022"),
    ("container", "command: [python, t.py, --checkpoints=./out]", "HF201"),
    ("container", "command: [python, t.py, --checkpoint-dir, ~/out]", "HF201"),
    ("container", "command: [python, t.py, --output_dir, /out]", "HF201"),
    ("container", "env: [{name: CHECKPOINT_PATH, value: ./out}]", "HF201"),
    (
        "job-template",
        (
            "metadata: {annotations: {gke-gcsfuse/volumes: 'false'}}\nspec: {volumes: [{name: d,"
            " csi: {driver: gcsfuse.csi.storage.gke.io}}]}"
        ),
        "HF204",
    ),
    (
        "job-template",
        f"metadata: {{annotations: {{{IDENTITY}: a@b.iam.gserviceaccount.com}}}}",
        "HF418",
    ),
    ("", ACCOUNT, "HF418"),
    ("", SPOT_CLASS, "HF304"),
)

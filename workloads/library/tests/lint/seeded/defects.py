"""Defects of the linter's own field, each one change of a file that is clean: eviction, windows, queues, placement,
storage, identity, serving.

The changes were written before the rules were run on them. `of` names the line after which the change is made, so that
a defect reads like the diff of a pull request. It counts as found by any of `rules`. Defects of retired rules are gone.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from holdfast.lint.engine import File, read_text
from workloads.library.tests.lint.seeded.rendered import found_by

FOLDER = Path(__file__).parent
TRAIN, GANG, NIGHTLY = "  name: finetune\n", "  name: pretrain\n", "  name: nightly-eval\n"
BASE, SPOT, CLASS = "  name: chat-base\n", "  name: chat-spot\n", "  name: l4-anyhow\n"
COMMAND = "command: [torchrun, --nnodes=4, --nproc-per-node=1, finetune.py]"
MAIN = "        - name: trainer\n"
GRACE = "terminationGracePeriodSeconds: 15"
FOLDER_OPTION = "--checkpoint-dir, gs://acme-checkpoints/finetune"
PLACED = """\
terminationGracePeriodSeconds: 15
      securityContext:
        runAsNonRoot: true
        runAsUser: 1000
        seccompProfile:
          type: RuntimeDefault
      nodeSelector:
        cloud.google.com/gke-spot: "true"
        holdfast.dev/pool-class: spot-l4
"""
RULES_OF_JOB = """\
      - action: Ignore
        onPodConditions:
          - type: DisruptionTarget
            status: "True"
"""


@dataclass(frozen=True, kw_only=True)
class Defect:
    name: str
    of: str
    old: str
    new: str
    rules: tuple[str, ...]
    file: str = "clean"

    def text(self) -> str:
        before, at, rest = (FOLDER / f"{self.file}.yaml").read_text().partition(self.of)
        assert at and self.old in rest, self.name
        return before + at + rest.replace(self.old, self.new, 1)

    def found(self) -> set[str]:
        files = [_read(f"{self.file}.yaml", document) for document in self.text().split("\n---\n")]
        return found_by(self.rules, files)


@cache
def _read(name: str, document: str) -> File:
    """One document as if it were all of the file: of each defect all but one are read already."""
    return read_text(name, document)


def _train(name: str, old: str, new: str, *rules: str, of: str = TRAIN) -> Defect:
    return Defect(name=name, of=of, old=old, new=new, rules=rules)


def _hook(name: str, command: str, *rules: str) -> Defect:
    hook = f"{MAIN}          lifecycle: {{preStop: {{exec: {{command: {command}}}}}}}\n"
    return _train(name, MAIN, hook, *rules)


def _serve(name: str, of: str, old: str, new: str, *rules: str) -> Defect:
    return Defect(name=name, of=of, old=old, new=new, rules=rules, file="serving")


def _trap(name: str, script: str, *rules: str) -> Defect:
    return _train(name, COMMAND, f"command: [bash, -c, {script!r}]", *rules)


EVICTION = (
    _hook("preStop sleeps in minutes", "[sh, -c, sleep 2m]", "HF103"),
    _hook("preStop sleeps in Python", '[python, -c, "import time; time.sleep(90)"]', "HF103"),
    _hook("preStop sleeps without a shell", '[sleep, "14"]', "HF103"),
    _hook("preStop sleeps after something else", '[bash, -c, "date; /usr/bin/sleep 30 && true"]', "HF103"),
    _hook("preStop loops on sleeps", '[sh, -c, "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 3; done"]', "HF103"),
    _hook("preStop waits for a file", '[sh, -c, "while [ ! -f /tmp/saved ]; do sleep 1; done"]', "HF103"),
    _hook("preStop saves", "[python, save_checkpoint.py]", "HF108"),
    _hook("preStop uploads", '[sh, -c, "gsutil -m rsync -r /scratch/model gs://acme-checkpoints/finetune"]', "HF108"),
    _hook("preStop uploads with gcloud", '[gcloud, storage, cp, -r, /scratch/out, "gs://acme-checkpoints"]', "HF108"),
    _train("native preStop sleep", MAIN, f"{MAIN}          lifecycle: {{preStop: {{sleep: {{seconds: 12}}}}}}\n", "HF103"),
    _trap("trap function exits 0", "cleanup() { cp -r out /scratch; exit 0; }; trap cleanup TERM; python finetune.py", "HF105"),
    _trap("trap exits without a code", "trap 'echo bye; exit' TERM; python finetune.py & wait", "HF105"),
    _trap("trap by number", "trap 'exit 0' 15; python finetune.py & wait $!", "HF105"),
    _trap("trap of two signals", "trap \"kill -TERM $PID; exit 0\" SIGINT SIGTERM; python finetune.py & PID=$!; wait", "HF105"),
    _trap("shell swallows the signal", "python prepare.py && python finetune.py", "HF106"),
    _trap("failure of the program becomes success", "python finetune.py || true", "HF109"),
    _trap("TERM is ignored", "trap '' TERM; exec python finetune.py", "HF106"),
    _train("grace above the window", GRACE, "terminationGracePeriodSeconds: 25", "HF101"),
    _train("grace of minutes", GRACE, "terminationGracePeriodSeconds: 300", "HF101"),
    _train("grace not stated", f"      {GRACE}\n", "", "HF102"),
    _train("grace hidden behind a typo of the pool", PLACED, PLACED.replace("15", "25").replace("spot-l4", "spot-l44"), "HF101"),
    _train("grace hidden behind a typo of the selector", PLACED, PLACED.replace("15", "25").replace("gke-spot", "gke-sopt"), "HF101"),
    _train("window of the variable", "          env:\n", '          env:\n            - {name: HOLDFAST_WINDOW_SECONDS, value: "25"}\n', "HF107"),
    _train("safe-to-evict believed", 'gke-gcsfuse/volumes: "true"', 'gke-gcsfuse/volumes: "true"\n        cluster-autoscaler.kubernetes.io/safe-to-evict: "false"', "HF104"),
    _train("disruptions count", f"  podFailurePolicy:\n    rules:\n{RULES_OF_JOB}", "  podFailurePolicy:\n    rules:\n", "HF110"),
    _train("FailJob before Ignore", RULES_OF_JOB, "      - action: FailJob\n        onExitCodes:\n          operator: In\n          values: [3]\n" + RULES_OF_JOB, "HF111"),
    _train("FailJob on 143", "values: [2, 70]", "values: [2, 70, 143]", "HF115"),
    _train("FailJob on everything but 0", "operator: In\n          values: [2, 70]", "operator: NotIn\n          values: [0]", "HF115"),
    _train("restart in place", "restartPolicy: Never", "restartPolicy: OnFailure", "HF112", "HF113"),
    _train("one back-off for all", "backoffLimitPerIndex: 2", "backoffLimit: 2", "HF114"),
    _train("DisruptionTarget misspelt", "type: DisruptionTarget", "type: DisruptedTarget", "HF110"),
    _train("the condition's status is False", 'status: "True"', 'status: "False"', "HF110", "HF111"),
    _train("JobSet counts evictions", "RestartJobSetAndIgnoreMaxRestarts", "RestartJobSet", "HF116", of=GANG),
    _train("JobSet's child ignores evictions", "action: FailJob", "action: Ignore", "HF116", of=GANG),
    _train("nightly job on flex without a policy", "          - action: Ignore\n", "          - action: Count\n", "HF110", of=NIGHTLY),
)  # fmt: skip
QUEUES = (
    _train("LocalQueue to no ClusterQueue", "clusterQueue: team-a", "clusterQueue: team-b", "HF309", of="kind: LocalQueue\n"),
    _train("flavor that nobody made", "- name: l4-spot", "- name: spot-l4", "HF310", of="kind: ClusterQueue\n"),
    _train("quota below the gang", "nominalQuota: 8", "nominalQuota: 2", "HF311", of="kind: ClusterQueue\n"),
    _train("CPU quota below the gang", "nominalQuota: 64", "nominalQuota: 8", "HF311", of="kind: ClusterQueue\n"),
    _train("memory quota below the gang", "nominalQuota: 256Gi", "nominalQuota: 32Gi", "HF311", of="kind: ClusterQueue\n"),
    _train("quota of no GPU", "nominalQuota: 8", "nominalQuota: 0", "HF311", of="kind: ClusterQueue\n"),
    _train("quota above all there is", "nominalQuota: 8", "nominalQuota: 800", "HF307", of="kind: ClusterQueue\n"),
    _train("queue name misspelt", "queue-name: team-a", "queue-name: team_a", "HF306"),
    _train("queue of another namespace", "  namespace: team-a\nspec:\n  clusterQueue", "  namespace: team-b\nspec:\n  clusterQueue", "HF306", of="kind: LocalQueue\n"),
    _train("flavor's label is on no pool", "holdfast.dev/pool-class: spot-l4", "holdfast.dev/pool-class: spot-l40", "HF312", of="kind: ResourceFlavor\n"),
    _train("priority class of nobody", "spot-workload-low", "spot-workload-lowest", "HF301"),
    _train("Spot work pushes others out", "spot-workload-low", "serving", "HF302"),
    _train("Spot work without a class", "      priorityClassName: spot-workload-low\n", "", "HF303"),
    _serve("class for Spot above zero", "  name: team-b-spot\n", "value: -50", "value: 50", "HF305"),
    _serve("class above the system", "kind: PriorityClass\n", "value: -50", "value: 900000000", "HF304"),
    _serve("class for all", "kind: PriorityClass\n", "value: -50", "value: -50\nglobalDefault: true", "HF304"),
)  # fmt: skip
SELECTOR = '        cloud.google.com/gke-spot: "true"\n        holdfast.dev/pool-class: spot-l4\n'
TAINT = """\
        - key: provisioning-tier
          operator: Equal
          value: preemptible
          effect: NoSchedule
"""
PLACEMENT = (
    _train("taint's value", "value: preemptible", "value: spot", "HF001"),
    _train("taint's effect", "effect: NoSchedule", "effect: NoExecute", "HF001", of="          value: preemptible\n"),
    _train("taint's key", "key: provisioning-tier", "key: provisioning_tier", "HF002"),
    _train("toleration of Spot left out", TAINT, "", "HF004"),
    _train("tolerated, not selected", SELECTOR, "        cloud.google.com/gke-accelerator: nvidia-l4\n", "HF005"),
    _train("pool class misspelt", "pool-class: spot-l4", "pool-class: spot-L4", "HF003"),
    _train("Exists with a value", "operator: Exists\n", "operator: Exists\n          value: present\n", "HF022"),
    _train("Spot and flex-start", SELECTOR, SELECTOR + '        cloud.google.com/gke-flex-start: "true"\n', "HF013"),
    _train("zone where no pool stands", SELECTOR, SELECTOR + "        topology.kubernetes.io/zone: us-central1-f\n", "HF021", "HF003"),
    _train("more GPUs than a node", 'nvidia.com/gpu: "1"', 'nvidia.com/gpu: "4"', "HF031"),
    _train("GPU pool without a GPU", '              nvidia.com/gpu: "1"\n', "", "HF033"),
    _train("more memory than a machine", "memory: 24Gi", "memory: 240Gi", "HF020"),
    _train("more CPU than a machine", 'cpu: "6"', 'cpu: "96"', "HF020"),
    _train("four nodes, two pods", "parallelism: 4", "parallelism: 2", "HF122"),
    _train("eight nodes, four pods", "--nnodes=4", "--nnodes=8", "HF122"),
    _train("parallelism without completions", "completions: 4\n", "completions: 3\n", "HF122"),
    _train("gang of --nodes 4 with two pods", '--nodes, "2"', '--nodes, "4"', "HF122", of=GANG),
    _train("all indices with one run", COMMAND, "command: [python, -m, holdfast, train, run, --run, sweep]", "HF121"),
    _train("all indices with one run, by env", COMMAND + "\n", "command: [python, -m, holdfast, train, run, --run, $(RUN)]\n", "HF121"),
    _train("flex's run in days", '"14400"', '"7d"', "HF016", of=NIGHTLY),
    _train("flex's run of a month", '"14400"', '"2592000"', "HF016", of=NIGHTLY),
    _train("flex's job outlives its node", "activeDeadlineSeconds: 7200", "activeDeadlineSeconds: 86400", "HF017", of=NIGHTLY),
    _train("flex's selector says yes", 'gke-flex-start: "true"', 'gke-flex-start: "yes"', "HF011", of=NIGHTLY),
    _train("accelerator of another cloud", "nvidia-tesla-a100", "nvidia-a100", "HF035", "HF003", of=NIGHTLY),
    _train("driver left to chance", "            cloud.google.com/gke-gpu-driver-version: latest\n", "", "HF036", of=NIGHTLY),
    _train("may run for ever", "  activeDeadlineSeconds: 172800\n", "", "HF118"),
    _train("deadline of zero", "activeDeadlineSeconds: 172800", "activeDeadlineSeconds: 0", "HF118"),
    _serve("class of Spot alone", CLASS, "    - machineType: g2-standard-8\n      spot: false\n      gpu:\n        type: nvidia-l4\n        count: 1\n        driverVersion: latest\n", "", "HF323"),
    _serve("class's GPUs are another machine's", CLASS, "count: 1", "count: 2", "HF320"),
    _serve("class's old driver", CLASS, "driverVersion: latest", "driverVersion: default", "HF326"),
)  # fmt: skip
STORAGE = (
    _train("FUSE annotation missing with a claim", '        gke-gcsfuse/volumes: "true"\n', "        team: a\n", "HF204"),
    _train("FUSE annotation says no", 'gke-gcsfuse/volumes: "true"', 'gke-gcsfuse/volumes: "false"', "HF204"),
    _train("relative checkpoint path", FOLDER_OPTION, "--checkpoint-dir, checkpoints", "HF201"),
    _train("relative checkpoint path with dots", FOLDER_OPTION, "--checkpoint-dir=./out/ckpt", "HF201"),
    _train("checkpoints in the home folder", FOLDER_OPTION, "--checkpoint-dir, ~/checkpoints", "HF201"),
    _train("checkpoints in the container", FOLDER_OPTION, "--checkpoint-dir, /workspace/checkpoints", "HF201"),
    _train("checkpoints in an emptyDir", FOLDER_OPTION, "--checkpoint-dir, /scratch/checkpoints", "HF201"),
    _train("Hugging Face's output folder in an emptyDir", FOLDER_OPTION, "--output_dir, /scratch/out", "HF201"),
    _train("checkpoints by env, relative", "          env:\n", "          env:\n            - {name: CHECKPOINT_DIR, value: ./checkpoints}\n", "HF201"),
    _train("checkpoints by env, on the node", "          env:\n", "          env:\n            - {name: CHECKPOINT_PATH, value: /mnt/disks/ssd0}\n", "HF201"),
    _train("checkpoints through FUSE", FOLDER_OPTION, "--checkpoint-dir, /corpus/checkpoints", "HF202"),
    _train("scratch above the limit", "sizeLimit: 20Gi", "sizeLimit: 200Gi", "HF207"),
    _train("one disk for four pods", "[ReadOnlyMany]\n  storageClassName: \"\"\n  volumeName", "[ReadWriteOnce]\n  storageClassName: \"\"\n  volumeName", "HF203", of="kind: PersistentVolumeClaim\n"),
)  # fmt: skip
IDENTITY = (
    _train("annotation's key", "gcp-service-account", "gcp-serviceaccount", "HF418", of="kind: ServiceAccount\n"),
    _train("annotation's value", "team-a-trainer@acme-ai-platform.iam.gserviceaccount.com", "team-a-trainer", "HF418", of="kind: ServiceAccount\n"),
    _train("annotation of a person", "team-a-trainer@acme-ai-platform.iam.gserviceaccount.com", "ann@acme.example", "HF418", of="kind: ServiceAccount\n"),
    _train("annotation on the pod", 'gke-gcsfuse/volumes: "true"', 'gke-gcsfuse/volumes: "true"\n        iam.gke.io/gcp-service-account: t@acme-ai-platform.iam.gserviceaccount.com', "HF418"),
    _train("binding of another namespace", "    namespace: team-a\n", "    namespace: team-b\n", "HF417", of="subjects:\n"),
    _train("secret as a value", "              valueFrom:\n                secretKeyRef:\n                  name: hub\n                  key: token\n", "              value: hf_0123456789\n", "HF416"),
    _train("code of the model", "--data, /corpus", "--data, /corpus, --trust_remote_code", "HF415"),
)  # fmt: skip
READY = """\
          readinessProbe:
            httpGet:
              path: /v2/health/ready
              port: 8000
            periodSeconds: 1
            failureThreshold: 1
"""
SERVING = (
    _serve("no readiness on Spot", SPOT, READY, "", "HF140"),
    _serve("slow readiness on Spot", SPOT, "periodSeconds: 1", "periodSeconds: 10", "HF140"),
    _serve("readiness by exec", SPOT, "            httpGet:\n              path: /v2/health/ready\n              port: 8000\n", "            exec:\n              command: [cat, /ready]\n", "HF141"),
    _serve("long requests on Spot", SPOT, '"4"', '"60"', "HF142"),
    _serve("load balancer to Spot", "  name: chat\n", "  ports:\n", "  type: LoadBalancer\n  ports:\n", "HF143"),
    _serve("overflow of nobody", SPOT, "overflow-of: chat-base", "overflow-of: chat", "HF146"),
    _serve("base on Spot", BASE, "pool-class: serving", "pool-class: spot-l4", "HF004", "HF146"),
    _serve("vLLM drops at SIGTERM", SPOT, 'command: [python, -m, holdfast, serve, run, --longest-request, "4"]', "command: [vllm, serve, acme/model]", "HF145"),
    _serve("sidecar that never restarts", SPOT, "      containers:\n", "      initContainers: [{name: proxy, image: registry.example/proxy@sha256:" + "6" * 64 + ", startupProbe: {tcpSocket: {port: 9}}, resources: {limits: {cpu: 1, memory: 1Gi}}}]\n      containers:\n", "HF506"),
)  # fmt: skip
TOPICS: dict[str, tuple[Defect, ...]] = {
    "eviction": EVICTION,
    "queues": QUEUES,
    "placement": PLACEMENT,
    "storage": STORAGE,
    "identity": IDENTITY,
    "serving": SERVING,
}

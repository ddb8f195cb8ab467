"""Tests that correct manifests, as other projects write them, raise no finding."""

from textwrap import indent

import pytest

from holdfast.lint.engine import Options, lint_texts
from holdfast.lint.finding import Severity
from workloads.library.tests.lint.defects import find_rules

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec: {template: {spec: {containers: [{name: main, image: train}]}}}
"""
JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train}
spec:
  replicatedJobs:
  - name: workers
    template: {spec: {template: {spec: {containers: [{name: main, image: train}]}}}}
"""
LEADER_WORKER_SET = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: vllm}
spec:
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      metadata: {labels: {role: leader}}
      spec: {containers: [{name: main, image: vllm}]}
    workerTemplate: {spec: {containers: [{name: main, image: vllm}]}}
"""
STATEFUL_SET = """\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: main, image: db}]}
"""


def service(selector: str) -> str:
    head = "---\napiVersion: v1\nkind: Service\nmetadata: {name: peers}\n"
    return f"{head}spec: {{selector: {{{selector}}}, ports: [{{port: 80}}]}}\n"


@pytest.mark.parametrize(
    ("workload", "selector", "is_found"),
    [
        (JOB, "job-name: train", False),
        (JOB, "batch.kubernetes.io/job-name: train", False),
        (JOB, "batch.kubernetes.io/controller-uid: a", False),
        (JOBSET, "jobset.sigs.k8s.io/jobset-name: train", False),
        (JOBSET, "jobset.sigs.k8s.io/replicatedjob-name: workers", False),
        (JOBSET, "jobset.sigs.k8s.io/job-index: '0'", False),
        (LEADER_WORKER_SET, "leaderworkerset.sigs.k8s.io/name: vllm, role: leader", False),
        (LEADER_WORKER_SET, "any.example/label: a", False),
        (STATEFUL_SET, "statefulset.kubernetes.io/pod-name: db-0", False),
        (JOB, "job-name: trian", True),
        (JOB, "app: train", True),
        (JOBSET, "jobset.sigs.k8s.io/jobset-name: trian", True),
        (STATEFUL_SET, "app: db2", True),
        (STATEFUL_SET, "statefulset.kubernetes.io/pod-name: db-0, app: db2", True),
    ],
)
def test_selectors_may_name_controller_labels(workload: str, selector: str, is_found: bool) -> None:
    assert ("HF148" in find_rules(workload + service(selector))) is is_found


def local_queue(name: str, namespace: str) -> str:
    place = f", namespace: {namespace}" if namespace else ""
    head = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: LocalQueue\n"
    return f"{head}metadata: {{name: {name}{place}}}\nspec: {{clusterQueue: all}}\n---\n"


@pytest.mark.parametrize(
    ("queues", "namespace", "is_found"),
    [
        ((("users", "default"),), "", False),
        ((("users", ""),), "default", False),
        ((("users", "default"), ("others", "")), "", False),
        # `kubectl apply --namespace team` creates it there.
        ((("users", "team"), ("others", "default")), "", False),
        ((("others", "default"),), "", True),
        ((("others", ""),), "default", True),
        ((("users", "default"),), "team", True),
    ],
)
def test_objects_without_a_namespace_are_in_default(
    queues: tuple[tuple[str, str], ...], namespace: str, is_found: bool
) -> None:
    place = f", namespace: {namespace}" if namespace else ""
    job = JOB.replace(
        "{name: train}", f"{{name: train{place}, labels: {{kueue.x-k8s.io/queue-name: users}}}}", 1
    )
    text = "".join(local_queue(*queue) for queue in queues)
    assert ("HF306" in find_rules(text + job)) is is_found


DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}, annotations: {gke-gcsfuse/volumes: "true"}}
    spec:
      containers:
      - name: main
        image: server
        args: [--checkpoint-path, /weights/checkpoints]
        volumeMounts: [{name: weights, mountPath: /weights}]
        PROBE
      volumes: [{name: weights, VOLUME}]
"""
READY = "readinessProbe: {httpGet: {path: /health, port: 8080}}"
BUCKET = "csi: {driver: gcsfuse.csi.storage.gke.io, volumeAttributes: {bucketName: b}}"
READ_ONLY_CLAIM = """\
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: weights}
spec: {csi: {driver: gcsfuse.csi.storage.gke.io, volumeHandle: b}, accessModes: [ReadOnlyMany]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: weights}
spec: {volumeName: weights, accessModes: [ReadOnlyMany]}
"""


@pytest.mark.parametrize("volume", [BUCKET, "emptyDir: {}", "hostPath: {path: /var/weights}"])
@pytest.mark.parametrize("kind", ["probed", "behind a Service", "neither"])
def test_servers_read_weights(volume: str, kind: str) -> None:
    text = DEPLOYMENT.replace("VOLUME", volume)
    text = text.replace("PROBE", READY if kind == "probed" else "tty: false")
    if kind == "behind a Service":
        text += service("app: server")
    rules = find_rules(text) & {"HF201", "HF202"}
    assert bool(rules) is (kind == "neither")


@pytest.mark.parametrize(
    ("mount", "volume", "more", "is_found"),
    [
        ("readOnly: true", "emptyDir: {}", "", False),
        ("readOnly: true", BUCKET, "", False),
        ("readOnly: false", BUCKET.replace("{driver", "{readOnly: true, driver"), "", False),
        ("readOnly: false", "persistentVolumeClaim: {claimName: weights}", READ_ONLY_CLAIM, False),
        (
            "readOnly: false",
            "persistentVolumeClaim: {claimName: weights, readOnly: true}",
            READ_ONLY_CLAIM.replace("ReadOnlyMany", "ReadWriteMany"),
            False,
        ),
        ("readOnly: false", BUCKET, "", True),
        ("readOnly: false", "emptyDir: {}", "", True),
        (
            "readOnly: false",
            "persistentVolumeClaim: {claimName: weights}",
            READ_ONLY_CLAIM.replace("ReadOnlyMany", "ReadWriteMany"),
            True,
        ),
    ],
)
def test_nothing_is_written_to_a_read_only_mount(
    mount: str, volume: str, more: str, is_found: bool
) -> None:
    text = DEPLOYMENT.replace("VOLUME", volume).replace("PROBE", "tty: false") + more
    text = text.replace("mountPath: /weights", f"mountPath: /weights, {mount}")
    assert bool(find_rules(text) & {"HF201", "HF202"}) is is_found


def test_labels_that_no_pool_has_together_are_all_named() -> None:
    selector = "holdfast.dev/pool-class: spot-l4, holdfast.dev/role: system"
    spec = f"{{nodeSelector: {{{selector}}}, containers: [{{name: main, image: a}}]}}"
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {spec}\n"
    findings = lint_texts({"a.yaml": text}, Options()).active
    (message,) = [finding.message for finding in findings if finding.rule == "HF003"]
    assert message == (
        "holdfast.dev/pool-class=spot-l4 and holdfast.dev/role=system match no pool together"
    )


INDEXED_JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: research}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  template:
    metadata: {annotations: {note: a}}
    spec:
      restartPolicy: Never
      containers:
"""
WORKERS = INDEXED_JOB.replace("  completionMode: Indexed\n  completions: 2\n", "")
ON_A_GPU = "resources: {limits: {nvidia.com/gpu: 1}}"
SIDECAR = f"""\
      - {{name: main, image: train, command: [python, t.py], {ON_A_GPU}}}
      - {{name: upload, image: upload, command: [sh, -c, SCRIPT]}}
"""
SYNC = "while true; do rsync /logs gs://logs; sleep 60; done"
LOOP = "while true; do [ -f /logs/done ] && exit 0; sleep 5; done"
POD_NAME = "env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]"
FILE_VARIABLE = "      - {name: main, image: a, env: [{name: NAME, value: PLACE}]}\n"
SERVER = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: server, namespace: web}
spec:
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec:
      SELECTOR
      containers:
      - name: main
        image: IMAGE
        ports: [{containerPort: 8000}]
        FIELDS
"""


def run_words(words: str, fields: str = "tty: false") -> str:
    return f"      - {{name: main, image: a, command: [python, -m, score, {words}], {fields}}}\n"


def write_file_variable(name: str, file: str) -> str:
    return INDEXED_JOB + FILE_VARIABLE.replace("NAME", name).replace("PLACE", file)


def write_sidecar(script: str) -> str:
    return INDEXED_JOB + SIDECAR.replace("SCRIPT", f"'{script}'")


def write_server(fields: str, image: str = "a", selector: str = "hostNetwork: false") -> str:
    text = SERVER.replace("IMAGE", image).replace("SELECTOR", selector)
    return text.replace("FIELDS", fields)


def serve_model(model: str, gpu: str) -> str:
    return write_server(
        f"args: [--model={model}, --port=8000]\n        {ON_A_GPU}",
        "vllm/vllm-openai:v0.10.2",
        f"nodeSelector: {{cloud.google.com/gke-accelerator: {gpu}}}",
    )


def write_bucket(options: str) -> str:
    volume = BUCKET.replace("bucketName: b", f"bucketName: b, mountOptions: '{options}'")
    return DEPLOYMENT.replace("VOLUME", volume).replace("PROBE", "tty: false")


def write_health_check(path: str, image: str) -> str:
    target = "targetRef: {group: '', kind: Service, name: peers}"
    check = f"config: {{type: HTTP, httpHealthCheck: {{requestPath: {path}}}}}"
    policy = f"""\
---
apiVersion: networking.gke.io/v1
kind: HealthCheckPolicy
metadata: {{name: peers, namespace: web}}
spec: {{default: {{{check}}}, {target}}}
"""
    peers = service("app: server").replace("name: peers", "name: peers, namespace: web")
    return write_server("tty: false", image) + peers + policy


def write_role(resource: str) -> str:
    fields = "resourceNames: [trainer], verbs: [create]"
    rules = f"[{{apiGroups: [''], resources: [{resource}], {fields}}}]"
    head = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n"
    return f"{head}metadata: {{name: starts, namespace: research}}\nrules: {rules}\n"


def write_redis(volume: str) -> str:
    mounts = "volumeMounts: [{name: files, mountPath: /mnt/files}]"
    return write_server(mounts, "redis:7", f"volumes: [{{name: files, {volume}}}]")


def write_settings(setting: str) -> str:
    mounts = "{name: config, mountPath: /etc/train}, {name: runs, mountPath: /runs}"
    pod = INDEXED_JOB + f"      - {{name: main, image: a, volumeMounts: [{mounts}]}}\n"
    volumes = "[{name: config, configMap: {name: train}}, {name: runs, nfs: {path: /, server: a}}]"
    pod += f"      volumes: {volumes}\n"
    head = "---\napiVersion: v1\nkind: ConfigMap\n"
    metadata = "metadata: {name: train, namespace: research}\n"
    return f"{pod}{head}{metadata}data: {{train.yaml: '{setting}'}}\n"


def write_variables(**values: str) -> str:
    pairs = [f"{{name: {name}, value: '{value}'}}" for name, value in values.items()]
    return write_server(f"env: [{', '.join(pairs)}]")


def write_proxy(options: str, port: int) -> str:
    variables = f"{{name: DB_HOST, value: 127.0.0.1}}, {{name: DB_PORT, value: '{port}'}}"
    proxy = f"      - {{name: sql, image: cloud-sql-proxy, args: [{options}, 'p:r:db']}}\n"
    return write_server(f"env: [{variables}]") + proxy


def write_schedule(schedule: str) -> str:
    head = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: a}\n"
    pod = "{spec: {restartPolicy: Never, containers: [{name: main, image: a}]}}"
    return f"{head}spec: {{schedule: '{schedule}', jobTemplate: {{spec: {{template: {pod}}}}}}}\n"


HIDDEN = "      - {{name: main, image: a, volumeMounts: [{{name: tools, mountPath: {}}}]}}\n"
PER_POD = run_words("'--output=gs://out/$(POD_NAME).jsonl'", POD_NAME)
TRITON = "nvcr.io/nvidia/tritonserver:24.08-py3"
RUN_BY_HOST = run_words("--run-dir, '/runs/$(HOSTNAME)'")
PROXY = "      - {name: sql, image: cloud-sql-proxy, args: [--port=5432]}\n"
DATABASE = write_server("args: [--host=127.0.0.1, --port=5432]")
FIXED_PORT = "env: [{name: NAME, value: '0.0.0.0:8000'}]"
ARM = "tolerations: [{key: kubernetes.io/arch, value: arm64, effect: NoSchedule}]"
ONE_AFTER_THE_OTHER = """\
apiVersion: v1
kind: ResourceQuota
metadata: {name: research, namespace: research}
spec: {hard: {requests.cpu: '10'}}
"""
EIGHT_CORES = "      - {name: main, image: a, resources: {requests: {cpu: 4}}}\n"


def write_jobs(*names: str) -> str:
    jobs = [INDEXED_JOB.replace("name: train", f"name: {name}") + EIGHT_CORES for name in names]
    return "---\n".join([*jobs, ONE_AFTER_THE_OTHER])


@pytest.mark.parametrize(
    ("rule", "text", "is_found"),
    [
        ("HF467", write_server("command: [gunicorn, -c, /g.py, 'a:app']"), False),
        ("HF467", write_server("command: [gunicorn, 'a:app']"), True),
        ("HF467", write_server("command: [flask, run]\n        " + FIXED_PORT), True),
        (
            "HF467",
            write_server(
                "command: [flask, run]\n        " + FIXED_PORT.replace("NAME", "FLASK_RUN_HOST")
            ),
            False,
        ),
        (
            "HF467",
            write_server(FIXED_PORT.replace("NAME", "OLLAMA_HOST"), "ollama/ollama:0.9.0"),
            False,
        ),
        ("HF467", DATABASE, True),
        ("HF467", DATABASE + PROXY, False),
        ("HF210", write_bucket("implicit-dirs,stat-cache-max-size-mb=-1"), False),
        ("HF210", write_bucket("max-idle-conns-per-host=100"), False),
        ("HF210", write_bucket("enable-streaming-reads"), False),
        ("HF210", write_bucket("implicit-dir"), True),
        ("HF210", write_bucket("implicit_dirs"), True),
        ("HF632", write_health_check("/", "ollama/ollama:0.9.0"), False),
        ("HF632", write_health_check("/v2/models/bert/ready", TRITON), False),
        ("HF632", write_health_check("/v2/health/readyz", TRITON), True),
        ("HF438", write_role("serviceaccounts/token"), False),
        ("HF438", write_role("serviceaccounts"), True),
        (
            "HF465",
            INDEXED_JOB + run_words("'--coordinator=train-$(JOB_COMPLETION_INDEX):8476'"),
            False,
        ),
        ("HF465", INDEXED_JOB + run_words("'--out=gs://b/$(JOB_COMPLETION_INDEX)/2024-06'"), False),
        (
            "HF465",
            INDEXED_JOB + run_words("'--rank=$(JOB_COMPLETION_INDEX)', --world-size=16"),
            False,
        ),
        (
            "HF465",
            INDEXED_JOB + run_words("'--seed=$(JOB_COMPLETION_INDEX)', --population=64"),
            False,
        ),
        ("HF465", INDEXED_JOB + run_words("'--shard=$(JOB_COMPLETION_INDEX)/4'"), True),
        ("HF465", INDEXED_JOB + run_words("'--in=/d/$(JOB_COMPLETION_INDEX)-of-4.tar'"), True),
        (
            "HF465",
            INDEXED_JOB + run_words("'--shard=$(JOB_COMPLETION_INDEX)', --num-shards=4"),
            True,
        ),
        ("HF672", write_redis("csi: {driver: secrets-store.csi.k8s.io}"), False),
        ("HF672", write_redis("persistentVolumeClaim: {claimName: redis}"), True),
        ("HF672", write_redis("csi: {driver: parallelstore.csi.storage.gke.io}"), True),
        ("HF692", write_settings("output: /dev/stdout"), False),
        ("HF692", write_settings("run: /usr/bin/train"), False),
        ("HF692", write_settings("output_dir: /run/a7"), True),
        ("HF692", write_settings("checkpoints: /run/a7"), True),
        ("HF467", write_variables(API_HOST="backend", API_PORT="9000"), False),
        ("HF467", write_variables(API_HOST="0.0.0.0", API_PORT="9000"), True),
        ("HF467", write_variables(API_PORT="9000"), True),
        ("HF467", write_server("args: [--host=backend, --port=9000]"), False),
        ("HF467", write_server("args: [--host=0.0.0.0, --port=9000]"), True),
        ("HF467", write_server("args: ['--address=$(LWS_LEADER_ADDRESS):6379']"), False),
        ("HF467", write_server("args: ['--address=[::]:6379']"), True),
        ("HF753", write_proxy("--health-check, --http-port=9801", 5432), False),
        ("HF753", write_proxy("--health-check, --http-port=9801, --port=5432", 5433), True),
        ("HF753", write_proxy("--health-check, --http-port=9801, --port=5432", 5432), False),
        ("HF530", write_schedule("* 8-18 * * 1-5"), False),
        ("HF530", write_schedule("* 2 * * *"), True),
        ("HF561", write_file_variable("KUBECONFIG", "/tmp/kubeconfig"), False),
        ("HF561", write_file_variable("DB_PASSWORD_FILE", "/vault/secrets/db"), False),
        ("HF561", write_file_variable("SPECIAL_TOKEN_FILE", "/app/tokens.txt"), False),
        ("HF561", write_file_variable("HUB_TOKEN_FILE", "/app/token"), True),
        ("HF562", INDEXED_JOB + HIDDEN.format("/opt"), False),
        ("HF562", INDEXED_JOB + HIDDEN.format("/opt/conda"), True),
        ("HF580", serve_model("openai/gpt-oss-120b", "nvidia-h100-80gb"), False),
        ("HF580", serve_model("openai/gpt-oss-20b", "nvidia-l4"), False),
        ("HF580", serve_model("nvidia/Llama-3.3-70B-Instruct-FP4", "nvidia-h100-80gb"), False),
        ("HF580", serve_model("Qwen/Qwen2.5-72B-Instruct", "nvidia-h100-80gb"), True),
        ("HF583", write_server("tty: false", "a:1.4-arm64", ARM), False),
        ("HF583", write_server("tty: false", "a:1.4-arm64"), True),
        (
            "HF583",
            write_server(
                "tty: false",
                "a:1.4-arm64",
                "nodeSelector: {cloud.google.com/machine-family: c4a}",
            ),
            False,
        ),
        ("HF590", write_jobs("a", "b"), False),
        ("HF590", write_jobs("a").replace("cpu: 4", "cpu: 40"), True),
        ("HF620", INDEXED_JOB + RUN_BY_HOST, False),
        ("HF620", WORKERS + RUN_BY_HOST, True),
        ("HF620", WORKERS + PER_POD, False),
        ("HF620", INDEXED_JOB + PER_POD, True),
        ("HF621", write_sidecar(SYNC), True),
        ("HF621", write_sidecar(LOOP), False),
        ("HF622", write_server("args: [--ack-mode=auto]"), False),
        ("HF622", write_server("args: [--ack-mode=none]"), True),
    ],
)
def test_rules_about_programs_know_what_works(rule: str, text: str, is_found: bool) -> None:
    assert (rule in find_rules(text)) is is_found


TWO_SCALERS = """\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: server, namespace: serving}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: KIND, name: server}
  minReplicas: 2
  maxReplicas: 4
  metrics:
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}
---
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: server, namespace: serving}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: server}
  resourcePolicy: {containerPolicies: [{containerName: '*', POLICY}]}
"""


@pytest.mark.parametrize(
    ("kind", "policy", "is_found"),
    [
        ("Deployment", "controlledResources: [cpu]", True),
        ("Deployment", "minAllowed: {cpu: 1}", True),
        ("Deployment", "controlledResources: [memory]", False),
        ("Deployment", "mode: 'Off'", False),
        ("StatefulSet", "controlledResources: [cpu]", False),
    ],
)
def test_two_scalers_may_share_a_workload(kind: str, policy: str, is_found: bool) -> None:
    text = TWO_SCALERS.replace("KIND", kind).replace("POLICY", policy)
    assert ("HF742" in find_rules(text)) is is_found


FILLED = """\
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: research}
spec:
  volumes: [{name: assets, emptyDir: {}}]
  initContainers:
  - name: fetch
    image: tools:1.4
    command: [sh, -c, "gcloud storage cp -r gs://assets/a /assets/tokenizer"]
    volumeMounts: [{name: assets, mountPath: /assets}]
  - name: more
    image: tools:1.4
    command: [sh, -c, "SCRIPT"]
    volumeMounts: [{name: assets, mountPath: /init}]
  containers:
  - name: main
    image: train:1.4
    command: [python, train.py, --tokenizer, /assets/vocabulary]
    volumeMounts: [{name: assets, mountPath: /assets}]
"""


@pytest.mark.parametrize(
    ("script", "is_found"),
    [
        ("python build.py", True),
        ("mkdir -p /init/vocabulary", True),
        ("python build.py --out /init/vocabulary-2", True),
        ("python build.py --out /init/vocabulary", False),
        ("gcloud storage cp gs://a/v.tar /init/vocabulary; tar -C /init/vocabulary -xf v", False),
    ],
)
def test_any_init_container_may_fill_a_folder(script: str, is_found: bool) -> None:
    assert ("HF677" in find_rules(FILLED.replace("SCRIPT", script))) is is_found


SETTINGS = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: research}
spec:
  template:
    spec:
      restartPolicy: Never
      volumes:
      - {name: settings, configMap: {name: settings}}
      - {name: runs, persistentVolumeClaim: {claimName: runs}}
      containers:
      - name: main
        image: train:1.4
        volumeMounts: [{name: settings, mountPath: /etc/train}, {name: runs, mountPath: /runs}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: research}
data:
  train.yaml: |
    VALUE
"""


@pytest.mark.parametrize(
    ("value", "is_found"),
    [
        ("checkpoint_dir: /out", True),
        ('steps: !!int ""', False),
        ("resume: !!bool maybe", False),
        ("start: !!timestamp soon", False),
    ],
)
def test_settings_that_cannot_be_built_end_no_check(value: str, is_found: bool) -> None:
    assert ("HF692" in find_rules(SETTINGS.replace("VALUE", value))) is is_found


@pytest.mark.parametrize(
    ("model", "length", "is_found"),
    [
        ("meta-llama/Llama-2-7b-hf", 8_192, True),
        ("togethercomputer/LLaMA-2-7B-32K", 32_768, False),
        ("togethercomputer/LLaMA-2-7B-32K", 65_536, True),
        ("example/Llama-2-13b-chat-16k", 16_384, False),
        ("example/Llama-2-7b-ultralong", 65_536, False),
        ("microsoft/phi-4", 32_768, True),
        ("microsoft/phi-4-reasoning", 32_768, False),
        ("microsoft/phi-4-reasoning", 65_536, True),
        ("microsoft/Phi-4-multimodal-instruct", 131_072, False),
        ("microsoft/Phi-4-mini-instruct", 65_536, False),
        ("Qwen/Qwen2.5-7B-Instruct-1M", 262_144, False),
    ],
)
def test_models_have_longer_contexts(model: str, length: int, is_found: bool) -> None:
    fields = f"args: [--model={model}, --port=8000, --max-model-len={length}]"
    text = write_server(f"{fields}\n        {ON_A_GPU}", "vllm/vllm-openai:v0.10.2")
    assert ("HF645" in find_rules(text)) is is_found


RAY_CLUSTER = """\
headGroupSpec:
  rayStartParams: {}
  template:
    spec:
      nodeSelector: {cloud.google.com/gke-spot: 'true'}
      containers: [{name: head, image: 'ray:2.9.0'}]
"""
TOLERANT = "gcsFaultToleranceOptions: {redisAddress: 'redis:6379'}\n"


@pytest.mark.parametrize(
    ("kind", "field", "annotation", "is_found"),
    [
        ("RayCluster", "", "note: a", True),
        ("RayCluster", "", "ray.io/ft-enabled: 'false'", True),
        ("RayCluster", "", "ray.io/ft-enabled: 'true'", False),
        ("RayJob", "rayClusterSpec", "note: a", True),
        ("RayService", "rayClusterConfig", "note: a", True),
    ],
)
def test_ray_head_may_recover(kind: str, field: str, annotation: str, is_found: bool) -> None:
    def write(cluster: str) -> str:
        head = f"apiVersion: ray.io/v1\nkind: {kind}\n"
        head += f"metadata: {{name: tune, annotations: {{{annotation}}}}}\nspec:\n"
        head += f"  {field}:\n" if field else ""
        return head + indent(cluster, "    " if field else "  ")

    assert ("HF785" in find_rules(write(RAY_CLUSTER))) is is_found
    assert "HF785" not in find_rules(write(RAY_CLUSTER + TOLERANT))


@pytest.mark.parametrize(
    ("ending", "is_found"),
    [
        ("|| true", True),
        ("|| :", True),
        ("|| :; ls /data", True),
        ("|| echo none; test -f /data/m", False),
        ("|| :none", False),
        ("|| trueish", False),
    ],
)
def test_download_that_may_fail_is_a_warning(ending: str, is_found: bool) -> None:
    command = f"command: [sh, -c, 'gcloud storage cp -r gs://b/m /data {ending}']"
    init = f"initContainers: [{{name: fetch, image: a, {command}}}]"
    text = write_server("tty: false", selector=init)
    findings = lint_texts({"a.yaml": text}, Options()).active
    severities = [finding.severity for finding in findings if finding.rule == "HF775"]
    assert severities == [Severity.WARNING] * is_found


ASKED_SERVER = """\
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: serving, labels: {app: server}}
spec:
  containers:
  - name: server
    image: vllm/vllm-openai:v0.10.2
    args: [--model=/models/qwen, --served-model-name=chat]
---
apiVersion: v1
kind: Service
metadata: {name: chat, namespace: serving}
spec: {selector: {app: server}, ports: [{port: 80, targetPort: 8000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: serving}
spec:
  containers:
  - name: client
    image: registry.example/client:1.4
    env:
    - {name: LLM_MODEL, value: gpt-4o}
    - {name: EMBED_URL, value: 'http://chat/v1'}
"""
OUTSIDE_PROVIDER = "    - {name: LLM_URL, value: 'https://api.provider.example/v1'}\n"


def test_model_at_an_outside_provider_is_not_judged() -> None:
    assert "HF644" in find_rules(ASKED_SERVER)
    assert "HF644" not in find_rules(ASKED_SERVER + OUTSIDE_PROVIDER)

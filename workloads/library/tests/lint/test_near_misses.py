"""Tests pairs of manifests that differ in one point: one has a mistake, the other is correct."""

import pytest

from workloads.library.tests.lint.defects import find_rules

HEAD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: research}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
"""
SERVICE = """\
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: research}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
"""


def write_web(container: str, pod: str = "", after: str = SERVICE) -> str:
    lines = f"      {pod}\n" if pod else ""
    body = f"      containers: [{{name: web, image: 'a:1', {container}}}]\n"
    return HEAD + lines + body + after


def write_client(variable: str) -> str:
    client = HEAD.replace("name: web", "name: client").replace("app: web", "app: client")
    container = f"containers: [{{name: main, image: 'b:1', env: [{variable}]}}]"
    return write_web(HTTP) + f"---\n{client}      {container}\n"


def write_init(command: str) -> str:
    init = f"initContainers: [{{name: wait, image: 'b:1', command: [sh, -c, '{command}']}}]"
    return write_web(HTTP, init)


def write_claim(security: str, mode: str = "ReadWriteOnce") -> str:
    claim = f"""\
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data, namespace: research}}
spec: {{accessModes: [{mode}], resources: {{requests: {{storage: 10Gi}}}}}}
"""
    pod = f"securityContext: {{{security}}}\n      volumes: [{VOLUME}]"
    return write_web("volumeMounts: [{name: data, mountPath: /data}]", pod, claim)


def write_role(resource: str) -> str:
    return f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: reader, namespace: research}}
rules: [{{apiGroups: [''], resources: [{resource}], verbs: [get]}}]
"""


def write_output(option: str, mount: str) -> str:
    fields = f"command: [python, train.py, --save-every=10, {option}], volumeMounts: [{mount}]"
    return write_web(fields, "volumes: [{name: data, configMap: {name: a, optional: true}}]")


def write_hook(command: str) -> str:
    return write_web(f"lifecycle: {{preStop: {{exec: {{command: [sh, -c, '{command}']}}}}}}")


def write_shm(size: str) -> str:
    volumes = f"volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: {size}}}}}]"
    limits = "resources: {limits: {memory: 8Gi, nvidia.com/gpu: 1}}"
    return write_web(f"{limits}, volumeMounts: [{{name: shm, mountPath: /dev/shm}}]", volumes)


def write_external(target: str) -> str:
    external = f"""\
---
apiVersion: external-secrets.io/v1
kind: ExternalSecret
metadata: {{name: keys, namespace: research}}
spec: {{target: {{name: {target}}}, data: []}}
"""
    return write_web("envFrom: [{secretRef: {name: api-keys}}]", after=external)


def write_scaled(max_replicas: int) -> str:
    return f"""\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{name: web, namespace: research}}
spec: {{scaleTargetRef: {{name: web}}, minReplicaCount: 0, maxReplicaCount: {max_replicas}}}
"""


SAFE = "{name: out, mountPath: /out}"
CONFIG = "{name: data, mountPath: /out}"
HTTP = "ports: [{name: http, containerPort: 8080}]"
VOLUME = "{name: data, persistentVolumeClaim: {claimName: data}}"
FETCH = "gcloud storage cp -r gs://b/m "
DEBUG = "command: [app], resources: {limits: {memory: 1Gi}}, "
TWO_PORTS = "ports: [{name: http, containerPort: 8080}, {name: grpc, containerPort: 9000}]"


@pytest.mark.parametrize(
    ("rule", "text", "is_found"),
    [
        # Addresses are compared at the port of their scheme.
        ("HF437", write_client("{name: URL, value: 'http://web/v1'}"), False),
        ("HF437", write_client("{name: URL, value: 'https://web/v1'}"), True),
        ("HF437", write_client("{name: URL, value: 'http://web-svc/v1'}"), True),
        ("HF437", write_client("{name: URL, value: 'http://billing/v1'}"), False),
        ("HF437", write_client("{name: WEB_HOST, value: web}"), False),
        ("HF437", write_client("{name: WEB_HOST, value: web-api}"), True),
        # Init containers wait for others, by any of their names.
        ("HF750", write_init("until nc -z web 80; do sleep 1; done"), True),
        ("HF750", write_init("until nc -z redis 6379; do sleep 1; done"), False),
        ("HF752", write_init("until nc -z web 8080; do sleep 1; done"), True),
        ("HF752", write_init("until nc -z -w 2 web 80; do sleep 1; done"), False),
        ("HF751", write_init("tail -f /dev/null"), True),
        ("HF775", write_init(f"{FETCH} /data || true"), True),
        ("HF775", write_init(f"rm -rf /old || true; {FETCH} /data"), False),
        # Users of new disks.
        ("HF661", write_claim("runAsUser: 1000"), True),
        ("HF661", write_claim("runAsUser: 1000, fsGroup: 1000"), False),
        ("HF661", write_claim("runAsUser: 0"), False),
        ("HF661", write_claim("runAsUser: 1000", "ReadWriteMany"), False),
        # Settings against ports and limits.
        ("HF467", write_web(f"{HTTP}, env: [{{name: PORT, value: '9090'}}]"), True),
        ("HF467", write_web(f"{HTTP}, env: [{{name: PORT, value: '8080'}}]"), False),
        ("HF467", write_web(f"{TWO_PORTS}, args: [--grpc-port=9001]"), True),
        ("HF467", write_web(f"{TWO_PORTS}, args: [--grpc-port=9000]"), False),
        ("HF654", write_web(f"{DEBUG} args: [-Xmx2g]"), True),
        ("HF654", write_web(f"{DEBUG} args: [-Xmx768m]"), False),
        ("HF452", write_web("args: [--graceful-timeout=60]"), True),
        ("HF452", write_web("args: [--graceful-timeout=20]"), False),
        # Probes and hooks.
        ("HF780", write_web("livenessProbe: {exec: {command: [pg_isready, -h, db]}}"), True),
        ("HF780", write_web("livenessProbe: {exec: {command: [pg_isready]}}"), False),
        ("HF641", write_web(f"{TWO_PORTS}, livenessProbe: {{httpGet: {{port: grpc}}}}"), True),
        ("HF641", write_web(f"{TWO_PORTS}, livenessProbe: {{httpGet: {{port: http}}}}"), False),
        # Folders that take no writes, and hooks that leave nothing to drain.
        ("HF211", write_output("--checkpoint-dir=/out/a", CONFIG), True),
        ("HF211", write_output("--checkpoint-dir=/out/a", SAFE), False),
        ("HF211", write_output("--logdir=/out/a", CONFIG), False),
        ("HF452", write_hook("kill -9 1"), True),
        ("HF452", write_hook("kill -TERM 1"), False),
        ("HF468", write_shm("64Mi"), True),
        ("HF468", write_shm("1Gi"), False),
        # Names of resources, hosts and Secrets.
        ("HF438", write_role("pods, pod"), True),
        ("HF438", write_role("pods, pods/logs"), True),
        ("HF438", write_role("pods, pods/log, pods/finalizers"), False),
        ("HF430", write_external("api-key"), True),
        ("HF430", write_external("api-keys"), False),
        ("HF723", write_scaled(0), True),
        ("HF723", write_scaled(4), False),
        ("HF541", write_web(f"{HTTP}, livenessProbe: {{httpGet: {{path: 'http://a/b'}}}}"), True),
        (
            "HF541",
            write_web(f"{HTTP}, livenessProbe: {{httpGet: {{path: /a, port: http}}}}"),
            False,
        ),
        ("HF467", write_web(f"{HTTP}, command: [mlflow, server, --port=8080]"), True),
        ("HF467", write_web(f"{HTTP}, command: [mlflow, server, --host=0.0.0.0]"), False),
        ("HF570", write_web("command: [gunicorn, --log-level=warn, 'a:b']"), True),
        ("HF570", write_web("command: [gunicorn, --log-level=warning, 'a:b']"), False),
        ("HF461", write_web("command: [app, '--run=$(date +%F)']"), True),
        ("HF461", write_web("command: [sh, -c, 'app --run=$(date +%F)']"), False),
        ("HF461", write_web("command: [app, --since, $SINCE]"), True),
        ("HF461", write_web("command: [app, --since, $SINCE], env: [{name: A, value: $A}]"), False),
        # References that only a shell replaces.
        (
            "HF461",
            write_web("command: [app, '--d=/x/${A}'], env: [{name: A, value: b}]"),
            True,
        ),
        (
            "HF461",
            write_web("command: [app, '--d=/x/$(A)'], env: [{name: A, value: b}]"),
            False,
        ),
        (
            "HF461",
            write_web("command: [sh, -c, 'app /x/${A}'], env: [{name: A, value: b}]"),
            False,
        ),
    ],
)
def test_one_point_decides(rule: str, text: str, is_found: bool) -> None:
    assert (rule in find_rules(text)) is is_found

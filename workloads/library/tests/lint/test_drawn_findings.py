"""Findings on other projects that were false, each with one that must still be found."""

import pytest

from holdfast.lint.engine import Options, lint_texts
from tests.platforms import with_images

PLATFORM = with_images("example")
CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteMany], storageClassName: fast, volumeName: disk}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: fast
  claimRef: {namespace: NAMESPACE, name: data}
"""
GROUP = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: big}
spec:
  leaderWorkerTemplate:
    size: 2
    workerTemplate:
      spec:
        containers:
        - name: main
          image: vllm/vllm-openai:v0.10.0
          command: [sh, -c, "ray start; vllm serve m --tensor-parallel-size 8 OPTION"]
          resources: {limits: {nvidia.com/gpu: 8}}
"""
RAY = """\
apiVersion: ray.io/v1
kind: KIND
metadata: {name: a}
spec: {headGroupSpec: {template: {spec: {containers: [{name: a, image: a:1, command: [echo 1]}]}}}}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {containers: [{name: a, image: a:1, command: [echo 1]}]}
"""
METRICS = """\
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {selector: {app: a}, ports: [{port: 8443}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: a}}
spec:
  containers:
  - {name: a, image: a:1, args: ["--metrics-bind-address=:PORT"], ports: [{containerPort: 9443}]}
"""
TPU = """\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  tolerations: [{key: KEY, operator: Exists}]
  containers: [{name: a, image: a:1}]
"""
MODEL = """\
apiVersion: v1
kind: Service
metadata: {name: llm}
spec: {selector: {app: llm}, ports: [{port: 8000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: llm, labels: {app: llm}}
spec:
  containers:
  - name: llm
    image: vllm/vllm-openai:v0.10.0
    args: ["--model=$(MODEL_ID)"]
    env: [{name: MODEL_ID, value: meta/llama}]
---
apiVersion: v1
kind: Pod
metadata: {name: agent}
spec:
  containers:
  - name: agent
    image: agent:1
    env: [{name: API, value: "http://llm:8000/v1"}, {name: MODEL, value: NAME}]
"""
ENGINE = """\
apiVersion: v1
kind: Pod
metadata: {name: llm}
spec:
  containers:
  - name: llm
    image: vllm/vllm-openai:v0.10.0
    startupProbe: {httpGet: {path: /health, port: 8000}, initialDelaySeconds: DELAY}
    livenessProbe: {httpGet: {path: /health, port: 8000}, periodSeconds: PERIOD}
"""


@pytest.mark.parametrize(
    ("rule", "text", "count"),
    [
        ("HF760", CLAIM.replace("NAMESPACE", "default"), 0),
        ("HF760", CLAIM.replace("NAMESPACE", "batch"), 1),
        ("HF683", GROUP.replace("OPTION", "--pipeline_parallel_size 2"), 0),
        ("HF683", GROUP.replace("OPTION", "--pp 2"), 0),
        ("HF683", GROUP.replace("OPTION", "--pp 4"), 1),
        ("HF453", RAY.replace("KIND", "RayCluster"), 0),
        ("HF453", POD, 1),
        ("HF148", METRICS.replace("PORT", "8443"), 0),
        ("HF148", METRICS.replace("PORT", "18443"), 1),
        ("HF102", TPU.replace("KEY", "google.com/tpu"), 0),
        ("HF102", TPU.replace("KEY", "cloud.google.com/gke-sopt"), 1),
        ("HF644", MODEL.replace("NAME", "hosted_vllm/meta/llama"), 0),
        ("HF644", MODEL.replace("NAME", "meta/other"), 1),
        ("HF451", ENGINE.replace("DELAY", "'${S}'").replace("PERIOD", "'${S}'"), 0),
        ("HF451", ENGINE.replace("DELAY", "'${S}'").replace("PERIOD", "1"), 1),
        ("HF451", ENGINE.replace("DELAY", "20").replace("PERIOD", "'${S}'"), 1),
    ],
)
def test_drawn_findings_stay_right(rule: str, text: str, count: int) -> None:
    report = lint_texts({"a.yaml": text}, Options(platforms=[PLATFORM]))
    assert [finding.rule for finding in report.findings].count(rule) == count

"""What kwok does to Nodes and Pods, so that losing a simulated node looks as it does on GKE.

kwok is the only writer of pod status; a test or a storm writes annotations and Nodes. Every
selector excludes the others: where two stages match, kwok picks one by weight.
"""

from typing import Any

Stage = dict[str, Any]

MANAGED = "kwok.x-k8s.io/node"
# Labels and annotations by which tests steer a simulation.
GOING = "sim.holdfast.dev/going"  # node label: its VM is being preempted
RUN_S = "sim.holdfast.dev/run-seconds"  # pod annotation: ends by itself so long after its start
# pod annotation: how it ends by itself, and when deleted; default 0 and 143
EXIT_CODE = "sim.holdfast.dev/exit-code"
# pod annotation: never starts, with this reason, as ImagePullBackOff
WAITING = "sim.holdfast.dev/waiting"
PREEMPT = "sim.holdfast.dev/preempt"  # pod annotation, the exit code: its node shuts down now

# The kubelet's words when a node is shut down under a pod.
SHUTDOWN_MESSAGE = "Pod was terminated in response to imminent node shutdown."
SHUTDOWN_REASON = "TerminationByKubelet"

_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'


def _rule(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


def _annotation(name: str) -> str:
    return f'.metadata.annotations["{name}"]'


_DELETED = _rule(".metadata.deletionTimestamp", "Exists")
_KEPT = _rule(".metadata.deletionTimestamp", "DoesNotExist")
_NOT_PREEMPTED = _rule(_annotation(PREEMPT), "DoesNotExist")
_ACTIVE = _rule(".status.phase", "In", "Pending", "Running")
_TERMINAL = _rule(".status.phase", "In", "Succeeded", "Failed")


def _stage(
    name: str, kind: str, rules: list[dict[str, Any]], following: dict[str, Any], **more: Any
) -> Stage:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": rules},
            "next": following,
            **more,
        },
    }


_CONTAINERS = """
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: %(ready)s
  restartCount: 0
  state:
%(state)s
{{ end }}
"""
_RUNNING = """
    running:
      startedAt: {{ $now | Quote }}"""
_TERMINATED = """
    terminated:
      exitCode: {{ $code }}
      reason: {{ if eq $code "0" }}Completed{{ else }}Error{{ end }}
      startedAt: {{ or $.status.startTime $now | Quote }}
      finishedAt: {{ $now | Quote }}"""


def _condition(kind: str, status: str, reason: str = "", message: str = "") -> str:
    arguments = (
        f'- type: {kind}\n  status: "{status}"\n  lastTransitionTime: {{{{ $now | Quote }}}}\n'
    )
    return arguments + (f'  reason: {reason}\n  message: "{message}"\n' if reason else "")


_NOW = "{{ $now := Now }}\n"
_STUCK_CONTAINER = f"""
    waiting:
      reason: {{{{ index $.metadata.annotations "{WAITING}" }}}}"""
_STUCK = f"""{_NOW}
phase: Pending
startTime: {{{{ $now | Quote }}}}
{_CONTAINERS % {"ready": "false", "state": _STUCK_CONTAINER}}"""
_POD_NAME = '(or .metadata.uid "") .metadata.name .metadata.namespace'
_POD_IP = f"{{{{ PodIPWith .spec.nodeName false {_POD_NAME} | Quote }}}}"
_POD_CONDITIONS = "".join(
    _condition(kind, "True") for kind in ("Initialized", "Ready", "ContainersReady")
)
_START = f"""{_NOW}
phase: Running
startTime: {{{{ $now | Quote }}}}
podIP: {_POD_IP}
conditions:
{_POD_CONDITIONS}
{_CONTAINERS % {"ready": "true", "state": _RUNNING}}"""


def _make_end_status(code: str, *, disruption: str = "", arguments: str = "") -> str:
    """Makes the status of a pod whose containers ended with `code`, a template expression."""
    return f"""{_NOW}{{{{ $code := {code} }}}}
phase: {{{{ if eq $code "0" }}}}Succeeded{{{{ else }}}}Failed{{{{ end }}}}
{arguments}
conditions:
{disruption}{_condition("Ready", "False")}{_condition("ContainersReady", "False")}
{_CONTAINERS % {"ready": "false", "state": _TERMINATED}}"""


def _own_code(default: int) -> str:
    return f'or (index (or .metadata.annotations dict) "{EXIT_CODE}") "{default}"'


_EXIT = _make_end_status(_own_code(0))
_PREEMPTED = _make_end_status(
    f'index .metadata.annotations "{PREEMPT}"',
    disruption=_condition("DisruptionTarget", "True", SHUTDOWN_REASON, SHUTDOWN_MESSAGE),
    arguments=f'reason: Terminated\nmessage: "{SHUTDOWN_MESSAGE}"',
)
# The kubelet moves a deleted pod to a terminal phase before it goes; kwok's own stages do not, and
# a Job with a podFailurePolicy then waits for ever.
_TERMINATE = _make_end_status(_own_code(143))

_NODE_READY = f"""{_NOW}
conditions:
{_condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")}
phase: Running
addresses:
- type: InternalIP
  address: {{{{ NodeIP | Quote }}}}
daemonEndpoints:
  kubeletEndpoint:
    Port: {{{{ NodePort }}}}
"""
_NODE_GOING = f"""{_NOW}
conditions:
{_condition("Ready", "False", "KubeletNotReady", "node is shutting down")}
"""


def _status(template: str) -> dict[str, Any]:
    return {"statusTemplate": template}


def pod_stages() -> list[Stage]:
    run_until = f"((.status.startTime | fromdate) + ({_annotation(RUN_S)} | tonumber)) | todate"
    fresh = [_KEPT, _NOT_PREEMPTED, _rule(".status.phase", "In", "Pending")]
    unseen = _rule(".status.startTime", "DoesNotExist")
    return [
        _stage(
            "pod-start",
            "Pod",
            [*fresh, _rule(_annotation(WAITING), "DoesNotExist")],
            _status(_START),
        ),
        _stage(
            "pod-stuck",
            "Pod",
            [*fresh, _rule(_annotation(WAITING), "Exists"), unseen],
            _status(_STUCK),
        ),
        _stage(
            "pod-exit",
            "Pod",
            [
                _KEPT,
                _NOT_PREEMPTED,
                _rule(".status.phase", "In", "Running"),
                _rule(_annotation(RUN_S), "Exists"),
            ],
            _status(_EXIT),
            # Counted from the start, or each update of the pod would begin its run again.
            delay={
                "durationMilliseconds": 0,
                "durationFrom": {"expressionFrom": run_until},
            },
        ),
        _stage(
            "pod-preempt",
            "Pod",
            [_KEPT, _rule(_annotation(PREEMPT), "Exists"), _ACTIVE],
            _status(_PREEMPTED),
        ),
        _stage("pod-terminate", "Pod", [_DELETED, _ACTIVE], _status(_TERMINATE)),
        _stage("pod-delete", "Pod", [_DELETED, _TERMINAL], {"delete": True}),
        # Without a stage of its own, a pod that was preempted while its run timer was queued would
        # still succeed when the timer fires, and a test would pass for the wrong reason.
        _stage("pod-ended", "Pod", [_KEPT, _TERMINAL], {}),
    ]


def node_stages() -> list[Stage]:
    going = f'.metadata.labels["{GOING}"]'
    return [
        _stage(
            "node-ready",
            "Node",
            [_rule(going, "DoesNotExist"), _rule(_READY, "NotIn", "True")],
            _status(_NODE_READY),
        ),
        _stage(
            "node-going",
            "Node",
            [_rule(going, "Exists"), _rule(_READY, "NotIn", "False")],
            _status(_NODE_GOING),
        ),
    ]


def all_stages() -> list[Stage]:
    return [*node_stages(), *pod_stages()]

"""HF10x: what happens between the notice and the kill."""

import re
from collections.abc import Iterator

from holdfast.contract.environment import ENV_WINDOW_S
from holdfast.contract.exit_codes import EXIT_COMPLETE, EXIT_PREEMPTED
from holdfast.lint.finding import Hit, Severity, constant
from holdfast.lint.objects import MAX_SCRIPT, Container, Pod, as_int, as_list, as_text, dig, quantity
from holdfast.lint.registry import Context, rule
from holdfast.lint.shell import exits_zero_on_term, ignores_term, loses_exit_code, slept_s

DOC_SHUTDOWN = "https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/"
_SAVES = re.compile(r"check.?point|ckpt|\bsave|gsutil|gcloud storage", re.IGNORECASE)
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


@rule(
    "HF101", "grace-exceeds-window", Severity.ERROR, on=Pod,
    what="terminationGracePeriodSeconds is longer than what a Spot node gives a pod.",
    why="The kubelet cuts the grace to the node's window: a handler that counts on more is killed in the middle.",
    source=DOC_SHUTDOWN, fix="set it to the pool's window, and finish within it", base="job-pod",
    bad="terminationGracePeriodSeconds: 25", good="terminationGracePeriodSeconds: 15",
)  # fmt: skip
def grace_exceeds_window(pod: Pod, context: Context) -> Iterator[Hit]:
    pool, grace = context.place(pod).on_spot, as_int(pod.spec.get("terminationGracePeriodSeconds"))
    if pool and grace is not None and grace > pool.window.pod_s:
        at = (*pod.at, "terminationGracePeriodSeconds")
        yield Hit(at, f"grace of {grace} s, but Spot gives {pool.window.pod_s} s", context.platform.window_basis(pool),
                  f"set it to {pool.window.pod_s}")  # fmt: skip


@rule(
    "HF102", "grace-unstated-on-spot", Severity.WARNING, on=Pod,
    what="A Spot pod does not say its grace.",
    why="The default of 30 s is longer than the window, so the manifest promises what the node does not keep.",
    source=DOC_SHUTDOWN, fix="set terminationGracePeriodSeconds to the pool's window", base="job-pod",
    bad="terminationGracePeriodSeconds: null", good="terminationGracePeriodSeconds: 15",
)  # fmt: skip
def grace_unstated_on_spot(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    if pool and pod.spec.get("terminationGracePeriodSeconds") is None and pool.window.pod_s < 30:
        yield Hit(pod.at, "grace is not stated: 30 s by default", context.platform.window_basis(pool))


@rule(
    "HF103", "prestop-eats-window", Severity.ERROR, on=Pod,
    what="A preStop hook sleeps through most of the window of a Spot pod.",
    why="The hook runs inside the same window; SIGTERM comes after it, with what is left.",
    source="https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/",
    fix="remove the sleep, or shorten it to at most a third of the window", base="container",
    bad="lifecycle: {preStop: {exec: {command: [sh, -c, sleep 12]}}}",
    good="lifecycle: {preStop: {exec: {command: [python, -m, holdfast.runtime.drain]}}}",
)  # fmt: skip
def prestop_eats_window(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    for container in pod.containers if pool else []:
        slept, at = _slept(container)
        if pool and slept * 3 > pool.window.pod_s:
            rest = max(pool.window.pod_s - slept, 0)
            yield Hit(at, f"sleeps {slept:g} s and leaves {rest:g} s", context.platform.window_basis(pool))


def _slept(container: Container) -> tuple[float, tuple[str | int, ...]]:
    hook = (*container.path, "lifecycle", "preStop")
    native = as_int(dig(container.body, "lifecycle", "preStop", "sleep", "seconds"))
    if native is not None:
        return native, (*hook, "sleep", "seconds")
    command = as_list(dig(container.body, "lifecycle", "preStop", "exec", "command"))
    # A shell's script is one word of the command, and `sleep 12` without a shell are two.
    scripts = [str(word)[:MAX_SCRIPT] for word in command]
    slept = max(slept_s(" ".join(scripts)[:MAX_SCRIPT]), max(map(slept_s, scripts), default=0.0))
    return slept, (*hook, "exec", "command")


@rule(
    "HF108", "prestop-saves", Severity.WARNING, on=Pod,
    what="A preStop hook saves a checkpoint in the window of a node that is taken away.",
    why="The program computes on meanwhile, SIGTERM comes only after the hook, and whatever is left of a large state"
        " is cut off: a file that looks whole and is not.",
    source="https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/",
    fix="save in the background on an interval; drain with holdfast.runtime.drain where the program cannot be changed",
    base="container",
    bad="lifecycle: {preStop: {exec: {command: [/bin/sh, -c, python save_checkpoint.py]}}}",
    good="lifecycle: {preStop: {exec: {command: [python, -m, holdfast.runtime.drain]}}}",
)  # fmt: skip
def prestop_saves(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers if context.place(pod).interruptible else []:
        hook = as_list(dig(container.body, "lifecycle", "preStop", "exec", "command"))
        script = " ".join(str(word)[:MAX_SCRIPT] for word in hook)[:MAX_SCRIPT]
        if _SAVES.search(script) and "holdfast.runtime.drain" not in script:
            yield Hit((*container.path, "lifecycle", "preStop", "exec", "command"), "saves inside the window")


@rule(
    "HF104", "safe-to-evict-on-spot", Severity.WARNING, on=Pod,
    what='safe-to-evict: "false" on a Spot pod.',
    why="It holds off the autoscaler's scale-down only. Google takes Spot nodes away all the same.",
    source="https://cloud.google.com/kubernetes-engine/docs/concepts/cluster-autoscaler",
    fix="remove it, and make the pod resumable", base="job-template",
    bad='metadata: {annotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: "false"}}',
    good="metadata: {annotations: {holdfast.dev/placement-rule: training}}",
)  # fmt: skip
def safe_to_evict_on_spot(pod: Pod, context: Context) -> Iterator[Hit]:
    if str(pod.annotations.get(SAFE_TO_EVICT)).lower() == "false" and context.place(pod).on_spot:
        yield Hit((*pod.path, "metadata", "annotations", SAFE_TO_EVICT), "safe-to-evict does not stop Spot preemption")


@rule(
    "HF105", "exit-zero-on-sigterm", Severity.ERROR, on=Pod,
    what="A shell trap turns SIGTERM into exit 0.",
    why="Exit 0 marks a Job's index complete: the unfinished work is recorded as done and never resumed.",
    source="workloads/library/holdfast/contract/exit_codes.py", fix=f"exit {EXIT_PREEMPTED}", base="container",
    bad="command: [sh, -c, \"trap 'save; exit 0' TERM; exec python -m trainer\"]",
    good="command: [sh, -c, \"trap 'save; exit 143' TERM; exec python -m trainer\"]",
)  # fmt: skip
def exit_zero_on_sigterm(pod: Pod, context: Context) -> Iterator[Hit]:
    basis = constant(
        "holdfast.contract.exit_codes", "EXIT_PREEMPTED", f"a stopped pod exits {EXIT_PREEMPTED}, not {EXIT_COMPLETE}"
    )
    for container in pod.containers:
        if exits_zero_on_term(container.script):
            yield Hit(
                (*container.path, "command" if "command" in container.body else "args"), "exits 0 on SIGTERM", basis
            )


@rule(
    "HF106", "shell-swallows-sigterm", Severity.WARNING, on=Pod,
    what="A shell runs the program as its child, without exec and without a trap.",
    why="SIGTERM goes to the shell, which does not pass it on: the program dies by SIGKILL, unsaved.",
    source="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination",
    fix="put exec before the last command, or run the program without a shell", base="container",
    bad='command: [bash, -c, "pip install -e . && python train.py"]',
    good='command: [bash, -c, "pip install -e . && exec python train.py"]',
)  # fmt: skip
def shell_swallows_sigterm(pod: Pod, context: Context) -> Iterator[Hit]:
    if not context.place(pod).interruptible:
        return
    for container in pod.containers:
        script = _script(container)
        if ignores_term(script):
            yield Hit((*container.path, "command"), "SIGTERM is ignored: the program runs into SIGKILL, unsaved")
        several = re.search(r"&&|;|\n\s*\S", script.strip())
        if several and "trap" not in script and not re.search(r"\bexec\b", script):
            yield Hit((*container.path, "command"), "the shell does not pass SIGTERM on to the program")


def _script(container: Container) -> str:
    """What a shell is given by -c; empty where the program runs without one."""
    words = container.words
    shell = len(words) > 2 and words[0].rpartition("/")[2] in ("sh", "bash", "ash", "dash") and "c" in words[1]
    return words[2][:MAX_SCRIPT] if shell else ""


@rule(
    "HF109", "exit-code-lost", Severity.ERROR, on=Pod,
    what="The script of a Job ends well however its program ended.",
    why="An evicted or crashed program then counts as done: the unfinished work is never resumed.",
    source="workloads/library/holdfast/contract/exit_codes.py",
    fix="let the program be the last command, or pass its code on: exit $?", base="container",
    bad='command: [sh, -c, "python train.py || true"]', good='command: [sh, -c, "exec python train.py"]',
)  # fmt: skip
def exit_code_lost(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers if pod.job and context.place(pod).interruptible else []:
        if "containers" in container.path and loses_exit_code(_script(container)):
            yield Hit((*container.path, "command" if "command" in container.body else "args"), "hides how it ended")


@rule(
    "HF107", "window-variable-wrong", Severity.ERROR, on=Pod,
    what=f"{ENV_WINDOW_S} is not the window of the pool.",
    why="The process plans its last save by this number.",
    source="workloads/library/holdfast/contract/environment.py", fix="set it to the pool's window", base="container",
    bad=f'env: [{{name: {ENV_WINDOW_S}, value: "30"}}]', good=f'env: [{{name: {ENV_WINDOW_S}, value: "15"}}]',
)  # fmt: skip
def window_variable_wrong(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    for container in pod.containers if pool else []:
        for index, item in enumerate(as_list(container.body.get("env"))):
            wrong = as_text(dig(item, "name")) == ENV_WINDOW_S and quantity(dig(item, "value")) not in (
                None,
                pool and pool.window.pod_s,
            )
            if wrong and pool:
                at = (*container.path, "env", index, "value")
                yield Hit(
                    at,
                    f"says {item.get('value')} s, the pool gives {pool.window.pod_s} s",
                    context.platform.window_basis(pool),
                )

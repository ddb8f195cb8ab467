"""HF10x: the time between the notice and the kill."""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import MAX_SCRIPT, Container, Pod, as_int, as_list, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.lint.shell import (
    exits_zero_on_term,
    handlers,
    loses_code_in_pipe,
    loses_exit_code,
    slept_s,
)
from holdfast.support.values import quantity
from holdfast.vocabulary.environment import ENV_WINDOW_S
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.pools import Pool

DOC_SHUTDOWN = "https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/"
DOC_HOOKS = "https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/"
EXIT_CODES = "holdfast/vocabulary/exit_codes.py"
_SAVES = re.compile(r"check.?point|ckpt|\bsave|gsutil|gcloud storage", re.IGNORECASE)
_SHELLS = ("sh", "bash", "ash", "dash")
_SEVERAL = re.compile(r"&&|;|\n\s*\S")
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
# Kubernetes' default of terminationGracePeriodSeconds.
DEFAULT_GRACE_S = 30
_DRAINS = "lifecycle: {preStop: {exec: {command: [python, -m, holdfast.runtime.drain]}}}"


@rule(
    "HF101",
    "grace-exceeds-window",
    Severity.ERROR,
    on=Pod,
    what="terminationGracePeriodSeconds is longer than what a Spot node gives a pod.",
    why=(
        "The kubelet cuts the grace period to the node's window and kills a handler that needs"
        " more."
    ),
    source=DOC_SHUTDOWN,
    fix="set it to the pool's window, and finish within it",
    base="job-pod",
    bad="""\
terminationGracePeriodSeconds: 25
""",
)
def grace_exceeds_window(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    if pool and pod.grace_s is not None and pod.grace_s > pool.window.pod_s:
        message = f"grace period of {pod.grace_s} s, but Spot gives {pool.window.pod_s} s"
        basis = context.platform.window_basis(pool)
        fix = f"set it to {pool.window.pod_s}"
        yield Hit((*pod.spec_path, "terminationGracePeriodSeconds"), message, basis, fix)


@rule(
    "HF102",
    "grace-unstated-on-spot",
    Severity.WARNING,
    on=Pod,
    what="A Spot pod does not state its grace period.",
    why=(
        "The default of 30 s is longer than the window: the node gives less than the manifest"
        " promises."
    ),
    source=DOC_SHUTDOWN,
    fix="set terminationGracePeriodSeconds to the pool's window",
    base="job-pod",
    bad="""\
terminationGracePeriodSeconds: null
""",
)
def grace_unstated_on_spot(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    if pool is None or pool.window.pod_s >= DEFAULT_GRACE_S:
        return
    if pod.spec.get("terminationGracePeriodSeconds") is None:
        message = "the grace period is not stated: 30 s by default"
        yield Hit(pod.spec_path, message, context.platform.window_basis(pool))


@rule(
    "HF103",
    "prestop-eats-window",
    Severity.ERROR,
    on=Pod,
    what="A preStop hook of a Spot pod sleeps through most of the window, or in a loop.",
    why="The hook runs inside the window. SIGTERM comes after it, with the time that is left.",
    source=DOC_HOOKS,
    fix="remove the sleep, or sleep at most a third of the window, in one command",
    base="container",
    bad="""\
lifecycle:
  preStop:
    exec:
      command:
      - sh
      - -c
      - sleep 12
""",
    good=_DRAINS,
)
def prestop_eats_window(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    if pool is None:
        return
    window_s = pool.window.pod_s
    for container in pod.containers:
        sleep_s, path = pre_stop_sleep(container)
        if sleep_s is None:
            message = "sleeps in a loop or for a variable time: the linter cannot tell how long"
        elif sleep_s * 3 > window_s:
            message = f"sleeps {sleep_s:g} s and leaves {max(window_s - sleep_s, 0):g} s"
        else:
            continue
        yield Hit(path, message, context.platform.window_basis(pool))


def pre_stop_sleep(container: Container) -> tuple[float | None, Path]:
    """Returns the seconds that the preStop hook sleeps, and the path of the field with them.

    None where the script does not tell.
    """
    hook = (*container.path, "lifecycle", "preStop")
    seconds = as_int(dig(container.body, "lifecycle", "preStop", "sleep", "seconds"))
    if seconds is not None:
        return float(seconds), (*hook, "sleep", "seconds")
    return slept_s(_get_pre_stop_script(container)), (*hook, "exec", "command")


def _get_pre_stop_script(container: Container) -> str:
    words = as_list(dig(container.body, "lifecycle", "preStop", "exec", "command"))
    return "\n".join(str(word)[:MAX_SCRIPT] for word in words)[:MAX_SCRIPT]


@rule(
    "HF108",
    "prestop-saves",
    Severity.WARNING,
    on=Pod,
    what="A preStop hook saves a checkpoint while the node shuts down.",
    why=(
        "The program still computes, and gets SIGTERM only after the hook. A large state is cut"
        " off: the file looks whole and is not."
    ),
    source=DOC_HOOKS,
    base="container",
    fix=(
        "save in the background on an interval; use holdfast.runtime.drain where the program cannot"
        " be changed"
    ),
    bad="""\
lifecycle:
  preStop:
    exec:
      command:
      - /bin/sh
      - -c
      - python save_checkpoint.py
""",
    good=_DRAINS,
)
def prestop_saves(pod: Pod, context: Context) -> Iterator[Hit]:
    if not context.place(pod).interruptible:
        return
    for container in pod.containers:
        script = _get_pre_stop_script(container).replace("\n", " ")
        if _SAVES.search(script) and "holdfast.runtime.drain" not in script:
            path = (*container.path, "lifecycle", "preStop", "exec", "command")
            yield Hit(path, "saves inside the window")


@rule(
    "HF104",
    "safe-to-evict-on-spot",
    Severity.WARNING,
    on=Pod,
    what='A Spot pod has safe-to-evict: "false".',
    why="It only stops the autoscaler's scale-down. Google preempts Spot nodes all the same.",
    source="https://cloud.google.com/kubernetes-engine/docs/concepts/cluster-autoscaler",
    fix="remove it, and make the pod resumable",
    base="job-template",
    bad="""\
metadata:
  annotations:
    cluster-autoscaler.kubernetes.io/safe-to-evict: 'false'
""",
)
def safe_to_evict_on_spot(pod: Pod, context: Context) -> Iterator[Hit]:
    if str(pod.annotations.get(SAFE_TO_EVICT)).lower() == "false" and context.place(pod).on_spot:
        path = (*pod.path, "metadata", "annotations", SAFE_TO_EVICT)
        yield Hit(path, "safe-to-evict does not stop Spot preemption")


@rule(
    "HF105",
    "exit-zero-on-sigterm",
    Severity.ERROR,
    on=Pod,
    what="A shell trap turns SIGTERM into exit 0.",
    why="Exit 0 marks a Job's index complete: unfinished work counts as done and is never resumed.",
    source=EXIT_CODES,
    fix=f"exit {EXIT_PREEMPTED}",
    base="container",
    bad="""\
command:
- sh
- -c
- trap 'save; exit 0' TERM; exec python -m trainer
""",
    good="""\
command:
- sh
- -c
- trap 'save; exit 143' TERM; exec python -m trainer
""",
)
def exit_zero_on_sigterm(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        if exits_zero_on_term(container.script):
            yield Hit(container.command_path, "exits 0 on SIGTERM")


@rule(
    "HF106",
    "shell-swallows-sigterm",
    Severity.WARNING,
    on=Pod,
    what="A shell runs the program as its child, without exec and without a trap.",
    why="The shell gets SIGTERM and does not pass it on: SIGKILL ends the program, unsaved.",
    source="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination",
    fix="put exec before the last command, or run the program without a shell",
    base="container",
    bad="""\
command:
- bash
- -c
- pip install -e . && python train.py
""",
    good="""\
command:
- bash
- -c
- pip install -e . && exec python train.py
""",
)
def shell_swallows_sigterm(pod: Pod, context: Context) -> Iterator[Hit]:
    if not context.place(pod).interruptible:
        return
    for container in pod.containers:
        script = _get_script(container)
        if "" in handlers(script):
            message = "SIGTERM is ignored: SIGKILL ends the program, unsaved"
            yield Hit(container.command_path, message)
        handles_signal = "trap" in script or re.search(r"\bexec\b", script)
        if _SEVERAL.search(script.strip()) and not handles_signal:
            yield Hit(container.command_path, "the shell does not pass SIGTERM on to the program")


def _get_script(container: Container) -> str:
    """Returns the script that a shell gets by -c; empty where the program runs without a shell."""
    words = container.words
    if len(words) < 3 or container.programs[0] not in _SHELLS or "c" not in words[1]:
        return ""
    return words[2][:MAX_SCRIPT]


@rule(
    "HF109",
    "exit-code-lost",
    Severity.ERROR,
    on=Pod,
    what="The script of a Job succeeds however its program ended.",
    why="An evicted or crashed program then counts as done: its work is never resumed.",
    source=EXIT_CODES,
    fix="make the program the last command, or pass its code on: exit $?",
    base="container",
    bad="""\
command:
- sh
- -c
- python train.py || true
""",
    good="""\
command:
- sh
- -c
- exec python train.py
""",
)
def exit_code_lost(pod: Pod, context: Context) -> Iterator[Hit]:
    if not pod.job:
        return
    for container in pod.main_containers:
        if loses_code_in_pipe(_get_script(container)):
            yield Hit(container.command_path, "the pipe ends as tee does, whatever came before")
        if not context.place(pod).interruptible:
            continue
        if loses_exit_code(_get_script(container)):
            yield Hit(container.command_path, "hides how the program ended")


@rule(
    "HF107",
    "window-variable-wrong",
    Severity.ERROR,
    on=Pod,
    what=(
        f"{ENV_WINDOW_S} is not the window of the pool, or --window is longer than the window or"
        " the grace period."
    ),
    why="The process plans its last save, a server its last answers, by this number.",
    source="holdfast/vocabulary/environment.py",
    fix="set it to the pool's window",
    base="container",
    bad=f'env: [{{name: {ENV_WINDOW_S}, value: "30"}}]',
    good=f'env: [{{name: {ENV_WINDOW_S}, value: "15"}}]',
)
def window_variable_wrong(pod: Pod, context: Context) -> Iterator[Hit]:
    pool = context.place(pod).on_spot
    limit_s = DEFAULT_GRACE_S if pod.grace_s is None else pod.grace_s
    if pool:
        limit_s = min(limit_s, pool.window.pod_s)
    for container in pod.containers:
        window_s = container.seconds("--window") if "holdfast" in container.words else None
        if window_s and window_s > limit_s:
            message = f"--window {window_s:g}, and the kubelet gives {limit_s} s"
            yield Hit(container.command_path, message)
        if pool:
            yield from _check_window_variable(container, pool, context)


def _check_window_variable(container: Container, pool: Pool, context: Context) -> Iterator[Hit]:
    for index, item in enumerate(as_list(container.body.get("env"))):
        if as_text(dig(item, "name")) != ENV_WINDOW_S:
            continue
        window_s = quantity(dig(item, "value"))
        if window_s is not None and window_s != pool.window.pod_s:
            path = (*container.path, "env", index, "value")
            message = f"says {item.get('value')} s, the pool gives {pool.window.pod_s} s"
            yield Hit(path, message, context.platform.window_basis(pool))

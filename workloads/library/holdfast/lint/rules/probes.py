"""HF45x: probes and hooks that end a working container."""

import re
from collections.abc import Iterator
from typing import Any

from holdfast.lint.accessors import is_left_open
from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import (
    PROBES,
    SHELLS,
    Container,
    Pod,
    as_int,
    as_map,
    as_text,
    as_texts,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.contents import find_size
from holdfast.lint.rules.shutdown import DEFAULT_GRACE_S, DOC_HOOKS, pre_stop_sleep
from holdfast.lint.spelling import count_differences
from holdfast.support.values import quantity

DOCPROBES = "https://kubernetes.io/docs/concepts/workloads/pods/probes/"
_SERVERS = ("vllm", "sglang", "text-generation", "tritonserver", "ollama", "tgi", "lmdeploy")
_IMAGES = re.compile(r"vllm|sglang|text-generation|triton|ollama|/tgi|lmdeploy|nim/", re.IGNORECASE)
# A model of several gigabytes is downloaded and put on a GPU.
_SHORTEST_LOAD_S = 120
# Any program on a GPU imports its framework first.
_SHORTEST_START_S = 30
# A long request, or load on the node, may keep a server from answering for that long.
_SHORTEST_HANG_S = 10
# Rate at which one server downloads from a bucket or a hub.
_BYTES_PER_S = 400e6
_LONGEST_GRACE_S = 3_600
_WORK = re.compile(
    r"/(completions|embeddings|generate|generate_stream|infer|predict|predictions|invocations"
    r"|rerank|score|pooling|transcriptions|speech|tokenize|responses|messages)/?$"
)
_OWN_PORT = re.compile(r"(?:localhost|127\.0\.0\.1):(\d{2,5})")
_LONGEST_WORD = 4_000
_DIGITS = re.compile(r"\d+")
_DRAIN_OPTIONS = (
    "--timeout-graceful-shutdown",
    "--graceful-timeout",
    "--shutdown-timeout",
    "--drain-timeout",
    "--grace-period",
    *("--exit-timeout-secs", "--drain-seconds", "--shutdown-grace-period", "--drain-time-s"),
)


def _serve(probes: str, command: str = "[vllm, serve, model]") -> str:
    return f"ports: [{{name: http, containerPort: 8000}}]\ncommand: {command}\n{probes}"


def _ready(port: object) -> str:
    return f"readinessProbe: {{httpGet: {{path: /health, port: {port}}}}}"


_KILL = re.compile(r"\b(?:kill|pkill|killall)\s+(?:-s\s+)?-?(?:9|KILL|SIGKILL)\b")


@rule(
    "HF450",
    "probe-port-unused",
    Severity.ERROR,
    on=Pod,
    what="A probe or a hook asks a port that no container has.",
    why="It fails for ever: the container is restarted, or gets no request.",
    source=DOCPROBES,
    fix="ask the port that the container listens on",
    base="serving-container",
    bad=_serve(_ready(8080)),
    good=_serve(_ready("http")),
)
def probe_port_unused(pod: Pod, context: Context) -> Iterator[Hit]:
    if any("holdfast" in container.words for container in pod.containers):
        return  # its servers have ports of their own for health and drains
    numbers: set[int] = set()
    mentioned: set[str] = set()
    for container in pod.containers:
        numbers |= container.ports.keys()
        for text in (container.script, *map(str, container.env.values())):
            mentioned.update(_DIGITS.findall(text))
    for container in pod.containers:
        names = sorted(name for name in container.ports.values() if name)
        yield from _check_own_requests(container, numbers, mentioned)
        option = container.number("--port") or container.number("--http-port")
        for path, port in _list_ports(container):
            if isinstance(port, str) and not port.isdecimal():
                # A port's name is looked up in the container itself.
                if port not in names:
                    listed = ", ".join(names) or "none with a name"
                    yield Hit(path, f"the container has no port {port}; it has {listed}")
            elif int(port) in numbers or str(port) in mentioned:
                continue
            elif option:
                yield Hit(path, f"asks port {port}, and the program listens on {option}")
            elif numbers and (_is_one_server(container, path) or _is_slip(int(port), numbers)):
                listed = ", ".join(map(str, sorted(numbers)))
                yield Hit(path, f"no container has the port {port}; there are {listed}")


def _is_slip(port: int, numbers: set[int]) -> bool:
    """Returns whether a port is a typing error of the only one that a pod declares."""
    number = str(min(numbers))
    is_swapped = sorted(str(port)) == sorted(number)
    return len(numbers) == 1 and (is_swapped or count_differences(str(port), number) == 1)


def _is_one_server(container: Container, path: Path) -> bool:
    """Returns whether a container answers only on the ports that it declares.

    Many programs answer probes on a port that their manifests leave out. A server of models does
    not, nor does a server that another probe asks for the same path on a declared port.
    """
    if _serves_models(container):
        return True
    field = path[len(container.path)]
    request = dig(container.body, field, "httpGet", "path")
    for other in PROBES:
        other_request = as_map(dig(container.body, other, "httpGet"))
        port = other_request.get("port")
        is_declared = port in container.ports or port in container.ports.values()
        if other != field and is_declared and other_request.get("path") == request:
            return True
    return False


def _check_own_requests(
    container: Container, numbers: set[int], mentioned: set[str]
) -> Iterator[Hit]:
    """Yields a command of a probe or hook that asks the pod at a port that it does not have."""
    places: list[Path] = [(field, "exec", "command") for field in PROBES]
    places += [("lifecycle", hook, "exec", "command") for hook in ("preStop", "postStart")]
    for place in places:
        for word in as_texts(dig(container.body, *place)):
            for port in _OWN_PORT.findall(word[:_LONGEST_WORD]):
                if numbers and int(port) not in numbers and port not in mentioned:
                    listed = ", ".join(map(str, sorted(numbers)))
                    message = f"asks the pod at port {port}; its containers have {listed}"
                    yield Hit((*container.path, *place), message)


def _list_ports(container: Container) -> Iterator[tuple[Path, Any]]:
    """Yields the ports that probes and hooks ask, each with its path."""
    places: list[Path] = [(field,) for field in PROBES]
    places += [("lifecycle", "preStop"), ("lifecycle", "postStart")]
    for place in places:
        for handler in ("httpGet", "tcpSocket", "grpc"):
            path = (*place, handler, "port")
            port = dig(container.body, *path)
            if as_int(port) or as_text(port):
                yield (*container.path, *path), port


@rule(
    "HF457",
    "probe-asks-for-work",
    Severity.ERROR,
    on=Pod,
    what="A probe asks a path that takes requests for work, by POST.",
    why="A probe sends GET: the answer is 405 or 404, and the kubelet restarts a healthy server.",
    source=DOCPROBES,
    fix="ask a path for health, as /health",
    base="serving-container",
    bad="""\
livenessProbe:
  httpGet:
    path: /v1/chat/completions
    port: 8080
""",
    good="""\
livenessProbe:
  httpGet:
    path: /health
    port: 8080
""",
)
def probe_asks_for_work(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for field in PROBES:
            path = as_text(dig(container.body, field, "httpGet", "path"))
            if _WORK.search(path[:300]):
                yield Hit((*container.path, field, "httpGet", "path"), f"{path} takes POST")


@rule(
    "HF451",
    "restarted-while-it-loads",
    Severity.WARNING,
    on=Pod,
    what="A server on a GPU has too little time to start before the kubelet restarts it.",
    why=(
        "It downloads and loads its weights meanwhile. Killed then, it begins again, for ever, on a"
        " GPU that is paid for."
    ),
    source=DOCPROBES,
    fix="a startupProbe with failureThreshold x periodSeconds of ten minutes or more",
    base="serving-container",
    bad=_serve("startupProbe: {httpGet: {path: /health, port: http}, periodSeconds: 10}"),
    good=_serve(
        "startupProbe: {httpGet: {path: /health, port: http}, periodSeconds: 10, failureThreshold:"
        " 90}"
    ),
)
def restart_interrupts_load(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        shortest_s = _SHORTEST_LOAD_S if _serves_models(container) else _SHORTEST_START_S
        if not container.gpus and shortest_s == _SHORTEST_START_S:
            continue
        field = "startupProbe" if container.body.get("startupProbe") else "livenessProbe"
        probe = as_map(container.body.get(field))
        if not probe:
            continue
        seconds = probe_time_s(probe)
        shortest_s = max(shortest_s, find_size(container) / _BYTES_PER_S)
        if seconds < shortest_s and _is_complete(probe):
            yield Hit((*container.path, field), f"gives it {seconds:g} s to load")
        liveness = as_map(container.body.get("livenessProbe"))
        hang_s = _hang_time_s(liveness)
        is_short = hang_s < _SHORTEST_HANG_S and _is_complete(liveness)
        if liveness and field == "startupProbe" and is_short:
            message = f"restarts it after {hang_s:g} s without an answer"
            yield Hit((*container.path, "livenessProbe"), message)


def _is_complete(probe: dict[str, Any]) -> bool:
    """Returns whether the file has all values of a probe, and none comes later."""
    return not any(map(is_left_open, probe.values()))


def probe_time_s(probe: dict[str, Any]) -> float:
    """Returns the seconds after which a probe that always fails ends its container."""
    delay_s = quantity(probe.get("initialDelaySeconds")) or 0.0
    return delay_s + _hang_time_s(probe)


def _hang_time_s(probe: dict[str, Any]) -> float:
    """Returns the seconds for which a probe has to fail before it ends its container."""
    failures = quantity(probe.get("failureThreshold")) or 3.0
    return _period_s(probe) * failures


def _period_s(probe: dict[str, Any]) -> float:
    return quantity(probe.get("periodSeconds")) or 10.0


def _serves_models(container: Container) -> bool:
    if _IMAGES.search(as_text(container.body.get("image"))[:500]):
        return True
    words = " ".join(container.programs[:6])
    return any(server in words for server in _SERVERS)


@rule(
    "HF452",
    "hook-longer-than-grace",
    Severity.ERROR,
    on=Pod,
    what="A preStop hook, or the drain after it, outlasts the grace period, or kills the program.",
    why="The hook is part of the grace period: the container is killed inside it.",
    source=DOC_HOOKS,
    fix="set terminationGracePeriodSeconds above the hook's seconds and those of the drain",
    base="serving-pod",
    bad="""\
terminationGracePeriodSeconds: 30
containers:
  - name: main
    image: server
    lifecycle:
      preStop:
        exec:
          command:
            - sleep
            - '60'
    resources:
      limits:
        nvidia.com/gpu: 1
""",
    good="""\
terminationGracePeriodSeconds: 90
containers:
  - name: main
    image: server
    lifecycle:
      preStop:
        exec:
          command:
            - sleep
            - '60'
    resources:
      limits:
        nvidia.com/gpu: 1
""",
)
def hook_longer_than_grace(pod: Pod, context: Context) -> Iterator[Hit]:
    grace_s = DEFAULT_GRACE_S if pod.grace_s is None else pod.grace_s
    for container in pod.containers:
        sleep_s, path = pre_stop_sleep(container)
        drains = [quantity(container.option(option)) for option in _DRAIN_OPTIONS]
        drain_s = max((seconds for seconds in drains if seconds), default=0.0)
        hook = ("lifecycle", "preStop", "exec", "command")
        kill = _KILL.search(" ".join(as_texts(dig(container.body, *hook)))[:4_000])
        if kill:
            yield Hit((*container.path, *hook), f"`{kill[0]}` ends the program without SIGTERM")
        # On Spot HF103 and HF145 compare with the window.
        if sleep_s and sleep_s >= grace_s and not context.place(pod).on_spot:
            yield Hit(path, f"sleeps {sleep_s:g} s of a grace period of {grace_s} s")
        elif drain_s and (sleep_s or 0.0) + drain_s > grace_s:
            message = f"a drain of {drain_s:g} s after {sleep_s or 0:g} s, in {grace_s} s of grace"
            yield Hit(container.command_path, message)
    if pod.grace_s == 0 and (pod.job or pod.gpus) and not _is_balloon(pod):
        path = (*pod.spec_path, "terminationGracePeriodSeconds")
        yield Hit(path, "0 kills the containers at once, without SIGTERM")


def _is_balloon(pod: Pod) -> bool:
    """Returns whether a pod only holds room for others, and does nothing itself."""
    for container in pod.main_containers:
        name = as_text(container.body.get("image"))[:500].rpartition("/")[2].partition(":")[0]
        is_asleep = container.programs[:1] == ["sleep"]
        if name not in ("pause", "pause-amd64") and not is_asleep:
            return False
    return True


@rule(
    "HF453",
    "command-is-one-word",
    Severity.ERROR,
    on=Pod,
    what="A command is written as one word, or as words that a shell does not get.",
    why=(
        "No shell splits it: the runtime looks for a program with spaces in its name. `sh -c` takes"
        " one word as its script, and the words after it as $0 and $1."
    ),
    source="https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/",
    fix="one item for each word; the script of sh -c as one item",
    base="container",
    bad="""\
command:
  - python train.py --epochs 3
""",
    good="""\
command:
  - python
  - train.py
  - --epochs
  - '3'
""",
)
def command_is_one_word(pod: Pod, context: Context) -> Iterator[Hit]:
    # KubeRay joins command and arguments to one line for a shell.
    is_joined = pod.owner.kind.startswith("Ray")
    for container in pod.containers:
        places: list[Path] = [] if is_joined else [("command",)]
        places += [(field, "exec", "command") for field in PROBES]
        places += [("lifecycle", hook, "exec", "command") for hook in ("preStop", "postStart")]
        if "command" not in container.body and not is_joined:
            places.append(("args",))
        for place in places:
            words = as_texts(dig(container.body, *place))
            if place == ("command",) and words[-1:] and words[-1] in _SCRIPT_OPTIONS:
                words = container.words
            problem = _judge_words(words, is_program=place != ("args",))
            if problem:
                yield Hit((*container.path, *place), problem)
        yield from _check_arguments(container)


def _judge_words(words: list[str], *, is_program: bool) -> str:
    """Returns what is wrong with a command; empty if nothing is."""
    if not words:
        return ""
    program = words[0].strip()
    # The name of a program may have a space, but no options.
    is_path = program.startswith(("/", "./")) and not re.search(r"\s-", program)
    is_text = " " in program and "\n" not in program and "$(" not in program
    if is_program and is_text and not is_path:
        return f"`{program[:60]}` is one word, with spaces"
    if program.rpartition("/")[2] not in SHELLS:
        return ""
    if is_program and len(words) == 2 and " " in words[1].strip() and not words[1].startswith("-"):
        return f"the shell looks for a file `{words[1][:60]}`: -c is missing"
    if len(words) < 4:
        return ""
    for index, word in enumerate(words[1:-1], start=1):
        if not word.startswith("-"):
            return ""
        if "c" in word and not word.startswith("--"):
            script = words[index + 1]
            rest = words[index + 2 :]
            # A script that reads $0 or $1 has arguments.
            if rest and not re.search(r"\s|[$;&|]", script.strip()):
                return f"the shell runs `{script[:60]}` alone; words after it are $0 and $1"
            return ""
    return ""


_SCRIPT_OPTIONS = ("-c", "-ec", "-lc", "-exc", "-xc", "-euc", "-eu")
_OPERATORS = ("&&", "||", ">", ">>", "2>&1")


def _check_arguments(container: Container) -> Iterator[Hit]:
    """Yields options in one word with their values, and operators that no shell reads."""
    has_shell = any(program in SHELLS for program in container.programs[:4])
    for key in ("command", "args"):
        words = as_texts(container.body.get(key))
        for index, word in enumerate(words[1:], start=1):
            if word in _OPERATORS and not has_shell and "command" in container.body:
                yield Hit((*container.path, key, index), f"no shell reads {word}")
        for index, word in enumerate(words):
            if re.fullmatch(r"--[\w-]{1,60} \S{1,200}", word) and not _is_script(words, index):
                flag = word.partition(" ")[0]
                yield Hit((*container.path, key, index), f"{flag} and its value are one word")


def _is_script(words: list[str], index: int) -> bool:
    """Returns whether a word is the script or an argument of a shell."""
    return any(word.startswith("-") and word.endswith("c") for word in words[:index])


@rule(
    "HF455",
    "drain-without-end",
    Severity.WARNING,
    on=Pod,
    what="A pod has more than an hour of grace.",
    why="An upgrade of GKE waits an hour for a pod, and the autoscaler ten minutes.",
    source="https://cloud.google.com/kubernetes-engine/docs/concepts/node-pool-upgrade-strategies",
    fix="save or drain within the hour",
    base="serving-pod",
    bad="""\
terminationGracePeriodSeconds: 86400
""",
    good="""\
terminationGracePeriodSeconds: 600
""",
)
def drain_without_end(pod: Pod, context: Context) -> Iterator[Hit]:
    if pod.grace_s is not None and pod.grace_s > _LONGEST_GRACE_S:
        path = (*pod.spec_path, "terminationGracePeriodSeconds")
        yield Hit(path, f"{pod.grace_s / 3600:g} hours")


@rule(
    "HF456",
    "timeout-above-the-period",
    Severity.INFO,
    on=Pod,
    what="A probe waits longer for its answer than for its next turn.",
    why="Probes do not overlap: a container that hangs is found only after the longer time.",
    source=DOCPROBES,
    fix="make timeoutSeconds less than periodSeconds",
    base="serving-container",
    bad="""\
livenessProbe:
  httpGet:
    path: /
    port: 8080
  periodSeconds: 10
  timeoutSeconds: 60
""",
    good="""\
livenessProbe:
  httpGet:
    path: /
    port: 8080
  periodSeconds: 10
  timeoutSeconds: 5
""",
)
def timeout_above_the_period(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for field in PROBES:
            probe = as_map(container.body.get(field))
            timeout_s = quantity(probe.get("timeoutSeconds")) or 1.0
            period_s = _period_s(probe)
            if probe and timeout_s > period_s:
                path = (*container.path, field, "timeoutSeconds")
                yield Hit(path, f"waits {timeout_s:g} s for an answer, every {period_s:g} s")

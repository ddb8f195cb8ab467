"""HF46x: environment variables that no program reads, and references to nothing."""

import re
from base64 import b64decode
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import (
    KNOWN_KINDS,
    SHELLS,
    Container,
    Job,
    Pod,
    as_int,
    as_list,
    as_map,
    as_text,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near
from holdfast.support.values import quantity
from holdfast.vocabulary import environment

DOC_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
DOC_VARIABLES = "https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/"
DOC_CUDA = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars"
_OURS = frozenset(
    value
    for name, value in vars(environment).items()
    if name.startswith("ENV_") and isinstance(value, str)
)
_NEAR = 0.85
_REFERENCE = re.compile(r"(?<!\$)\$\(([A-Za-z_][A-Za-z0-9_.-]{0,200})\)")
_LONGEST = 300
_LONGEST_TABLE = 1_400_000
_QUOTED = re.compile(r'"([A-Za-z_][A-Za-z0-9_]{0,200})"')
_SHELL_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]{0,200})\}?")
_OF_THE_SHELL = ("HOSTNAME", "HOME", "PWD", "PATH", "RANDOM", "JOB_COMPLETION_INDEX")
_WHOLE_VARIABLE = re.compile(r"(?:--?[\w-]{1,60}=)?\$([A-Z_][A-Z0-9_]{0,80})")
_SUBSTITUTION = re.compile(
    r"(?<!\$)\$\((?:date|hostname|nproc|whoami|pwd|uuidgen|seq|cat|echo|ls)(?: [^)]{0,80})?\)"
)
_INDEX_FIELD = "batch.kubernetes.io/job-completion-index"
_BRACED = re.compile(r"(?<![\\$])\$\{([A-Za-z_][A-Za-z0-9_]{0,200})\}")
_GROUP_VARIABLES = ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX")
_FROM_SERVICES = ("_SERVICE_HOST", "_SERVICE_PORT")
_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_NO_DEVICES = ("-1", "none", "void", "nodevfiles")
_PARALLEL = ("--tensor-parallel-size", "-tp", "--tp", "--tp-size", "--num-gpus", "--num_gpus")
_SPLIT = re.compile(r"(?<![\w-])tensor_parallel_size=(\d{1,3})(?!\d)")
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@rule(
    "HF460",
    "variable-misspelt",
    Severity.WARNING,
    on=Pod,
    what="A variable is nearly one that a library reads, or has a value that it does not know.",
    why="The library reads its own name only, and goes on with its default without a word.",
    source=DOC_NCCL,
    fix="correct the name or the value",
    base="container",
    bad="""\
env:
  - name: NCCL_SOCKET_IFNAMES
    value: eth0
""",
    good="""\
env:
  - name: NCCL_SOCKET_IFNAME
    value: eth0
""",
)
def variable_misspelt(pod: Pod, context: Context) -> Iterator[Hit]:
    known_names = _OURS | frozenset(load_table("variables")["names"])
    for container in pod.containers:
        text = container.script
        for path, name, value in container.variables:
            pattern, words = load_table("variable_forms").get(name, ("", ""))
            if pattern and value and not _has_form(value, pattern):
                yield Hit(path, f"{name} is {value[:80]}, and takes {words}")
            if name in _ALLOCATOR and "=" in value and ":" not in value:
                yield Hit(path, f"{name} takes key:value, not key=value")
            if name in known_names or not name or name in text:
                continue
            near_name = _find_misspelt(name, known_names)
            if near_name:
                yield Hit((*path[:-1], "name"), f"nothing reads {name}; did you mean {near_name}?")


def _has_form(value: str, pattern: str) -> bool:
    """Returns whether a value has a form; True for one that a reference or a template fills in."""
    is_given = any(mark in value for mark in "$<{")
    return is_given or bool(re.fullmatch(pattern, value[:_LONGEST], re.IGNORECASE))


def _find_misspelt(name: str, known_names: frozenset[str]) -> str:
    """Returns the known variable that a name is a typing error of; empty if there is none."""
    if name.upper() != name and name.upper() in known_names and name.lower() != name:
        return name.upper()
    near_name = find_near(name, known_names, _NEAR)
    families = tuple(load_table("variables")["families"])
    is_of_family = name.startswith(families) or near_name.startswith(families)
    # NCCL_P2P_DISABLE and NCCL_SHM_DISABLE are both right: another number or another whole word is
    # no typing error.
    parts = set(name.split("_"))
    near_parts = set(near_name.split("_"))
    differing = parts ^ near_parts
    if not near_name or not is_of_family or any(part.isdecimal() for part in differing):
        return ""
    return near_name if _are_alike(parts - near_parts, near_parts - parts) else ""


def _are_alike(parts: set[str], near_parts: set[str]) -> bool:
    """Returns whether the parts in which two names differ are typing errors of each other."""
    if not parts or not near_parts:
        return len(parts | near_parts) == 0 or all(len(part) < 3 for part in parts | near_parts)
    return all(find_near(part, near_parts, 0.6) for part in parts)


@rule(
    "HF461",
    "reference-undefined",
    Severity.ERROR,
    on=Pod,
    what="A command or a variable refers to a variable that the container does not have.",
    why=(
        "Kubernetes leaves $(NAME) as it is, if NAME is not defined before it. Without a shell"
        " $NAME is a plain text."
    ),
    source=DOC_VARIABLES,
    fix="define the variable, earlier in the list; write $(NAME) where no shell runs",
    base="container",
    bad="""\
command:
  - python
  - train.py
  - --data
  - $(DATA)
""",
    good="""\
command:
  - python
  - train.py
  - --data
  - $(DATA)
env:
  - name: DATA
    value: gs://b/d
""",
)
def reference_undefined(pod: Pod, context: Context) -> Iterator[Hit]:
    yield from _check_index_fields(pod)
    for container in pod.containers:
        if pod.owner.kind == "LeaderWorkerSet":
            yield from _check_group_variables(container)
        if pod.owner.kind not in KNOWN_KINDS:
            continue
        names = {name for _, name, _ in container.variables}
        names |= _list_given(pod)
        if container.body.get("envFrom"):
            for path, word in container.list_words() if not _has_shell(container) else ():
                yield from _check_shell_words(path, word, names)
            continue
        # Each point of a sweep gets the variables of its table.
        if environment.ENV_POINT in container.env:
            names |= _list_parameters(pod, context)
        yield from _check_variables(container, pod)
        index = environment.ENV_COMPLETION_INDEX
        is_read = _has_shell(container) and index in container.script and index not in names
        is_several = pod.job is not None and (as_int(pod.job.spec.get("completions")) or 1) > 1
        if is_read and is_several:
            message = f"{index} is there only with completionMode Indexed"
            yield Hit(container.command_path, message)
        if _has_shell(container):
            continue
        is_template = any("$" in text for text in _list_names(container))
        for path, word in container.list_words():
            yield from _check_word(path, word, names)
            command = _SUBSTITUTION.search(word[:_LONGEST])
            if command and not is_template:
                yield Hit(path, f"no shell runs {command[0]}: the program gets it as a text")
            match = _WHOLE_VARIABLE.fullmatch(word[:_LONGEST])
            if match and match[1] not in names and not is_template:
                yield Hit(path, f"no shell replaces ${match[1]}, and nothing sets it")


def _list_names(container: Container) -> Iterator[str]:
    """Yields names and values around a command, in which a template has placeholders too."""
    owner = container.pod.owner
    yield from (owner.name, owner.namespace, as_text(container.body.get("image")))
    yield container.pod.account
    for _, volume in container.pod.volumes:
        yield as_text(dig(volume, "csi", "volumeAttributes", "bucketName"))
    for _, _, value in container.variables:
        yield value


def _check_index_fields(pod: Pod) -> Iterator[Hit]:
    """Yields variables that take the index of a Job whose pods have none."""
    if pod.job is None or _list_given(pod):
        return
    for container in pod.containers:
        for index, item in enumerate(as_list(container.body.get("env"))):
            field = as_text(dig(item, "valueFrom", "fieldRef", "fieldPath"))
            if _INDEX_FIELD in field:
                path = (*container.path, "env", index, "valueFrom", "fieldRef", "fieldPath")
                yield Hit(path, "the pods have an index only with completionMode Indexed")


def _check_group_variables(container: Container) -> Iterator[Hit]:
    """Yields references to variables that LeaderWorkerSet does not set."""
    for path, word in container.list_words():
        for name in re.findall(r"\$[({](LWS_\w{1,60})[)}]", word[:4_000]):
            if name not in _GROUP_VARIABLES and name not in container.env:
                known_names = ", ".join(_GROUP_VARIABLES)
                yield Hit(path, f"nothing sets {name}; the controller sets {known_names}")


def _list_given(pod: Pod) -> set[str]:
    """Returns the variables that Kubernetes adds by itself."""
    if pod.job is None:
        return set()
    mode = pod.job.spec.get("completionMode")
    is_indexed = mode == "Indexed" or (pod.job.in_jobset and mode is None)
    return {environment.ENV_COMPLETION_INDEX} if is_indexed else set()


def _list_parameters(pod: Pod, context: Context) -> set[str]:
    """Returns the words in quotes of the ConfigMaps that a pod mounts."""
    names: set[str] = set()
    for _, volume in pod.volumes:
        name = as_text(dig(volume, "configMap", "name"))
        table = context.index.find("ConfigMap", name, pod.owner.namespace) if name else None
        for text in as_map(table.body.get("binaryData")).values() if table else ():
            names |= set(_QUOTED.findall(_decode(as_text(text))))
    return names


def _decode(text: str) -> str:
    """Decodes base64; empty where it is none."""
    try:
        return b64decode(text[:_LONGEST_TABLE], validate=True).decode(errors="replace")
    except ValueError:
        return ""


def _has_shell(container: Container) -> bool:
    return any(program in SHELLS for program in container.programs[:3])


def _check_word(path: Path, word: str, names: set[str]) -> Iterator[Hit]:
    for name in _REFERENCE.findall(word[:4_000]):
        if name not in names and not name.endswith(_FROM_SERVICES):
            reason = "is no variable of the container"
            if name == environment.ENV_COMPLETION_INDEX:
                reason = "is there only with completionMode Indexed"
            yield Hit(path, f"{name} {reason}")
    yield from _check_shell_words(path, word, names)


def _check_shell_words(path: Path, word: str, names: set[str]) -> Iterator[Hit]:
    """Yields variables that only a shell replaces."""
    for name in _BRACED.findall(word[:4_000]):
        if name in names:
            yield Hit(path, f"no shell replaces ${{{name}}}; write $({name})")
            return
    match = _SHELL_VARIABLE.fullmatch(word) or re.search(r"=\$\{?([A-Z_][A-Z0-9_]*)\}?$", word)
    if match and (match[1] in names or match[1] in _OF_THE_SHELL):
        yield Hit(path, f"no shell replaces ${match[1]}; write $({match[1]})")


def _check_variables(container: Container, pod: Pod) -> Iterator[Hit]:
    """Yields variables whose values refer to one that is defined later, or not at all."""
    all_names = [name for _, name, _ in container.variables]
    defined = _list_given(pod)
    for path, name, value in container.variables:
        for reference in _REFERENCE.findall(value[:4_000]):
            if reference in defined or reference.endswith(_FROM_SERVICES):
                continue
            is_later = reference in all_names
            reason = "is defined after it" if is_later else "is no variable of the container"
            yield Hit(path, f"{reference} {reason}")
        for reference in _BRACED.findall(value[:4_000]):
            if reference in all_names and reference != name and not _has_shell(container):
                yield Hit(path, f"nothing replaces ${{{reference}}}; write $({reference})")
                break
        defined.add(name)


@rule(
    "HF462",
    "more-devices-than-gpus",
    Severity.ERROR,
    on=Pod,
    what="A variable or an option names more devices than the container has GPUs.",
    why="A process without a device fails at its first call: invalid device ordinal.",
    source=DOC_CUDA,
    fix="leave CUDA_VISIBLE_DEVICES out; make the options equal to nvidia.com/gpu",
    base="container",
    bad="""\
env:
  - name: CUDA_VISIBLE_DEVICES
    value: 0,1
""",
    good="""\
env:
  - name: CUDA_VISIBLE_DEVICES
    value: '0'
""",
)
def more_devices_than_gpus(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        if not container.gpus:
            continue
        for path, name, value in container.variables:
            devices = [part.strip() for part in value.split(",")] if value else []
            numbers = [int(part) for part in devices if part.isdecimal() and len(part) < 4]
            is_beyond = len(devices) > container.gpus or max(numbers, default=0) >= container.gpus
            if name in _DEVICES and numbers and is_beyond:
                message = f"{name} is {value}, and the container has {container.gpus} GPUs"
                yield Hit(path, message)
        for path, name, value in container.variables:
            if name in _DEVICES and value.lower() in _NO_DEVICES:
                yield Hit(path, f"{name} is {value}: the program sees no GPU")
            if name == "JAX_PLATFORMS" and value == "cpu":
                yield Hit(path, "JAX computes on the CPU, beside a GPU")
        for path, text in container.list_texts():
            for count in _SPLIT.findall(text[:4_000]):
                if int(count) > container.gpus and _is_alone(container):
                    message = f"splits over {count} GPUs, and the container has {container.gpus}"
                    yield Hit(path, message)
        for option in _PARALLEL:
            count = container.number(option)
            if count is not None and count > container.gpus and _is_alone(container):
                message = f"{option} {count}, and the container has {container.gpus} GPUs"
                yield Hit(container.command_path, message)


def _is_alone(container: Container) -> bool:
    """Returns whether a server has no other pods to spread its model over."""
    options = ("--distributed-executor-backend", "--nnodes", "--dist-init-addr", "--node-rank")
    return not any(container.option(option) for option in options) and "ray" not in container.words


_TIME_OPTION = re.compile(
    r"--(?:max|train|total|run|wall|job)?[-_]?(?:train|run|job|wall)?[-_]?"
    r"(hours?|minutes|mins|seconds|secs|duration|time|runtime|walltime|time[-_]limit)(?:[-_](h|hours|s|seconds|minutes|limit))?"
)
_CLOCK = re.compile(r"(?:(\d{1,3})[-:])?(\d{1,3}):(\d\d):(\d\d)")
_UNITS_S = {"h": 3_600.0, "m": 60.0, "s": 1.0}


@rule(
    "HF463",
    "deadline-before-the-end",
    Severity.ERROR,
    on=Job,
    what="A Job ends by its deadline before the time that its options state.",
    why="The Job fails with DeadlineExceeded, and nothing starts it again.",
    source="https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup",
    fix="set activeDeadlineSeconds above the program's time, with room for evictions",
    base="job",
    bad="""\
spec:
  activeDeadlineSeconds: 3600
  template:
    spec:
      containers:
        - name: main
          image: train
          command:
            - python
            - train.py
            - --max-hours
            - '48'
          resources:
            limits:
              nvidia.com/gpu: 1
""",
    good="""\
spec:
  activeDeadlineSeconds: 259200
  template:
    spec:
      containers:
        - name: main
          image: train
          command:
            - python
            - train.py
            - --max-hours
            - '48'
          resources:
            limits:
              nvidia.com/gpu: 1
""",
)
def deadline_before_the_end(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.containers:
        for option, seconds in _list_times(container):
            for path, limit_s in job.deadlines:
                if 0 < limit_s < seconds:
                    message = f"ends after {limit_s} s, and {option} is {seconds:g} s"
                    yield Hit(path, message)


def _list_times(container: Container) -> Iterator[tuple[str, float]]:
    """Yields the options of a program that state how long it runs, in seconds."""
    words = [part for word in container.words for part in word[:4_000].split()]
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        match = _TIME_OPTION.fullmatch(option)
        if match:
            text = value if equals else (words[index + 1] if index + 1 < len(words) else "")
            seconds = _parse_time(text, match[1] + (match[2] or ""))
            if seconds:
                yield option, seconds
        if word == "timeout" and index + 1 < len(words):
            seconds = _parse_time(words[index + 1], "seconds")
            if seconds:
                yield "timeout", seconds


def _parse_time(text: str, unit: str) -> float:
    """Returns seconds; 0 where the text is no time, or has no unit."""
    text = text.strip("'\"")
    clock = _CLOCK.fullmatch(text)
    if clock:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
    number = quantity(text[:-1]) if text[-1:] in _UNITS_S else None
    if number is not None:
        return number * _UNITS_S[text[-1]]
    if text.endswith("d") and quantity(text[:-1]) is not None:
        return (quantity(text[:-1]) or 0.0) * 86_400
    number = quantity(text)
    if number is None:
        return 0.0
    if "hour" in unit or unit.endswith("h"):
        return number * 3_600
    if "min" in unit:
        return number * 60
    return number if "sec" in unit or unit.endswith("s") else 0.0

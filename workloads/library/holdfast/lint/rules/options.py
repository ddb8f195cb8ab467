"""HF57x: options that a program does not know, or gives to another program."""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import SHELLS, Container, Job, Pod, as_text
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near

DOC_VLLM = "https://docs.vllm.ai/en/latest/cli/serve/"
DOC_RUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
DOC_PYTHON = "https://docs.python.org/3/using/cmdline.html"
_NEAR = 0.85
_REDIS = re.compile(r"(^|/)(redis|valkey)(?=[:@]|$)")
_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
# Options of torchrun without a value.
_SWITCHES = ("m", "module", "no-python", "run-path", "standalone", "virtual-local-rank")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_PLAIN_WORD = re.compile(r"[A-Za-z_]\w*")
_BUCKET_URL = re.compile(r"(?<![\w/])(gs|gcs|gsc)://([A-Za-z0-9][\w.-]{1,80})(?![\w$<{])")
_PYTHON_FLAGS = ("-u", "-O", "-OO", "-B", "-E", "-I", "-s")
_ONE_SLASH = re.compile(r"(?<![\w./])(gs|s3|hf|https?)(?::/(?![/\s])|//)[\w.-]+")


def _find_program(container: Container) -> str:
    """Returns the program whose options are known; empty where the command is another."""
    if any(program in _TORCHRUN for program in container.programs):
        return "torchrun"
    image = as_text(container.body.get("image"))[:500]
    has_command = bool(container.body.get("command"))
    is_server = "vllm-openai" in image and not has_command
    if is_server or container.runs("vllm", "serve"):
        return "vllm"
    is_redis = bool(_REDIS.search(image)) and not has_command
    if is_redis:
        return "redis-server"
    program = next(iter(container.programs), "")
    return program if program in load_table("options") else ""


def _list_options(container: Container, program: str) -> list[tuple[str, str]]:
    """Lists name and value of the options that a program gets itself."""
    words = container.arguments
    options: list[tuple[str, str]] = []
    start = 0
    if program == "torchrun":
        starts = [i for i, word in enumerate(container.arguments) if word.endswith(_TORCHRUN)]
        start = starts[0] + 1 if starts else 0
    index = start
    while index < len(words):
        word = words[index]
        index += 1
        flag, equals, value = word.partition("=")
        if not flag.startswith("-"):
            # The first plain word after torchrun is the script: what follows is for it.
            if program == "torchrun":
                break
            continue
        name = flag.lstrip("-").replace("_", "-")
        is_switch = name in _SWITCHES or index >= len(words) or words[index].startswith("--")
        if not equals and not is_switch:
            value = words[index]
            index += 1
        options.append((name, value))
    return options


@rule(
    "HF570",
    "option-unknown",
    Severity.ERROR,
    on=Pod,
    what="An option is misspelt, or has a value that its program does not know.",
    why="The program ends at its start with a usage message, on a GPU that is paid for.",
    source=DOC_VLLM,
    fix="correct the option or its value",
    base="serving-container",
    bad="""\
command:
- vllm
- serve
- m
- --kv-cache-dtype
- fp16
""",
    good="""\
command:
- vllm
- serve
- m
- --kv-cache-dtype
- fp8
""",
)
def check_options(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        program = _find_program(container)
        if not program:
            continue
        known_names = load_table("flags").get(program, ())
        for name, value in _list_options(container, program):
            near_name = "" if name in known_names else find_near(name, known_names, _NEAR)
            if near_name and f"no-{near_name}" != name and len(name) > 2:
                message = f"{program} has no option --{name}; did you mean --{near_name}?"
                yield Hit(container.command_path, message)
            pattern, words = load_table("options")[program].get(name, ("", ""))
            is_given = not value or any(mark in value for mark in "$<{")
            if pattern and not is_given and not re.fullmatch(pattern, value[:300]):
                message = f"--{name} is {value[:80]}, and takes {words}"
                yield Hit(container.command_path, message)
            low, colon, high = value.partition(":")
            is_range = name == "nnodes" and bool(colon) and f"{low}{high}".isdecimal()
            fewest_nodes = int(low[:9] or 0) if is_range else 0
            if is_range and high and fewest_nodes > int(high[:9]):
                yield Hit(container.command_path, f"--nnodes is {value}: LEAST is above MOST")


@rule(
    "HF571",
    "option-after-the-script",
    Severity.ERROR,
    on=Pod,
    what="An option of torchrun comes after the script, or no node gets a rank of its own.",
    why="The script gets the option, and torchrun its default: one process, or rank 0 everywhere.",
    source=DOC_RUN,
    fix="write the options of torchrun before the script",
    base="container",
    bad="""\
command:
- torchrun
- train.py
- --nproc-per-node=1
""",
    good="""\
command:
- torchrun
- --nproc-per-node=1
- train.py
""",
)
def check_order(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        yield from _check_accelerate(container)
        if _find_program(container) != "torchrun":
            continue
        own_options = dict(_list_options(container, "torchrun"))
        for word in container.arguments:
            name = word.partition("=")[0].lstrip("-").replace("_", "-")
            if word.startswith("--") and name in _LAUNCHING and name not in own_options:
                message = f"--{name} comes after the script, which gets it"
                yield Hit(container.command_path, message)
        if pod.job and pod.job.parallelism > 1:
            yield from _check_rank(container, own_options, pod.job)


def _check_accelerate(container: Container) -> Iterator[Hit]:
    """Yields options of `accelerate launch` that come after the script."""
    words = container.arguments
    is_launch = "accelerate" in container.programs and "launch" in words
    scripts = [index for index, word in enumerate(words) if word.endswith(".py")]
    for word in words[scripts[0] :] if is_launch and scripts else ():
        name = word.partition("=")[0].replace("-", "_")
        if name in _OF_ACCELERATE:
            yield Hit(container.command_path, f"{word} comes after the script, which gets it")


_OF_ACCELERATE = (
    "__num_processes",
    "__num_machines",
    "__machine_rank",
    "__main_process_ip",
    "__main_process_port",
    "__use_fsdp",
    "__use_deepspeed",
    "__multi_gpu",
)
_LAUNCHING = ("max-restarts", "nnodes", "node-rank", "nproc-per-node", "rdzv-backend")


def _check_rank(container: Container, options: dict[str, str], job: Job) -> Iterator[Hit]:
    """Yields a static launch in which each pod is node 0."""
    variables = container.env.keys()
    nodes = options.get("nnodes", "1")
    is_static = options.get("rdzv-backend", "static") == "static"
    is_ranked = "node-rank" in options or variables & {"PET_NODE_RANK", "PET_RDZV_BACKEND"}
    if nodes.isdecimal() and int(nodes[:9]) > 1 and is_static and not is_ranked:
        message = f"no --node-rank and no --rdzv-backend: each of {job.parallelism} pods is node 0"
        yield Hit(container.command_path, message)


@rule(
    "HF572",
    "module-or-script",
    Severity.ERROR,
    on=Pod,
    what="Python gets a file as a module, or a module as a file; or a URL has one slash.",
    why="The program ends at its start: no such module, file or bucket.",
    source=DOC_PYTHON,
    fix="python train.py, or python -m train; gs://BUCKET",
    base="container",
    bad="""\
command:
- python
- -m
- train.py
""",
    good="""\
command:
- python
- -m
- train
""",
)
def check_python(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        programs = container.programs
        words = container.words
        while len(words) > 2 and _PYTHON.fullmatch(programs[0]) and words[1] in _PYTHON_FLAGS:
            words = [words[0], *words[2:]]
        if len(words) > 1 and _PYTHON.fullmatch(programs[0]):
            if words[1] == "-m" and len(words) > 2 and words[2].endswith(".py"):
                yield Hit(container.command_path, f"-m takes a module, and {words[2]} is a file")
            elif _PLAIN_WORD.fullmatch(words[1]) and not container.body.get("workingDir"):
                message = f"python looks for a file {words[1]}; a module needs -m, a script .py"
                yield Hit(container.command_path, message)
        for path, text in container.list_texts():
            match = _ONE_SLASH.search(text[:4_000])
            if (
                match
                and match[0]
                and (match[1] in ("gs", "s3") or (programs[:1] and programs[0] not in SHELLS))
            ):
                yield Hit(path, f"{match[0]} is no URL: {match[1]}://")
            if "gs:///" in text[:4_000]:
                yield Hit(path, "gs:/// names no bucket: gs://BUCKET")
            for scheme, bucket in _BUCKET_URL.findall(text[:4_000]):
                if scheme != "gs":
                    yield Hit(path, f"{scheme}:// is no scheme of Cloud Storage: gs://")
                elif bucket != bucket.lower() and not bucket.isupper():
                    yield Hit(path, f"no bucket has the name {bucket}: names have small letters")

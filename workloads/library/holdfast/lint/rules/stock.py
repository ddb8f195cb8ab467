"""HF798 and HF799: public images whose entrypoint or files a command misjudges.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.folders import find_mount
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Container, Pod, as_text, as_texts
from holdfast.lint.registry import Context, rule

DOC_VLLM = "https://docs.vllm.ai/en/latest/deployment/docker.html"
DOC_COMMAND = (
    "https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/"
)
_PYTHON = re.compile(r"python(\d(\.\d{1,2})?)?")
_LAUNCHERS = ("torchrun", "deepspeed")
# Options of servers of models that name a file or a folder.
_FILE_OPTIONS = (
    "--model",
    "--model-path",
    "--model-id",
    "--model-repository",
    "--tokenizer",
    "--chat-template",
    "--config",
    "--tool-parser-plugin",
    "--ssl-certfile",
    "--ssl-keyfile",
)
_MODULES = re.compile(r"(?:^|\s)[\w.-]{1,80}=(/[\w./-]{1,200})")


def get_repository(container: Container) -> str:
    """Returns the image without its tag and digest, as short as Docker Hub has it."""
    image = as_text(container.body.get("image"))[:500].partition("@")[0]
    head, slash, name = image.rpartition("/")
    repository = f"{head}{slash}{name.partition(':')[0]}"
    return repository.removeprefix("docker.io/").removeprefix("library/")


@rule(
    "HF798",
    "entrypoint-given-twice",
    Severity.ERROR,
    on=Pod,
    what="`args` repeat the program that the image starts, or `command` has options only.",
    why="The program gets its own name as an argument, or the first option is run as a program.",
    source=DOC_COMMAND,
    fix="`args` are options for the image's program; `command` replaces the program",
    base="serving-container",
    bad="""\
command:
- --model=/models/m
- --port=8000
""",
    good="""\
args:
- --model=/models/m
- --port=8000
""",
)
def check_entrypoints(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        commands = as_texts(container.body.get("command"))
        if commands and commands[0].startswith("-"):
            yield Hit((*container.path, "command"), f"{commands[0][:80]} is run as a program")
        programs = load_table("entrypoints").get(get_repository(container), [])
        arguments = as_texts(container.body.get("args"))
        word = arguments[0].rpartition("/")[2] if arguments and not commands else ""
        if word in programs and not arguments[0].startswith("-"):
            yield Hit((*container.path, "args", 0), f"the image runs {programs[0]} itself")


def _write_server(place: str) -> str:
    return f"""\
volumes:
- name: models
  persistentVolumeClaim:
    claimName: models
containers:
- name: main
  image: vllm/vllm-openai:v0.10.2
  args:
  - --model=/models/qwen
  resources:
    limits:
      memory: 24Gi
      nvidia.com/gpu: 1
  volumeMounts:
  - name: models
    mountPath: {place}
"""


@rule(
    "HF799",
    "file-not-in-the-image",
    Severity.ERROR,
    on=Pod,
    what="A public image is asked for a program, a model or a template that it does not have.",
    why="The program ends at once: no such file. Nothing mounts, fetches or builds it in.",
    source=DOC_VLLM,
    fix="mount it, fetch it, or use an image of yours that has it",
    base="serving-pod",
    bad=_write_server("/weights"),
    good=_write_server("/models"),
)
def check_files(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        folders = load_table("stock_images").get(get_repository(container))
        if folders is None:
            continue
        for path, file in _list_files(container):
            is_own = file.startswith(tuple(folders))
            if not is_own and find_mount(container, file) is None and "$" not in file:
                yield Hit(path, f"{get_repository(container)} has no {file}")
                break


def _list_files(container: Container) -> Iterator[tuple[Path, str]]:
    """Yields the files that a command without a shell names: its script, then options."""
    words = list(container.list_words())
    plain = [word for _, word in words]
    is_python = bool(plain) and bool(_PYTHON.fullmatch(plain[0].rpartition("/")[2]))
    if is_python or (plain and plain[0] in _LAUNCHERS):
        for path, word in words[1:]:
            if word in ("-m", "-c", "--module"):
                break
            if word.endswith(".py"):
                yield path, _place_in(container, word)
                break
    for option in _FILE_OPTIONS:
        value = container.option(option) if plain and " " not in plain[-1] else ""
        if value.startswith("/"):
            yield container.command_path, value
    modules = container.option("--lora-modules")
    for file in _MODULES.findall(modules[:1_000]):
        yield container.command_path, file


def _place_in(container: Container, file: str) -> str:
    """Returns the whole path of a file; `$` where it is in a folder that may be mounted."""
    folder = as_text(container.body.get("workingDir"))
    if file.startswith("/"):
        return file
    # Folders in which these images start.
    is_mounted = any(find_mount(container, start) for start in ("/workspace", "/home/ray"))
    if not folder:
        return "$" if is_mounted else file
    return f"{folder.rstrip('/')}/{file.removeprefix('./')}"

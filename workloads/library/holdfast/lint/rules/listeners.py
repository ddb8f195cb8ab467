"""HF464, HF467 and HF469: the ports on which programs listen and meet."""

import re
from collections.abc import Iterator
from itertools import pairwise

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import PROBES, Container, Job, Pod, as_text, dig
from holdfast.lint.registry import Context, rule

DOC_RUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_MEETING_OPTIONS = ("--rdzv-endpoint", "--rdzv_endpoint")
_LAST_PORT = 65_535
_PORT_OPTIONS = ("--port", "--http-port", "--server-port", "--listen-port")
_BIND_OPTIONS = (
    *("--host", "--bind", "-b", "--listen", "--server-name", "--address"),
    *("--addr", "--listen-addr", "--listen-address", "--http-addr", "--bind-address"),
)
_PORT_SETTINGS = (
    *("GRADIO_SERVER_PORT", "UVICORN_PORT", "FLASK_RUN_PORT", "STREAMLIT_SERVER_PORT", "PORT"),
    *("LISTEN_PORT", "HTTP_PORT", "SERVER_PORT", "APP_PORT", "API_PORT", "MLFLOW_PORT"),
)
_HOST_SETTINGS = (
    *("GRADIO_SERVER_NAME", "UVICORN_HOST", "FLASK_RUN_HOST", "STREAMLIT_SERVER_ADDRESS"),
    *("OLLAMA_HOST", "LISTEN_HOST", "BIND_ADDRESS", "MLFLOW_HOST"),
)
_HOST_VARIABLES = {"UVICORN_HOST", "FLASK_RUN_HOST", "GUNICORN_CMD_ARGS", "MLFLOW_HOST", "PORT"}
_PORT_VARIABLES = {"PORT", "OLLAMA_HOST", "QDRANT__SERVICE__HTTP_PORT"}
# A file of settings, or a socket in place of a port.
_SETTINGS_OPTIONS = ("-c", "--config", "--uds", "--fd")
# Programs that listen on the loopback address without an option.
_LOCAL_BY_DEFAULT = (
    *("uvicorn", "hypercorn", "gunicorn", "flask", "mlflow", "jupyter", "jupyter-lab"),
    *("tensorboard", "chroma"),
)
_OPENING_OPTIONS = ("--ip", "--bind_all", "--bind-all", "-h")
# Servers by their images -> the port on which they listen without an option.
_DEFAULT_PORTS = {
    "vllm/vllm-openai": 8000,
    "lmsysorg/sglang": 30000,
    "ollama/ollama": 11434,
    "huggingface/text-generation-inference": 80,
    "huggingface/text-embeddings-inference": 80,
    "qdrant/qdrant": 6333,
}
# Hosts on which a server listens; behind any other, a port is that of another server.
_OWN_HOSTS = ("", "0.0.0.0", "*", "[::]", "::", "127.0.0.1", "localhost")
_ADDRESS_OPTIONS = ("--master-port", "--master_port", "--main_process_port")


def _listens(port: int) -> str:
    return f"ports: [{{containerPort: 8000}}]\nargs: [--model, m, --port, '{port}']"


@rule(
    "HF464",
    "port-out-of-range",
    Severity.ERROR,
    on=Pod,
    what="A variable or an option names a port above 65535.",
    why="The program ends at its start, or its members never meet.",
    source="https://docs.pytorch.org/docs/stable/distributed.html",
    fix="write a port from 1024 to 65535",
    base="container",
    bad="env: [{name: MASTER_PORT, value: '295000'}]",
    good="env: [{name: MASTER_PORT, value: '29500'}]",
)
def require_valid_ports(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        for path, name, value in container.variables:
            if not re.search(r"(^|_)PORT$", name) or not value.isdecimal():
                continue
            port = int(value[:9])
            if port > _LAST_PORT:
                yield Hit(path, f"{name} is {value}")
        for option in (*_PORT_OPTIONS, *_ADDRESS_OPTIONS):
            port = container.number(option)
            if port is not None and port > _LAST_PORT:
                yield Hit(container.command_path, f"{option} is {port}")


@rule(
    "HF467",
    "listens-elsewhere",
    Severity.ERROR,
    on=Pod,
    what="A server listens on another port than those of its container, its probes or its Service.",
    why="Probes fail, and requests of the Service get no answer.",
    source="https://kubernetes.io/docs/concepts/services-networking/service/",
    fix="make --port and containerPort the same",
    base="serving-container",
    bad=_listens(8080),
    good=_listens(8000),
)
def listens_elsewhere(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        if not container.ports or pod.job:
            continue
        yield from _check_default_host(container, pod, context)
        if _is_client(container, pod):
            continue
        yield from _check_settings(container, pod, context)
        for option in _BIND_OPTIONS:
            host = container.option(option).partition(":")[0]
            is_needed = _is_asked(container) or _is_behind_service(pod, context)
            if host in ("127.0.0.1", "localhost") and is_needed:
                message = f"{option} is {host}: nothing outside the pod reaches it"
                yield Hit(container.command_path, message)
        for option, port in _list_own_ports(container):
            if port in container.ports:
                continue
            if _is_asked(container) or _is_behind_service(pod, context):
                ports = ", ".join(map(str, sorted(container.ports)))
                message = f"{option} is {port}, and the container has the ports {ports}"
                yield Hit(container.command_path, message)


def _check_settings(container: Container, pod: Pod, context: Context) -> Iterator[Hit]:
    """Yields variables and options with another port than the one that the container declares."""
    is_needed = _is_asked(container) or _is_behind_service(pod, context)
    for path, name, value in container.variables:
        if name in _PORT_SETTINGS and value.isdecimal() and is_needed:
            host = container.env.get(name.removesuffix("PORT") + "HOST", "")
            if host in _OWN_HOSTS and int(value[:9]) not in container.ports:
                ports = ", ".join(map(str, sorted(container.ports)))
                yield Hit(path, f"{name} is {value}, and the container has the ports {ports}")
        elif name in _HOST_SETTINGS and value in ("127.0.0.1", "localhost") and is_needed:
            yield Hit(path, f"{name} is {value}: nothing outside the pod reaches it")
    for number, port_name in container.ports.items():
        port = container.number(f"--{port_name}-port") if port_name else None
        if port is not None and port != number and port not in container.ports:
            message = f"--{port_name}-port is {port}, and the port {port_name} is {number}"
            yield Hit(container.command_path, message)


def _list_own_ports(container: Container) -> Iterator[tuple[str, int]]:
    """Yields the options that say on which port a server listens, with the port."""
    is_own = container.option("--host") in _OWN_HOSTS
    for option in _PORT_OPTIONS if is_own else ():
        # A script may start several programs, each with a port.
        ports = _list_numbers(container, option)
        if ports and not ports & container.ports.keys():
            yield option, min(ports)
    for option in _BIND_OPTIONS:
        address = container.option(option)[:300].rpartition("//")[2]
        host, colon, port_text = address.rpartition(":")
        if colon and port_text.isdecimal() and host in _OWN_HOSTS:
            yield option, int(port_text[:9])


def _list_numbers(container: Container, option: str) -> set[int]:
    """Lists the whole numbers that a command gives to an option."""
    numbers: set[int] = set()
    for word, successor in pairwise([*container.arguments, ""]):
        name, _, value = word.partition("=")
        text = value or successor
        if name == option and text.isascii() and text.isdecimal() and len(text) < 9:
            numbers.add(int(text))
    return numbers


def _is_client(container: Container, pod: Pod) -> bool:
    """Returns whether the host and port of a command may be those of another container."""
    neighbors = 0
    for other in pod.containers:
        neighbors += other.is_main or other.body.get("restartPolicy") == "Always"
    if neighbors < 2:
        return False
    for option in _BIND_OPTIONS:
        host, _, port = container.option(option).partition(":")
        is_own = port.isdecimal() and int(port[:9]) in container.ports
        if host in ("127.0.0.1", "localhost") and not is_own:
            return True
    return False


def _check_default_host(container: Container, pod: Pod, context: Context) -> Iterator[Hit]:
    """Yields a server that listens on the loopback address by default, or on another port."""
    is_needed = _is_asked(container) or _is_behind_service(pod, context)
    program = next(iter(container.programs), "")
    has_host = bool(_HOST_VARIABLES & container.env.keys())
    for option in (*_BIND_OPTIONS, *_SETTINGS_OPTIONS):
        has_host = has_host or bool(container.option(option))
    for option in _OPENING_OPTIONS:
        has_host = has_host or option in container.arguments or bool(container.option(option))
    if program in _LOCAL_BY_DEFAULT and not has_host and is_needed:
        yield Hit(
            container.command_path, f"{program} listens on 127.0.0.1 without an option for its host"
        )
    image = as_text(container.body.get("image"))[:500]
    has_port = bool(_PORT_VARIABLES & container.env.keys())
    for option in (*_PORT_OPTIONS, "-p"):
        has_port = has_port or bool(container.option(option))
    has_command = bool(container.body.get("command"))
    if has_port or has_command or len(pod.containers) > 1:
        return
    for name, port in _DEFAULT_PORTS.items():
        if name in image and port not in container.ports:
            ports = ", ".join(map(str, sorted(container.ports)))
            message = f"listens on {port} without --port, and the container has {ports}"
            yield Hit((*container.path, "ports"), message)


def _is_asked(container: Container) -> bool:
    """Returns whether a probe asks a port that the container declares."""
    for field in PROBES:
        port = dig(container.body, field, "httpGet", "port")
        is_number = isinstance(port, int) and port in container.ports
        if is_number or port in container.ports.values():
            return True
    return len(container.ports) == 1


def _is_behind_service(pod: Pod, context: Context) -> bool:
    return bool(context.index.find_selecting("Service", pod)) and bool(pod.labels)


@rule(
    "HF469",
    "ports-of-a-gang-differ",
    Severity.ERROR,
    on=Job,
    what="The port in a command of a gang is not the one in its variables.",
    why="Members meet at two ports, and wait for each other.",
    source=DOC_RUN,
    fix="state the port once: --master-port=$(MASTER_PORT)",
    base="job-pod",
    bad="""\
containers:
  - name: main
    image: train
    command:
      - torchrun
      - --master-port=29400
      - t.py
    env:
      - name: MASTER_PORT
        value: '29500'
    resources:
      limits:
        nvidia.com/gpu: 1
""",
    good="""\
containers:
  - name: main
    image: train
    command:
      - torchrun
      - --master-port=29500
      - t.py
    env:
      - name: MASTER_PORT
        value: '29500'
    resources:
      limits:
        nvidia.com/gpu: 1
""",
)
def compare_gang_ports(job: Job, context: Context) -> Iterator[Hit]:
    for container in job.containers:
        yield from _check_rendezvous(container)
        master_port = container.number("", "MASTER_PORT") or container.number("", "PET_MASTER_PORT")
        is_beyond = len(container.ports) == 1 and master_port not in container.ports
        if master_port and is_beyond and job.parallelism > 1 and _names_meeting(container):
            port = min(container.ports)
            yield Hit(container.command_path, f"MASTER_PORT is {master_port}, its port is {port}")
        for option in _ADDRESS_OPTIONS:
            port = container.number(option)
            if port is None:
                continue
            if master_port and port != master_port:
                message = f"{option} is {port}, MASTER_PORT is {master_port}"
                yield Hit(container.command_path, message)
            elif container.ports and port not in container.ports:
                ports = ", ".join(map(str, sorted(container.ports)))
                message = f"{option} is {port}, and the container has the ports {ports}"
                yield Hit(container.command_path, message)


def _names_meeting(container: Container) -> bool:
    """Returns whether the one port of a container is that of the rendezvous."""
    name = next(iter(container.ports.values()), "")
    is_plain = not name or re.search(r"rdzv|master|rendezvous|nccl|torch|dist", name)
    return bool(is_plain) and not any(container.body.get(field) for field in PROBES)


def _check_rendezvous(container: Container) -> Iterator[Hit]:
    """Yields a rendezvous at a port that its container does not declare."""
    for option in _MEETING_OPTIONS:
        port = container.expand(container.option(option)).rpartition(":")[2]
        if container.ports and port.isdecimal() and int(port[:9]) not in container.ports:
            ports = ", ".join(map(str, sorted(container.ports)))
            message = f"{option} has port {port}, and the container has the ports {ports}"
            yield Hit(container.command_path, message)

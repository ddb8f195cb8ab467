"""HF640 to HF645: servers of models: the paths of their probes, their options, their names."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.object_index import get_selector
from holdfast.lint.objects import (
    PROBES,
    Container,
    Object,
    Pod,
    as_map,
    as_text,
    dig,
)
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.contents import find_model

DOC_PROBES = "https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/"
DOC_VLLM = "https://docs.vllm.ai/en/latest/cli/serve/"
_TLS_OPTIONS = ("--ssl-keyfile", "--ssl-certfile", "--ssl_keyfile", "--certfile", "--tls-cert-file")
_WITHOUT_GRPC = ("vLLM", "TGI", "Ollama", "SGLang")
_QUANTIZATIONS = ("awq", "gptq", "gguf")
_QUANTIZED = re.compile(r"awq|gptq|int4|int8|[48]-?bit|w4a16|w8a8|quant|marlin", re.IGNORECASE)
_MODEL_VARIABLES = re.compile(r"^((OPENAI|LLM|VLLM|CHAT|SERVED|INFERENCE)_)?MODEL(_NAME|_ID)?$")
_URL = re.compile(r"https?://([a-z0-9][a-z0-9.-]{0,250})")
_LONGEST = 2_000
# Names of models that state their context length: llama-2-13b-chat-16k.
_OWN_CONTEXT = re.compile(r"-\d+[km](-|$)|ultralong")


def _probe(path: str) -> str:
    return f"""\
image: vllm/vllm-openai:v0.9.2
command: null
args:
- --model=Qwen/Qwen2.5-7B-Instruct
ports:
- name: http
  containerPort: 8000
startupProbe:
  httpGet:
    port: http
    {path}
  periodSeconds: 10
  failureThreshold: 90
"""


@rule(
    "HF640",
    "probe-path-unknown",
    Severity.ERROR,
    on=Pod,
    what="A probe asks a server of models for a path that it does not have.",
    why="It answers 404: the pod is never ready, or is restarted for ever.",
    source=DOC_PROBES,
    fix="ask the path of the server's health, as /health of vLLM",
    base="serving-container",
    bad=_probe("path: /healthz"),
    good=_probe("path: /health"),
)
def probe_path_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    servers = [item for item in pod.main_containers if find_server(item)]
    if len(servers) != 1 or len(pod.main_containers) > 2:
        return
    container = servers[0]
    server = find_server(container)
    if container.option("--root-path") or container.option("--middleware"):
        return
    paths = load_table("health_paths")[server]
    for field in PROBES:
        check = dig(container.body, field, "httpGet")
        path = as_text(dig(check, "path")) or "/"
        number = _find_port(container, dig(check, "port"))
        is_own = number is None or number in (_get_own_port(container, server), None)
        if isinstance(check, dict) and is_own and not is_known_path(path, paths):
            message = f"{server} has no {path}; it has {', '.join(paths[:3])}"
            yield Hit((*container.path, field, "httpGet", "path"), message)
        other_ports = {container.number(option) for option in ("--metrics-port", "--grpc-port")}
        if number in other_ports - {None} and path != "/metrics":
            message = f"{path} is not on port {number}, which has metrics or gRPC"
            yield Hit((*container.path, field, "httpGet", "port"), message)
        has_key = "VLLM_API_KEY" in container.env or bool(container.option("--api-key"))
        if isinstance(check, dict) and is_own and has_key and path.startswith("/v1/"):
            message = f"{path} needs the key of the API: it answers 401"
            yield Hit((*container.path, field, "httpGet", "path"), message)


@lru_cache(maxsize=1_024)
def find_server(container: Container) -> str:
    """Returns the program that serves models in a container; empty for another program."""
    image = as_text(container.body.get("image")).partition("@")[0][:500].lower()
    programs = container.programs[:4]
    words = " ".join(container.words[:6])[:_LONGEST]
    for server, marks in load_table("servers").items():
        if any(mark in words for mark in marks["commands"]):
            return server
        has_command = bool(container.body.get("command"))
        if not has_command and any(mark in image for mark in marks["images"]):
            return server
        if any(program in marks["programs"] for program in programs):
            return server
    return ""


def is_known_path(path: str, paths: list[str]) -> bool:
    """Returns whether a path is one of a server's, or is in one of its folders."""
    path = path.partition("?")[0].rstrip("/") or "/"
    if path in paths:
        return True
    folders = [folder[:-1] for folder in paths if folder.endswith("/*")]
    return path.startswith(tuple(folders))


def _find_port(container: Container, port: Any) -> int | None:
    """Returns the number of a port that a probe names; None where it is not declared."""
    if isinstance(port, int):
        return port
    for number, name in container.ports.items():
        if name == port:
            return number
    return None


def _get_own_port(container: Container, server: str) -> int | None:
    """Returns the port on which a server answers; None where an unknown setting says it."""
    port = container.number("--port") or container.number("--http-port")
    return port or load_table("servers")[server].get("port")


@rule(
    "HF641",
    "probe-by-tls",
    Severity.ERROR,
    on=Pod,
    what="A probe asks by HTTPS or gRPC a server that speaks plain HTTP.",
    why="The handshake fails: the pod is never ready, or is restarted for ever.",
    source=DOC_PROBES,
    fix="ask by httpGet, without scheme: HTTPS",
    base="serving-container",
    bad=_probe("path: /health\n    scheme: HTTPS"),
    good=_probe("path: /health"),
)
def probe_by_tls(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        schemes: dict[Any, set[str]] = {}
        for field in PROBES:
            check = as_map(dig(container.body, field, "httpGet"))
            if check:
                scheme = as_text(check.get("scheme")) or "HTTP"
                schemes.setdefault(str(check.get("port")), set()).add(scheme)
        is_plain = bool(find_server(container)) and not any(map(container.option, _TLS_OPTIONS))
        for field in PROBES:
            if find_server(container) in _WITHOUT_GRPC and dig(container.body, field, "grpc"):
                message = f"{find_server(container)} answers no health checks of gRPC"
                yield Hit((*container.path, field, "grpc"), message)
            check = as_map(dig(container.body, field, "httpGet"))
            number = _find_port(container, check.get("port"))
            if container.ports.get(number or 0) == "grpc":
                path = (*container.path, field, "httpGet", "port")
                yield Hit(path, f"port {check.get('port')} is that of gRPC")
            if check.get("scheme") != "HTTPS":
                continue
            is_mixed = len(schemes[str(check.get("port"))]) > 1
            if is_plain or is_mixed or check.get("port") == "http":
                path = (*container.path, field, "httpGet", "scheme")
                yield Hit(path, f"port {check.get('port')} speaks HTTP")


def _serve(model: str, *options: str) -> str:
    words = ", ".join([f"--model={model}", *options])
    return f"image: vllm/vllm-openai:v0.9.2\ncommand: null\nargs: [{words}]"


@rule(
    "HF642",
    "quantization-of-another",
    Severity.ERROR,
    on=Pod,
    what="A server loads weights by another quantization than the one in the model's name.",
    why="It ends at its start: the method of the model is not the one that was asked for.",
    source=DOC_VLLM,
    fix="leave --quantization out: the model's own configuration says it",
    base="serving-container",
    bad=_serve("Qwen/Qwen2.5-7B-Instruct-AWQ", "--quantization=gptq"),
    good=_serve("Qwen/Qwen2.5-7B-Instruct-AWQ", "--quantization=awq_marlin"),
)
def compare_quantizations(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        words = re.split(r"[-_/.]", find_model(container)[:300].lower())
        names = [name for name in _QUANTIZATIONS if name in words]
        option = container.option("--quantization") or container.option("-q")
        is_general = option in ("compressed-tensors", "marlin", "moe_wna16", "auto-round", "")
        if len(names) == 1 and not is_general and names[0] not in option:
            message = f"--quantization is {option}, and the model is {names[0].upper()}"
            yield Hit(container.command_path, message)
        model = find_model(container)
        is_plain = "/" in model and not model.startswith("/") and not _QUANTIZED.search(model)
        if is_plain and option.startswith(("awq", "gptq")) and find_server(container) == "vLLM":
            yield Hit(container.command_path, f"{model} has no weights of {option}")


@rule(
    "HF643",
    "option-needs-another",
    Severity.ERROR,
    on=Pod,
    what="An option of vLLM has no effect without another one, or contradicts it.",
    why="The server ends at its start, or refuses the requests that need the option.",
    source=DOC_VLLM,
    fix="give both options",
    base="serving-container",
    bad=_serve("Qwen/Qwen2.5-7B-Instruct", "--lora-modules", "sql=acme/sql"),
    good=_serve("Qwen/Qwen2.5-7B-Instruct", "--enable-lora", "--lora-modules", "sql=acme/sql"),
)
def option_needs_another(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        if find_server(container) != "vLLM":
            continue
        flags = {word.partition("=")[0].replace("_", "-") for word in container.arguments}
        if "--config" in flags:
            continue
        for option, needed in load_table("needed_options").items():
            if f"--{option}" in flags and f"--{needed}" not in flags:
                yield Hit(container.command_path, f"--{option} needs --{needed}")
        length = container.number("--max-model-len")
        batch = container.number("--max-num-batched-tokens")
        sequences = container.number("--max-num-seqs")
        is_whole = "--no-enable-chunked-prefill" in flags
        if length and batch and batch < length and is_whole:
            message = f"--max-num-batched-tokens {batch} is less than --max-model-len {length}"
            yield Hit(container.command_path, message)
        if batch and sequences and batch < sequences:
            message = f"--max-num-batched-tokens {batch} is less than --max-num-seqs {sequences}"
            yield Hit(container.command_path, message)


def _ask(model: str) -> str:
    return f"""\
image: vllm/vllm-openai:v0.9.2
command: null
args:
- --model=Qwen/Qwen2.5-7B-Instruct
- --served-model-name=chat
ports:
- containerPort: 8000
readinessProbe:
  httpGet:
    path: /health
    port: 8000
---
apiVersion: v1
kind: Service
metadata:
  name: chat
  namespace: serving
spec:
  selector:
    app: server
  ports:
  - port: 80
    targetPort: 8000
---
apiVersion: v1
kind: Pod
metadata:
  name: client
  namespace: serving
spec:
  containers:
  - name: client
    image: registry.example/client:1.4
    env:
    - name: LLM_URL
      value: http://chat/v1
    - name: LLM_MODEL
      value: {model}
"""


@rule(
    "HF644",
    "model-name-unknown",
    Severity.ERROR,
    on=Pod,
    what="A client asks a server of the files for a model by a name that it does not serve.",
    why="Each request gets 404: the model does not exist.",
    source=DOC_VLLM,
    fix="write the name of --served-model-name",
    base="serving-container",
    bad=_ask("qwen2.5-7b"),
    good=_ask("chat"),
)
def model_name_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.containers:
        if find_server(container):
            continue
        names = _list_served(container, pod, context)
        if not names:
            continue
        for path, name, value in container.variables:
            # Clients such as LiteLLM name the provider first.
            is_served = any(f"/{value}".endswith(f"/{served}") for served in names)
            if _MODEL_VARIABLES.match(name) and value and not is_served:
                served = ", ".join(sorted(names)[:5])
                yield Hit(path, f"the server has no model {value}; it serves {served}")


def _list_served(container: Container, pod: Pod, context: Context) -> set[str]:
    """Lists the models of the servers that a container asks; empty where one is unknown."""
    names: set[str] = set()
    for _, text in container.list_texts():
        for match in _URL.finditer(text[:_LONGEST]):
            labels = match[1].split(".")
            namespace = labels[1] if len(labels) > 1 else pod.owner.namespace
            service = context.index.find("Service", labels[0], namespace)
            if service is None and len(labels) > 1 and "svc" not in labels:
                return set()  # a provider outside the cluster, which serves other models
            served = _list_names(service, context) if service else set[str]()
            if service and not served and len(labels) != 3:
                continue
            names |= served
    return names


def _list_names(service: Object, context: Context) -> set[str]:
    """Lists the names under which the pods of a Service serve models."""
    selector = get_selector(service)
    names: set[str] = set()
    if not any(selector.values()):
        return names
    for pod in context.index.select_pods(service.namespace, selector):
        for container in pod.main_containers:
            if find_server(container) not in ("vLLM", "SGLang"):
                continue
            own_names = _list_aliases(container) or {find_model(container)}
            names |= {container.expand(name) for name in own_names}
            names |= _list_adapters(container)
    # A variable that the files do not have may be any model.
    is_known = not any("$(" in name for name in names)
    return names - {""} if is_known else set[str]()


def _list_aliases(container: Container) -> set[str]:
    """Lists the values of --served-model-name, which takes several."""
    names: set[str] = set()
    is_value = False
    for word in container.arguments:
        option, _, value = word.partition("=")
        if option.replace("_", "-") == "--served-model-name":
            is_value = not value
            names |= {value} if value else set()
        elif word.startswith("-"):
            is_value = False
        elif is_value:
            names.add(word)
    return names


def _list_adapters(container: Container) -> set[str]:
    """Lists the names of --lora-modules, and all other arguments too, which does no harm."""
    names: set[str] = set()
    if "--lora-modules" in container.script:
        for word in container.arguments:
            names.add(word.partition("=")[0])
            names.add(word.removeprefix("--lora-modules=").partition("=")[0])
    return names


@rule(
    "HF645",
    "context-too-long",
    Severity.ERROR,
    on=Pod,
    what="A server takes longer requests than its model can.",
    why="vLLM ends at its start: --max-model-len is above what the model's configuration has.",
    source=DOC_VLLM,
    fix="lower --max-model-len, or state the rope scaling that the model's card gives",
    base="serving-container",
    bad=_serve("meta-llama/Meta-Llama-3-8B-Instruct", "--max-model-len=32768")
    + "\nenv: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]",
    good=_serve("meta-llama/Meta-Llama-3-8B-Instruct", "--max-model-len=8192")
    + "\nenv: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]",
)
def context_too_long(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        length = container.number("--max-model-len")
        model = find_model(container).rpartition("/")[2].lower()
        is_allowed = "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in container.env
        is_scaled = "--rope-scaling" in container.script or "--hf-overrides" in container.script
        if length is None or is_allowed or is_scaled:
            continue
        longest = _find_context(model)
        if longest and length > longest:
            message = f"--max-model-len is {length}, and {model} takes {longest}"
            yield Hit(container.command_path, message)


def _find_context(model: str) -> int:
    """Returns the most tokens of a model's requests; 0 where its name tells of another limit."""
    for prefix, longest in load_table("contexts").items():
        if model.startswith(prefix):
            is_other = _OWN_CONTEXT.search(model[len(prefix) - 1 :])
            return 0 if is_other else int(longest)
    return 0

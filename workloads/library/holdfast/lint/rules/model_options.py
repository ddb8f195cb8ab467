"""HF817 and HF818: options of model servers that contradict the model or each other.

Why it is so: infra/decisions/0200.
"""

import json
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import SHELLS, Container, Pod, as_text
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.contents import find_model
from holdfast.lint.rules.servers import find_server

DOC_VLLM = "https://docs.vllm.ai/en/latest/serving/parallelism_scaling/"
DOC_TGI = "https://huggingface.co/docs/text-generation-inference/reference/launcher"
_JSON_OPTIONS = (
    "--speculative-config",
    "--hf-overrides",
    "--limit-mm-per-prompt",
    "--kv-transfer-config",
    "--compilation-config",
    "--override-generation-config",
    "--rope-scaling",
    "--mm-processor-kwargs",
    "--model-loader-extra-config",
)
_ELSEWHERE = ("--data-parallel-address", "--nnodes", "--distributed-executor-backend=ray")


def _serve(*options: str, gpus: int = 3) -> str:
    lines = "\n".join(f"- {option}" for option in options)
    return f"""\
image: vllm/vllm-openai:v0.9.2
command: null
args:
{lines}
resources:
  limits:
    nvidia.com/gpu: {gpus}
"""


@rule(
    "HF817",
    "split-of-no-model",
    Severity.ERROR,
    on=Pod,
    what="A server splits a model over a number of GPUs that its heads or its pod do not allow.",
    why="It ends at its start: the heads are not divisible, or there are too few GPUs.",
    source=DOC_VLLM,
    fix="split by 1, 2, 4 or 8; tensor times pipeline times data parallel is the number of GPUs",
    base="serving-container",
    bad=_serve("--model=Qwen/Qwen2.5-7B-Instruct", "--data-parallel-size=2", gpus=1),
    good=_serve("--model=Qwen/Qwen2.5-7B-Instruct", "--data-parallel-size=1", gpus=1),
)
def check_splits(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        if find_server(container) not in ("vLLM", "SGLang"):
            continue
        tensors = _count(container, "--tensor-parallel-size", "-tp", "--tp", "--tp-size")
        heads = _find_heads(find_model(container))
        if heads and heads % tensors:
            message = f"{heads} heads of the model are not divisible by {tensors}"
            yield Hit(container.command_path, message)
        copies = _count(container, "--data-parallel-size", "-dp", "--dp-size", "--dp")
        local_copies = container.number("--data-parallel-size-local")
        stages = _count(container, "--pipeline-parallel-size", "-pp")
        is_alone = not any(option in container.script for option in _ELSEWHERE)
        needed = tensors * stages * (copies if local_copies is None else local_copies)
        is_of_vllm = find_server(container) == "vLLM" and pod.owner.kind != "LeaderWorkerSet"
        is_split = copies > 1 or stages > 1
        if is_of_vllm and is_alone and is_split and container.gpus and needed > container.gpus:
            message = f"needs {needed} GPUs, and the container has {container.gpus}"
            yield Hit(container.command_path, message)


def _count(container: Container, *options: str) -> int:
    """Returns the number that one of these options gives; 1 where none does."""
    for option in options:
        number = container.number(option)
        if number:
            return number
    return 1


def _find_heads(model: str) -> int:
    """Returns the number of attention heads of a known model; 0 for another."""
    name = model.rpartition("/")[2].lower()[:200]
    for prefix, heads in load_table("heads").items():
        if name.startswith(prefix):
            return int(heads)
    return 0


def _launch(length: int) -> str:
    return f"""\
image: ghcr.io/huggingface/text-generation-inference:3.0.1
command: null
args:
- --model-id=Qwen/Qwen2.5-7B-Instruct
- --max-input-tokens={length}
- --max-total-tokens=4096
"""


@rule(
    "HF818",
    "server-options-contradict",
    Severity.ERROR,
    on=Pod,
    what="Options of a server of models contradict each other, or one is no JSON.",
    why="The server ends at its start.",
    source=DOC_TGI,
    fix="less input than tokens in total; as many shards as GPUs; JSON with double quotes",
    base="serving-container",
    bad=_launch(4096),
    good=_launch(3072),
)
def check_contradictions(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        server = find_server(container)
        if server == "TGI":
            yield from _check_lengths(container)
        if server == "vLLM" and container.programs[:1] not in [[shell] for shell in SHELLS]:
            adapters = container.option("--lora-modules")
            if adapters and "=" not in adapters and adapters[0] not in "{$<":
                yield Hit(container.command_path, f"--lora-modules takes NAME=PATH, not {adapters}")
            for option in _JSON_OPTIONS:
                value = container.option(option)
                if value[:1] in "{'\"" and value and not _is_json(value):
                    yield Hit(container.command_path, f"{option} is no JSON: {value[:60]}")


def _check_lengths(container: Container) -> Iterator[Hit]:
    input_tokens = container.number("--max-input-tokens", "MAX_INPUT_TOKENS")
    input_tokens = input_tokens or container.number("--max-input-length", "MAX_INPUT_LENGTH")
    total = container.number("--max-total-tokens", "MAX_TOTAL_TOKENS")
    if input_tokens and total and input_tokens >= total:
        message = f"{input_tokens} tokens of input leave none of {total} in total"
        yield Hit(container.command_path, message)
    shards = container.number("--num-shard", "NUM_SHARD")
    if shards and container.gpus and shards > container.gpus:
        message = f"{shards} shards, and the container has {container.gpus} GPUs"
        yield Hit(container.command_path, message)
    backend = as_text(container.env.get("ATTENTION"))
    if backend and backend not in ("paged", "flashdecoding", "flashinfer"):
        yield Hit(container.command_path, f"ATTENTION is {backend}")


def _is_json(text: str) -> bool:
    if "$" in text or "{{" in text:
        return True
    try:
        json.loads(text)
    except ValueError:
        return False
    return True

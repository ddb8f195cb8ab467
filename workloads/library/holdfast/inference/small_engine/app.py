"""The routes of the small engine with vLLM's fields: completions, chats, health, metrics."""

import asyncio
import json
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from holdfast.inference.errors import Refused
from holdfast.inference.router.client import Client, ClientGone
from holdfast.inference.router.events import encode as encode_event
from holdfast.inference.router.events import make_error
from holdfast.inference.small_engine import model
from holdfast.inference.small_engine.output import Output, Step
from holdfast.vocabulary.serving import READY_PATH

_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_JSON = [("content-type", "application/json")]
_EVENTS = [("content-type", "text/event-stream; charset=utf-8"), ("x-seed-scope", "position")]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    model: str = "small"
    tokens_per_s: float = 50.0
    """The rate of each stream; 0: as fast as possible."""
    prefill_s: float = 0.02
    """The time to the first token."""
    pair_every: int = 0
    """Every event with this number or a multiple of it carries two tokens, as events of vLLM do
    when they are read late; 0: none does.
    """
    running: int = 256
    """The streams that run at a time; others wait."""
    longest: int = 32_768
    """The tokens of prompt and output."""


@dataclass
class Counts:
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0


class App:
    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.running)
        self._tasks = set[asyncio.Task[Any]]()
        self.counts = Counts()
        self.is_draining = False

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    def abort(self) -> None:
        """Ends every request; their connections close without an end."""
        for task in self._tasks:
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = HttpRequest(scope, receive)
        client = Client(scope, receive, send)
        path: str = scope["path"]
        if path in (_COMPLETIONS, _CHAT) and request.method == "POST":
            await self._run_generation(client, request, is_chat=path == _CHAT)
            return
        await self._respond(client, request, path)

    async def _respond(self, client: Client, request: HttpRequest, path: str) -> None:
        if path in ("/health", READY_PATH):
            await client.start(503 if self.is_draining else 200, _JSON)
            await client.finish(b"{}")
        elif path == "/metrics":
            await client.start(200, [("content-type", "text/plain; version=0.0.4")])
            await client.finish(self._metrics().encode())
        elif path == "/v1/models":
            card = {
                "id": self._settings.model,
                "object": "model",
                "created": 0,
            }
            await _send_json(
                client,
                200,
                {
                    "object": "list",
                    "data": [card],
                },
            )
        elif path in ("/tokenize", "/detokenize") and request.method == "POST":
            body = json.loads(await request.body())
            if path == "/detokenize":
                await _send_json(client, 200, {"prompt": model.decode(body["tokens"])})
            else:
                ids = model.encode(body["prompt"])
                content = {
                    "tokens": ids,
                    "count": len(ids),
                    "max_model_len": self._settings.longest,
                }
                await _send_json(client, 200, content)
        else:
            await _send_json(client, 404, make_error("no such path", 404))

    async def _run_generation(self, client: Client, request: HttpRequest, *, is_chat: bool) -> None:
        try:
            body = json.loads(await request.body())
        except ClientDisconnect:
            return
        except ValueError:
            await _send_json(client, 400, make_error("the body is not JSON", 400))
            return
        if self.is_draining:
            await _send_json(client, 503, make_error("the server shuts down", 503))
            return
        task = asyncio.ensure_future(self._generate(client, body, is_chat=is_chat))
        watch = asyncio.ensure_future(client.watch(task.cancel))
        self._tasks.add(task)
        try:
            await task
        except Refused as refused:
            error = make_error(refused.message, refused.status)
            await _send_json(client, refused.status, error)
        except (ClientGone, asyncio.CancelledError):
            pass  # the connection closes
        finally:
            watch.cancel()
            self._tasks.discard(task)

    async def _generate(self, client: Client, body: Any, *, is_chat: bool) -> None:
        job = Job(body, self._settings, is_chat=is_chat)
        self.counts.waiting += 1
        is_running = False
        try:
            async with self._slots:
                self.counts.waiting -= 1
                self.counts.running += 1
                is_running = True
                self.counts.prompt_tokens += len(job.prompt)
                await asyncio.sleep(self._settings.prefill_s)
                await job.run(client, self._count_tokens)
                self.counts.finished += 1
        finally:
            if is_running:
                self.counts.running -= 1
            else:
                self.counts.waiting -= 1

    def _count_tokens(self, count: int) -> None:
        self.counts.generation_tokens += count

    def _metrics(self) -> str:
        counts = self.counts
        label = f'{{engine="0",model_name="{self._settings.model}"}}'
        success = label.replace("}", ',finished_reason="stop"}')
        return (
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{label} {counts.running}\n"
            "# TYPE vllm:num_requests_waiting gauge\n"
            f"vllm:num_requests_waiting{label} {counts.waiting}\n"
            "# TYPE vllm:kv_cache_usage_perc gauge\n"
            f"vllm:kv_cache_usage_perc{label} {counts.running / self._settings.running}\n"
            "# TYPE vllm:prompt_tokens counter\n"
            f"vllm:prompt_tokens_total{label} {counts.prompt_tokens}\n"
            "# TYPE vllm:generation_tokens counter\n"
            f"vllm:generation_tokens_total{label} {counts.generation_tokens}\n"
            "# TYPE vllm:request_success counter\n"
            f"vllm:request_success_total{success} {counts.finished}\n"
        )


class Job:
    """A request, and its events or response."""

    def __init__(self, body: Any, settings: EngineSettings, *, is_chat: bool) -> None:
        if not isinstance(body, dict):
            raise Refused(400, "the body must be a JSON object")
        self._body = cast("dict[str, Any]", body)
        self._settings = settings
        self._is_chat = is_chat
        self.prompt = self._read_prompt()
        self._max_tokens = self._read_max_tokens()
        self._count = self._body.get("n") or 1
        self._is_streamed = self._body.get("stream") is True
        self._wants_ids = self._body.get("return_token_ids") is True
        self._wants_usage = bool((self._body.get("stream_options") or {}).get("include_usage"))
        self._completion_tokens = 0
        self._base = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": settings.model,
        }

    def _read_prompt(self) -> list[int]:
        if self._is_chat:
            messages = self._body.get("messages")
            if not messages:
                raise Refused(400, "messages is missing")
            lines = [f"{message['role']}: {message['content']}\n" for message in messages]
            return model.encode("".join(lines) + "assistant:")
        prompt = self._body.get("prompt")
        if isinstance(prompt, str):
            return model.encode(prompt)
        if isinstance(prompt, list):
            tokens = cast("list[Any]", prompt)
            if tokens and all(type(token) is int for token in tokens):
                if all(0 <= token < model.VOCABULARY for token in tokens):
                    return tokens
                raise Refused(400, "a token is out of the vocabulary")
        raise Refused(400, "prompt must be a text or a list of tokens")

    def _read_max_tokens(self) -> int:
        room = self._settings.longest - len(self.prompt)
        if room <= 0:
            raise Refused(400, f"the prompt is longer than {self._settings.longest} tokens")
        default = room if self._is_chat else 16
        count = self._body.get("max_tokens", default)
        if self._is_chat and self._body.get("max_completion_tokens") is not None:
            count = self._body["max_completion_tokens"]
        if count is None:
            return room
        if not isinstance(count, int) or count < 1:
            raise Refused(400, "max_tokens must be at least 1")
        return min(count, room)

    def _top_logprobs(self) -> int | None:
        logprobs = self._body.get("logprobs")
        if self._is_chat:
            return (self._body.get("top_logprobs") or 0) if logprobs is True else None
        return logprobs

    def _make_output(self, index: int) -> Output:
        seed: int | None = None
        if (self._body.get("temperature") or 0) > 0:
            seed = self._body.get("seed")
            seed = random.getrandbits(32) if seed is None else seed + index
        return Output(
            self.prompt,
            self._body,
            max_tokens=self._max_tokens,
            seed=seed,
            top_logprobs=self._top_logprobs(),
        )

    async def run(self, client: Client, count_tokens: Callable[[int], None]) -> None:
        outputs = [self._make_output(index) for index in range(self._count)]
        choices: list[Any] = []
        if self._is_streamed:
            await client.start(200, _EVENTS)
            if self._is_chat:
                await client.write(encode_event(self._head_event()))
        for index, output in enumerate(outputs):
            steps = await self._run_output(client, index, output, count_tokens)
            if not self._is_streamed:
                choices.append(self._whole_choice(index, output, steps))
        if self._is_streamed:
            if self._wants_usage:
                usage = self._document([]) | {"usage": self._usage()}
                await client.write(encode_event(usage))
            await client.finish(b"data: [DONE]\n\n")
        else:
            document = self._document(choices) | {"usage": self._usage()}
            if self._is_chat and self._wants_ids:
                document["prompt_token_ids"] = self.prompt
            await _send_json(client, 200, document)

    async def _run_output(
        self,
        client: Client,
        index: int,
        output: Output,
        count_tokens: Callable[[int], None],
    ) -> list[Step]:
        loop = asyncio.get_running_loop()
        steps: list[Step] = []
        number = 0
        due = loop.time()
        while not output.is_finished:
            number += 1
            pair_every = self._settings.pair_every
            size = 2 if pair_every and number % pair_every == 0 else 1
            step = output.step(size)
            count_tokens(len(step.ids))
            self._completion_tokens += len(step.ids)
            if self._is_streamed:
                event = self._event(index, step, is_first=number == 1)
                await client.write(encode_event(event))
            else:
                steps.append(step)
            if self._settings.tokens_per_s:
                due += size / self._settings.tokens_per_s
                await asyncio.sleep(max(0.0, due - loop.time()))
            else:
                await asyncio.sleep(0)
        return steps

    def _head_event(self) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": None,
            "finish_reason": None,
        }
        document = self._document([choice])
        if self._wants_ids:
            document["prompt_token_ids"] = self.prompt
        return document

    def _event(self, index: int, step: Step, *, is_first: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index}
        if self._is_chat:
            choice["delta"] = {"content": step.text}
        else:
            choice["text"] = step.text
        choice["logprobs"] = self._format_logprobs(step.entries)
        choice["finish_reason"] = step.finish_reason
        choice["stop_reason"] = step.stop_reason
        if self._wants_ids:
            choice["token_ids"] = step.ids
            if is_first and not self._is_chat:
                choice["prompt_token_ids"] = self.prompt
        return self._document([choice])

    def _whole_choice(self, index: int, output: Output, steps: Sequence[Step]) -> dict[str, Any]:
        ids: list[int] = []
        entries: list[dict[str, Any]] = []
        for step in steps:
            ids += step.ids
            entries += step.entries
        choice: dict[str, Any] = {"index": index}
        if self._is_chat:
            choice["message"] = {"role": "assistant", "content": output.text}
        else:
            choice["text"] = output.text
        choice["logprobs"] = self._format_logprobs(entries)
        choice["finish_reason"] = steps[-1].finish_reason
        choice["stop_reason"] = steps[-1].stop_reason
        if self._wants_ids:
            choice["token_ids"] = ids
            if not self._is_chat:
                choice["prompt_token_ids"] = self.prompt
        return choice

    def _format_logprobs(self, entries: Sequence[Mapping[str, Any]]) -> Any:
        if not entries:
            return None
        if self._is_chat:
            top = self._top_logprobs() or 0
            return {"content": [_make_chat_entry(entry, top) for entry in entries]}
        return {
            "text_offset": [entry["offset"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "tokens": [entry["token"] for entry in entries],
            "top_logprobs": [entry["top"] for entry in entries],
        }

    def _document(self, choices: list[Any]) -> dict[str, Any]:
        kind = "text_completion"
        if self._is_chat:
            kind = "chat.completion.chunk" if self._is_streamed else "chat.completion"
        return {
            **self._base,
            "object": kind,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": len(self.prompt),
            "total_tokens": len(self.prompt) + self._completion_tokens,
            "completion_tokens": self._completion_tokens,
        }


def _make_chat_entry(entry: Mapping[str, Any], top: int) -> dict[str, Any]:
    content = _token_entry(entry["token"], entry["logprob"])
    pairs = list(entry["top"].items())[:top]
    content["top_logprobs"] = [_token_entry(*pair) for pair in pairs]
    return content


def _token_entry(token: str, logprob: float) -> dict[str, Any]:
    return {
        "token": token,
        "logprob": logprob,
        "bytes": list(token.encode("utf-8", "replace")),
    }


async def _send_json(client: Client, status: int, document: Mapping[str, Any]) -> None:
    await client.start(status, _JSON)
    await client.finish(json.dumps(document).encode())

"""`/v1/completions` as OpenAI's clients speak it, for predictors that complete text: whole, or in pieces as server-sent events.

Such a predictor names `completes` in its configuration. It is asked for one piece at a time: an item is a JSON object
of the request's fields and `completion`, the text so far; its value is {text, finish_reason}, the reason null while
more comes. A piece is a prediction like any other: it is batched with those of other streams, and asked again when
the predicting process dies. Who is refused is refused before the first byte; a stream stays with the model that began
it, is waited for when the server leaves, and ends at its deadline with an error event; it then counts as failed.
"""

import json
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.inference.errors import Refused
from holdfast.inference.server.tensors import json_object
from holdfast.inference.values import Value

COMPLETES = "completes"
MAX_TOKENS, USUAL_TOKENS = 65_536, 16
MAX_PIECES = 100_000
"""Of one completion: a predictor that never ends is not asked for ever."""
DONE = b"data: [DONE]\n\n"
_PASSED_ON = ("temperature", "top_p", "seed", "stop")
_KNOWN = {"model", "prompt", "max_tokens", "stream", "stream_options", "n", "best_of", "user", *_PASSED_ON}
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "echo": (None, False),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
}
"""What other fields may say: what they mean where they are left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    model: str
    prompt: str
    max_tokens: int
    stream: bool
    usage: bool
    """With a last event that counts the tokens."""
    options: Mapping[str, object]

    def item(self, completion: str) -> bytes:
        fields = {"prompt": self.prompt, "completion": completion, "max_tokens": self.max_tokens, **self.options}
        return json.dumps(fields).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    text: str
    finish_reason: str | None
    tokens: int | None = None
    prompt_tokens: int | None = None
    """None: the predictor does not count them."""

    @classmethod
    def of(cls, value: Value) -> "Piece":
        """Refused with 500: the predictor is a user's code."""
        match value:
            case {"text": str(text), "finish_reason": (None | str()) as reason} if text or reason:
                counts = (value.get("tokens"), value.get("prompt_tokens"))
                tokens, prompt = (n if type(n) is int and n >= 0 else None for n in counts)
                return cls(text=text, finish_reason=reason, tokens=tokens, prompt_tokens=prompt)
            case _:
                raise Refused(500, "the model's answer is not text")


def usage(pieces: Sequence[Piece]) -> Mapping[str, int] | None:
    """Of one answer; None where a token was not counted."""
    prompt, tokens = pieces[0].prompt_tokens, [piece.tokens for piece in pieces]
    counted = [number for number in tokens if number is not None]
    if prompt is None or len(counted) < len(tokens):
        return None
    answer = sum(counted)
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def parse(body: bytes) -> Wanted:
    """Refused with 400: also for a field that would change the answer and is not supported."""
    match found := json_object(body):
        case {"model": str(model), "prompt": str(prompt) | [str(prompt)]} if prompt:
            pass
        case _:
            raise Refused(400, "model and prompt must be text; one prompt per request")
    for name, value in found.items():
        if name not in _KNOWN and value not in _NEUTRAL.get(name, (None,)):
            raise Refused(400, f"{name[:80]} is not supported")
    given = {name: value for name, value in found.items() if value is not None}
    tokens, stream = given.get("max_tokens", USUAL_TOKENS), given.get("stream", False)
    if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
        raise Refused(400, f"max_tokens must be a whole number from 1 to {MAX_TOKENS}")
    if not isinstance(stream, bool) or any(given.get(name, 1) != 1 for name in ("n", "best_of")):
        raise Refused(400, "stream must be true or false, n and best_of 1")
    about = given.get("stream_options") or {}
    if about not in ({}, {"include_usage": False}) and (about != {"include_usage": True} or not stream):
        raise Refused(400, "stream_options may be include_usage, true or false, of a stream")
    options = {name: given[name] for name in _PASSED_ON if name in given}
    return Wanted(
        model=model,
        prompt=prompt,
        max_tokens=tokens,
        stream=stream,
        usage=bool(about.get("include_usage")),
        options=options,
    )


def writer(request_id: str, model: str) -> Callable[..., dict[str, object]]:
    """Whole or in pieces, it is the same object. Of no piece: the last one of a stream that is counted."""
    name = f"cmpl-{request_id[:80] or uuid.uuid4().hex}"
    head = {"id": name, "object": "text_completion", "created": int(time.time()), "model": model}

    def written(piece: Piece | None, **more: object) -> dict[str, object]:
        if piece is None:
            return {**head, "choices": [], **more}
        choice = {"index": 0, "text": piece.text, "logprobs": None, "finish_reason": piece.finish_reason}
        return {**head, "choices": [choice], **more}

    return written


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def problem(refused: Refused) -> dict[str, Any]:
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {"error": {"message": refused.message, "type": kind, "code": refused.status}}


def models(name: str, commit: str) -> dict[str, Any]:
    found = {"id": name, "object": "model", "created": 0, "owned_by": "holdfast", "root": commit}
    return {"object": "list", "data": [found]}


Pieces = AsyncGenerator[Piece]


class EventStream(Response):
    """Its status is known when it has ended; `ended` gets it."""

    def __init__(
        self,
        first: Piece,
        rest: Pieces,
        write: Callable[..., dict[str, object]],
        headers: dict[str, str],
        *,
        counted: bool,
    ) -> None:
        super().__init__(None, 200, headers | {"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._first, self._rest, self._write, self._counted = first, rest, write, counted
        self.ended: Callable[[int], object] = lambda _: None
        self.holding = ExitStack()
        """Closed with it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def put(body: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        code, last, so_far = 200, DONE, [self._first]
        no_usage = {"usage": None} if self._counted else {}
        with self.holding:
            async with aclosing(self._rest) as rest:
                try:
                    await put(event(self._write(self._first, **no_usage)))
                    async for piece in rest:
                        so_far += [piece] * self._counted
                        await put(event(self._write(piece, **no_usage)))
                    if self._counted:
                        last = event(self._write(None, usage=usage(so_far))) + DONE
                except Refused as refused:
                    # The status is gone already: the client learns it here, and our count from `ended`.
                    code, last = refused.status, event(problem(refused))
        self.ended(code)
        await put(last, more=False)


async def whole(first: Piece, rest: Pieces, write: Callable[..., dict[str, object]]) -> dict[str, object]:
    async with aclosing(rest) as pieces:
        found = [first, *[piece async for piece in pieces]]
    counted = usage(found)
    joined = replace(found[-1], text="".join(piece.text for piece in found))
    return write(joined, **({"usage": counted} if counted else {}))

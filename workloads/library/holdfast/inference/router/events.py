"""Server-sent events of the OpenAI protocol, and the pieces of text in them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from holdfast.support.errors import HoldfastError

DONE = b"[DONE]"
SERVER_ERROR = 500
_PLAIN_DELTA = frozenset(("role", "content"))


class MalformedEvent(HoldfastError):
    """An event of a server cannot be read; its text is not repeated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Holds what one event adds to a text, in one form for completions and chats."""

    ids: Sequence[int] = ()
    text: str = ""
    logprobs: Sequence[Mapping[str, Any]] = ()
    """An entry for each token: of a completion or of a chat, as its server sends them."""
    finish_reason: str | None = None
    stop_reason: Any = None
    prompt_ids: Sequence[int] | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Parts of a chat's delta that are not text, such as tool calls or reasoning."""


class EventReader:
    """Splits a body into the data of its events."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._rest = b""

    def add(self, data: bytes) -> list[bytes]:
        """Returns the data of the events that are complete. Raises MalformedEvent."""
        data = self._rest + data
        if b"\r" in data:
            # The two bytes may arrive apart.
            end = len(data) - data.endswith(b"\r")
            data = data[:end].replace(b"\r\n", b"\n") + data[end:]
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > self._most_bytes:
            raise MalformedEvent("an event is too large")
        payloads: list[bytes] = []
        for event in events:
            lines = event.split(b"\n")
            values = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
            if values:
                payloads.append(b"\n".join(values))
        return payloads


def decode(payload: bytes) -> dict[str, Any]:
    """Parses the data of an event. Raises MalformedEvent."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        raise MalformedEvent("an event is not JSON") from None
    if not isinstance(document, dict):
        raise MalformedEvent("an event is no JSON object")
    return cast("dict[str, Any]", document)


def encode(document: Mapping[str, Any]) -> bytes:
    """Makes an event; its text is not escaped, except for what JSON needs."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return b"data: " + text.encode("utf-8", "surrogatepass") + b"\n\n"


def encode_comment(text: str) -> bytes:
    """Returns a comment, which readers of server-sent events pass over."""
    return f": {text}\n\n".encode()


def make_error(message: str, code: int) -> dict[str, Any]:
    """Makes the error object of the OpenAI protocol."""
    kind = "server_error" if code >= SERVER_ERROR else "invalid_request_error"
    return {
        "error": {
            "message": message,
            "type": kind,
            "param": None,
            "code": code,
        }
    }


def read_piece(document: Mapping[str, Any]) -> Piece | None:
    """Returns the piece of an event; None if the event has none. Raises MalformedEvent."""
    choices = document.get("choices")
    if not choices:
        return None
    try:
        choice: Mapping[str, Any] = choices[0]
        delta: Mapping[str, Any] | None = choice.get("delta")
        if delta is None:
            text = choice.get("text") or ""
            logprobs = split_logprobs(choice.get("logprobs"))
            extras: Mapping[str, Any] = {}
        else:
            text = delta.get("content") or ""
            logprobs = (choice.get("logprobs") or {}).get("content") or ()
            extras = {}
            for name in delta.keys() - _PLAIN_DELTA:
                if delta[name]:
                    extras[name] = delta[name]
        return Piece(
            ids=choice.get("token_ids") or (),
            text=text,
            logprobs=logprobs,
            finish_reason=choice.get("finish_reason"),
            stop_reason=choice.get("stop_reason"),
            prompt_ids=choice.get("prompt_token_ids") or document.get("prompt_token_ids"),
            extras=extras,
        )
    except (AttributeError, LookupError, TypeError):
        raise MalformedEvent("an event is not of the OpenAI protocol") from None


def split_logprobs(logprobs: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns an entry for each token of a completion's columns."""
    if not logprobs:
        return []
    tokens = logprobs["tokens"]
    nothing: list[Any] = [None] * len(tokens)
    columns = zip(
        tokens,
        logprobs["token_logprobs"],
        logprobs.get("top_logprobs") or nothing,
        logprobs.get("text_offset") or nothing,
        strict=True,
    )
    return [
        {
            "token": token,
            "logprob": logprob,
            "top": top,
            "offset": offset,
        }
        for token, logprob, top, offset in columns
    ]


def join_logprobs(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns the columns of a completion."""
    return {
        "text_offset": [entry["offset"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "tokens": [entry["token"] for entry in entries],
        "top_logprobs": [entry["top"] for entry in entries],
    }


def convert_logprobs(entries: Sequence[Mapping[str, Any]], top: int) -> list[dict[str, Any]]:
    """Returns entries of a completion as those of a chat, with `top` alternatives each."""
    converted: list[dict[str, Any]] = []
    for entry in entries:
        alternatives = list((entry["top"] or {}).items())[:top]
        content = _make_chat_entry(entry["token"], entry["logprob"])
        content["top_logprobs"] = [_make_chat_entry(*pair) for pair in alternatives]
        converted.append(content)
    return converted


def _make_chat_entry(token: str, logprob: float) -> dict[str, Any]:
    return {
        "token": token,
        "logprob": logprob,
        "bytes": list(token.encode("utf-8", "replace")),
    }

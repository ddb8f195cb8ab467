"""Requests for text: what can be carried from server to server, and the requests to servers.

A request is carried if each of its fields is known to mean the same in a continuation, which is a
completion of prompt and sent tokens. Any other field passes the request through unmoved.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from holdfast.inference.errors import Refused
from holdfast.inference.router.prefixes import digest_beginnings

COMPLETIONS_PATH = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"

_SAMPLING = frozenset(
    (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "logit_bias",
        "allowed_token_ids",
        "stop_token_ids",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "return_tokens_as_token_ids",
        "user",
        "priority",
        "model",
    )
)
"""Fields that a continuation repeats. They depend on no token, or on prompt and output alike."""
_OWN = frozenset(
    (
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "seed",
        "stop",
        "include_stop_str_in_output",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "prompt",
        "messages",
    )
)
"""Fields that the router sets itself in a continuation."""
_PROMPT_ONLY = frozenset(
    (
        "add_special_tokens",
        "add_generation_prompt",
        "chat_template",
        "chat_template_kwargs",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "safety_identifier",
        "cache_salt",
    )
)
"""Fields that change only the prompt, whose tokens a continuation has, or nothing."""
_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "echo": (False,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
}
"""Fields that cannot be carried, except with these values, which are their defaults, or null."""
_MOST_STOPS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A request for one text."""

    body: Mapping[str, Any]
    is_chat: bool
    is_streamed: bool
    obstacle: str
    """The field because of which the request cannot be carried; empty if it can."""
    stops: Sequence[str]
    include_stop: bool
    max_tokens: int | None
    min_tokens: int
    wants_usage: bool
    wants_usage_always: bool
    wants_ids: bool
    wants_logprobs: bool
    beginnings: tuple[bytes, ...]
    """Digests of the prompt's beginnings, which requests with a cached prefix share."""

    @property
    def path(self) -> str:
        return CHAT_PATH if self.is_chat else COMPLETIONS_PATH

    def first_body(self) -> bytes:
        """Returns the body for the first server: the client's, streamed and with token ids."""
        body = dict(self.body)
        for field in ("stop", "include_stop_str_in_output"):
            body.pop(field, None)
        return _encode(body | _STREAMED)

    def continuation_body(
        self,
        prompt_ids: Sequence[int],
        sent_ids: Sequence[int],
        *,
        keep_seed: bool,
    ) -> bytes:
        """Returns the body for another server, which goes on after `sent_ids`.

        A server that draws its random numbers in order would draw the same ones again with the
        same seed. It gets one that follows from the seed and the position, unless `keep_seed`.
        """
        body: dict[str, Any] = {}
        for field in _SAMPLING:
            if field in self.body:
                body[field] = self.body[field]
        count = len(sent_ids)
        body |= {
            "prompt": [*prompt_ids, *sent_ids],
            "add_special_tokens": False,
            "max_tokens": None if self.max_tokens is None else self.max_tokens - count,
            "min_tokens": max(0, self.min_tokens - count),
        }
        seed = self.body.get("seed")
        if seed is not None:
            body["seed"] = seed if keep_seed or not count else _derive_seed(seed, count)
        if self.wants_logprobs:
            field = "top_logprobs" if self.is_chat else "logprobs"
            body["logprobs"] = self.body.get(field) or 0
        return _encode(body | _STREAMED)


_STREAMED = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
}


def parse(content: bytes, *, is_chat: bool) -> Generation:
    """Parses the body of a request. Raises Refused with 400."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(document, dict):
        raise Refused(400, "the body must be a JSON object")
    body = cast("dict[str, Any]", document)
    options = body.get("stream_options")
    if not isinstance(options, dict):
        options = {}
    stops = _read_stops(body.get("stop"))
    # OpenAI's default for completions is 16; for chats there is none.
    max_tokens = body.get("max_tokens", None if is_chat else 16)
    if is_chat and body.get("max_completion_tokens") is not None:
        max_tokens = body["max_completion_tokens"]
    logprobs = body.get("logprobs")
    return Generation(
        body=body,
        is_chat=is_chat,
        is_streamed=body.get("stream") is True,
        obstacle=_find_obstacle(body, stops, max_tokens, is_chat=is_chat),
        stops=stops or (),
        include_stop=body.get("include_stop_str_in_output") is True,
        max_tokens=max_tokens if _is_count(max_tokens) else None,
        min_tokens=_read_count(body.get("min_tokens")),
        wants_usage=options.get("include_usage") is True,
        wants_usage_always=options.get("continuous_usage_stats") is True,
        wants_ids=body.get("return_token_ids") is True,
        wants_logprobs=logprobs is True if is_chat else logprobs is not None,
        beginnings=digest_beginnings(body.get("messages" if is_chat else "prompt")),
    )


def _find_obstacle(
    body: Mapping[str, Any],
    stops: Sequence[str] | None,
    max_tokens: object,
    *,
    is_chat: bool,
) -> str:
    """Returns the first field that cannot be carried; invalid ones are left to the server."""
    for field, value in body.items():
        if value is None or field in _SAMPLING or field in _OWN or field in _PROMPT_ONLY:
            continue
        if value not in _DEFAULTS.get(field, ()):
            return field
    for field in ("stream", "return_token_ids", "include_stop_str_in_output"):
        if body.get(field) not in (None, True, False):
            return field
    if max_tokens is not None and not _is_count(max_tokens):
        return "max_tokens"
    for field in ("min_tokens", "seed"):
        if body.get(field) is not None and not _is_count(body[field]):
            return field
    if stops is None:
        return "stop"
    if is_chat:
        return "" if _is_plain_chat(body.get("messages")) else "messages"
    return "" if _is_one_prompt(body.get("prompt")) else "prompt"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _read_count(value: Any) -> int:
    return value if _is_count(value) else 0


def _read_stops(value: object) -> list[str] | None:
    """Returns the stop sequences, or None if they are invalid."""
    if value is None:
        return []
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(cast("list[Any]", stops)) > _MOST_STOPS:
        return None
    texts = [stop for stop in cast("list[Any]", stops) if isinstance(stop, str) and stop]
    return texts if len(texts) == len(cast("list[Any]", stops)) else None


def _is_one_prompt(prompt: object) -> bool:
    """Returns True for one text or one list of token ids: several prompts give several texts."""
    if isinstance(prompt, str):
        return True
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(type(token) is int for token in cast("list[Any]", prompt))


def _is_plain_chat(messages: object) -> bool:
    """Returns True if the messages have only text: images have no tokens that can be sent back."""
    if not isinstance(messages, list) or not messages:
        return False
    return all(_is_plain_message(message) for message in cast("list[Any]", messages))


def _is_plain_message(message: object) -> bool:
    if not isinstance(message, dict):
        return False
    content = cast("dict[str, Any]", message).get("content")
    if content is None or isinstance(content, str):
        return True
    if not isinstance(content, list):
        return False
    parts = cast("list[Any]", content)
    return all(isinstance(part, dict) and part.get("type") == "text" for part in parts)


def _derive_seed(seed: int, count: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{count}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def _encode(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()

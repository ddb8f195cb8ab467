"""Texts of a few tokens, asked of a server (`/detokenize`): for the rare events that need them."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from holdfast.inference.router.engine_connection import EngineLost, ask, make_request
from holdfast.inference.router.events import Piece
from holdfast.inference.router.servers import Address
from holdfast.inference.router.transcript import REPLACEMENT

_PATH = "/detokenize"
_TIMEOUT_S = 5.0
NO_PATH = "no_path"
"""The cause if a server has no such path."""
_MOST_PARTS = 3
"""A character has at most four bytes, so at most three tokens are parts of one without its end."""


Texts = Callable[[Sequence[int]], Awaitable[str]]
"""A function that returns the text of tokens."""


async def detokenize(address: Address, model: object, ids: Sequence[int]) -> str:
    """Returns the text of tokens. Raises EngineLost."""
    body = json.dumps(
        {
            "model": model,
            "tokens": list(ids),
        }
    ).encode()
    headers = {"content-type": "application/json"}
    request = make_request("POST", _PATH, str(address), body, headers)
    status, content = await ask(address.host, address.port, request, timeout_s=_TIMEOUT_S)
    if status != 200:
        raise EngineLost(NO_PATH if status in (404, 405) else "busy")
    try:
        return str(json.loads(content)["prompt"])
    except (ValueError, LookupError, TypeError):
        raise EngineLost("protocol") from None


async def count_parts(texts: Texts, ids: Sequence[int]) -> int:
    """Returns how many of the last tokens are parts of a character whose end is missing.

    Returns 0 if the text ends with such a part even without them: then the text itself has invalid
    characters. Raises EngineLost.
    """
    for count in range(min(_MOST_PARTS, len(ids) - 1) + 1):
        text = await texts(ids[: len(ids) - count])
        if not text.endswith(REPLACEMENT):
            return count
    return 0


def _find_start(whole: str, end: str) -> int:
    """Returns the position in `whole` at which `end` begins.

    `whole` ends with `end`, or with `end` and replacement characters for an incomplete character.
    The text before `end` may end with replacement characters of its own: an output may begin in the
    middle of a character of the prompt.
    """
    settled = whole.removesuffix(end)
    if len(settled) < len(whole):
        return len(settled)
    return len(whole.rstrip(REPLACEMENT).removesuffix(end))


async def split_piece(texts: Texts, piece: Piece, context: Sequence[int]) -> list[Piece]:
    """Splits a piece of several tokens into one for each; returns it whole if that fails.

    `context` are the tokens before it: the first text may complete a character, and tokenizers
    drop the space before a first word.
    """
    parts: list[Piece] = []
    text = ""
    try:
        start = _find_start(await texts([*context, *piece.ids]), piece.text)
        for position, token in enumerate(piece.ids, start=1):
            whole = await texts([*context, *piece.ids[:position]])
            former = text
            # A part of a character has no text until its end arrives.
            text = former if whole.endswith(REPLACEMENT) else whole[start:]
            logprobs = piece.logprobs[position - 1 : position]
            parts.append(
                Piece(
                    ids=[token],
                    text=text[len(former) :],
                    logprobs=logprobs,
                )
            )
    except EngineLost:
        return [piece]
    if text != piece.text:
        return [piece]
    parts[-1] = replace(
        parts[-1],
        finish_reason=piece.finish_reason,
        stop_reason=piece.stop_reason,
        extras=piece.extras,
    )
    return parts

"""Texts of a few tokens, asked of a server (`/detokenize`): for the rare events that need them."""

import json
from collections.abc import Sequence
from dataclasses import replace

from holdfast.inference.router.engine_connection import EngineLost, ask, make_request
from holdfast.inference.router.events import Piece
from holdfast.inference.router.servers import Address
from holdfast.inference.router.transcript import REPLACEMENT

_PATH = "/detokenize"
_TIMEOUT_S = 1.0
_MOST_PARTS = 3
"""A character has at most four bytes, so at most three tokens are parts of one without its end."""


async def detokenize(address: Address, ids: Sequence[int], model: object) -> str:
    """Returns the text of tokens. Raises EngineLost if the server does not know it."""
    body = json.dumps({"model": model, "tokens": list(ids)}).encode()
    headers = {"content-type": "application/json"}
    request = make_request("POST", _PATH, str(address), body, headers)
    status, content = await ask(address.host, address.port, request, timeout_s=_TIMEOUT_S)
    if status != 200:
        raise EngineLost("busy")
    try:
        return str(json.loads(content)["prompt"])
    except (ValueError, LookupError, TypeError):
        raise EngineLost("protocol") from None


async def count_parts(addresses: Sequence[Address], ids: Sequence[int], *, model: object) -> int:
    """Returns how many of the last tokens are parts of a character whose end is missing.

    Returns 0 if no server can tell, as servers without this path cannot.
    """
    for address in addresses:
        try:
            for count in range(min(_MOST_PARTS, len(ids) - 1) + 1):
                text = await detokenize(address, ids[: len(ids) - count], model)
                if not text.endswith(REPLACEMENT):
                    return count
        except EngineLost:
            continue
        return 0
    return 0


async def split_piece(
    address: Address,
    piece: Piece,
    *,
    context: Sequence[int],
    model: object,
) -> list[Piece]:
    """Splits a piece of several tokens into one for each; returns it whole if that fails."""
    parts: list[Piece] = []
    text = ""
    try:
        start = len(await detokenize(address, context, model)) if context else 0
        for position, token in enumerate(piece.ids, start=1):
            whole = await detokenize(address, [*context, *piece.ids[:position]], model)
            former = text
            # A part of a character has no text until its end arrives.
            text = former if whole.endswith(REPLACEMENT) else whole[start:]
            logprobs = piece.logprobs[position - 1 : position]
            part = Piece(ids=[token], text=text[len(former) :], logprobs=logprobs)
            parts.append(part)
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

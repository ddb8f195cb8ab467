"""The transcript of a carried stream: its tokens, and what the client has of them.

Tokens and text must agree at the seam. A server that continues a stream writes the text of its new
tokens only. So the tokens before the seam must be those whose text has been sent: a token that is
the first part of a character has no text yet, and a server cannot know that the rest is missing.
Such tokens are unsettled. At a seam they are dropped, and the next server makes them again.
"""

import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.inference.router.events import (
    MalformedEvent,
    Piece,
    convert_logprobs,
    join_logprobs,
)
from holdfast.inference.router.generation import Generation
from holdfast.inference.router.stop_matcher import StopMatcher
from holdfast.support.errors import HoldfastError

REPLACEMENT = "\ufffd"
_MOST_PARTS = 8
"""The number of tokens without text that count as settled: a character has fewer parts."""
_OBJECTS = {
    (False, True): "text_completion",
    (False, False): "text_completion",
    (True, True): "chat.completion.chunk",
    (True, False): "chat.completion",
}


class Differs(HoldfastError):
    """Raised when a continuation makes tokens other than those that the client has."""


class Transcript:
    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._stops = StopMatcher(generation.stops, include_stop=generation.include_stop)
        self.prompt_ids: array[int] | None = None
        self.ids = array("I")
        """The tokens of the output, with those that are unsettled."""
        self._unsettled: list[Piece] = []
        self._unsettled_count = 0
        self._is_doubtful = False
        """True if the last piece had several tokens, and may end in a part of a character."""
        self._repeats: list[int] = []
        """Tokens that the client has, and that the next server makes again."""
        self._repeat_count = 0
        """The number of them that it has made."""
        self._has_head = False
        self._text_chars = 0
        self._offset_base = 0
        """The characters before the text of the current server."""
        self._base: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.stop_reason: Any = None
        self.obstacle = ""
        """The reason why the stream cannot be carried any more."""
        self._usage_extras: dict[str, Any] = {}
        self.is_continued = False

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def is_full(self) -> bool:
        """True if no token may follow."""
        return self._generation.max_tokens is not None and (
            len(self.ids) >= self._generation.max_tokens
        )

    def read_head(self, document: Mapping[str, Any], piece: Piece | None) -> None:
        """Keeps the fields of a server's first event that all events of the client repeat."""
        if piece is not None and piece.prompt_ids is not None and self.prompt_ids is None:
            self.prompt_ids = array("I", piece.prompt_ids)
        if not self._base:
            for name, value in document.items():
                if name not in ("choices", "usage", "prompt_token_ids", "object"):
                    self._base[name] = value
            self._base.setdefault("created", int(time.time()))

    def read_usage(self, document: Mapping[str, Any]) -> None:
        """Keeps details of the first server's usage; the counts are the router's own."""
        usage = document.get("usage")
        if usage and not self.is_continued:
            self._usage_extras = {
                name: value for name, value in usage.items() if not name.endswith("_tokens")
            }

    def is_split_needed(self, piece: Piece) -> bool:
        """Returns True if several tokens arrived at once and a stop sequence ends among them."""
        return (
            len(piece.ids) > 1
            and bool(self._generation.stops)
            and (self._stops.find(piece.text) is not None)
        )

    def add(self, piece: Piece) -> list[Piece]:
        """Adds a piece of a server; returns the pieces for the client.

        Raises Differs if the piece contradicts what the client has, and MalformedEvent.
        """
        try:
            self.ids.extend(piece.ids)
        except (OverflowError, TypeError):
            raise MalformedEvent("a token id is no number of 32 bits") from None
        size = len(piece.ids)
        is_settled = self._is_settled(piece)
        piece = self._convert(piece)
        if self._repeats:
            piece = self._drop_repeats(piece)
        if piece.extras and not self.obstacle:
            self.obstacle = min(piece.extras)
        if not is_settled:
            self._unsettled.append(piece)
            self._unsettled_count += size
            return []
        del self._repeats[: self._repeat_count]
        self._repeat_count = 0
        self._unsettled_count = 0
        whole = self._merge_unsettled(piece)
        self._text_chars += len(whole.text)
        return self._apply_stops(whole)

    def rewind(self) -> int:
        """Drops the unsettled tokens before a seam; returns their number."""
        count = self._unsettled_count
        self._unsettled = []
        self._unsettled_count = 0
        self._repeat_count = 0
        if count:
            del self.ids[len(self.ids) - count :]
        self._offset_base = self._text_chars
        self.is_continued = True
        return count

    def doubtful_ids(self) -> list[int]:
        """Returns the tokens before a seam whose text may not be complete, if there are any."""
        return self.ids[-_MOST_PARTS:].tolist() if self._is_doubtful else []

    def settle(self, count: int) -> None:
        """Drops the last `count` doubtful tokens: they are parts of a character."""
        self._is_doubtful = False
        if not count:
            return
        if self._generation.wants_ids or self._generation.wants_logprobs:
            self._repeats = self.ids[len(self.ids) - count :].tolist() + self._repeats
        del self.ids[len(self.ids) - count :]

    def finish_full(self) -> list[Piece]:
        """Ends a stream that has all its tokens, and whose server was lost before it said so."""
        return self.add(Piece(finish_reason="length"))

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """Makes the event of a piece for the client."""
        choice: dict[str, Any] = {"index": 0}
        if self._generation.is_chat:
            choice["delta"] = {**({"content": piece.text} if piece.text else {}), **piece.extras}
        else:
            choice["text"] = piece.text
        choice["logprobs"] = self._format_logprobs(piece)
        choice["finish_reason"] = piece.finish_reason
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if self._generation.wants_ids:
            choice["token_ids"] = list(piece.ids)
            if not self._generation.is_chat and not self._has_head:
                choice["prompt_token_ids"] = (self.prompt_ids or array("I")).tolist()
        self._has_head = True
        document = self._document([choice], is_event=True)
        if self._generation.wants_usage_always:
            document["usage"] = self.usage()
        return document

    def head_chunk(self) -> dict[str, Any] | None:
        """Makes the first event of the client, if the protocol has one before the first text."""
        if not self._generation.is_chat:
            return None
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        document = self._document([choice], is_event=True)
        if self._generation.wants_ids and self.prompt_ids is not None:
            document["prompt_token_ids"] = self.prompt_ids.tolist()
        return document

    def usage_chunk(self) -> dict[str, Any]:
        return self._document([], is_event=True) | {"usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        prompt_count = len(self.prompt_ids or ())
        count = len(self.ids)
        return {
            "prompt_tokens": prompt_count,
            "total_tokens": prompt_count + count,
            "completion_tokens": count,
            **self._usage_extras,
        }

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Makes the response to a request that is not streamed."""
        piece = _join(pieces)
        choice: dict[str, Any] = {"index": 0}
        if self._generation.is_chat:
            content = {"content": piece.text, **piece.extras}
            choice["message"] = {"role": "assistant", **content}
        else:
            choice["text"] = piece.text
        choice["logprobs"] = self._format_logprobs(piece)
        choice["finish_reason"] = self.finish_reason
        choice["stop_reason"] = self.stop_reason
        document = self._document([choice], is_event=False) | {"usage": self.usage()}
        if self._generation.wants_ids:
            prompt_ids = (self.prompt_ids or array("I")).tolist()
            choice["token_ids"] = list(piece.ids)
            target = document if self._generation.is_chat else choice
            target["prompt_token_ids"] = prompt_ids
        return document

    def _document(self, choices: list[Any], *, is_event: bool) -> dict[str, Any]:
        kind = _OBJECTS[self._generation.is_chat, is_event]
        return {
            **self._base,
            "object": kind,
            "choices": choices,
        }

    def _convert(self, piece: Piece) -> Piece:
        """Returns the piece with the log probabilities of the client's protocol and text."""
        if not piece.logprobs:
            return piece
        if not self._generation.is_chat:
            shifted: list[dict[str, Any]] = []
            for entry in piece.logprobs:
                offset = entry["offset"]
                if offset is not None:
                    offset += self._offset_base
                shifted.append({**entry, "offset": offset})
            return replace(piece, logprobs=shifted)
        if "top" in piece.logprobs[0]:
            top = self._generation.body.get("top_logprobs") or 0
            return replace(piece, logprobs=convert_logprobs(piece.logprobs, top))
        return piece

    def _drop_repeats(self, piece: Piece) -> Piece:
        """Returns the piece without the tokens that the client already has."""
        start = self._repeat_count
        count = min(len(self._repeats) - start, len(piece.ids))
        if list(piece.ids[:count]) != self._repeats[start : start + count]:
            raise Differs
        self._repeat_count += count
        return replace(piece, ids=piece.ids[count:], logprobs=piece.logprobs[count:])

    def _is_settled(self, piece: Piece) -> bool:
        """Judges whether the text of all tokens so far is complete."""
        if piece.finish_reason is not None:
            return True
        if piece.text or piece.extras:
            self._is_doubtful = len(piece.ids) > 1
            return True
        return self._unsettled_count + len(piece.ids) > _MOST_PARTS

    def _merge_unsettled(self, piece: Piece) -> Piece:
        if not self._unsettled:
            return piece
        pieces = [*self._unsettled, piece]
        self._unsettled = []
        return replace(
            _join(pieces),
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
        )

    def _apply_stops(self, piece: Piece) -> list[Piece]:
        if len(self.ids) > self._generation.min_tokens:
            match = self._stops.find(piece.text)
            if match is not None:
                return self._end(replace(piece, text=match.text), "stop", match.stop)
        text = self._stops.add(piece.text)
        if piece.finish_reason is not None:
            text += self._stops.flush()
            return self._end(replace(piece, text=text), piece.finish_reason, piece.stop_reason)
        return [piece if text == piece.text else replace(piece, text=text)]

    def _end(self, piece: Piece, finish_reason: str, stop_reason: Any) -> list[Piece]:
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason
        return [replace(piece, finish_reason=finish_reason, stop_reason=stop_reason)]

    def _format_logprobs(self, piece: Piece) -> Any:
        if not self._generation.wants_logprobs or not piece.logprobs:
            return None
        if self._generation.is_chat:
            return {"content": list(piece.logprobs)}
        return join_logprobs(piece.logprobs)


def _join(pieces: Sequence[Piece]) -> Piece:
    """Returns one piece with the tokens, texts and extras of several."""
    ids: list[int] = []
    texts: list[str] = []
    logprobs: list[Mapping[str, Any]] = []
    extras: dict[str, Any] = {}
    for piece in pieces:
        ids += piece.ids
        texts.append(piece.text)
        logprobs += piece.logprobs
        for name, value in piece.extras.items():
            former = extras.get(name)
            extras[name] = former + value if isinstance(former, str | list) else value
    return Piece(
        ids=ids,
        text="".join(texts),
        logprobs=logprobs,
        extras=extras,
    )

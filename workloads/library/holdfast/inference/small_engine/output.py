"""The output of one request: tokens, text, log probabilities and stop sequences, as in vLLM."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.inference.small_engine.model import (
    EOS,
    Decoder,
    Model,
    alternatives,
    decode,
    logprob,
)


@dataclass
class Step:
    """Holds what one event of a stream carries."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    entries: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: Any = None


class Output:
    def __init__(
        self,
        prompt: Sequence[int],
        body: Mapping[str, Any],
        *,
        max_tokens: int,
        seed: int | None,
        top_logprobs: int | None,
    ) -> None:
        self._model = Model(prompt, seed=seed)
        self._decoder = Decoder()
        self._max_tokens = max_tokens
        self._top_logprobs = top_logprobs
        stop: Any = body.get("stop") or []
        self._stops: list[str] = [stop] if isinstance(stop, str) else list(stop)
        self._include_stop = bool(body.get("include_stop_str_in_output"))
        self._stop_ids: set[int] = set(body.get("stop_token_ids") or ())
        self._min_tokens: int = body.get("min_tokens") or 0
        self._ignore_eos = bool(body.get("ignore_eos"))
        # vLLM holds back as much text as a stop sequence may still reach.
        longest = max((len(text) for text in self._stops), default=1)
        self._buffer_chars = 0 if self._include_stop else longest - 1
        self.text = ""
        self._sent_chars = 0
        self._checked_chars = 0
        self.count = 0
        self.is_finished = False

    def step(self, tokens: int = 1) -> Step:
        """Makes up to `tokens` tokens and returns the event for them."""
        step = Step()
        for _ in range(tokens):
            self._add_token(step)
            if step.finish_reason is not None:
                self.is_finished = True
                break
        end = len(self.text)
        if not self.is_finished:
            end = max(self._sent_chars, end - self._buffer_chars)
        step.text = self.text[self._sent_chars : end]
        self._sent_chars = end
        return step

    def _add_token(self, step: Step) -> None:
        may_end = not self._ignore_eos and self.count >= self._min_tokens
        token, number = self._model.next(may_end=may_end)
        self.count += 1
        step.ids.append(token)
        if self._top_logprobs is not None:
            step.entries.append(self._make_entry(token, number))
        if token == EOS:
            step.finish_reason = "stop"
            return
        self.text += self._decoder.add(token)
        if token in self._stop_ids and self.count > self._min_tokens:
            step.finish_reason = "stop"
            step.stop_reason = token
            return
        if self.count <= self._min_tokens:
            self._checked_chars = len(self.text)
        elif self._find_stop(step):
            return
        if self.count >= self._max_tokens:
            step.finish_reason = "length"

    def _find_stop(self, step: Step) -> bool:
        new_chars = len(self.text) - self._checked_chars
        for stop in self._stops:
            start = max(0, len(self.text) - new_chars - len(stop) + 1)
            position = self.text.find(stop, start)
            if position < 0:
                continue
            end = position + len(stop) if self._include_stop else position
            self.text = self.text[:end]
            step.finish_reason = "stop"
            step.stop_reason = stop
            return True
        self._checked_chars = len(self.text)
        return False

    def _make_entry(self, token: int, number: int) -> dict[str, Any]:
        count = max(1, self._top_logprobs or 0)
        top = alternatives(token, number, count)
        return {
            "token": decode([token]),
            "logprob": logprob(number),
            "offset": len(self.text),
            "top": {decode([other]): value for other, value in top},
        }

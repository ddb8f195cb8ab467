"""The model of the small engine: a tokenizer of words and bytes, and the next token.

The next token is a pure function of all tokens before it, and of the seed if it is drawn. So two
engines write the same text, and a text that was continued elsewhere equals one that was not.
"""

import codecs
from collections.abc import Iterable, Sequence

_WORDS = (
    " the a of to and in is for with on that model train node spot save load step loss batch token"
    " stream server queue ready drain move seam text cloud pool price zone shard gang peer time"
)
_PUNCTUATION = b".,;:!?\n-"
_CHARACTERS = [character.encode() for character in "éßñ€日本語🙂🚀"]
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

EOS = 256
WORDS = [f" {word}".encode() for word in _WORDS.split()]
FIRST_WORD = EOS + 1
VOCABULARY = FIRST_WORD + len(WORDS)
_WORD_IDS = {word: FIRST_WORD + position for position, word in enumerate(WORDS)}
_LONGEST_WORD = max(len(word) for word in WORDS)


def encode(text: str) -> list[int]:
    """Returns the tokens of a text: the longest word, or else one byte."""
    data = text.encode("utf-8", "replace")
    ids: list[int] = []
    position = 0
    while position < len(data):
        size = 1
        token = data[position]
        if token == 0x20:
            for length in range(_LONGEST_WORD, 1, -1):
                word = data[position : position + length]
                if word in _WORD_IDS:
                    size = len(word)
                    token = _WORD_IDS[word]
                    break
        ids.append(token)
        position += size
    return ids


def token_bytes(token: int) -> bytes:
    if token < EOS:
        return bytes((token,))
    return b"" if token == EOS else WORDS[token - FIRST_WORD]


def decode(ids: Iterable[int]) -> str:
    """Returns the text of tokens; parts of a character are replacement characters."""
    return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")


class Decoder:
    """Decodes tokens one by one: a character has no text until its last part arrives.

    It begins with the first token of an output. The end of a character that began in the prompt
    is a replacement character.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(token_bytes(token))


class Model:
    """The state of one text."""

    def __init__(self, prompt: Sequence[int], *, seed: int | None = None) -> None:
        self._hash = 0
        self._salt = 0 if seed is None else _mix(seed + 1)
        self._tail = b""
        """The last three tokens, if they are bytes."""
        for token in prompt:
            self._add(token)

    def next(self, *, may_end: bool = True) -> tuple[int, int]:
        """Returns the next token and the random number that it follows from."""
        number = _mix(self._hash ^ self._salt)
        token = self._choose(number, may_end=may_end)
        self._add(token)
        return token, number

    def _add(self, token: int) -> None:
        mixed = self._hash ^ (token + 1)
        self._hash = (mixed * _GOLDEN + 1) & _MASK
        if token < EOS:
            text = self._tail + bytes((token,))
            self._tail = text[-3:]
        else:
            self._tail = b""

    def _choose(self, number: int, *, may_end: bool) -> int:
        part = self._find_part()
        if part:
            candidates = [data for data in _CHARACTERS if data.startswith(part)]
            return candidates[number % len(candidates)][len(part)]
        kind = number % 1000
        rest = number // 1000
        if kind < 120:
            return _CHARACTERS[rest % len(_CHARACTERS)][0]
        if kind < 240:
            return _PUNCTUATION[rest % len(_PUNCTUATION)]
        if kind < 245 and may_end:
            return EOS
        return FIRST_WORD + rest % len(WORDS)

    def _find_part(self) -> bytes:
        """Returns the end of the text that is the beginning of a character."""
        for size in range(1, len(self._tail) + 1):
            part = self._tail[-size:]
            for data in _CHARACTERS:
                if data.startswith(part) and len(part) < len(data):
                    return part
        return b""


def _mix(number: int) -> int:
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & _MASK
    return number ^ (number >> 31)


def logprob(number: int) -> float:
    return -(number % 4096) / 1024


def alternatives(token: int, number: int, count: int) -> list[tuple[int, float]]:
    """Returns the token and the next likely ones, with their log probabilities."""
    first = logprob(number)
    pairs = [(token, first)]
    for position in range(1, count):
        other_token = (token + 7 * position) % EOS
        pairs.append((other_token, first - position / 8))
    return pairs[:count]

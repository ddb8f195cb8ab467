"""Compares names: which word was meant, and whether one is a typo of another."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

MAX_WORD = 100
_PART = re.compile(r"[-./]|[^-./]+")
_MIN_LIKENESS = 0.6


def find_near(word: str, vocabulary: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns the word of a vocabulary that was most likely meant; empty where none is close.

    A long text is no word.
    """
    if len(word) > MAX_WORD:
        return ""
    matches = get_close_matches(word, vocabulary, n=1, cutoff=cutoff)
    return matches[0] if matches else ""


def suggest(
    word: str, vocabulary: Iterable[str], cutoff: float = 0.6, *, otherwise: str = ""
) -> str:
    """Returns `; did you mean WORD?`, to end a message; `otherwise` where no word is close."""
    near_word = find_near(word, vocabulary, cutoff)
    return f"; did you mean {near_word}?" if near_word else otherwise


def misspells(word: str, name: str) -> bool:
    """Returns whether a word is most likely a typo of a name.

    Only the parts that differ are compared: `cloud.google.com/gke-nodepool` and
    `cloud.google.com/gke-spot` share a long prefix, and neither is a typo of the other.
    """
    if word == name or len(word) > MAX_WORD:
        return False
    domain, _, label = word.rpartition("/")
    name_domain, _, name_label = name.rpartition("/")
    if domain != name_domain and label != name_label:
        # One domain is much like another: the labels decide, as of google.com/tpu.
        return misspells(domain, name_domain) and misspells(label, name_label)
    word_parts = _PART.findall(word.replace("_", "-"))
    name_parts = _PART.findall(name.replace("_", "-"))
    if word_parts == name_parts:
        return True
    for end in (0, -1):
        while word_parts and name_parts and word_parts[end] == name_parts[end]:
            del word_parts[end], name_parts[end]
    matcher = SequenceMatcher(None, "".join(word_parts), "".join(name_parts), autojunk=False)
    return matcher.ratio() >= _MIN_LIKENESS


def count_differences(name: str, other: str) -> int:
    """Counts the letters that have to be changed, added or removed to make one name the other."""
    row = list(range(len(other) + 1))
    for index, letter in enumerate(name, start=1):
        previous = row
        row = [index]
        for position, other_letter in enumerate(other, start=1):
            change = previous[position - 1]
            if letter != other_letter:
                change += 1
            removal = previous[position] + 1
            addition = row[-1] + 1
            row.append(min(change, removal, addition))
    return row[-1]

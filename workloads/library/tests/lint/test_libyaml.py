"""libyaml's nodes are those of ruamel.yaml, positions and tags included, or it is not asked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.lint import composer, document, libyaml
from holdfast.lint.pages import example_text
from holdfast.lint.registry import all_rules
from tests.workloads.manifests.rendered import RENDERED
from workloads.library.tests.lint.seeded.defects import TOPICS
from workloads.library.tests.lint.test_hostile import HUGE, POD

HERE = Path(__file__).parent
# Each was read differently, or nearly so.
DIFFER = (
    "a:\n", "a:\n\nb: 1\n", "- \n- a\n", "a: |# c\n", "a: >-2#\n b\n", "&a:b\n", "- &a:b c\n", "a: &b 1\nc: *b\n", "a: {b: c?, d}\n",
    "[0.?<.? .--]\n", "{? a : b}\n", "a: |\n \n    b\n", "a: b", "- - k: v", ">\n#\n", "a\n", "b: !\n", "! : a\n", "a: !!str 1\n",
    "a: !b c\n", "a: 1\n...\nb: 2\n", "%A\na: 1\n", "---a: 1\n", "a: b\tc\n", "a: b\r\n", "a: \x85\n", "a: \u2028\n", "a: \ufeffb\n",
    "a: \x07\n", "a: \ud800\n", '"a": "\\ud800"\n', '"a\\/b": 1\n', "[a:b, c: d, e:]\n", '{"a":b}\n', "a: b: c\n", "a: [b\n", "a: 'b\n",
    "a: " + "[" * 36 + "[], b, " * 9 + "]" * 36 + "\n",
)  # fmt: skip
PIECES = st.sampled_from(
    ["a", "b: ", "k:", "- ", "-", "? ", ":", ": ", ",", "[", "]", "{", "}", "|", "|-\n", "|+\n", ">\n", ">2\n", "\n", "\n  ", "\n    ",
     " ", "  ", "# c", " #x", "'", '"', "''", "\\", "&a ", "*a", "<<: ", "!", "!!int 3", "yes", "1", "0o7", "010", "1:30", "~", "null",
     "=", "2001-01-01", "@", "`", "%", "é", "…", "😀", "---", "...", "{{ x }}", "a b", "a: 1\n", "- x\n", "x:\n", '"a\\\n b"', "[a: b]",
     "{a, b: }", "\\u00e9", "a#b", "a:b", "- a: 1\n  b: 2\n", "|2", "\t"]
)  # fmt: skip
MANIFEST = (HERE / "corpus/c-spot-patterns.yaml").read_text()


def shape(node: Any, seen: dict[int, int]) -> Any:
    """All that the linter may know of a node."""
    if node is None or id(node) in seen:
        return node and seen[id(node)]
    seen[id(node)] = len(seen)
    begin, end = node.start_mark, node.end_mark
    on_line = end.column if end.line == begin.line and end.column > begin.column else None
    if node.id == "scalar":
        inner = node.value
    elif node.id == "mapping":
        inner = [(shape(key, seen), shape(value, seen)) for key, value in node.value]
    else:
        inner = [shape(item, seen) for item in node.value]
    return node.id, node.tag, begin.line, begin.column, on_line, inner


def is_read_alike(text: str) -> bool:
    """Whether libyaml read it; what it reads is compared."""
    try:
        node = libyaml.compose(text, composer.VERSION, max_nodes=composer.MAX_NODES, max_depth=composer.MAX_DEPTH)
    except libyaml.NotAlikeError:
        return False
    assert shape(node, {}) == shape(composer.compose_slowly(text), {}), text[:2_000]
    return True


def chunks(text: str) -> Iterator[str]:
    for chunk, _ in document._chunks(text):
        yield document._without_directives(chunk)


@pytest.mark.parametrize("text", DIFFER)
def test_what_is_known_to_differ_is_read_alike_or_left_to_ruamel(text: str) -> None:
    is_read_alike(text)


@pytest.mark.parametrize(
    "text", ["a: !!str 1\n", "a: !b c\n", "a: 1\n...\n", "---a: 1\n", "'\n% ': 1\n", "a: b \u2028\n", "a: &b 1\n"]
)
def test_what_manifests_do_not_need_is_left_to_ruamel_without_asking_whether_it_differs(text: str) -> None:
    assert not is_read_alike(text)


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=12).map("".join))
@example("a: |\n  b\n  # c\n\nd: [e, {f: 'g''h'}]\n")
def test_no_text_is_read_differently(text: str) -> None:
    is_read_alike(text)


@settings(max_examples=150)
@given(
    st.integers(0, len(MANIFEST) - 200), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), PIECES), max_size=3)
)
def test_no_manifest_that_was_damaged_is_read_differently(start: int, changes: list[tuple[int, int, str]]) -> None:
    text = MANIFEST[MANIFEST.rfind("\n", 0, start + 1) + 1 :][:200].rpartition("\n")[0] + "\n"
    for at, length, piece in changes:
        text = text[:at] + piece + text[at + length :]
    is_read_alike(text)


@pytest.mark.process
@pytest.mark.parametrize("name", ["example", "dev", "prod"])
def test_every_rendered_manifest_is_read_by_libyaml_and_alike(name: str) -> None:
    found = [chunk for file in (RENDERED / name).rglob("*.yaml") for chunk in chunks(file.read_text())]
    assert len(found) > 50 and all(is_read_alike(chunk) for chunk in found)


@pytest.mark.process
def test_examples_defects_and_the_corpus_are_read_alike() -> None:
    texts = [
        file.read_text() for folder in ("corpus", "corrected", "seeded") for file in (HERE / folder).glob("*.yaml")
    ]
    texts += [defect.text() for defects in TOPICS.values() for defect in defects]
    texts += [example_text(rule, body) for rule in all_rules().values() for body in (rule.bad, rule.good)]
    found = {chunk for text in texts for chunk in chunks(text)}
    assert sum(is_read_alike(chunk) for chunk in found) > 0.9 * len(found)


@pytest.mark.process
@pytest.mark.parametrize("name", HUGE)
def test_hostile_files_are_read_alike(name: str) -> None:
    """The begin of each: ruamel.yaml takes half a minute for some."""
    text = HUGE[name]()
    for chunk in set(chunks(text[: 1 + text.rfind("\n", 0, 50_000)] or text[:50_000])):
        is_read_alike(chunk)


@pytest.mark.process
@pytest.mark.parametrize(
    ("bound", "text"),
    [
        ("nested more than 40 deep", f"{POD}a: {'[' * 41}{']' * 41}\n"),
        ("more than 101,000 values", f"a: [{'b, ' * 102_000}]\n"),
    ],
)
def test_the_bounds_hold_and_are_told_by_ruamel(bound: str, text: str) -> None:
    assert not is_read_alike(text)
    (read,) = document.read(text)
    assert [trouble.message for trouble in read.troubles] == [bound]


@pytest.mark.parametrize(
    "text", ["kind: [Job\n", "a: 1\na: 2\n", "kind: Pod\nb: {c: [1, yes]}\n", "a: {{ b }}\n", "a: *b\n"]
)
def test_without_libyaml_the_same_is_read(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def documents() -> list[Any]:
        return [(d.value, d.troubles, getattr(d.value, "values_at", None)) for d in document.read(text)]

    quick = documents()
    monkeypatch.setattr(composer, "libyaml", None)
    assert documents() == quick


def test_columns_count_characters_and_not_their_bytes() -> None:
    assert is_read_alike("{é…😀: 'ü', b: 1}\n")

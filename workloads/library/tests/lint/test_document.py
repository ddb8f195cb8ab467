"""Reading YAML: places, broken documents, templates, hostile text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.lint.document import MAX_FILE_BYTES, read


def test_a_place_counts_lines_of_the_file_across_documents() -> None:
    text = "# head\na: 1\n---\nkind: Pod\nspec:\n  containers:\n    - name: main\n"
    second = list(read(text))[1]
    mark = second.at(("spec", "containers", 0, "name"))
    assert (mark.line, mark.column, mark.end) == (7, 13, 17)


def test_a_missing_field_is_placed_at_its_nearest_parent() -> None:
    (document,) = read("kind: Job\nspec:\n  template: {}\n")
    assert document.at(("spec", "template", "spec", "tolerations")).line == 3


def test_a_broken_document_does_not_hide_its_neighbours() -> None:
    broken, sound = read("kind: [Job\n---\nkind: Pod\n")
    assert [t.kind for t in broken.troubles] == ["broken"]
    assert sound.value == {"kind": "Pod"} and not sound.troubles


def test_anchors_and_merge_keys_are_resolved() -> None:
    (document,) = read("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n")
    assert document.value["use"] == {"x": 1, "y": 3}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("kind: Job\nmetadata:\n  name: {{ .Release.Name }}\n", ["template"]),
        ('kind: Workflow\nname: "{{inputs.name}}"\n', []),
        (BOMB, ["broken"]),
        ("a: &a [*a]\n", ["broken"]),
        ("a: b\n" * (MAX_FILE_BYTES // 4), ["huge"]),
    ],
    ids=["template", "template inside quotes", "bomb of aliases", "loop of aliases", "gigantic"],
)
def test_what_is_not_judged_is_named(text: str, kinds: list[str]) -> None:
    (document,) = read(text)
    assert [t.kind for t in document.troubles] == kinds


def test_a_key_that_stands_twice_is_found_where_it_stands_again() -> None:
    (document,) = read("a: 1\nb: 2\na: 3\n")
    assert [(t.kind, t.mark.line) for t in document.troubles] == [("duplicate", 3)]


@settings(max_examples=60)
@given(st.text(alphabet=st.sampled_from(list("ab:-[]{}&*!|>%@`'\"#,? \n\t0\x00")), max_size=60))
def test_no_text_crashes_the_reader(text: str) -> None:
    assert isinstance(list(read(text)), list)


def test_plain_scalars_are_read_as_the_api_server_reads_them() -> None:
    (found,) = read("[yes, off, 010, 0o7, 0x10, 1_000, 1e3, 1.5, 1:30, ~, null, 2020-01-01, =, '1', !!str 2]\n")
    plain = [True, False, 8, "0o7", 16, 1000, 1000.0, 1.5, "1:30", None, None, "2020-01-01", "=", "1", "2"]
    assert found.value == plain


def test_columns_count_characters_and_not_their_bytes() -> None:
    (found,) = read("{é…😀: 'ü', b: 1}\n")
    assert (found.at(("b",), of_key=True).column, found.at(("é…😀",)).column) == (12, 7)


@pytest.mark.process
@pytest.mark.parametrize(
    ("bound", "text"),
    [
        ("nested more than 40 deep", f"a: {'[' * 41}{']' * 41}\n"),
        ("more than 101,000 values", f"a: [{'b, ' * 102_000}]\n"),
    ],
)
def test_the_bounds_of_depth_and_size_hold(bound: str, text: str) -> None:
    (found,) = read(text)
    assert [trouble.message for trouble in found.troubles] == [bound]


def test_tags_build_nothing() -> None:
    (found,) = read("a: !!python/object/apply:os.system [true]\nb: !!python/name:os.system x\n")
    assert found.value == {"a": [True], "b": "x"}

"""Tests of the YAML reader: marks, broken documents, templates, hostile text."""

from pathlib import Path

import pytest

from holdfast.lint.document import MAX_FILE_BYTES, load_text, read


@pytest.mark.parametrize(
    ("text", "path", "of_key", "place"),
    [
        (
            "# head\na: 1\n---\nkind: Pod\nspec:\n  containers:\n    - name: main\n",
            ("spec", "containers", 0, "name"),
            False,
            (7, 13, 17),
        ),
        (
            "kind: Job\nspec:\n  template: {}\n",
            ("spec", "template", "spec", "tolerations"),
            False,
            (3, 3, 11),
        ),
        ("{é…😀: 'ü', b: 1}\n", ("b",), True, (1, 12, 13)),
        ("{é…😀: 'ü', b: 1}\n", ("é…😀",), False, (1, 7, 10)),
    ],
    ids=[
        "lines of the file across documents",
        "nearest parent of a missing field",
        "characters, of a key",
        "characters",
    ],
)
def test_mark_is_line_and_columns(
    text: str,
    path: tuple[str | int, ...],
    of_key: bool,
    place: object,
) -> None:
    mark = list(read(text))[-1].locate(path, of_key=of_key)
    assert (mark.line, mark.column, mark.end) == place


def test_broken_document_does_not_hide_its_neighbors() -> None:
    broken, sound = read("kind: [Job\n---\nkind: Pod\n")
    assert [trouble.kind for trouble in broken.troubles] == ["broken"]
    assert sound.value == {"kind": "Pod"} and not sound.troubles


def test_duplicate_key_has_its_line() -> None:
    _, document = read("kind: Pod\n---\na: 1\nb: 2\na: 3\n")
    assert [(trouble.kind, trouble.mark.line) for trouble in document.troubles] == [
        ("duplicate", 5)
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n",
            {
                "base": {"x": 1, "y": 2},
                "use": {"x": 1, "y": 3},
            },
        ),
        (
            (
                "[yes, off, 010, 0o7, 0x10, 1_000, 1e3, 1.5, 1:30, ~, null, 2020-01-01, =, '1',"
                " !!str 2]\n"
            ),
            [
                True,
                False,
                8,
                "0o7",
                16,
                1000,
                1000.0,
                1.5,
                "1:30",
                None,
                None,
                "2020-01-01",
                "=",
                "1",
                "2",
            ],
        ),
        (
            "a: !!python/object/apply:os.system [true]\nb: !!python/name:os.system x\n",
            {
                "a": [True],
                "b": "x",
            },
        ),
    ],
    ids=[
        "anchors and merge keys",
        "plain scalars as the API server reads them",
        "tags build nothing",
    ],
)
def test_values_are_read(text: str, value: object) -> None:
    (document,) = read(text)
    assert document.value == value


def _write_bomb() -> str:
    """Writes lists of aliases, each with nine times as many values as the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 9):
        aliases = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    return "\n".join(lines) + "\n"


BOMB = _write_bomb()


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
def test_unjudged_document_has_a_reason(text: str, kinds: list[str]) -> None:
    (document,) = read(text)
    assert [trouble.kind for trouble in document.troubles] == kinds


@pytest.mark.process
def test_depth_and_size_are_bounded() -> None:
    deep = "[" * 41 + "]" * 41
    long = f"[{'b, ' * 102_000}]"
    for bound, text in (("nested more than 40 deep", deep), ("more than 101,000 values", long)):
        (document,) = read(f"a: {text}\n")
        assert [trouble.message for trouble in document.troubles] == [bound]


def test_a_long_file_that_is_cut_in_a_character_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("é" * (2 * MAX_FILE_BYTES + 1))
    assert len(load_text(path)) == 2 * MAX_FILE_BYTES
    path.write_bytes(b"a: \xc3")
    with pytest.raises(UnicodeDecodeError):
        load_text(path)

"""The check of plain code finds what it is for, and counts only fall."""

import tomllib

from tests import check_style

BOUNDS = {
    half: {
        "nodes_per_code_line": 20.0,
        "characters_per_code_line": 200.0,
        "comprehensions_per_1000_code_lines": 1000.0,
    }
    for half in ("product", "tests")
}
PLAIN = (
    '"""Reads jobs."""\n\n\ndef read_job(name: str) -> str:\n'
    '    """Returns the job."""\n    return name\n'
)
OFFENSES = {
    "fragment": '"""Of jobs."""\n',
    "note": '"""Reads jobs."""\nlimit = 3\n"""At most."""\n',
    "name": "found = 3\n",
    "tuple": "first, second = 1, 2\n",
    "x_of": "def name_of() -> None: ...\n",
    "participle": "def decided() -> None: ...\n",
    "fmt": "limit = 3  # fmt: skip\n",
    "test_name": f"def test_{'x' * 70}() -> None: ...\n",
}


def allow(**files: dict[str, float]) -> dict[str, dict[str, dict[str, float]]]:
    return {"bounds": BOUNDS, "allowed": files}


def test_plain_code_passes() -> None:
    assert check_style.check({"a.py": PLAIN, "tests/test_a.py": PLAIN}, allow()) == []


def test_each_offense_kind_is_listed_with_its_line() -> None:
    for kind, source in OFFENSES.items():
        problems = check_style.check({"a.py": source}, allow())
        assert [f"[{kind}: 1 in the file, 0 allowed]" in line for line in problems] == [True], kind
        assert problems[0].startswith("a.py:")


def test_a_count_may_stay_and_may_not_rise() -> None:
    source = OFFENSES["name"]
    table = allow(**{"a.py": {"name": 1}})
    assert check_style.check({"a.py": source}, table) == []
    assert len(check_style.check({"a.py": source + "made = 4\n"}, table)) == 2


def test_record_lowers_counts_and_never_raises_one() -> None:
    table = allow(
        **{
            "a.py": {"name": 2},
            "gone.py": {"name": 1},
        }
    )
    fewer = tomllib.loads(check_style.record({"a.py": "found = 1\n"}, table))
    assert fewer["allowed"] == {"a.py": {"name": 1}}
    recorded = tomllib.loads(check_style.record({"a.py": "found = 1\nmade = 2\nkept = 3\n"}, table))
    assert recorded["allowed"] == {"a.py": {"name": 2}}


def test_packed_code_passes_its_bound() -> None:
    dense = "total = " + " + ".join(["1"] * 60) + "\n"
    problems = check_style.check({"a.py": dense}, allow())
    assert any("nodes_per_code_line" in line for line in problems)

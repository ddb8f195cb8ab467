"""Files that a tier does not read have none of its tests."""

import os
import re
import sys
from itertools import product
from pathlib import Path

import pytest

from tests import plugin, tiers
from tests.support import ran

_FOLDERS = [tree / folder for tree, folder in product(tiers.TREES, tiers.MARKED_FOLDERS)]
MARKED = [folder for folder in _FOLDERS if folder.is_dir()]
FAST = tiers.TIERS["fast"]
WHOLE = "import pytest\n\npytestmark = {}\n\n\ndef test_a() -> None:\n    pass\n"


@pytest.mark.parametrize(
    ("marks", "skipped"),
    [
        ("pytest.mark.process", True),
        ("[pytest.mark.plan, pytest.mark.timeout(900)]  # long", True),
        ("pytest.mark.timeout(900)", False),
        ('pytest.mark.usefixtures("process")', False),
        (
            (
                "[]\n\n\n@pytest.mark.process\ndef test_b() -> None:\n    pytestmark ="
                " pytest.mark.plan"
            ),
            False,
        ),
    ],
)
def test_fast_tier_skips_slow_files(tmp_path: Path, marks: str, skipped: bool) -> None:
    file = tmp_path / "test_a.py"
    file.write_text(WHOLE.format(marks))
    assert tiers.may_hold(file, FAST.marks) is not skipped
    assert tiers.may_hold(file, "process"), "an expression that is no tier's reads every file"


def test_fast_tier_may_skip_files_for_every_excluded_mark() -> None:
    assert set(FAST.none_of) == set(re.findall(r"\w+", FAST.marks)) - {"not", "or"}


def test_conftest_marks_its_whole_folder() -> None:
    assert len(MARKED) == 3
    for folder in MARKED:
        text = (folder / "conftest.py").read_text()
        assert re.search(
            rf"if HERE in item\.path\.parents:\n +item\.add_marker\(pytest\.mark\.{folder.name}\)",
            text,
        )
        assert not tiers.may_hold(folder, FAST.marks)
    assert tiers.may_hold(tiers.TESTS / "infra", FAST.marks)


@pytest.mark.parametrize("tier", tiers.TIERS.values(), ids=tiers.TIERS.keys())
def test_every_tier_can_judge_a_folder(tier: tiers.Tier) -> None:
    for folder in MARKED:
        assert tiers.may_hold(folder, tier.marks) == (folder.name not in tier.none_of)


def test_workers_start_with_slow_files_and_run_every_test_once() -> None:
    tests = []
    for place in range(100):
        folder = "abcde"[place // 20]
        file = Path(f"{folder}/test_{place // 5}.py")
        tests.append((file, place % 20 == 19))
    order = tiers.deal(tests, 4)
    assert sorted(order) == [*range(100)]
    assert {order[share] // 20 for share in (0, 25, 50, 75)} == {0, 1, 2, 3}
    assert order[:10] == [
        *range(15, 20),
        *range(95, 100),
    ], "files are whole, and the fifth folder is the first worker's"


def test_a_worker_whose_long_files_fill_its_share_gets_no_other() -> None:
    tests = [(Path("a/test_a.py"), place == 3) for place in range(6)] + [
        (Path("a/test_b.py"), False)
    ] * 2
    assert tiers.deal(tests, 2) == [*range(8)]


@pytest.mark.parametrize(
    ("code", "suite", "expected", "text"),
    [
        (
            0,
            'tests="1200" skipped="2" failures="0" errors="0"',
            0,
            "1,198 passed, 0 failed, 2 skipped in 1.5 min",
        ),
        (
            1,
            'tests="5" skipped="1" failures="1" errors="1"',
            1,
            "2 passed, 2 failed, 1 skipped in 1.5 min",
        ),
        (
            0,
            'tests="3" skipped="3" failures="0" errors="0"',
            tiers.ALL_SKIPPED,
            "0 passed, 0 failed, 3 skipped in 1.5 min",
        ),
        (4, "", 4, "0 passed, 0 failed, 0 skipped in 1.5 min"),
    ],
)
def test_a_tier_ends_with_its_counts(
    tmp_path: Path,
    code: int,
    suite: str,
    expected: int,
    text: str,
) -> None:
    report = tmp_path / "report.xml"
    if suite:
        report.write_text(f"<testsuites><testsuite {suite} /></testsuites>")
    outcome = tiers.read_outcome(code, report, 90.0)
    assert outcome.code == expected
    assert str(outcome) == text


def test_tier_ends_with_failed_tests_and_reasons(tmp_path: Path) -> None:
    lines = "".join(f"&#10;log {line}" for line in range(20))
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="3" failures="1" errors="1"><testcase classname="a.b"'
        ' name="test_c"/><testcase classname="a.b" name="test_d"><failure message="assert 1 =='
        f' 2{lines}"/></testcase><testcase classname="" name="a.e"><error message="collection'
        ' failure"/></testcase></testsuite></testsuites>'
    )
    assert tiers.read_outcome(1, report, 1.0).failures == (
        "\n    ".join(["a.b::test_d: assert 1 == 2", *(f"log {line}" for line in range(8, 20))]),
        "::a.e: collection failure",
    )


def test_slowest_tests_are_shown_with_documented_reasons() -> None:
    tests = [
        "tests/plan/test_apply.py::test_a",
        "tests/plan/test_apply.py::test_b",
        "tests/test_new.py::test_c",
    ]
    page = "| s | test | why |\n|---|---|---|\n| 9, 8 | `plan/test_apply.py`, set-up | it waits |\n"
    assert plugin.explain_slow(tests, page) == [
        "tests/plan/test_apply.py: it waits",
        "tests/test_new.py: not known",
    ]


def test_slowest_page_names_existing_tests() -> None:
    named = re.findall(r"^\| [\d, ]+ \| `([^`]+)`", (tiers.TESTS / "SLOWEST.md").read_text(), re.M)
    files = []
    for tree in tiers.TREES:
        for path in tree.rglob("test_*.py"):
            files.append(path.as_posix())
    assert len(named) >= 20
    for name in named:
        assert any(file.endswith(name) for file in files), name


@pytest.mark.process
def test_a_worker_gets_its_tests_in_that_order() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-p",
        "no:xdist",
        "-m",
        "process",
    ]
    files = [
        "workloads/library/tests/month/test_month.py",
        "workloads/library/tests/drill/test_demo.py",
    ]
    environment = os.environ | {"PYTEST_XDIST_WORKER_COUNT": "2"}
    done = ran([*command, *files], variables=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(files[1]), done.stdout + done.stderr

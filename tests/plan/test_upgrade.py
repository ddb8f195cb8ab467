"""A played merge: upstream moves an address, replaces pools, needs a field, drops one, pins another
provider.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.ops.upgrade import Upgrade, report
from tests.support import ROOT, ran

pytestmark = [pytest.mark.plan, pytest.mark.timeout(900)]


def git(folder: Path, *words: str) -> str:
    identity = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "core.hooksPath=/dev/null",
    ]
    done = subprocess.run(
        ["git", *identity, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    return clone_checkout(tmp_path / "fork")


def clone_checkout(clone: Path) -> Path:
    """A clone of this checkout as it lies here, committed."""
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(clone))
    changed = git(ROOT, "ls-files", "--modified", "--others", "--exclude-standard").splitlines()
    for name in changed:
        if (ROOT / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    git(clone, "add", "-A")
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "As it lies here")
    return clone


Edit = tuple[str, str, str]
"""A file, what is in it, and what replaces that once."""


def apply_edits(folder: Path, *edits: Edit) -> None:
    for name, old, new in edits:
        text = (folder / name).read_text()
        assert old in text, (name, old)
        (folder / name).write_text(text.replace(old, new, 1))


def upstream(fork: Path, *edits: Edit) -> None:
    git(fork, "checkout", "--quiet", "-b", "upstream")
    apply_edits(fork, *edits)
    git(fork, "commit", "--quiet", "-a", "-m", "Upstream moves on")
    git(fork, "checkout", "--quiet", "-")


def check(fork: Path, ref: str) -> tuple[int, dict[str, object]]:
    command = [sys.executable, "-m", "infra", "plan", "example", "--merge", ref, "--json"]
    done = ran(command, fork, os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}, 800)
    return done.returncode, json.loads(done.stdout) if done.stdout else {"stderr": done.stderr}


RECEIPTS = [
    (
        "infra/specs/receipts.py",
        '"google_storage_bucket.receipts"',
        '"google_storage_bucket.bucket-receipts"',
    )
] * 2
"""The sink and its grant come after the bucket."""


def test_merge_effects_are_shown_before_the_merge(fork: Path) -> None:
    upstream(
        fork,
        ("infra/specs/storage.py", "id=purpose,", 'id=f"bucket-{purpose}",'),
        (
            "infra/specs/storage.py",
            'f"google_storage_bucket.{purpose}"',
            'f"google_storage_bucket.bucket-{purpose}"',
        ),
        *RECEIPTS,
        # Every address stays, and every machine goes.
        (
            "infra/specs/cluster.py",
            '["https://www.googleapis.com/auth/cloud-platform"]',
            '["storage-full"]',
        ),
        # The add-on of an environment that did not ask for it: it must come and go in place.
        (
            "infra/specs/cluster.py",
            '{"enabled": security.secret_manager}',
            '{"enabled": not security.secret_manager}',
        ),
        # Of the library, which this side has installed.
        (
            "workloads/library/holdfast/vocabulary/lifecycle.py",
            "FLEX_MAX_RUN_S = 604_800",
            "FLEX_MAX_RUN_S = 518_400",
        ),
        (
            "infra/specs/queue.py",
            '"ack_deadline_seconds": ACK_DEADLINE_S',
            '"ack_deadline_seconds": 77',
        ),
    )
    code, output = check(fork, "upstream")
    assert code == 1, output
    assert output["destroyed"] == [
        f"foundation-example google_storage_bucket.{p}" for p in ("checkpoints", "data", "receipts")
    ]
    assert "foundation-example google_storage_bucket.bucket-data" in output["created"]  # type: ignore[operator]
    replaced = output["replaced"]
    changed = output["changed"]
    assert (
        "cluster-example google_container_node_pool.pool-spot-a100: node_config.oauth_scopes"
        in replaced
    )  # type: ignore[operator]
    flex = "node_config.max_run_duration, node_config.oauth_scopes"
    assert f"cluster-example google_container_node_pool.pool-flex-a100: {flex}" in replaced  # type: ignore[operator]
    addresses = (ROOT / "tests/snapshots/addresses.txt").read_text().splitlines()
    pools = [line for line in addresses if "cluster-example google_container_node_pool." in line]
    assert len([line for line in replaced if "node_pool" in line]) == len(pools)  # type: ignore[attr-defined]
    assert "foundation-example google_pubsub_subscription.work: ack_deadline_seconds" in changed  # type: ignore[operator]
    assert (
        "cluster-example google_container_cluster.cluster: cluster_autoscaling,"
        " secret_manager_config" in changed
    )  # type: ignore[operator]
    assert git(fork, "worktree", "list").count("\n") == 0, "the worktree is removed again"


SCHEMA = "infra/environments/network.py"
GAINED = (SCHEMA, "    nodes_cidr: str\n", "    nodes_cidr: str\n    site: str\n")
LOST = ("infra/environments/services.py", "    secret_manager: bool = False\n", "")


@pytest.mark.parametrize(
    ("edit", "older", "code", "word"),
    [
        (GAINED, False, 1, "site"),
        (("infra/contract/versions.py", '"7.39.0"', '"7.39.99"'), False, 3, "7.39.99"),
        (LOST, True, 3, "secret_manager"),
        (("infra/__main__.py", "import typer\n", "import typer !\n"), True, 3, "SyntaxError"),
    ],
    ids=["a field to add", "another provider", "older, without a field", "older, broken"],
)
def test_a_side_without_a_plan_says_why(
    fork: Path,
    edit: tuple[str, str, str],
    older: bool,
    code: int,
    word: str,
) -> None:
    upstream(fork, edit)
    if older:
        git(fork, "merge", "--quiet", "--strategy=ours", "upstream", "-m", "Long ago")
    got, output = check(fork, "upstream")
    assert got == code and word in str(output.get("unloadable", output.get("stderr"))), output
    if older:
        lines = str(output["stderr"]).splitlines()
        heads = [line.split(":")[0].strip() for line in lines]
        assert heads == ["could not judge", "got", "allowed", "fix"]


def test_conflicts_are_listed_and_the_other_side_is_read_without_ours(fork: Path) -> None:
    upstream(fork, GAINED)
    apply_edits(fork, (SCHEMA, "    nodes_cidr: str\n", "    nodes_cidr: str  # of ours\n"))
    git(fork, "commit", "--quiet", "--all", "-m", "Our own")
    code, output = check(fork, "upstream")
    assert code == 1 and output["conflicts"] == [SCHEMA], output
    assert "site" in str(output["unloadable"])
    assert git(fork, "status", "--porcelain") == ""


def test_unknown_revision_is_bad_input_and_other_layout_is_not_judged(fork: Path) -> None:
    code, output = check(fork, "no-such-ref")
    assert code == 2 and "no-such-ref" in str(output["stderr"])
    empty = git(fork, "commit-tree", "4b825dc642cb6eb9a060e54bf8d69288fbee4904", "-m", "The first")
    code, output = check(fork, empty)
    assert code == 3 and "no infra/environments/schema.py" in str(output["stderr"]), output


def test_a_merge_that_changes_nothing_is_clean() -> None:
    assert not Upgrade().harmful and not report(Upgrade())

"""Two releases of the template by the release script, and repositories of teams that merge the
second one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plan.test_upgrade import Edit, apply_edits, clone_checkout, git
from tests.support import ran

pytestmark = [pytest.mark.plan, pytest.mark.timeout(900)]
CHANGELOG = ".github/CHANGELOG.md"
ALERTS = "monitoring/alerting/alerts.toml"
MONITORING = "tests/snapshots/plan/example/monitoring-example.yaml"
POOLS = "infra/specs/pools.py"

SECOND_RELEASE: tuple[Edit, ...] = (
    (CHANGELOG, "## 0.1.0, ", "## 0.2.0, 2026-12-20\n\n- Second.\n\n## 0.1.0, "),
    ("workloads/library/pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"'),
    ("workloads/library/holdfast/__init__.py", '"0.1.0"', '"0.2.0"'),
    # A constant of the library alone: it replaces the pools of flex-start.
    (
        "workloads/library/holdfast/vocabulary/lifecycle.py",
        "FLEX_MAX_RUN_S = 604_800",
        "FLEX_MAX_RUN_S = 518_400",
    ),
    (ALERTS, "hold_s = 1800", "hold_s = 2400"),
    (
        "infra/specs/queue.py",
        '"ack_deadline_seconds": ACK_DEADLINE_S',
        '"ack_deadline_seconds": 77',
    ),
    (POOLS, '"disk_size_gb": pool.disk_gib', '"disk_size_gb": pool.disk_gib + 10'),
    ("infra/environments/example.py", "max_nodes=8", "max_nodes=9"),
    ("README.md", "# Holdfast", "# Holdfast 0.2"),
    (".ci/template/README.md", "# Your platform", "# Your own platform"),
)
TEAM: tuple[Edit, ...] = (
    ("infra/environments/acme.py", "max_nodes=8", "max_nodes=6"),
    (ALERTS, "hold_s = 300", "hold_s = 600"),
    (POOLS, '"auto_repair": not flex', '"auto_repair": True'),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with two releases, of which the first one is checked out. Bundles are in
    `out/release`.
    """
    source = clone_checkout(tmp_path_factory.mktemp("source") / "holdfast")
    apply_edits(source, (CHANGELOG, "## 0.1.0, unreleased", "## 0.1.0, 2026-12-01"))
    first = release(source, "0.1.0")
    # As publish.yml pushes it, and a clone has it.
    git(source, "fetch", "--quiet", str(first), "template:refs/remotes/origin/template")
    apply_edits(source, *SECOND_RELEASE)
    release(source, "0.2.0")
    git(source, "checkout", "--quiet", "v0.1.0")
    return source


def release(source: Path, version: str) -> Path:
    git(source, "commit", "--quiet", "--all", "-m", f"Release {version}")
    git(source, "tag", f"v{version}")
    done = run(source, ".ci/release.py", f"v{version}")
    assert done.returncode == 0, done.stderr
    return bundle(source, version)


def bundle(source: Path, version: str) -> Path:
    return source / "out/release" / f"template-{version}.bundle"


def run(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of this environment."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    return ran([sys.executable, *words], folder, environment, 800)


def make_template(source: Path, out: Path, *options: str | Path) -> Path:
    done = run(source, ".ci/template.py", out, *options)
    assert done.returncode == 0, done.stderr
    assert "Note:" not in done.stderr
    return out


def edit_as_a_team(platform: Path) -> None:
    apply_edits(platform, *TEAM)
    git(platform, "add", "--all")
    git(platform, "commit", "--quiet", "-m", "Our own")


def fetch_release(platform: Path, file: Path) -> None:
    """The command of the page on updates."""
    git(platform, "fetch", "--quiet", str(file), "template:template")


def read_parts(platform: Path) -> tuple[str, ...]:
    return tuple((platform / name).read_text() for name in (ALERTS, POOLS, "README.md"))


def test_next_release_is_previewed_and_merges_without_conflicts(
    source: Path, tmp_path: Path
) -> None:
    platform = make_template(source, tmp_path / "acme", "--env", "acme")
    release_commit, environment_commit = git(
        platform, "log", "--reverse", "--format=%s", "main"
    ).splitlines()
    assert (release_commit, environment_commit) == ("Holdfast 0.1.0", "Add the environment acme")
    edit_as_a_team(platform)
    fetch_release(platform, bundle(source, "0.2.0"))
    done = run(platform, "-m", "infra", "plan", "acme", "--merge", "template", "--json")
    assert done.returncode == 1, done.stderr
    preview = json.loads(done.stdout)
    assert preview["conflicts"] == preview["destroyed"] == []
    flex = "cluster-acme google_container_node_pool.pool-flex-a100: node_config.max_run_duration"
    assert flex in preview["replaced"], preview
    ack = "foundation-acme google_pubsub_subscription.work: ack_deadline_seconds"
    assert ack in preview["changed"]
    # What the team changed stays as it is after the merge, so it is no effect of it.
    assert "max_node_count" not in done.stdout and "management" not in done.stdout
    git(platform, "merge", "--quiet", "template", "-m", "Merge 0.2.0")
    alerts, pools, readme = read_parts(platform)
    assert "hold_s = 600" in alerts and "hold_s = 2400" in alerts
    assert '"auto_repair": True' in pools and "pool.disk_gib + 10" in pools
    assert readme.startswith("# Your own platform")
    assert [wheel.name for wheel in (platform / "vendor").iterdir()] == [
        "holdfast_gke-0.2.0-py3-none-any.whl"
    ]


def test_template_without_environment_is_the_release(source: Path, tmp_path: Path) -> None:
    platform = make_template(source, tmp_path / "made")
    assert git(platform, "rev-parse", "main") == git(platform, "rev-parse", "template")
    cloned = tmp_path / "cloned"
    git(tmp_path, "clone", "--quiet", str(bundle(source, "0.1.0")), str(cloned))
    assert git(cloned, "rev-parse", "HEAD") == git(platform, "rev-parse", "HEAD")
    git(cloned, "switch", "--quiet", "-c", "main")
    assert run(cloned, "-m", "infra", "new", "acme").returncode == 0
    edit_as_a_team(cloned)
    fetch_release(cloned, bundle(source, "0.2.0"))
    assert git(cloned, "log", "--format=%s", "template") == "Holdfast 0.2.0\nHoldfast 0.1.0"
    git(cloned, "merge", "--quiet", "template", "-m", "Merge 0.2.0")
    checked = run(cloned, "-m", "infra", "check", "acme")
    assert checked.returncode == 1 and "CHANGE-ME" in checked.stdout, checked.stderr


def test_release_without_history_is_refused(source: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(source, "clone", "--quiet", "--branch", "v0.2.0", str(source), str(clone))
    refused = run(clone, ".ci/release.py", "v0.2.0")
    assert refused.returncode == 2
    assert "got:     none" in refused.stderr and "0.1.0, as in the changelog" in refused.stderr
    history = bundle(source, "0.2.0")
    repeated = run(clone, ".ci/release.py", "v0.2.0", "--history", history)
    assert repeated.returncode == 0, repeated.stderr
    heads = [
        git(clone, "bundle", "list-heads", str(file), "refs/heads/template")
        for file in (history, bundle(clone, "0.2.0"))
    ]
    assert heads[0] == heads[1]


def test_unreleased_template_says_so(source: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(source, "clone", "--quiet", "--branch", "v0.1.0", str(source), str(clone))
    apply_edits(clone, ("infra/README.md", "#", "# "))
    history = bundle(source, "0.1.0")
    done = run(clone, ".ci/template.py", tmp_path / "out", "--history", history)
    assert done.returncode == 0 and "Note: made from a commit that is not" in done.stderr
    subjects = git(tmp_path / "out", "log", "--format=%s", "main").splitlines()
    assert subjects == ["Holdfast 0.1.0, unreleased", "Holdfast 0.1.0"]

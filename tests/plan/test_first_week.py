"""The page of the first week: its fragments in a fork's files, its commands in their order, gcloud
played.
"""

import json
import os
import re
import sys
from pathlib import Path
from runpy import run_path

import pytest

from infra.environments.checks import PLACEHOLDER
from infra.specs import resources
from tests import support
from tests.plan.test_fork import fill_in, run_in_fork
from tests.plan.test_upgrade import ROOT, fork

__all__ = ["fork"]
pytestmark = [pytest.mark.plan, pytest.mark.timeout(900)]
PAGE = "infra/docs/start/first-week.md"
FOLDER = "infra/environments"
RECEIPT = {
    "schema": "holdfast.receipt/1",
    "job": "detector-1",
    "team": "vision",
    "machine_hours": 2.0,
    "useful_hours": 1.9,
    "paid_usd": 1.5,
    "wasted_usd": 0.1,
    "on_demand_usd": 4.0,
}
ENTRY = {"insertId": "1", "timestamp": "2026-11-27T09:12:00Z", "jsonPayload": RECEIPT}

# Copies a folder of a bucket, as `gcloud storage rsync --recursive gs://BUCKET/FOLDER TARGET`.
GCLOUD = """#!/bin/sh
[ "$1 $2 $3" = "storage rsync --recursive" ] || exit 2
cp -r "{buckets}/${{4#gs://}}" "$5"
"""


def state_fields(file: Path, fragment: str) -> None:
    """Set the fields of the environment that a fragment assigns, in place of their present
    values.
    """
    fields = re.findall(r"^(\w+) = ", fragment, re.M)
    names = ", ".join(sorted(set(re.findall(r"\b[A-Z][A-Za-z]+(?=\()", fragment))))
    imports = f"from dataclasses import replace\nfrom infra.environments.schema import {names}\n"
    arguments = ", ".join(f"{field}={field}" for field in fields)
    file.write_text(
        f"{file.read_text()}\n{imports}{fragment}\n"
        f"ENVIRONMENT = replace(ENVIRONMENT, {arguments})\n"
    )


def fill_in_environment(file: Path, fragment: str) -> None:
    """State the fields of a fragment, after what only a person can fill in."""
    if f'project_id="{PLACEHOLDER}"' in file.read_text():
        fill_in(file, f"acme-ml-{file.stem.removeprefix('acme')}")
        text = file.read_text().replace(f'"{PLACEHOLDER}"', '"0A1B2C-3D4E5F-6A7B8C"')
        text = text.replace(f"{PLACEHOLDER}.example", "acme.example")
        file.write_text(text.replace(f"projects/{PLACEHOLDER}/", "projects/acme-ml-keys/"))
    state_fields(file, fragment)


def find_entries(text: str) -> list[dict[str, str]]:
    """The value of HOLDFAST_ENVIRONMENTS: the entries that `outputs` printed, in their order."""
    entries: list[dict[str, str]] = []
    for line in re.findall(r"HOLDFAST_ENVIRONMENTS\s+(\[.*\])", text):
        entries += json.loads(line)
    return entries


def test_the_week_as_the_page_tells_it(fork: Path, tmp_path: Path) -> None:
    (fork / PAGE).write_text((ROOT / PAGE).read_text())
    bin_ = tmp_path / "bin"
    support.program(bin_ / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    support.program(bin_ / "holdfast", f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    bucket = tmp_path / "acme-ml-dev-holdfast-acmedev-receipts"
    support.program(bin_ / "gcloud", GCLOUD.format(buckets=tmp_path))
    hour = bucket / "stdout/2026/11/27/09:00:00_09:59:59_S0.json"
    hour.parent.mkdir(parents=True)
    hour.write_text(json.dumps(ENTRY) + "\n")
    printed: list[str] = []
    for kind, block in re.findall(r"```(sh|python)\n(.*?)```", (fork / PAGE).read_text(), re.S):
        if kind == "python":
            # A block is of acmedev, or names another environment first.
            name = block.splitlines()[0].removeprefix("# ")
            module = f"{name if name.isidentifier() else 'acmedev'}.py"
            fill_in_environment(fork / FOLDER / module, block)
            continue
        # What deploys is played in test_apply.py.
        script = re.sub(r"make bootstrap deploy ENV=\w+\n", "", block)
        path = f"{bin_}:{os.environ['PATH']}"
        done = run_in_fork(fork, "bash", "-e", "-c", script, PATH=path)
        printed += [done.stdout, done.stderr]
    text = "".join(printed)
    assert text.count("0 findings, 0 placeholders: right") == 3
    assert "0 destroy or replace, 0 rules broken" in text and "0 error, 0 warning" in text
    module = run_path(str(fork / FOLDER / "acmedev.py"))
    planned = str(resources(module["ENVIRONMENT"]))
    assert all(
        word in planned for word in ("[vision/batch]", "[speech/trainer]", "attribute.repository")
    )
    assert "global/networks/holdfast" not in planned
    # A merge deploys in this order, each as an identity of its own project, from its gate alone.
    entries = find_entries(text)
    assert [(entry["env"], entry["gate"]) for entry in entries] == [
        ("acmedev", "dev"),
        ("acmeprod", "production"),
    ]
    for entry in entries:
        assert f"@acme-ml-{entry['env'].removeprefix('acme')}." in entry["deployer"]
        module = run_path(str(fork / FOLDER / f"{entry['env']}.py"))
        environment = module["ENVIRONMENT"]
        (other_gate,) = {"dev", "production"} - {entry["gate"]}
        grants = str(resources(environment))
        assert f":environment:{entry['gate']}" in grants
        assert f":environment:{other_gate}" not in grants
    assert "namespace: vision" in (fork / "gitops/detector.yaml").read_text()
    environment = run_path(str(fork / FOLDER / "acmedev.py"))["ENVIRONMENT"]
    assert environment.bucket("receipts") == bucket.name
    bill = [line.split() for line in printed[-2].splitlines()]
    assert bill[1] == ["vision", "1", "2.0", "1.50", "0.10", "4.00", "8000", "0%"]
    assert [row[0] for row in bill[1:]] == ["vision", "total"]

"""Tests of the images by role: one Dockerfile, a lock for each group, the library's wheel."""

import re

from holdfast.manifests.serving_proxy import ENVOY
from tests.command_lines import parse
from tests.platforms import names
from tests.workloads.manifests.rendered import (
    ROOT,
    Body,
    image_name,
    list_containers,
    workloads,
)
from workloads.images import pins

DOCKERFILE = (ROOT / "workloads/images/Dockerfile").read_text()


def test_image_is_pinned_unprivileged_and_gets_signals() -> None:
    text = DOCKERFILE
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases, "a base with a tag of its own would move"
    assert set(bases) == {"${BASE}"}, "a base with a tag of its own would move"
    assert "--require-hashes" in text
    assert "--only-binary :all:" in text
    assert "--no-index --no-deps" in text, "the wheel brings nothing that the lock does not name"
    trial = "RUN python -m holdfast ${COMMAND} --help > /dev/null"
    assert text.index("\nUSER 65532:65532\n") < text.index(trial)
    assert re.search(r'^ENTRYPOINT \["python", "-m", "holdfast"\]$', text, re.MULTILINE), (
        "a shell would keep SIGTERM"
    )
    assert not re.search(r"^[^#\n]*NVIDIA_VISIBLE_DEVICES", text, re.MULTILINE), (
        "it would show every GPU of the machine"
    )


def test_build_context_has_locks_and_the_wheel_only() -> None:
    text = (ROOT / ".dockerignore").read_text()
    lines = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            lines.append(line)
    assert lines[0] == "*", "a folder that is not named stays out"
    copies = re.findall(r"^COPY (?!--from)(\w+)/", DOCKERFILE, re.MULTILINE)
    folders = [line[1:] for line in lines if line.startswith("!")]
    assert folders == copies == ["requirements", "vendor"]
    assert {"**/*.tfstate*", "**/.env*"} <= set(lines)


def test_rendered_commands_parse() -> None:
    """Ensures that exporter and mover run the command that their image was tried with."""
    # Commands of third parties; workloads/library/tests/drill starts Envoy with its own.
    foreign_programs = {ENVOY, "/usr/bin/dcgm-exporter"}
    commands: set[tuple[str, ...]] = set()
    containers: list[Body] = []
    for env in names():
        for _, template in workloads(env):
            containers += list_containers(template)
    for container in containers:
        words = container.get("command", [ENVOY])
        role = image_name(container)
        if role in ("exporter", "mover"):
            assert words[2:4] == ["holdfast", pins.ROLES[role].command]
        if words[0] not in foreign_programs:
            commands.add(tuple(words))
    assert len(commands) >= 5
    for python, flag, *words in commands:
        assert python == "python"
        assert flag == "-m"
        assert parse(words)

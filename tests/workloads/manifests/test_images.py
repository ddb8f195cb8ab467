"""Images by role: one Dockerfile, a lock for each group, and the library's wheel."""

import re

from holdfast.manifests.serving_proxy import ENVOY
from holdfast.manifests.serving_vllm import VLLM
from tests.command_lines import parsed
from tests.platforms import names
from tests.workloads.manifests.rendered import ROOT, workloads
from workloads.images import pins

DOCKERFILE = (ROOT / "workloads/images/Dockerfile").read_text()


def test_an_image_is_pinned_unprivileged_and_gets_its_signals() -> None:
    text = DOCKERFILE
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases and set(bases) == {"${BASE}"}, "a base with a tag of its own would move"
    assert "--require-hashes" in text and "--only-binary :all:" in text
    assert "--no-index --no-deps" in text, "the wheel brings nothing that the lock does not name"
    assert text.index("\nUSER 65532:65532\n") < text.index(
        "RUN python -m holdfast ${COMMAND} --help > /dev/null"
    )
    assert re.search(r'^ENTRYPOINT \["python", "-m", "holdfast"\]$', text, re.MULTILINE), (
        "a shell would keep SIGTERM"
    )
    assert not re.search(r"^[^#\n]*NVIDIA_VISIBLE_DEVICES", text, re.MULTILINE), (
        "it would show every GPU of the machine"
    )


def test_a_builder_is_sent_locks_and_the_wheel_only() -> None:
    lines = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert lines[0] == "*", "whatever is not named stays out"
    copies = re.findall(r"^COPY (?!--from)(\w+)/", DOCKERFILE, re.MULTILINE)
    assert (
        [line[1:] for line in lines if line.startswith("!")] == copies == ["requirements", "vendor"]
    )
    assert {"**/*.tfstate*", "**/.env*"} <= set(lines)


def test_every_rendered_command_is_one_that_its_command_line_understands() -> None:
    """That of exporter and mover is the one that their image was tried with."""
    # Not ours; workloads/library/tests/drill starts Envoy with this.
    others = {ENVOY, VLLM, "/usr/bin/dcgm-exporter"}
    commands: set[tuple[str, ...]] = set()
    for template in (template for env in names() for _, template in workloads(env)):
        for container in [
            *template["spec"]["containers"],
            *template["spec"].get("initContainers", ()),
        ]:
            words = container.get("command", [ENVOY])
            role = container["image"].partition("@")[0].rpartition("/")[2]
            assert role not in ("exporter", "mover") or words[2:4] == [
                "holdfast",
                pins.ROLES[role].command,
            ]
            commands |= {tuple(words)} if words[0] not in others else set()
    assert len(commands) >= 5
    for python, flag, *words in commands:
        assert (python, flag) == ("python", "-m") and parsed(words)

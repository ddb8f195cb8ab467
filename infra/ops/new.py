"""Create an environment of a fork: a copy of `example` with CHANGE-ME in each personal field."""

import re
from keyword import iskeyword
from pathlib import Path

from holdfast.support.errors import InputError
from infra.environments import source_path
from infra.environments.checks import PLACEHOLDER, dns_name

# Closed: a team opens what its jobs need. These are the usual three.
USUAL_EGRESS = """\
    egress=(
        # "huggingface.co",
        # "*.hf.co",
        # "*.wandb.ai",
    ),
"""
TRIAL_SETTINGS = {
    # Settings that suit a trial only return to the safe default.
    ", deletion_protection=False": "",
    "deletion_protection=False": "",
    "allow_destroy=True": "",
    "    allow_drills=True,\n": "",
}


def create(name: str, folder: Path) -> Path:
    """Create the module and return its path. Raises InputError if the name is in use or invalid."""
    dns_name("environment name", name, 12)
    # The name becomes a Python module, and a part of most names in the cloud.
    path = folder / f"{name}.py"
    if not name.isidentifier() or iskeyword(name) or path.exists():
        taken = ", ".join(sorted(module.stem for module in folder.glob("*.py")))
        raise InputError(
            "environment name",
            got=name,
            allowed=f"a Python name that is not {taken}",
            fix="choose another",
        )
    # The module is edited as text: a syntax tree would lose the comments, which explain the fields.
    path.write_text(_literal((folder / "example.py").read_text(), name))
    return path


def _literal(example: str, name: str) -> str:
    text = re.sub(
        r'^""".*?"""',
        f'"""{name}. Replace each {PLACEHOLDER} before the first deployment."""',
        example,
        flags=re.S,
    )
    text = text.replace('name="example"', f'name="{name}"', 1)
    text = re.sub(r'project_(id|number)="[^"]*"', rf'project_\1="{PLACEHOLDER}"', text)
    text = re.sub(
        r"(\n    zones=\(.*?\),\n)",
        rf'\1    state_bucket="{PLACEHOLDER}",\n{USUAL_EGRESS}',
        text,
        count=1,
    )
    text = re.sub(r'emails=\("[^"]*",\)', f'emails=("{PLACEHOLDER}@example.org",)', text)
    text = re.sub(
        r'readers=\("group:[^"]*",\)',
        f'readers=("group:{PLACEHOLDER}@example.org",)',
        text,
    )
    for trial, safe in TRIAL_SETTINGS.items():
        text = text.replace(trial, safe)
    return text


def next_steps(name: str) -> list[str]:
    """Return the commands that follow, as the command prints them."""
    return [
        f"edit {source_path(name)}: every {PLACEHOLDER}, zones and caps",
        f"make plan inventory ENV={name}, and commit tests/snapshots",
        f"make bootstrap ENV={name} && make deploy ENV={name}",
    ]

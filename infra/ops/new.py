"""Create an environment of a fork: a copy of `example` or `prod` with CHANGE-ME in each personal
field.
"""

import re
from keyword import iskeyword
from pathlib import Path

from holdfast.support.errors import InputError
from infra import environments as package
from infra.environments import source_path
from infra.environments.checks import PLACEHOLDER, dns_name

# The environments of a release: a copy of a team's own would share its network and its gate.
PATTERNS = ("example", "dev", "prod")
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


def create(name: str, folder: Path, pattern: str = "example") -> Path:
    """Create the module and return its path. Raises InputError if the name is in use or invalid, or
    if there is no such pattern.
    """
    dns_name("environment name", name, 12)
    # The name becomes a Python module, and a part of most names in the cloud.
    path = folder / f"{name}.py"
    taken = {module.stem for module in folder.glob("*.py")}
    # The import of a module puts it in the place of a function of the package with its name.
    taken |= {word for word in dir(package) if word.isalpha() and word.islower()}
    if not name.isidentifier() or iskeyword(name) or name in taken:
        raise InputError(
            "environment name",
            got=name,
            allowed=f"a Python name that is not {', '.join(sorted(taken))}",
            fix="choose another",
        )
    source = folder / f"{pattern}.py"
    if pattern not in PATTERNS or not source.is_file():
        patterns = [stem for stem in PATTERNS if (folder / f"{stem}.py").is_file()]
        raise InputError(
            "pattern of an environment",
            got=pattern,
            allowed=", ".join(patterns),
            fix="--from prod for every protection",
        )
    # The module is edited as text: a syntax tree would lose the comments, which explain the fields.
    path.write_text(_literal(source.read_text(), name, pattern))
    return path


def _literal(source: str, name: str, pattern: str) -> str:
    text = re.sub(
        r'^""".*?"""',
        f'"""{name}. Replace each {PLACEHOLDER} before the first deployment."""',
        source,
        count=1,
        flags=re.S,
    )
    text = text.replace(f'name="{pattern}"', f'name="{name}"', 1)
    text = re.sub(r'project_(id|number)="[^"]*"', rf'project_\1="{PLACEHOLDER}"', text)
    bucket = "" if "state_bucket=" in text else f'    state_bucket="{PLACEHOLDER}",\n'
    egress = "" if "\n    egress=" in text else USUAL_EGRESS
    text = re.sub(r"(\n    zones=\(.*?\),\n)", rf"\1{bucket}{egress}", text, count=1)
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

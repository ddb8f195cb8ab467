"""Write the adapter of a LoRA run as PEFT does, so that it loads it with from_pretrained()."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from holdfast.checkpoint.interchange.verified_reader import VerifiedReader
from holdfast.checkpoint.interchange.writers import whole_folder, write_safetensors
from holdfast.checkpoint.restore.reader import Opened
from holdfast.support.errors import InputError

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_ADAPTED = re.compile(r"(?P<module>.*\.lora_[A-Za-z_]+)\.(?P<adapter>[^./]+)(?P<rest>\.[^./]+)?")


def name_adapter(keys: Iterable[str], adapter: str | None) -> dict[str, str]:
    """Return the names in PEFT's file of an adapter's tensors, by key.

    `adapter` may be None if there is only one. Raises InputError for an adapter that is unclear.
    """
    names_by_adapter: dict[str, dict[str, str]] = {}
    for key in keys:
        match = _ADAPTED.fullmatch(key.partition("/")[2])
        if match:
            names = names_by_adapter.setdefault(match["adapter"], {})
            names[key] = match["module"] + (match["rest"] or "")
    if adapter is None and len(names_by_adapter) == 1:
        (adapter,) = names_by_adapter
    chosen_names = names_by_adapter.get(adapter or "", {})
    if not chosen_names or len(set(chosen_names.values())) < len(chosen_names):
        raise InputError(
            "it is unclear which adapter to export",
            got=(
                f"{adapter or 'no name'}; the checkpoint has"
                f" {', '.join(names_by_adapter) or 'none'}"
            ),
            allowed="one adapter of PEFT, with one tensor for each name",
            fix="choose it by --adapter NAME",
        )
    return chosen_names


def write_adapter(
    out: Path,
    reader: VerifiedReader,
    opened: Opened,
    names: dict[str, str],
    config: Path,
) -> int:
    """Write a folder that PEFT loads; return the bytes of its tensors. Raises InputError."""
    text = read_config(config)
    with whole_folder(out) as folder:
        size = write_safetensors(folder / WEIGHTS, reader, opened, names)
        (folder / CONFIG).write_text(text)
    return size


def read_config(path: Path) -> str:
    """Return the text of an adapter's configuration. Raises InputError."""
    try:
        text = path.read_text()
        is_config = isinstance(json.loads(text), dict) and "peft_type" in json.loads(text)
    except (OSError, ValueError) as error:
        raise _config_error(path, str(error)) from error
    if not is_config:
        raise _config_error(path, "no peft_type in it")
    return text


def _config_error(path: Path, got: str) -> InputError:
    return InputError(
        f"{path} is no configuration of an adapter",
        got=got[:200],
        allowed=f"the {CONFIG} that PEFT writes",
        fix='model.peft_config["default"].save_pretrained(folder), then --adapter-config',
    )

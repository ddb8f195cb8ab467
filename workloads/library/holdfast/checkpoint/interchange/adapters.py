"""Write the adapter of a LoRA run as PEFT does, so that it loads it with from_pretrained()."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.interchange.verified_reader import VerifiedReader
from holdfast.checkpoint.interchange.writers import whole_folder, write_safetensors
from holdfast.checkpoint.restore.reader import Opened
from holdfast.support.errors import InputError

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_OWN_LAYER = re.compile(
    r"(?P<module>.*\.(lora_[A-Za-z_]+|ia3_l|trainable_tokens_delta))"
    r"\.(?P<adapter>[^./]+)(?P<rest>\.[^./]+)?"
)
"""A tensor of PEFT's own, in a layer that wraps one of the base."""
_SAVED_MODULE = re.compile(r"(?P<module>.*)\.modules_to_save\.(?P<adapter>[^./]+)(?P<rest>\..+)")
"""A tensor of a module that is trained as a whole."""
_DORA = ".lora_magnitude_vector"
_METHODS = ("LORA", "IA3")
_ALL_BIASES = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """The configuration that PEFT wrote for an adapter."""

    text: str
    with_biases: bool
    """True if the biases of the base were trained too."""


def name_adapter(keys: Iterable[str], adapter: str | None, config: AdapterConfig) -> dict[str, str]:
    """Return the names in PEFT's file of an adapter's tensors, by key.

    `adapter` may be None if there is only one. Raises InputError if the choice is unclear.
    """
    names_by_adapter: dict[str, dict[str, str]] = {}
    bias_names: dict[str, str] = {}
    for key in keys:
        name = key.partition("/")[2]
        match = _OWN_LAYER.fullmatch(name) or _SAVED_MODULE.fullmatch(name)
        if match:
            names = names_by_adapter.setdefault(match["adapter"], {})
            # The one tensor whose suffix PEFT drops.
            rest = "" if match["module"].endswith(_DORA) else match["rest"]
            names[key] = match["module"] + (rest or "")
        elif name.endswith(".bias"):
            bias_names[key] = name
    if adapter is None and len(names_by_adapter) == 1:
        (adapter,) = names_by_adapter
    chosen_names = names_by_adapter.get(adapter or "", {})
    if chosen_names and config.with_biases:
        chosen_names = chosen_names | bias_names
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
    config: AdapterConfig,
) -> int:
    """Write a folder that PEFT loads; return the bytes of its tensors. Raises InputError."""
    with whole_folder(out) as folder:
        size = write_safetensors(folder / WEIGHTS, reader, opened, names)
        (folder / CONFIG).write_text(config.text)
    return size


def read_config(path: Path) -> AdapterConfig:
    """Return an adapter's configuration.

    Raises InputError if the file is no such configuration, or the tensors of its PEFT method have
    other names.
    """
    try:
        text = path.read_text()
        fields = json.loads(text)
    except (OSError, ValueError) as error:
        raise _config_error(path, str(error)) from error
    if not isinstance(fields, dict) or "peft_type" not in fields:
        raise _config_error(path, "no peft_type in it")
    method = fields["peft_type"]
    bias = fields.get("bias") or "none"
    is_mixed = bias == _ALL_BIASES and bool(fields.get("modules_to_save"))
    if method not in _METHODS or bias not in ("none", _ALL_BIASES) or is_mixed:
        raise InputError(
            "this method of PEFT cannot be exported",
            got=f"peft_type {method}, bias {bias}{', with modules_to_save' if is_mixed else ''}",
            allowed=(
                f"peft_type {' or '.join(_METHODS)}; bias none, or all without modules_to_save"
            ),
            fix="load the checkpoint in the program, then model.save_pretrained(folder)",
        )
    return AdapterConfig(text=text, with_biases=bias == _ALL_BIASES)


def _config_error(path: Path, got: str) -> InputError:
    return InputError(
        f"{path} is no configuration of an adapter",
        got=got[:200],
        allowed=f"the {CONFIG} that PEFT writes",
        fix='model.peft_config["default"].save_pretrained(folder), then --adapter-config',
    )

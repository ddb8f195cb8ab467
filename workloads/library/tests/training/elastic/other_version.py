"""The command line with another version of PyTorch, for tests of mixed gangs."""

import torch

from holdfast.cli import main

torch.__version__ = torch.torch_version.TorchVersion("99.0")
if __name__ == "__main__":
    main()

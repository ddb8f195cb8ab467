"""`holdfast serve router` with a choice by load alone, with which `hits` compares it."""

from unittest import mock

from holdfast.cli import main
from holdfast.inference.router.prefixes import PrefixTraffic

if __name__ == "__main__":
    with mock.patch.object(PrefixTraffic, "find_key", return_value=b""):
        main()

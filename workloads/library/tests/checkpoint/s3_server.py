"""`python s3_server.py [--deaf] PORT`: moto's S3, one request at a time, as its own check and write are two steps.

`--deaf`: as compatible stores of before conditional writes, which overwrite and say nothing.
"""

import sys
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

served = DomainDispatcherApplication(create_backend_app)


def deaf(environ: dict[str, Any], start_response: Any) -> Any:
    environ.pop("HTTP_IF_NONE_MATCH", None)
    return served(environ, start_response)


if __name__ == "__main__":
    run_simple("127.0.0.1", int(sys.argv[-1]), deaf if "--deaf" in sys.argv else served, threaded=False)

"""Run pytest several times in one process: ``python -m runs RUN ...`` on each rank of a job.

A RUN is a JSON list of environment variables and arguments of pytest. hvdlite is initialized again
for each run. MXNet, whose import takes longer than most runs, stays imported.
"""

import json
import os
import sys

import pytest

import hvdlite as hvd


def main(arguments: list) -> int:
    for argument in arguments:
        variables, options = json.loads(argument)
        os.environ.update(variables)
        if hvd.is_initialized():
            hvd.shutdown()
        status = pytest.main(["-p", "no:cacheprovider", *options])
        if status:
            sys.stderr.write(f"this run has failed: {argument}\n")
            return status
        for name in variables:
            del os.environ[name]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One worker of ``kerasdist.run``: calls the function that comes through a pipe, and sends back what it returns.

Started by path, with the numbers of two pipes to the process that started it, and the paths to import from.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def main(source: int, target: int, paths: list[str]) -> int:
    """Returns the exit code: 1 if the function raised."""
    sys.path[:] = paths
    import cloudpickle

    with os.fdopen(source, "rb") as pipe:
        payload = pipe.read()
    code = 0
    try:
        fn, args, kwargs = cloudpickle.loads(payload)
        answer = b"R" + cloudpickle.dumps(fn(*args, **kwargs))
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        traceback.print_exc()
        said = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        answer = b"E" + json.dumps(said).encode()
    with os.fdopen(target, "wb") as pipe:
        pipe.write(answer)
    return code or (answer[:1] == b"E")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])))

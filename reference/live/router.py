"""``python -m kvlatch.reference.live.router ARGUMENTS``: the real sglang-router, which ends with its standard input.

The router never gives the interpreter back, so that no thread of this process could watch the input. A second process
does, and ends with it.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the router with these arguments."""
    router = os.getpid()
    if os.fork() == 0:
        sys.stdin.buffer.read()
        if os.getppid() == router:
            os.kill(router, signal.SIGKILL)
        os._exit(0)

    from sglang_router.launch_router import launch_router, parse_router_args

    launch_router(parse_router_args(sys.argv[1:]))


if __name__ == "__main__":
    main()

"""Runs `benchmarks` or `zoo`, packages of the source tree, for the shell script ./kiln.

SIGTERM and SIGHUP end it as Ctrl-C does, with the builds and programs that it has started, and without a
traceback while modules are still being imported.
"""

import runpy
import signal
import sys
from pathlib import Path
from typing import NoReturn


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Run the package that the first argument names; exits with its status, 130 after a signal."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, _interrupt)
    del sys.argv[0]
    sys.path[0] = str(Path.cwd())
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        print("kiln: interrupted", file=sys.stderr)
        sys.exit(130)


main()

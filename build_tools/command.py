"""Runs the command `kiln` from the source tree, for the shell script ./kiln. See kiln.command_line."""

import os
import signal
import sys


def _interrupted(*_: object) -> None:
    """End in one line while nothing is imported that could say it better."""
    os.write(2, b"kiln: interrupted\n")
    os._exit(2)


signal.signal(signal.SIGINT, _interrupted)
signal.signal(signal.SIGTERM, _interrupted)
if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
    signal.signal(signal.SIGHUP, _interrupted)

from kiln.command_line.entry import main  # noqa: E402

sys.exit(main())

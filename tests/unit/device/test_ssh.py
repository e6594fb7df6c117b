"""The connection of ssh devices, with a program that stands in for ssh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kiln.device.deploy.transports.ssh import SshSettings, SshTransport
from kiln.errors import KilnError

# Makes the socket of the connection; asked whether the connection answers, it never ends.
HANGS = """#!/bin/sh
for word; do
    case $word in
    ControlPath=*) : > "${word#ControlPath=}" ;;
    check) exec sleep 1000 ;;
    esac
done
exec sleep 1000
"""


def test_a_connection_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command waited for ssh's answer without a limit."""
    (tmp_path / "ssh").write_text(HANGS)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    settings = SshSettings.model_construct(kind="ssh", host="board", timeout=0.1)
    with pytest.raises(KilnError, match=r"device 'b' \(ssh board\): no connection within"):
        SshTransport("b", settings)

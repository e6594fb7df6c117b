"""kiln.load: copies, pickles and forks of a network, and bundles that are replaced while they are open."""

from __future__ import annotations

import copy
import os
import pickle
import platform
import shutil
import signal
from pathlib import Path

import kiln
import numpy as np
import pytest
from kiln.runtime.library import RunError

from .conftest import Maker
from .test_python_module import X, Y, bundle_of

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="gcc makes programs of this machine's own kind"
)


@pytest.mark.parametrize("storage", ["embedded", "file"])
def test_copies_have_a_session_of_their_own(
    make: Maker, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shallow copy shared the session, and closed the network when it went."""
    bundle = bundle_of(make, storage)
    monkeypatch.chdir(bundle.parent)
    net = kiln.load(bundle.name)
    monkeypatch.chdir("/")
    for again in (copy.copy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net)), net.copy()):
        assert np.array_equal(again(X), Y)
        again.close()
    assert np.array_equal(net(X), Y)


def test_a_bound_run_is_not_copied(make: Maker) -> None:
    bound = kiln.load(bundle_of(make)).bind({"x": X})
    for use in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(kiln.KilnError, match=r"a bound run cannot be copied or pickled; bind the inputs"):
            use(bound)


def test_errors_are_pickled(make: Maker) -> None:
    """An error that cannot be restored ends a pool of processes, or lets it wait for ever."""
    with pytest.raises(RunError) as raised:
        kiln.load(bundle_of(make))(X[:, :2])
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.__dict__) == (str(raised.value), raised.value.__dict__)


def test_a_forked_process_runs_and_closes(make: Maker) -> None:
    net = kiln.load(bundle_of(make), threads=3)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that waits for threads of the other process
        right = np.array_equal(net(X), Y) and np.array_equal(net.copy()(X), Y)
        net.close()
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(net(X), Y)


def test_a_replaced_bundle_is_loaded_anew(make: Maker, tmp_path: Path) -> None:
    """The loader returned the library of the first one, whose code then ran for the second."""
    bundle = tmp_path / "bundle"
    shutil.copytree(bundle_of(make), bundle)
    first = kiln.load(bundle)
    old = tmp_path / "old"
    bundle.rename(old)
    shutil.copytree(old, bundle)
    library = bundle / "lib" / "libtiny.so"
    content = library.read_bytes()
    name = first.plan().bucket.encode() + b"\0"
    assert name in content
    library.write_bytes(content.replace(name, b"#" + name[1:]))
    second = kiln.load(bundle)
    assert [second.plan().bucket[0], first.plan().bucket[0]] == ["#", chr(name[0])]

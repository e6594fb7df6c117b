"""Classes that an archive of PyTorch names and this process does not know."""

from __future__ import annotations

import pytest
from kiln.frontend.torch import structures


@pytest.mark.parametrize(
    "told",
    [
        "Deserializing nets.Found in pytree is not registered.",
        "Deserializing nets.Found in pytree failed because the serialized type is not registered in this "
        "process. If this type is defined in another package, import that package.",
    ],
    ids=["2.14", "2.15"],
)
def test_the_class_is_found_in_pytorchs_message(told: str) -> None:
    match = structures._UNKNOWN.search(told)
    assert match is not None and match[1] == "nets.Found"

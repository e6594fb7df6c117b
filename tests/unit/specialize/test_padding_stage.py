"""The stage `padding`: keys of inputs that it refuses because nothing would read them."""

from __future__ import annotations

import pytest
from kiln.config.boxes import Box
from kiln.config.dims import Segment
from kiln.config.interface import Interface
from kiln.config.model import Tensor
from kiln.config.slice_records import ImportConfig
from kiln.errors import KilnError
from kiln.specialize.padding.stage import check_pads
from records import port


def test_a_fill_value_for_an_input_that_is_not_padded() -> None:
    """The input has no axis of a dimension that a bucket pads."""
    pad = Segment(strategy="pad", min=5, max=16, multiple=1, size=16)
    buckets = [Box(name="seq_pad16", dims={"seq": pad})]
    interface = Interface(model="m", inputs=[port("x", [1, "seq"]), port("y", [1, 4])], outputs=[])
    check_pads(ImportConfig(name="m", inputs={"x": Tensor(pad=2.0)}), interface, buckets)
    with pytest.raises(KilnError) as raised:
        check_pads(ImportConfig(name="m", inputs={"y": Tensor(pad=2.0)}), interface, buckets)
    assert str(raised.value) == (
        "model 'm': inputs.y.pad: 2, but no axis of this input is padded, only seq: remove the key"
    )

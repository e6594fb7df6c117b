"""The option `dims`: ranges of dynamic dimensions on the command line, such as batch:1,seq:1..128."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from kiln.config.dims import key_of
from kiln.config.faults import first_fault
from kiln.config.model import Model
from kiln.config.records import INT32_MAX
from kiln.errors import KilnError

_FORM = (
    "NAME:SIZE, NAME:LEAST..GREATEST or NAME:LEAST..GREATEST:MULTIPLE, several with commas, such as "
    "batch:1,seq:1..128,width:64..512:32"
)
_RANGE = re.compile(r"(?P<name>[^:]+):(?P<least>\d+)(\.\.(?P<greatest>\d+)(:(?P<multiple>[1-9]\d*))?)?")


def with_dims(model: Model, given: str) -> Model:
    """`model` with the ranges of the option `dims`, which replace its own ranges and buckets of these names.

    Names may be written as in the model's file. Raises KilnError for text of another form, a name that is
    given twice, and ranges that the other keys of `model` do not allow; a name that the model's file does not
    have is refused when that is read.
    """
    ranges: dict[str, dict[str, Any]] = {}
    for word in given.split(","):
        match = _RANGE.fullmatch(word.strip())
        name = key_of(match["name"].strip()) if match else ""
        if match is None or not name:
            raise KilnError(f"option 'dims': '{word}', expected {_FORM}")
        if name in ranges:
            raise KilnError(f"option 'dims': '{name}' is given twice")
        least, greatest = int(match["least"]), int(match["greatest"] or match["least"])
        if not max(least, 1) <= greatest <= INT32_MAX:
            raise KilnError(
                f"option 'dims': '{word}', expected a greatest size from {max(least, 1)} to {INT32_MAX}"
            )
        ranges[name] = {"min": least, "max": greatest}
        if match["multiple"]:
            ranges[name]["multiple"] = int(match["multiple"])
    keys = model.model_dump(exclude_unset=True)
    try:
        return Model.model_validate({**keys, "dims": {**keys.get("dims", {}), **ranges}})
    except ValidationError as error:
        raise KilnError(f"option 'dims': model '{model.name}': {first_fault(error)}") from None

"""Typed records of the JSON files that stages pass on, and their one-line errors.

A stage reads a file of an earlier stage with `read`, and works with attributes from there on. Keys of a file
that its record does not have, missing keys and values of a wrong type are errors, which name the place in
the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from kiln.config import sizes
from kiln.config.faults import first_fault
from kiln.errors import KilnError
from kiln.files import read_json

INT32_MAX = 2**31 - 1

# A size expression, see kiln.config.sizes.
Size = Annotated[sizes.SizeExpr, AfterValidator(sizes.check)]


class Record(BaseModel):
    """Base of all records: frozen; unknown keys and wrong types are errors.

    OMITTED: keys that a file contains only if their value is neither None, nor False, nor an empty section.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_serializer(mode="wrap")
    def _without_omitted(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = serialize(self)
        return {
            key: value
            for key, value in content.items()
            if key not in self.OMITTED or (value is not None and value is not False and value != {})
        }


R = TypeVar("R", bound=Record)


def read(record: type[R], path: Path) -> R:
    """The content of a JSON file. Raises KilnError for a file that cannot be read or is not a `record`."""
    return parse(record, read_json(path), path.name)


def parse(record: type[R], content: object, where: str) -> R:
    """`content`, parsed JSON, as a `record`. Raises a KilnError that begins with `where`, the file."""
    try:
        return record.model_validate(content)
    except ValidationError as error:
        raise KilnError(f"{where}: {first_fault(error)}") from None
    except RecursionError:
        raise KilnError(f"{where}: values nested too deep") from None

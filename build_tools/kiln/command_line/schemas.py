"""The JSON Schemas that `kiln schema NAME` prints."""

from __future__ import annotations

from typing import Any

from kiln.command_line.answer import schema


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema of `kind`: result, which --json prints, or the YAML file of a target, model, device."""
    if kind == "result":
        return schema()
    if kind == "device":
        from kiln.device.deploy.registry import device_schema  # imports the transports

        return device_schema()
    from kiln.config.schema import model_schema, target_schema

    return target_schema() if kind == "target" else model_schema()

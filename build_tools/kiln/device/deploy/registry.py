"""Devices by name: files devices/*.yaml as validated objects; modules of transports/ define `transport`."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Annotated, Any, Union, cast

from pydantic import Field, create_model

from kiln.config import Device, document, find_device, list_targets
from kiln.config.check import choices, validate
from kiln.config.schema import file_schema
from kiln.device.deploy.transports import transport_modules
from kiln.files import read_json, write_json
from kiln.stages.use import DeviceSchemaStage


def load_device(name: str | os.PathLike[str]) -> Device:
    """Load a device by its name or by the path of its .yaml.

    Raises KilnError, with file and line, for a mistake in the file.
    """
    path = find_device(name)
    read = document.read(path)
    if isinstance(read.data, dict):
        if "name" in read.data:
            raise read.error(("name",), "not a key of this file; the file's own name is the name")
        read.data = {"name": path.stem, **read.data}
        _anchor(read.data.get("transport"), path.parent)
    device = validate(device_type(), read)
    kind = str(device.transport.model_dump()["kind"])
    if not transport_modules()[kind].FILES:
        for key in ("folder", "contents", "trusted_keys"):
            if key in device.model_fields_set:
                raise read.error((key,), f"only for devices with a file system; kind {kind}: the model is in "
                                 "the program that is flashed, which checks signatures itself")  # fmt: skip
    return device


def target_of(name: str | os.PathLike[str]) -> str:
    """The target of a device, given as for `load_device`.

    Raises KilnError, with file and line, if no target has this name.
    """
    target = load_device(name).target
    known = [summary.name for summary in list_targets()]
    if not target.endswith((".yaml", ".yml")) and not {target, target.replace("-", "_")} & set(known):
        read = document.read(find_device(name))
        raise read.error(("target",), f"unknown target '{target}'{choices(target, known)}")
    return target


def device_config(device: Device) -> dict[str, Any]:
    """The content of device.json: all of a device's settings as plain data."""
    return device.model_dump(mode="json")


def read_device(path: Path) -> Device:
    """Load a device from a device.json."""
    return device_type().model_validate(read_json(path))


@functools.cache
def device_type() -> type[Device]:
    """The class Device, with `transport` a union of the SETTINGS of transports/, discriminated by `kind`."""
    settings = tuple(module.SETTINGS for module in transport_modules().values())
    kind = Annotated[Union[settings], Field(discriminator="kind", description="how the device is reached")]  # type: ignore[valid-type]  # noqa: UP007
    return cast(type[Device], create_model("Device", __base__=Device, transport=(kind, ...)))


def _anchor(transport: Any, folder: Path) -> None:
    """Make the paths in a transport's settings absolute; `folder` is the folder of the YAML file."""
    if not isinstance(transport, dict):
        return
    module = transport_modules().get(str(transport.get("kind")))
    for key in module.PATHS if module is not None else ():
        if isinstance(transport.get(key), str):
            transport[key] = os.path.normpath(folder / Path(transport[key]).expanduser())


def run(args: DeviceSchemaStage) -> None:
    """Write the JSON Schema of a file in devices/, for editors that check YAML while it is typed."""
    write_json(args.out, device_schema())


def device_schema() -> dict[str, Any]:
    """JSON Schema of a file in devices/."""
    return file_schema(device_type(), "a device for Kiln")

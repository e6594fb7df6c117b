"""schema: write the JSON Schemas of target and model files, with which editors check YAML."""

from __future__ import annotations

from typing import Any

from kiln.config.check import Section
from kiln.config.model import Model
from kiln.config.target import Target
from kiln.files import write_json
from kiln.stages.use import SchemaStage

# Keys whose value may be `native`: determined from the build machine (see kiln.config.host).
_NATIVE = ("triple", "cpu", "features", "arch", "vector", "cache", "cores")


def run(args: SchemaStage) -> None:
    """Write both schemas."""
    for kind, schema in (("target", target_schema()), ("model", model_schema())):
        write_json(args.out / f"{kind}.schema.json", schema)


def target_schema() -> dict[str, Any]:
    """JSON Schema of a file in targets/."""
    schema = file_schema(Target, "a target of Kiln")
    for key in _NATIVE:
        schema["properties"][key] = _or_native(schema["properties"][key])
    compiler = schema["$defs"]["CCompiler"]["properties"]
    for key in ("target", "flags"):
        compiler[key] = _or_native(compiler[key])
    return schema


def _or_native(value: dict[str, Any]) -> dict[str, Any]:
    """Schema of a key that may also be `native`; the description is copied to the outer level for editors."""
    return {"anyOf": [value, {"const": "native"}], "description": value["description"]}


def model_schema() -> dict[str, Any]:
    """JSON Schema of a file in models/."""
    schema = file_schema(Model, "a model for Kiln")
    schema["required"].remove("format")
    bucket = {"anyOf": [{"$ref": "#/$defs/Bucket"}, {"type": "integer", "minimum": 1}]}
    listed = schema["$defs"]["Dim"]["properties"]["buckets"]
    del listed["type"]
    listed["anyOf"] = [{"type": "array", "items": listed.pop("items") and bucket}, {"const": "auto"}]
    for row in schema["properties"]["buckets"]["anyOf"]:
        if "items" in row:
            row["items"]["additionalProperties"] = bucket
    state = schema["properties"]["state"]  # the name of an output is a short form of its section
    state["additionalProperties"] = {"anyOf": [{"type": "string"}, state["additionalProperties"]]}
    return schema


def file_schema(section: type[Section], title: str) -> dict[str, Any]:
    """JSON Schema of a file that contains `section`, without the key `name`: the file's name is used."""
    schema = section.model_json_schema()
    del schema["properties"]["name"]
    schema["required"].remove("name")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}

"""How a stage is declared: once, as a class whose fields are the flags of its command line.

    @dataclass(frozen=True, kw_only=True)
    class LowerStage(Stage, spec=StageSpec("lower", "kiln.lower.stage", cached=True)):
        source: Annotated[Path, Input("folder of the stage before", flag="--in")]
        byoc: Annotated[Path | None, Input("byoc.json")] = None
        out: Annotated[Path, Output("the lowered module", files=("functions.json", "steps.json"))]

The class is the parser of the command line (`parse`), its inverse (`words`), the type of the argument of the
module's function `run`, and for the build graph the list of inputs and outputs. `kiln.stages` has all stages.

The type of a field decides how its flag is parsed: `Path`, `str`, `float` and `Literal` take a value, `bool`
is a switch, `tuple[Path, ...]` may be repeated. A field without a default is required.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

STAGES: dict[str, type[Stage]] = {}  # by name, in the order of the flow; filled by `kiln.stages`
POSITIONAL = ""  # as `flag`: the values follow all flags

_Stage = TypeVar("_Stage", bound="Stage")


@dataclass(frozen=True)
class Flag:
    """One flag; `flag` is its name on the command line, if that is not the name of the field."""

    help: str = field(repr=False)
    flag: str | None = None


@dataclass(frozen=True)
class Input(Flag):
    """A file or folder that the stage reads: it runs again when the content changes."""


@dataclass(frozen=True)
class Slice(Input):
    """A JSON file with these keys of the model, and its name and format."""

    name: str = ""
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output(Flag):
    """A file that the stage writes, or a folder of `files`.

    In a name of `files`, `{model}` stands for the model's name. `listed`: a folder whose files only the stage
    knows. `signed`: the command `kiln sign` rewrites the file, so it may differ from what the stage wrote.
    """

    files: tuple[str, ...] = ()
    listed: bool = False
    signed: bool = False


@dataclass(frozen=True)
class Scratch(Flag):
    """A file or folder in which the stage keeps data for its next runs; neither an input nor an output."""


@dataclass(frozen=True)
class Setting(Flag):
    """A value, or a path whose content does not make the stage run again."""


@dataclass(frozen=True)
class Unhashed(Flag):
    """A value that does not change the outputs, so the stage does not run again when it changes.

    `dump`: a folder that the stage fills; it runs if it has not filled the folder yet.
    """

    dump: bool = False


@dataclass(frozen=True)
class StageSpec:
    """The properties of a stage that are not flags.

    `module` has the function `run`. `cached`: whether builds may share its outputs; not for a stage that
    measures, uses a device, or reads inputs that are not among its flags, such as the network. `prints`: its
    stdout is for the user. `limited`: whether the model's limits of time and memory apply. `one_of`: fields
    of which exactly one is given. `measures`: it times programs here, so no other stage runs here at the same
    time. `on_device`: a stage that is not cached, but which another machine may run that has the device, or
    the target's GPU: it reads nothing but its inputs. `early`: its module imports no TVM, so that it starts
    at once where a build is still importing the modules of other stages.
    """

    name: str
    module: str
    cached: bool
    prints: bool = False
    limited: bool = True
    one_of: tuple[str, ...] = ()
    on_device: bool = False
    measures: bool = False
    early: bool = False


class Field(NamedTuple):
    """A field of a stage: its name, its type without None, what kind of flag it is, and its default."""

    name: str
    type: Any
    kind: Flag
    default: Any

    @property
    def flag(self) -> str:
        """The name on the command line; POSITIONAL where there is none."""
        return f"--{self.name.replace('_', '-')}" if self.kind.flag is None else self.kind.flag

    @property
    def required(self) -> bool:
        """Whether the flag must be given."""
        return self.default is dataclasses.MISSING


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of a stage, with the values of its flags. Subclasses are the stages."""

    spec: ClassVar[StageSpec]

    def __init_subclass__(cls, spec: StageSpec | None = None) -> None:
        """Register a stage; a class without `spec` only holds fields that several stages share."""
        if spec is not None:
            cls.spec = spec
            STAGES[spec.name] = cls

    @classmethod
    def fields(cls) -> tuple[Field, ...]:
        """The flags, in the order in which they are declared."""
        return _fields(cls.spec.name)

    @classmethod
    def parse(cls: type[_Stage], words: Sequence[str], description: str | None = None) -> _Stage:
        """Parse a command line; ends the process with argparse's message where it is wrong."""
        program = f"python -m kiln {cls.spec.name}"
        parser = argparse.ArgumentParser(prog=program, description=description)
        exclusive = parser.add_mutually_exclusive_group(required=True) if cls.spec.one_of else parser
        for one in cls.fields():
            _add(exclusive if one.name in cls.spec.one_of else parser, one)
        values = vars(parser.parse_args(words))
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})

    def values(self) -> Iterator[tuple[Field, list[Any]]]:
        """Each flag that is given, with its values: none for a switch, several for a repeated flag."""
        for one in self.fields():
            value = getattr(self, one.name)
            if value is not None and value is not False and value != ():
                several = list(value) if isinstance(value, tuple) else [value]
                yield one, [] if value is True else several

    def words(self, *, silent: bool = True) -> list[str]:
        """The command line of this run; without the flags that do not change the outputs if not `silent`."""
        flags: list[str] = []
        positional: list[str] = []
        for one, values in self.values():
            if isinstance(one.kind, Unhashed) and not silent:
                continue
            if one.flag == POSITIONAL:
                positional += [f"./{value}" if str(value).startswith("-") else str(value) for value in values]
            else:
                flags += [word for value in values or [None] for word in _given(one.flag, value)]
        return [*flags, *positional]

    @classmethod
    def described(cls) -> str:
        """A text that changes whenever the declaration changes, except for its help."""
        about = (f"{one.name}: {one.type} {one.kind}" for one in cls.fields())
        return "\n".join([repr(cls.spec), *about])


@functools.cache
def _fields(name: str) -> tuple[Field, ...]:
    stage = STAGES[name]
    hints = get_type_hints(stage, include_extras=True)
    fields = []
    for one in dataclasses.fields(stage):
        annotated, *kinds = get_args(hints[one.name])
        of_union = [part for part in get_args(annotated) if part is not types.NoneType]
        optional = types.NoneType in get_args(annotated)
        fields.append(Field(one.name, of_union[0] if optional else annotated, kinds[0], one.default))
    return tuple(fields)


def _add(parser: Any, one: Field) -> None:
    """Add a flag to an argparse parser, or to a group of one."""
    about: dict[str, Any] = {"help": one.kind.help}
    kind = one.type
    if one.flag == POSITIONAL:
        parser.add_argument(one.name, type=get_args(kind)[0], nargs="+", **about)
        return
    if kind is bool:
        about["action"] = "store_true"
    elif get_origin(kind) is tuple:
        about |= {"type": get_args(kind)[0], "action": "append", "default": None if one.required else []}
    elif get_origin(kind) is Literal:
        about["choices"] = get_args(kind)
    else:
        about["type"] = kind
    if one.required:
        about["required"] = True
    else:
        about.setdefault("default", one.default)
    parser.add_argument(one.flag, dest=one.name, **about)


def _given(flag: str, value: Any) -> list[str]:
    """The words of a flag; a value that begins with `-` would be parsed as a flag if it were a word."""
    if value is None:
        return [flag]
    return [f"{flag}={value}"] if str(value).startswith("-") else [flag, str(value)]

"""The option `together` of joint libraries: which of their models run at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from kiln.errors import KilnError


def groups_of(text: str, models: Sequence[str]) -> list[list[str]]:
    """The groups of models that run at the same time, from `a+b,c+d`. Raises KilnError for a wrong text."""
    groups = []
    for group_text in filter(None, text.split(",")):
        names = [name.strip() for name in group_text.split("+")]
        for name in names:
            if name not in models:
                raise KilnError(f"option 'together': '{name}', allowed: {', '.join(models)}")
        if len(set(names)) < max(2, len(names)):
            raise KilnError(f"option 'together': '{group_text}': at least two different models expected")
        groups.append(names)
    return groups

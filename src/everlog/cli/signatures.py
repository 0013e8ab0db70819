"""Commands whose options stand in a table instead of a parameter list, so that several can share them.

Owns how such a command shows its parameters to the library that builds the command line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, get_type_hints


class Option(NamedTuple):
    """A parameter: its name, its annotation with the option's help, and its default."""

    name: str
    annotation: Any
    default: Any = None


def give_options(command: Callable[..., None], options: Iterable[Option]) -> None:
    """Let `command` look as if it had exactly these parameters."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(option.name, keyword, default=option.default, annotation=option.annotation)
        for option in options
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}


def options_of(function: Callable[..., None]) -> list[Option]:
    """The parameters of a function, the first one left out."""
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return [Option(parameter.name, hints[parameter.name], parameter.default) for parameter in parameters]

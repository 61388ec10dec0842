"""The command line: one file for each command.

A user's mistake is reported in one line on standard error, with exit status 2.
"""

import importlib
import io
import pkgutil
import sys

import typer

from atoll.cli.app import app
from atoll.errors import UserError

__all__ = ["app", "main"]

for _module in pkgutil.iter_modules(__path__):  # commands register themselves
    importlib.import_module(f"{__name__}.{_module.name}")


def main() -> None:
    """The entry point of the `atoll` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace", line_buffering=True)  # a character that cannot be shown is replaced
    try:
        status = app(_with_script(sys.argv[1:]), standalone_mode=False)
    except UserError as error:
        _complain(str(error))
    except typer.Abort:
        sys.exit(130)
    except Exception as error:  # the command line's own errors have no public base class
        tell = getattr(error, "format_message", None)
        if tell is None:
            raise
        _complain(str(tell()))
    else:
        sys.exit(status if isinstance(status, int) else 0)


def _with_script(arguments: list[str]) -> list[str]:
    """Passes everything after a script's name to the script."""
    for place, argument in enumerate(arguments):
        if argument == "--":
            break
        if place > 0 and argument.endswith(".py") and not argument.startswith("-"):
            return [*arguments[:place], "--", *arguments[place:]]
    return arguments


def _complain(message: str) -> None:
    """Prints one line on standard error, and exits with status 2."""
    print("atoll:", " ".join(message.split()), file=sys.stderr)  # noqa: T201 - no markup, no wrapping
    sys.exit(2)

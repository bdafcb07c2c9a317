"""Tables and progress on the terminal: with rich where it is installed, plain text otherwise."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple, TextIO

_WIDTH_OFF_TERMINAL = 200


class Column(NamedTuple):
    """A table's column: its title, and whether its cells are text (set left) or numbers (set right)."""

    title: str
    text: bool = False


def require(module: str, extra: str) -> ModuleType:
    """Imports an optional dependency.

    Raises:
        ModuleNotFoundError: if it is not installed, naming the extra of this package that brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(f"{package} is not installed: pip install 'deconv_ext[{extra}]' brings it") from None


def print_table(
    title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], styles: Sequence[str] = (), caption: str = ""
) -> None:
    """Prints a table to stdout; ``styles`` names one rich style a row ("" for none), or is empty."""
    console = _rich_console(sys.stdout)
    if console is None:
        print(_plain_table(title, columns, rows, caption))
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), caption=escape(caption) or None, title_justify="left", caption_justify="left")
    for column in columns:
        table.add_column(column.title, justify="left" if column.text else "right", overflow="fold")
    for index, row in enumerate(rows):
        table.add_row(*map(escape, row), style=styles[index] if styles else None)
    console.print(table)


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[str], None]]:
    """Shows progress on stderr; yields the function to call after each of ``total`` steps with a line on it."""
    console = _rich_console(sys.stderr)
    if console is None or not console.is_terminal:
        done = 0

        def advance(line: str) -> None:
            nonlocal done
            done += 1
            print(f"{description} {done}/{total}: {line}", file=sys.stderr, flush=True)

        yield advance
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    texts = TextColumn("{task.description}"), TextColumn("{task.fields[line]}", style="dim")
    bar = Progress(texts[0], BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), texts[1], console=console)
    with bar:
        task = bar.add_task(description, total=total, line="")
        yield lambda line: bar.update(task, advance=1, line=line)


def _rich_console(stream: TextIO) -> Any:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return Console(file=stream, width=None if stream.isatty() else _WIDTH_OFF_TERMINAL)


def _plain_table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], caption: str) -> str:
    lines = [[column.title for column in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]

    def padded(line: Sequence[str]) -> str:
        cells = zip(line, widths, columns, strict=True)
        return "  ".join(cell.ljust(width) if column.text else cell.rjust(width) for cell, width, column in cells)

    body = [padded(line).rstrip() for line in lines]
    body.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([title, *body, *([caption] if caption else []), ""])

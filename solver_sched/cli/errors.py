"""One place where errors become one line on stderr and an exit code.

0 done; 1 ran, and the answer is no; 2 bad usage or input; 3 a defect of ours; 130 Ctrl-C; 141 the reader went away.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from solver_sched.errors import SchedError
from solver_sched.report.layout import printable
from solver_sched.report.terminal import encodable

if TYPE_CHECKING:
    from collections.abc import Sequence

NO = 1
BAD_INPUT = 2
DEFECT = 3
INTERRUPTED = 130
BROKEN_PIPE = 141

# typer vendors click from 0.20 on and uses the installed one before; either way this is ClickException.
_UsageError, _CommandError = typer.BadParameter.mro()[1:3]
TRACEBACK = "SOLVER_SCHED_TRACEBACK"


class Commands(TyperGroup):
    """The root command. Typer's boxed errors would be five lines; here each is one."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and exit with a code from the list above."""
        extra |= {"standalone_mode": False, "windows_expand_args": windows_expand_args}
        try:
            code = super().main(args, prog_name or "solver-sched", complete_var, **extra)
        except Exception as error:  # noqa: BLE001
            code = reported(error)
        except KeyboardInterrupt:
            code = INTERRUPTED
        sys.exit(code or 0)

    def invoke(self, ctx: Any) -> Any:
        """Below typer's own handling of a broken pipe, which would exit with 1: that is our "no"."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes stdout once more at exit; that must go nowhere (library/signal, Note on SIGPIPE).
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        return result


def reported(error: Exception) -> int:
    """Print `error` as one line and give its exit code."""
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, _CommandError):
        usage: Any = error
        message = usage.format_message().replace("Value error, ", "")  # pydantic's prefix, from typer's conversions
        context = usage.ctx if isinstance(error, _UsageError) else None
        see = f" (see {context.command_path} --help)" if context is not None else ""
        # No message: a group without a command has printed its help.
        return said(message.rstrip(".") + see, BAD_INPUT) if message else BAD_INPUT
    if isinstance(error, SchedError):
        return said(str(error), BAD_INPUT)
    if isinstance(error, OSError) and error.strerror:
        return said(f"{error.filename}: {error.strerror}" if error.filename else error.strerror, BAD_INPUT)
    if os.environ.get(TRACEBACK):
        raise error
    return said(f"internal error: {type(error).__name__}: {error} ({TRACEBACK}=1 shows where)", DEFECT)


def said(message: str, code: int) -> int:
    """`solver-sched: message` on stderr, on one line whatever the message holds."""
    line = " ".join(message.split())
    sys.stderr.write(encodable(f"solver-sched: {printable(line)}\n", sys.stderr))
    return code

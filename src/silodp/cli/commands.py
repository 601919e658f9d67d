"""The command line: parse, call, print. What a command does lives in the package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from silodp.cli.audit import audit
from silodp.cli.bench import bench
from silodp.cli.cache import cache
from silodp.cli.data import data
from silodp.cli.demo import demo
from silodp.cli.deploy import deploy
from silodp.cli.doctor import doctor
from silodp.cli.inversion import attack
from silodp.cli.personalise import personalise
from silodp.cli.plan import plan
from silodp.cli.pretrain import pretrain
from silodp.cli.privacy import privacy
from silodp.cli.report import report
from silodp.cli.runs import runs
from silodp.cli.settings import presets, settings
from silodp.cli.study import study
from silodp.cli.terminal import as_encoded, flush, prepare_streams, print_error, say
from silodp.cli.training import resume, run
from silodp.cli.use import evaluate, export, predict
from silodp.errors import InputError

COMMANDS: dict[str, Callable[..., None] | typer.Typer] = {
    "demo": demo, "presets": presets, "settings": settings, "data": data, "plan": plan, "pretrain": pretrain,
    "run": run, "resume": resume, "runs": runs, "report": report, "personalise": personalise,
    "predict": predict, "evaluate": evaluate, "export": export, "privacy": privacy, "study": study,
    "attack": attack, "audit": audit, "deploy": deploy, "cache": cache, "bench": bench, "doctor": doctor,
}  # fmt: skip
"""In the order in which they are used, and listed."""


class _Commands(TyperGroup):
    """Lists commands in their order and as plain text: importing Typer's frames takes too long."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=list(COMMANDS).index)

    def get_help(self, ctx: Any) -> str:
        return as_encoded(super().get_help(ctx), sys.stdout.encoding)  # Typer does not ask the terminal

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            helps = {name: self.commands[name].help or "" for name in self.list_commands(ctx)}
            formatter.write_dl(
                [(name, " ".join(text.split("\n\n")[0].split())) for name, text in helps.items()]
            )


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)

for _name, _command in COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as version_of  # PyTorch itself takes seconds to import

        from silodp.runs.version import version

        say(f"silodp {version()}, PyTorch {version_of('torch')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Of silodp and PyTorch.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Client-level differential privacy for federated medical imaging."""


def _denied(error: PermissionError) -> str:
    return f"{error.filename}: permission denied; ask its owner, or give a file or folder of yours"


def main() -> None:
    """Runs a command; an error that the user can correct ends with one line and exit code 2."""
    prepare_streams()
    try:
        try:
            app()
        finally:
            flush(sys.stdout)
    except (InputError, OSError) as error:  # OSError: a full disk, a folder that may not be written
        print_error(_denied(error) if isinstance(error, PermissionError) else error)
        sys.exit(2)
    except MemoryError:
        way_out = "give it fewer or smaller images, or a larger machine"
        print_error(f"this needs more memory than there is; {way_out}")
        sys.exit(2)
    except KeyboardInterrupt:
        print_error("stopped; `silodp resume FOLDER` goes on after the last finished round")
        sys.exit(130)

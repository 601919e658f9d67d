"""The command line. Nothing else imports Rich or Typer."""

from silodp.cli.commands import main

__all__ = ["main"]

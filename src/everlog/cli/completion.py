"""The command `everlog completion`: the script that lets a shell complete `everlog`.

Owns nothing but the choice of the shell; the library writes the script and answers it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer
from typer._completion_shared import get_completion_script

VARIABLE: Final = "_EVERLOG_COMPLETE"
"""Set by the script when the shell asks what could come next."""

Shell = Annotated[
    Literal["bash", "zsh", "fish"],
    typer.Argument(metavar="bash|zsh|fish", help="The shell.", show_default=False),
]


def completion_command(shell: Shell) -> None:
    """Print the script for a shell, to be loaded when it starts.

    bash: add `eval "$(everlog completion bash)"` to ~/.bashrc. zsh: add `eval "$(everlog completion zsh)"` to
    ~/.zshrc, after compinit. fish: write it to ~/.config/fish/completions/everlog.fish.
    """
    print(get_completion_script(prog_name="everlog", complete_var=VARIABLE, shell=shell))

"""`volplane completion`: a script that completes verbs, options and values in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash: source <(volplane completion bash)
    zsh:  source <(volplane completion zsh)
    fish: volplane completion fish | source

    Completes verbs, options, kinds, and the names of objects in the cluster that the other words choose.
    """
    from volplane.cli import volplane

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(volplane, {}, "volplane", "_VOLPLANE_COMPLETE").source())

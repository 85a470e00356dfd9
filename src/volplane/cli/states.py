"""`volplane states`: the state transitions of a claim, volume or pod, as they happened."""

from __future__ import annotations

import click

from volplane.cli.cluster_reader import ClusterChoice, cluster_options, print_report
from volplane.cli.journey_target import JourneySource
from volplane.explain.journey.render_text import render_history
from volplane.explain.journey.transitions import list_transitions


@click.command()
@click.argument("what", metavar="KIND/NAME")
@click.option("-n", "--namespace", default="", metavar="NAME", help="namespace; default: the kubeconfig's")
@click.option(
    "--all", "everything", is_flag=True, help="also those of its volume, attachments, pods and nodes"
)
@cluster_options
def command(what: str, namespace: str, everything: bool, cluster: ClusterChoice, output: str) -> None:
    """Show how the state of KIND/NAME changed: object, field, before, event, after, and when.

    KIND is pvc, pv or pod. Phases, bindings, conditions, finalizers and deletion are shown. Changes nothing
    in the cluster.
    """
    source = JourneySource(what, namespace, cluster)
    history = list_transitions(source.read(), "" if everything else source.target.text)
    print_report(history, render_history, output)

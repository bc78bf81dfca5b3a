"""Lists the commands. Imports click only, so that ``swapd --help`` is quick; each command imports what it needs."""

import click

from swapd import __version__
from swapd.cli.cache import cache
from swapd.cli.check import check
from swapd.cli.events import events
from swapd.cli.gpus import release_gpus
from swapd.cli.help import Group
from swapd.cli.orders import drain, load, pin, reload, undrain, unload, unpin
from swapd.cli.prefetch import prefetch
from swapd.cli.report import report
from swapd.cli.serve import serve
from swapd.cli.simulate import simulate
from swapd.cli.status import status
from swapd.cli.timeline import timeline
from swapd.cli.topology import topology
from swapd.cli.trace import trace


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="swapd %(version)s")
def swapd() -> None:
    """Serve more models than this node's GPUs can hold.

    swapd stands in front of the model servers of one node. It loads a model when a request asks for it, holds the
    request meanwhile, and evicts models that are not in use to make room.

      Start:    swapd check swapd.yaml && swapd serve swapd.yaml
      Look:     swapd status, swapd topology, swapd report, swapd timeline, swapd cache
      Operate:  swapd load MODEL | unload MODEL | pin MODEL | prefetch MODEL | drain | reload
      Plan:     swapd trace > week.csv && swapd simulate --trace week.csv --models swapd.yaml

    All commands but serve, check and simulate talk to the running daemon through its admin socket: --admin PATH,
    $SWAPD_ADMIN, or admin.sock in $RUNTIME_DIRECTORY, /run/swapd, $XDG_RUNTIME_DIR/swapd or the user's temporary
    directory.

      Exit codes:
        0  done
        1  refused or failed; standard error says why
        2  wrong usage
        3  no daemon answers on the admin socket
      130  Ctrl-C; an order that was given stands
    """


for _command in (
    serve,
    check,
    status,
    topology,
    report,
    timeline,
    load,
    unload,
    pin,
    unpin,
    prefetch,
    cache,
    drain,
    undrain,
    release_gpus,
    reload,
    events,
    trace,
    simulate,
):
    swapd.add_command(_command)

"""The command line of swapd."""


def main() -> None:
    """Run the command line; the exit code is documented in ``swapd --help``."""
    from swapd.cli.root import swapd

    swapd(prog_name="swapd")

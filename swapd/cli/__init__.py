"""The command line of swapd."""


def main() -> None:
    """Run the command line; the exit code is documented in ``swapd --help``."""
    import os
    import sys

    from swapd.cli.output import OutputError, standard_output
    from swapd.cli.root import swapd

    sys.stdout = standard_output()
    try:
        swapd(prog_name="swapd")
    except OutputError as error:
        sys.stderr.write(f"Error: standard output cannot be written: {error.strerror}\n")
        os._exit(1)  # an exit in order would try to write what is left

"""Translates the configuration into what the rooms take, and opens the listeners it names."""

from pathlib import Path

from aiohttp import web

from swapd.config.ports import reserved_ports
from swapd.config.schema import Settings
from swapd.config.units import Listen
from swapd.core.ids import SECOND, Duration
from swapd.instances import InstanceSettings
from swapd.proxy.settings import ProxySettings

EXIT_DRAIN = Duration(120 * SECOND)
"""Running requests have this long to end when the daemon is asked to exit and ``drain_timeout`` sets no other limit.

Below the time after which service managers commonly kill, which would leave engines behind.
"""


def exit_limit(settings: Settings) -> Duration:
    """Return how long running requests may take to end when the daemon is asked to exit."""
    limit = settings.scheduling.drain_timeout
    return EXIT_DRAIN if limit is None else limit


def instance_settings(settings: Settings, log_dir: Path) -> InstanceSettings:
    """Return what the room of the engines needs."""
    return InstanceSettings(
        log_dir=log_dir,
        first_port=settings.engines.ports.first,
        last_port=settings.engines.ports.last,
        reserved_ports=reserved_ports(settings),
    )


def proxy_settings(settings: Settings) -> ProxySettings:
    """Return what the front door needs."""
    return ProxySettings(
        fast_path=settings.http.fast_path,
        max_body=settings.http.max_body,
        max_buffered=settings.http.max_buffered,
        sse_keepalive=settings.http.sse_keepalive,
    )


async def listen(runner: web.BaseRunner, name: str, address: Listen) -> str:
    """Open a listener and return its address; raises OSError with one sentence."""
    site = web.TCPSite(runner, address.host or None, address.port, backlog=4096)
    try:
        await site.start()
    except OSError as error:
        raise OSError(
            f"{name}.listen: {address.host}:{address.port} cannot be opened ({error.strerror or error}); "
            "stop what uses it, or give another address"
        ) from error
    host, port = runner.addresses[0][:2]
    return f"{host}:{port}"

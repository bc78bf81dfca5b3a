"""Describes a server that something else runs: a unit, a container, another host.

swapd probes it, forwards to it, and starts and stops it by hooks, if there are any. It sends it no signal, and hooks
are not bound to CPUs: the server is rarely their child.
"""

from urllib.parse import urlsplit

from swapd.engines.assemble import stop_spec
from swapd.engines.base import Assignment, EngineError, EnginePlan, LaunchSpec, ReadinessProbe
from swapd.engines.environment import environment
from swapd.engines.fill import fill
from swapd.engines.warmup import chat, completion, embedding, llama_completion, warmup_plan


class External:
    """A start hook, a URL, a stop hook."""

    def plan(self, given: Assignment) -> EnginePlan:
        """Take the address from ``url``; the command, if any, must end with status 0."""
        options = given.options
        host, port, path = _address(given)
        env = environment(given)
        command = fill((*options.command, *options.args), given)
        name = options.name
        return EnginePlan(
            launch=LaunchSpec(command, env, options.cwd, options.env) if command else None,
            serves=False,
            host=host,
            port=port,
            readiness=ReadinessProbe(path or options.health_path, options.health_timeout),
            warmup=warmup_plan(options, (chat(name), completion(name), embedding(name), llama_completion(name))),
            stop=stop_spec(given, env),
        )


def _address(given: Assignment) -> tuple[str, int, str]:
    """Return host, port and health path (empty: the configured one)."""
    name, url = given.options.name, given.options.url
    if url is None:
        raise EngineError(f"model {name} needs a url: where its external server listens")
    parts = urlsplit(fill((url,), given)[0])
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port or parts.username or parts.query or parts.fragment:
        raise EngineError(f"model {name} needs a url like http://127.0.0.1:9000, not {url!r}")
    return parts.hostname, port, parts.path.rstrip("/")

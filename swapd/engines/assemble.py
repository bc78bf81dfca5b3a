"""Puts together the parts of a plan that do not depend on the engine."""

from collections.abc import Mapping

from swapd.engines.base import (
    LOOPBACK,
    Assignment,
    EnginePlan,
    LaunchSpec,
    ReadinessProbe,
    StopSpec,
    WarmupRequest,
)
from swapd.engines.fill import fill
from swapd.engines.warmup import warmup_plan


def serving_plan(
    given: Assignment, *, argv: tuple[str, ...], env: Mapping[str, str], auto: tuple[WarmupRequest, ...]
) -> EnginePlan:
    """Describe a server that swapd itself starts on the loopback address; ``auto`` as in ``warmup_plan``."""
    options = given.options
    return EnginePlan(
        launch=LaunchSpec(argv, env, options.cwd, options.env, given.binding),
        serves=True,
        host=LOOPBACK,
        port=given.port,
        readiness=ReadinessProbe(options.health_path, options.health_timeout),
        warmup=warmup_plan(options, auto),
        stop=stop_spec(given, env),
    )


def stop_spec(given: Assignment, env: Mapping[str, str]) -> StopSpec:
    """Describe the stop; the hook runs in the server's environment and directory."""
    options = given.options
    hook = None
    if options.stop_command is not None:
        hook = LaunchSpec(fill(options.stop_command, given), env, options.cwd, options.env)
    return StopSpec(options.stop_signal, options.stop_grace, hook)

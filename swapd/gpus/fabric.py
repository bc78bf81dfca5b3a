"""Reads what the driver says of a GPU's place in the NVLink fabric, and judges whether it is sound.

Registration that is not complete is told, never a gate: some machines never complete it and work.
"""

import uuid
from typing import Any, Final, TypeVar

from swapd.core.topology import Fabric, FabricHealth, FabricState

T = TypeVar("T")

_STATES: Final = (FabricState.UNSUPPORTED, FabricState.NOT_STARTED, FabricState.IN_PROGRESS, FabricState.COMPLETED)
_HEALTH: Final = (FabricHealth.UNSUPPORTED, FabricHealth.HEALTHY, FabricHealth.UNHEALTHY, FabricHealth.LIMITED)
#: places of the 2-bit fields of the health mask: bandwidth degraded, route in recovery, route unhealthy, access timeout
_TROUBLES: Final = (0, 2, 4, 6)
_TRUE: Final = 1
#: the 4-bit field after them; 0 is not supported, 1 none
_MISCONFIGURED_SHIFT: Final = 8


def fabric_of(info: Any) -> Fabric:
    """Convert ``nvmlGpuFabricInfo_v3_t``, or ``_v2_t``, which has no summary: then the mask is the judge."""
    state, mask, status = _at(_STATES, int(info.state)), int(info.healthMask), int(info.status)
    cluster = bytes(info.clusterUuid)
    attached = state is FabricState.COMPLETED and status == 0 and any(cluster)
    summary = getattr(info, "healthSummary", None)
    return Fabric(
        state=state,
        status=status,
        clique=f"{uuid.UUID(bytes=cluster)}.{int(info.cliqueId)}" if attached else "",
        health_mask=mask,
        health=_health(mask) if summary is None else _at(_HEALTH, int(summary)),
    )


def fabric_trouble(fabric: Fabric) -> str:
    """Say what makes the fabric of a GPU unsound; empty: nothing does, as far as can be told."""
    if fabric.health in (FabricHealth.UNHEALTHY, FabricHealth.LIMITED):
        return f"its NVLink fabric is {fabric.health} (health mask {fabric.health_mask:#x})"
    if fabric.state is FabricState.COMPLETED and fabric.status != 0:
        return f"its NVLink fabric registration ended with NVML error {fabric.status}"
    return ""


def fabric_pending(fabric: Fabric) -> bool:
    """Tell whether the GPU has still to be registered: CUDA may fail with error 802 until then."""
    return fabric.state in (FabricState.NOT_STARTED, FabricState.IN_PROGRESS)


def _health(mask: int) -> FabricHealth:
    if mask == 0:
        return FabricHealth.UNSUPPORTED
    if any(mask >> shift & 3 == _TRUE for shift in _TROUBLES) or mask >> _MISCONFIGURED_SHIFT & 0xF > 1:
        return FabricHealth.UNHEALTHY
    return FabricHealth.HEALTHY


def _at(values: tuple[T, ...], number: int) -> T:
    """Return the value of an enumeration's number; the first, which is "unsupported", for one we do not know."""
    return values[number] if 0 <= number < len(values) else values[0]

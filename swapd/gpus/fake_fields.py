"""Fills the structs of a fake NVML that are more than a number: field values and the fabric."""

from collections.abc import Sequence
from typing import Any, Final

import pynvml

from swapd.gpus.fake_gpu import FakeFabric, FakeGpu

_LINK_ACTIVE: Final = 1


def field_values(gpu: FakeGpu, fields: Sequence[Any]) -> Any:
    """Return an array of ``c_nvmlFieldValue_t``; each field is an id, or an id and a scope."""
    values = (pynvml.c_nvmlFieldValue_t * len(fields))()
    for value, wanted in zip(values, fields, strict=True):
        field, scope = wanted if isinstance(wanted, tuple) else (wanted, 0)
        value.fieldId, value.scopeId = field, scope
        number = _number(gpu, field, scope)
        value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if number is None else pynvml.NVML_SUCCESS
        if number is not None:
            value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
            value.value.uiVal = number
    return values


def _number(gpu: FakeGpu, field: int, scope: int) -> int | None:
    active = gpu.active_links
    match field:
        case pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT:
            return len(active)
        case pynvml.NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
            return sum(link.peer is None for link in active) if gpu.links else None
        case pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
            return gpu.product.link_mbps if active else 0
        case pynvml.NVML_FI_DEV_NVLINK_GET_SPEED if scope < len(gpu.links):
            return gpu.product.link_mbps if gpu.links[scope].active else 0
        case pynvml.NVML_FI_DEV_NVLINK_GET_STATE if scope < len(gpu.links):
            return _LINK_ACTIVE if gpu.links[scope].active else 0
        case pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
            return gpu.recovery_action
        case pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
            return gpu.ecc_errors
        case _:
            return None


def fabric_into(fabric: FakeFabric, pointer: Any) -> None:
    """Fill the struct behind a ``ctypes.byref``, version 2 or 3."""
    info = pointer._obj  # noqa: SLF001 - what a byref points at
    if info.version not in (pynvml.nvmlGpuFabricInfo_v2, pynvml.nvmlGpuFabricInfo_v3):
        raise pynvml.NVMLError_ArgumentVersionMismatch
    info.clusterUuid[:] = fabric.cluster
    info.status, info.cliqueId, info.state = fabric.status, fabric.clique, fabric.state
    info.healthMask = fabric.health_mask
    if info.version == pynvml.nvmlGpuFabricInfo_v3:
        info.healthSummary = fabric.summary

"""Shows a machine of which only the topology matrix is known: discovery as on the machine, over a fake of NVML."""

import tempfile
from pathlib import Path

from swapd.core.topology import NodeTopology
from swapd.gpus.discover import discover
from swapd.gpus.fake import FakeLibrary
from swapd.gpus.fake_gpu import Product, gpus_of
from swapd.gpus.fake_sysfs import write_sysfs
from swapd.gpus.fixture import parse_matrix
from swapd.gpus.nvml import Nvml
from swapd.gpus.settings import GpuSettings


def topology_of(text: str, product: Product | None = None) -> NodeTopology:
    """Return the topology of a matrix, its GPUs all of one product. Raises ``MatrixError``."""
    gpus = gpus_of(parse_matrix(text), product)
    nvml = Nvml(FakeLibrary(gpus, driver_version=""))
    with tempfile.TemporaryDirectory(prefix="swapd-topology-") as root:
        write_sysfs(Path(root), gpus)
        nvml.init()
        try:
            return discover(nvml, GpuSettings(host_root=Path(root))).topology
        finally:
            nvml.shutdown()

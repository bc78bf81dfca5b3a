"""Model-server processes: started, probed, warmed up, watched, stopped, on orders alone."""

from swapd.instances.instances import Instances
from swapd.instances.settings import Endpoint, InstanceSettings, ProcessView

__all__ = ["Endpoint", "InstanceSettings", "Instances", "ProcessView"]

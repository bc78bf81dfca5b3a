"""Lists the eviction policies: one module and one line here for each."""

from swapd.core.catalog import PolicyName
from swapd.core.policies.base import EvictionPolicy, Resident
from swapd.core.policies.cheapest_reload import CheapestReload
from swapd.core.policies.gdsf import Gdsf
from swapd.core.policies.lru import Lru

__all__ = ["EvictionPolicy", "Resident", "policy_named"]

_POLICIES: dict[PolicyName, type[EvictionPolicy]] = {
    PolicyName.GDSF: Gdsf,
    PolicyName.LRU: Lru,
    PolicyName.CHEAPEST_RELOAD: CheapestReload,
}


def policy_named(name: PolicyName) -> EvictionPolicy:
    """Return a new policy by its name in the configuration."""
    return _POLICIES[name]()

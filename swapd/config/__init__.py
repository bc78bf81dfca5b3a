"""Typed settings: from a YAML file, checked as a whole, to the core's words; and what a reload changes."""

from swapd.config.compile import compile_catalog, compile_topology, reserved_ports
from swapd.config.diff import Difference, difference
from swapd.config.load import Loaded, load
from swapd.config.problems import ConfigError, Problem
from swapd.config.schema import Settings
from swapd.config.watch import changes

__all__ = [
    "ConfigError",
    "Difference",
    "Loaded",
    "Problem",
    "Settings",
    "changes",
    "compile_catalog",
    "compile_topology",
    "difference",
    "load",
    "reserved_ports",
]

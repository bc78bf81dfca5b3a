"""What a new configuration changes."""

from collections.abc import Callable

from swapd.config import Difference, Loaded, difference

Understood = Callable[[str], Loaded]

MODEL = 'command: [./serve, "{port}"], memory: 1GiB'


def test_only_a_comment_changes_nothing(understood: Understood) -> None:
    old = understood(f"models: {{a: {{{MODEL}}}}}").settings
    new = understood(f"# a comment\nmodels:\n  a:  # another\n    {{{MODEL}, max_wait: 300s}}\n").settings
    assert difference(old, new) == Difference((), (), (), ("a",), (), ())
    assert difference(old, new).nothing


def test_models_are_told_apart_by_name(understood: Understood) -> None:
    old = understood(f"models: {{a: {{{MODEL}}}, b: {{{MODEL}}}, c: {{{MODEL}}}}}").settings
    new = understood(f"models: {{d: {{{MODEL}}}, b: {{{MODEL}, gpus: 2}}, a: {{{MODEL}}}}}").settings
    found = difference(old, new)
    assert (found.added, found.removed, found.changed, found.unchanged) == (("d",), ("c",), ("b",), ("a",))
    assert not found.nothing


def test_a_changed_default_changes_the_models_that_used_it(understood: Understood) -> None:
    models = f"models: {{a: {{{MODEL}}}, b: {{{MODEL}, max_wait: 9s}}}}"
    found = difference(understood(models).settings, understood(f"defaults: {{max_wait: 8s}}\n{models}").settings)
    assert (found.changed, found.unchanged, found.settings) == (("a",), ("b",), ("defaults.max_wait",))


def test_keys_that_are_read_once_wait_for_a_restart(understood: Understood) -> None:
    old = understood("").settings
    new = understood("""
        http: {listen: 127.0.0.1:9000, max_body: 1MiB}
        metrics: {listen: 127.0.0.1:9001}
        admin: {socket: a.sock}
        state: {path: a.db}
        engines: {ports: 21000-22000, on_exit: keep}
        devices: {virtual: {count: 5, memory: 8GiB}}
        scheduling: {protect: 1s}
        cache: {path: b, max_size: 1TiB, keep_free: 20%}
        """).settings
    found = difference(old, new)
    assert found.restart_needed == (
        "http.listen",
        "metrics.listen",
        "admin.socket",
        "state.path",
        "cache.path",
        "engines.ports",
        "devices.virtual.count",
    )
    assert set(found.settings) - set(found.restart_needed) == {
        *("http.max_body", "engines.on_exit", "scheduling.protect", "cache.max_size", "cache.keep_free"),
    }


def test_of_the_devices_only_the_rules_take_effect_without_a_restart(understood: Understood) -> None:
    old = understood("devices: auto").settings
    new = understood("devices: {expected: 8, memory: 1GiB, host_memory: off, require_fabric: true, numa: off}").settings
    found = difference(old, new)
    assert found.restart_needed == ("devices.expected", "devices.memory", "devices.host_memory")
    assert set(found.settings) - set(found.restart_needed) == {"devices.require_fabric", "devices.numa"}
    assert difference(old, understood("").settings).restart_needed == ("devices.virtual",)

"""What XLA has compiled as files for later trainers of the same user.

JAX's own cache names a program by what was traced, so each trainer traces and lowers each program (0.08 to 0.14 s of
CPU) only to learn the name.  Here the name is known before, and loading takes 0.02 s.

A file has the bytes of XLA's executable and nothing else.  The arguments are known where it is called, and the result
has the form of the second argument, whose memory it takes over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cerebro_db.nn.engines.jax_cache import without_cache
from cerebro_db.nn.engines.kept import Kept, read_whole, write_whole

CARRIED = 1  # the place of the argument that has the form of the result


class Executables:
    """The compiled functions of all programs of a trainer."""

    def __init__(self, jax: Any, kept: Kept) -> None:
        self._jax, self._kept = jax, kept

    def executable(
        self, key: list[Any], function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """The compiled function: an earlier trainer's, or else this one's.

        ``key``: what identifies the function in any trainer, beside its arguments and the compiler's options.
        """
        types = self._jax.tree.map(self._jax.typeof, arguments)
        path = self._kept.path(key, self._described(types), options)
        found = None if path is None else self._loaded(path, types)
        return found or self._compiled(path, function, arguments, options)

    def _described(self, types: Any) -> list[Any]:
        leaves, structure = self._jax.tree.flatten(types)
        return [str(structure), [[str(one.dtype), list(one.shape), one.weak_type] for one in leaves]]

    def _compiled(self, path: Path | None, function: Any, arguments: Any, options: dict[str, Any]) -> Any:
        # A later trainer does not know which arguments are used, so the executable takes all of them.
        jitted = self._jax.jit(function, donate_argnums=CARRIED, keep_unused=True)
        traced = jitted.trace(*arguments)
        if path is None or not self._is_same_everywhere(traced, arguments[CARRIED]):
            return traced.lower().compile(options)
        with without_cache(self._jax):
            compiled = traced.lower().compile(options)
        with contextlib.suppress(self._jax.errors.JaxRuntimeError):
            write_whole(path, compiled.runtime_executable().serialize())
        return compiled

    def _is_same_everywhere(self, traced: Any, carried: Any) -> bool:
        """Whether a trace holds nothing of this process, and its result has the form that ``_callable`` gives it."""
        jax = self._jax
        return (
            self._described(jax.tree.map(jax.typeof, traced.out_info))
            == self._described(jax.tree.map(jax.typeof, carried))
            and not traced.jaxpr.effects
            and not self._holds_arrays(traced.jaxpr)
        )

    def _holds_arrays(self, traced: Any) -> bool:
        """Whether a traced function, or one that it calls, has closed over an array."""
        from jax.extend.core import ClosedJaxpr, Jaxpr

        def is_function(value: Any) -> bool:
            return isinstance(value, (ClosedJaxpr, Jaxpr))

        return any(isinstance(value, self._jax.Array) for value in getattr(traced, "consts", ())) or any(
            is_function(value) and self._holds_arrays(value)
            for equation in traced.eqns
            for value in self._jax.tree.leaves(equation.params, is_leaf=is_function)
        )

    def _loaded(self, path: Path, types: Any) -> Any:
        """The function in a file; None if there is no whole file, or if it cannot be used."""
        content = read_whole(path)
        if content is not None:
            with contextlib.suppress(Exception):  # an error of XLA's, or of another version's: this trainer compiles
                return self._callable(content, types)
        return None

    def _callable(self, content: bytes, types: Any) -> Any:
        """What JAX makes of an executable that it has compiled itself, so a call costs the same."""
        from jax._src import stages  # the constructors have no public names
        from jax._src.interpreters import pxla
        from jax._src.lib import xla_client

        jax = self._jax
        device = jax.devices()[0]
        devices = xla_client.DeviceList((device,))
        taken, results = jax.tree.leaves(types), jax.tree.leaves(types[CARRIED])
        on_device = jax.sharding.SingleDeviceSharding(device, memory_kind=device.default_memory().kind)
        unloaded = pxla.UnloadedMeshExecutable(
            xla_executable=device.client.deserialize_executable(content, executable_devices=devices),
            device_list=devices,
            backend=device.client,
            input_avals=taken,
            input_shardings=[on_device] * len(taken),
            output_avals=results,
            output_shardings=[on_device] * len(results),
            committed=False,
            name="kept",
            unordered_effects=[],
            ordered_effects=[],
            keepalive=[],
            host_callbacks=[],
            kept_var_idx=set(range(len(taken))),
            mut=None,
            xla_in_layouts=[None] * len(taken),
            dispatch_in_layouts=[None] * len(taken),
            xla_out_layouts=[None] * len(results),
            all_args_info=None,
            pgle_profiler=None,
        )
        return stages.Compiled(unloaded.load(), [], (types, {}), jax.tree.structure(types[CARRIED]))


def machine(jax: Any) -> list[Any]:
    """What machine code depends on: the devices' instructions, the number of processors, and the compiler."""
    import jaxlib
    from jax._src.lib import xla_client  # has no public name

    devices = jax.devices()[:1]
    try:
        topology = xla_client.get_topology_for_devices(devices)
        # JAX for Python 3.10 has no fingerprint.
        kind = topology.fingerprint() if hasattr(topology, "fingerprint") else topology.serialize().hex()
    except (jax.errors.JaxRuntimeError, NotImplementedError):  # a device's plug-in need not offer a topology
        kind = devices[0].device_kind
    # On GPUs the client's version names CUDA's, which can change without jaxlib's.
    return [kind, os.cpu_count(), jaxlib.__version__, devices[0].client.platform_version]

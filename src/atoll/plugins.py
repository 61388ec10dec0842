"""Plugins: strategies, codecs and tasks of other installed packages.

A package names the modules that register them, as entry points of the group `atoll.plugins`:

    [project.entry-points."atoll.plugins"]
    mine = "my_package.strategies"
"""

import functools
import importlib.metadata

from atoll.errors import PluginError

__all__ = ["load_plugins"]

GROUP = "atoll.plugins"


@functools.cache
def load_plugins() -> None:
    """Imports the modules of all plugins, once."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            raise PluginError(
                f"plugin {entry.name!r}: {entry.value} cannot be imported ({type(error).__name__}: {error}): "
                "mend or uninstall its package"
            ) from error

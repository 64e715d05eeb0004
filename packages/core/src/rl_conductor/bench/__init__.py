"""The benchmark: systems side by side on the same samples, the same workers and the same account of what they spend."""

from __future__ import annotations

from importlib.util import find_spec

from rl_conductor.errors import ConfigError

LIBRARIES = ("jinja2", "matplotlib", "numpy", "platformdirs", "scipy", "tomlkit", "wordllama")

if _missing := [name for name in LIBRARIES if find_spec(name) is None]:
    raise ConfigError(f"a bench needs {', '.join(_missing)}: pip install 'rl-conductor[bench]'")

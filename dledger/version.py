"""The version of all packages of this distribution: the one place where it stands.

The build reads it from this file (pyproject.toml), every command prints it for `--version`, and the packages offer it
as `__version__`. A clone needs no installation to know it.
"""

from __future__ import annotations

__version__ = "0.2.0.dev0"
"""Between releases it names the next one and ends in `.dev0` (PEP 440)."""

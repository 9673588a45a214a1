"""Where the files lie that come with the code."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]

CODE_ROOT = _PACKAGE.parent
"""The folder of the packages trainer, sweeps and analysis: a checkout, or site-packages."""

_INSTALLED = _PACKAGE / "conf"

CONF = _INSTALLED if _INSTALLED.is_dir() else CODE_ROOT / "conf"
"""The configs: conf/ of a checkout, which setup.py installs as trainer/conf."""

FORMER_SCALES = {"tiny": "few_updates", "long": "tiny"}
"""Name of a scale before version 0.2 → its name since then."""

"""The TOML file of `--config`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from app.contract.errors import ConfigurationError


def read_toml(file: Path) -> dict[str, object]:
    """Return the keys of a TOML file and their values.

    Raises:
        ConfigurationError: it cannot be read, or is not valid.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read the configuration file {file}: {error.strerror}.", param="config"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The configuration file {file} is not valid TOML: {error}.", param="config") from None

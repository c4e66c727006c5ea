"""The TOML file of `--config`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from app.config.unicode_text import read_unicode
from app.contract.errors import ConfigurationError


def read_toml(file: Path) -> dict[str, object]:
    """Return the keys of a TOML file and their values.

    Raises:
        ConfigurationError: it cannot be read, or is not valid.
    """
    try:
        text = read_unicode(file)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot read the configuration file {file}: {error.strerror}.", param="config"
        ) from None
    except ValueError as error:
        raise ConfigurationError(f"The configuration file {error}.", param="config") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The configuration file {file} is not valid TOML: {error}.", param="config") from None

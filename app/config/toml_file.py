"""The TOML file of `--config`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from app.config.nearest import nearest
from app.config.setting import Setting
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


def read_settings_file(file: Path, settings: Iterable[Setting]) -> dict[str, object]:
    """Return the values of settings in a TOML file, by their names.

    Raises:
        ConfigurationError: it cannot be read, or has another key or a bad value; the message names the file.
    """
    values, known = read_toml(file), {item.name: item for item in settings}
    for name, value in values.items():
        if name not in known:
            has_table = "; it is a table: settings stand in no table" if isinstance(value, dict) else ""
            advice = nearest(name, known) or has_table
            raise ConfigurationError(f"{file}: Unknown setting {name!r}{advice}.", param=name)
        known[name].check(value, f"{file}: {name}")
    return values

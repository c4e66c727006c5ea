"""Command-line options: of the settings of `app.config.settings`, and of the sampling parameters."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from app.config.nearest import nearest
from app.config.other_names import option_advice
from app.config.setting import KIB, MIB, Setting
from app.config.settings import Config, load_config, misspelt_variables, settings
from app.config.vllm_option import VllmOption
from app.config.vllm_options import translate, vllm_options
from app.contract.errors import ConfigurationError
from app.contract.sampling_defaults import MODELS_NAMES
from app.contract.sampling_params import PARAMETERS

_SHORT = {"quiet": ("-q",)}
_METAVARS = {
    "text": "TEXT", "integer": "N", "seconds": "SECONDS", "share": "SHARE", "number": "N", "bytes": "SIZE",
    "list": "TEXT",
}  # fmt: skip
_SAMPLING = {each.name: each for each in PARAMETERS if each.is_option}
# What an option that is not given means; those without a line: nothing.
_NOT_GIVEN = {
    **dict.fromkeys(MODELS_NAMES, " By default the model's own."),
    "max_tokens": " By default `--default-max-tokens`, and a quarter of the context in a chat, else as many as fit.",
}
_VLLM = "vllm "  # before the names of vLLM's options among the parsed arguments
_NO_NUMBER = re.compile(r"argument (\S+): invalid (int|float) value: (.*)", re.DOTALL)  # argparse's words
SAMPLING_NAMES = frozenset(_SAMPLING)
"""Names taken by the sampling options: `--seed` is that of the sampling there, not that of random weights."""
NOT_OF_ONE_CHAT = SAMPLING_NAMES | frozenset(
    ("served_model_name", "pin_prefix", "max_queue", "scheduling_policy", "queue_timeout", "itl_target")
)
"""Those, and settings that mean something to a server of several clients alone."""


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations; its errors are `ConfigurationError`s with a suggestion."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all of `arguments`.

        Raises:
            ConfigurationError: an unknown option (with a suggestion), a missing or a superfluous argument.
        """
        num_options = list(arguments).index("--") if "--" in arguments else len(arguments)
        options = [self._flag_alone(self._with_hyphens(argument)) for argument in arguments[:num_options]]
        args, unknown = self.parse_known_args([*options, *arguments[num_options:]])
        if unknown:
            word = unknown[0].partition("=")[0]
            shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
            known = [option for action in shown for option in action.option_strings]
            what = "option" if word.startswith("-") else "argument"
            advice = (
                option_advice(word, known) or nearest(word, known) or nearest(word, list(self._option_string_actions))
            )  # those of vLLM, too
            if word.partition(" ")[0] in known:  # in a list of arguments, as containers have it
                advice = "; an option and its value are two arguments"
            raise ConfigurationError(f"unknown {what} {word!r}{advice} (see {self.prog} --help)")
        return args

    def _with_hyphens(self, argument: str) -> str:
        """Return `--max-tokens` for `--max_tokens`, as vLLM and configuration files spell it."""
        option, equals, value = argument.partition("=")
        spelt = option.replace("_", "-")
        return f"{spelt}{equals}{value}" if spelt in self._option_string_actions else argument

    def _flag_alone(self, argument: str) -> str:
        """Return `--x` for `--x=True` and `--no-x` for `--x=False`, as command lines for vLLM have them."""
        option, equals, value = argument.partition("=")
        known = self._option_string_actions
        if not equals or option not in known or known[option].nargs != 0:
            return argument
        flag = {"true": option, "false": option.replace("--", "--no-", 1)}.get(value.lower(), "")
        if flag not in known:
            raise ConfigurationError(f"{option} is {value!r}; it needs no value (see {self.prog} --help)")
        return flag

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Return the options that `option_string` may be, as argparse asks for: none that it only begins.

        Without this `-p` would be short for `-pp`, whatever `allow_abbrev` says.
        """
        return [found for found in super()._get_option_tuples(option_string) if option_string.startswith(found[1])]

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        if (found := _NO_NUMBER.fullmatch(message)) is not None:
            option, kind, given = found.groups()
            message = f"{option} is {given}; it must be {'an integer' if kind == 'int' else 'a number'}"
        raise ConfigurationError(f"{message} (see {self.prog} --help)")


def add_settings(parser: Parser, *sections: str, without: Collection[str] = ()) -> None:
    """Add `--config` and one option for each setting of `sections`, grouped by section in `--help`."""
    text = "TOML file with settings; the keys are the options' names with underscores."
    parser.add_argument("--config", metavar="FILE", type=Path, help=text)
    groups = {name: parser.add_argument_group(section_title(name)) for name in sections}
    for item in settings():
        if item.section in groups and item.name not in without:
            _add_option(groups[item.section], item)


def add_vllm_options(parser: Parser) -> None:
    """Add the options of vLLM that are no settings here, without help: docs/reference/vllm.md has them."""
    own = {item.name for item in settings()}
    for row in vllm_options().values():
        dest = row.name if row.name in own else f"{_VLLM}{row.name}"
        for option, const in _spellings(row):
            if option in parser._option_string_actions:
                continue
            about: dict[str, Any] = {"dest": dest, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
            if row.kind == "flag":
                parser.add_argument(option, action="store_const", const=const, **about)
            else:
                parser.add_argument(option, nargs="+" if row.kind == "values" else None, **about)


def _spellings(row: VllmOption) -> list[tuple[str, str]]:
    """Return the spellings of an option, each with the value that it has as a flag."""
    if row.kind == "flag":
        return [(row.option, "true"), (f"--no-{row.option.removeprefix('--')}", "false")]
    return [(row.option, "")] + ([(row.short, "")] if row.short else [])


def section_title(section: str) -> str:
    """Return the title of a section of the settings."""
    return str(getattr(Config(), section).__doc__).rstrip(".")


def help_text(item: Setting) -> str:
    """Return an option's help: its effect, its choices and its default."""
    text = item.negated or item.help
    if item.choices:
        text += f" One of {', '.join(map(str, item.choices))}."
    default = default_text(item)
    return f"{text} Default {default}." if default and item.kind != "flag" else text


def default_text(item: Setting) -> str:
    """Return a setting's default as a user would write it, or an empty string where it has none."""
    if item.default is None or item.default == ():
        return ""
    if item.kind == "flag":
        return str(item.default).lower()
    if item.kind == "bytes" and isinstance(item.default, int):
        return f"{item.default // MIB}MiB" if item.default % MIB == 0 else f"{item.default // KIB}KiB"
    return str(item.default)


def print_note(text: str) -> None:
    """Tell the user that an option acts otherwise than expected."""
    print(f"quire: warning: {text}", file=sys.stderr)


def read_config(args: argparse.Namespace, model: str | None = None, note: Callable[[str], None] = print_note) -> Config:
    """Merge options, environment, file and defaults; `model` is the positional MODEL where a command has one.

    `note` is called with a line for each option of vLLM that acts otherwise here.

    Raises:
        ConfigurationError: see `app.config.settings.load_config`; also a MODEL given twice.
    """
    given = vars(args)
    options = {item.name: _value(item, given[item.name]) for item in settings() if item.name in given}
    foreign = {name.removeprefix(_VLLM): value for name, value in given.items() if name.startswith(_VLLM)}
    options, notes = translate({**options, **foreign})
    for text in [*notes, *misspelt_variables(os.environ)]:
        note(text)
    if model is not None:
        options["model"] = one_model(model, given.get("model"))
    return load_config(options, os.environ, given.get("config"))


def one_model(positional: str | None, option: str | None) -> str | None:
    """Return the model of a command line, by its positional MODEL or by `--model`; None if it has neither.

    Raises:
        ConfigurationError: it has two.
    """
    if positional is not None and option not in (None, positional):
        raise ConfigurationError(
            f"the model is given twice: {positional} and --model {option}; leave one out", param="model"
        )
    return option if positional is None else positional


def _add_option(group: argparse._ArgumentGroup, item: Setting) -> None:
    about: dict[str, Any] = {
        "dest": item.name,
        "default": argparse.SUPPRESS,
        "help": help_text(item).replace("%", "%%"),
    }
    if item.kind == "flag":
        const = "false" if item.default else "true"
        group.add_argument(*_SHORT.get(item.name, ()), item.option, action="store_const", const=const, **about)
        if item.default:  # as it is by default, or, where a device has another default, as it would not be
            positive = f"--{item.name.replace('_', '-')}"
            group.add_argument(positive, action="store_const", const="true", **about | {"help": argparse.SUPPRESS})
    else:
        action = "append" if item.kind == "list" else "store"
        group.add_argument(item.option, action=action, metavar=_METAVARS[item.kind], **about)


def _value(item: Setting, given: str | list[str]) -> object:
    if isinstance(given, list):
        return tuple(part for text in given for part in item.parse(text))  # type: ignore[attr-defined]
    return item.parse(given)


def engine_settings(config: Config) -> dict[str, Any]:
    """Return the settings of model, sampling, cache and scheduler as keyword arguments of `LLM`."""
    sections = (config.model, config.sampling, config.cache, config.scheduler)
    return {field.name: getattr(section, field.name) for section in sections for field in dataclasses.fields(section)}


def add_sampling(parser: Parser) -> None:
    """Add one option per sampling parameter, and `--stop`."""
    group = parser.add_argument_group("Sampling")
    for name, parameter in _SAMPLING.items():
        kind: type = int if parameter.bounds is not None and parameter.bounds.is_integer else float
        text = f"{parameter.help}{_NOT_GIVEN.get(name, '')}"
        group.add_argument(f"--{name.replace('_', '-')}", dest=f"sampling_{name}", type=kind, metavar="N", help=text)
    group.add_argument("--stop", action="append", metavar="TEXT", help="End the output before this text; repeatable.")
    group.add_argument(
        "--no-repetition-stop", action="store_true", help="Let an answer go on that repeats itself; by default it ends."
    )


def read_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given options, as fields of `SamplingParams` and of the API's request bodies."""
    given = {name: getattr(args, f"sampling_{name}") for name in _SAMPLING} | {"stop": args.stop}
    if args.no_repetition_stop:
        given["repetition_stop"] = False
    return {name: value for name, value in given.items() if value is not None}

"""What other programs call the commands and options of the command line, for advice to who types those."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_COMMANDS: Mapping[str, str] = {
    "run": "`quire chat MODEL` answers in this terminal, `quire serve MODEL` serves a model",
    "start": "`quire serve MODEL` serves a model",
    "list": "`quire models` lists the models on this machine",
    "ls": "`quire models` lists the models on this machine",
    "rm": "`quire models rm NAME` deletes a model",
    "download": "`quire pull NAME` downloads a model",
    "version": "`quire --version` prints the version",
    "-v": "`quire --version` prints the version",
    "-V": "`quire --version` prints the version",
}
# Each with those that mean the same, in the order of preference: a command has one of them.
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "-p": ("--port",),
    "--temperature": ("--default-temperature",),
    "--temp": ("--temperature", "--default-temperature"),
    "--top-p": ("--default-top-p",),
    "--top-k": ("--default-top-k",),
    "--max-tokens": ("--default-max-tokens",),
    "--n-predict": ("--max-tokens", "--default-max-tokens"),
    **dict.fromkeys(
        ("-c", "--ctx-size", "--context-length", "--context-size", "--n-ctx", "--num-ctx"), ("--max-model-len",)
    ),
}
_MODEL_OPTIONS = ("-m", "--hf-repo", "-hf")


def command_advice(name: str) -> str:
    """Return `; ...` with what the command of another program is here, else an empty string. Any thread."""
    return f"; {_COMMANDS[name]}" if name in _COMMANDS else ""


def option_advice(given: str, known: Collection[str], *, model_is_argument: bool = True) -> str:
    """Return the same for an option; `known` are those of the command, whose first argument may be the model.

    Any thread.
    """
    if given in _MODEL_OPTIONS and "--model" in known:
        return (
            "; the model is the first argument, without an option" if model_is_argument else "; the option is --model"
        )
    found = [option for option in _OPTIONS.get(given, ()) if option in known]
    return f"; the option is {found[0]}" if found else ""

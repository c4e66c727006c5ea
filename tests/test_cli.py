"""The command line: help, options, and errors as one line and an exit code."""

import argparse
import io
import re

import pytest

from app import cli
from app.commands import options, serve
from app.config.settings import settings
from app.contract.errors import CannotStart, ConfigurationError, EngineFailed, InvalidValue, ModelRefused

SERVER_RUN = "app.server.run.serve"


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Run a command line in this process: exit code, stdout, stderr."""
    try:
        code = cli.main(arguments)
    except SystemExit as exit:  # argparse ends --help this way
        code = int(exit.code or 0)
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    for name, summary in cli.COMMANDS.items():
        assert name in out
        assert summary in out


@pytest.mark.parametrize("command", ["serve", "models rm"])
def test_help_of_a_command_is_that_of_its_option(capsys, command):
    assert run(capsys, "help", *command.split()) == run(capsys, *command.split(), "--help")


def test_help_of_an_unknown_command_names_the_nearest(capsys):
    code, _, err = run(capsys, "help", "srve")
    assert code == 2 and "unknown command 'srve'; did you mean 'serve'" in err


@pytest.mark.parametrize("arguments", [("generate",), ("generate", "-")])
def test_a_prompt_in_a_pipe_has_no_line_end(capsys, monkeypatch, arguments):
    """As `echo` adds it; otherwise the answer would be another one."""
    options = ("--temperature", "0", "--max-tokens", "12")
    expected = run(capsys, "generate", "What is Quire?", *options)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"What is Quire?\n"), "utf-8"))
    assert run(capsys, *arguments, *options) == expected and expected[0] == 0


def test_columns_of_the_command_list_are_separated(capsys):
    _, out, _ = run(capsys, "--help")
    for name, summary in cli.COMMANDS.items():
        assert f"  {name}  " in out and f"  {summary}" in out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_columns_of_the_help_of_a_command_are_separated(capsys, name):
    """The help of an option is two spaces after it, or on the next line."""
    _, out, _ = run(capsys, name, "--help")
    parser, _ = cli.command_parser(name)
    for action in parser._actions:
        if action.help not in (None, argparse.SUPPRESS) and action.option_strings:
            word = action.help.split()[0].replace("%%", "%")
            option = action.option_strings[-1]
            assert re.search(rf"{re.escape(option)}\b[^\n]*?(  |\n +){re.escape(word)}", out), option


def test_the_help_of_negated_options_says_disable():
    negated = [item for item in settings() if item.option.startswith("--no-")]
    assert negated
    for item in negated:
        assert "disable" in options.help_text(item).lower() and item.help not in options.help_text(item), item.option
    assert not any(item.negated for item in settings() if item not in negated)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(capsys, name):
    code, out, err = run(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: quire {name}")


def test_serve_help_lists_every_setting_under_its_section(capsys):
    _, out, _ = run(capsys, "serve", "--help")
    for item in settings():
        assert item.option in out
        assert options.section_title(item.section) in out


def test_version(capsys):
    assert run(capsys, "--version")[1].startswith("quire ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("srve",), "'serve'"),
        (("--verison",), "unknown option"),
        (
            ("run", "smollm2"),
            "'run'; `quire chat MODEL` answers in this terminal, `quire serve MODEL` serves a model (see",
        ),
        (("list",), "`quire models` lists"),
        (("ls",), "`quire models` lists"),
        (("version",), "`quire --version` prints"),
        (("serve", "-p", "8124"), "unknown option '-p'; the option is --port (see"),
        (("serve", "guide", "-p", "8124"), "unknown option '-p'; the option is --port (see"),
        (("serve", "-d"), "unknown option '-d' (see"),
        (("serve", "-m", "guide"), "unknown option '-m'; the model is the first argument, without an option"),
        (("serve", "--temperature", "0"), "'--temperature'; the option is --default-temperature"),
        (("serve", "--ctx-size", "80"), "'--ctx-size'; the option is --max-model-len"),
        (("chat", "--context-length", "80"), "the option is --max-model-len"),
        (("generate", "hi", "--n-ctx=80"), "'--n-ctx'; the option is --max-model-len"),
        (("serve", "--prot", "80"), "'--port'"),
        (("serve", "--max-model", "80"), "'--max-model-len'"),
        (("generate", "hi", "--temp", "1"), "the option is --temperature"),
        (("bench", "throughput", "--tokenizer", "x"), "'--tokenizer' (see"),
        (("generate", "hi", "--model", "smollm"), "no folder or file smollm; did you mean 'smollm2'? Otherwise give"),
        (("pull", "smollm"), "did you mean 'smollm2'"),
        (("models", "rm", "smollm"), "did you mean 'smollm2'"),
        (("serve", "--api-key", ""), "--api-key is empty; give a list of strings"),
        (("serve", "--model", ""), "--model is empty; give"),
        (("doctor", "a", "--model", "b"), "twice"),
        (("serve", "--port"), "--port"),
        (("serve", "--port", "x"), "between 0 and 65535"),
        (("serve", "--port", "70000"), "between 0 and 65535"),
        (("serve", "--strict=1"), "--strict"),
        (("serve", "a", "b"), "'b'"),
        (("serve", "a", "--model", "b"), "twice"),
        (("serve", "--host", "0.0.0.0"), "--insecure"),
        (("serve", "--tensor-parallel-size", "2"), "one device"),
        (("serve", "--swap-space", "0.5"), "0.5"),
        (("serve", "guide", "--dtype auto"), "two arguments"),
        (("serve", "--config", "/nowhere.toml"), "/nowhere.toml"),
        (("serve", "--kv-cache-memory", "9" * 400), "--kv-cache-memory"),
        (("generate", "-m", "guide", "hi"), "unknown option '-m'; the option is --model"),
        (("chat", "What is Quire?"), "`quire generate` answers a question."),
        (
            ("generate", "hi", "--model", "https://huggingface.co/Qwen/Qwen3-0.6B"),
            "give the model's name, Qwen/Qwen3-0.6B.",
        ),
        (("generate", " "), "the prompt is empty; write a question"),
        (("generate", "x", "--temperature", "hot"), "--temperature"),
        (("generate", "x", "--temperature", "3"), "temperature"),
        (("chat", "--ws"), "--url"),
        (("chat", "--url", ""), "--url is ''; it must look like http://127.0.0.1:8000"),
        (("chat", "--url", "http://local host:8000"), "--url is 'http://local host:8000'; it must look like"),
        (("chat", "--api-key", "k"), "--api-key needs --url"),
        (
            ("chat", "--url", "x", "--device", "cpu"),
            "--device is for a model in this process, and --url names a server",
        ),
        (("chat", "--url", "x", "--config", "x.toml"), "--config is for a model in this process"),
        (("chat", "a", "--model", "b"), "twice"),
        (("chat", "--url", "x", "a", "--model", "b"), "twice"),
        (("bench",), "BENCHMARK"),
        (("bench", "thruput"), "one of throughput, serve"),
        (("bench", "throughput", "--shape", "s13"), "'s135'"),
        (("bench", "throughput", "--repeat", "0"), "--repeat"),
        (("bench", "throughput", "--output", "/"), "--output / cannot be written to: Is a directory"),
        (("bench", "throughput", "--output", "/nowhere/x.json"), "cannot be written to: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_invalid_command_line_is_one_line_and_exits_with_2(capsys, arguments, expected):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("quire: error: ")
    assert expected in err


def test_the_error_of_an_invalid_variable_names_the_variable(capsys, monkeypatch):
    monkeypatch.setenv("QUIRE_PORT", "x")
    code, _, err = run(capsys, "serve")
    assert (code, err) == (2, "quire: error: QUIRE_PORT is 'x'; it must be an integer between 0 and 65535.\n")


@pytest.mark.parametrize("variable", ["QUIRE_API_KEY", "QUIRE_PORT", "QUIRE_MODEL", "QUIRE_ALLOWED_HOSTS"])
def test_an_empty_variable_is_called_empty(capsys, monkeypatch, variable):
    monkeypatch.setenv(variable, " ")
    code, _, err = run(capsys, "serve")
    assert code == 2
    assert err.startswith(f"quire: error: {variable} is empty; set it to ") and err.endswith(", or unset it.\n")


def test_the_help_of_bench_shows_both_benchmarks(capsys):
    out = run(capsys, "bench", "--help")[1]
    assert out.startswith("usage: quire bench throughput [OPTIONS]\n       quire bench serve URL [OPTIONS]\n")


@pytest.mark.parametrize("line", ["api_key = [1]", "allowed_hosts = [1]", "allowed_origins = [[]]"])
def test_a_list_with_other_values_than_strings_is_rejected(capsys, tmp_path, line):
    file = tmp_path / "quire.toml"
    file.write_text(line)
    code, out, err = run(capsys, "serve", "--config", str(file))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert f"{line.split()[0]} is " in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError, 2),
        (ModelRefused, 2),
        (InvalidValue, 2),
        (EngineFailed, 70),
        (CannotStart, 75),
    ],
)
def test_each_failure_has_its_exit_code(capsys, monkeypatch, error, code):
    def fail(*args: object, **kwargs: object) -> None:
        raise error("It did\nnot work.")

    monkeypatch.setattr(SERVER_RUN, fail)
    assert run(capsys, "serve") == (code, "", "quire: error: It did not work.\n")


def test_internal_errors_are_raised(capsys, monkeypatch):
    monkeypatch.setattr(SERVER_RUN, lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(capsys, "serve")


def parsed(*arguments: str, model: str | None = None):
    """The configuration of a `quire serve` command line."""
    parser = options.Parser("quire serve", "")
    serve.add_options(parser)
    return options.read_config(parser.parse(arguments), model)


def test_options_override_the_environment_and_the_file(tmp_path, monkeypatch):
    file = tmp_path / "quire.toml"
    file.write_text("port = 1\nmax_queue = 1")
    monkeypatch.setenv("QUIRE_PORT", "2")
    monkeypatch.setenv("QUIRE_MAX_QUEUE", "2")
    config = parsed("--config", str(file), "--port", "3")
    assert (config.server.port, config.scheduler.max_queue) == (3, 2)


def test_lists_are_extended_by_repetition_and_by_commas():
    assert parsed("--api-key", "a", "--api-key", "b,c").server.api_key == ("a", "b", "c")


@pytest.mark.parametrize(("argument", "is_on"), [("--speculative-grammar", True), ("--no-speculative-grammar", False)])
def test_what_is_on_by_default_can_be_asked_for(monkeypatch, argument, is_on):
    monkeypatch.setenv("QUIRE_SPECULATIVE_GRAMMAR", "false" if is_on else "true")
    assert parsed(argument).scheduler.speculative_grammar is is_on


def test_flags_need_no_value():
    assert parsed("--strict").server.strict is True
    assert parsed().server.strict is False


@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_quiet_has_a_short_form_and_applies_to_console_and_log(monkeypatch, option):
    seen = []
    monkeypatch.setattr(
        SERVER_RUN, lambda config, console, writer, **others: seen.append((config.server.quiet, console))
    )
    assert cli.main(["serve", option]) == 0
    ((is_quiet, console),) = seen
    assert is_quiet and console._is_quiet


def test_what_an_option_of_vllm_changes_is_handed_to_the_server_to_be_logged(monkeypatch):
    seen = []
    monkeypatch.setattr(SERVER_RUN, lambda config, console, writer, timings, notes: seen.extend(notes))
    assert cli.main(["serve", "--trust-remote-code", "--tensor-parallel-size", "1", "--dtype", "half"]) == 0
    assert [note.split()[0] for note in seen] == ["trust_remote_code"]


def test_other_commands_print_what_a_value_of_vllm_changes(capsys):
    args = options.Parser("quire plan", "")
    options.add_settings(args, "cache")
    options.read_config(args.parse(["--kv-cache-dtype", "fp16"]))
    assert capsys.readouterr().err.startswith("quire: warning: kv_cache_dtype is fp16: ")


def test_the_log_format_can_be_set_in_the_environment(monkeypatch):
    assert parsed().server.log_format == "auto"
    monkeypatch.setenv("QUIRE_LOG_FORMAT", "text")
    assert parsed().server.log_format == "text"
    assert parsed("--log-format", "json").server.log_format == "json"


def test_the_model_can_be_given_without_an_option():
    assert parsed("some/model", model="some/model").model.model == "some/model"
    assert parsed().model.model == "guide"


@pytest.mark.parametrize("argument", ["--max_num_seqs=5", "--max-num_seqs=5"])
def test_options_may_be_spelt_with_underscores(argument):
    assert parsed(argument).scheduler.max_num_seqs == 5
    assert parsed("--tensor_parallel_size", "1", "--enable_prefix_caching=True", "a_b").cache.enable_prefix_caching


def test_only_options_lose_their_underscores():
    assert parsed("--served_model_name", "a_b").model.served_model_name == "a_b"
    parser = options.Parser("quire generate", "")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("prompt")
    assert parser.parse(["--max_tokens", "5", "--", "--max_tokens"]).prompt == "--max_tokens"


@pytest.mark.parametrize("word", ["maybe", "", "1"])
def test_a_value_of_a_flag_is_rejected_in_a_sentence(capsys, word):
    code, _, err = run(capsys, "serve", f"--enable-prefix-caching={word}")
    assert (code, err) == (
        2,
        f"quire: error: --enable-prefix-caching is {word!r}; it needs no value (see quire serve --help)\n",
    )


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("--enable-auto-tool-choise", "--enable-auto-tool-choice"),
        ("--disable-log-request", "--disable-log-requests"),
        ("--max_num_seq", "--max-num-seqs"),
    ],
)
def test_a_misspelt_option_of_vllm_has_a_suggestion(capsys, word, option):
    assert f"did you mean '{option}'" in run(capsys, "serve", word)[2]

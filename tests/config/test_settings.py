"""Settings: one definition, four sources, and errors that name the setting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.checks import is_loopback
from app.config.settings import Config, load_config, make_config, misspelt_variables, settings
from app.contract.errors import ConfigurationError

NAMES = [item.name for item in settings()]


def by_name(name: str):
    """The setting called `name`."""
    return next(item for item in settings() if item.name == name)


def test_defaults_are_a_valid_configuration():
    assert make_config({}) == Config()


@pytest.mark.parametrize("item", list(settings()), ids=lambda item: item.name)
def test_every_setting_accepts_its_default_and_has_help(item):
    assert item.check(item.default) == item.default
    assert item.help.endswith(".")
    prefix = "--no-" if item.default is True else "--"
    assert item.option == prefix + item.name.replace("_", "-")
    assert item.variable == "QUIRE_" + item.name.upper()
    assert item.allowed()


def test_names_are_unique():
    assert len(NAMES) == len(set(NAMES))


def test_options_override_the_environment_the_file_and_defaults(tmp_path):
    file = tmp_path / "quire.toml"
    file.write_text('port = 1\nmax_queue = 1\nmax_num_seqs = 1\nserved_model_name = "m"')
    environ = {"QUIRE_PORT": "2", "QUIRE_MAX_QUEUE": "2", "OTHER": "x"}
    config = load_config({"port": 3}, environ, file)
    assert (config.server.port, config.scheduler.max_queue, config.scheduler.max_num_seqs) == (3, 2, 1)
    assert config.model.served_model_name == "m"
    assert config.server.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_model_length = 1", r"Unknown setting 'max_model_length'; did you mean 'max_model_len'"),
        ("[server]\nport = 1", r"Unknown setting 'server'; it is a table: settings stand in no table"),
        ("port = 70000", r"port is 70000; it must be"),
        ("port =", r"is not valid TOML"),
    ],
)
def test_an_error_of_a_file_names_the_file(tmp_path, text, says):
    file = tmp_path / "quire.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=says) as caught:
        load_config({}, {}, file)
    assert str(file) in caught.value.message


def test_an_unknown_name_is_rejected_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"Unknown setting 'max_model_length'.*'max_model_len'"):
        make_config({"max_model_length": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("port", True),
        ("port", "80"),
        ("port", None),
        ("dtype", "int4"),
        ("block_size", 17),
        ("drain_timeout", float("nan")),
        ("drain_timeout", float("inf")),
        ("drain_timeout", -1),
        ("drain_timeout", 10**400),
        ("seed", 2**63),
        ("kv_cache_memory", "9" * 400),
        ("kv_cache_memory", "1" + "0" * 30),
        ("api_key", [1]),
        ("api_key", ("k", None)),
        ("allowed_hosts", [1]),
        ("allowed_origins", [["a"]]),
        ("allowed_origins", ["app.example"]),
        ("allowed_origins", ["https://app.example/path"]),
        ("allowed_origins", ["*"]),
        ("strict", 1),
        ("api_key", "k"),
        ("max_request_bytes", "4 parsecs"),
        ("max_request_bytes", 1),
        ("journal", "a\0b"),
        ("api_key", ("k", "a\0b")),
    ],
)
def test_an_invalid_value_is_rejected_with_its_name(name, value):
    with pytest.raises(ConfigurationError, match=name.replace("_", "[-_]")) as caught:
        make_config({name: value})
    assert caught.value.param == name
    assert len(caught.value.message) < 400


def test_all_origins_are_allowed_with_a_key_only():
    assert make_config({"allowed_origins": ["*"], "api_key": ["k"]}).server.allowed_origins == ("*",)
    with pytest.raises(ConfigurationError, match="any web page"):
        make_config({"allowed_origins": ["*"]})


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("4KiB", 4096), ("4k", 4096), ("1.5MiB", 3 * 2**19), ("2 GiB", 2**31), ("2GB", 2**31)],
)
def test_sizes_have_binary_units(text, value):
    assert by_name("max_request_bytes").parse(text) == value


def test_flags_and_lists_are_read_from_text():
    assert by_name("strict").parse("YES") is True
    assert by_name("strict").parse("0") is False
    assert by_name("api_key").parse(" a, b ,,c") == ("a", "b", "c")
    with pytest.raises(ConfigurationError, match="true or false"):
        by_name("strict").parse("perhaps")


def test_a_file_may_contain_sizes_lists_and_integer_seconds(tmp_path):
    file = tmp_path / "quire.toml"
    file.write_text('max_request_bytes = "1MiB"\napi_key = ["a", "b"]\ndrain_timeout = 5')
    server = load_config({}, {}, file).server
    assert (server.max_request_bytes, server.api_key, server.drain_timeout) == (2**20, ("a", "b"), 5.0)


def test_a_number_too_long_to_print_is_rejected():
    with pytest.raises(ConfigurationError, match="kv_cache_memory is too large"):
        make_config({"kv_cache_memory": 10**5000})


@pytest.mark.parametrize(
    ("variable", "text"),
    [("QUIRE_PORT", "x"), ("QUIRE_PORT", "70000"), ("QUIRE_KV_CACHE_MEMORY", "9" * 400), ("QUIRE_DTYPE", "int4")],
)
def test_an_invalid_variable_is_rejected_with_its_name(variable, text):
    with pytest.raises(ConfigurationError, match=f"^{variable} is .*it must be") as caught:
        load_config({}, {variable: text})
    assert caught.value.param == variable.removeprefix("QUIRE_").lower()


def test_an_invalid_size_in_a_file_is_rejected_with_its_key(tmp_path):
    file = tmp_path / "quire.toml"
    file.write_text('kv_cache_memory = "4 parsecs"')
    with pytest.raises(ConfigurationError, match=r"quire\.toml: kv_cache_memory is '4 parsecs'"):
        load_config({}, {}, file)


@pytest.mark.parametrize(
    "text", ["port = ", "\xff", "[server]\nport = 1", "a = " + "[" * 10_000, "port = " + "9" * 5000]
)
def test_an_invalid_file_is_rejected(tmp_path, text):
    file = tmp_path / "quire.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError):
        load_config({}, {}, file)


def test_a_missing_file_is_rejected_with_its_name(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        load_config({}, {}, tmp_path / "nowhere.toml")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_listening_beyond_loopback_needs_a_key_or_insecure(host):
    with pytest.raises(ConfigurationError, match="--insecure"):
        make_config({"host": host})
    assert make_config({"host": host, "insecure": True}).server.host == host
    assert make_config({"host": host, "api_key": ("k",)}).server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_listening_on_loopback_needs_no_key(host):
    assert is_loopback(host)
    assert make_config({"host": host}).server.host == host


def test_an_empty_key_is_rejected():
    with pytest.raises(ConfigurationError, match="api_key"):
        make_config({"api_key": ("good", " ")})


def test_max_num_batched_tokens_must_be_at_least_max_num_seqs():
    with pytest.raises(ConfigurationError, match="max_num_seqs"):
        make_config({"max_num_seqs": 64, "max_num_batched_tokens": 32})


@given(
    st.dictionaries(st.sampled_from(NAMES), st.one_of(st.integers(), st.floats(), st.text(), st.booleans(), st.none()))
)
def test_any_values_make_a_configuration_or_an_error_with_a_name(values):
    try:
        config = make_config(values)
    except ConfigurationError as error:
        assert error.param in NAMES
    else:
        assert isinstance(config, Config)


def test_an_empty_list_is_rejected():
    """`--api-key "$UNSET"` must not start a server without a key."""
    for text in ("", " , "):
        with pytest.raises(ConfigurationError, match="QUIRE_API_KEY"):
            load_config({}, {"QUIRE_API_KEY": text})


@pytest.mark.parametrize("value", ["hush", ("hush\udce9",), [1, "hush"]])
def test_errors_do_not_show_keys(value):
    with pytest.raises(ConfigurationError, match="api_key is given; it must be a list") as caught:
        make_config({"api_key": value})
    assert "hush" not in caught.value.message


def test_variables_that_are_nearly_those_of_settings_are_told():
    given = {"QUIRE_MAX_NUM_SEQ": "4", "QUIRE_EXAMPLES": "all", "QUIRE_PORT": "1", "QUIRE_HOME": "/", "MAX_QUEUE": "2"}
    told = misspelt_variables(given)
    assert told == ["the variable QUIRE_MAX_NUM_SEQ has no effect; did you mean 'MAX_NUM_SEQS' behind QUIRE_"]

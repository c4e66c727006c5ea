"""The folder of what is remembered."""

from pathlib import Path

from app.runtime.state_folder import home_state


def test_the_variable_names_the_base(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert home_state() == Path("/somewhere/quire")


def test_by_default_it_is_in_the_home(monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert home_state() == Path("/home/me/.local/state/quire")


def test_without_a_home_there_is_none(monkeypatch):
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert home_state() is None

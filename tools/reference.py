"""Writes what is made from the code, pages of docs/reference and a module of the page: `python -m tools.reference`.

A test compares them with the output of this module.
"""

from __future__ import annotations

import argparse
import inspect
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from app import cli
from app.checkpoint.names import resolve
from app.checkpoint.text_files import FolderText
from app.commands.bench import BENCHMARKS
from app.commands.options import default_text, section_title
from app.config.setting import Setting
from app.config.settings import make_config, settings
from app.contract import errors
from app.engine.thread import EngineThread
from app.observe.console import Console
from app.observe.log_writer import LogWriter
from app.runtime.start_timings import StartTimings
from app.server.run import make_server
from app.text.entry.frontend import TextFrontend
from app.text.grammar.cache import GrammarCache
from tools import fields_table
from tools.examples_page import examples_page
from tools.limits_page import limits_page
from tools.live_page import live_page
from tools.marked_part import with_part
from tools.models_page import models_page
from tools.page_parameters import page_parameters
from tools.sampling_page import sampling_page
from tools.vllm_page import vllm_page
from tools.websocket_page import websocket_page

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
PARAMETERS_JS = ROOT / "app" / "static" / "sampling" / "parameters.js"
MADE = "<!-- Made by `make docs` from {source}; do not edit. -->\n\n"
WIDTH = 100


def settings_page() -> str:
    """Return the page of all settings."""
    lines = [_SETTINGS_HEAD]
    section = ""
    for item in settings():
        if item.section != section:
            section = item.section
            lines += [f"## {section_title(section)}\n", "| setting | default | what it does |", "|---|---|---|"]
        lines.append(_setting_row(item))
    return MADE.format(source="app/config/settings.py") + "\n".join(lines).replace("|\n##", "|\n\n##") + "\n"


_SETTINGS_HEAD = """# Settings

Every setting is a command-line option, an environment variable and a key of the `--config` file. Options take
precedence over the environment, the environment over the file, the file over the defaults. Sizes accept the units
`KiB`, `MiB` and `GiB`. A list is a repeated option, a comma-separated variable, or a list in the file. Unknown options
and keys are errors. `LLM(...)` accepts the settings of the first four sections.

```toml
# quire.toml, for `quire serve --config quire.toml`
max_num_seqs = 32
kv_cache_memory = "2GiB"
```
"""


def _setting_row(item: Setting) -> str:
    default = f"`{default_text(item)}`" if default_text(item) else "-"
    needs_range = item.kind not in ("text", "flag", "list") or item.choices
    allowed = f" ({item.allowed()})" if needs_range else ""
    return f"| `{item.option}`<br>`{item.variable}`<br>`{item.name}` | {default} | {item.help}{allowed} |"


def command_line_page() -> str:
    """Return the page of all commands with their `--help`."""
    parts = ["# Command line\n", f"```text\n{cli.usage()}\n```\n"]
    for name in cli.COMMANDS:
        parser, _ = cli.command_parser(name)
        parser.formatter_class = _PlainFormatter
        parts.append(f"## quire {name}\n\n```text\n{parser.format_help().rstrip()}\n```\n")
    parts.append(f"Benchmarks: {', '.join(f'`{name}`' for name in BENCHMARKS)}.\n")
    parts.append(_EXIT_CODES)
    return MADE.format(source="app/cli.py and app/commands") + "\n".join(parts)


class _PlainFormatter(argparse.HelpFormatter):
    """Help of one width on every terminal and without colours."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=WIDTH)


_EXIT_CODES = f"""## Exit codes

| code | meaning |
|---|---|
| 0 | success; a server was ended by SIGINT or SIGTERM; `quire plan` also if a model does not fit |
| 1 | `quire doctor`: a check failed; `python -m benchmarks`: slower than required, or a measurement failed |
| {cli.EXIT_REFUSED} | command line, configuration or model rejected |
| {cli.EXIT_ENGINE_FAILED} | the engine failed |
| {cli.EXIT_CANNOT_START} | impossible now, try again: port in use, not enough memory, a server that loads or is busy |
| {cli.EXIT_INTERRUPTED} | a terminal command was interrupted by Ctrl-C |

After the first SIGINT or SIGTERM a server finishes open requests for at most `--drain-timeout` seconds, and rejects new
ones with 503 `draining`. It ends within 4 s after the last of them, and at the latest 4 s after that time. A second
signal ends the process at once. SIGHUP is ignored: a server goes on when its terminal is closed.
"""


_KINDS_OF_ERRORS = (errors.RequestError, errors.ServiceUnavailable, errors.TimeLimitExceeded)


def errors_page() -> str:
    """Return the page of all error codes."""
    rows = set()
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if _is_listed(kind) and not any(_is_listed(base) and _wire(base) == _wire(kind) for base in kind.__mro__[1:]):
            paragraph, _, _ = str(kind.__doc__).partition("\n\n")
            rows.add((*_wire(kind), " ".join(paragraph.split())))
    lines = [f"| `{code}` | {http} | `{type}` | {when} |" for http, code, type, when in sorted(rows)]
    return MADE.format(source="app/contract/errors.py") + _ERRORS_HEAD + "\n".join(lines) + "\n"


def _is_listed(kind: type) -> bool:
    """Whether clients get this error, and not only what derives from it."""
    return issubclass(kind, (*_KINDS_OF_ERRORS, errors.EngineFailed)) and kind not in _KINDS_OF_ERRORS


def _wire(kind: Any) -> tuple[int, str, str]:
    """Return the values by which clients tell errors apart; one that looks like its base is no error of its own."""
    return kind.http_status, kind.code, kind.type


_ERRORS_HEAD = """# Errors

The body is OpenAI's, `{"error": {"message", "type", "param", "code"}}`: `code` is a string from this table, `param` the
path of the invalid field, or null. After the beginning of a stream, an error is a final `data: {"error": ...}` event
without `[DONE]`; on NDJSON it is the last line, on quire.v1 an `error` frame. Responses with status 503 have a
`Retry-After` header.

| code | HTTP | type | when |
|---|---|---|---|
"""


def metrics_page() -> str:
    """Return the page of all metrics."""
    lines = [
        f"| `{exposed_name(metric)}` | {metric.type} | {_labels(metric)} | {metric.documentation} |"
        for metric in metrics()
    ]
    return MADE.format(source="app/observe and the counts of the other rooms") + _METRICS_HEAD + "\n".join(lines) + "\n"


_METRICS_HEAD = """# Metrics

`GET /metrics` in Prometheus' text format. Metrics that vLLM has too have vLLM's names; the others begin with `quire_`,
those of the process, where there is a `/proc`, with `process_`. All have the labels `model_name` and `engine`, except
those of the process, and `vllm:admission_rejections_total`, which has no `engine` in vLLM either.

| metric | type | labels | meaning |
|---|---|---|---|
"""


def metrics() -> Iterator[Metric]:
    """Yield the metrics of a new server, put together as `quire serve` does."""
    config, timings, writer = make_config({}), StartTimings(), LogWriter()
    timings.end("import_server")
    text = TextFrontend.load(config.model, FolderText(resolve(config.model.model)))
    server = make_server(
        config, EngineThread(config), text, Console(io.StringIO()), writer, (), timings, GrammarCache(is_served=True)
    )
    writer.close()
    state = cast("Starlette", server.config.app).state
    state.request_log.write(path="/", status=200, reason=None)
    yield from text_string_to_metric_families(state.metrics.render().decode())


def exposed_name(metric: Metric) -> str:
    """Return a metric's name in `/metrics`."""
    return f"{metric.name}_total" if metric.type == "counter" else str(metric.name)


def _labels(metric: Metric) -> str:
    own = {name for sample in metric.samples for name in sample.labels} - {"model_name", "engine", "le"}
    return ", ".join(f"`{name}`" for name in sorted(own)) or "-"


def quire_v1_page() -> str:
    """Return the page of the WebSocket protocol."""
    return MADE.format(source="tools/websocket_page.py and app/streaming/chat_table.py") + websocket_page()


def quire_live_page() -> str:
    """Return the page of the live view's protocol."""
    return MADE.format(source="tools/live_page.py and app/contract/live_state.py") + live_page()


def all_limits_page() -> str:
    """Return the page of the limits that are not settings."""
    return MADE.format(source="tools/limits_page.py and the constants it names") + limits_page()


def all_examples_page() -> str:
    """Return the page of examples."""
    return MADE.format(source="tools/examples_page.py") + examples_page()


def all_vllm_page() -> str:
    """Return the page of vLLM's options."""
    return MADE.format(source="app/config/vllm_options.py and tools/vllm_page.py") + vllm_page()


def all_sampling_page() -> str:
    """Return the page of sampling defaults."""
    source = "app/config/recommendations.py and tools/sampling_page.py"
    return MADE.format(source=source) + sampling_page()


def all_models_page() -> str:
    """Return the page of the models that can be served."""
    source = "app/checkpoint/specs/registry.py, app/checkpoint/gguf/gguf_spec.py and tools/models_page.py"
    return MADE.format(source=source) + models_page()


def http_page() -> str:
    """Return the page of HTTP, written by hand, with its table of fields."""
    return with_part((FOLDER / "http.md").read_text(encoding="utf-8"), fields_table.BEGIN, fields_table.fields_table())


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "command-line.md": command_line_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "websocket.md": quire_v1_page,
    "live.md": quire_live_page,
    "limits.md": all_limits_page,
    "examples.md": all_examples_page,
    "vllm.md": all_vllm_page,
    "sampling-defaults.md": all_sampling_page,
    "models.md": all_models_page,
    "http.md": http_page,
}
"""The pages, and the functions that make them."""


def main() -> None:
    """Write all pages."""
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    PARAMETERS_JS.write_text(page_parameters(), encoding="utf-8")
    print("wrote app/static/sampling/parameters.js")


if __name__ == "__main__":
    main()

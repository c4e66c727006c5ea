"""Serves the scripted model as `quire serve` serves any: `python -m tools.agents.scripted_server PORT FOLDER`.

Everything but the engine is the product: its routes, its limits, its tokenizer and the parser of its calls. The folder
gets `requests.jsonl`, the shapes of all requests, and `prompts`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from app.checkpoint.hub import smollm2
from app.checkpoint.inspection import inspect_at
from app.checkpoint.names import resolve
from app.config.settings import Config, make_config
from app.contract.engine_status import ModelInfo
from app.engine.thread import EngineThread
from app.observe.console import Console
from app.observe.log_output import JSON, configure_logging
from app.observe.log_writer import LogWriter
from app.runtime.start_timings import StartTimings
from app.server.lifecycle import Server
from app.server.run import make_server
from app.server.sockets import listen, urls_of
from app.text.entry.frontend import TextFrontend
from tools.agents.prompt_log import PromptLog
from tools.agents.recorder import Recorder
from tools.agents.script import answer_to
from tools.agents.scripted_model import ScriptedModel

CONTEXT = 32_768
NAME = "scripted"
TEMPLATE = Path(__file__).with_name("scripted.jinja")
REQUESTS, PROMPTS = "requests.jsonl", "prompts"


def config_for(port: int) -> Config:
    """Return the settings: the tokenizer of smollm2, if it is on this machine, else that of guide."""
    model = smollm2.NAME if smollm2.is_there() else "guide"
    return make_config(
        {
            "model": model,
            "served_model_name": NAME,
            "chat_template": str(TEMPLATE),
            "port": port,
        }
    )


def make(config: Config, folder: Path, writer: LogWriter, urls: Sequence[str]) -> Server:
    """Return a server over the scripted model, whose application is recorded in the folder; nothing runs yet."""
    files = inspect_at(resolve(config.model.model), config.model)
    text = TextFrontend.load(config.model, files.text)
    info = ModelInfo(NAME, "0", CONTEXT, CONTEXT, files.spec.vocab_size)
    model = ScriptedModel(info, text.tokenizer, answer_to, PromptLog(folder / PROMPTS))
    # The server uses only those methods of an engine thread that the model has.
    thread = cast("EngineThread", model)
    server = make_server(config, thread, text, Console(writer.stream(sys.stdout)), writer, urls, StartTimings())
    server.config.app = Recorder(server.config.app, folder / REQUESTS)
    return server


def main(arguments: list[str]) -> None:
    """Serve until a signal ends the process."""
    port, folder = int(arguments[0]), Path(arguments[1])
    config, writer = config_for(port), LogWriter()
    configure_logging(sys.stderr, writer, JSON)
    listener = listen(config.server.host, port, config.server)
    make(config, folder, writer, urls_of(listener)).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1:])

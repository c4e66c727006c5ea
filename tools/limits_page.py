"""The page of limits, made from the constants in the code."""

from __future__ import annotations

from app.api.body import grammar_trials, json_body, parse_chat, prompts, schemas, template_options, tool_messages
from app.api.body.parse_embeddings import MAX_INPUTS
from app.api.body.parse_request import MAX_SMALL_BYTES
from app.api.http.context import MAX_LONG_WAITING
from app.api.responses import response_memory, responses_protocol
from app.api.responses.item_kinds import MAX_ITEMS
from app.api.responses.response_fields import MAX_DESCRIPTION_CHARS, MAX_ECHO_CHARS, MAX_KEY_CHARS, MAX_PAIRS
from app.api.responses.response_tools import MAX_CHOICE_BYTES
from app.checkpoint import text_files
from app.config.settings import Config
from app.contract import admission
from app.contract import sampling_params as params
from app.server.guard import ConnectionLimits
from app.server.run import PING_S
from app.server.sockets import unacknowledged_timeout_s
from app.streaming import chat_actions, chat_protocol
from app.streaming.kept import kept_streams, live_stream
from app.text.calls import tools
from app.text.grammar import gbnf, number_digits, schema_keywords
from app.text.grammar import grammar_sources as sources
from app.text.grammar.cache import TOO_COSTLY_A_MINUTE
from app.text.grammar.children.trial import GrammarLimits
from app.text.reading import json_text
from app.text.template import template_allowance, template_trial
from app.text.tokens import tokenizer

_HEAD = """# Limits

Requests and files that exceed one of these limits are rejected early, so that they do not slow down others. Limits that
are settings, such as `--max-request-bytes`, are in [settings](settings.md).

"""


def limits_page() -> str:
    """Return the page."""
    sections = {
        "Connections": _connections(),
        "Bodies": _bodies(),
        "Fields": _fields(),
        "Resumable answers": _resumable(),
        "quire.v1": _quire_v1(),
        "WebSocket of responses": _responses(),
        "Models": _models(),
    }
    return _HEAD + "\n".join(f"## {title}\n\n{_table(rows)}" for title, rows in sections.items())


def _table(rows: dict[str, str]) -> str:
    lines = "".join(f"| {what} | {limit} |\n" for what, limit in rows.items())
    return f"| what | at most |\n|---|---|\n{lines}"


def _connections() -> dict[str, str]:
    limits = ConnectionLimits()
    return {
        "request line and headers": f"{limits.max_head_bytes:,} bytes, {limits.max_headers} headers",
        "URL": f"{limits.max_url_bytes:,} bytes",
        "head of a WebSocket handshake": f"{limits.max_handshake_bytes:,} bytes",
        "time for the head, for the body": f"{limits.head_timeout_s:g} s, {limits.body_timeout_s:g} s",
        "chunks of a body, fragments of a WebSocket message": f"{limits.max_chunks:,}, {limits.max_fragments:,}",
    }


def _bodies() -> dict[str, str]:
    return {
        "depth of JSON": f"{json_body.MAX_DEPTH} levels",
        "keys of one object": f"{json_body.MAX_KEYS}",
        "objects, lists and strings": f"{json_body.MAX_PARTS:,}",
        "values of any kind": f"{json_body.MAX_VALUES:,}",
        f"bodies above {MAX_SMALL_BYTES:,} bytes that wait to be parsed": f"{MAX_LONG_WAITING}",
    }


def _fields() -> dict[str, str]:
    return {
        "`messages`": f"1 to {parse_chat.MAX_MESSAGES:,}",
        "prompts × `n` (or `best_of`, `beam_width`) of a completion with several": f"{prompts.MAX_PROMPT_SEQUENCES}",
        "`input` of embeddings": f"{MAX_INPUTS} items",
        "`input` of a response": f"{MAX_ITEMS:,} items",
        "`metadata` of a response": (
            f"{MAX_PAIRS} pairs, names of {MAX_KEY_CHARS} and values of {MAX_ECHO_CHARS} characters"
        ),
        "`user`, `safety_identifier`, `prompt_cache_key` of a response": f"{MAX_ECHO_CHARS} characters",
        "`tool_choice` of a response": f"{MAX_CHOICE_BYTES:,} bytes of JSON",
        "`text.format.description` of a response": f"{MAX_DESCRIPTION_CHARS:,} characters",
        "`n`, `best_of`, `beam_width`": f"1 to {params.MAX_SEQUENCES}, and `--max-num-seqs`",
        "`max_tokens`, `max_completion_tokens`": f"1 to {params.MAX_TOKENS:,}; 0 in completions with `echo`",
        "`n` (or `best_of`, `beam_width`) × `max_tokens` × (1 + `top_logprobs`)": (
            f"{admission.MAX_OUTPUT:,}; the default of `max_tokens` is lowered to it"
        ),
        "a prompt with `prompt_logprobs`, or with `echo` and `logprobs`": f"{params.MAX_SCORED_TOKENS:,} tokens; CPUs",
        "`n` × prompt tokens × (1 + `prompt_logprobs`), if the answer shows its prompts": (
            f"{admission.MAX_SHOWN:,}; it is part of the {admission.MAX_OUTPUT:,} above"
        ),
        "`logprobs`, `top_logprobs`, `prompt_logprobs`": (
            f"{params.MAX_LOGPROBS}; `top_logprobs: 0` is allowed with `logprobs: false`"
        ),
        "`logit_bias`": f"{params.MAX_LOGIT_BIAS} entries, each from {-params.MAX_BIAS} to {params.MAX_BIAS}",
        "`stop`": f"{params.MAX_STOP_STRINGS} strings of 1 to {params.MAX_STOP_LENGTH} characters",
        "`stop_token_ids`": f"{params.MAX_STOP_TOKEN_IDS} ids",
        "`seed`": "64 bits, signed or unsigned",
        "`priority`": f"{-schemas.MAX_PRIORITY} to {schemas.MAX_PRIORITY}",
        "`cache_salt`": f"1 to {schemas.MAX_SALT_BYTES} bytes of UTF-8",
        **_grammars(),
        "`tools`": f"{tools.MAX_TOOLS} definitions, {tools.MAX_TOOLS_BYTES:,} bytes of JSON",
        "`parameters` of a tool": f"nested {tools.MAX_DEPTH} deep",
        "`arguments` of a call that are read (else they stay text)": (
            f"nested {tools.MAX_DEPTH} deep, {json_text.MAX_VALUES:,} values, integers of {json_text.MAX_DIGITS} digits"
        ),
        "ids of calls": f"{tool_messages.MAX_ID_CHARS} characters",
        "tools of a request with a grammar": f"{sources.MAX_SOURCE_BYTES:,} bytes of grammar",
        "`chat_template_kwargs`": (
            f"{template_options.MAX_KWARGS_BYTES:,} bytes of JSON, {template_options.MAX_KWARGS_KEYS} keys of at most "
            f"{template_options.MAX_KEY_LENGTH} characters"
        ),
    }


def _grammars() -> dict[str, str]:
    trial = GrammarLimits()
    return {
        "a schema without its descriptions, a regular expression or grammar": f"{sources.MAX_SOURCE_BYTES:,} bytes",
        "a JSON schema": (
            f"{schema_keywords.MAX_SCHEMA_DEPTH} levels, {schema_keywords.MAX_PROPERTIES} properties of an object, "
            f"{sources.MAX_SCHEMA_BYTES:,} bytes with its descriptions"
        ),
        "a number in an answer of JSON": (
            f"{number_digits.MAX_DIGITS} digits before the point and behind it, {number_digits.MAX_EXPONENT_DIGITS} of "
            "the exponent; more where the schema needs them"
        ),
        "`choice`": f"{sources.MAX_CHOICES} texts of 1 to {sources.MAX_CHOICE_BYTES} bytes",
        "a grammar in GBNF": (
            f"{gbnf.MAX_RULES} rules, {gbnf.MAX_BRACKETS} nested brackets, {gbnf.MAX_REPETITIONS:,} repetitions"
        ),
        "compiling a schema, regular expression, choice or grammar": (
            f"{trial.cpu_s:g} s of processor time, {trial.memory_bytes // 2**20} MiB, {trial.wall_s:g} s on the clock"
        ),
        "the next token of an answer with a schema, regular expression or grammar": (
            f"{trial.mask_s:g} s of processor time"
        ),
        "answers of an account whose next token takes more than that": (
            f"{TOO_COSTLY_A_MINUTE} a minute, then 429 for all its grammars"
        ),
        f"new grammars of an account that take {grammar_trials.EXPENSIVE_S:g} s or more to compile": (
            f"{TOO_COSTLY_A_MINUTE} a minute, then 429 for further new ones"
        ),
    }


def _resumable() -> dict[str, str]:
    return {
        "readers of one answer": f"{live_stream.MAX_READERS}",
        "answers of one account": f"{kept_streams.MAX_PER_ACCOUNT}; above it the oldest ended one goes",
        "requests that wait for the first one with their idempotency key": f"{live_stream.MAX_READERS}",
        "time without a reader": f"{live_stream.TTL_S:g} s; on quire.v1 `ttl_s`, at most {kept_streams.MAX_TTL_S:,} s",
    }


def _quire_v1() -> dict[str, str]:
    limits = chat_actions.ChatLimits()
    ping_timeout_s = unacknowledged_timeout_s(Config().server.stall_timeout)
    return {
        "size of a frame before `hello` is accepted": f"{limits.max_hello_bytes:,} bytes",
        "time until `hello`": f"{limits.hello_timeout_s:g} s",
        "open streams of a socket": f"{limits.max_streams}",
        "messages": f"{limits.messages_per_s:g} per second, {limits.messages_burst:g} in a burst",
        "`credit` of an open stream": f"{limits.credits_per_s:g} per second, {limits.credits_burst:g} in a burst",
        "`id`": f"{chat_protocol.MAX_ID_LENGTH} characters",
        "time without a pong after a WebSocket ping": (
            f"{ping_timeout_s:g} s with the default `--stall-timeout`, and a ping every {PING_S:g} s"
        ),
    }


def _responses() -> dict[str, str]:
    limits = chat_actions.ChatLimits()
    return {
        "responses that wait for the one that is answered": f"{responses_protocol.MAX_WAITING}",
        "responses that a connection remembers": f"{response_memory.MAX_RESPONSES}",
        "memory of what all connections remember": "`--resume-memory`",
        "characters of a `stream_id`": f"{responses_protocol.MAX_STREAM_ID_CHARS}",
        "frames in a second, at once": f"{limits.messages_per_s:g}, {limits.messages_burst:g}",
        "bad frames in a row": f"{limits.max_bad_frames}",
    }


def _models() -> dict[str, str]:
    return {
        "tokenizer.json": f"{tokenizer.MAX_TOKENIZER_BYTES:,} bytes",
        "chat template": f"{text_files.MAX_TEMPLATE_BYTES:,} bytes",
        "trial of a chat template at startup": (
            f"{template_trial.TRIAL_SECONDS} s and {template_trial.TRIAL_BYTES // 2**20:,} MiB for a few short chats"
        ),
        "steps of a template for one request": f"{template_allowance.MAX_STEPS:,}",
        "text that a template makes": (
            f"{template_allowance.MAX_EXPANSION} times the length of the messages plus "
            f"{template_allowance.MAX_EXTRA_CHARS:,} characters"
        ),
        "list that a template makes": f"{template_allowance.MAX_ITEMS:,} items",
        "weight files": "names in the index's folder; links are followed; remote code (`auto_map`) is never run",
    }

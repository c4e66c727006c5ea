"""The table of attacks: a row of the benchmark for each. A new row is one entry here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import ip_address

from benchmarks.isolation import agents, answers, bodies, connections, grammars, kept_answers, watchers
from benchmarks.isolation.attack import COMPLETIONS, DETOKENIZE, LARGEST, TOKENIZE, Attack, chat, posted
from benchmarks.isolation.setups import (
    ADDRESSES,
    EXPERTS,
    IPV6,
    KEPT,
    KEYS,
    NO_KEY,
    NO_STREAM,
    PLAIN,
    SLOW_DISK,
    SMALL_STORE,
    UNREAD_LOG,
)

QUIET = "idle"
"""The row that the others are compared with."""

_BODIES: Mapping[str, Attack] = {
    "prompt_4mb": Attack(
        "a prompt of 4 MB, which is too long", posted(lambda: chat("every good word " * (LARGEST // 16))), 4
    ),
    "one_letter": Attack("4 MB of one letter", posted(lambda: chat("a" * LARGEST)), 4),
    "marks": Attack(
        "4 MB of a special token spelled in a message", posted(lambda: chat("<|end|>" * (LARGEST // 7))), 4
    ),
    "token_ids": Attack(
        "4 MB of token ids", posted(lambda: json.dumps({"prompt": [7] * (LARGEST // 3)}).encode(), COMPLETIONS), 4
    ),
    "empty_parts": Attack(
        "4 MB of empty text parts", posted(lambda: chat([{"type": "text", "text": ""}] * (LARGEST // 30))), 4
    ),
    "empty_lists": Attack(
        "4 MB of empty lists in an unknown field",
        posted(lambda: b'{"messages":[],"x":[' + b"[]," * (LARGEST // 3 - 20) + b"[]]}"), 4,
    ),
    "duplicate_keys": Attack("511 keys, and 690,000 copies of one", posted(bodies.duplicate_keys), 4),
    "brackets": Attack("4 MB of opening brackets", posted(lambda: b"[" * LARGEST), 4),
    "digits": Attack(
        "a number of 4 million digits", posted(lambda: b'{"seed":' + b"9" * (LARGEST - 20) + b"}"), 4
    ),
    "surrogates": Attack(
        "4 MB of escaped lone surrogates",
        posted(lambda: b'{"messages":[{"role":"user","content":"' + b"\\ud800" * (LARGEST // 6 - 20) + b'"}]}'), 4,
    ),
    "messages": Attack("1,024 messages", posted(bodies.messages), 4),
    "short_messages": Attack("8,192 messages of five short parts each", posted(bodies.short_messages), 4),
    "integer_calls": Attack("a call of 400 integers of 4,299 digits", posted(bodies.integer_calls), 4),
    "stop_strings": Attack("300 biases and 16 stop strings of 256 characters", bodies.stop_strings, 4),
    "embeddings": Attack("embeddings of 256 texts", bodies.embeddings),
    "longest_embeddings": Attack(
        "embeddings of inputs as long as the context, 4 MB of token ids", bodies.longest_embeddings
    ),
    "many_embeddings": Attack("embeddings of 256 inputs of 2,000 tokens", bodies.many_embeddings),
    "tokenize_4mb": Attack(
        "4 MB to tokenize, which is too long",
        posted(lambda: json.dumps({"prompt": "every good word " * (LARGEST // 16)}).encode(), TOKENIZE), 4,
    ),
    "tokenize": Attack(
        "texts to tokenize, nearly as long as the context, with their pieces", bodies.tokenize, 4
    ),
    "detokenize_4mb": Attack(
        "4 MB of token ids to decode",
        posted(lambda: json.dumps({"tokens": [7] * (LARGEST // 3)}).encode(), DETOKENIZE), 4,
    ),
}  # fmt: skip

_GRAMMARS: Mapping[str, Attack] = {
    "hostile_grammars": Attack(
        "hostile schemas, regexes and grammars, each different", grammars.hostile_grammars, 4
    ),
    "new_schemas": Attack("small schemas, each different, from 16 clients", grammars.new_schemas, 16),
    "gbnf_brackets": Attack("65,000 open brackets as GBNF", grammars.gbnf_brackets),
    "multiple_of": Attack("integers that a large prime divides", grammars.multiple_of),
    "and_compile": Attack("a text that 40 expressions must match at once", grammars.and_compile),
    "and_mask": Attack("a schema of 24 patterns, costly after 40 letters", grammars.and_mask),
    "ref_mask": Attack("the 24 patterns in a chain of references", grammars.ref_mask),
    "conditions": Attack("a small schema of nested conditions, which references lead through", grammars.conditions),
    "json_in_lark": Attack("the 24 patterns as JSON in Lark", grammars.json_in_lark),
    "counted_masks": Attack("n = 16 under an expression whose masks are slow", grammars.counted_masks, 4),
    "shared_lexer": Attack(
        "n = 16 four times under one expression, whose lexer comes to its limit", grammars.shared_lexer, 4
    ),
    "rules_with_parameters": Attack(
        "rules of Lark that go through all sets of 12 bits, each different", grammars.rules_with_parameters, 4
    ),
    "ambiguous_grammar": Attack("n = 16 under an ambiguous grammar", grammars.ambiguous_grammar, 1),
    "forced_tokens": Attack(
        "n = 16, and a grammar that leaves one next token nearly everywhere", grammars.forced_tokens, 4
    ),
    "tools_4mb": Attack(
        "4 MB of tools, which are too many bytes",
        posted(lambda: chat(tools=[grammars.tool("f", description="word " * (LARGEST // 700))] * 128)), 4,
    ),
    "deep_tool": Attack("a tool whose schema is nested 100,000 deep", posted(grammars.deep_tool), 4),
    "required_calls": Attack("a required call of a tool, each time another one", grammars.required_calls, 4),
    "many_tools": Attack("a required call of one of 100 tools, each time others", grammars.many_tools, 4),
}  # fmt: skip

_ANSWERS: Mapping[str, Attack] = {
    "longest_prompt": Attack("the longest prompt that is allowed", answers.longest_prompt),
    "one_expert": Attack("a prompt that sends every token to one expert of 64", answers.one_expert, 2, EXPERTS),
    "prompts": Attack("16 prompts in one completion, streamed", answers.prompts),
    "logprobs_streamed": Attack("n = 16 with 20 log-probabilities a token, streamed", answers.logprobs_streamed, 1),
    "logprobs_whole": Attack("n = 16 with 20 log-probabilities a token, not streamed", answers.logprobs_whole, 1),
    "scored_prompts": Attack(
        "long prompts, each different, echoed with 20 log-probabilities a token", answers.scored_prompts, 4
    ),
    "logprobs_unread": Attack("log-probabilities, merged, and never read", answers.logprobs_unread, 8),
    "whole_unread": Attack(
        "n = 16 with 20 log-probabilities a token, not streamed, never read", answers.whole_unread, 8
    ),
    "dropped": Attack("n = 16, dropped because its reader is too slow, again and again", answers.dropped, 8),
    "usage_in_chunks": Attack("n = 16 with usage in every chunk", answers.usage_in_chunks, 4),
    "flat_top_p": Attack("n = 16 with penalties and a flat top-p", answers.flat_top_p, 1),
    "biases": Attack("n = 16 with 300 biases and min_tokens", answers.biases, 1),
    "loops": Attack("n = 16 with repetition_stop, in circles that break just before they count", answers.loops, 1),
    "beams": Attack("beams", answers.beams, 1),
    "many_answers": Attack("64 answers at once", answers.many_answers, 64),
    "all_seats": Attack(
        "64 answers at once, beside a client that has no stream open", answers.many_answers, 64, NO_STREAM
    ),
    "starts": Attack("1,000 starts over 32 sockets", answers.starts, 32),
    "sleepers": Attack("300 streams that are never read", answers.sleepers, 10),
    "cut_off": Attack("answers begun and cut off at once", answers.cut_off, 8),
    "given_up": Attack("long prompts given up half-way", answers.given_up, 8),
}

_AGENTS: Mapping[str, Attack] = {
    "response_items": Attack("6,000 items as Codex sends them", posted(agents.items, agents.RESPONSE_TOKENS), 4),
    "response_tools": Attack("256 tools in the prompt of a response", posted(agents.flat_tools, agents.RESPONSES), 4),
    "response_namespaces": Attack(
        "256 tools in namespaces, with names that are shortened", posted(agents.namespaces, agents.RESPONSES), 4
    ),
    "response_call": Attack("a call with 1 MB of arguments", posted(agents.large_call, agents.RESPONSE_TOKENS), 4),
    "found_tools": Attack(
        "100 searches that find 255 tools each", posted(agents.found_tools, agents.RESPONSE_TOKENS), 4
    ),
    "cut_chat": Attack(
        "8,191 turns, 4 MB in all, of which the oldest are left out", posted(agents.cut_chat, agents.RESPONSE_TOKENS), 4
    ),
    "message_blocks": Attack("8,192 blocks of all kinds", posted(agents.blocks, agents.MESSAGE_TOKENS), 4),
    "long_message": Attack(
        "4 MB whose tokens are counted, which are too many", posted(agents.long_message, agents.MESSAGE_TOKENS), 4
    ),
    "response_chain": Attack("a conversation of kept responses, one after the other", agents.chain, 4),
    "silent_chain": Attack("kept responses whose inputs are large and say nothing", agents.silent_chain, 2),
    "remembered": Attack("16 responses of 4 MB that a WebSocket remembers", agents.remembered, 4),
    "waiting_frames": Attack("frames of 4 MB that wait on 32 WebSockets", agents.waiting, 32),
    "background": Attack("responses in the background, each with 100 streams", agents.background, 8),
}

_CONNECTIONS: Mapping[str, Attack] = {
    "before_hello": Attack("4 MB frames before hello", connections.before_hello),
    "large_starts": Attack("starts of 4 MB over one socket each", connections.large_starts),
    "frames": Attack("as many frames as the protocol allows", connections.frames, 8),
    "large_frames": Attack("frames of 4 MB over 64 WebSockets at once", connections.large_frames, 64),
    "fragments": Attack("frames in pieces of one byte", connections.fragments, 8),
    "pongs": Attack("answers to pings that nobody sent", connections.pongs, 8),
    "churn": Attack("connections opened and dropped", connections.churn, 8),
    # More than 1,024, the highest descriptors that `select` knows, while the good client's schemas are tried.
    "idle_connections": Attack(
        "1,500 connections that say nothing", connections.idle_connections, 1500 // connections.NUM_IDLE, num_open=2000
    ),
    "unfinished_bodies": Attack("250 bodies of 4 MB without their last byte", connections.unfinished_bodies, 250),
    "unfinished_frames": Attack("250 frames of 4 MB without their last byte", connections.unfinished_frames, 250),
    "small_chunks": Attack("bodies in chunks of one byte", connections.small_chunks, 4),
    "pipelined": Attack("1,000 requests in one piece, no response read", connections.pipelined, 8),
    "metrics": Attack("the metrics, over 64 connections", connections.metrics, 64),
    "page": Attack("the page's largest file, again and again", connections.page, 4),
    "wrong_paths": Attack("rejected for a wrong path and method", connections.wrong_paths, 4),
    "watchers": Attack("16 watch the engine", watchers.watchers, 16),
    "unread_watchers": Attack("16 watch the engine, and read nothing", watchers.unread_watchers, 16),
    "fleeting_watchers": Attack("watchers that come and go at once", watchers.fleeting_watchers, 8),
    "figures": Attack("the figures, five times a second over 64 connections", watchers.figures, 64),
}

# Rows with a server of their own, the same of each kind side by side.
_SETUPS: Mapping[str, Attack] = {
    "bearer_blanks": Attack("no key, and a header of 16,000 blanks", connections.bearer_blanks, 2, NO_KEY),
    "odd_headers": Attack("no key, and headers as large as allowed", connections.odd_headers, 8, NO_KEY),
    "two_keys": Attack("64 answers at once, another key on the same address", answers.many_answers, 64, KEYS),
    "wide_answers": Attack("n = 16 eight times, each from another address", answers.wide_answers, 8, ADDRESSES),
    "ipv6_64": Attack("64 answers at once, each from another address of an IPv6 /64", answers.many_answers, 64, IPV6),
    "kept_streams": Attack("answers that go on when they are left, and are kept", kept_answers.kept_streams, 16, KEPT),
    "unread_streams": Attack(
        "kept answers, each with eight readers that never read", kept_answers.unread_streams, 8, KEPT
    ),
    "resumes": Attack("the end of a large answer, read again and again", kept_answers.resumes, 4, KEPT),
    "socket_resumes": Attack(
        "the end of an answer, read again and again over a WebSocket", kept_answers.socket_resumes, 4, KEPT
    ),
    "endless_keys": Attack("idempotency keys without end, each with an answer", kept_answers.endless_keys, 8, KEPT),
    "guessed_ids": Attack("guessed ids of kept answers, looked at and cancelled", kept_answers.guessed_ids, 8, KEPT),
    "slow_disk": Attack(
        "kept answers that are read, and a disk that takes 0.2 s for each commit",
        kept_answers.read_streams,
        16,
        SLOW_DISK,
    ),
    "kv_disk": Attack(
        "prompts of 4,000 tokens, each different, and a prefix cache on a disk that is full",
        answers.new_prompts,
        8,
        SMALL_STORE,
    ),
    "unread_log": Attack(
        "rejected requests, and nobody reads the server's log", connections.wrong_paths, 4, UNREAD_LOG
    ),
}

ATTACKS: Mapping[str, Attack] = {
    QUIET: Attack("does nothing", answers.idle), **_BODIES, **_GRAMMARS, **_ANSWERS, **_AGENTS, **_CONNECTIONS,
    **_SETUPS,
}  # fmt: skip


def source_of(name: str) -> str:
    """Return the address of a row's attacker, or the network of its addresses.

    Rows that share a server have different ones: else a row would be answered 429 alone for what others before it have
    sent within a minute, and show nothing.
    """
    setup = ATTACKS[name].setup
    is_own = setup.source == PLAIN.source
    return str(ip_address(setup.source) + [*ATTACKS].index(name)) if is_own else setup.source

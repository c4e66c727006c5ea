"""What a path that does not exist asks for: another API, or a route of this server below a wrong base URL."""

from __future__ import annotations

from collections.abc import Mapping

from app.config.nearest import nearest

MAX_PATH_CHARS = 100
API_PATHS = (
    "/v1/models", "/v1/chat/completions", "/v1/chat/completions/input_tokens", "/v1/completions", "/v1/responses",
    "/v1/responses/input_tokens", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/tokenize",
    "/detokenize", "/apply-template", "/version", "/openapi.json", "/v1/engine/events",
)  # fmt: skip
SOCKETS: Mapping[str, str] = {
    "/ws": "ws:// and the subprotocol quire.v1",
    "/live": "ws:// and the subprotocol quire.live.v1",
}
"""The WebSockets of this server, and how each is opened."""
_CHAT, _TEXT, _VECTORS, _MODELS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"
_COMPARE = f"{_VECTORS}, and compare the vectors of the query and the documents"
_OTHER_SERVER = "another server: this one reads and writes text"
_NOWHERE = "another server: this one stores no files and runs no jobs"
# The beginnings of paths, the longer ones first: whose they are, and what to use here.
_OTHERS: Mapping[str, tuple[str, str]] = {
    "/v1/realtime": ("OpenAI's Realtime API", f"the WebSocket /ws, or {_CHAT}"),
    **dict.fromkeys(("/v1/audio", "/v1/images", "/v1/videos"), ("OpenAI's APIs for sound and pictures", _OTHER_SERVER)),
    **dict.fromkeys(
        (
            "/v1/files", "/v1/uploads", "/v1/batches", "/v1/vector_stores", "/v1/fine_tuning", "/v1/assistants",
            "/v1/threads", "/v1/conversations", "/v1/containers", "/v1/evals",
        ),
        ("OpenAI's APIs for stored files and jobs", _NOWHERE),
    ),
    "/v1/responses/compact": (
        "OpenAI's API that shortens conversations", "/v1/responses with truncation set to auto"
    ),
    "/v1/moderations": ("OpenAI's Moderations API", f"{_CHAT} with a question about the text"),
    "/v1/messages/batches": ("Anthropic's API of batches", "/v1/messages for each request"),
    "/v1/complete": ("Anthropic's Text Completions API", _TEXT),
    **dict.fromkeys(
        ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"), ("the APIs that rank documents", _COMPARE)
    ),
    "/v1/load_lora_adapter": ("vLLM's API of adapters", "another server: this one serves one model"),
    "/v1beta": ("Google's Gemini API", _CHAT),
    "/api/chat": ("Ollama's API", _CHAT),
    "/api/generate": ("Ollama's API", _TEXT),
    **dict.fromkeys(("/api/embed", "/api/embeddings"), ("Ollama's API", _VECTORS)),
    **dict.fromkeys(("/api/tags", "/api/ps", "/api/show"), ("Ollama's API", _MODELS)),
    "/api/version": ("Ollama's API", "/version"),
    **dict.fromkeys(
        ("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs"),
        ("Ollama's API", "`quire pull` and `quire models` on the server's machine"),
    ),
    "/api/v1/generate": ("KoboldAI's API", _TEXT),
    **dict.fromkeys(("/completion", "/infill"), ("llama.cpp's own API", _TEXT)),
    "/embedding": ("llama.cpp's own API", _VECTORS),
    **dict.fromkeys(("/props", "/slots"), ("llama.cpp's own API", f"{_MODELS} and /metrics")),
    **dict.fromkeys(
        ("/generate", "/generate_stream"), ("the APIs of Text Generation Inference and SGLang", _TEXT)
    ),
    **dict.fromkeys(
        ("/info", "/get_model_info", "/server_info"), ("the APIs of Text Generation Inference and SGLang", _MODELS)
    ),
    "/embed": ("Text Embeddings Inference's API", _VECTORS),
    **dict.fromkeys(("/v1/embed", "/v2/embed"), ("Cohere's API", _VECTORS)),
    "/v2/chat": ("Cohere's API", _CHAT),
    **dict.fromkeys(("/pooling", "/v1/pooling", "/classify", "/v1/classify"), ("vLLM's pooling APIs", _VECTORS)),
    **dict.fromkeys(("/healthz", "/ping"), ("other servers' checks of health", "/health")),
    "/invocations": ("the API of SageMaker", _CHAT),
}  # fmt: skip


def advice(path: str) -> str:
    """Return why there is nothing at `path`, and what to use. Any thread."""
    parts = [part for part in path.split("/") if part]
    clean = "/" + "/".join(parts)
    if clean in SOCKETS:
        return f"{clean} is a WebSocket, which this request is not; open it with {SOCKETS[clean]}."
    if (beginning := _beginning_of(clean)) is not None:
        owner, instead = _OTHERS[beginning]
        return f"{beginning} belongs to {owner}, which this server does not have; use {instead}."
    given = path if len(path) <= MAX_PATH_CHARS else f"{path[:MAX_PATH_CHARS]}..."
    meant = next((ours for ours in API_PATHS if _ends_with(clean.lower(), ours)), None)
    if meant is None:
        return f"There is nothing at {given}{nearest(clean, API_PATHS)}; /openapi.json lists the routes."
    base = "; the base URL for OpenAI's clients ends with one /v1" if meant.startswith("/v1/") else ""
    if meant.startswith("/v1/messages"):
        base = "; the base URL for Anthropic's clients ends without /v1"
    return f"There is nothing at {given}; use {meant}{base}."


def is_named(path: str) -> bool:
    """Return whether a path has a meaning of its own, here or in another API: then no part of it is an id."""
    return path in API_PATHS or _beginning_of(path) is not None


def _beginning_of(path: str) -> str | None:
    """Return the path of another API that `path` is, or is below; None if there is none."""
    found = (other for other in _OTHERS if path == other or path.startswith(f"{other}/"))
    return next(found, None)


def _ends_with(path: str, ours: str) -> bool:
    """Return whether a path means one of ours: with another beginning, as of a doubled base URL, or without /v1."""
    return path.endswith((ours, ours.removeprefix("/v1")))

"""Blocks of tools that Anthropic runs are left out, and the others keep their numbers."""

import re
from typing import Any, get_args

import pytest
from anthropic.types import ContentBlockParam
from anthropic.types.beta import BetaContentBlock

from app.api.anthropic.hosted_blocks import leave_out_hosted
from app.api.anthropic.message_fields import ContentBlock
from app.api.anthropic.parse_message import parse_message
from app.contract.errors import InvalidValue
from tests.api.anthropic.messages import parsed, prompt_of
from tests.api.serving import make_app, parse, raw

HOSTED = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Oslo"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {"stdout": "x"}},
    {"type": "mcp_tool_use", "id": "a", "name": "f", "server_name": "b", "input": {}},
    {"type": "mcp_tool_result", "tool_use_id": "a", "content": "secret"},
    {"type": "compaction", "content": "What was said before."},
]
TEXT = {"type": "text", "text": "Cold."}


@pytest.mark.parametrize("block", HOSTED, ids=lambda block: block["type"])
async def test_a_hosted_block_is_left_out_and_named(block):
    app = await make_app()
    user = {"role": "user", "content": "Hi"}
    messages = [user, {"role": "assistant", "content": [block, TEXT]}, user]
    assert (await parsed(app, messages=messages)).ignored == ("messages[1].content[0]",)
    messages[1] = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": ""}, TEXT]}
    plain = [user, {"role": "assistant", "content": [TEXT]}, user]
    assert await prompt_of(app, messages=messages) == await prompt_of(app, messages=plain)


async def test_the_blocks_behind_it_keep_their_numbers():
    content = [HOSTED[0], {"type": "text", "text": 3}]
    with pytest.raises(InvalidValue) as caught:
        await parsed(await make_app(), messages=[{"role": "assistant", "content": content}])
    assert caught.value.param == "messages[0].content[1].text"


def tags(union: Any) -> set[str]:
    """The types of the blocks in a union of the SDK's."""
    found = get_args(union)
    kinds = found if isinstance(found[0], type) else get_args(found[0])
    return {name for kind in kinds for name in re.findall(r"Literal\['(\w+)'", repr(kind.__annotations__["type"]))}


@pytest.mark.parametrize("union", [ContentBlockParam, BetaContentBlock])
def test_every_block_of_the_sdk_is_read_or_left_out(union):
    """If this fails, the SDK knows a new block: read it, or leave it out."""
    read = {block.__struct_config__.tag for block in get_args(ContentBlock)}
    blocks = [{"type": kind} for kind in tags(union) - read]
    assert len(blocks) > 5
    assert len(leave_out_hosted({"messages": [{"content": blocks}]})) == len(blocks), blocks


@pytest.mark.parametrize("kind", ["tool_result", "text", "image_url", "", None, 3])
def test_other_blocks_stay(kind):
    content = [{"type": kind}]
    assert leave_out_hosted({"messages": [{"content": content}]}) == () and content == [{"type": kind}]


@pytest.mark.parametrize("messages", [None, 3, [3], [{}], [{"content": 3}], [{"content": [3]}]])
def test_what_is_no_message_is_left_to_the_checks(messages):
    assert leave_out_hosted({"messages": messages}) == ()


async def test_a_strict_server_rejects_them():
    context = (await make_app(strict=True)).state.context
    body = raw({"max_tokens": 5, "messages": [{"role": "assistant", "content": [HOSTED[0]]}]})
    with pytest.raises(Exception, match=r"^messages\[0\].content\[0\] is of a kind that only Anthropic runs"):
        await parse(body, context, parse_message)

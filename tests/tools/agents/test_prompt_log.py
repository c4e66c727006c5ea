"""What a prompt shares with earlier ones, also with those of an earlier process."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tools.agents.prompt_log import PromptLog, SeenPrompt


def test_the_longest_shared_beginning_counts(tmp_path: Path):
    log = PromptLog(tmp_path / "prompts")
    seen = [log.add(prompt) for prompt in ([1, 2, 3], [1, 2, 4, 5], [9], [1, 2, 4, 5, 6], [1, 2])]
    assert seen == [SeenPrompt(3, 0), SeenPrompt(4, 2), SeenPrompt(1, 0), SeenPrompt(5, 4), SeenPrompt(2, 2)]


def test_prompts_of_an_earlier_process_count(tmp_path: Path):
    PromptLog(tmp_path).add([1, 2, 3])
    assert PromptLog(tmp_path).add([1, 2, 7]) == SeenPrompt(3, 2)
    assert len(list(tmp_path.iterdir())) == 2


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=6))
def test_no_more_is_shared_than_there_is(tmp_path_factory, prompts):
    log = PromptLog(tmp_path_factory.mktemp("prompts"))
    for number, prompt in enumerate(prompts):
        num_shared = log.add(prompt).num_shared
        assert not num_shared or any(prompt[:num_shared] == earlier[:num_shared] for earlier in prompts[:number])
        assert not any(prompt[: num_shared + 1] == earlier[: num_shared + 1] and len(earlier) > num_shared
                       and len(prompt) > num_shared for earlier in prompts[:number])  # fmt: skip

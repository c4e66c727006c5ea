"""Where blocks of Markdown end, however the text is cut."""

import pytest

from app.commands.dialog.markdown_blocks import MAX_OPEN_CHARS, Block, MarkdownBlocks

TEXT = """# Title
Text one
and two

- a
- b
  more of b

  and more
1. c
   ```python
   x = 1

   y = 2
   ```
2. d

after

| a | b |
|---|---|
| 1 | 2 |

~~~
``` inside
~~~
end"""
BLOCKS = [
    ("# Title", False), ("Text one\nand two", True), ("- a", True), ("- b\n  more of b\n\n  and more", False),
    ("1. c", False), ("x = 1", True), ("", False), ("y = 2", False), ("2. d", True), ("after", True),
    ("| a | b |\n|---|---|\n| 1 | 2 |", True), ("``` inside", True), ("end", True),
]  # fmt: skip


def blocks_of(text: str, size: int) -> list[Block]:
    """All blocks of a text that arrives in pieces of a size."""
    blocks = MarkdownBlocks()
    found = [block for at in range(0, len(text), size) for block in blocks.feed(text[at : at + size])]
    return found + blocks.end()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_blocks_are_the_same_for_any_pieces(size):
    assert [(block.text, block.is_apart) for block in blocks_of(TEXT, size)] == BLOCKS


def test_code_has_its_language_its_indent_and_the_lines_before():
    code = [block for block in blocks_of(TEXT, 5) if block.language is not None]
    assert [block.language for block in code] == ["python"] * 3 + [""]
    assert code[2].before == ("x = 1", "") and code[2].indent == 3


def test_what_is_open_is_what_has_arrived_of_a_block():
    blocks = MarkdownBlocks()
    blocks.feed("one\n\ntwo **bo")
    assert blocks.open == Block("two **bo", True)
    blocks.feed("ld**\n\n")
    assert blocks.open is None
    blocks.feed("```c\nint ")
    assert blocks.open is not None and (blocks.open.text, blocks.open.language) == ("int ", "c")


def test_a_paragraph_without_an_end_is_closed_so_that_little_is_drawn_again():
    blocks, longest, text = MarkdownBlocks(), 0, ""
    for _ in range(5000):
        text += "".join(block.text + " " for block in blocks.feed("word "))
        longest = max(longest, len(blocks.open.text) if blocks.open else 0)
    assert longest <= MAX_OPEN_CHARS
    text += "".join(block.text for block in blocks.end())
    assert text.split() == ["word"] * 5000


def test_a_word_without_an_end_is_closed_too():
    assert "".join(block.text for block in blocks_of("x" * 20_000, 100)) == "x" * 20_000


def test_nothing_is_no_block():
    assert blocks_of("", 1) == blocks_of("\n\n", 1) == []


def test_a_line_with_code_in_three_marks_opens_no_block():
    blocks = MarkdownBlocks()
    closed = [*blocks.feed("```ls -l``` lists files\n\nafter\n\nend"), *blocks.end()]
    assert [block.language for block in closed] == [None, None, None]

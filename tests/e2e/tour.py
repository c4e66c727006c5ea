"""A tour through every view and state of the page; what is checked at each stop is the caller's."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import Page, expect

from tests.e2e.browsing import ask, last_answer, until_last
from tests.e2e.scripted import ScriptedServer

RICH = """Quire keeps the **key-value cache** in *blocks*, much as an operating system keeps memory in pages.

## How it works

1. A request asks for as many blocks as its prompt needs.
2. Each further token takes the next free slot.
   - blocks need not be neighbours
   - a finished request gives its blocks back

| what | size |
|:-----|-----:|
| block | 16 tokens |
| model | 8 MB |

```python
client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
for chunk in client.chat.completions.create(model="guide", messages=messages, stream=True):
    print(chunk.choices[0].delta.content or "", end="")
```

The cache takes $2 \\cdot n_\\text{layers} \\cdot n_\\text{heads} \\cdot d$ numbers per token:

$$
\\mathrm{softmax}\\left(\\frac{QK^\\top}{\\sqrt{d}}\\right) V = \\sum_{i=1}^{n} \\frac{e^{q \\cdot k_i}}{Z}\\, v_i
$$

> The first sheet carries the thread.

See [the documentation](https://example.org/quire) or run `quire serve`.
"""
QUESTION = "How does the paged KV cache work, and how do I call the server from Python?"
RIGHT_TO_LEFT = (
    "كيف أشغّل الخادم؟",
    "`quire serve` هو الأمر الذي يشغّل الخادم.\n\n- الخطوة الأولى: `make setup`\n- الخطوة الثانية\n\n> اقتباس قصير\n",
)
DRAG = """(kind) => {
  const data = new DataTransfer();
  data.items.add(new File(["text"], "notes.txt", { type: "text/plain" }));
  dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
}"""
# The storage has no more room, until the page calls `empty`.
FILL_STORAGE = """() => {
  const { put } = IDBObjectStore.prototype;
  IDBObjectStore.prototype.put = () => {
    throw new DOMException("full", "QuotaExceededError");
  };
  window.empty = () => {
    IDBObjectStore.prototype.put = put;
  };
}"""
DROP = """async () => {
  const data = new DataTransfer();
  data.items.add(new File(["first line\\nsecond line\\n"], "notes.txt", { type: "text/plain" }));
  data.items.add(new File([new Uint8Array([0, 255, 254])], "picture.png", { type: "image/png" }));
  for (const kind of ["dragover", "drop"]) {
    dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
  }
}"""
MIN_BESIDE = 896  # px; in a narrower window the list covers the conversation, and closes when one is chosen
Look = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Tour:
    """Leads `page` from state to state; `look` is called with the name of each."""

    page: Page
    server: ScriptedServer
    look: Look

    async def start(self) -> None:
        """The page while the server loads, fails to load, cannot be reached, and asks for a key; then the welcome."""
        page, server = self.page, self.server
        server.health = {"status": "loading", "progress": 0.42}
        await page.goto(server.url)
        await expect(page.locator("progress")).to_be_visible()
        await self.look("loading")
        server.health = {"status": "failed", "message": "The file model.safetensors has no tensor lm_head.weight."}
        await page.reload()
        await expect(page.get_by_role("alert")).to_be_visible()
        await self.look("load-failed")
        await page.route("**/readyz", lambda route: route.abort())
        await page.reload()
        await expect(page.get_by_text("cannot be reached")).to_be_visible()
        await self.look("offline")
        await page.unroute("**/readyz")
        server.health = {"status": "ready", "progress": 1.0}
        server.key = "secret"
        await page.reload()
        key = page.get_by_label("This server requires an API key.")
        await expect(key).to_be_visible()
        await self.look("locked")
        await key.fill("wrong")
        await key.press("Enter")
        await expect(page.get_by_role("alert")).to_be_visible()
        await self.look("key-rejected")
        await key.fill("secret")
        await key.press("Enter")
        await expect(page.get_by_role("button", name="What is Quire?")).to_be_visible()
        await self.look("welcome")
        await page.get_by_role("button", name="Conversations", exact=True).click()
        await expect(page.get_by_text("Conversations that you begin are listed here.")).to_be_visible()
        await self.look("sidebar-empty")
        await self._close_list()

    async def answer(self) -> None:
        """An answer from its reasoning to its figures, and a context that is nearly full."""
        page = self.page
        await ask(page, QUESTION)
        stream = await self.server.next_stream()
        await stream.send("progress", phase="queued", done=0, total=1900)
        await expect(last_answer(page).locator(".standing")).to_be_visible()
        await self.look("queued")
        await stream.send("delta", i=0, n=1, k=9, r="The user asks about *memory*.", x="")
        stream.sent = 9
        await expect(page.locator("details.reasoning")).to_be_visible()
        await self.look("reasoning")
        await stream.delta(RICH[:300], tokens=70)
        await expect(last_answer(page).locator(".tokens b")).to_have_text("79")
        await self.look("streaming")
        await page.get_by_label("Your question").fill("And on a GPU?")
        await page.keyboard.press("Control+Enter")
        await expect(page.locator(".queued")).to_be_visible()
        await self.look("queue-of-one")
        await page.get_by_role("button", name="Edit the waiting question").click()
        await page.get_by_label("Your question").fill("")
        await stream.delta(RICH[300:], tokens=1700)
        await stream.done()
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await expect(last_answer(page).locator("pre [class^='hljs-']").first).to_be_visible()
        await expect(last_answer(page).locator("math")).to_have_count(2)
        await expect(page.locator(".context")).to_have_attribute("data-full", "true")
        await expect(page.locator(".context-choice")).to_be_visible()
        await self.look("answer")

    async def cut(self) -> None:
        """Turns that are dropped, and sent again."""
        page = self.page
        await page.locator(".context-choice").get_by_role("button", name="Drop").click()
        await expect(page.locator(".cut")).to_contain_text("not sent")
        await self.look("cut")
        await page.locator(".cut").get_by_role("button").click()
        await expect(page.locator(".cut")).to_contain_text("sent to the model again")
        await self.look("cut-undone")

    async def editing(self) -> None:
        """The editors of a question and an answer, and files in the field."""
        page = self.page
        await last_answer(page).get_by_role("button", name="Edit answer").click()
        await expect(page.get_by_label("Edit the answer")).to_be_visible()
        await self.look("edit-answer")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Edit question").click()
        await expect(page.get_by_label("Edit your question")).to_be_visible()
        await self.look("edit-question")
        await page.keyboard.press("Escape")
        await page.evaluate(DRAG, "dragover")
        await expect(page.get_by_text("Drop text files here")).to_be_visible()
        await self.look("drop")
        await page.evaluate(DRAG, "dragleave")
        await expect(page.get_by_text("Drop text files here")).to_have_count(0)
        await page.evaluate(DROP)
        await expect(page.get_by_text("is not a text file")).to_be_visible()
        await self.look("files")
        await page.get_by_role("button", name="Dismiss").click()
        await page.get_by_role("button", name="Remove notes.txt").click()

    async def sheets(self) -> None:
        """The windows: settings with a wrong value, model, shortcuts."""
        page = self.page
        await page.get_by_role("button", name="Settings", exact=True).click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await self.look("settings")
        await page.get_by_label("Top-p").fill("7")
        await expect(page.get_by_role("alert")).to_be_visible()
        await self.look("settings-wrong")
        await page.get_by_label("Top-p").fill("")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.locator(".model").click()
        await expect(page.get_by_role("dialog", name="Model")).to_be_visible()
        await self.look("model")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.keyboard.press("Control+/")
        await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
        await self.look("shortcuts")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)

    async def sidebar(self, folder: Path) -> None:
        """The list: with a menu, a field for a title, a selection, searches, a failed import, and an undo."""
        page = self.page
        if await page.locator(".sidebar").count() == 0:
            await page.get_by_role("button", name="Conversations", exact=True).click()
        await expect(page.locator(".conversation")).to_have_count(1)
        await self.look("sidebar")
        menu = page.get_by_role("button", name=f"Actions for {QUESTION[:10]}")
        await menu.click()
        await self.look("sidebar-menu")
        await page.locator(".conversation").get_by_role("button", name="Rename").click()
        await expect(page.get_by_label("Title", exact=True)).to_be_focused()
        await self.look("sidebar-rename")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Select", exact=True).click()
        await page.get_by_role("checkbox").check()
        await self.look("sidebar-selection")
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_label("Search conversations").fill("glue")
        await expect(page.get_by_text("No conversation contains")).to_be_visible()
        await self.look("sidebar-nothing-found")
        await page.get_by_label("Search conversations").fill("neighbours")
        await expect(page.locator(".excerpt mark")).to_have_text(["neighbours"])
        await self.look("sidebar-found")
        await page.get_by_label("Search conversations").fill("")
        (folder / "notes.json").write_text("no json")
        async with page.expect_file_chooser() as chooser:
            await page.get_by_role("button", name="Import").click()
        await (await chooser.value).set_files(folder / "notes.json")
        await expect(page.locator(".toast")).to_contain_text("not JSON")
        await self.look("import-failed")
        await page.get_by_role("button", name="Dismiss").click()
        await menu.click()
        await page.locator(".conversation").get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("button", name="Undo")).to_be_visible()
        await self.look("undo")
        await page.get_by_role("button", name="Undo").click()
        await expect(last_answer(page)).to_be_visible()
        if page.viewport_size and page.viewport_size["width"] < MIN_BESIDE:
            await expect(page.locator(".sidebar")).to_have_count(0)

    async def branches(self) -> None:
        """A right-to-left answer, calls of tools, branches, and a summary in the place of older turns."""
        page = self.page
        await page.get_by_role("button", name="New chat").click()
        await ask(page, RIGHT_TO_LEFT[0])
        await (await self.server.next_stream()).answer(RIGHT_TO_LEFT[1], size=100)
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await self.look("right-to-left")
        await page.get_by_role("button", name="Answer again").click()
        stream = await self.server.next_stream()
        tool = [{"k": 0, "id": "c", "name": "search"}, {"k": 0, "a": '{"words": ["paged", "cache"]}'}]
        await stream.send("delta", i=0, n=1, k=230, x="", tool=tool)
        stream.sent = 230
        await stream.done("tool_calls")
        await last_answer(page).locator(".tools summary").click()
        await expect(last_answer(page).get_by_role("group", name="Branch 2 of 2")).to_be_visible()
        await self.look("tool-calls")
        await last_answer(page).get_by_role("button", name="Previous branch").click()
        await expect(last_answer(page).get_by_role("group", name="Branch 1 of 2")).to_be_visible()
        await self.look("branches")
        await ask(page, "Briefly?")
        stream = await self.server.next_stream()
        await stream.delta("In short.", tokens=1600)
        await stream.done()
        await page.locator(".context-choice").get_by_role("button", name="Summarize").click()
        await (await self.server.next_stream()).answer("The server is started with quire serve.", size=100)
        await expect(page.locator(".cut")).to_contain_text("the summary below")
        await self.look("summary")
        await page.locator(".answer").first.get_by_role("button", name="Delete this answer").click()
        await expect(page.locator(".toast")).to_contain_text("was deleted")
        await self.look("deleted")
        await page.get_by_role("button", name="Undo").click()
        await page.get_by_role("button", name="New chat").click()
        await page.get_by_role("button", name="Settings", exact=True).click()
        await page.get_by_label("Seed", exact=True).fill("7")
        await page.keyboard.press("Escape")
        await ask(page, "A long question. " * 200)
        await (await self.server.next_stream()).answer("It is long.", size=100)
        await expect(page.get_by_role("button", name="Show all")).to_be_visible()
        await self.look("long-question")

    async def preview(self) -> None:
        """A document of an answer, shown beside its code."""
        page = self.page
        await page.get_by_role("button", name="New chat").click()
        await ask(page, "Show a heading.")
        await (await self.server.next_stream()).answer("```html\n<h1>A heading</h1>\n```", size=100)
        await last_answer(page).get_by_role("button", name="Preview").click()
        await expect(page.frame_locator(".preview iframe").get_by_role("heading")).to_be_visible()
        await self.look("preview")

    async def storage(self) -> None:
        """A storage that is full, an answer that another tab writes, and what a reload has left of it."""
        page = self.page
        await page.get_by_role("button", name="New chat").click()
        await page.evaluate(FILL_STORAGE)
        await ask(page, "Is there room?")
        await (await self.server.next_stream()).answer("No.")
        await expect(page.locator(".storage")).to_contain_text("storage for this page is full")
        await self.look("storage-full")
        await page.evaluate("empty()")
        writer = await page.context.new_page()
        await writer.goto(self.server.url)
        key = writer.get_by_label("This server requires an API key.")
        await key.fill("secret")
        await key.press("Enter")
        await ask(writer, "And in another tab?")
        stream = await self.server.next_stream()
        await stream.delta("Half an")
        await expect(last_answer(writer)).to_contain_text("Half an")
        await until_last(writer, "messages", text="Half an", state="streaming")
        await page.goto(writer.url)
        await page.reload()
        await expect(last_answer(page).locator(".standing")).to_have_text("being written in another tab")
        await self.look("in-another-tab")
        await writer.close()
        await expect(last_answer(page)).to_have_attribute("data-state", "interrupted")
        await ask(page, "And after a reload?")
        stream = await self.server.next_stream()
        await stream.delta("There is")
        await expect(last_answer(page)).to_contain_text("There is")
        await page.reload()
        await expect(last_answer(page)).to_have_attribute("data-state", "interrupted")
        await expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()
        await self.look("interrupted")
        await page.get_by_role("button", name="New chat").click()

    async def _close_list(self) -> None:
        """Hide the list, which covers the conversation on narrow windows."""
        page = self.page
        close = page.get_by_role("button", name="Close the list")
        if not await close.is_visible():
            close = page.get_by_role("button", name="Conversations", exact=True)
        await close.click()
        await expect(page.locator(".sidebar")).to_have_count(0)

    async def waiting(self) -> None:
        """An answer that is paused, one that the server finishes before it ends, and a question for the next server."""
        page = self.page
        await ask(page, "And then?")
        stream = await self.server.next_stream()
        await stream.delta("After that")
        await stream.send("paused")
        await expect(last_answer(page).locator(".standing")).to_have_attribute("data-phase", "paused")
        await self.look("paused")
        await stream.send("resumed")
        await stream.drain()
        await expect(page.get_by_text("The server is shutting down.")).to_be_visible()
        await self.look("draining")
        await stream.delta(" it ends.")
        await stream.done()
        await expect(last_answer(page)).to_have_attribute("data-state", "done")
        await page.get_by_label("Your question").fill("And on the next server?")
        await page.keyboard.press("Control+Enter")
        await expect(last_answer(page).locator(".standing")).to_have_attribute("data-phase", "held")
        await self.look("held")
        self.server.keeps = True
        await stream.drop(1012)
        stream = await self.server.next_stream()
        await stream.delta("It goes")
        await expect(last_answer(page)).to_contain_text("It goes")
        await self.server.kill()
        await expect(page.get_by_text("cannot be reached")).to_be_visible()
        await expect(last_answer(page).locator(".standing")).to_have_attribute("data-phase", "lost")
        await self.look("waiting-to-go-on")
        self.server.keeps = False
        await self.server.listen()
        await (await self.server.next_stream()).error("stream_not_found", 404, "There is no such stream.")
        await expect(last_answer(page)).to_have_attribute("data-state", "interrupted")
        await self.look("forgotten")
        await expect(page.locator(".dot")).to_have_attribute("data-phase", "ready")
        await page.get_by_role("button", name="New chat").click()

    async def failures(self) -> None:
        """A failed answer, a lost one, a full context, and a page that is out of date."""
        page, server = self.page, self.server
        await ask(page, "x" * 300)
        await (await server.next_stream()).error("overloaded", 503, "The queue is full; try again in a moment.")
        await expect(page.get_by_role("alert")).to_be_visible()
        await self.look("failed")
        await page.get_by_role("button", name="Try again").click()
        stream = await server.next_stream()
        await stream.error("context_length_exceeded", 400, "The request has 2310 tokens; the model's context has 2048.")
        await expect(page.get_by_role("alert")).to_contain_text("2310 tokens")
        await self.look("full")
        await page.get_by_label("Your question").fill("Shorter?")
        await page.keyboard.press("Control+Enter")
        stream = await server.next_stream()
        await stream.delta("Once upon")
        await expect(last_answer(page)).to_contain_text("Once upon")
        await stream.drop(1011)
        await expect(page.get_by_role("alert")).to_contain_text("lost")
        await self.look("lost")
        await ask(page, "Again?")
        await (await server.next_stream()).drop(4400)
        await expect(page.get_by_text("This page is out of date.")).to_be_visible()
        await self.look("out-of-date")

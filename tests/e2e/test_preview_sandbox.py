"""What runs in a preview: it reaches no server, no storage and no page, goes nowhere, and disturbs nothing."""

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.e2e.browsing import ask, last_answer, new_page
from tests.e2e.scripted import ScriptedServer
from tests.e2e.test_previews import previewed

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Runs each attempt, and writes what became of it where the test can read it.
ATTEMPTS = """<p id="said"></p><script>
const results = {};
const timeout = () => new Promise((resolve) => setTimeout(resolve, 50000, "no end"));
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


async def test_it_says_that_parts_of_others_are_missing(hostile: Page, server: ScriptedServer) -> None:
    await previewed(hostile, server, "<link rel='stylesheet' href='https://example.com/a.css'><p>a")
    await expect(hostile.locator(".preview p")).to_have_text("Parts of it are missing: a preview has no network.")


async def test_what_runs_in_a_preview_reaches_nothing(hostile: Page, server: ScriptedServer, foreign: Foreign) -> None:
    await hostile.context.add_cookies([{"name": "secret", "value": "1", "url": server.url}])
    asked: list[str] = []
    shown = await previewed(hostile, server, foreign.name_in(ATTEMPTS, server))
    hostile.on("request", lambda request: asked.append(request.url))
    await expect(shown.locator("#said")).to_contain_text("RTCPeerConnection")
    assert json.loads(await shown.locator("#said").inner_text()) == OUTCOMES
    assert foreign.is_untouched
    assert hostile.url.startswith(server.url) and (await hostile.title()).endswith("Quire")
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

// What is loaded, the state of the server in words, and the current conversation as a request, ready to copy.

import { useState } from "preact/hooks";
import { CopyButton } from "../parts/copy_button.js";
import { Dialog } from "../parts/dialog.js";
import { html } from "../parts/html.js";
import { kindOf, makeRequest } from "../tree/request.js";
import { KEY_VARIABLE, LANGUAGES, makeSnippet } from "./snippets.js";

const STATES = {
  connecting: "connecting",
  loading: "loading the model",
  ready: "ready",
  draining: "shutting down; open answers finish",
  offline: "cannot be reached",
  failed: "the model could not be loaded",
  stale: "this page is out of date",
  locked: "waiting for the API key",
};

export function ModelSheet({ link, conversation, onClose }) {
  const [language, choose] = useState("curl");
  const { details } = link;
  const last = conversation.messages.findLast(({ figures }) => figures?.rate);
  const tokens = (count) => count && `${count.toLocaleString("en")} tokens`;
  const rows = [
    ["Model", link.model],
    ["Server", STATES[link.phase.name]],
    ["Format", details.format],
    ["Quantization", details.quantization ?? (details.format && "none")],
    ["Context", tokens(details.max_model_len)],
    ["KV cache", tokens(details.kv_capacity_tokens)],
    ["Speed of the last answer", last && `${last.figures.rate.toFixed(1)} tokens/s`],
  ].filter(([, value]) => value);
  // Up to the last question: the request for the answer to it.
  const path = conversation.messages.slice(0, conversation.messages.findLastIndex(({ role }) => role === "user") + 1);
  const body = { model: link.model ?? "", ...makeRequest(path, conversation.settings, kindOf(path)) };
  const hasKey = Boolean(link.key);
  const snippet = makeSnippet(language, location.origin, body, hasKey);
  return html`
    <${Dialog} title="Model" onClose=${onClose}>
      <dl class="facts">${rows.map(([name, value]) => html`<dt>${name}</dt><dd><bdi>${value}</bdi></dd>`)}</dl>
      <h3>This conversation as a request</h3>
      <p class="preset-row" role="group" aria-label="Language">
        ${LANGUAGES.map((name) => html`
          <button type="button" class="quiet" aria-pressed=${name === language} onClick=${() => choose(name)}>${name}</button>`)}
        <${CopyButton} read=${() => snippet} label="Copy the request" />
      </p>
      ${hasKey && html`
        <p class="small soft">Set the environment variable <code>${KEY_VARIABLE}</code> to the API key before you run it.</p>`}
      <pre class="snippet" tabindex="0" dir="ltr">${snippet}</pre>
    <//>
  `;
}

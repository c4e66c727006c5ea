// The settings of the shown conversation, with the server's defaults where a setting has no value, and the page's theme.

import { useEffect, useState } from "preact/hooks";
import { Dialog } from "../parts/dialog.js";
import { html } from "../parts/html.js";
import { LABELS } from "../sampling/labels.js";
import { FIELDS, parseField } from "../sampling/sampling.js";
import { HELP, UNSET, complaint } from "./help.js";
import { PageSettings } from "./page_settings.js";
import { PresetRow } from "./preset_row.js";
import { forgetWrong, keepWrong, textsOf } from "./texts.js";

/** @param {{conversation: any, link: any, presets: any, onClose: () => void}} props */
export function SettingsPanel({ conversation, link, presets, onClose }) {
  const { details, answersAnything } = link;
  const { capabilities = {} } = details;
  // What the user sees is text, which may be wrong; only right values become settings.
  const [texts, setTexts] = useState(() => textsOf(conversation));
  useEffect(() => void presets.read(), []);
  const set = (field, text) => {
    setTexts({ ...texts, [field.name]: text });
    const { value, isWrong } = parseField(field, text);
    keepWrong(conversation.id, field.name, isWrong ? text : null);
    if (isWrong) return;
    const { [field.name]: _, ...others } = conversation.settings;
    conversation.configure(value === undefined ? others : { ...others, [field.name]: value });
  };
  const { params, sources } = defaultsOf(details, texts.thinking);
  const use = (values) => {
    forgetWrong(conversation.id);
    conversation.configure(values);
    setTexts(textsOf(conversation));
  };
  return html`
    <${Dialog} title="Settings" className="settings" onClose=${onClose}>
      <p class="small soft">For this conversation, from the next answer on. An empty field means the server's default.</p>
      <${PresetRow} presets=${presets} conversation=${conversation} onUse=${use} />
      <form onSubmit=${(event) => event.preventDefault()}>
        ${FIELDS.filter(({ name, needs }) => !needs || capabilities[needs] || texts[name]).map((field) => html`
          <${FieldRow} key=${field.name} field=${field} text=${texts[field.name]} source=${sources[field.name]}
            fallback=${params[field.name] ?? UNSET[field.name] ?? "the model's default"} onText=${(text) => set(field, text)} />`)}
      </form>
      <${PageSettings} canWriteTitles=${answersAnything} />
    <//>
  `;
}

/** The defaults that act, and who says each. */
function defaultsOf(details, thinking) {
  const { default_sampling_params: params = {}, default_sampling_sources: sources = {} } = details;
  return (thinking === "off" && details.default_sampling_without_thinking) || { params, sources };
}

function FieldRow({ field, text, fallback, source, onText }) {
  const { isWrong } = parseField(field, text);
  const id = `setting-${field.name}`;
  const reset = () => {
    onText("");
    // The button goes.
    document.getElementById(id).focus();
  };
  const common = {
    id,
    value: text,
    "aria-describedby": `${id}-help`,
    "aria-invalid": isWrong ? "true" : undefined,
    onInput: (event) => onText(event.target.value),
  };
  return html`
    <p class="field" data-wide=${field.kind === "text" || field.kind === "json"}>
      <span class="field-head">
        <label for=${id}>${LABELS[field.name]}</label>
        ${text && html`
          <button type="button" class="copy" onClick=${reset}>
            Reset<span class="unseen"> ${LABELS[field.name]}</span></button>`}
      </span>
      <${Input} field=${field} common=${common} fallback=${fallback} />
      <span class="small soft" id=${`${id}-help`}>
        ${isWrong ? html`<b class="failure" role="alert">${complaint(field, text)}</b>` : HELP[field.name]}
        ${source && ` Default ${fallback}: ${source}.`}</span>
    </p>
  `;
}

function Input({ field, common, fallback }) {
  if (field.kind === "choice") {
    return html`
      <select ...${common}>
        <option value="">${fallback}</option>
        ${field.choices.map((value) => html`<option value=${value}>${value}</option>`)}
      </select>
    `;
  }
  if (field.kind === "text" || field.kind === "lines") {
    return html`<textarea ...${common} rows=${field.kind === "text" ? 4 : 2} dir="auto" placeholder=${fallback}></textarea>`;
  }
  if (field.kind === "json") {
    return html`
      <textarea ...${common} class="code" rows="3" dir="ltr" spellcheck="false" autocapitalize="off"
        placeholder=${fallback}></textarea>`;
  }
  return html`<input ...${common} inputmode="decimal" autocomplete="off" placeholder=${String(fallback)} />`;
}

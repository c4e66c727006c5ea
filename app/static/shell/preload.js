// The parts of the page that it can do without at first. They are loaded once it has nothing else to do: later the server
// may be away, or of another version. The libraries for colours and formulas are large, and loaded when they are needed.

import "../conversation/announcer.js";
import "../conversation/branches.js";
import "../conversation/context_choice.js";
import "../conversation/context_meter.js";
import "../conversation/cut_mark.js";
import "../conversation/editor.js";
import "../conversation/failure.js";
import "../conversation/file_list.js";
import "../conversation/files.js";
import "../conversation/long_text.js";
import "../conversation/recovery.js";
import "../conversation/results_form.js";
import "../conversation/results_view.js";
import "../conversation/standing.js";
import "../conversation/summary_ask.js";
import "../conversation/titler.js";
import "../reading/code_blocks.js";
import "../reading/prose.js";
import "../reading/reasoning.js";
import "../reading/tool_calls.js";
import "../settings/panel.js";
import "../store/memory.js";
import "../store/search.js";
import "../stream/http_connection.js";
import { fetchParts, loadStyle } from "./lazy.js";
import "./delete.js";
import "./drop_overlay.js";
import "./found_place.js";
import "./key_form.js";
import "./loading.js";
import "./model_sheet.js";
import "./queued.js";
import "./shortcut_sheet.js";
import "./sidebar.js";
import "./to_end.js";

const STYLES = ["../reading/code_blocks.css", "context.css", "parts.css", "sidebar.css", "window.css"];

// One that is missing is tried again when it is needed.
for (const name of STYLES) loadStyle(name).catch(() => {});
fetchParts();

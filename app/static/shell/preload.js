// The parts of the page that it can do without at first. They are loaded once it has nothing else to do: later the server
// may be away, or of another version. The libraries for colours and formulas are large, and loaded when they are needed.

import "../conversation/recovery.js";
import "../conversation/titler.js";
import "../dock/context_choice.js";
import "../dock/context_meter.js";
import "../dock/drop_overlay.js";
import "../dock/files.js";
import "../dock/queued.js";
import "../dock/to_end.js";
import "../list/sidebar.js";
import "../live/view.js";
import { fetchParts, loadStyle } from "../parts/lazy.js";
import "../reading/announcer.js";
import "../reading/code_blocks.js";
import "../reading/prose.js";
import "../server/key_form.js";
import "../server/loading.js";
import "../server/model_sheet.js";
import "../settings/panel.js";
import "../settings/wrong_settings.js";
import "../store/memory.js";
import "../store/search.js";
import "../stream/http_connection.js";
import "../tokens/tokens_view.js";
import "../turns/branches.js";
import "../turns/cut_mark.js";
import "../turns/editor.js";
import "../turns/failure.js";
import "../turns/file_list.js";
import "../turns/long_text.js";
import "../turns/reasoning.js";
import "../turns/results_form.js";
import "../turns/results_view.js";
import "../turns/sides.js";
import "../turns/standing.js";
import "../turns/summary_ask.js";
import "../turns/tool_calls.js";
import "./delete.js";
import "./found_place.js";
import "./shortcut_sheet.js";

const STYLES = [
  "reading/code_blocks.css", "turns/context.css", "turns/sides.css", "tokens/tokens.css", "parts/parts.css", "list/sidebar.css",
  "parts/window.css", "live/live.css",
];

// One that is missing is tried again when it is needed.
for (const name of STYLES) loadStyle(name).catch(() => {});
fetchParts();

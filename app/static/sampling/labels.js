// What the settings are called, also in messages of the server, which names the fields of requests.

/** @type {Record<string, string>} by the name of the field */
export const LABELS = {
  system: "System prompt",
  temperature: "Temperature",
  top_p: "Top-p",
  top_k: "Top-k",
  min_p: "Min-p",
  repetition_penalty: "Repetition penalty",
  presence_penalty: "Presence penalty",
  frequency_penalty: "Frequency penalty",
  seed: "Seed",
  max_tokens: "Max tokens",
  stop: "Stop strings",
  thinking: "Thinking",
  reasoning_effort: "Thinking effort",
  json_schema: "JSON schema",
  tools: "Tools",
  n: "Answers at once",
  token_probabilities: "Token probabilities",
};

/** What else the server calls a setting. @type {Record<string, string>} */
const PATHS = { "response_format.json_schema.schema": "json_schema", response_format: "json_schema", max_completion_tokens: "max_tokens" };

// A word of English is a field only where the message begins with it.
const AT_BEGIN = Object.keys(LABELS).filter((name) => !name.includes("_"));
const ANYWHERE = [...Object.keys(PATHS), ...Object.keys(LABELS).filter((name) => name.includes("_"))];
const NAMES = new RegExp(`(?<![\\w.])(?:${ANYWHERE.join("|").replaceAll(".", "\\.")})(?!\\w)|^(?:${AT_BEGIN.join("|")})(?=[ .[])`, "g");

/** A message of the server in which settings have the names that the page gives them. @param {string} message */
export const withLabels = (message) => message.replace(NAMES, (name) => `“${LABELS[PATHS[name] ?? name]}”`);

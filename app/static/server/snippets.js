// A chat request in three languages. It reads an API key from the environment: the page does not show the secret.

export const LANGUAGES = ["curl", "Python", "JavaScript"];

/** The variable that has the API key, as for the commands in a terminal. */
export const KEY_VARIABLE = "QUIRE_API_KEY";

/**
 * @param {string} language
 * @param {string} origin
 * @param {Record<string, any>} body
 * @param {boolean} [hasKey] whether the server asks for an API key
 */
export function makeSnippet(language, origin, body, hasKey = false) {
  if (language === "Python") return python(origin, body, hasKey);
  if (language === "JavaScript") return javascript(origin, body, hasKey);
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", `'\\''`);
  return [
    `curl ${origin}/v1/chat/completions`,
    ...(hasKey ? [`-H "Authorization: Bearer $${KEY_VARIABLE}"`] : []),
    "-H 'Content-Type: application/json'",
    `-d '${quoted}'`,
  ].join(" \\\n  ");
}

// Others are no arguments of OpenAI's client.
const OPENAI_FIELDS = (
  "model messages temperature top_p presence_penalty frequency_penalty seed max_tokens stop reasoning_effort " +
  "response_format tools"
).split(" ");

function python(origin, body, hasKey) {
  const known = Object.entries(body).filter(([name]) => OPENAI_FIELDS.includes(name));
  const extra = Object.entries(body).filter(([name]) => !OPENAI_FIELDS.includes(name));
  const lines = known.map(([name, value]) => `    ${name}=${literal(value)},`);
  if (extra.length) lines.push(`    extra_body=${literal(Object.fromEntries(extra))},`);
  const key = hasKey ? `os.environ["${KEY_VARIABLE}"]` : '"none"';
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${origin}/v1", api_key=${key})`,
    "stream = client.chat.completions.create(",
    ...lines,
    "    stream=True,",
    ")",
    "for chunk in stream:",
    '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
  ].join("\n");
}

/** JSON is Python but for three words, which stand outside of strings. */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`).join(", ")}}`;
}

function javascript(origin, body, hasKey) {
  const key = hasKey ? `, Authorization: \`Bearer \${process.env.${KEY_VARIABLE}}\`` : "";
  return [
    `const response = await fetch("${origin}/v1/chat/completions", {`,
    '  method: "POST",',
    `  headers: { "Content-Type": "application/json"${key} },`,
    `  body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")}),`,
    "});",
    "const { choices } = await response.json();",
    "console.log(choices[0].message.content);",
  ].join("\n");
}

// The settings that are JSON: the schema that answers satisfy, and the tools that they may call. They are kept as the text
// that the user has written.

/** Each with the capability in /v1/models that it needs. @type {import("./field_types.js").Field[]} */
export const JSON_FIELDS = [
  { name: "json_schema", kind: "json", needs: "structured_output" },
  { name: "tools", kind: "json", isList: true, needs: "tools" },
];

/**
 * Whether a text is JSON of the kind of a field: an object or, if `isList`, a list of objects.
 * @param {{isList?: boolean}} field
 * @param {string} text
 */
export function isJson({ isList }, text) {
  try {
    const value = JSON.parse(text);
    return isList ? Array.isArray(value) && value.every(isObject) : isObject(value);
  } catch {
    return false;
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The request's fields, from texts that are right. @param {{json_schema?: string, tools?: string}} texts */
export const toJsonFields = ({ json_schema: schema, tools }) => ({
  ...(schema && { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } } }),
  ...(tools && { tools: JSON.parse(tools) }),
});

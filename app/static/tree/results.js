// What the tools that an answer calls have given: a question with `results`, one for each call. The page runs no tools; the
// user enters the results.

/** Whether a question has the results of an answer's calls. */
export const isResultOf = (question, answer) => Boolean(question?.results && answer?.tools?.length);

/** The calls of an answer, as OpenAI has them. */
export const toCalls = ({ tools }) =>
  tools.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } }));

/** The results of a question, as OpenAI's messages. */
export const toResults = ({ results }) =>
  results.map(({ id, text }) => ({ role: "tool", tool_call_id: id, content: text }));

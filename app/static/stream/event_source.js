// Server-sent events from the body of a response. (EventSource itself cannot send a request body or a key.)

/**
 * The data of each event, as the stream arrives.
 * @param {ReadableStream<Uint8Array>} body
 * @param {() => void} onBytes called when anything arrives, heartbeats too
 * @returns {AsyncGenerator<string>}
 */
export async function* readEvents(body, onBytes = () => {}) {
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  for await (const bytes of chunksOf(body)) {
    onBytes();
    rest += decoder.decode(bytes, { stream: true });
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      if (line !== "" || !data.length) continue;
      yield data.join("\n");
      data = [];
    }
  }
}

/** The chunks of a stream; not all browsers can iterate over one. */
async function* chunksOf(body) {
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

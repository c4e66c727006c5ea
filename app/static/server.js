// The two HTTP questions the page asks before it opens its socket.

/**
 * How far the server is: `{status: "loading" | "ready" | "draining" | "failed", progress, message?}`.
 * The answer is 503 unless ready, with the same body.
 * @throws when nothing answers.
 */
export async function readHealth() {
  const response = await fetch("/readyz", { cache: "no-store" });
  return response.json();
}

/**
 * The served model's name: `{model}`, or `{refused: true}` when a key is missing or wrong.
 * @throws when the server cannot say yet.
 */
export async function readModel(key) {
  // A header can carry nothing else.
  if (key && !/^[\x21-\x7e]+$/.test(key)) return { refused: true };
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch("/v1/models", { headers, cache: "no-store" });
  if (response.status === 401) return { refused: true };
  if (!response.ok) throw new Error(`/v1/models answered ${response.status}`);
  const { data } = await response.json();
  return { model: data[0].id };
}

// The HTTP requests of the page beside its connections: two before one is opened, also when that fails, and one that ends a
// stream without it.

// A network that is gone may leave a request without an answer for minutes.
const LIMIT_MS = 10_000;
const get = (path, headers) => fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(LIMIT_MS) });

/** The header with the key, if there is one. @param {string | null} key */
export const authorization = (key) => (key ? { Authorization: `Bearer ${key}` } : undefined);

/**
 * The server's state: `{status: "loading" | "ready" | "draining" | "failed", progress, message?}`.
 * Unless it is ready, the status code is 503, with the same body.
 * @throws if the server cannot be reached.
 */
export async function readHealth() {
  return (await get("/readyz")).json();
}

/**
 * The served model's name and its entry in the list, or that the key is missing or wrong.
 * @returns {Promise<{model?: string, details?: object, rejected?: boolean}>}
 * @throws if the server returns another error.
 */
export async function readModel(key) {
  // Other characters are not allowed in a header.
  if (key && !/^[\x21-\x7e]+$/.test(key)) return { rejected: true };
  const response = await get("/v1/models", authorization(key));
  if (response.status === 401) return { rejected: true };
  if (!response.ok) throw new Error(`/v1/models answered ${response.status}`);
  const { data } = await response.json();
  return { model: data[0].id, details: data[0] };
}

/**
 * End a stream that the server keeps, also while the page ends.
 * @returns {Promise<boolean>} whether it has ended, as one has that the server does not know
 */
export function cancelKept(stream, key) {
  const address = `/v1/streams/${encodeURIComponent(stream)}`;
  const ending = fetch(address, { method: "DELETE", headers: authorization(key), keepalive: true });
  return ending.then(({ ok, status }) => ok || status === 404, () => false);
}

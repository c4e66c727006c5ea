// The two HTTP requests of the page before it opens its socket.

/**
 * The server's state: `{status: "loading" | "ready" | "draining" | "failed", progress, message?}`.
 * Unless it is ready, the status code is 503, with the same body.
 * @throws if the server cannot be reached.
 */
export async function readHealth() {
  const response = await fetch("/readyz", { cache: "no-store" });
  return response.json();
}

/**
 * The served model: `{model, details}`, its name and its entry in the list, or `{rejected: true}` if the key is missing or wrong.
 * @returns {Promise<{model?: string, details?: object, rejected?: boolean}>}
 * @throws if the server returns another error.
 */
export async function readModel(key) {
  // Other characters are not allowed in a header.
  if (key && !/^[\x21-\x7e]+$/.test(key)) return { rejected: true };
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch("/v1/models", { headers, cache: "no-store" });
  if (response.status === 401) return { rejected: true };
  if (!response.ok) throw new Error(`/v1/models answered ${response.status}`);
  const { data } = await response.json();
  return { model: data[0].id, details: data[0] };
}

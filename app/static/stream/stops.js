// Streams that the user has stopped, and that the server may still write: it keeps them without a connection, and one that
// is lost takes the `cancel` with it, also when nobody has noticed yet. The server is told again by the next connection, also
// after a reload.

import { tabStorage } from "../store/web_storage.js";
import { cancelKept } from "./server.js";

const NAME = "quire.stops";
// A request that ends every connection is not sent for ever.
const MAX_TOLD = 3;

/**
 * @typedef {object} Stop
 * @property {import("./stream.js").Position | null} [position] of a stream that the server keeps
 * @property {object} [request] of one that it may have begun, under the page's id as its key
 */

export class Stops {
  /** By the page's ids of the streams. @type {Map<string, Stop & {numTold: number}>} */
  #open;
  #storage;

  /** @param {import("../store/web_storage.js").WebStorage} storage */
  constructor(storage = tabStorage) {
    this.#storage = storage;
    this.#open = new Map(JSON.parse(storage.get(NAME) ?? "[]"));
  }

  /** Note that a stream was stopped. @param {string} id @param {Stop} stop */
  add(id, stop) {
    this.#open.set(id, { ...stop, numTold: 0 });
    this.#keep();
  }

  /** Note that the server has ended a stream. */
  settle(id) {
    if (this.#open.delete(id)) this.#keep();
  }

  /** Tell the server, by a new connection, of all stops that it has not confirmed. */
  tellAll(connection, key) {
    for (const id of [...this.#open.keys()]) this.tell(id, connection, key);
  }

  /**
   * Tell the server of a stop; without effect if it was not noted, or is confirmed.
   * @param {string} id
   * @param {{start: (id: string, request: any, key: string) => unknown, cancel: (id: string) => unknown}} connection
   * @param {string | null} key the API key
   */
  tell(id, connection, key) {
    const stop = this.#open.get(id);
    if (!stop) return;
    stop.numTold += 1;
    this.#keep();
    if (stop.numTold > MAX_TOLD) this.settle(id);
    else if (stop.position) cancelKept(stop.position.stream, key).then((isEnded) => isEnded && this.settle(id));
    else {
      // Only by its key can the server know the answer that it may have begun.
      connection.start(id, stop.request, id);
      connection.cancel(id);
    }
  }

  #keep() {
    if (this.#open.size) this.#storage.set(NAME, JSON.stringify([...this.#open]));
    else this.#storage.remove(NAME);
  }
}

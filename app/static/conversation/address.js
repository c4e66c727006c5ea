// What the page's address names: a conversation by its id, the live view, or nothing.

/** The address that opens the live view beside a new conversation. */
export const LIVE_ADDRESS = "#live";

/** Whether the address names the live view. */
export const isLiveAddressed = () => location.hash === LIVE_ADDRESS;

/** The id of the conversation that the address names, "" if it names none. */
export const addressedId = () => (isLiveAddressed() ? "" : location.hash.slice(1));

// Whether there is a real keyboard, and which key sends a text.

/**
 * Whether a field may take the focus by itself: on a phone, this would open the on-screen keyboard. A computer without
 * a mouse has a keyboard.
 */
export const hasKeyboard = () => !matchMedia("(pointer: coarse)").matches;

/**
 * Whether a key sends a text of lines: Enter, but on a phone, whose keyboard has no other key for a new line, Ctrl + Enter.
 *
 * @param {KeyboardEvent} event
 */
export const isSending = (event) =>
  event.key === "Enter" && (event.ctrlKey || event.metaKey || (!event.shiftKey && hasKeyboard()));

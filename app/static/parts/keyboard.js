// Whether there is a real keyboard.

/**
 * Whether a field may take the focus by itself: on a phone, this would open the on-screen keyboard. A computer without
 * a mouse has a keyboard.
 */
export const hasKeyboard = () => !matchMedia("(pointer: coarse)").matches;

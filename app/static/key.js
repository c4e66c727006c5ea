// The API key is stored in this tab's sessionStorage only: not in a URL, not on disk.

const NAME = "quire.key";

export const readKey = () => sessionStorage.getItem(NAME);
export const keepKey = (key) => sessionStorage.setItem(NAME, key);
export const forgetKey = () => sessionStorage.removeItem(NAME);

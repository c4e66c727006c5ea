// The API key lives in this tab's sessionStorage and nowhere else: never in a URL, never on disk.

const NAME = "quire.key";

export const readKey = () => sessionStorage.getItem(NAME);
export const keepKey = (key) => sessionStorage.setItem(NAME, key);
export const forgetKey = () => sessionStorage.removeItem(NAME);

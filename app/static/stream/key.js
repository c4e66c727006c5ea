// The API key is stored in this tab's sessionStorage only: not in a URL, not on disk.

import { tabStorage } from "../store/web_storage.js";

const NAME = "quire.key";

export const readKey = () => tabStorage.get(NAME);
export const keepKey = (key) => tabStorage.set(NAME, key);
export const forgetKey = () => tabStorage.remove(NAME);

// Parts of the page that are loaded when they are first needed or, before that, by preload.js.

import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "./html.js";

/** Of each component. @type {(() => Promise<void>)[]} */
const fetches = [];

/**
 * A component that is loaded when it is first shown. It may get `fallback`, shown until then, and `onMissing`, called if it
 * cannot be loaded.
 * @param {(again: string) => Promise<any>} load imports the module; its argument, empty at first, ends the address
 * @param {string} name of the component in it
 * @param {string} [style] of a style sheet, from the folder of the page
 */
export function lazy(load, name, style) {
  /** @type {any} */
  let component = null;
  const loadModule = retrying(load);
  const fetchPart = async () => {
    const [module] = await Promise.all([loadModule(), style && loadStyle(style)]);
    component = module[name];
  };
  fetches.push(fetchPart);
  /** Load it before it is shown. */
  Lazy.load = fetchPart;
  return Lazy;
  function Lazy({ fallback = null, onMissing = () => {}, ...props }) {
    const [, setLoaded] = useState(component !== null);
    const isMissing = useRef(false);
    // With each rendering until it is there: one follows when the server is back.
    useEffect(() => {
      // It may have come since this was rendered.
      if (component) return setLoaded(true);
      fetchPart().then(() => setLoaded(true), () => {
        if (!isMissing.current) sayMissing();
        isMissing.current = true;
        onMissing();
      });
    });
    return component ? html`<${component} ...${props} />` : fallback;
  }
}

/**
 * A function that imports a module; `load` gets the end of its address: another one after each failure, because Chromium
 * 153 never asks again for an address that has failed.
 * @param {(again: string) => Promise<any>} load
 */
export function retrying(load) {
  let numFailures = 0;
  return () => load(numFailures ? `?${numFailures}` : "").catch((error) => {
    numFailures++;
    throw error;
  });
}

/** Load all components, so that each is there when it is first shown. One that is missing is tried again then. */
export const fetchParts = () => fetches.forEach((fetchPart) => fetchPart().catch(() => {}));

/** Let the page say that a part of it could not be loaded. */
export function sayMissing() {
  dispatchEvent(new Event("partmissing"));
}

/** Styles of several components may be in one sheet. @type {Map<string, Promise<void>>} */
const styles = new Map();

/** Load a style sheet, once; `name` is relative to the folder of the page. */
export function loadStyle(name) {
  if (!styles.has(name)) {
    styles.set(name, new Promise((resolve, reject) => {
      const link = document.createElement("link");
      link.rel = "stylesheet";
      link.href = new URL(`../${name}`, import.meta.url).href;
      link.onload = () => resolve();
      link.onerror = () => {
        styles.delete(name);
        link.remove();
        reject(new Error(`${name} could not be loaded`));
      };
      document.head.append(link);
    }));
  }
  return styles.get(name);
}

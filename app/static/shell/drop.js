// Files that are dragged onto the page.

import { useEffect, useState } from "preact/hooks";

const hasFiles = (event) => event.dataTransfer?.types.includes("Files");

/** @param {(files: FileList) => void} onFiles @returns {boolean} whether files are over the page now */
export function useDrop(onFiles) {
  const [isOver, setOver] = useState(false);
  useEffect(() => {
    const onDragOver = (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(true);
    };
    const onDragLeave = (event) => event.relatedTarget === null && setOver(false);
    const onDrop = (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(false);
      onFiles(event.dataTransfer.files);
    };
    const listeners = { dragover: onDragOver, dragleave: onDragLeave, drop: onDrop };
    for (const [name, listener] of Object.entries(listeners)) addEventListener(name, listener);
    return () => {
      for (const [name, listener] of Object.entries(listeners)) removeEventListener(name, listener);
    };
  }, []);
  return isOver;
}

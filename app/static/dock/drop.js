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
    const end = new AbortController();
    addEventListener("dragover", onDragOver, end);
    addEventListener("dragleave", onDragLeave, end);
    addEventListener("drop", onDrop, end);
    return () => end.abort();
  }, []);
  return isOver;
}

// Copying to the clipboard, also if the page is not a secure context (plain http on a local network).

const SHOWN_MS = 1600;

/** Copy `text`. Resolves to whether it was copied. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  const worked = document.execCommand("copy");
  area.remove();
  return worked;
}

/** A button that copies the result of `readText`, and shows a confirmation. */
export function copyButton(readText, label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    button.textContent = (await copy(readText())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), SHOWN_MS);
  });
  return button;
}

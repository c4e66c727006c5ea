// A small button that is on or off.

/**
 * @param {string} text
 * @param {string} label
 * @param {boolean} isOn at first
 * @param {(isOn: boolean) => void} onSwitch called with each change
 */
export function switchButton(text, label, isOn, onSwitch) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = text;
  button.setAttribute("aria-label", label);
  button.setAttribute("aria-pressed", String(isOn));
  button.addEventListener("click", () => {
    const isNowOn = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(isNowOn));
    onSwitch(isNowOn);
  });
  return button;
}

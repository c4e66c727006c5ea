// The title of a conversation that neither the user nor the model has named: the beginning of its first question.

const MAX_LENGTH = 60;

/** The first line of a question or the name of its first file, cut between words. */
export function titleOf({ text, files }) {
  const line = (text || files?.[0]?.name || "").trim().split("\n")[0].replace(/\s+/g, " ").replace(/^[#>*\-\s]+/, "") || "Untitled";
  if (line.length <= MAX_LENGTH) return line;
  const cut = line.slice(0, MAX_LENGTH);
  const space = cut.lastIndexOf(" ");
  return `${cut.slice(0, space > MAX_LENGTH / 2 ? space : MAX_LENGTH).replace(/[\ud800-\udbff]$/, "")}…`;
}

// Text files that the user pastes or drops beside a question.

const MAX_BYTES = 1024 * 1024;

/**
 * Read files as text.
 * @param {Iterable<File>} files
 * @returns {Promise<{read: {name: string, text: string}[], problems: string[]}>} each file is in one of both
 */
export async function readTextFiles(files) {
  const read = [];
  const problems = [];
  for (const file of files) {
    const { text, problem } = await readTextFile(file);
    if (problem) problems.push(problem);
    else read.push({ name: file.name, text });
  }
  return { read, problems };
}

async function readTextFile(file) {
  const { name, size } = file;
  if (size > MAX_BYTES) {
    const problem = `“${name}” has ${(size / MAX_BYTES).toFixed(1)} MB; at most 1 MB can be attached. Paste the part you need.`;
    return { problem };
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { text: text.replaceAll("\r\n", "\n") };
  } catch {
    // Not UTF-8, or a folder.
  }
  return { problem: `“${name}” is not a text file (UTF-8). Only text can be attached.` };
}

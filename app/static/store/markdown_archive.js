// Conversations as Markdown, and back: the shown branch of each, one heading and one mark a message, and a mark behind a
// message that is a cut (tree/cut.js). A line of a message that looks like a mark is escaped by a backslash.

import { cutsOf } from "../tree/cut.js";
import { newConversation, newId } from "../tree/records.js";
import { contentOf } from "../tree/request.js";
import { ImportError } from "./archive.js";

const MARK = /^<!-- quire: (?:(conversation|user|assistant)|cut (\d{1,6})) -->$/;
const ESCAPED = /^\\+<!-- quire: /;
const CUT = "*From here on, older messages are not sent to the model.*";
const mark = (kind) => `<!-- quire: ${kind} -->`;

/**
 * @param {{title: string, path: any[]}[]} conversations titles, and the messages of a branch
 */
export function writeMarkdown(conversations) {
  const parts = conversations.flatMap(({ title, path }) => [
    `${mark("conversation")}\n# ${title.replace(/\s+/g, " ")}`,
    ...writeMessages(path),
  ]);
  return `${parts.join("\n\n")}\n`;
}

function writeMessages(path) {
  const cuts = cutsOf(path).map(({ message }) => message).filter(({ isUndone }) => !isUndone);
  return path.flatMap((message) => {
    const { role, keeps } = message;
    const written = `${mark(role)}\n## ${role === "user" ? "Question" : "Answer"}\n\n${escape(contentOf(message))}`;
    return cuts.includes(message) ? [written, `${mark(`cut ${keeps}`)}\n${CUT}`] : [written];
  });
}

/** Without a final newline: Markdown does not show it. */
const escape = (text) =>
  text.split("\n").map((line) => (MARK.test(line) || ESCAPED.test(line) ? `\\${line}` : line)).join("\n").trimEnd();

const unescape = (line) => (ESCAPED.test(line) ? line.slice(1) : line);

/**
 * @param {string} text
 * @param {number} now
 * @returns {import("../tree/record_types.js").Records}
 * @throws {ImportError}
 */
export function readMarkdown(text, now) {
  const sections = split(text);
  if (sections[0]?.kind !== "conversation") {
    throw new ImportError("The file has no conversations of Quire. Choose a Markdown file that this page has exported.");
  }
  /** @type {import("../tree/record_types.js").Records} */
  const records = { conversations: [], messages: [] };
  for (const { kind, keeps, lines } of sections) {
    if (keeps !== undefined) {
      Object.assign(records.messages.at(-1) ?? {}, { keeps });
    } else if (kind === "conversation") {
      const title = (lines[0] ?? "").replace(/^# /, "").trim();
      records.conversations.push({ ...newConversation(now), title, titleFrom: "user" });
    } else {
      const conversation = records.conversations.at(-1);
      const body = lines.slice(lines[0]?.startsWith("## ") ? 1 : 0).map(unescape).join("\n");
      const message = {
        id: newId(), conversation: conversation.id, parent: conversation.head, role: kind, text: body.trim(),
        createdAt: now + records.messages.length, ...(kind === "assistant" && { state: "done" }),
      };
      records.messages.push(/** @type {any} */ (message));
      conversation.head = message.id;
    }
  }
  return records;
}

function split(text) {
  const sections = [];
  for (const line of text.replaceAll("\r\n", "\n").split("\n")) {
    const [isMark, kind, keeps] = MARK.exec(line) ?? [];
    if (isMark) sections.push({ kind, keeps: keeps && Number(keeps), lines: [] });
    else sections.at(-1)?.lines.push(line);
  }
  return sections;
}

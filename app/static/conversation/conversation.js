// One conversation: its messages as a tree, the branch that is shown, and at most one answer that this page writes.
// A question whose answer fails before its first token goes back into the draft, where it can be edited.

import { append, end, endOf, isBlank, isOpen, newAnswer, newMessage } from "../tree/answer.js";
import { isSummary, isTyped } from "../tree/cut.js";
import { mergeInto } from "../tree/merging.js";
import { kindOf, makeRequest, restOf } from "../tree/request.js";
import { Tree } from "../tree/tree.js";
import { versionsOf } from "../tree/turns.js";
import { removeVain } from "../tree/vain.js";
import { Draft } from "./draft.js";
import { Entry } from "./entry.js";
import { Keeper } from "./keeper.js";
import { INTERRUPTION, lossOf } from "./losses.js";

const CONTINUE_FIELDS = ["continue_final_message", "add_generation_prompt"];

export class Conversation {
  draft;
  /** What shows the growth of the open answer, without the rest of the page. @type {Set<() => void>} */
  watchers = new Set();
  /** The id of the message that is being edited. */
  editing = null;
  #entry;
  #tree;
  #head;
  /** @type {any} the answer that this page writes */
  #open = null;
  #services;
  #keeper;
  /** Ids of the messages that this page has written. */
  #own = new Set();

  /**
   * @param {import("../tree/record_types.js").ConversationRecord} record
   * @param {import("../tree/record_types.js").MessageRecord[]} messages
   * @param {import("./service_types.js").Services} services
   */
  constructor(record, messages, services) {
    this.#entry = new Entry(record);
    this.#services = services;
    this.#tree = new Tree(messages.map((message) => ({ ...message, version: 0 })));
    this.#head = this.#tree.get(record.head) ? record.head : (this.#tree.newestLeaf()?.id ?? null);
    this.#keeper = new Keeper((changed, removed) => this.#store(changed, removed), () => this.#open);
    this.draft = new Draft(record, () => {
      this.#keeper.soon();
      services.onChange();
    });
    // There is no answer any more that it could wait for.
    if (this.#stray && !messages.some(isOpen)) {
      this.draft.adopt(this.#stray);
      this.draft.unqueue();
      this.keep();
    }
  }

  get id() {
    return this.#entry.id;
  }

  get settings() {
    return this.#entry.settings;
  }

  /** Settings of a new conversation, which its first record has. */
  set settings(settings) {
    this.#entry.settings = settings;
  }

  /** Whether its settings were set here, and are not stored. */
  get isConfigured() {
    return this.#entry.isConfigured;
  }

  /** The messages of the shown branch. */
  get messages() {
    return this.#tree.path(this.#head);
  }

  /** The messages of all branches. */
  get all() {
    return this.#tree.all;
  }

  /** Whether its question or its answer is under way, so that it goes on while another conversation is shown. */
  get isBusy() {
    return Boolean(this.#open || this.draft.queued);
  }

  /** Whether it has no message, so that it is not stored. */
  get isEmpty() {
    return this.all.length === 0;
  }

  /** The answer that this page is writing, or undefined. */
  get open() {
    return this.#open ?? undefined;
  }

  /** The branches beside a message: `{number, count}`, from 1. */
  branches(message) {
    const siblings = this.#tree.siblings(message);
    return { number: siblings.indexOf(message) + 1, count: siblings.length };
  }

  /** Whether there are other versions of a part of a turn, see turns.js. */
  hasVersions(message) {
    return versionsOf(this.#tree, message).length > 1;
  }

  /** Show the branch of the sibling that is `step` places after a message. */
  switchBranch(message, step) {
    const siblings = this.#tree.siblings(message);
    const next = siblings[siblings.indexOf(message) + step];
    if (next) this.reveal(next.id);
  }

  /** Show the newest branch with a message, unless the shown one has it. */
  reveal(id) {
    const message = this.#tree.get(id);
    if (!message || this.messages.includes(message)) return;
    this.#head = this.#tree.leaf(message).id;
    this.editing = null;
    this.#save();
  }

  /** Set the settings. */
  configure(settings) {
    this.#entry.configure(settings);
    this.#save();
  }

  /** Send a question, or queue it while an answer is open, in this tab or another. What came to nothing is removed. */
  ask(text, files = []) {
    if (this.#open || isOpen(this.#tree.get(this.#head))) return this.draft.queue(text, files);
    this.#askNext(text, { files });
  }

  /** Ask for a summary that stands in for the messages of the branch before index `from`, see cut.js. */
  summarize(instruction, from) {
    this.#askNext(instruction, { from });
  }

  /**
   * Change the tree. `act` gets it and the id of the end of the shown branch, and returns the new end, the messages that
   * it has changed, and the ids of those that it has removed.
   * @template {{head: string | null, changed: any[], removed: string[]}} Change
   * @param {(tree: Tree, head: string | null) => Change} act
   * @returns {Change}
   */
  change(act) {
    const change = act(this.#tree, this.#head);
    this.#head = change.head;
    for (const message of change.changed) message.version += 1;
    this.#save(change.changed, change.removed);
    return change;
  }

  /** Ask another question in the place of one, on a branch of its own. */
  editQuestion(question, text) {
    this.stop();
    this.editing = null;
    this.#askAt(question.parent, text, question);
  }

  /** Go on with the results of the calls of an answer, or with others in the place of such, on a branch of their own. */
  giveResults(message, results) {
    this.stop();
    this.editing = null;
    this.#askAt(message.results ? message.parent : message.id, "", { results });
  }

  /** Write another answer in the place of one, on a branch of its own. */
  editAnswer(answer, text) {
    this.stop();
    this.editing = null;
    const edited = newMessage(this.id, "assistant", answer.parent, text, Date.now());
    Object.assign(edited, { state: "done", isEdited: true });
    this.#add(edited);
    this.#save([edited]);
  }

  /** Let the model answer a question again, on a branch of its own; a blank end of a branch is replaced. */
  regenerate(answer) {
    this.stop();
    const question = this.#tree.get(answer.parent);
    if (question) this.draft.withdraw(question);
    const removed = isBlank(answer) && !this.#tree.childrenOf(answer.id).length ? [answer.id] : [];
    this.#head = answer.parent;
    for (const id of removed) this.#tree.remove(id);
    this.#answer([], removed);
  }

  /** Let the model continue an answer, on a branch of its own. */
  continueAnswer(answer) {
    this.stop();
    this.#head = answer.id;
    this.#answer([], [], answer);
  }

  /** Put a question without any answer text back into the draft, before the text in it. */
  takeBack(answer) {
    this.draft.putBack(this.#tree.get(answer.parent));
    this.update(answer, { isReturned: true });
  }

  /** Edit a message in its place, or no longer (null). */
  edit(id) {
    this.editing = id;
    this.#services.onChange();
  }

  /** Change stored fields of a message. */
  update(message, fields) {
    Object.assign(message, fields);
    message.version += 1;
    this.#save([message]);
  }

  /** Stop the open answer; its text so far is kept. */
  stop() {
    if (!this.#open) return;
    this.#services.link.cancel(this.#open.id);
    this.#end("stopped");
  }

  /** End an open answer and store nothing any more, because the conversation was deleted. */
  discard() {
    this.#keeper.end();
    if (this.#open) this.#services.link.cancel(this.#open.id);
    this.#open = null;
  }

  /** Start a waiting answer, because the link is ready. */
  resume() {
    if (this.#open && !this.#open.stream) this.#start();
  }

  /** Apply one frame that has changed the stream of the open answer; others are ignored. */
  receive(stream, frame) {
    const answer = this.#open;
    if (answer?.stream !== stream) return;
    if (frame.t === "delta") this.#append(frame);
    else if (frame.t === "finish") answer.finish = endOf(frame);
    else if (frame.t === "done") this.#end("done", frame);
    else if (frame.t === "error") this.#reject(frame);
    else this.#services.onGrowth();
  }

  /** End the open answer, because the connection was closed with `code`. */
  lose(code) {
    if (this.#open?.stream) this.#fail("disconnected", lossOf(code));
  }

  /** Store the open answer and the draft now. */
  keep() {
    this.#keeper.now();
  }

  /**
   * Mark answers as interrupted that nobody writes any more, and take over the question that waits in no page any more.
   * @param {(id: string) => Promise<boolean>} isAbandoned
   */
  async settle(isAbandoned) {
    for (const answer of this.#tree.all.filter((message) => isOpen(message) && message !== this.#open)) {
      if (!(await isAbandoned(answer.id)) || !isOpen(answer)) continue;
      this.update(answer, { state: "interrupted", error: INTERRUPTION });
    }
    const stray = this.#stray;
    if (stray && (await isAbandoned(stray.id)) && this.#stray?.id === stray.id) this.draft.adopt(stray);
    this.#sendQueued();
    this.keep();
  }

  /** Take over what another tab has stored and `removed`. The shown branch grows, and is left only if its end was removed. */
  merge(record, messages, removed = []) {
    const shown = this.#tree.get(this.#head);
    const isAtEnd = shown && !this.#tree.childrenOf(shown.id).length;
    mergeInto(this.#tree, messages, {
      isGone: ({ id }) => removed.includes(id) || !this.#own.has(id),
      isOwn: ({ id }) => id === this.#open?.id,
    });
    this.#entry.merge(record);
    this.draft.merge(record);
    if (!this.#tree.get(this.#head)) this.#head = this.#tree.newestLeaf()?.id ?? null;
    else if (isAtEnd && !this.#open) this.#head = this.#tree.leaf(shown).id;
    this.#sendQueued();
    this.#services.onChange();
  }

  /** Once the answer that a question waited for has ended: ask it, or put it back if the answer is not whole. */
  #sendQueued(before = this.#tree.get(this.#head)) {
    const { queued } = this.draft;
    if (!queued || this.#open || isOpen(before)) return;
    if (before?.state !== "done") return this.draft.unqueue();
    this.draft.queued = null;
    this.ask(queued.text, queued.files);
  }

  /** Ask at the end of the shown branch. */
  #askNext(text, { files = [], from = undefined }) {
    const { head, changed, removed } = removeVain(this.#tree, this.#head);
    const keeps = from === undefined ? undefined : this.#tree.path(head).length - from + 1;
    this.#askAt(head, text, { files, keeps }, changed, removed);
  }

  #askAt(parent, text, { files = [], keeps = undefined, results = undefined }, changed = [], removed = []) {
    const question = newMessage(this.id, "user", parent, text, Date.now());
    Object.assign(question, files.length && { files }, keeps !== undefined && { keeps }, results && { results });
    this.#add(question);
    this.#answer([...changed, question], removed);
  }

  /** Request an answer to the question at the head, or a continuation of the answer `begun` there. */
  #answer(messages, removed, begun = null) {
    const path = this.messages;
    const request = makeRequest(path, this.settings, begun ? restOf(path, this.#services.link) : kindOf(path));
    const parent = begun ? begun.parent : this.#head;
    this.#open = newAnswer(this.id, parent, request, begun, Date.now());
    this.#open.begun = begun?.id;
    this.#add(this.#open);
    if (this.#services.link.isReady) this.#start();
    this.#entry.touch(Date.now());
    this.#save([...messages, this.#open], removed);
  }

  #add(message) {
    this.#own.add(message.id);
    this.#tree.add([message]);
    this.#head = message.id;
  }

  #start() {
    const answer = this.#open;
    answer.model = this.#services.link.model;
    answer.stream = this.#services.link.start(answer.id, answer.request);
  }

  #append(frame) {
    append(this.#open, frame, performance.now());
    this.#keeper.soon();
    this.#services.onGrowth();
  }

  /** Fail the answer; if the server rejected it because it is shutting down, send it on the next connection instead. */
  #reject({ code, message, param }) {
    if (code === "unsupported_parameter" && CONTINUE_FIELDS.includes(param)) return this.#continueByQuestion();
    if (code !== "draining" || this.#open.state !== "waiting") return this.#fail("failed", message, code);
    this.#open.stream = null;
    this.#services.onChange();
  }

  /** The server cannot continue an answer: ask the model for the rest. */
  #continueByQuestion() {
    this.#services.link.canContinue = false;
    const path = this.#tree.path(this.#open.begun);
    this.#open.request = makeRequest(path, this.settings, restOf(path, { canContinue: false }));
    this.#start();
    this.#services.onChange();
  }

  #fail(state, error, code = undefined) {
    const answer = this.#open;
    Object.assign(answer, { error, code });
    this.#end(state);
    // Only into an empty draft: text that the user has typed meanwhile is not changed.
    if (isBlank(answer) && !this.draft.text && isTyped(this.#tree.get(answer.parent))) this.takeBack(answer);
  }

  #end(state, frame = undefined) {
    const answer = this.#open;
    this.#open = null;
    end(answer, state, frame, performance.now());
    this.#save([answer]);
    this.#sendQueued(answer);
  }

  /** The stored question that waits, unless it is this page's: that of another tab, or of a page that has ended. */
  get #stray() {
    return this.draft.isQueueOwn ? null : this.#services.library.get(this.id)?.queued;
  }

  #save(messages = [], removed = []) {
    this.#keeper.save(messages, removed);
    this.#services.onChange();
  }

  /** Store it as the list and other tabs have changed it; without messages, keep what the user has written and set. */
  #store(messages, removed) {
    const { library, keepNew } = this.#services;
    if (this.isEmpty) return keepNew({ ...this.draft.stored, ...this.#entry.configured });
    const first = this.#tree.childrenOf(null).find((message) => !isSummary(message));
    const record = this.#entry.take(library.get(this.id), first, { head: this.#head, ...this.draft.take() });
    library.save(record, messages, removed);
  }
}

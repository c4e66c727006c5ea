// One conversation: its messages as a tree, the branch that is shown, and the answers to one request that this page writes.
// A question whose answer fails before its first token goes back into the draft, where it can be edited.

import { editedIn } from "../store/edits.js";
import { hasFailed, isBlank, isOpen, newAnswers, newMessage } from "../tree/answer.js";
import { besideOf, leaveOne, part, partFor } from "../tree/beside.js";
import { isSummary, isTyped } from "../tree/cut.js";
import { mergeInto } from "../tree/merging.js";
import { kindOf, makeRequest, restOf } from "../tree/request.js";
import { Tree } from "../tree/tree.js";
import { branchOf, versionsOf } from "../tree/turns.js";
import { removeVain } from "../tree/vain.js";
import { abandonedIn, endOfAbandoned, requestAgain } from "./abandoned.js";
import { Draft } from "./draft.js";
import { Entry } from "./entry.js";
import { Keeper } from "./keeper.js";
import { Writer } from "./writer.js";

export class Conversation {
  draft;
  /** What shows the growth of the open answer, without the rest of the page. @type {Set<() => void>} */
  watchers = new Set();
  /** The id of the message that is being edited; at first, of one that was edited when the conversation was left. */
  editing;
  #entry;
  #tree;
  #head;
  #writer;
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
    this.editing = editedIn(this.messages);
    this.#keeper = new Keeper((changed, removed) => this.#store(changed, removed), () => this.#writer.measured);
    this.#writer = new Writer(services.link, {
      onChange: services.onChange,
      onGrowth: () => {
        this.#keeper.soon();
        services.onGrowth();
      },
      onEnd: (answers) => this.#onEnd(answers),
      askForRest: (begun) => this.#requestFor(this.#tree.path(begun), restOf),
    });
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

  /** Whether its question or an answer is under way, so that it goes on while another conversation is shown. */
  get isBusy() {
    return Boolean(this.#open || this.draft.queued) || this.all.some(isOpen);
  }

  /** Whether it has no message, so that it is not stored. */
  get isEmpty() {
    return this.all.length === 0;
  }

  /** The answer that this page is writing, the first one of several, or undefined. */
  get open() {
    return this.#open ?? undefined;
  }

  /** Whether this page is writing an answer. @param {string} id */
  writes(id) {
    return this.#writer.answers.some((answer) => answer.id === id);
  }

  get #open() {
    return this.#writer.answer;
  }

  /** The question that waits in another tab, if there is one. */
  get queuedElsewhere() {
    return this.#stray ?? undefined;
  }

  /** The branches beside a message, see turns.js. */
  branches(message) {
    return branchOf(this.#tree, message);
  }

  /** Whether there are other versions of a part of a turn, see turns.js. */
  hasVersions(message) {
    return versionsOf(this.#tree, message).length > 1;
  }

  /** The answers that are shown beside each other, among them `message`, see beside.js; or it alone. */
  besides(message) {
    return besideOf(this.#tree, message);
  }

  /** Go on with one of the answers that are shown beside each other; the others are its branches. */
  choose(answer) {
    this.#head = answer.id;
    this.#save(part(this.besides(answer)));
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
    this.#save(this.#add({ ...edited, state: "done", isEdited: true }));
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
    this.#writer.stop();
  }

  /** End an open answer and store nothing any more, because the conversation was deleted. */
  discard() {
    this.#keeper.end();
    this.#writer.discard();
  }

  /** Ask for a waiting answer, or for the rest of one, because the link is ready. */
  resume() {
    this.#writer.connect();
  }

  /** Apply one frame that has changed the stream of the open answer; others are ignored. */
  receive(stream, frame) {
    this.#writer.receive(stream, frame);
  }

  /** The connection was closed with `code`: the open answer waits for the next one, or ends. */
  lose(code) {
    this.#writer.lose(code);
  }

  /** Store the open answer and the draft now. */
  keep() {
    this.#keeper.now();
  }

  /**
   * Go on with an answer that nobody writes any more, mark those as interrupted that the server does not keep, and take over
   * the question that waits in no page any more.
   * @param {(id: string, isFinal: boolean) => Promise<boolean>} isAbandoned also gets whether that cannot be taken back
   */
  async settle(isAbandoned) {
    for await (const { answers, goOn } of abandonedIn(this.#tree, (id) => this.writes(id), isAbandoned)) {
      if (!goOn) for (const each of answers) this.update(each, endOfAbandoned(each));
      // Of several requests, the next one has its turn when this one has ended.
      else if (!this.#open) this.#takeOver(answers);
    }
    const stray = this.#stray;
    if (stray && (await isAbandoned(stray.id, true)) && this.#stray?.id === stray.id) this.draft.adopt(stray);
    this.#sendQueued();
    this.keep();
  }

  /** Take over what another tab has stored and `removed`. The shown branch grows, and is left only if its end was removed. */
  merge(record, messages, removed = []) {
    const shown = this.#tree.get(this.#head);
    const isAtEnd = shown && !this.#tree.childrenOf(shown.id).length;
    mergeInto(this.#tree, messages, {
      isGone: ({ id }) => removed.includes(id) || !this.#own.has(id),
      isOwn: ({ id }) => this.writes(id),
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
    this.#answer([...changed, ...this.#add(question)], removed);
  }

  /** Request answers to the question at the head, or a continuation of the answer `begun` there. */
  #answer(messages, removed, begun = null) {
    const path = this.messages;
    const request = this.#requestFor(path, begun ? restOf : kindOf);
    const parent = begun ? begun.parent : this.#head;
    const answers = newAnswers(this.id, parent, request, begun, Date.now());
    const changed = this.#add(...answers);
    this.#writer.begin(...answers);
    this.#entry.touch(Date.now());
    this.#save([...messages, ...changed], removed);
  }

  /** Go on with the answers to a request of another page. */
  #takeOver(answers) {
    if (!answers[0].position) answers[0].request = requestAgain(this.#tree, answers, this.settings);
    this.#writer.takeOver(...answers);
  }

  #requestFor(path, kind) {
    return makeRequest(path, this.settings, kind(path, this.#services.link));
  }

  /** Add a message, or the answers to a request, and return all messages that have changed. */
  #add(...messages) {
    for (const { id } of messages) this.#own.add(id);
    this.#tree.add(messages);
    this.#head = messages[0].id;
    return [...partFor(this.#tree, messages[0]), ...messages];
  }

  #onEnd(answers) {
    const { head, changed, removed } = leaveOne(this.#tree, this.#head, answers);
    this.#head = head;
    this.#save(changed, removed);
    const answer = changed.find(({ id }) => id === head) ?? changed[0];
    this.#sendQueued(answer);
    if (!hasFailed(answer) || !answers.every(isBlank)) return;
    // Only into an empty draft: text that the user has typed meanwhile is not changed.
    if (!this.draft.text && isTyped(this.#tree.get(answer.parent))) this.takeBack(answer);
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

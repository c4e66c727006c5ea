// The conversations that are open in this page: the one that is shown, and those whose answers are still being written, or
// whose questions wait.
// The address names the shown one, so that a reload and the browser's history lead to it.

import { retrying } from "../parts/lazy.js";
import { tabStorage } from "../store/web_storage.js";
import { isOpen } from "../tree/answer.js";
import { newConversation } from "../tree/records.js";
import { addressedId } from "./address.js";
import { begunAnswers, noteEnded } from "./begun.js";
import { Conversation } from "./conversation.js";

// In the tab's sessionStorage: the draft of a new conversation, and what a page that has ended had not stored yet.
const DRAFT = "quire.new";
const UNSTORED = "quire.unstored";

// How long a busy tab may take to say what it holds, before this one does what cannot be taken back: a question that two
// tabs let wait, or whose answer has not begun, would be asked twice, and an answer that the server does not keep is given up.
const FINAL_MS = 2000;

const loadTitler = retrying((again) => import("./titler.js" + again));

export class Desk {
  /** The shown conversation. @type {Conversation} */
  current;
  /** Settings of new conversations. */
  #settings;
  /** @type {Map<string, Conversation>} */
  #busy = new Map();
  /** Shown until that of the address is read, which gets its draft and what was set in it. */
  #first = null;
  /** The id of the conversation that was asked for last. */
  #wanted = null;
  #services;
  #hasRecovered = false;
  /** Made when the first answer has ended. @type {import("./titler.js").Titler | null} */
  #titler = null;

  /**
   * @param {any} link
   * @param {any} library
   * @param {{onChange: () => void, onGrowth: () => void}} listeners see service_types.js
   * @param {() => Record<string, any>} newSettings the settings of new conversations
   */
  constructor(link, library, listeners, newSettings) {
    const keepNew = (fields) => this.current !== this.#first && tabStorage.set(DRAFT, JSON.stringify(fields));
    const onChange = () => {
      // Nobody waits behind a title.
      if (this.#titler && this.hasOpen) this.#titler.stop();
      listeners.onChange();
    };
    this.#services = { link, library, ...listeners, onChange, keepNew };
    this.#settings = newSettings;
    if (addressedId()) this.#first = new Conversation(newConversation(Date.now()), [], this.#services);
    this.current = this.#first ?? this.#makeNew();
    addEventListener("popstate", () => this.openAddress());
  }

  /** Show the conversation that the address names, or a new one. */
  async openAddress() {
    const id = addressedId();
    if (id === this.current.id) return;
    if (id) await this.open(id, { isAddress: true });
    else if (!this.current.isEmpty) this.startNew({ isAddress: true });
  }

  /** Show a new conversation; an answer that is being written goes on. */
  startNew({ isAddress = false } = {}) {
    this.#wanted = null;
    // For the next new one.
    this.current.keep();
    this.#show(this.#makeNew());
    if (!isAddress && location.hash) history.pushState(null, "", location.pathname);
  }

  /**
   * Show a new conversation with what was set and is being written in one that was deleted.
   * @param {Pick<Conversation, "settings" | "draft">} deleted
   * @returns {() => void} gives that up again, unless it was changed since
   */
  startLike({ settings, draft }) {
    const before = tabStorage.get(DRAFT);
    this.startNew();
    const made = this.current;
    if (JSON.stringify(settings) !== JSON.stringify(made.settings)) made.configure(settings);
    if (!draft.isEmpty) made.draft.putBack(draft);
    made.keep();
    const after = tabStorage.get(DRAFT);
    return () => {
      made.keep();
      if (tabStorage.get(DRAFT) !== after) return;
      if (before === null) tabStorage.remove(DRAFT);
      else tabStorage.set(DRAFT, before);
    };
  }

  /** Show a conversation of the library. */
  async open(id, { isAddress = false } = {}) {
    const { library } = this.#services;
    this.#wanted = id;
    const messages = library.get(id) && !this.#find(id) ? await library.messages(id) : [];
    // Meanwhile another one was asked for, or this one again.
    if (this.#wanted !== id || this.current.id === id) return;
    if (!messages) return isAddress && this.startNew({ isAddress });
    const known = this.#find(id);
    if (!known && !library.get(id)) return this.startNew();
    const conversation = known ?? new Conversation(library.get(id), messages, this.#services);
    this.#show(conversation);
    if (!isAddress) history.pushState(null, "", `#${id}`);
    this.settle();
  }

  /** Send a question in the shown conversation. */
  ask(text, files) {
    const isFirst = this.current.isEmpty;
    this.current.ask(text, files);
    if (!isFirst) return;
    tabStorage.remove(DRAFT);
    history.pushState(null, "", `#${this.current.id}`);
  }

  /** Whether an answer of a conversation is being written by this page. */
  isWriting(id) {
    return Boolean(this.#find(id)?.open);
  }

  /** Whether this page is writing the answer with this id, or lets the question with it wait. */
  holds(id) {
    return this.#all.some((conversation) => conversation.writes(id) || conversation.draft.queued?.id === id);
  }

  /** Stop what is being written in conversations that will be deleted: put back, they have all of it. */
  stop(ids) {
    for (const conversation of this.#all) if (ids.includes(conversation.id)) conversation.stop();
  }

  /** Whether any answer is being written by this page. */
  get hasOpen() {
    return this.#all.some((conversation) => conversation.open);
  }

  /** Apply a frame that has changed a stream. */
  receive(stream, frame) {
    const writer = this.#all.find(({ open }) => open?.stream === stream);
    for (const conversation of this.#all) conversation.receive(stream, frame);
    this.#titler?.receive(stream, frame);
    this.#tidy();
    if (writer && frame.t === "done") this.#title(writer);
  }

  /** The connection was closed with `code`. */
  lose(code) {
    for (const conversation of this.#all) conversation.lose(code);
    this.#titler?.stop();
    this.#tidy();
  }

  /** Go on with answers that nobody writes any more, or mark them as interrupted; take over questions that wait in no page. */
  async settle() {
    await this.#adopt();
    for (const conversation of this.#all) {
      conversation.settle((id, isFinal) => this.#isAbandoned(conversation.id, id, isFinal));
    }
  }

  /** Start waiting answers, because the link is ready. */
  resume() {
    for (const conversation of this.#all) conversation.resume();
  }

  /** Store open answers and drafts now, because the page may end; also where a page that ends can still write. */
  keep() {
    for (const conversation of this.#all) conversation.keep();
    // What the page before had not stored is not replaced before it is taken over.
    if (!this.#hasRecovered) return;
    const { library } = this.#services;
    const write = () => tabStorage.set(UNSTORED, JSON.stringify(library.unstored));
    write();
    // A page that goes on stores newer records than these.
    library.settled().then(write);
  }

  /** Store what the page that was here before had not stored. */
  async recover() {
    const unstored = JSON.parse(tabStorage.get(UNSTORED) ?? "{}");
    if (unstored.conversations?.length) await (await import("./recovery.js")).recover(this.#services.library, unstored);
    tabStorage.remove(UNSTORED);
    this.#hasRecovered = true;
  }

  /** Another tab has changed a conversation, and removed messages. */
  async onSaved(id, removed) {
    const { library } = this.#services;
    if (!this.#find(id)) return;
    const messages = await library.messages(id);
    if (messages && library.get(id)) this.#find(id)?.merge(library.get(id), messages, removed);
  }

  /** Conversations were deleted, in this tab or another one. */
  onRemoved(ids) {
    for (const conversation of this.#all.filter(({ id }) => ids.includes(id))) {
      conversation.discard();
      this.#busy.delete(conversation.id);
      if (conversation === this.current) this.startNew();
    }
  }

  /** Go on with what pages have begun whose conversations are not shown here. */
  async #adopt() {
    // What a page has not stored may be further than what is stored.
    if (!this.#hasRecovered) return;
    const { library } = this.#services;
    for (const answer of begunAnswers()) {
      const { conversation: id } = answer;
      if (this.#find(id)) continue;
      const messages = library.get(id) ? await library.messages(id) : [];
      // They cannot be read now.
      if (!messages) continue;
      if (!library.get(id) || !messages.some((each) => each.id === answer.id && isOpen(each))) noteEnded(answer);
      else if (!this.#find(id)) this.#busy.set(id, new Conversation(library.get(id), messages, this.#services));
    }
  }

  /** Whether no tab writes an open answer, or has just ended it; or lets a stored question wait. */
  async #isAbandoned(conversation, id, isFinal) {
    const { library } = this.#services;
    if (await library.isHeldElsewhere(id, isFinal ? FINAL_MS : undefined)) return false;
    if (library.get(conversation)?.queued?.id === id) return true;
    return isOpen((await library.messages(conversation))?.find((message) => message.id === id));
  }

  /** Let the model write the title of a conversation whose answer has ended, unless it writes another answer. */
  async #title(conversation) {
    const module = await loadTitler().catch(() => null);
    if (!module) return;
    this.#titler ??= new module.Titler(this.#services.link, this.#services.library);
    if (!this.hasOpen) this.#titler.ask(conversation);
  }

  #find(id) {
    return this.#all.find((conversation) => conversation.id === id);
  }

  get #all() {
    return [...new Set([this.current, ...this.#busy.values()])];
  }

  #show(conversation) {
    if (this.current.isBusy) this.#busy.set(this.current.id, this.current);
    this.current.keep();
    const before = this.current;
    this.current = conversation;
    if (before === this.#first) handOver(before, conversation);
    this.#tidy();
    this.#services.onChange();
  }

  #tidy() {
    for (const [id, conversation] of this.#busy) if (!conversation.isBusy) this.#busy.delete(id);
  }

  #makeNew() {
    const { settings, ...draft } = JSON.parse(tabStorage.get(DRAFT) ?? "{}");
    const made = new Conversation({ ...newConversation(Date.now(), this.#settings()), ...draft }, [], this.#services);
    if (settings) made.configure(settings);
    return made;
  }
}

/** Give what was written and set in the first conversation of a page to the one that is shown in its place. */
function handOver({ draft, isConfigured, settings }, conversation) {
  if (!draft.isEmpty) conversation.draft.putBack(draft);
  if (isConfigured) conversation.configure({ ...conversation.settings, ...settings });
}

// What the user can do. The functions stay the same between renderings; `latest` holds what they work on.

import { hasKeyboard } from "../parts/keyboard.js";
import { retrying, sayMissing } from "../parts/lazy.js";
import { isSummary } from "../tree/cut.js";

const loadDelete = retrying((again) => import(`./delete.js${again}`));
const loadFiles = retrying((again) => import(`../dock/files.js${again}`));

/**
 * @param {{current: {desk: any, library: any, field: any, follower: any, isListOpen: boolean, setListOpen: any,
 *   setPlace: any, say: any}}} latest
 */
export function makeActions(latest) {
  const conversation = () => latest.current.desk.current;
  const focusField = () => hasKeyboard() && latest.current.field.current.focus({ preventScroll: true });
  const follow = () => latest.current.follower.current.follow();
  const closeDrawer = () => !matchMedia("(min-width: 56rem)").matches && latest.current.setListOpen(false);
  const deleteMessage = async (message) => {
    const module = await loadDelete().catch(sayMissing);
    if (module) module.deleteMessage(latest.current, message);
  };
  return {
    focusField,
    closeDrawer,
    toggleList: () => latest.current.setListOpen(!latest.current.isListOpen),
    /** `place` is where searched words were found, or null. */
    async open(id, place = null) {
      const { desk, setPlace } = latest.current;
      await desk.open(id);
      // Another conversation may have been asked for meanwhile.
      if (place && desk.current.id === id) desk.current.reveal(place.message);
      // Another object, each time: the user may have scrolled away.
      setPlace(place && { ...place });
      closeDrawer();
    },
    ...messageActions(conversation, follow, focusField, deleteMessage),
    // By a real keyboard: one on the screen is there only for a field that has the focus already.
    type() {
      closeDrawer();
      latest.current.field.current.focus({ preventScroll: true });
    },
    ask(text) {
      follow();
      latest.current.desk.ask(text, conversation().draft.detachAll());
      focusField();
    },
    // Of the conversation that is shown next, if text is typed before it is rendered.
    write: (text) => conversation().draft.write(text),
    stop() {
      conversation().stop();
      focusField();
    },
    unqueue() {
      conversation().draft.unqueue();
      focusField();
    },
    startNew() {
      latest.current.desk.startNew();
      closeDrawer();
      follow();
      focusField();
    },
    goToEnd() {
      follow();
      focusField();
    },
    async attach(files) {
      // The browser empties the list of a drop when the event is over.
      const copies = [...files];
      const target = conversation();
      const module = await loadFiles().catch(sayMissing);
      if (!module) return;
      const { read, problems } = await module.readTextFiles(copies);
      target.draft.attach(read);
      // It may not be shown any more, and is read again when it is.
      target.keep();
      if (problems.length) latest.current.say(problems.join(" "));
      focusField();
    },
    detach: (index) => conversation().draft.detach(index),
  };
}

function messageActions(conversation, follow, focusField, deleteMessage) {
  const editLast = () => {
    const question = conversation().messages.findLast((message) => message.role === "user" && !isSummary(message));
    if (!question || conversation().open) return false;
    conversation().edit(question.id);
    return true;
  };
  const actions = {
    edit: (message) => conversation().edit(message.id),
    cancelEdit: () => conversation().edit(null),
    saveQuestion(message, text) {
      follow();
      conversation().editQuestion(message, text);
      focusField();
    },
    saveAnswer(message, text) {
      conversation().editAnswer(message, text);
      focusField();
    },
    giveResults(message, results) {
      follow();
      conversation().giveResults(message, results);
      focusField();
    },
    regenerate(message) {
      follow();
      conversation().regenerate(message);
      focusField();
    },
    choose(message) {
      conversation().choose(message);
      focusField();
    },
    continueAnswer(message) {
      follow();
      conversation().continueAnswer(message);
      focusField();
    },
    takeBack(message) {
      conversation().takeBack(message);
      focusField();
    },
    delete: deleteMessage,
    switchBranch: (message, step) => conversation().switchBranch(message, step),
  };
  // Until a conversation is rendered, the buttons are those of the one before.
  const ofShown = (act) => (message, argument) => message.conversation === conversation().id && act(message, argument);
  return { editLast, ...Object.fromEntries(Object.entries(actions).map(([name, act]) => [name, ofShown(act)])) };
}

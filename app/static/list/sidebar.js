// The list of conversations: search, one line each with a menu, and a selection for deleting or exporting several.

import { Component } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useKeptFocus } from "../parts/focus.js";
import { html } from "../parts/html.js";
import { hasKeyboard } from "../parts/keyboard.js";
// For the library: the first search needs no connection.
import "../store/search.js";
import { ConversationItem } from "./conversation_item.js";
import { nameOfDay, useToday } from "./days.js";
import { makeListActions } from "./list_actions.js";

/**
 * @param {{library: import("../store/library.js").Library, desk: any, actions: any, say: any, numSearches: number}} props
 *   the search gets the focus whenever `numSearches` grows
 */
export function Sidebar({ library, desk, actions: { open, toggleList }, say, numSearches }) {
  const actions = useMemo(() => ({ open, ...makeListActions(library, say, { shown: () => desk.current.id, open, stop: (ids) => desk.stop(ids) }) }), []);
  const root = useRef(null);
  const search = useRef(null);
  useKeptFocus(root.current, () => hasKeyboard() && search.current.focus());
  useEffect(() => {
    if (numSearches) search.current.focus();
  }, [numSearches]);
  const [query, setQuery] = useState("");
  const [selected, setSelected] = useState(null);
  const found = useFound(library, query);
  const today = useToday();
  const shown = query.trim() ? found.list : library.list.map((conversation) => ({ conversation, place: null }));
  const onKeyDown = async (event) => {
    // Here, it does not stop the answer.
    if (event.key === "Escape") {
      event.stopPropagation();
      setQuery("");
    } else if (event.key === "Enter" && query.trim()) {
      const [first] = await library.search(query);
      if (first) open(first.conversation.id, first.place);
    }
  };
  const toggle = (id) => {
    const next = new Set(selected);
    if (!next.delete(id)) next.add(id);
    setSelected(next);
  };
  const lines = shown.map(({ conversation: { id, updatedAt, title, isPinned }, place }) =>
    [id, updatedAt, title, isPinned, desk.isWriting(id), place?.message, place?.excerpt]);
  return html`
    <nav ref=${root} id="sidebar" class="sidebar" aria-label="Conversations" onKeyDown=${(event) => moveFocus(event, search.current)}>
      <div class="sidebar-head">
        <input type="search" ref=${search} class="search" placeholder="Search" aria-label="Search conversations"
          title="Search titles and texts (Ctrl + K)" value=${query} autocomplete="off" spellcheck="false"
          onFocus=${() => library.prepareSearch()} onInput=${(event) => setQuery(event.target.value)}
          onKeyDown=${onKeyDown} />
        <button type="button" class="quiet icon sidebar-close" aria-label="Close the list" onClick=${toggleList}>×</button>
      </div>
      ${library.problem && html`<p class="notice storage" role="alert">${library.problem}</p>`}
      ${shown.length > 0
        ? html`<${Items} look=${[today, ...lines].join("\n")} today=${today} shown=${shown} current=${desk.current.id} selected=${selected}
            isWriting=${(id) => desk.isWriting(id)} onSelect=${toggle} actions=${actions} />`
        : html`<p class="notice">${emptyText(library, query, found.query)}</p>`}
      <${SidebarFoot} selected=${selected} shown=${shown.map(({ conversation }) => conversation)} actions=${actions} onSelection=${setSelected}
        isFound=${query.trim() !== ""} />
    </nav>
  `;
}

/** Arrow keys go from the search to the titles, from one to the next, and back. */
function moveFocus(event, search) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const stops = [search, ...event.currentTarget.querySelectorAll("button.conversation-title")];
  const next = step && stops.includes(event.target) && stops[stops.indexOf(event.target) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

/** Rendered only when something of the list has changed: there may be hundreds of conversations. */
class Items extends Component {
  shouldComponentUpdate({ look, current, selected }) {
    return look !== this.props.look || current !== this.props.current || selected !== this.props.selected;
  }

  render({ shown, today, current, selected, isWriting, onSelect, actions }) {
    const dayOf = ({ isPinned, updatedAt }) => (isPinned ? "Pinned" : nameOfDay(updatedAt, today));
    const items = shown.map(({ conversation, place }) => html`
      <${ConversationItem} key=${conversation.id} conversation=${conversation} place=${place}
        isCurrent=${conversation.id === current} isWriting=${isWriting(conversation.id)}
        isSelected=${selected?.has(conversation.id) ?? null} onSelect=${onSelect} actions=${actions} />`);
    const days = Map.groupBy(items.keys(), (index) => dayOf(shown[index].conversation));
    return html`
      <div class="conversations">
        ${[...days].map(([day, indexes]) => html`
          <section key=${day}>
            <h2 class="day">${day}</h2>
            <ul>${indexes.map((index) => items[index])}</ul>
          </section>`)}
      </div>
    `;
  }
}

/** `isFound`: whether those that are shown were searched for. */
function SidebarFoot({ selected, shown, actions, onSelection, isFound }) {
  if (selected) {
    const ids = [...selected].filter((id) => shown.some((conversation) => conversation.id === id));
    const all = new Set(shown.map(({ id }) => id));
    const finish = (act) => () => {
      act(ids);
      onSelection(null);
    };
    return html`
      <div class="sidebar-foot" role="group" aria-label="Selected conversations">
        <button type="button" class="copy" onClick=${() => onSelection(all)}>All</button>
        <button type="button" class="copy" disabled=${!ids.length} onClick=${finish(actions.exportJson)}>Export</button>
        <button type="button" class="copy danger" disabled=${!ids.length} onClick=${finish(actions.remove)}>
          Delete ${ids.length}</button>
        <button type="button" class="copy" onClick=${() => onSelection(null)}>Cancel</button>
      </div>
    `;
  }
  return html`
    <div class="sidebar-foot">
      <button type="button" class="copy" disabled=${!shown.length} onClick=${() => onSelection(new Set())}>Select</button>
      <button type="button" class="copy" onClick=${actions.import}>Import</button>
      <button type="button" class="copy" disabled=${!shown.length}
        onClick=${() => actions.exportJson(shown.map(({ id }) => id))}>${isFound ? "Export found" : "Export all"}</button>
    </div>
  `;
}

function emptyText(library, query, answered) {
  if (!library.isOpen) return "Reading the stored conversations…";
  if (query.trim() && query !== answered) return "Searching…";
  return query.trim() ? `No conversation contains “${query.trim()}”.` : "Conversations that you begin are listed here.";
}

/** The conversations found for a query; while it is being answered, those of the `query` before. */
function useFound(library, query) {
  const [found, setFound] = useState({ query: "", list: [] });
  const latest = useRef(query);
  latest.current = query;
  const { list } = library;
  const version = list.map(({ id, updatedAt, title }) => id + updatedAt + title).join();
  useEffect(() => {
    if (query.trim()) library.search(query).then((list) => latest.current === query && setFound({ query, list }));
  }, [query, query.trim() && version]);
  return found;
}

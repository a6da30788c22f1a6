// Chips over a concept list. The text of the node is what is saved; a chip is a way to change one line of it.
import { h } from "./dom.js";
import {
  OFF,
  add,
  guess,
  join,
  lineType,
  linesFrom,
  move,
  namesFrom,
  remove,
  replace,
  split,
  toggle,
  write,
} from "./lines.js";
import { openLists } from "./lists.js";
import { sentence } from "./notices.js";
import { counted, t } from "./words.js";

const DELAY = 250; // ms without a key before the server is asked
const UNDO_STEPS = 100;
const HEIGHTS = { note: 24, chip: 36, message: 20, form: 190 }; // as in speed.css
const MARGIN = 400; // px above and below the visible part that are drawn as well

export const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

export const listFiles = (event) =>
  [...(event.dataTransfer?.files ?? [])].filter((file) => /\.(txt|csv|tsv)$/i.test(file.name));

export class Editor {
  /**
   * `source` reads and sets the node: {text(), set(text), kind(), kinds(), file(), retain(), isLinked(),
   * restore(step)};
   * `ask(path, question)` asks the server.
   */
  constructor(source, ask) {
    this.source = source;
    this.ask = ask;
    this.answers = new Map(); // index and text of a line -> how the server reads it
    this.notes = [];
    this.latestCheck = 0;
    this.latestSuggestion = 0;
    this.undoSteps = [];
    this.redoSteps = [];
    this.editing = null; // index of the line that is shown as a form
    this.build();
    this.draw();
    this.check();
  }

  build() {
    const addInput = () => this.addTyped(this.input.value);
    this.rows = []; // {index, raw, type, top, height} of the lines that are shown
    this.top = h("div");
    this.bottom = h("div");
    this.list = h("div", {
      class: "speed-scroll fill chips",
      role: "list",
      "aria-label": t("concepts"),
      onscroll: () => requestAnimationFrame(() => this.drawRows()),
    });
    this.footer = h("div", { class: "footer" });
    this.suggestions = h("datalist", { id: `speed-names-${Math.random().toString(36).slice(2)}` });
    this.input = h("input", {
      placeholder: t("Add names, separated by commas, or paste a column"),
      "aria-label": t("add a concept"),
      // prettier-ignore
      title: t("For a comma in a name, write \"Doe, Jane\" or Doe\\, Jane."),
      list: this.suggestions.id,
      oninput: () => this.suggest(this.input.value),
      onkeydown: (event) => event.key === "Enter" && addInput(),
      onblur: addInput,
      onpaste: (event) => this.paste(event),
    });
    const button = h("button", { onclick: addInput, title: t("Add (Enter)") }, t("Add"));
    this.inputRow = h("div", { class: "add" }, this.input, button);
    const events = {
      onkeydown: (event) => this.handleKey(event),
      ondragover: (event) => this.dragOver(event),
      ondragleave: () => this.element.classList.remove("drop"),
      ondrop: (event) => this.drop(event),
    };
    const parts = [this.inputRow, this.suggestions, this.list, this.footer];
    this.element = h("div", { class: "column fill", ...events }, ...parts);
    new ResizeObserver(() => this.drawRows()).observe(this.list);
  }

  /** Redraws after the text or the kind changed, and asks the server about it. */
  refresh() {
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), DELAY);
  }

  async check() {
    const request = ++this.latestCheck;
    const { source } = this;
    const text = source.text();
    const question = { text, kind: source.kind(), file: source.file(), retain: source.retain() };
    const answer = await this.ask("concepts/check", question);
    if (request !== this.latestCheck || !answer?.lines) return; // outdated, or no server
    const lines = split(text);
    this.answers = new Map(
      answer.lines.map((reading) => {
        const message = [reading.problem, ...(reading.notes ?? [])].map(sentence).join(" ").trim();
        return [`${reading.line - 1} ${lines[reading.line - 1]?.raw}`, { ...reading, message }];
      }),
    );
    this.notes = answer.notes.map(sentence);
    this.draw();
  }

  answer(index, raw) {
    return this.answers.get(`${index} ${raw}`);
  }

  change(text, focusIndex) {
    const previous = this.source.text();
    if (text === previous || this.source.isLinked()) return;
    this.said = "";
    this.undoSteps.push(previous);
    if (this.undoSteps.length > UNDO_STEPS) this.undoSteps.shift();
    this.redoSteps = [];
    this.source.set(text);
    this.refresh();
    if (focusIndex !== undefined) this.focus(focusIndex);
  }

  /** Undo or redo: takes a text from one stack and puts the current one on the other. */
  restore(from, to) {
    // A node that the front end's undo replaced remembers nothing: the front end goes on.
    if (!from.length) return to.length || this.source.restore(to === this.redoSteps ? "Undo" : "Redo");
    to.push(this.source.text());
    this.source.set(from.pop());
    this.editing = null;
    this.refresh();
  }

  handleKey(event) {
    // Only in an empty input: in one with text the browser undoes, elsewhere the front end.
    const isIdle = event.target === this.input && !this.input.value;
    if ((event.ctrlKey || event.metaKey) && /^[zy]$/i.test(event.key) && isIdle) {
      event.preventDefault();
      if (event.key.toLowerCase() === "y" || event.shiftKey) this.restore(this.redoSteps, this.undoSteps);
      else this.restore(this.undoSteps, this.redoSteps);
      return;
    }
    const index = Number(event.target.closest?.("[data-line]")?.dataset.line ?? -1);
    if (index < 0 || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step && event.altKey) this.moveLine(index, index + step);
    else if (step) this.focus(index + step, step);
    else if (event.key === "Delete") this.removeLine(index);
    else if (event.key === " " && event.target.classList.contains("label")) this.toggleLine(index);
    else return;
    event.preventDefault();
  }

  /** Focuses the chip of a line; if it has none, the next one in the direction of `step`, else the last. */
  focus(index, step = 0) {
    const rows = this.rows.filter(({ type }) => type !== "note");
    let target = rows.find((row) => row.index === index);
    if (!target && step > 0) target = rows.find((row) => row.index > index);
    if (!target && step < 0) target = rows.findLast((row) => row.index < index);
    target ??= rows.at(-1);
    if (!target) return;
    this.reveal(target);
    this.list.querySelector(`[data-line="${target.index}"]`)?.querySelector("button, input")?.focus();
  }

  /** Scrolls so that a row is in view, and draws it. */
  reveal({ top, height }) {
    const { scrollTop, clientHeight } = this.list;
    if (top < scrollTop) this.list.scrollTop = top;
    else if (top + height > scrollTop + clientHeight) this.list.scrollTop = top + height - clientHeight;
    this.drawRows();
  }

  /** Opens the form of a concept by its name. */
  open(name) {
    const row = this.rows.find(({ raw, type }) => type === "concept" && guess(raw).target === name);
    if (row) this.edit(row.index);
  }

  toggleLine(index) {
    const text = this.source.text();
    this.change(replace(text, index, toggle(split(text)[index].raw)), index);
  }

  moveLine(from, to) {
    this.change(move(this.source.text(), from, to), to);
  }

  removeLine(index) {
    this.change(remove(this.source.text(), index), index);
  }

  /** Adds what was typed; commas separate names. */
  addTyped(typed) {
    if (!typed.trim()) return;
    const names = namesFrom(typed);
    this.addLines(names);
    if (names.length > 1) this.say(t("{0} names added: commas separate names.", names.length));
  }

  addLines(raws) {
    const listed = new Set(split(this.source.text()).map(({ raw }) => raw.trim().toLowerCase()));
    const lines = raws.map((raw) => raw.trim()).filter(Boolean);
    const fresh = lines.filter((line) => !listed.has(line.toLowerCase()) && listed.add(line.toLowerCase()));
    this.input.value = "";
    if (fresh.length) this.change(add(this.source.text(), fresh));
    const repeated = lines.length - fresh.length;
    if (repeated) {
      this.say(counted(repeated, "1 name was already on the list.", "{0} names were already on the list."));
    }
    this.list.scrollTop = this.list.scrollHeight;
  }

  /** Shows a sentence under the list until the next change, with a button that undoes. */
  say(sentence) {
    this.said = sentence;
    this.draw();
  }

  /** Rewrites every line that has a concept. */
  changeAll(rewrite) {
    const lines = split(this.source.text());
    const isConcept = (raw) => ["concept", "off"].includes(lineType(raw));
    this.change(join(lines.map(({ raw, end }) => ({ raw: isConcept(raw) ? rewrite(raw) : raw, end }))));
  }

  /** Makes a line of each name in a line with commas. */
  splitLine(index) {
    const lines = split(this.source.text());
    const names = namesFrom(lines[index].raw);
    this.change(replace(this.source.text(), index, names.join("\n")));
    this.say(t("{0} names added: commas separate names.", names.length));
  }

  paste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (!/[\r\n\t]/.test(text.trim())) return;
    event.preventDefault();
    const lines = linesFrom(text);
    this.addLines(lines.length === 1 ? namesFrom(lines[0]) : lines);
  }

  dragOver(event) {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.stopPropagation();
    this.element.classList.add("drop");
  }

  async drop(event) {
    this.element.classList.remove("drop");
    const files = listFiles(event);
    if (!files.length) return;
    event.preventDefault();
    event.stopPropagation();
    await this.addFiles(files);
  }

  async addFiles(files) {
    for (const file of files) this.addLines(linesFrom(await file.text(), file.name));
  }

  async suggest(text) {
    const request = ++this.latestSuggestion;
    await new Promise((resolve) => setTimeout(resolve, DELAY));
    if (request !== this.latestSuggestion || text.trim().length < 2) return;
    const answer = await this.ask("concepts/suggest", { text, kind: this.source.kind() });
    if (request !== this.latestSuggestion || !answer?.names) return;
    this.suggestions.replaceChildren(...answer.names.map((name) => h("option", { value: name })));
  }

  draw() {
    const linked = this.source.isLinked();
    const lines = linked ? [] : split(this.source.text());
    // A form gets the whole height: at their usual size nodes have room for it and no more.
    this.inputRow.hidden = linked || this.editing !== null;
    this.footer.hidden = this.editing !== null;
    this.drawFooter(lines, linked);
    let top = 0;
    this.rows = [];
    for (const [index, { raw }] of lines.entries()) {
      const type = lineType(raw);
      if (type === "blank") continue;
      const height = this.heightOf(index, raw, type);
      this.rows.push({ index, raw, type, top, height });
      top += height;
    }
    this.total = top;
    this.drawRows();
  }

  heightOf(index, raw, type) {
    if (type === "note") return HEIGHTS.note;
    if (index === this.editing) return HEIGHTS.form;
    return HEIGHTS.chip + (this.answer(index, raw)?.message ? HEIGHTS.message : 0);
  }

  /** Draws the rows in view: five thousand names need no more elements than fifty. */
  drawRows() {
    const low = this.list.scrollTop - MARGIN;
    const high = this.list.scrollTop + (this.list.clientHeight || MARGIN) + MARGIN;
    const shown = this.rows.filter(({ index, top, height }) =>
      index === this.editing ? true : top + height > low && top < high,
    );
    const first = shown[0]?.top ?? 0;
    const last = shown.at(-1);
    this.top.style.height = `${first}px`;
    this.bottom.style.height = `${Math.max(0, (this.total ?? 0) - (last ? last.top + last.height : 0))}px`;
    // Lines that did not change keep their elements, and a form keeps what was typed into it.
    const drawn = new Map([...this.list.children].map((chip) => [chip.dataset.key, chip]));
    const chips = shown.map(({ index, raw }) => {
      const editing = index === this.editing;
      const state = editing ? [index, raw] : [index, raw, this.answer(index, raw) ?? 0, this.source.kind()];
      const key = JSON.stringify(state);
      return drawn.get(key) ?? this.drawLine(index, raw, key);
    });
    const current = [...this.list.children];
    const next = [this.top, ...chips, this.bottom];
    const isSame = next.length === current.length && next.every((chip, i) => chip === current[i]);
    if (!isSame) this.replaceChips(next);
  }

  drawFooter(lines, linked) {
    const concepts = lines
      .map(({ raw }, index) => ({ index, type: lineType(raw), answer: this.answer(index, raw) }))
      .filter(({ type }) => type === "concept");
    const problems = concepts.filter(({ answer }) => answer?.problem);
    this.element.dataset.checked = concepts.every(({ answer }) => answer);
    if (linked) {
      this.footer.replaceChildren(h("div", {}, t("The text comes from another node.")));
      return;
    }
    const button = (text, title, onclick) => h("button", { class: "link", title, onclick }, text);
    const jump = () => {
      const next = problems.find(({ index }) => index > (this.jumped ?? -1)) ?? problems[0];
      this.jumped = next.index;
      this.focus(next.index);
    };
    const types = new Set(lines.map(({ raw }) => lineType(raw)));
    const bar = h(
      "div",
      { class: "tools" },
      h("span", {}, counted(concepts.length, "1 concept", "{0} concepts")),
      problems.length > 0 &&
        button(t("{0} with a problem", problems.length), t("Show the next problem"), jump),
      lines.some(({ raw }) => raw.trim()) && [
        types.has("concept") &&
          button(t("All off"), t("Turn every concept off"), () => this.changeAll((raw) => off(raw))),
        types.has("off") &&
          button(t("All on"), t("Turn every concept on"), () => this.changeAll((raw) => on(raw))),
        button(t("Clear"), t("Remove every line"), () => {
          this.change("");
          this.say(t("List cleared."));
        }),
      ],
      button(t("My lists"), t("Save this list, or load one"), () => {
        void openLists(this.footer, this.source.text(), (text) => this.change(text));
      }),
    );
    const undo = () => this.restore(this.undoSteps, this.redoSteps);
    const said = this.said && h("div", {}, this.said, " ", button(t("Undo"), "", undo));
    const notes = this.notes.map((note) => h("div", { class: "cut", title: note }, note));
    this.footer.replaceChildren(...[bar, said, ...notes].filter(Boolean));
  }

  /** Puts new chips on the screen; the focus stays where it was. */
  replaceChips(chips) {
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const index = focused?.closest("[data-line]")?.dataset.line;
    this.replacing = true;
    this.list.replaceChildren(...chips);
    if (focused && this.list.contains(focused)) focused.focus({ preventScroll: true });
    else if (index !== undefined) {
      this.list
        .querySelector(`[data-line="${Number(index)}"]`)
        ?.querySelector("button, input")
        ?.focus();
    }
    this.replacing = false;
  }

  drawLine(index, raw, key) {
    const type = lineType(raw);
    if (type === "note") return h("div", { class: "note", "data-key": key, title: raw }, raw);
    const attributes = { "data-line": index, "data-key": key, role: "listitem" };
    return index === this.editing
      ? this.drawForm(index, guess(raw), attributes)
      : this.drawChip(index, raw, attributes);
  }

  drawChip(index, raw, attributes) {
    const fields = guess(raw);
    const answer = this.answer(index, raw);
    const { aliases } = fields;
    const message = answer?.message;
    const keys = t("Edit (Enter), turn on or off (Space), move (Alt+arrows), delete (Del)");
    const splitProps = {
      class: "small",
      title: t("Split at the commas"),
      onclick: () => this.splitLine(index),
    };
    const label = {
      class: "label",
      title: `${fields.target}\n${keys}`,
      onclick: () => this.edit(index),
    };
    return h(
      "div",
      { class: `chip ${fields.off ? "off" : ""} ${answer?.problem ? "bad" : ""}`, ...attributes },
      h("button", label, chipText(raw, fields, answer)),
      h("span", { class: "tag" }, t(fields.kind ?? this.source.kind())),
      aliases.length > 0 &&
        h(
          "span",
          { class: "tag", title: aliases.join(", ") },
          counted(aliases.length, "1 alias", "{0} aliases"),
        ),
      fields.strength !== 1 && h("span", { class: "tag", title: t("strength") }, `× ${fields.strength}`),
      fields.target.includes(",") && h("button", splitProps, "⑂"),
      this.drawButtons(index, fields.off),
      message && h("div", { class: "message cut", title: message }, message),
    );
  }

  drawButtons(index, off) {
    const button = (symbol, title, onclick, props = {}) =>
      h("button", { class: "small", title, onclick, ...props }, symbol);
    return [
      button(off ? "○" : "●", off ? t("Turn on") : t("Turn off"), () => this.toggleLine(index), {
        "aria-pressed": !off,
      }),
      button("↑", t("Move up"), () => this.moveLine(index, index - 1)),
      button("↓", t("Move down"), () => this.moveLine(index, index + 1)),
      button("×", t("Remove"), () => this.removeLine(index)),
    ];
  }

  edit(index) {
    this.save?.();
    this.editing = index;
    this.draw();
    const row = this.rows.find((candidate) => candidate.index === index);
    if (row) this.reveal(row);
    this.list.querySelector(".form input")?.focus();
  }

  closeForm(index, focus = true) {
    this.editing = null;
    this.save = null;
    this.draw();
    if (focus) this.focus(index);
  }

  drawForm(index, fields, attributes) {
    const input = (value, placeholder = "") => h("input", { value, placeholder });
    const target = input(fields.target);
    const aliases = input(fields.aliases.join(" | "), t("other names, separated by commas"));
    const anchor = input(fields.anchor ?? "", t("default for the type"));
    const strength = h("input", {
      type: "number",
      min: 0.05,
      max: 2,
      step: 0.05,
      value: fields.strength,
      title: t("1 is the whole way to the replacement, 0.5 half of it."),
    });
    const kind = h(
      "select",
      {},
      h("option", { value: "" }, t("as the list")),
      this.source
        .kinds()
        .map((name) => h("option", { value: name, selected: name === fields.kind }, t(name))),
    );
    const save = (focus = false) => {
      this.editing = null;
      this.save = null;
      if (target.value.trim()) {
        const raw = write({
          ...fields,
          target: target.value,
          aliases: aliases.value.split("|").flatMap(namesFrom),
          anchor: anchor.value.trim() || (fields.anchor === "" ? "" : null),
          kind: kind.value || null,
          strength: Number(strength.value) || 1,
        });
        this.change(replace(this.source.text(), index, raw));
      } else this.change(remove(this.source.text(), index));
      this.closeForm(index, focus);
    };
    this.save = save;
    const cancel = () => this.closeForm(index);
    const onkeydown = (event) => {
      if (event.key === "Enter") save(true);
      else if (event.key === "Escape") cancel();
    };
    const done = h("button", { onclick: () => save(true) }, t("Done"));
    const form = h(
      "div",
      {
        class: "form",
        ...attributes,
        onkeydown,
        onfocusout: (event) => {
          // What was typed is kept when the user goes on elsewhere.
          if (!this.replacing && this.save === save && !form.contains(event.relatedTarget)) save();
        },
      },
      [t("erase"), target, t("also"), aliases, t("becomes"), anchor],
      [t("type"), h("div", { class: "two" }, kind, t("strength"), strength)],
      h("div", {}, h("button", { onclick: cancel }, t("Cancel")), done),
    );
    return form;
  }
}

const off = (raw) => (raw.startsWith(OFF) ? raw : OFF + raw);
const on = (raw) => (raw.startsWith(OFF) ? toggle(raw) : raw);

/** "target → anchor"; the line itself where the server cannot read it, the target alone until it has. */
function chipText(raw, fields, answer) {
  if (answer?.problem && !answer.target) return raw;
  const anchor = fields.anchor ?? answer?.anchor;
  if (anchor === undefined) return fields.target;
  const shown = anchor || t("(nothing)");
  const isDefault = fields.anchor === null;
  return [fields.target, " → ", isDefault ? h("em", { title: t("what this type becomes") }, shown) : shown];
}

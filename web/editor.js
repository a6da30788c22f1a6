// Chips over a concept list. The text of the node is what is saved; a chip is a way to change one line of it.
import { h } from "./dom.js";
import { add, guess, lineType, linesFrom, move, remove, replace, split, toggle, write } from "./lines.js";
import { counted, t } from "./words.js";

const DELAY = 250; // ms without a key before the server is asked
const UNDO_STEPS = 100;

export const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

export const listFiles = (event) =>
  [...(event.dataTransfer?.files ?? [])].filter((file) => /\.(txt|csv|tsv)$/i.test(file.name));

export class Editor {
  /**
   * `source` reads and sets the node: {text(), set(text), kind(), kinds(), file(), retain(), isLinked()};
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
    const addInput = () => this.addLines([this.input.value]);
    this.list = h("div", {
      class: "speed-scroll",
      style: "max-height: 320px",
      role: "list",
      "aria-label": t("concepts"),
    });
    this.footer = h("div", { class: "note", style: "white-space: normal" });
    this.suggestions = h("datalist", { id: `speed-names-${Math.random().toString(36).slice(2)}` });
    this.input = h("input", {
      placeholder: t("Add a name, or paste a column"),
      "aria-label": t("add a concept"),
      list: this.suggestions.id,
      oninput: () => this.suggest(this.input.value),
      onkeydown: (event) => event.key === "Enter" && addInput(),
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
    this.element = h("div", events, this.inputRow, this.suggestions, this.list, this.footer);
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
      answer.lines.map((reading) => [`${reading.line - 1} ${lines[reading.line - 1]?.raw}`, reading]),
    );
    this.notes = answer.notes;
    this.draw();
  }

  answer(index, raw) {
    return this.answers.get(`${index} ${raw}`);
  }

  change(text, focusIndex) {
    const previous = this.source.text();
    if (text === previous || this.source.isLinked()) return;
    this.undoSteps.push(previous);
    if (this.undoSteps.length > UNDO_STEPS) this.undoSteps.shift();
    this.redoSteps = [];
    this.source.set(text);
    this.refresh();
    if (focusIndex !== undefined) this.focus(focusIndex);
  }

  /** Undo or redo: takes a text from one stack and puts the current one on the other. */
  restore(from, to) {
    if (!from.length) return;
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
    const chips = [...this.list.querySelectorAll("[data-line]")];
    const lineOf = (chip) => Number(chip.dataset.line);
    let target = chips.find((chip) => lineOf(chip) === index);
    if (!target && step > 0) target = chips.find((chip) => lineOf(chip) > index);
    if (!target && step < 0) target = chips.findLast((chip) => lineOf(chip) < index);
    (target ?? chips.at(-1))?.querySelector("button, input")?.focus();
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

  addLines(raws) {
    const lines = raws.map((raw) => raw.trim()).filter(Boolean);
    this.input.value = "";
    if (lines.length) this.change(add(this.source.text(), lines));
    this.list.scrollTop = this.list.scrollHeight;
  }

  paste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (!/[\r\n\t]/.test(text.trim())) return;
    event.preventDefault();
    this.addLines(linesFrom(text));
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
    this.inputRow.style.display = linked ? "none" : "";
    this.drawFooter(lines, linked);
    // Lines that did not change keep their elements: five hundred of them stay smooth.
    const drawn = new Map([...this.list.children].map((chip) => [chip.dataset.key, chip]));
    const chips = lines
      .map(({ raw }, index) => {
        const state = [index, raw, this.answer(index, raw) ?? 0, index === this.editing, this.source.kind()];
        const key = JSON.stringify(state);
        return drawn.get(key) ?? this.drawLine(index, raw, key);
      })
      .filter(Boolean);
    const isSame = chips.length === drawn.size && chips.every((chip, i) => chip === this.list.children[i]);
    if (!isSame) this.replaceChips(chips);
  }

  drawFooter(lines, linked) {
    const concepts = lines
      .map(({ raw }, index) => ({ type: lineType(raw), answer: this.answer(index, raw) }))
      .filter(({ type }) => type === "concept");
    const problems = concepts.filter(({ answer }) => answer?.problem).length;
    const summary = [counted(concepts.length, "1 concept", "{0} concepts")];
    if (problems) summary.push(t("{0} with a problem", problems));
    const texts = linked ? [t("The text comes from another node.")] : [summary.join(", "), ...this.notes];
    this.footer.replaceChildren(...texts.map((text) => h("div", {}, text)));
    this.element.dataset.checked = concepts.every(({ answer }) => answer);
  }

  /** Puts new chips on the screen; the focus stays where it was. */
  replaceChips(chips) {
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const index = focused?.closest("[data-line]")?.dataset.line;
    this.list.replaceChildren(...chips);
    if (focused && this.list.contains(focused)) focused.focus({ preventScroll: true });
    else if (index !== undefined) this.focus(Number(index));
  }

  drawLine(index, raw, key) {
    const type = lineType(raw);
    if (type === "blank") return null;
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
    const message = answer?.problem || answer?.note;
    const label = {
      class: "label",
      title: t("Edit (Enter), turn on or off (Space), move (Alt+arrows), delete (Del)"),
      onclick: () => this.edit(index),
    };
    return h(
      "div",
      { class: `chip ${fields.off ? "off" : ""} ${answer?.problem ? "bad" : ""}`, ...attributes },
      h("button", label, chipText(raw, fields, answer)),
      h("span", { class: "tag" }, fields.kind ?? this.source.kind()),
      aliases.length > 0 &&
        h(
          "span",
          { class: "tag", title: aliases.join(", ") },
          counted(aliases.length, "1 alias", "{0} aliases"),
        ),
      this.drawButtons(index, fields.off),
      message && h("div", { class: "message" }, message),
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
    this.editing = index;
    this.draw();
    this.list.querySelector(".form input")?.focus();
  }

  closeForm(index) {
    this.editing = null;
    this.draw();
    this.focus(index);
  }

  drawForm(index, fields, attributes) {
    const input = (value, placeholder = "") => h("input", { value, placeholder });
    const target = input(fields.target);
    const aliases = input(fields.aliases.join(" | "), t("other names, with | between"));
    const anchor = input(fields.anchor ?? "", t("as the kind says"));
    const kind = h(
      "select",
      {},
      h("option", { value: "" }, t("as the list")),
      this.source.kinds().map((name) => h("option", { value: name, selected: name === fields.kind }, name)),
    );
    const save = () => {
      this.editing = null;
      if (target.value.trim()) {
        const raw = write({
          ...fields,
          target: target.value,
          aliases: aliases.value.split("|"),
          anchor: anchor.value.trim() || (fields.anchor === "" ? "" : null),
          kind: kind.value || null,
        });
        this.change(replace(this.source.text(), index, raw), index);
      } else this.removeLine(index);
      this.closeForm(index);
    };
    const cancel = () => this.closeForm(index);
    const onkeydown = (event) => {
      if (event.key === "Enter") save();
      else if (event.key === "Escape") cancel();
    };
    return h(
      "div",
      { class: "form", ...attributes, onkeydown },
      [t("erase"), target, t("also"), aliases, t("becomes"), anchor, t("kind"), kind],
      h("div", {}, h("button", { onclick: cancel }, t("Cancel")), h("button", { onclick: save }, t("Done"))),
    );
  }
}

/** "target → anchor"; the line itself where the server cannot read it, the target alone until it has. */
function chipText(raw, fields, answer) {
  if (answer?.problem && !answer.target) return raw;
  const anchor = fields.anchor ?? answer?.anchor;
  if (anchor === undefined) return fields.target;
  const shown = anchor || t("(nothing)");
  const isDefault = fields.anchor === null;
  return [fields.target, " → ", isDefault ? h("em", { title: t("what this kind becomes") }, shown) : shown];
}

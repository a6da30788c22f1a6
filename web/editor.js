// Chips over a concept list. The text of the node stays what is saved; a chip is a way to change one line of it.
import { h } from "./dom.js";
import { add, guess, linesFrom, move, remove, replace, split, toggle, write } from "./lines.js";
import { counted, t } from "./words.js";

const WAIT = 250; // ms without a key before the server is asked
const UNDO = 100; // steps that are remembered
const KINDS = ["style", "person", "character", "object", "implicit"];

export class Editor {
  /** `source`: {text(), set(text), kind(), file(), kept(), linked()}; `ask(path, question)` asks the server. */
  constructor(source, ask) {
    this.source = source;
    this.ask = ask;
    this.said = new Map(); // line as written -> what the server says about it
    this.notes = [];
    this.asked = 0;
    this.undo = [];
    this.redo = [];
    this.editing = null;
    this.list = h("div", { class: "speed-scroll", style: "max-height: 320px", role: "list", "aria-label": t("concepts") });
    this.under = h("div", { class: "note", style: "white-space: normal" });
    this.options = h("datalist", { id: `speed-names-${Math.random().toString(36).slice(2)}` });
    this.input = h("input", {
      placeholder: t("Add a name, or paste a column"), "aria-label": t("add a concept"),
      oninput: () => this.suggest(this.input.value),
      onkeydown: (event) => event.key === "Enter" && this.addLines([this.input.value]),
      onpaste: (event) => this.paste(event),
    });
    this.input.setAttribute("list", this.options.id);
    this.adding = h("div", { class: "add" }, this.input, h("button", { onclick: () => this.addLines([this.input.value]), title: t("Add (Enter)") }, t("Add")));
    this.element = h("div", { onkeydown: (event) => this.keys(event) }, this.adding, this.options, this.list, this.under);
    for (const [name, hook] of [["dragover", (e) => this.over(e)], ["dragleave", () => this.element.classList.remove("drop")], ["drop", (e) => this.drop(e)]]) {
      this.element.addEventListener(name, hook);
    }
    this.draw();
    this.check();
  }

  /** After the text or the kind changed, whoever changed it. */
  refresh() {
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), WAIT);
  }

  async check() {
    const turn = ++this.asked;
    const question = { text: this.source.text(), kind: this.source.kind(), file: this.source.file(), retain: this.source.kept() };
    const answer = await this.ask("concepts/check", question);
    if (turn !== this.asked || !answer?.lines) return; // an older question, or no server
    const lines = split(question.text);
    this.said = new Map(answer.lines.map((one) => [`${one.line - 1} ${lines[one.line - 1]?.raw}`, one]));
    this.notes = answer.notes;
    this.draw();
  }

  change(text, focus) {
    const before = this.source.text();
    if (text === before || this.source.linked()) return;
    this.undo.push(before);
    if (this.undo.length > UNDO) this.undo.shift();
    this.redo = [];
    this.source.set(text);
    this.refresh();
    if (focus !== undefined) this.focus(focus);
  }

  back(from, to) {
    if (!from.length) return;
    to.push(this.source.text());
    this.source.set(from.pop());
    this.editing = null;
    this.refresh();
  }

  keys(event) {
    // In an empty box; elsewhere the front end itself undoes, step by step, and in a box with text the browser does.
    const idle = event.target === this.input && !this.input.value;
    if ((event.ctrlKey || event.metaKey) && /^[zy]$/i.test(event.key) && idle) {
      event.preventDefault();
      const forward = event.key.toLowerCase() === "y" || event.shiftKey;
      this.back(forward ? this.redo : this.undo, forward ? this.undo : this.redo);
      return;
    }
    const place = Number(event.target.closest?.("[data-line]")?.dataset.line ?? -1);
    if (place < 0 || event.target.tagName === "INPUT" || event.target.tagName === "SELECT") return;
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step && event.altKey) this.change(move(this.source.text(), place, place + step), place + step);
    else if (step) this.focus(place + step, step);
    else if (event.key === "Delete") this.change(remove(this.source.text(), place), place);
    else if (event.key === " " && event.target.classList.contains("what")) this.turn(place);
    else return;
    event.preventDefault();
  }

  focus(place, step = 0) {
    const chips = [...this.list.querySelectorAll("[data-line]")];
    let found = chips.find((chip) => Number(chip.dataset.line) === place);
    if (!found && step) found = step > 0 ? chips.find((chip) => Number(chip.dataset.line) > place) : chips.findLast((chip) => Number(chip.dataset.line) < place);
    (found ?? chips.at(-1))?.querySelector("button, input")?.focus();
  }

  turn(place) {
    this.change(replace(this.source.text(), place, toggle(split(this.source.text())[place].raw)), place);
  }

  addLines(raws) {
    const fresh = raws.map((raw) => raw.trim()).filter(Boolean);
    this.input.value = "";
    if (fresh.length) this.change(add(this.source.text(), fresh));
    this.list.scrollTop = this.list.scrollHeight;
  }

  paste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (!/[\r\n\t]/.test(text.trim())) return;
    event.preventDefault();
    this.addLines(linesFrom(text));
  }

  over(event) {
    if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
    event.preventDefault();
    event.stopPropagation();
    this.element.classList.add("drop");
  }

  async drop(event) {
    this.element.classList.remove("drop");
    const files = [...(event.dataTransfer?.files ?? [])].filter((file) => /\.(txt|csv|tsv)$/i.test(file.name));
    if (!files.length) return;
    event.preventDefault();
    event.stopPropagation();
    await this.take(files);
  }

  async take(files) {
    for (const file of files) this.addLines(linesFrom(await file.text(), file.name));
  }

  async suggest(text) {
    const turn = (this.suggesting = (this.suggesting ?? 0) + 1);
    await new Promise((done) => setTimeout(done, WAIT));
    if (turn !== this.suggesting || text.trim().length < 2) return;
    const answer = await this.ask("concepts/suggest", { text, kind: this.source.kind() });
    if (turn === this.suggesting && answer?.names) this.options.replaceChildren(...answer.names.map((name) => h("option", { value: name })));
  }

  draw() {
    const linked = this.source.linked();
    this.adding.style.display = linked ? "none" : "";
    const lines = linked ? [] : split(this.source.text());
    const bad = lines.filter((line, place) => this.says(place, line.raw)?.problem).length;
    const count = lines.filter((line) => guess(line.raw).type === "concept").length;
    const told = linked ? [t("The text comes from another node.")] : [[counted(count, "1 concept", "{0} concepts"), bad && t("{0} with a problem", bad)].filter(Boolean).join(", "), ...this.notes];
    this.under.replaceChildren(...told.map((text) => h("div", {}, text)));
    // Lines that did not change keep their elements: five hundred of them stay smooth.
    const known = new Map([...this.list.children].map((chip) => [chip.dataset.key, chip]));
    const chips = lines.map((line, place) => {
      const key = JSON.stringify([place, line.raw, this.says(place, line.raw) ?? 0, place === this.editing, this.source.kind()]);
      return known.get(key) ?? this.line(place, line.raw, key);
    }).filter(Boolean);
    if (chips.length === this.list.children.length && chips.every((chip, i) => chip === this.list.children[i])) return;
    // Who is on a chip stays on it, also when the server's answer draws it anew.
    const held = this.list.contains(document.activeElement) ? document.activeElement : null;
    const place = held?.closest("[data-line]")?.dataset.line;
    this.list.replaceChildren(...chips);
    if (held && this.list.contains(held)) held.focus({ preventScroll: true });
    else if (place !== undefined) this.focus(Number(place));
  }

  says(place, raw) {
    return this.said.get(`${place} ${raw}`);
  }

  line(place, raw, key) {
    const one = guess(raw);
    if (one.type === "blank") return null;
    const marks = { "data-line": place, "data-key": key, role: "listitem" };
    if (one.type === "note") return h("div", { class: "note", "data-key": key, title: raw }, raw);
    if (place === this.editing) return this.form(place, one, marks);
    const said = this.says(place, raw);
    const anchor = one.anchor ?? said?.anchor;
    const kind = one.kind ?? this.source.kind();
    const others = one.aliases.length;
    const shown = said?.problem && !said.target ? raw : anchor === undefined ? one.target : null;
    return h("div", { class: `chip ${one.type === "off" ? "off" : ""} ${said?.problem ? "bad" : ""}`, ...marks },
      h("button", { class: "what", title: t("Edit (Enter), turn on or off (Space), move (Alt+arrows), delete (Del)"), onclick: () => this.edit(place) },
        shown ?? [one.target, " → ", one.anchor === null ? h("em", { title: t("what this kind becomes") }, anchor || t("(nothing)")) : anchor || t("(nothing)")]),
      h("span", { class: "tag" }, kind),
      others ? h("span", { class: "tag", title: one.aliases.join(", ") }, counted(others, "1 alias", "{0} aliases")) : null,
      h("button", { class: "small", title: one.type === "off" ? t("Turn on") : t("Turn off"), "aria-pressed": one.type !== "off", onclick: () => this.turn(place) }, one.type === "off" ? "○" : "●"),
      h("button", { class: "small", title: t("Move up"), onclick: () => this.change(move(this.source.text(), place, place - 1), place - 1) }, "↑"),
      h("button", { class: "small", title: t("Move down"), onclick: () => this.change(move(this.source.text(), place, place + 1), place + 1) }, "↓"),
      h("button", { class: "small", title: t("Remove"), onclick: () => this.change(remove(this.source.text(), place), place) }, "×"),
      said?.problem || said?.note ? h("div", { class: "says" }, said.problem || said.note) : null);
  }

  edit(place) {
    this.editing = place;
    this.draw();
    this.list.querySelector(".form input")?.focus();
  }

  form(place, one, marks) {
    const field = (value, placeholder) => h("input", { value, placeholder });
    const target = field(one.target);
    const aliases = field(one.aliases.join(" | "), t("other names, with | between"));
    const anchor = field(one.anchor ?? "", t("as the kind says"));
    const kind = h("select", {}, h("option", { value: "" }, t("as the list")), KINDS.map((name) => h("option", { value: name, selected: name === one.kind }, name)));
    const done = () => {
      this.editing = null;
      const kept = one.anchor === "" && !anchor.value ? "" : anchor.value.trim() || null;
      const raw = write({ ...one, target: target.value, aliases: aliases.value.split("|"), anchor: kept, kind: kind.value || null });
      this.change(target.value.trim() ? replace(this.source.text(), place, raw) : remove(this.source.text(), place), place);
      this.draw();
      this.focus(place);
    };
    const leave = () => { this.editing = null; this.draw(); this.focus(place); };
    const keys = (event) => {
      if (event.key === "Enter") done();
      else if (event.key === "Escape") leave();
    };
    return h("div", { class: "form", ...marks, onkeydown: keys },
      t("erase"), target, t("also"), aliases, t("becomes"), anchor, t("kind"), kind,
      h("div", {}, h("button", { onclick: leave }, t("Cancel")), h("button", { onclick: done }, t("Done"))));
  }
}

// Our views on nodes: one DOM widget per node, drawn from its widgets or from the result of its last run.
import { api } from "../../scripts/api.js";
import { readSoon, watchRun } from "./current.js";
import { h, safely, shield, showDialog } from "./dom.js";
import { drawLeaks, drawPairs, drawText, retainNames } from "./drawings.js";
import { Editor, hasFiles, listFiles } from "./editor.js";
import {
  erasureFacts,
  imageFacts,
  leakFacts,
  stored,
  storedCode,
  storedLeaks,
  storedText,
  textFacts,
} from "./facts.js";
import { fixesOf } from "./fixes.js";
import {
  choices,
  downstream,
  isLinked,
  onChange,
  priorityKey,
  runAfter,
  upstream,
  value,
  values,
  widget,
} from "./graph.js";
import { ask, captureChange, confirm, notify, viewPath } from "./host.js";
import { addAliases, firstNames, replace, rename, split } from "./lines.js";
import { addCompare, addProbe, addSave } from "./neighbors.js";
import { drawDetails, drawPanel } from "./panel.js";
import { t } from "./words.js";

const RESULT = "speed"; // node.properties[RESULT]: a short form of the last result, saved with the workflow
const TEXT_PREVIEW = "$$node-text-preview"; // the front end's own widget for text under a node
const RETAIN_WIDGETS = ["builtin", "text", "file", "column", "kind", "limit"];
const BYPASSED = [2, 4]; // modes of a node that does not run
const MAX_RESULTS = 30;

const ERASURE = { read: erasureFacts, store: stored, draw: erasurePanel, height: 236, width: 400 };
const TEXT = { read: textFacts, store: storedText, draw: textView, height: 130, width: 340 };
const VIEWS = {
  ConceptList: addEditor,
  RetainSetLoader: addRetainNames,
  SpeedErase: (node) => addResultView(node, ERASURE),
  SpeedApplyRecipe: (node) => addResultView(node, ERASURE),
  SpeedLeakProbe: (node) =>
    addResultView(node, { read: leakFacts, store: storedLeaks, draw: leakView, height: 220, width: 400 }),
  SpeedCompare: addCompareView,
  SpeedInspect: (node) => addResultView(node, TEXT),
  SpeedReport: (node) => addResultView(node, TEXT),
  SpeedEvaluate: (node) => addResultView(node, TEXT),
  SpeedForecast: (node) => addResultView(node, TEXT),
  SpeedNameProbe: (node) => addResultView(node, TEXT),
  SaveErasedModel: (node) => addResultView(node, TEXT),
};

export const addView = (node) => VIEWS[node.comfyClass ?? node.type]?.(node);

const editors = new WeakMap(); // node -> Editor
// Results of this session by node type and code of the run: what the workflow does not store.
const results = new Map();
const recipes = new Map(); // code of the run -> recipe

const resultKey = (node, run) => `${node.type} ${run}`;

/** The result that a node shows: this session's, else the short form in its workflow. */
function resultOf(node, read) {
  const short = node.properties?.[RESULT];
  const run = read(short)?.run || (typeof short?.run === "string" ? short.run : "");
  const full = results.get(resultKey(node, run));
  return full ? { facts: full, restored: false } : { facts: read(short), restored: true };
}

export const lastResult = (node) => resultOf(node, erasureFacts).facts;
export const lastRecipe = (node) => recipes.get(lastResult(node)?.run);

// Node and widget -> the element on the screen, and the serial number of the view in it. After undo, some
// front ends keep showing the element of the replaced node: the new node's content then moves into that
// element. The replaced node must not move its content back: what is typed into it would be lost.
const shells = new Map();
let lastSerial = 0;

const viewKey = (node, name) =>
  `${node.graph?.rootGraph?.id ?? node.graph?.id ?? ""} ${node.id} ${node.type} ${name}`;

function moveToScreen(key, serial, shell, content) {
  const current = shells.get(key);
  if (current?.serial > serial) return;
  const home = !shell.isConnected && current?.home.isConnected ? current.home : shell;
  shells.set(key, { home, serial });
  if (content.parentElement === home) return;
  const focused = content.contains(document.activeElement) ? document.activeElement : null;
  home.replaceChildren(content);
  focused?.focus({ preventScroll: true });
}

/**
 * Adds a DOM widget at the end of a new node, never saved. Its height does not depend on what it shows, so a
 * node never grows over its neighbors; what is longer scrolls, and who makes the node larger sees more.
 */
function addContent(node, name, content, { height, width }) {
  const shell = shield(h("div", { class: "speed" }, content));
  shell.style.minHeight = `${height}px`;
  const options = { serialize: false, hideOnZoom: false, getMinHeight: () => height };
  node.addDOMWidget(name, "SPEED_VIEW", shell, options).serialize = false;
  const [minWidth, minHeight] = node.computeSize();
  node.setSize([Math.max(node.size[0], minWidth, width), Math.max(node.size[1], minHeight)]);
  const serial = ++lastSerial;
  const settle = safely(() => moveToScreen(viewKey(node, name), serial, shell, content));
  const settleSoon = () => [0, 300, 1200].forEach((delay) => setTimeout(settle, delay));
  runAfter(node, "onConfigure", settleSoon);
  settleSoon();
}

/**
 * Adds a view of a node's result: after a run, and again after reload, undo and load.
 *
 * `kind` is {read, store, draw, height, width}: how the server's answer is checked, what of it the workflow
 * stores, and the elements for it.
 */
function addResultView(node, kind) {
  const content = h("div", { class: "speed-scroll fill" });
  addContent(node, "speed_result", content, kind);
  const state = { outdated: false };
  const settle = previewRemover(node);
  const show = safely(() => {
    const { facts, restored } = resultOf(node, kind.read);
    const bypassed = BYPASSED.includes(node.mode);
    const now = { ...state, bypassed, restored };
    content.classList.toggle("stale", Boolean(facts) && (bypassed || state.outdated));
    const empty = h("div", { class: "dim", "data-speed": "empty" }, t("Run the workflow to see the result."));
    content.replaceChildren(...(facts ? kind.draw(node, facts, now) : [empty]).flat(2).filter(Boolean));
    settle();
  });
  watchRun(node, (codes) => {
    const run = resultOf(node, kind.read).facts?.run;
    state.outdated = Boolean(run) && codes.length > 0 && !codes.includes(run);
    show();
  });
  runAfter(node, "onExecuted", (output) => {
    const facts = kind.read({ ...output?.speed?.[0], text: output?.text?.[0], run: output?.run?.[0] });
    if (!facts) return;
    node.properties[RESULT] = kind.store(facts);
    results.set(resultKey(node, facts.run), facts);
    if (results.size > MAX_RESULTS) results.delete(results.keys().next().value);
    if (output.recipe?.[0]) recipes.set(facts.run, output.recipe[0]);
    state.outdated = false;
    show();
    captureChange();
    readSoon();
  });
  for (const input of node.widgets ?? []) {
    if (input.name !== "speed_result") runAfter(input, "callback", readSoon);
  }
  runAfter(node, "onConfigure", () => {
    requestAnimationFrame(show);
    readSoon();
  });
  runAfter(node, "onConnectionsChange", readSoon);
  show();
}

/** Returns a function that removes the front end's text, which the view has as well, and its room. */
function previewRemover(node) {
  let height;
  const remember = () => {
    if (!widget(node, TEXT_PREVIEW)) height = node.size[1];
  };
  runAfter(node, "onExecutionStart", remember);
  runAfter(node, "onResize", remember);
  return () => {
    const preview = widget(node, TEXT_PREVIEW);
    if (!preview) return remember();
    node.removeWidget?.(preview);
    node.setSize([node.size[0], Math.min(node.size[1], height ?? node.size[1])]);
  };
}

function erasurePanel(node, facts, state) {
  const list = upstream(node, "ConceptList");
  const actions = {
    compare: safely(() => void addCompare(node)),
    findLeaks: safely(() => addProbe(node)),
    save: safely(() => addSave(node)),
    details: safely(() => openDetails(node, facts)),
    fixes: fixesOf(node, facts, () => editors.get(list)?.open(facts.concepts[0]?.name)),
  };
  return drawPanel(facts, state, actions);
}

function openDetails(node, facts) {
  const { strength, priority } = values(node, ["strength", "priority"]);
  const settings = node.type === "SpeedErase" ? { strength, priority: priorityKey(priority) } : {};
  const elements = drawDetails(facts, settings);
  if (!facts.details.length) {
    elements.push(h("div", { class: "dim" }, t("Run again to see all measurements.")));
  }
  showDialog(t("Details of this run"), elements, t("Close"));
}

function leakView(node, facts, state) {
  const close = safely(() => void closeLeaks(node, facts));
  return drawLeaks(facts, state, close);
}

function textView(node, { text }) {
  return drawText(text);
}

/** Compare's images come from this session's runs only: a workflow cannot name an image. */
function addCompareView(node) {
  const url = (file) => api.apiURL(viewPath(file));
  const draw = (_, facts, { outdated }) => [outdated && outdatedNote(), drawPairs(facts, url)];
  addResultView(node, { read: imageFacts, store: storedCode, draw, height: 300, width: 400 });
}

const outdatedNote = () => h("div", { class: "tag", "data-speed": "state" }, t("Out of date: run again"));

function addEditor(node) {
  const text = widget(node, "text");
  if (!text) return;
  const source = {
    text: () => String(text.value ?? ""),
    kind: () => value(node, "kind"),
    kinds: () => choices(node, "kind"),
    file: () => value(node, "file"),
    retain: () => {
      const retain = upstream(downstream(node, "SpeedErase"), "RetainSetLoader");
      return retain && values(retain, RETAIN_WIDGETS);
    },
    isLinked: () => isLinked(node, "text"),
    set: (newText) => {
      followNames(node, newText);
      text.value = newText;
      text.callback?.(newText);
      node.graph?.setDirtyCanvas?.(true, true);
      captureChange();
      readSoon();
    },
  };
  const editor = new Editor(source, ask);
  editors.set(node, editor);
  addContent(node, "speed_chips", editor.element, { height: 230, width: 360 });
  for (const name of ["text", "kind", "file"]) onChange(node, name, () => editor.refresh());
  runAfter(node, "onConfigure", () => editor.refresh());
  runAfter(node, "onConnectionsChange", () => editor.refresh());
  node.onDragOver = safely(hasFiles);
  node.onDragDrop = safely((event) => {
    const files = listFiles(event);
    if (files.length) void editor.addFiles(files);
    return files.length > 0;
  });
}

/** SPEED Compare follows the list: where its prompts have the first concept's name, they get the new one. */
function followNames(list, newText) {
  const compare = downstream(downstream(list, "SpeedErase"), "SpeedCompare");
  const old = compare?.properties?.speed_names;
  if (!compare || !Array.isArray(old)) return;
  const names = firstNames(newText);
  if (!names.length) return;
  for (const input of compare.widgets ?? []) {
    if (typeof input.value !== "string" || input.options?.values) continue;
    const renamed = rename(input.value, old, names);
    if (renamed === input.value) continue;
    input.value = renamed;
    input.callback?.(renamed);
  }
  compare.properties.speed_names = names;
}

function addRetainNames(node) {
  const question = () => {
    const list = upstream(downstream(node, "SpeedErase"), "ConceptList");
    const concepts = list ? { concepts: value(list, "text"), concepts_kind: value(list, "kind") } : {};
    return { ...values(node, RETAIN_WIDGETS), ...concepts };
  };
  const { element, refresh } = retainNames(question, ask);
  addContent(node, "speed_names", element, { height: 190, width: 320 });
  for (const name of RETAIN_WIDGETS) onChange(node, name, refresh);
  runAfter(node, "onConfigure", refresh);
  runAfter(node, "onConnectionsChange", refresh);
  runAfter(node, "onExecuted", previewRemover(node)); // the view has the counts
  api.addEventListener("graphChanged", refresh);
  runAfter(node, "onRemoved", () => api.removeEventListener("graphChanged", refresh));
  refresh();
}

/** Adds the leaking phrases to the concept list as aliases, after a question. The server reads the lines. */
async function closeLeaks(node, { tried }) {
  const list = upstream(node, "ConceptList");
  if (!list || isLinked(list, "text")) {
    const detail = t("There is no Concept List before SPEED Erase in this workflow.");
    return notify(t("No Concept List"), detail, "warn");
  }
  const leaks = tried.filter((phrase) => phrase.leaks && phrase.alias);
  const phrases = leaks.map(({ phrase, concept }) => t("{0} (for {1})", phrase, concept)).join(", ");
  const question = t("Add these phrases to the Concept List as aliases? The next run erases them as well.");
  if (!(await confirm(`${question} ${phrases}`))) return;
  let text = String(value(list, "text") ?? "");
  const answer = await ask("concepts/check", { text, kind: value(list, "kind") });
  for (const { line, target, aliases } of answer?.lines ?? []) {
    const present = [target, ...(aliases ?? [])];
    const missing = leaks
      .filter(({ concept, phrase }) => concept === target && !present.includes(phrase))
      .map(({ phrase }) => phrase);
    if (missing.length) text = replace(text, line - 1, addAliases(split(text)[line - 1].raw, missing));
  }
  editors.get(list)?.change(text);
  notify(t("Aliases added"), t("Run again to erase them."));
}

// Our views on nodes: one DOM widget per node, drawn from its widgets or from the result of its last run.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { readSoon, watchRun } from "./current.js";
import { h, safely, shield, showDialog } from "./dom.js";
import { drawChart, drawLeaks, drawPairs, drawText, retainNames } from "./drawings.js";
import { Editor, hasFiles, listFiles } from "./editor.js";
import {
  erasureFacts,
  imageFacts,
  leakFacts,
  previewFacts,
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

const ERASURE = { read: erasureFacts, store: stored, draw: erasurePanel, height: 236 };
const TEXT = { read: textFacts, store: storedText, draw: textView, height: 180 };
const CHART = { ...TEXT, height: 320 };
const LEAKS = { read: leakFacts, store: storedLeaks, draw: leakView, height: 220 };
const IMAGES = { read: imageFacts, store: storedCode, draw: compareView, height: 300 };
// Node type -> how its result is shown, or the function that adds its view.
const VIEWS = {
  ConceptList: addEditor,
  RetainSetLoader: addRetainNames,
  SpeedErase: ERASURE,
  SpeedNeverDraw: ERASURE,
  SpeedApplyRecipe: ERASURE,
  SpeedLeakProbe: LEAKS,
  SpeedCompare: IMAGES,
  SpeedInspect: TEXT,
  SpeedReport: CHART,
  SpeedEvaluate: TEXT,
  SpeedForecast: CHART,
  SpeedNameProbe: CHART,
  SaveErasedModel: TEXT,
};

export function addView(node) {
  const view = VIEWS[node.comfyClass ?? node.type];
  // Choices in the front end's language. Long lists are files: their menu keeps its filter.
  for (const { options } of node.widgets ?? []) {
    if (options?.values?.length < 20 && options.values.some?.((choice) => t(choice) !== choice)) {
      options.getOptionLabel = (choice) => t(String(choice ?? ""));
    }
  }
  // Older front ends replace the widgets of a node around a subgraph while they configure it.
  if (node.subgraph) setTimeout(safely(() => addOutsideView(node)));
  else if (view?.draw) addResultView(node, view);
  else view?.(node);
}

const editors = new WeakMap(); // node -> Editor
const drawers = new WeakMap(); // node -> function that draws its result for the node around its subgraph
const outsides = new Map(); // node around a subgraph -> function that redraws its view
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

/** Returns the element that now has the content, or null if a newer node has it. */
function moveToScreen(key, serial, shell, content) {
  const current = shells.get(key);
  if (current?.serial > serial) return null;
  const home = !shell.isConnected && current?.home.isConnected ? current.home : shell;
  shells.set(key, { home, serial });
  if (content.parentElement === home) return home;
  const focused = content.contains(document.activeElement) ? document.activeElement : null;
  home.replaceChildren(content);
  focused?.focus({ preventScroll: true });
  return home;
}

/**
 * Adds a DOM widget at the end of a new node, never saved. Its height does not depend on what it shows, so a
 * node never grows over its neighbors; what is longer scrolls, and who makes the node larger sees more.
 */
function addContent(node, name, content, height) {
  const shell = shield(h("div", { class: "speed" }, content));
  shell.style.minHeight = `${height}px`;
  const options = { serialize: false, hideOnZoom: false, getMinHeight: () => height };
  node.addDOMWidget(name, "SPEED_VIEW", shell, options).serialize = false;
  const [minWidth, minHeight] = node.computeSize();
  node.setSize([Math.max(node.size[0], minWidth, 400), Math.max(node.size[1], minHeight)]);
  const serial = ++lastSerial;
  const settle = safely(() => {
    const home = moveToScreen(viewKey(node, name), serial, shell, content);
    if (home) fillNode(home, height);
  });
  const settleSoon = () => [0, 300, 1200].forEach((delay) => setTimeout(settle, delay));
  runAfter(node, "onConfigure", settleSoon);
  runAfter(node, "onResize", () => requestAnimationFrame(settle));
  settleSoon();
}

/** Older Nodes 2.0 gives a view the height it asks for: it asks for all that its node has to spare. */
function fillNode(shell, height) {
  shell.style.minHeight = `${height}px`;
  let stack = shell.parentElement;
  while (stack && getComputedStyle(stack).gridTemplateRows.split(" ").length < 2) stack = stack.parentElement;
  const last = stack?.lastElementChild;
  if (!last) return;
  const free = stack.clientHeight - (last.offsetTop + last.offsetHeight - stack.firstElementChild.offsetTop);
  if (free > 8) shell.style.minHeight = `${height + free}px`;
}

/**
 * Adds a view of a node's result: after a run, and again after reload, undo and load.
 *
 * `kind` is {read, store, draw, height}: how the server's answer is checked, what of it the workflow
 * stores, and the elements for it.
 */
function addResultView(node, kind) {
  const content = h("div", { class: "speed-scroll fill" });
  addContent(node, "speed_result", content, kind.height);
  const state = { outdated: false };
  const settle = previewRemover(node);
  const drawn = (place) => {
    const { facts, restored } = resultOf(node, kind.read);
    const bypassed = BYPASSED.includes(node.mode);
    const now = { ...state, ...place, bypassed, restored };
    const stale = Boolean(facts) && (bypassed || state.outdated);
    return { stale, elements: facts ? kind.draw(node, facts, now).flat(2).filter(Boolean) : [] };
  };
  drawers.set(node, () => drawn({ outside: true }));
  const show = safely(() => {
    const { stale, elements } = drawn({});
    content.classList.toggle("stale", stale);
    content.replaceChildren(...(elements.length ? elements : [emptyNote()]));
    settle();
    for (const [outer, redraw] of outsides) if (outer.subgraph === node.graph) redraw();
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
  for (const input of node.widgets) runAfter(input, "callback", readSoon);
  runAfter(node, "onConfigure", () => {
    listNumber(node);
    requestAnimationFrame(show);
    readSoon();
  });
  runAfter(node, "onConnectionsChange", readSoon);
  show();
}

const emptyNote = () =>
  h("div", { class: "dim", "data-speed": "empty" }, t("Run the workflow to see the result."));

/** On a node around a subgraph: the verdicts and images of the nodes in it. */
function addOutsideView(node) {
  const isVerdictOrImages = ({ type }) => ![undefined, textView].includes(VIEWS[type]?.draw);
  const inside = () => (node.subgraph?._nodes ?? []).filter(isVerdictOrImages);
  if (!inside().length) return;
  const content = h("div", { class: "speed-scroll fill", "data-speed": "outside" });
  addContent(node, "speed_inside", content, 360);
  const redraw = safely(() => {
    const parts = inside().flatMap((inner) => {
      const { stale, elements } = drawers.get(inner)?.() ?? { elements: [] };
      return elements.length ? [h("div", { class: stale ? "stale" : "" }, elements)] : [];
    });
    content.replaceChildren(...(parts.length ? parts : [emptyNote()]));
  });
  outsides.set(node, redraw);
  runAfter(node, "onRemoved", () => outsides.delete(node));
  runAfter(node, "onConfigure", () => requestAnimationFrame(redraw));
  redraw();
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
  // From outside a subgraph, nothing is added inside it.
  const hasErasure = !state.outside && node.outputs?.some(({ name }) => name === "erasure");
  const actions = {
    compare: !state.outside && safely(() => void addCompare(node)),
    findLeaks: hasErasure && safely(() => addProbe(node)),
    save: hasErasure && safely(() => addSave(node)),
    details: safely((event) => openDetails(event.currentTarget, node, facts)),
    fixes: fixesOf(node, facts, () => editors.get(list)?.open(facts.concepts[0]?.name)),
  };
  return drawPanel(facts, state, actions);
}

function openDetails(origin, node, facts) {
  const control = tradeControl(node, facts, () => dialog.close());
  const elements = drawDetails(facts, control);
  if (!facts.details.length) {
    elements.push(h("div", { class: "dim" }, t("Run again to see all measurements.")));
  }
  const dialog = showDialog(origin, t("Details of this run"), elements);
}

/** What dragging the point of a run does, or null where its limit is not the widget's. */
function tradeControl(node, { page, curve }, close) {
  const isOurs = node.type === "SpeedErase" && !isLinked(node, "settings") && !isLinked(node, "priority");
  if (!isOurs || !curve?.live || curve.budget === null || !page) return null;
  const label = value(node, "priority");
  const limit = curve.offers.get(priorityKey(label))?.[0] ?? Number(label);
  const strength = Number(value(node, "strength") ?? 1);
  return {
    limit: limit > 0 ? limit : curve.budget,
    strengthChanged: strength !== 1,
    ask: async (asked) => previewFacts(await ask("trade", { run: page, limit: asked, strength })),
    choose: safely((chosen) => setLimit(node, chosen, curve)),
    run: safely(() => {
      close();
      void app.queuePrompt(0);
    }),
  };
}

/** Sets the priority to a limit: to its name if it has one, else to the number. */
function setLimit(node, limit, curve) {
  const input = widget(node, "priority");
  const named = choices(node, "priority").find(
    (label) => curve.offers.get(priorityKey(label))?.[0] === limit,
  );
  input.value = named ?? String(limit);
  listNumber(node);
  input.callback?.(input.value);
  captureChange();
  readSoon();
}

/** Front ends show a choice only if it is listed. */
function listNumber(node) {
  const input = widget(node, "priority");
  const listed = choices(node, "priority");
  if (!input || listed.includes(input.value) || !(Number(input.value) > 0)) return;
  const names = listed.filter((label) => Number.isNaN(Number(label)));
  input.options.values = [...names, input.value]; // the object stays: Nodes 2.0 has taken it over
}

function leakView(node, facts, state) {
  const close = safely((leaks) => void closeLeaks(node, leaks));
  return drawLeaks(facts, state, close);
}

// Images come from this session's runs only: a workflow cannot name an image.
const imageUrl = (file) => api.apiURL(viewPath(file));

/** The front end's own preview of an image would make the node grow over its neighbors. */
function textView(node, { text, chart }, { outdated, restored }) {
  const image = chart && !restored && drawChart(imageUrl(chart), node.title);
  return [outdated && outdatedNote(), image, drawText(text)];
}

function compareView(node, facts, { outdated, restored }) {
  return restored ? [] : [outdated && outdatedNote(), drawPairs(facts, imageUrl)];
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
    restore: (step) => void app.extensionManager?.command?.execute?.(`Comfy.${step}`),
    set: (newText) => {
      followNames(node, newText);
      text.value = newText;
      text.callback?.(newText);
      node.graph?.setDirtyCanvas?.(true, true);
      captureChange();
    },
  };
  const editor = new Editor(source, ask);
  editors.set(node, editor);
  addContent(node, "speed_chips", editor.element, 230);
  const changed = () => {
    editor.refresh();
    readSoon();
  };
  for (const name of ["text", "kind", "file"]) onChange(node, name, changed);
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
  addContent(node, "speed_names", element, 190);
  for (const name of RETAIN_WIDGETS) onChange(node, name, refresh);
  runAfter(node, "onConfigure", refresh);
  runAfter(node, "onConnectionsChange", refresh);
  runAfter(node, "onExecuted", previewRemover(node)); // the view has the counts
  api.addEventListener("graphChanged", refresh);
  runAfter(node, "onRemoved", () => api.removeEventListener("graphChanged", refresh));
  refresh();
}

/** Adds the leaking phrases to the concept list as aliases, after a question. The server reads the lines. */
async function closeLeaks(node, leaks) {
  const list = upstream(node, "ConceptList");
  if (!list || isLinked(list, "text")) {
    const detail = t("There is no Concept List before SPEED Erase in this workflow.");
    return notify(t("No Concept List"), detail, "warn");
  }
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

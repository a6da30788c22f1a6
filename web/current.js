// Whether results are current: what the graph would ask for now, as codes of runs.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { safely } from "./dom.js";
import { codeOf } from "./run.js";

const DELAY = 150; // ms without a change before the graph is read
// Reading these nodes would take a picture, record or upload.
const READING_ACTS = /webcam|record|load3d|preview3d/i;

const watchers = new Map(); // node -> function that gets its codes
let timer;

/** Calls `watch` with the codes that a node could have now: one, or one per copy of its subgraph. */
export function watchRun(node, watch) {
  watchers.set(node, watch);
  readSoon();
}

export function readSoon() {
  clearTimeout(timer);
  timer = setTimeout(() => void read().catch((error) => console.warn("[SPEED]", error)), DELAY);
}

async function read() {
  for (const node of watchers.keys()) {
    if (!node.graph?.getNodeById?.(node.id)) watchers.delete(node); // removed, or of a graph that was left
  }
  if (!watchers.size || (app.graph?._nodes ?? []).some(({ type }) => READING_ACTS.test(type))) return;
  const { output } = await app.graphToPrompt();
  for (const [node, watch] of watchers) safely(watch)(codesFor(output, node));
}

/** Nodes in a subgraph have ids such as 5:3 in the prompt. */
function codesFor(prompt, node) {
  const isIt = (id) => prompt[id].class_type === node.type && id.split(":").at(-1) === String(node.id);
  return Object.keys(prompt)
    .filter(isIt)
    .map((id) => codeOf(prompt, id));
}

api.addEventListener("graphChanged", readSoon);

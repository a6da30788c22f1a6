// The nodes that people put after SPEED Erase: added, filled and wired by one click.
import { app } from "../../scripts/app.js";
import { downstream, slotOf, upstream, value, widget } from "./graph.js";
import { ask, captureChange, notify } from "./host.js";
import { firstNames, namesFrom } from "./lines.js";
import { t } from "./words.js";

const GAP = 60;
const TITLE = 40; // height of a node's title, and some air

/** Adds SPEED Compare with prompts for the list's first concept, or shows the one that is there. */
export async function addCompare(node) {
  if (show(downstream(node, "SpeedCompare"))) return;
  const compare = create("SpeedCompare", node);
  wire(source(node, "model"), compare, "original");
  wire(output(node, "model"), compare, "erased");
  wire(source(node, "clip"), compare, "clip");
  wire(vae(node), compare, "vae");
  const list = upstream(node, "ConceptList");
  const typed = String(value(list ?? node, "text") ?? "");
  const text = list ? typed : typed.split(/\n/).flatMap(namesFrom).join("\n");
  const prompts = await ask("compare/prompts", { text, kind: value(list, "kind") });
  for (const [name, prompt] of Object.entries(prompts ?? {})) {
    const input = widget(compare, name);
    if (input && typeof prompt === "string") input.value = prompt;
  }
  compare.properties.speed_names = firstNames(text);
  finish(compare);
}

/** Adds SPEED Leak Probe, or shows the one that is there. */
export function addProbe(node) {
  if (show(downstream(node, "SpeedLeakProbe"))) return;
  const probe = create("SpeedLeakProbe", node);
  wire(source(node, "model"), probe, "model");
  wire(source(node, "clip"), probe, "clip");
  wire(output(node, "erasure"), probe, "erasure");
  finish(probe);
}

/** Adds Save Erased Model, or switches on the one that is there. */
export function addSave(node) {
  const present = downstream(node, "SaveErasedModel");
  if (present?.mode) {
    present.mode = 0;
    captureChange();
  }
  if (show(present)) return;
  const save = create("SaveErasedModel", node);
  wire(output(node, "erasure"), save, "erasure");
  wire(output(node, "model"), save, "model");
  wire(source(node, "clip"), save, "clip");
  wire(vae(node), save, "vae");
  finish(save);
}

/** Selects a node and brings it into view; false if there is none. */
export function show(node) {
  if (!node) return false;
  app.canvas?.selectNode?.(node);
  app.canvas?.centerOnNode?.(node);
  return true;
}

function create(type, node) {
  const created = window.LiteGraph.createNode(type);
  const graph = node.graph ?? app.graph;
  created.pos = freeSpot(graph, node, created); // before it is added: Nodes 2.0 keeps this place
  graph.add(created);
  return created;
}

function finish(node) {
  show(node);
  captureChange();
  notify(t("{0} added", node.title), t("Press Run."));
}

/** Right of the node, below whatever is there. */
function freeSpot(graph, node, created) {
  const x = node.pos[0] + node.size[0] + GAP;
  let y = node.pos[1];
  const others = (graph._nodes ?? []).filter((other) => other !== created);
  const inTheWay = () =>
    others.find(
      ({ pos, size }) =>
        pos[0] < x + created.size[0] + GAP / 2 &&
        pos[0] + size[0] > x - GAP / 2 &&
        pos[1] - TITLE < y + created.size[1] &&
        pos[1] + size[1] > y - TITLE,
    );
  for (let other = inTheWay(); other; other = inTheWay()) y = other.pos[1] + other.size[1] + TITLE + GAP / 2;
  return [x, y];
}

/** {node, slot} behind an input. */
function source(node, name) {
  const slot = slotOf(node, name);
  const origin = slot < 0 ? null : node.getInputNode(slot);
  return origin && { node: origin, slot: node.getInputLink(slot).origin_slot };
}

const output = (node, name) => ({ node, slot: node.outputs.findIndex((slot) => slot.name === name) });

/** A VAE: of the node that the CLIP comes from, else the first in the graph. */
function vae(node) {
  const graph = node.graph ?? app.graph;
  for (const candidate of [source(node, "clip")?.node, ...(graph._nodes ?? [])]) {
    const slot = candidate?.outputs?.findIndex(({ type }) => type === "VAE") ?? -1;
    if (slot >= 0) return { node: candidate, slot };
  }
  return null;
}

function wire(from, to, name) {
  const slot = slotOf(to, name);
  if (from?.node && from.slot >= 0 && slot >= 0) from.node.connect?.(from.slot, to, slot);
}

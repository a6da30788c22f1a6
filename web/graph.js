// Reading the graph: widgets, wires and the definitions of nodes.
import { safely } from "./dom.js";

export const widget = (node, name) => node?.widgets?.find((candidate) => candidate.name === name);
export const value = (node, name) => widget(node, name)?.value;
export const values = (node, names) => Object.fromEntries(names.map((name) => [name, value(node, name)]));
export const choices = (node, name) => widget(node, name)?.options?.values ?? [];
export const slotOf = (node, name) => node?.inputs?.findIndex((slot) => slot.name === name) ?? -1;
export const isLinked = (node, name) => slotOf(node, name) >= 0 && node.isInputConnected(slotOf(node, name));

/** A priority as the server names it: "erase fully" is erase-fully there. */
export const priorityKey = (label) => String(label ?? "").replaceAll(" ", "-");

const definitions = new Map(); // node type -> {input: default value}

export function rememberDefaults(nodeData) {
  const inputs = { ...nodeData.input?.required, ...nodeData.input?.optional };
  const defaults = Object.entries(inputs).map(([name, spec]) => [name, spec[1]?.default]);
  definitions.set(nodeData.name, Object.fromEntries(defaults));
}

/** {input: default value} as the server defines the node. */
export const defaultsOf = (node) => definitions.get(node.type) ?? {};

/** Runs `hook` after each call of a method of this one object. */
export function runAfter(object, method, hook) {
  const original = object[method];
  object[method] = function (...args) {
    const result = original?.apply(this, args);
    safely(hook).apply(this, args);
    return result;
  };
}

export function onChange(node, name, hook) {
  const input = widget(node, name);
  if (input) runAfter(input, "callback", hook);
}

const MAX_DEPTH = 6; // nodes between two that belong together

/** The first node of a type that this one feeds, directly or through other nodes. */
export const downstream = (node, type) => search(node, type, nextNodes, MAX_DEPTH);

/** The first node of a type that feeds this one, directly or through other nodes. */
export const upstream = (node, type) => search(node, type, previousNodes, MAX_DEPTH);

function search(node, type, neighbors, depth) {
  if (!node || depth < 0) return null;
  for (const neighbor of neighbors(node)) {
    if (neighbor.type === type) return neighbor;
    const match = search(neighbor, type, neighbors, depth - 1);
    if (match) return match;
  }
  return null;
}

const nextNodes = (node) => (node.outputs ?? []).flatMap((_, slot) => node.getOutputNodes?.(slot) ?? []);

const previousNodes = (node) =>
  (node.inputs ?? []).map((_, slot) => node.getInputNode?.(slot)).filter(Boolean);

// What a click can do when a concept is not fully erased: change one setting, and run again.
import { app } from "../../scripts/app.js";
import { captureChange } from "./host.js";
import { choices, defaultsOf, priorityKey, upstream, value, widget } from "./graph.js";

const STRENGTH_STEP = 0.1;
const MAX_STRENGTH = 1.5;

/** {advice: function} for the advice of a result that this node can follow. */
export function fixesOf(node, facts, openConcept) {
  if (!["SpeedErase", "SpeedNeverDraw"].includes(node.type)) return {};
  const setAndRun = (name, setting) => () => {
    const input = widget(node, name);
    input.value = setting;
    input.callback?.(setting);
    captureChange();
    void app.queuePrompt(0);
  };
  const fixes = {};
  const { preset } = defaultsOf(node);
  if (preset && preset !== value(node, "preset")) fixes.use_auto = setAndRun("preset", preset);
  const fullest = widget(node, "priority") && fullestPriority(node, facts);
  if (fullest && fullest !== value(node, "priority")) fixes.erase_fully = setAndRun("priority", fullest);
  if (upstream(node, "ConceptList")) fixes.closer_replacement = openConcept;
  const strength = Number(value(node, "strength"));
  if (strength < MAX_STRENGTH) {
    fixes.raise_strength = setAndRun("strength", Math.round((strength + STRENGTH_STEP) * 100) / 100);
  }
  return fixes;
}

/** The choice that allows the most side effects. */
function fullestPriority(node, { curve }) {
  const limit = (label) => curve?.offers.get(priorityKey(label))?.[0] ?? 0;
  const labels = choices(node, "priority");
  if (!curve) return defaultsOf(node).priority;
  return [...labels].sort((a, b) => limit(b) - limit(a))[0];
}

// What an erasure did, drawn from its certificate: the verdict first, then warnings, then the figures.
import { h, svg } from "./dom.js";
import { forecast, headline, percent, plot, roundUp, scale, strip, worst } from "./figures.js";
import { t } from "./words.js";

const SHOWN_CONCEPTS = 12;
const SHOWN_WARNINGS = 2;
const CURVE_COLOR = "#4a80d8";
const POINT_COLOR = "#d64545";

// What to do next: the server sends the keys.
const ADVICE = {
  compare: () =>
    t("Try it: draw the same prompt and seed with the original and with this model (SPEED Compare)."),
  probe_leaks: () =>
    t("Look for other words that still draw it (SPEED Leak Probe), and add them as aliases."),
  save: () => t("Keep it: wire erasure into Save Erased Model."),
  use_auto: () => t("Nothing was checked in unseen prompts: use the preset auto to know."),
  allow_more_drift: () =>
    t("Still shows? Allow more change ('others may change'), and see on the curve what that buys."),
  raise_strength: () => t("Still shows? Raise strength in steps of 0.1; drift grows with it."),
  change_lists: () => t("Choose an anchor nearer to the concept, or drop kept names that stand in the way."),
};

const background = (verdict) => `background: var(--speed-${verdict})`;
const isMeasured = (share) => Number.isFinite(share);

/**
 * Elements for the result of one run. `settings` are those on the node now: {strength, budget}. With
 * `showAll` only the first concepts are drawn, and a button that calls it.
 */
export function drawPanel(result, settings, showAll) {
  const { concepts, counts, curve, drift, inputs, warnings } = result;
  const shown = showAll ? concepts.slice(0, SHOWN_CONCEPTS) : concepts;
  const hasToGo = concepts.some((concept) => isMeasured(concept.to_go));
  const legend = t("Strong: straight way to the anchor still to go. Pale: went astray.");
  return [
    h(
      "div",
      { class: "head", "data-speed": "verdict" },
      h("i", { class: "dot", style: background(worst(counts)) }),
      headline(counts),
    ),
    h("div", { class: "dim" }, costs(result)),
    drawWarnings(warnings),
    h("h4", {}, t("What is left, in prompts not used to make the edit")),
    hasToGo && h("div", { class: "dim" }, legend),
    shown.map(drawConcept),
    shown.length < concepts.length &&
      h("button", { onclick: showAll }, t("Show {0} concepts", concepts.length)),
    drift.length > 0 && h("h4", {}, t("How far other names moved")),
    drawDrift(drift),
    ...inputs.map((line) => h("div", { class: "dim", "data-speed": "input" }, line)),
    curve && [h("h4", {}, t("The trade: what is left against drift")), drawCurve(result, settings)],
    h("h4", {}, t("What next")),
    h(
      "ul",
      {},
      result.next.map((key) => h("li", {}, ADVICE[key]())),
    ),
  ].flat();
}

function costs({ curve, strength }) {
  const texts = [];
  if (curve) {
    const drift = percent(curve.chosen[0] * Math.abs(strength));
    texts.push(
      curve.budget
        ? t("Other names drift {0} on average of a budget of {1}", drift, percent(curve.budget, 0))
        : t("Other names drift {0} on average", drift),
    );
  }
  if (strength !== 1) texts.push(t("at strength {0}", strength));
  return texts.join(", ");
}

/** The first ones in full, the others folded: the bars below show the same for single concepts. */
function drawWarnings(texts) {
  const warnings = texts.map((text) => h("div", { class: "warning" }, text));
  const folded = warnings.splice(SHOWN_WARNINGS);
  if (!folded.length) return warnings;
  const summary = h("summary", {}, t("{0} more to mind", folded.length));
  return [...warnings, h("details", {}, summary, folded)];
}

function drawConcept({ name, kind, verdict, words, left, to_go: toGo, bars: [erased, stands, arrived] }) {
  const x = scale(1, 100);
  const hasToGo = isMeasured(toGo);
  const hints = [t("Erased up to {0}, still there from {1}", percent(erased, 0), percent(stands, 0))];
  if (hasToGo) {
    hints.push(t("{0} of the straight way to the anchor still to go", percent(toGo)));
    if (arrived) hints.push(t("with at most {0} of it a concept counts as erased", percent(arrived, 0)));
  }
  return h(
    "div",
    {
      class: "row",
      title: `${name} (${kind}). ${hints.join("; ")}.`,
      "data-concept": name,
      "data-left": left,
    },
    h("span", {}, name),
    h(
      "div",
      { class: "bar" },
      h("i", { class: hasToGo ? "astray" : "", style: `${background(verdict)}; width: ${x(left)}%` }),
      hasToGo && h("i", { style: `${background(verdict)}; width: ${x(toGo)}%` }),
      [erased, stands].map((bar) => h("b", { style: `left: ${x(bar)}%` })),
    ),
    h("span", {}, t("{0} left, {1}", percent(left), t(words))),
  );
}

function drawDrift(groups) {
  const full = roundUp(Math.max(0.01, ...groups.map((group) => group.maximum)));
  return groups.map((group) => drawGroup(group, full));
}

function drawGroup(group, full) {
  const positions = strip(group, full, 100);
  const shares = [group.median, group.p95, group.maximum, full].map((share) => percent(share));
  const hint = t("median {0}, 95 of 100 within {1}, maximum {2}; the scale ends at {3}", ...shares);
  const [name, drift] = group.worst[0] ?? ["", 0];
  return h(
    "div",
    { class: "row", "data-group": group.group, "data-median": group.median },
    h("span", { class: "wrap" }, `${t(group.group)} (${group.names})`),
    h(
      "div",
      { class: "strip", title: hint },
      h("i", { style: `width: ${positions.p95}%` }),
      h("u", { style: `left: ${positions.median}%` }),
      positions.names.map((dot) =>
        h("a", { style: `left: ${dot.x}%`, title: `${dot.name}: ${percent(dot.value)}` }),
      ),
    ),
    h("span", { title: name ? `${name} ${percent(drift)}` : "" }, t("median {0}", percent(group.median))),
  );
}

function drawCurve({ curve, strength }, settings) {
  const nextStrength = settings.strength ?? strength;
  const next = forecast(curve, nextStrength, settings.budget);
  const changed = next.moved || Math.abs(nextStrength - strength) > 1e-9;
  const current = forecast(curve, strength);
  const chosen = [current.drift, strength === 1 ? curve.chosen[1] : current.left];
  const [drift, left] = chosen;
  const bullet = (symbol) => h("span", { style: "color: var(--speed-stands)" }, symbol);
  return h(
    "div",
    {},
    drawPlot({ ...curve, chosen }, changed ? next : null),
    h(
      "div",
      {},
      bullet("● "),
      t("this edit: about {0} left for {1} drift", percent(left, 0), percent(drift)),
    ),
    h("div", { class: "dim" }, t("Dashed: the part of it that is straight way to the anchor")),
    changed &&
      h(
        "div",
        { "data-speed": "forecast", "data-left": next.left, "data-drift": next.drift },
        bullet("◌ "),
        t("the next run: about {0} left for {1} drift", percent(next.left, 0), percent(next.drift)),
      ),
  );
}

function drawPlot(curve, next) {
  const box = { left: 54, top: 10, width: 392, height: 150 };
  const right = box.left + box.width;
  const bottom = box.top + box.height;
  const positions = plot(curve, next, box);
  return svg(
    "svg",
    { viewBox: "0 0 460 200", role: "img", "aria-label": t("trade-off") },
    [0, 0.5, 1]
      .map((share) => {
        const y = bottom - share * box.height;
        return [
          line({ x1: box.left, x2: right, y1: y, y2: y, "stroke-opacity": 0.18 }),
          label(box.left - 6, y + 5, percent(share, 0), "end"),
        ];
      })
      .flat(),
    label(box.left, bottom + 18, "0"),
    label(right, bottom + 18, t("{0} drift", percent(positions.full)), "end"),
    positions.budget !== null && drawBudget(positions.budget, box),
    polyline(positions.toGo, { "stroke-width": 2, "stroke-opacity": 0.6, "stroke-dasharray": "6 4" }),
    polyline(positions.left, { "stroke-width": 3 }),
    circle(positions.chosen, t("this edit"), { fill: POINT_COLOR, "data-speed": "chosen" }),
    positions.next && circle(positions.next, t("the next run"), OUTLINE),
  );
}

const OUTLINE = { fill: "none", stroke: POINT_COLOR, "stroke-width": 3, "stroke-dasharray": "4 3" };

function drawBudget(x, box) {
  const ends = { x1: x, x2: x, y1: box.top, y2: box.top + box.height };
  return [
    line({ ...ends, "stroke-dasharray": "5 4", "stroke-opacity": 0.7 }),
    label(Math.min(x + 5, box.left + box.width - 48), box.top + 12, t("budget")),
  ];
}

const line = (props) => svg("line", { stroke: "currentColor", ...props });

const label = (x, y, text, anchor = "start") =>
  svg("text", { x, y, "text-anchor": anchor, fill: "currentColor", "font-size": 14 }, text);

const polyline = (points, props) => svg("polyline", { points, fill: "none", stroke: CURVE_COLOR, ...props });

const circle = ([cx, cy], title, props) => svg("circle", { cx, cy, r: 7, ...props }, svg("title", {}, title));

// What an erasure did, drawn from its certificate: the verdict first, then what to mind, then the figures.
import { h, svg } from "./dom.js";
import { forecast, headline, percent, plot, roundUp, scale, strip, worst } from "./figures.js";
import { t } from "./words.js";

const colour = (verdict) => `background: var(--speed-${verdict})`;
const SHOWN = 12; // concepts drawn at once

/** Elements for the facts of one run; `widgets` are those on the node now: {strength, budget}. */
export function drawPanel(facts, widgets, more, showAll) {
  return [
    h("div", { class: "head", "data-speed": "verdict" }, h("i", { class: "dot", style: colour(worst(facts.counts)) }), headline(facts.counts)),
    h("div", { class: "dim" }, [spentBy(facts), facts.strength === 1 ? "" : t("at strength {0}", facts.strength)].filter(Boolean).join(", ")),
    warned(facts.warnings),
    h("h4", {}, t("What is left, in prompts not used to make the edit")),
    facts.concepts.some((one) => Number.isFinite(one.to_go)) && h("div", { class: "dim" }, t("Strong: straight way to the anchor still to go. Pale: went astray.")),
    facts.concepts.slice(0, more ? undefined : SHOWN).map(drawConcept),
    !more && facts.concepts.length > SHOWN && h("button", { onclick: showAll }, t("Show {0} concepts", facts.concepts.length)),
    facts.drift.length ? h("h4", {}, t("How far other names moved")) : null,
    drawDrift(facts.drift),
    facts.pooled ? h("div", { class: "dim", "data-speed": "pooled" }, facts.pooled) : null,
    facts.curve && [h("h4", {}, t("The trade: what is left against drift")), drawCurve(facts, widgets)],
    h("h4", {}, t("What next")),
    h("ul", {}, facts.next.map((text) => h("li", {}, t(text)))),
  ].flat();
}

/** The first two in full, the rest folded: the bars below say the same of single concepts. */
function warned(texts) {
  const [first, rest] = [texts.slice(0, 2), texts.slice(2)].map((part) => part.map((text) => h("div", { class: "warning" }, text)));
  return rest.length ? [...first, h("details", {}, h("summary", {}, t("{0} more to mind", rest.length)), rest)] : first;
}

function spentBy({ curve, strength }) {
  if (!curve) return "";
  const drift = percent(curve.chosen[0] * Math.abs(strength));
  return curve.budget ? t("Other names drift {0} on average of a budget of {1}", drift, percent(curve.budget, 0)) : t("Other names drift {0} on average", drift);
}

function drawConcept(one) {
  const x = scale(1, 100);
  const [erased, stands, arrived] = one.bars;
  const known = Number.isFinite(one.to_go); // not in workflows that an earlier release kept
  const means = [t("Erased up to {0}, still there from {1}", percent(erased, 0), percent(stands, 0)),
    known && t("{0} of the straight way to the anchor still to go", percent(one.to_go)),
    known && arrived && t("with at most {0} of it a concept counts as erased", percent(arrived, 0))].filter(Boolean).join("; ");
  return h("div", { class: "row", title: `${one.name} (${one.kind}). ${means}.`, "data-concept": one.name, "data-left": one.left },
    h("span", {}, one.name),
    h("div", { class: "bar" },
      h("i", { class: known ? "astray" : "", style: `${colour(one.verdict)}; width: ${x(one.left)}%` }),
      known && h("i", { style: `${colour(one.verdict)}; width: ${x(one.to_go)}%` }),
      [erased, stands].map((bar) => h("b", { style: `left: ${x(bar)}%` }))),
    h("span", {}, t("{0} left, {1}", percent(one.left), t(one.words))));
}

function drawDrift(groups) {
  const full = roundUp(Math.max(0.01, ...groups.map((group) => group.maximum)));
  return groups.map((group) => {
    const places = strip(group, full, 100);
    const [name, most] = group.worst[0] ?? ["", 0];
    return h("div", { class: "row", "data-group": group.group, "data-median": group.median },
      h("span", { class: "whole" }, `${t(group.group)} (${group.names})`),
      h("div", { class: "strip", title: t("median {0}, 95 of 100 within {1}, maximum {2}; the scale ends at {3}", ...[group.median, group.p95, group.maximum, full].map((share) => percent(share))) },
        h("i", { style: `width: ${places.most}%` }),
        h("u", { style: `left: ${places.middle}%` }),
        places.names.map((one) => h("a", { style: `left: ${one.x}%`, title: `${one.name}: ${percent(one.value)}` }))),
      h("span", { title: name ? `${name} ${percent(most)}` : "" }, t("median {0}", percent(group.median))));
  });
}

function drawCurve(facts, widgets) {
  const box = { left: 54, top: 10, width: 392, height: 150 };
  const guess = forecast(facts.curve, widgets.strength ?? facts.strength, widgets.budget);
  const moved = guess && (guess.moved || Math.abs((widgets.strength ?? facts.strength) - facts.strength) > 1e-9);
  const now = { drift: facts.curve.chosen[0] * Math.abs(facts.strength), left: forecast(facts.curve, facts.strength)?.left };
  const curve = { ...facts.curve, chosen: [now.drift, facts.strength === 1 ? facts.curve.chosen[1] : now.left] };
  const found = plot(curve, moved ? guess : null, box);
  const low = box.top + box.height;
  const text = (x, y, words, anchor = "start") => svg("text", { x, y, "text-anchor": anchor, fill: "currentColor", "font-size": 14 }, words);
  const picture = svg("svg", { viewBox: "0 0 460 200", role: "img", "aria-label": t("trade-off") },
    [0, 0.5, 1].map((left) => svg("line", { x1: box.left, x2: box.left + box.width, y1: low - left * box.height, y2: low - left * box.height, stroke: "currentColor", "stroke-opacity": 0.18 })),
    [0, 0.5, 1].map((left) => text(box.left - 6, low - left * box.height + 5, percent(left, 0), "end")),
    text(box.left, low + 18, "0"), text(box.left + box.width, low + 18, t("{0} drift", percent(found.full)), "end"),
    found.budget === null ? null : [
      svg("line", { x1: found.budget, x2: found.budget, y1: box.top, y2: low, stroke: "currentColor", "stroke-dasharray": "5 4", "stroke-opacity": 0.7 }),
      text(Math.min(found.budget + 5, box.left + box.width - 48), box.top + 12, t("budget"))],
    svg("polyline", { points: found.way, fill: "none", stroke: "#4a80d8", "stroke-width": 2, "stroke-opacity": 0.6, "stroke-dasharray": "6 4" }),
    svg("polyline", { points: found.line, fill: "none", stroke: "#4a80d8", "stroke-width": 3 }),
    svg("circle", { cx: found.chosen[0], cy: found.chosen[1], r: 7, fill: "#d64545", "data-speed": "chosen" }, svg("title", {}, t("this edit"))),
    found.ghost && svg("circle", { cx: found.ghost[0], cy: found.ghost[1], r: 7, fill: "none", stroke: "#d64545", "stroke-width": 3, "stroke-dasharray": "4 3" }, svg("title", {}, t("the next run"))));
  const [drift, left] = curve.chosen;
  return h("div", {}, picture,
    h("div", {}, h("span", { style: "color: var(--speed-stands)" }, "● "), t("this edit: about {0} left for {1} drift", percent(left, 0), percent(drift))),
    found.way && h("div", { class: "dim" }, t("Dashed: the part of it that is straight way to the anchor")),
    moved && h("div", { "data-speed": "forecast", "data-left": guess.left, "data-drift": guess.drift },
      h("span", { style: "color: var(--speed-stands)" }, "◌ "), t("the next run: about {0} left for {1} drift", percent(guess.left, 0), percent(guess.drift))));
}

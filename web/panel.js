// What an erasure did: is it gone, did anything else change, what to do next. Measurements are in a dialog.
import { h, svg } from "./dom.js";
import {
  MARK,
  forecast,
  headline,
  levelWords,
  percent,
  plot,
  remainder,
  roundUp,
  scale,
  scoreLength,
  verdictWords,
  worst,
} from "./figures.js";
import { noticeText } from "./notices.js";
import { t } from "./words.js";

const SHOWN_CONCEPTS = 5;
const SHOWN_NAMES = 2;
const TONES = { erased: "erased", weakened: "weakened", stands: "stands", unproven: "unproven" };

// One button per piece of advice that a click can follow: the server sends the keys.
const FIXES = {
  use_auto: () => t("Use auto and run again"),
  erase_fully: () => t("Erase fully and run again"),
  closer_replacement: () => t("Choose a closer replacement"),
  raise_strength: () => t("Raise strength and run again"),
};
const ADVICE = {
  use_auto: () => t("Only the auto preset tests new prompts."),
  erase_fully: () => t("Move priority toward “erase fully”."),
  closer_replacement: () =>
    t("Pick a replacement closer to the original, for example “oil painting” instead of “art”."),
  raise_strength: () => t("Raise strength in steps of 0.1."),
  protect_fewer: () => t("Protect fewer names that resemble it."),
};

/**
 * The panel of one run.
 *
 * `state` is what is true of the graph now: {outdated, bypassed, restored}; `actions` are {compare,
 * findLeaks, save, details, fixes: {key: function}}.
 */
export function drawPanel(facts, state, actions) {
  const { concepts, counts, effects } = facts;
  const shown = concepts.slice(0, SHOWN_CONCEPTS);
  const rest = remainder(counts, shown);
  return [
    drawHead(facts, state),
    ...shown.map(drawConcept),
    rest && h("div", { class: "dim", "data-speed": "rest" }, rest),
    effects && drawEffects(effects),
    worst(counts) !== "erased" && drawAdvice(facts, actions),
    h(
      "div",
      { class: "buttons" },
      h("button", { onclick: actions.compare }, t("Compare")),
      h("button", { onclick: actions.findLeaks }, t("Find leaks")),
      h("button", { onclick: actions.save }, t("Save")),
      h("button", { onclick: actions.details }, t("Details")),
    ),
  ];
}

function drawHead({ counts }, { outdated, bypassed, restored }) {
  let note = "";
  if (bypassed) note = t("Bypassed: the model is unchanged");
  else if (outdated) note = t("Out of date: run again");
  else if (restored) note = t("From an earlier session");
  return h(
    "div",
    { class: "head", "data-speed": "verdict" },
    h("i", { class: `dot ${TONES[worst(counts)]}` }),
    h("span", {}, headline(counts)),
    note && h("span", { class: "tag right", "data-speed": "state" }, note),
  );
}

const titleOf = ({ name, replacement }) =>
  replacement === null ? name : `${name} → ${replacement || t("(nothing)")}`;

function drawConcept(concept) {
  const { name, kind, verdict, score } = concept;
  const words = verdictWords()[verdict];
  const bar = score !== null && [
    h("i", { class: TONES[verdict], percent: { width: scoreLength(score) } }),
    h("b", { percent: { left: MARK } }),
  ];
  return h(
    "div",
    {
      class: "row",
      title: kind ? `${titleOf(concept)} (${kind})` : titleOf(concept),
      "data-concept": name,
      "data-score": score ?? "",
    },
    h("span", {}, titleOf(concept)),
    h("div", { class: "bar", title: t("Erased left of the mark, in new prompts") }, bar),
    h("span", { class: `verdict ${TONES[verdict]}` }, words),
  );
}

function drawEffects({ level, worst: worstLevel, affected }) {
  const words = levelWords();
  const names = affected.slice(0, SHOWN_NAMES).join(", ");
  const detail = worstLevel === level ? "" : ` (${words[worstLevel]})`;
  return h(
    "div",
    { class: "effects", "data-speed": "effects", title: t("As seen in images of our test models") },
    t("Other names: {0}", words[level]),
    names && h("div", { class: "dim" }, t("Most affected: {0}", names) + detail),
  );
}

/** One sentence, and one button that follows it if a click can. */
function drawAdvice({ why, next }, { fixes }) {
  const key = next.find((name) => fixes[name] && FIXES[name]);
  const sentence = why ? noticeText(why) : ADVICE[key ?? next[0]]?.();
  return h(
    "div",
    { class: "advice", "data-speed": "advice" },
    sentence && h("span", {}, sentence),
    key && h("button", { class: "primary", onclick: fixes[key], "data-fix": key }, FIXES[key]()),
  );
}

/** What the dialog shows: all measurements of the run. `settings` are those on the node now. */
export function drawDetails(facts, settings) {
  const { concepts, drift, curve, details, warnings, next } = facts;
  const advice = next.map((key) => ADVICE[key]?.()).filter(Boolean);
  return [
    section(t("What to try"), advice.length > 0 && h("ul", {}, advice.map((text) => h("li", {}, text)))),
    section(
      t("Notes"),
      warnings.length > 0 && warnings.map((notice) => h("div", { class: "warning" }, noticeText(notice))),
    ),
    section(t("Concepts"), concepts.length > 0 && concepts.map(drawConcept)),
    section(t("Erasure and side effects"), curve && drawCurve(facts, settings)),
    section(t("How far other names moved"), drift.length > 0 && drawDrift(drift)),
    section(t("Measurements"), details.length > 0 && details.map((line) => h("div", { class: "dim" }, line))),
  ].flat(2);
}

const section = (title, content) => (content ? [h("h4", {}, title), content] : []);

function drawDrift(groups) {
  const full = roundUp(Math.max(0.01, ...groups.map((group) => group.maximum)));
  return groups.map((group) => drawGroup(group, scale(full, 100)));
}

function drawGroup({ group, names, median, p95, maximum, worst: affected }, x) {
  const shares = [median, p95, maximum].map((share) => share.toFixed(2));
  return h(
    "div",
    { class: "row", "data-group": group, "data-median": median },
    h("span", { class: "wrap" }, `${t(group)} (${names})`),
    h(
      "div",
      { class: "strip", title: t("median {0}, 95 of 100 within {1}, maximum {2}", ...shares) },
      h("i", { percent: { width: x(p95) } }),
      h("u", { percent: { left: x(median) } }),
      affected.map(([name, drift]) =>
        h("a", { percent: { left: x(drift) }, title: `${name}: ${drift.toFixed(2)}` }),
      ),
    ),
    h("span", {}, median.toFixed(2)),
  );
}

function drawCurve({ curve, strength }, settings) {
  const nextStrength = settings.strength ?? strength;
  const next = forecast(curve, nextStrength, settings.priority);
  const changed = next.moved || Math.abs(nextStrength - strength) > 1e-9;
  const current = forecast(curve, strength);
  const chosen = [current.drift, strength === 1 ? curve.chosen[1] : current.left];
  const line = (symbol, text, props = {}) => h("div", props, h("span", { class: "point" }, symbol), text);
  const figures = ([drift, left]) => [percent(left, 0), drift.toFixed(2)];
  const nextWords = t(
    "the next run: about {0} remaining, side effects {1}",
    ...figures([next.drift, next.left]),
  );
  return h(
    "div",
    {},
    drawPlot({ ...curve, chosen }, changed ? next : null),
    line("● ", t("this run: {0} remaining, side effects {1}", ...figures(chosen))),
    changed &&
      line("◌ ", nextWords, {
        "data-speed": "forecast",
        "data-left": next.left,
        "data-drift": next.drift,
      }),
  );
}

function drawPlot(curve, next) {
  const frame = { left: 54, top: 10, width: 392, height: 150 };
  const right = frame.left + frame.width;
  const bottom = frame.top + frame.height;
  const positions = plot(curve, next, frame);
  const level = (share) => {
    const y = bottom - share * frame.height;
    return [
      line({ x1: frame.left, x2: right, y1: y, y2: y, "stroke-opacity": 0.18 }),
      label(frame.left - 6, y + 5, percent(share, 0), "end"),
    ];
  };
  return svg(
    "svg",
    { viewBox: "0 0 460 200", role: "img", "aria-label": t("Erasure and side effects") },
    [0, 0.5, 1].flatMap(level),
    label(frame.left, bottom + 18, "0"),
    label(right, bottom + 18, t("side effects {0}", positions.full), "end"),
    positions.budget !== null && drawLimit(positions.budget, frame),
    polyline(positions.toGo, { class: "curve faint" }),
    polyline(positions.left, { class: "curve" }),
    circle(positions.chosen, t("this run"), { class: "chosen", "data-speed": "chosen" }),
    positions.next && circle(positions.next, t("the next run"), { class: "next" }),
  );
}

function drawLimit(x, frame) {
  const ends = { x1: x, x2: x, y1: frame.top, y2: frame.top + frame.height };
  return [
    line({ ...ends, "stroke-dasharray": "5 4", "stroke-opacity": 0.7 }),
    x < frame.left + frame.width / 2
      ? label(x + 5, frame.top + 15, t("limit"))
      : label(x - 5, frame.top + 15, t("limit"), "end"),
  ];
}

const line = (props) => svg("line", { stroke: "currentColor", ...props });

const label = (x, y, text, anchor = "start") =>
  svg("text", { x, y, "text-anchor": anchor, fill: "currentColor", "font-size": 14 }, String(text));

const polyline = (points, props) => svg("polyline", { points, ...props });

const circle = ([cx, cy], title, props) => svg("circle", { cx, cy, r: 7, ...props }, svg("title", {}, title));

// What an erasure did: is it gone, did anything else change, what to do next. Measurements are in a dialog.
import { h } from "./dom.js";
import { MARK, headline, remainder, roundUp, scale, scoreLength, verdictWords, worst } from "./figures.js";
import { noticeText } from "./notices.js";
import { drawCurve, drawTrade } from "./trade.js";
import { number, t } from "./words.js";

const SHOWN_CONCEPTS = 5;
const SHOWN_NAMES = 2;

// Buttons for advice that a click can follow.
const FIXES = {
  use_auto: () => t("Use auto and run again"),
  erase_fully: () => t("Erase fully and run again"),
  closer_replacement: () => t("Choose a closer replacement"),
  raise_strength: () => t("Raise strength and run again"),
};

/**
 * The panel of one run.
 *
 * `state` is what is true of the graph now: {outdated, bypassed, restored}; `actions` are {compare,
 * findLeaks, save, details, fixes: {key: function}}, without those that the node has no outputs for.
 */
export function drawPanel(facts, state, actions) {
  const button = (action, text) => action && h("button", { onclick: action }, text);
  return [
    ...drawAnswers(facts, state),
    worst(facts.counts) !== "erased" && drawAdvice(facts, actions),
    h(
      "div",
      { class: "buttons" },
      button(actions.compare, t("Compare")),
      button(actions.findLeaks, t("Find leaks")),
      button(actions.save, t("Save")),
      button(actions.details, t("Details")),
    ),
  ];
}

/** The verdict, the least erased concepts, and what else changed. */
function drawAnswers(facts, state) {
  const { concepts, counts, effects } = facts;
  const shown = concepts.slice(0, SHOWN_CONCEPTS);
  const rest = remainder(counts, shown);
  return [
    drawHead(facts, state),
    ...shown.map(drawConcept),
    rest && h("div", { class: "dim", "data-speed": "rest" }, rest),
    effects && drawEffects(effects),
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
    h("i", { class: `dot ${worst(counts)}` }),
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
    h("i", { class: verdict, percent: { width: scoreLength(score) } }),
    h("b", { percent: { left: MARK } }),
  ];
  return h(
    "div",
    {
      class: "row",
      title: kind ? `${titleOf(concept)} (${t(kind)})` : titleOf(concept),
      "data-concept": name,
      "data-score": score ?? "",
    },
    h("span", {}, titleOf(concept)),
    h("div", { class: "bar", title: t("Erased left of the mark, in new prompts") }, bar),
    h("span", { class: `verdict ${verdict}` }, words),
  );
}

function drawEffects({ words, worst: worstWords, affected }) {
  const names = affected.slice(0, SHOWN_NAMES).join(", ");
  const detail = worstWords && ` (${t(worstWords)})`;
  return h(
    "div",
    { class: "effects", "data-speed": "effects", title: t("As seen in images of our test models") },
    t("Other names: {0}", t(words)),
    names && h("div", { class: "dim" }, t("Most affected: {0}", names) + detail),
  );
}

/** One sentence, and one button that follows it if a click can. */
function drawAdvice({ why, next }, { fixes }) {
  const advice = next.find(({ code }) => Object.hasOwn(fixes, code));
  const key = advice?.code;
  const sentence = why ?? advice ?? next[0];
  return h(
    "div",
    { class: "advice", "data-speed": "advice" },
    sentence && h("span", {}, noticeText(sentence)),
    key && h("button", { class: "primary", onclick: fixes[key], "data-fix": key }, FIXES[key]()),
  );
}

/**
 * What the dialog shows: all measurements of the run.
 *
 * `control` is for `drawTrade`, or null if there is nothing to drag.
 */
export function drawDetails(facts, control) {
  const { concepts, drift, curve, details, warnings, next } = facts;
  const rows = control && concepts.length <= SHOWN_CONCEPTS ? [] : concepts;
  return [
    control && drawPreview(facts, control),
    section(t("What to try"), drawNotices(next, "")),
    section(t("Notes"), drawNotices(warnings, "warning")),
    section(t("Concepts"), rows.map(drawConcept)),
    section(t("Erasure and side effects"), curve && !control ? [drawCurve(facts)] : []),
    section(t("How far other names moved"), drawDrift(drift)),
    section(t("Measurements"), drawNotices(details, "dim")),
  ]
    .flat(2)
    .filter(Boolean);
}

/** The answers of this run, or of the next one while its point is dragged. */
function drawPreview(facts, control) {
  const answers = h("div", { "data-speed": "preview" });
  const show = (shown) => answers.replaceChildren(...drawAnswers(shown, {}).filter(Boolean));
  show(facts);
  return [answers, drawTrade(facts, { ...control, show })];
}

const section = (title, content) => (content.length ? [h("h4", {}, title), content] : []);

const drawNotices = (notices, name) => notices.map((notice) => h("div", { class: name }, noticeText(notice)));

function drawDrift(groups) {
  const full = roundUp(Math.max(0.01, ...groups.map((group) => group.maximum)));
  return groups.map((group) => drawGroup(group, scale(full, 100)));
}

function drawGroup({ group, names, median, p95, maximum, worst: affected }, x) {
  const shares = [median, p95, maximum].map((share) => number(share, 2));
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
        h("a", { percent: { left: x(drift) }, title: `${name}: ${number(drift, 2)}` }),
      ),
    ),
    h("span", {}, shares[0]),
  );
}

// Results as the server sends them and as workflows store them. A workflow may come from anybody: every value
// passes through here, becomes a short text, a finite number or a known word, or is left out.
import { clamp } from "./figures.js";

const MAX_TEXT = 400;
const MAX_OUTPUT = 20_000; // characters of a text result
const STORED_OUTPUT = 2_000;
const STORED_CONCEPTS = 5;
const VERDICTS = ["erased", "weakened", "stands", "unproven"];
const CODE = /^[0-9a-f]{8}$/;
const PAGE = /^[0-9a-f]{32}$/;

const text = (value, length = MAX_TEXT) => (typeof value === "string" ? value.slice(0, length) : "");
const number = (value, low, high) =>
  typeof value === "number" && Number.isFinite(value) ? clamp(value, low, high) : null;
const word = (value, known) => (known.includes(value) ? value : null);
const list = (value, length, read) =>
  Array.isArray(value)
    ? value
        .slice(0, length)
        .map(read)
        .filter((item) => item !== null)
    : [];
const record = (value) => (value instanceof Object && !Array.isArray(value) ? value : {});
const matching = (value, pattern) => (typeof value === "string" && pattern.test(value) ? value : "");

/** What every result has: the code of its run, and the text that a node without a view of its own shows. */
function base(value) {
  return { run: matching(value.run, CODE), text: text(value.text, MAX_OUTPUT) };
}

/** The result of an erasure, or null if there is none. */
export function erasureFacts(given) {
  const value = record(given);
  const verdict = word(value.verdict, VERDICTS);
  if (!verdict) return null;
  return {
    ...base(value),
    page: matching(value.page, PAGE),
    verdict,
    strength: number(value.strength, -5, 5) ?? 1,
    ...answers(value),
    why: notice(value.why),
    next: list(value.next, 10, notice),
    warnings: list(value.warnings, 12, notice),
    drift: list(value.drift, 12, group),
    curve: curve(value.curve),
    details: list(value.details, 40, notice),
  };
}

/** What a run with another limit would show, or null. */
export function previewFacts(given) {
  const value = record(given);
  const chosen = point(value.chosen);
  return chosen && word(value.verdict, VERDICTS) ? { ...answers(value), chosen } : null;
}

function answers(value) {
  const counts = record(value.counts);
  return {
    concepts: list(value.concepts, 100, concept),
    counts: Object.fromEntries(VERDICTS.map((name) => [name, number(counts[name], 0, 1e6) ?? 0])),
    effects: effects(value.effects),
  };
}

/** A sentence with its code, and a Map of what it is about. */
export const notice = (given) => {
  const value = record(given);
  if (!text(value.text)) return null;
  const data = Object.entries(record(value.data))
    .slice(0, 12)
    .map(([name, content]) => {
      const texts = Array.isArray(content) ? list(content, 20, (item) => text(item) || null) : null;
      return [text(name, 40), texts ?? number(content, -1e9, 1e9) ?? text(content)];
    });
  return { code: text(value.code, 40), text: text(value.text), data: new Map(data) };
};

const concept = (given) => {
  const { name, replacement, kind, score, verdict } = record(given);
  if (!text(name)) return null;
  return {
    name: text(name),
    replacement: typeof replacement === "string" ? text(replacement) : null,
    kind: text(kind, 40),
    score: number(score, 0, 1e6),
    verdict: word(verdict, VERDICTS) ?? "unproven",
  };
};

const effects = (given) => {
  const value = record(given);
  const words = text(value.words, 80);
  if (!words) return null;
  const affected = list(value.affected, 5, (name) => text(name) || null);
  return { words, worst: text(value.worst, 80), affected };
};

const namedShare = (pair) => {
  const [name, share] = Array.isArray(pair) ? pair : [];
  const drift = number(share, 0, 100);
  return text(name) && drift !== null ? [text(name), drift] : null;
};

const group = (given) => {
  const value = record(given);
  const shares = ["median", "p95", "maximum"].map((name) => number(value[name], 0, 100));
  if (shares.includes(null)) return null;
  const [median, p95, maximum] = shares;
  const names = number(value.names, 0, 1e7) ?? 0;
  const worst = list(value.worst, 8, namedShare);
  return { group: text(value.group, 80), names, median, p95, maximum, worst };
};

const point = (given) => {
  const [drift, left] = Array.isArray(given) ? given : [];
  const pair = [number(drift, 0, 100), number(left, 0, 10)];
  return pair.includes(null) ? null : pair;
};

function curve(given) {
  const value = record(given);
  const chosen = point(value.chosen);
  const reach = number(value.reach, 0, 100);
  if (!chosen || !reach) return null;
  const offers = Object.entries(record(value.offers))
    .slice(0, 10)
    .map(([name, offer]) => {
      const numbers = list(offer, 3, (share) => number(share, 0, 100));
      return [text(name, 40), numbers.length === 3 ? numbers : null];
    });
  return {
    left: list(value.left, 200, point),
    toGo: list(value.to_go, 200, point),
    chosen,
    budget: number(value.budget, 0, 100),
    reach,
    offers: new Map(offers.filter(([, offer]) => offer)),
    live: value.live === true,
  };
}

/** The phrases that a leak probe tried, or null. */
export function leakFacts(given) {
  const value = record(given);
  const total = number(value.total, 1, 1e6);
  if (total === null || !Array.isArray(value.tried)) return null;
  const phrase = (item) => {
    const { concept: target, phrase: words, prompt, after, leaks, alias, written } = record(item);
    if (!text(words)) return null;
    const remaining = number(after, 0, 1) ?? 0;
    return {
      concept: text(target),
      phrase: text(words),
      prompt: text(prompt),
      after: remaining,
      leaks: leaks === true,
      alias: alias === true,
      written: text(written),
    };
  };
  const leaking = number(value.leaking, 0, total) ?? 0;
  return { ...base(value), total, leaking, tried: list(value.tried, 60, phrase) };
}

/** The images of a comparison as the server sent them, or null. They are never read from a workflow. */
export function imageFacts(given) {
  const value = record(given);
  const seeds = number(value.seeds, 1, 8);
  if (seeds === null || !Array.isArray(value.rows)) return null;
  return { ...base(value), seeds, rows: value.rows };
}

/** A text result and the file of its chart as the server sent it, or null. */
export function textFacts(given) {
  const value = record(given);
  const facts = base(value);
  return facts.text ? { ...facts, chart: value.chart } : null;
}

/** What a workflow stores of a result: little. */
export function stored(facts) {
  const { run, page, verdict, strength, concepts, counts, why, next } = facts;
  return {
    run,
    page,
    verdict,
    strength,
    concepts: concepts.slice(0, STORED_CONCEPTS),
    counts,
    effects: facts.effects,
    why: why && { ...why, data: Object.fromEntries(why.data) },
    next: next.map(({ code, text: words }) => ({ code, text: words })),
  };
}

export const storedLeaks = ({ run, total, leaking, tried }) => ({
  run,
  total,
  leaking,
  tried: tried.slice(0, 8),
});
export const storedText = ({ run, text: output }) => ({ run, text: output.slice(0, STORED_OUTPUT) });
export const storedCode = ({ run }) => ({ run });

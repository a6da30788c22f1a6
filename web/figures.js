// Numbers to words and positions: everything that is drawn is computed here, and nothing here draws.
import { number, t } from "./words.js";

export const percent = (share, digits = share < 0.1 ? 1 : 0) => number(share, digits, { style: "percent" });

export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** Maps values from 0 to `full` onto a line of `length`. */
export const scale = (full, length) => (value) => clamp(value / (full || 1), 0, 1) * length;

/** The next round number: the end of an axis. */
export function roundUp(value) {
  const step = 10 ** Math.floor(Math.log10(Math.max(value, 1e-6)));
  return [1, 2, 5, 10].map((factor) => factor * step).find((end) => end >= value * 0.999);
}

/** Where the mark is on a bar of 100: left of it a concept is erased. */
export const MARK = 50;

/** The length of a score on a bar of 100. Only a score above 1, which is not erased, passes the mark. */
export const scoreLength = (score) => clamp(score * MARK, 1, 100);

const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);

/** "Erased", "All 3 erased" or "Weakened: 1 of 3" from {verdict: count}. */
export function headline(counts) {
  const total = sum(counts);
  const verdict = worst(counts);
  const words = verdictWords()[verdict].replace(/^./u, (letter) => letter.toUpperCase());
  if (total === 1) return words;
  if (verdict === "erased") return t("All {0} erased", total);
  return t("{0}: {1} of {2}", words, counts[verdict], total);
}

/** The worst verdict, which colors a headline. */
export const worst = (counts) =>
  ["stands", "weakened", "unproven", "erased"].find((verdict) => counts[verdict]) ?? "unproven";

/** "and 95 more, all erased" for the concepts without a row; empty if all have one. */
export function remainder(counts, shown) {
  const rest = { ...counts };
  for (const { verdict } of shown) rest[verdict] -= 1;
  const total = sum(rest);
  if (total <= 0) return "";
  const words = verdictWords();
  const present = Object.keys(words).filter((verdict) => rest[verdict] > 0);
  if (present.length === 1) return t("and {0} more, all {1}", number(total), words[present[0]]);
  return t("and {0} more", total) + ": " + present.map((name) => `${rest[name]} ${words[name]}`).join(", ");
}

/** {verdict: what a row says}. */
export const verdictWords = () => ({
  erased: t("erased"),
  unproven: t("not tested"),
  weakened: t("weakened"),
  stands: t("still there"),
});

export const MAX_LIMIT = 2;

/** The side-effect limit at a position in a frame whose axis ends at `full`. */
export function limitAt(x, full, frame) {
  const share = clamp((x - frame.left) / frame.width, 0, 1);
  return clamp(Number((share * full).toFixed(3)), 0.005, MAX_LIMIT);
}

/** The positions of a trade-off in a frame. The axis ends at a round value that holds both points. */
export function plot(curve, next, frame) {
  const full = roundUp(Math.max(curve.reach, curve.chosen[0], next?.[0] ?? 0));
  const x = scale(full, frame.width);
  const y = scale(1, frame.height);
  const position = ([drift, share]) => [frame.left + x(drift), frame.top + frame.height - y(share)];
  const coordinates = (point) =>
    position(point)
      .map((number) => number.toFixed(1))
      .join(",");
  const polyline = (points) =>
    points
      .filter(([drift]) => drift <= full)
      .map(coordinates)
      .join(" ");
  return {
    full,
    left: polyline(curve.left),
    toGo: polyline(curve.toGo),
    chosen: position(curve.chosen),
    next: next ? position(next) : null,
    budget: curve.budget === null ? null : frame.left + x(curve.budget),
  };
}

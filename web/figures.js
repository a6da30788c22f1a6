// Numbers to words and places: everything that is drawn is reckoned here, and nothing here draws.
import { t } from "./words.js";

export const percent = (share, digits = share < 0.1 ? 1 : 0) => `${(share * 100).toFixed(digits)} %`;

export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** Places on a line of `length` for values from 0 to `full`. */
export const scale = (full, length) => (value) => clamp(value / (full || 1), 0, 1) * length;

/** A round number at or above: the end of an axis. */
export function roundUp(value) {
  const step = 10 ** Math.floor(Math.log10(Math.max(value, 1e-6)));
  return [1, 2, 5, 10].map((factor) => factor * step).find((end) => end >= value * 0.999);
}

/** "2 of 3 erased, 1 weakened" from {verdict: count}. */
export function headline(counts) {
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const alone = { erased: t("Erased"), weakened: t("Weakened"), stands: t("Still there"), unproven: t("Unproven") };
  if (total === 1) return alone[worst(counts)];
  const others = { weakened: t("{0} weakened", counts.weakened), stands: t("{0} still there", counts.stands), unproven: t("{0} unproven", counts.unproven) };
  const found = Object.keys(others).filter((verdict) => counts[verdict]).map((verdict) => others[verdict]);
  return [t("{0} of {1} erased", counts.erased ?? 0, total), ...found].join(", ");
}

/** The verdict that a headline is coloured by: the worst one. */
export const worst = (counts) => ["stands", "weakened", "unproven", "erased"].find((verdict) => counts[verdict]) ?? "unproven";

/** What an edit at another strength or budget would give: drift is exact, what is left is close for nearby strengths. */
export function forecast(curve, strength, budget) {
  if (!curve) return null;
  const [share, ...place] = curve.offers[budget] ?? [];
  // Two numbers: kept with a workflow by an earlier release, which did not say where on the curve the offer is.
  const moved = curve.budget !== null && place.length === 2 && Math.abs(share - curve.budget) > 1e-9;
  const [drift, left] = moved ? place : curve.chosen;
  return { drift: drift * Math.abs(strength), left: Math.max(0, 1 - strength * (1 - left)), moved };
}

/** The plot of a trade-off: places in a box, what lies beyond it left out but for the way there. */
export function plot(curve, extra, box) {
  const wide = Math.max(curve.chosen[0], curve.budget ?? 0, extra ? extra.drift : 0) * 1.6;
  const full = roundUp(Math.max(wide, 0.02));
  const x = scale(full, box.width);
  const y = scale(1, box.height);
  const place = ([drift, left]) => [box.left + x(drift), box.top + box.height - y(left)];
  const inside = curve.points.filter(([drift], i) => drift <= full || (i && curve.points[i - 1][0] <= full));
  const joined = (places) => places.map((point) => place(point).map((value) => value.toFixed(1)).join(",")).join(" ");
  return {
    full,
    line: joined(inside),
    way: joined(inside.filter((point) => point.length > 2).map(([drift, , toGo]) => [drift, toGo])),
    chosen: place(curve.chosen),
    ghost: extra ? place([extra.drift, extra.left]) : null,
    budget: curve.budget === null ? null : box.left + x(curve.budget),
  };
}

/** Where the names of a group lie on a strip. */
export function strip(group, full, length) {
  const x = scale(full, length);
  return {
    middle: x(group.median),
    most: x(group.p95),
    end: x(group.maximum),
    names: group.worst.map(([name, value]) => ({ name, value, x: x(value) })),
  };
}

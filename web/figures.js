// Numbers to words and positions: everything that is drawn is computed here, and nothing here draws.
import { t } from "./words.js";

export const percent = (share, digits = share < 0.1 ? 1 : 0) => `${(share * 100).toFixed(digits)} %`;

export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** Maps values from 0 to `full` onto a line of `length`. */
export const scale = (full, length) => (value) => clamp(value / (full || 1), 0, 1) * length;

/** The next round number: the end of an axis. */
export function roundUp(value) {
  const step = 10 ** Math.floor(Math.log10(Math.max(value, 1e-6)));
  return [1, 2, 5, 10].map((factor) => factor * step).find((end) => end >= value * 0.999);
}

/** "2 of 3 erased, 1 weakened" from {verdict: count}. */
export function headline(counts) {
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const single = {
    erased: t("Erased"),
    weakened: t("Weakened"),
    stands: t("Still there"),
    unproven: t("Unproven"),
  };
  if (total === 1) return single[worst(counts)];
  const shortfalls = {
    weakened: t("{0} weakened", counts.weakened),
    stands: t("{0} still there", counts.stands),
    unproven: t("{0} unproven", counts.unproven),
  };
  const present = Object.keys(shortfalls).filter((verdict) => counts[verdict]);
  const erased = t("{0} of {1} erased", counts.erased ?? 0, total);
  return [erased, ...present.map((verdict) => shortfalls[verdict])].join(", ");
}

/** The worst verdict, which colors a headline. */
export const worst = (counts) =>
  ["stands", "weakened", "unproven", "erased"].find((verdict) => counts[verdict]) ?? "unproven";

/** An edit at another strength or budget: its drift is exact, what is left is close for nearby strengths. */
export function forecast(curve, strength, budget) {
  if (!curve) return null;
  const [share, ...offer] = curve.offers[budget] ?? [];
  const moved = curve.budget !== null && share !== undefined && Math.abs(share - curve.budget) > 1e-9;
  const [drift, left] = moved ? offer : curve.chosen;
  return { drift: drift * Math.abs(strength), left: Math.max(0, 1 - strength * (1 - left)), moved };
}

/** The positions of a trade-off in a box. The axis ends where the server says, or at the forecast beyond. */
export function plot(curve, next, box) {
  const full = Math.max(curve.reach, curve.chosen[0], next?.drift ?? 0);
  const x = scale(full, box.width);
  const y = scale(1, box.height);
  const position = ([drift, share]) => [box.left + x(drift), box.top + box.height - y(share)];
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
    toGo: polyline(curve.to_go),
    chosen: position(curve.chosen),
    next: next ? position([next.drift, next.left]) : null,
    budget: curve.budget === null ? null : box.left + x(curve.budget),
  };
}

/** The positions of a group of names on a strip. */
export function strip(group, full, length) {
  const x = scale(full, length);
  return {
    median: x(group.median),
    p95: x(group.p95),
    names: group.worst.map(([name, value]) => ({ name, value, x: x(value) })),
  };
}

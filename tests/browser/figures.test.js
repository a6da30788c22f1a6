import assert from "node:assert/strict";
import test from "node:test";
import {
  MARK,
  headline,
  percent,
  plot,
  remainder,
  roundUp,
  scale,
  scoreLength,
  worst,
} from "../../web/figures.js";

const CURVE = {
  left: [
    [0, 1],
    [0.01, 0.9],
    [0.05, 0.5],
    [0.1, 0.2],
    [2.0, 0.3],
  ],
  toGo: [
    [0, 1],
    [0.05, 0.4],
    [0.1, 0.1],
    [2.0, 0.0],
  ],
  chosen: [0.1, 0.2],
  budget: 0.1,
  reach: 0.2,
  offers: new Map([
    ["some", [0.1, 0.1, 0.2]],
    ["little", [0.05, 0.05, 0.5]],
  ]),
};
const BOX = { left: 10, top: 5, width: 100, height: 50 };

const points = (polyline) => polyline.split(" ").map((pair) => pair.split(",").map(Number));

test("numbers are shown as people read them", () => {
  assert.equal(percent(0.0123), "1.2%");
  assert.equal(percent(0.5), "50%");
  assert.equal(headline({ erased: 1 }), "Erased");
  assert.equal(headline({ stands: 1 }), "Still there");
  assert.equal(headline({ erased: 3, stands: 0 }), "All 3 erased");
  assert.equal(headline({ erased: 2, weakened: 1, unproven: 1 }), "Weakened: 1 of 4");
  assert.equal(worst({ erased: 9, stands: 1 }), "stands");
});

test("a bar agrees with its verdict", () => {
  assert.ok(scoreLength(1) <= MARK && scoreLength(0.2) < MARK && scoreLength(1.01) > MARK);
  assert.equal(scoreLength(50), 100);
});

test("concepts without a row are counted", () => {
  const counts = { erased: 100, weakened: 0, stands: 0, unproven: 0 };
  const shown = Array(5).fill({ verdict: "erased" });
  assert.equal(remainder(counts, shown), "and 95 more, all erased");
  assert.equal(remainder({ ...counts, weakened: 2 }, shown), "and 97 more: 95 erased, 2 weakened");
  assert.equal(remainder({ ...counts, erased: 5 }, shown), "");
});

test("scales end at their limits", () => {
  const x = scale(0.2, 100);
  assert.deepEqual([x(0), x(0.1), x(0.2), x(5), x(-1)], [0, 50, 100, 100, 0]);
  assert.deepEqual([0.013, 0.02, 0.11, 1].map(roundUp), [0.02, 0.02, 0.2, 1]);
});

test("the plot stays in its box and ends where the server says", () => {
  const positions = plot(CURVE, [0.05, 0.6], BOX);
  assert.equal(points(positions.left).length, 4);
  assert.equal(points(positions.toGo).length, 3);
  for (const [x, y] of [...points(positions.left), ...points(positions.toGo)]) {
    assert.ok(x >= 10 && x <= 110 && y >= 5 && y <= 55, `${x},${y}`);
  }
  assert.deepEqual(positions.chosen, [60, 45]);
  assert.equal(positions.budget, 60);
  assert.equal(positions.full, 0.2);
  assert.equal(plot(CURVE, [0.4, 0.1], BOX).full, 0.5, "a point beyond it is shown");
  assert.equal(plot({ ...CURVE, budget: null }, null, BOX).next, null);
});

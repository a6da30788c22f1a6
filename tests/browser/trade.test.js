import assert from "node:assert/strict";
import { test } from "node:test";
import { limitAt, plot } from "../../web/figures.js";
import { newest } from "../../web/trade.js";

const FRAME = { left: 10, top: 5, width: 100, height: 50 };

test("a position in the frame is a limit, and the plot draws that limit there", () => {
  assert.equal(limitAt(60, 0.2, FRAME), 0.1);
  assert.equal(limitAt(-50, 0.2, FRAME), 0.005, "never none at all");
  assert.equal(limitAt(500, 5, FRAME), 2, "never more than the server takes");
  const curve = { left: [], toGo: [], chosen: [0.1, 0.5], reach: 0.2, budget: limitAt(77, 0.2, FRAME) };
  assert.ok(Math.abs(plot(curve, null, FRAME).budget - 77) < 0.5);
});

test("while an answer is on its way only the newest question waits", async () => {
  const asked = [];
  let release;
  const ask = newest(async (question) => {
    asked.push(question);
    if (asked.length === 1) await new Promise((done) => (release = done));
  });
  const first = ask(1);
  for (const question of [2, 3, 4]) await ask(question);
  release();
  await first;
  assert.deepEqual(asked, [1, 4]);
  await ask(5);
  assert.deepEqual(asked, [1, 4, 5]);
});

test("a failure does not end the control", async () => {
  const asked = [];
  const ask = newest(async (question) => {
    asked.push(question);
    if (question === 1) throw new Error("no server");
  });
  await assert.rejects(ask(1));
  await ask(2);
  assert.deepEqual(asked, [1, 2]);
});

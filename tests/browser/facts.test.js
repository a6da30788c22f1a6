import assert from "node:assert/strict";
import test from "node:test";
import {
  erasureFacts,
  imageFacts,
  leakFacts,
  previewFacts,
  stored,
  storedCode,
  textFacts,
} from "../../web/facts.js";

const RESULT = {
  run: "0123abcd",
  page: "0".repeat(32),
  verdict: "erased",
  strength: 1,
  concepts: [{ name: "Goya", replacement: "art", kind: "style", score: 0.2, verdict: "erased" }],
  counts: { erased: 1 },
  effects: { words: "none", worst: "tiny", affected: ["Munch"] },
  why: { code: "rival", text: "A sentence.", data: { name: "Munch", share: 0.5, concepts: ["Goya", 3] } },
  next: [{ code: "use_auto", text: "A sentence.", data: {} }],
  warnings: [{ text: "a note" }],
  drift: [{ group: "Test names", names: 3, median: 0.1, p95: 0.2, maximum: 0.3, worst: [["Munch", 0.2]] }],
  curve: {
    left: [[0, 1]],
    to_go: [],
    chosen: [0.1, 0.2],
    budget: 0.3,
    reach: 0.4,
    offers: { "erase-fully": [0.4, 0.3, 0.1] },
  },
  details: [{ code: "measured_layers", text: "one", data: { layers: 1 } }],
};

test("a result passes whole, and what is stored of it passes again", () => {
  const facts = erasureFacts(RESULT);
  assert.equal(facts.concepts[0].score, 0.2);
  assert.deepEqual(facts.effects, { words: "none", worst: "tiny", affected: ["Munch"] });
  assert.deepEqual([...facts.curve.offers], [["erase-fully", [0.4, 0.3, 0.1]]]);
  assert.equal(facts.details[0].data.get("layers"), 1);
  const again = erasureFacts(JSON.parse(JSON.stringify(stored(facts))));
  for (const name of ["run", "page", "verdict", "concepts", "counts", "effects", "why", "next"]) {
    assert.deepEqual(again[name], facts[name], name);
  }
});

test("whatever a workflow holds becomes harmless or nothing", () => {
  const evil = "x;background:url(//evil)";
  const nasty = [undefined, null, 1, "x", [], { verdict: evil }, { verdict: "__proto__" }, { verdict: {} }];
  for (const value of nasty) assert.equal(erasureFacts(value), null);
  const facts = erasureFacts({
    verdict: "stands",
    run: evil,
    page: "../../x",
    strength: 1e999,
    concepts: [
      null,
      3,
      { name: { toString: 1 } },
      { name: evil, score: "1;x", verdict: evil, replacement: 4 },
    ],
    counts: { stands: evil, __proto__: 3 },
    effects: { words: { length: 3, text: evil } },
    next: [{}, evil],
    drift: [{ median: evil, p95: 1, maximum: 1 }],
    curve: { chosen: [evil, 1], reach: 1 },
    warnings: evil,
    details: { length: 1e9 },
  });
  assert.deepEqual(
    [facts.run, facts.page, facts.strength, facts.effects, facts.curve],
    ["", "", 1, null, null],
  );
  assert.deepEqual(facts.concepts, [
    { name: evil, replacement: null, kind: "", score: null, verdict: "unproven" },
  ]);
  assert.deepEqual([facts.drift, facts.warnings, facts.details, facts.counts.stands], [[], [], [], 0]);
  assert.equal(
    leakFacts({ total: 3, tried: [{ phrase: "a", after: 12 }] }).tried[0].after,
    1,
    "never over 100 %",
  );
  const [known, written] = leakFacts({
    total: 2,
    tried: [{ phrase: "a", written: {} }, { phrase: "b", written: "other language" }],
  }).tried;
  assert.deepEqual([known.written, written.written], ["", "other language"]);
  assert.equal(textFacts({ text: "x".repeat(1e6) }).text.length, 20_000);
});

test("a workflow cannot name an image", () => {
  const facts = imageFacts({ run: "0123abcd", seeds: 2, rows: [{}] });
  assert.deepEqual(storedCode(facts), { run: "0123abcd" });
  assert.equal(imageFacts(storedCode(facts)), null);
});

test("a preview is taken from the server's answer only as far as it is one", () => {
  const answer = {
    verdict: "erased",
    chosen: [0.1, 0.2, 0.3],
    concepts: [{ name: "a", replacement: "b", score: 0.5, verdict: "erased" }, { name: 3 }],
    counts: { erased: 1, other: "x" },
    effects: { words: "none", affected: ["c"] },
  };
  const facts = previewFacts(answer);
  assert.deepEqual(facts.chosen, [0.1, 0.2]);
  assert.deepEqual(
    facts.concepts.map(({ name }) => name),
    ["a"],
  );
  assert.equal(previewFacts({ error: "There is no report for this run any more." }), null);
  assert.equal(previewFacts({ ...answer, chosen: ["javascript:", 1] }), null);
  assert.equal(previewFacts({ ...answer, verdict: "great" }), null);
});

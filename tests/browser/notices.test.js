import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { noticeText, setNotices } from "../../web/notices.js";
import { setWords } from "../../web/words.js";

function speak(language) {
  const path = new URL(`../../locales/${language}/main.json`, import.meta.url);
  const messages = language === "en" ? {} : JSON.parse(readFileSync(path, "utf-8"));
  setWords(messages.SPEED, language);
  setNotices(messages.SPEED_NOTICES);
}

const notice = (code, data, text = "English.") => ({ code, text, data: new Map(Object.entries(data)) });

test("English shows the sentence of the server", () => {
  speak("en");
  assert.equal(noticeText(notice("rival", { name: "Goya", concept: "Dali" })), "English.");
});

test("other languages fill in what a notice is about", () => {
  speak("de");
  assert.match(noticeText(notice("rival", { name: "Goya", concept: "Dali" })), /„Goya“ .* „Dali“/);
  assert.match(noticeText(notice("rows_lost", { concept: "Dali", share: 0.127 })), /„Dali“ .* 13\s%/);
  assert.match(noticeText(notice("over_limit", { mean: 0.4567, limit: 0.3 })), /\(0,457; Grenze 0,3\)/);
  assert.match(noticeText(notice("limit_reached", { concepts: ["Dali"], total: 3 })), /„Dali“/);
  speak("zh");
  assert.match(
    noticeText(notice("limit_reached", { concepts: ["Dali", "Goya"], total: 3 })),
    /3 个概念中的 2 个/,
  );
});

test("a notice about another text input says which", () => {
  speak("de");
  const data = { input: "pooled", concepts: ["Dali"], total: 1 };
  assert.match(
    noticeText(notice("limit_reached", data, "Pooled text input: A.")),
    /^Pooled-Embedding: Wegen/,
  );
});

test("a notice about a line of a list begins with the line, and names another in the same words", () => {
  speak("de");
  const data = { where: "mine.csv, line 5", name: "Goya", owner: "line 1" };
  assert.match(noticeText(notice("repeated", data)), /^mine\.csv, Zeile 5: „Goya“ .* Zeile 1 /);
  speak("zh");
  assert.match(noticeText(notice("repeated", data)), /^mine\.csv, 第 5 行：“Goya”已出现在第 1 行/);
});

test("fixed words in a notice are translated, and names never", () => {
  speak("de");
  const data = { concept: "erased", verdict: "erased", solved: 0.127, score: 1, probed: 0.2, to_go: "–" };
  assert.match(noticeText(notice("measured_score", data)), /^erased: gelöscht; Wert 1 .* 0,127 in den/);
});

test("what has no translation, or lacks a value, stays English", () => {
  speak("de");
  assert.equal(noticeText(notice("unheard_of", {})), "English.");
  assert.equal(noticeText(notice("rival", { name: "Goya" })), "English.");
});

test("names are shown as they are", () => {
  speak("de");
  const name = "$& {concept} <b>";
  assert.ok(noticeText(notice("rival", { name, concept: "Dali" })).includes(name));
});
